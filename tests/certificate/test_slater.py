"""Points at which every constraint holds strictly."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from random_expressions import precise as exact_value
from sottovoce.certificate.domain import tightened_domain
from sottovoce.certificate.slater import SlaterPoint, slater_point
from sottovoce.errors import ProblemError
from sottovoce.formula.expression import Expression
from sottovoce.formula.functions import exp, log
from sottovoce.problem import gallery
from sottovoce.problem.constraints import total
from sottovoce.problem.numeric import Numeric
from sottovoce.problem.problem import CloudView, Problem

mpmath.mp.dps = 50


def find(problem: Problem) -> SlaterPoint:
    return slater_point(problem.cloud, problem.cloud.groups)


def precise(cloud: CloudView, x: Any) -> list[Any]:
    """``g(x)`` row by row with 50 digits, agent by agent."""
    held: dict[str, list[dict[Expression, Any]]] = {}
    begin = 0
    for group in cloud.groups:
        rows = x[begin : begin + group.count * group.dim].reshape(group.count, group.dim)
        begin += group.count * group.dim
        held[group.name] = [dict(zip(group.symbols, row, strict=True)) for row in rows]
        for i, point in enumerate(held[group.name]):
            point.update({s: a[i] for s, a in group.parameters.items()})
    named = {s: v for g in cloud.groups if g.count == 1 for s, v in held[g.name][0].items()}

    found = []
    for family in cloud.constraints:
        for row in range(family.rows):
            g = mpmath.mpf(family.offset[row])
            g += exact_value(family.named[row], named) if family.named else 0
            for part in family.sums:
                h = part.terms[row % len(part.terms)]
                w: Any = part.weights
                w = np.ones((1, part.group.count)) if w is None else w
                w = w.toarray() if sparse.issparse(w) else w
                weights = w[row // len(part.terms)]
                for weight, point in zip(weights, held[part.group.name], strict=True):
                    g += mpmath.mpf(weight) * exact_value(h, point)
            found.append(g)
    return found


@pytest.mark.parametrize("name", gallery.names())
def test_every_problem_of_the_gallery_has_a_certified_slater_point(name: str) -> None:
    problem = gallery.get(name)
    found = find(problem)
    equal = [family.equality for family in problem.constraints for _ in range(family.rows)]
    assert found.status == ("numerical" if any(equal) else "proven")
    assert found.slack < 0
    assert np.all((found.point >= problem.cloud.lower()) & (found.point <= problem.cloud.upper()))
    g = precise(problem.cloud, found.point)
    assert all(v <= found.slack for v, e in zip(g, equal, strict=True) if not e)
    assert all(abs(v) <= 1e-9 * 1e3 for v, e in zip(g, equal, strict=True) if e)


@pytest.mark.parametrize(("name", "largest"), [("paper", 5), ("hs22", Fraction(9, 8)), ("hs10", 1)])
def test_small_problems_come_close_to_the_largest_slack(name: str, largest: Any) -> None:
    slack = find(gallery.get(name)).slack
    assert -float(largest) <= slack <= -float(largest) * (1 - 1e-6)


def test_a_point_inside_a_narrow_ball_is_found() -> None:
    x = sv.agents(2, lower=-10, upper=10)
    ball = (x[0] - 0.3) ** 2 + (x[1] + 0.7) ** 2 <= 1e-6
    found = find(Problem(objectives=[x[0], x[1]], constraints=[ball, x[0] + x[1] <= 9]))
    assert found.status == "proven"
    assert found.slack == pytest.approx(-1e-6, rel=1e-3)


@pytest.mark.parametrize(
    "constraint", [lambda x: x[0] + x[1] <= -1, lambda x: x[0] ** 2 + x[1] ** 2 <= 0]
)
def test_without_an_interior_the_condition_fails_and_names_the_constraint(constraint: Any) -> None:
    x = sv.agents(2, lower=0, upper=1)
    problem = Problem(
        objectives=[x[0], x[1]], constraints={"easy": x[0] <= 2, "hard": constraint(x)}
    )
    found = find(problem)
    assert found.status == "fails"
    assert found.slack >= 0
    assert "hard is" in found.detail


@pytest.mark.parametrize(
    ("values", "bound"),
    [
        ([1.1] * 7, 7.7),  # NumPy's sum is 7.699999999999999
        ([2.0**53] * 8 + [1.0] * 120, 2.0**56 + 112),  # each 1 is lost beside 2^53
    ],
)
def test_a_sum_that_only_rounding_keeps_low_is_refused(values: list[float], bound: float) -> None:
    assert np.sum(values) < bound < sum(Fraction(v) for v in values)
    group = sv.agents(len(values), lower=values, upper=values, name="u")
    problem = Problem(objectives=[group.x], constraints=[total(group.x) <= bound])
    assert find(problem).status == "fails"


def test_a_point_where_a_constraint_is_minus_infinity_does_not_count() -> None:
    x = sv.agents(1, lower=0, upper=1)
    problem = Problem(objectives=[x[0]], constraints=[log(x[0]) + 1 <= 0])
    found = find(problem)
    assert found.point[0] > 0
    assert np.isfinite(found.slack)


COEFFICIENTS = st.lists(
    st.floats(-2, 2, allow_subnormal=False).map(lambda v: round(v, 3)), min_size=10, max_size=10
)


@settings(max_examples=10, deadline=None)
@given(weights=COEFFICIENTS, rate=st.lists(st.floats(0.5, 2), min_size=5, max_size=5))
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_the_certified_slack_bounds_weighted_sums_with_50_digits(
    kind: str, weights: list[float], rate: list[float]
) -> None:
    group = sv.agents(5, lower=-1, upper=2, dim=2, name="u", parameters={"a": rate})
    u, a = group.x, group["a"]
    w: Any = np.array(weights).reshape(2, 5)
    w = sparse.csr_array(w) if kind == "sparse" else w
    single = sv.agents(["v"], lower=-1, upper=1)
    problem = Problem(
        agents=[group, single],
        objectives=[u[0], single[0]],
        constraints=[
            total([u[0] + u[1], u[0] - u[1]], weights=w) + single[0] <= [4, 5, 6, 7],
            total(exp(a * u[0]) + u[1] ** 2) <= 60,
        ],
    )
    found = find(problem)
    exact = max(precise(problem.cloud, found.point))
    assert exact <= found.slack
    assert found.slack - exact <= 1e-11


def test_a_fleet_between_two_sided_bounds_is_found_by_descent() -> None:
    n = 2000
    group = sv.agents(n, lower=0, upper=np.linspace(1, 3, n)[:, None], dim=3, name="u")
    sums = total(group.x)
    problem = Problem(
        objectives=[sum(group.x)],
        constraints=[sums <= [3900, 200, 2000], -sums <= [-3700, -100, -1900]],
    )
    corners = [problem.cloud.lower(), problem.cloud.upper()]
    assert all(max(precise_sums(problem, c)) > 0 for c in [*corners, np.mean(corners, axis=0)])
    found = find(problem)
    assert found.status == "proven"
    assert max(precise_sums(problem, found.point)) <= found.slack


def precise_sums(problem: Problem, x: Any) -> list[Fraction]:
    columns = x.reshape(-1, 3).T.tolist()
    sums = [sum((Fraction(v) for v in column), Fraction(0)) for column in columns]
    first, second = problem.constraints
    return [s + Fraction(o) for s, o in zip(sums, first.offset.tolist(), strict=True)] + [
        -s + Fraction(o) for s, o in zip(sums, second.offset.tolist(), strict=True)
    ]


def test_the_largest_slack_beside_an_equality_is_the_one_by_hand() -> None:
    x = sv.agents(3, lower=0, upper=4)
    rows = [x[0] + x[1] <= 3, x[1] - x[2] <= 1, 2 * x[2] - x[0] <= 2, x[0] + x[2] == 2]
    found = find(Problem(objectives=list(x), constraints=rows))
    # x = (2 - z, y, z): the largest of y - z - 1, y - 1 - z and 3 z - 4 is least at y = 0, z = 3/4.
    assert found.slack == pytest.approx(-1.75, abs=1e-5)
    np.testing.assert_allclose(found.point, [1.25, 0.0, 0.75], atol=1e-7)


def stated(*constraints: Any, lower: Any = -2.0, upper: Any = 2.0) -> sv.Problem:
    x = sv.agents(3, lower=lower, upper=upper)
    rows = [row(x) for row in constraints]
    return sv.Problem(objectives=[(s - 1) ** 2 for s in x], constraints=rows)


def test_slaters_condition_asks_equalities_for_a_point_and_inequalities_for_an_interior() -> None:
    problem = stated(lambda x: x[0] + x[1] == 1, lambda x: x[1] + x[2] ** 2 <= 1)
    found = slater_point(problem.cloud, problem.cloud.groups)
    assert found.status == "numerical"
    assert found.slack < 0
    assert abs(Numeric(problem).constraints(found.point)[0]) < 1e-12
    assert "equalities met to rounding" in found.detail


def test_equalities_alone_need_no_interior() -> None:
    problem = stated(lambda x: x[0] + x[1] + x[2] == 6)  # one point: every x at its bound
    assert slater_point(problem.cloud, problem.cloud.groups).status == "numerical"
    problem = stated(lambda x: x[0] + x[1] == 0, lambda x: x[1] - x[2] == 0.5)
    assert sv.certify(problem).holds


def test_equalities_over_a_large_fleet_are_met_without_a_dense_matrix() -> None:
    n = 40_000
    ev = sv.agents(n, lower=0, upper=1, dim=2)
    problem = sv.Problem(
        objectives=ev.x[0] + ev.x[1],
        constraints=[
            sv.total(list(ev.x)) == [0.99 * n, 0.3 * n],
            sv.total(ev.x[0] - ev.x[1]) <= 0.8 * n,
        ],
    )
    tracemalloc.start()
    try:
        found = slater_point(problem.cloud, problem.cloud.groups)
        assert tracemalloc.get_traced_memory()[1] < 60 * 8 * 2 * n
    finally:
        tracemalloc.stop()
    assert found.status == "numerical"


def test_an_inequality_that_an_equality_presses_shut_fails() -> None:
    problem = stated(lambda x: x[0] + x[1] == 1, lambda x: x[0] + x[1] <= 1,
                     lambda x: x[2] + x[0] <= 3)  # fmt: skip
    found = slater_point(problem.cloud, problem.cloud.groups)
    assert found.status == "fails"


def test_equalities_that_contradict_one_another_are_refused() -> None:
    problem = stated(lambda x: x[0] + x[1] + x[2] == 1, lambda x: x[0] + x[1] + x[2] == 1.5)
    certificate = sv.certify(problem)
    assert not certificate.holds
    with pytest.raises(
        ProblemError, match="Slater's condition: a point of the box that meets the "
    ):
        certificate.require()
    with pytest.raises(sv.SottovoceError):
        sv.reference_optimum(problem)


@pytest.mark.parametrize("right", [6.5, -6.5])
def test_an_equality_that_no_box_reaches_is_proven_infeasible(right: float) -> None:
    problem = stated(lambda x: x[0] + x[1] + x[2] == right)
    with pytest.raises(ProblemError, match="must have a common point, got none"):
        sv.certify(problem)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_boxes_are_contracted_from_both_sides(sign: float) -> None:
    problem = stated(
        lambda x: sign * (x[0] + 4 * x[1] + x[2]) == 0.0, upper=[1.0, 5.0, 1.0],
        lower=[-1.0, -5.0, -1.0],
    )  # fmt: skip
    domain = tightened_domain(problem.cloud)
    # |4 x2| <= 2 from both sides, plus the margin.
    assert float(domain[1].lower[0, 0]) == pytest.approx(-0.5, abs=0.11)
    assert float(domain[1].upper[0, 0]) == pytest.approx(0.5, abs=0.11)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_multipliers_of_equalities_have_either_sign_and_meet_the_conditions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, m = 5, 2
    A, t = rng.normal(size=(m, n)), rng.normal(size=n)
    b, c = A @ rng.uniform(-1, 1, n), rng.uniform(0.5, 3, n)
    x = sv.agents(n, lower=-50, upper=50)
    problem = sv.Problem(
        objectives=[float(k) * (s - float(v)) ** 2 / 2 for k, v, s in zip(c, t, x, strict=True)],
        constraints=[
            sum(float(w) * s for w, s in zip(row, x, strict=True)) == float(right)
            for row, right in zip(A, b, strict=True)
        ],
    )
    found = sv.reference_optimum(problem)
    # C (x - t) + A'mu = 0 and A x = b: one linear system.
    system = np.block([[np.diag(c), A.T], [A, np.zeros((m, m))]])
    exact = np.linalg.solve(system, np.concatenate([c * t, b]))
    np.testing.assert_allclose(found.x, exact[:n], atol=1e-8)
    np.testing.assert_allclose(found.mu, exact[n:], atol=1e-7)
