from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from formula_values import evaluate
from plans import coupled_entries
from sottovoce.certificate.certificate import Certificate
from sottovoce.certificate.contributions import contribution_ranges, sum_ranges
from sottovoce.certificate.sensitivity import Sensitivity, sensitivity
from sottovoce.errors import CertificateError
from sottovoce.formula.canonical import canonical
from sottovoce.formula.derive import derivative
from sottovoce.formula.tape import tape
from sottovoce.privacy.gaussian import gdp_mu_of
from sottovoce.problem.constraints import Constraint
from sottovoce.problem.groups import Array
from sottovoce.problem.sums import contributions


def certified(problem: sv.Problem) -> Sensitivity:
    return sv.certify(problem.cloud, tighten=False).sensitivity


def test_hours_that_nobody_mixes_cost_no_more_than_one() -> None:
    ev = sv.agents(5, dim=3, lower=0.0, upper=1.0)
    apart = sv.Problem(objectives=sum(ev.x), constraints=[sv.total(ev.x) <= [2, 2, 2]])
    np.testing.assert_allclose(certified(apart).loads(np.ones(3)), 1.0, rtol=1e-12)
    mixed = sv.Problem(
        objectives=sum(ev.x), constraints=[sv.total(ev.x) <= [2, 2, 2], sv.total(sum(ev.x)) <= 4]
    )
    # One more output that adds all hours up ties them together: 1 + 1 + 1 + sqrt(3)^2.
    np.testing.assert_allclose(certified(mixed).loads(np.ones(4)), 6.0, rtol=1e-12)


def test_a_fleet_of_one_is_tied_together_by_totals_and_formulas_alike() -> None:
    one, other = sv.agents(1, dim=2, lower=0, upper=1), sv.agents(["y"], lower=0, upper=1)
    x, (y,) = one.x, other
    problem = sv.Problem(
        agents=[one, other],
        objectives=[x[0] + x[1], y],
        constraints=[sv.total(x) <= [1, 1], x[0] + x[1] + y <= 1.5],
    )
    np.testing.assert_allclose(certified(problem).loads(np.ones(3)), [4.0, 1.0], rtol=1e-12)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_loads_bound_the_largest_singular_value_everywhere(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dim, rows = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    # A second agent in every row, or rows of one component would be bounds.
    x = sv.agents(2, dim=[dim, 1], lower=-1, upper=2)
    own = list(np.atleast_1d(x[0]))
    g = []
    for _ in range(rows):
        chosen = [s for s in own if rng.random() < 0.4] or [own[0]]
        g.append(sum(int(rng.integers(1, 4)) * s**2 + s for s in chosen))
    g += own
    problem = sv.Problem(objectives=[sum(own), x[1]], constraints=[e + x[1] <= 90 for e in g])
    precision = rng.uniform(0.1, 3.0, len(g))
    load = certified(problem).loads(precision)[0]
    jacobian = tape([derivative(canonical(e), s) for e in g for s in own], own)
    for point in rng.uniform(-1, 2, (50, dim)):
        scaled = np.sqrt(precision)[:, np.newaxis] * np.reshape(jacobian(*point), (-1, dim))
        assert np.linalg.norm(scaled, 2) ** 2 <= load * (1 + 1e-12)


def test_sparse_weights_with_agents_that_cannot_move_have_a_typical_slope() -> None:
    ev = sv.agents(3, lower=0.0, upper=1.0, parameters={"draw": [2.0, 0.0, 8.0]})
    weights = sparse.csr_array(np.array([[1.0, 1.0, 1.0]]))
    problem = sv.Problem(
        objectives=ev.x, constraints=[sv.total(ev["draw"] * ev.x, weights=weights) <= 5]
    )
    assert certified(problem).typical()[0] == pytest.approx(5.0)


def test_outputs_that_are_not_sums_keep_their_cross_terms() -> None:
    x = sv.agents(2, lower=0, upper=1)
    cloud = sv.Problem(objectives=list(x), constraints=[(x[0] + 10 * x[1]) ** 2 <= 1000]).cloud
    slopes = tuple(formula for *_, formula in coupled_entries(cloud))
    released = Constraint(name="slopes", sums=(), rest=slopes, offset=np.zeros(len(slopes)))
    outputs = [*cloud.constraints, released]
    found = sensitivity(outputs, cloud.groups, convex={}, tolerance=0.01)
    expected = [[22, 220], [2, 20], [20, 200]]
    np.testing.assert_allclose(found.dense(), expected, rtol=1e-9)


def test_decimal_coefficients_are_differentiated_without_rounding() -> None:
    x = sv.agents(2, lower=0, upper=1)
    problem = sv.Problem(objectives=list(x), constraints=[0.1 * x[0] ** 3 + x[1] <= 1])
    bound = certified(problem).dense()[0, 0]
    assert Fraction(bound) >= 3 * Fraction(0.1)


@pytest.mark.parametrize("centre", [-1.0, 4.0])
def test_a_fleets_slope_is_the_steepest_at_either_end(centre: float) -> None:
    ev = sv.agents(3, lower=[0.0, 1.0, 2.0], upper=[1.0, 2.0, 3.0])
    problem = sv.Problem(objectives=ev.x, constraints=[sv.total((ev.x - centre) ** 2) <= 90])
    ends = np.array([[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]])
    np.testing.assert_allclose(
        certified(problem).dense()[0], np.abs(2 * (ends - centre)).max(axis=0), rtol=1e-12
    )


def test_convexity_that_is_not_proven_shortens_no_search() -> None:
    # A bump too narrow for any sample to meet: its slope exceeds that of both ends four times.
    height, width, at = 1e-5, 1e-6, Fraction(3717, 10_000)
    ev = sv.agents(3, lower=0.0, upper=1.0)
    bump = height * sv.exp(-(((ev.x - at) / width) ** 2))
    problem = sv.Problem(objectives=ev.x, constraints=[sv.total(ev.x**2 + bump) <= 5])
    certificate = sv.certify(problem.cloud, tighten=False)
    assert {a.name: a.status for a in certificate.assumptions}["convexity of g1"] == "numerical"
    steepest = float(2 * at) + height / width * math.sqrt(2 / math.e)
    assert steepest > 9
    assert np.all(certificate.sensitivity.dense() >= steepest * (1 - 1e-5))


@pytest.mark.parametrize("kind", [np.array, sparse.csr_array], ids=["dense", "sparse"])
def test_negative_weights_move_a_sum_as_far_as_positive_ones(kind: Any) -> None:
    ev = sv.agents(3, lower=0.0, upper=1.0)
    weights = np.array([[2.0, -3.0, 0.5], [-1.0, 4.0, -6.0]])
    total = sv.total(ev.x, weights=kind(weights))
    problem = sv.Problem(objectives=ev.x, constraints=[total <= [1, 1]])
    np.testing.assert_allclose(certified(problem).dense(), np.abs(weights), rtol=1e-12)


def shift(certificate: Any, h: Any, a: Any, b: Any, radius: float) -> tuple[float, float]:
    """The mu that a plan promises agent 0, and how far one adjacent pair moves its releases."""
    hide = sv.Trajectory(radius=radius, rounds=20)
    plan = sv.plan(certificate, epsilon=1, delta=1e-5, hide=hide)
    moved = (np.asarray(h(np.array(a))) - np.asarray(h(np.array(b)))) / plan.sigma
    return float(plan.guarantee(0).gdp_mu), float(np.linalg.norm(moved))


@pytest.mark.parametrize("weights", [-np.ones((1, 3)), sparse.csr_array(-np.ones((1, 3)))])
def test_a_concave_term_with_negative_weights_is_bounded_at_its_steep_end(weights: Any) -> None:
    ev = sv.agents(3, dim=2, lower=-10.0, upper=1.0, name="ev")
    x, y = ev.x
    limit = sv.total(-(x**2 + y**2), weights=weights) <= 300
    problem = sv.Problem(objectives=x**2 + y**2, constraints=[limit])
    certificate = sv.certify(problem, tighten=False)
    assert np.all(certificate.sensitivity.dense() >= 20 * np.sqrt(2.0) * (1 - 1e-15))
    b = [-10 + np.sqrt(0.5)] * 2
    promised, seen = shift(certificate, lambda u: [u @ u], [-10.0, -10.0], b, 1.0)
    assert seen <= promised


def test_a_curved_sum_between_affine_ones_counts_in_the_joint_bound() -> None:
    x = sv.agents(2, dim=2, lower=-2.0, upper=2.0)
    problem = sv.Problem(
        objectives=[s[0] ** 2 + s[1] ** 2 for s in x],
        constraints={
            "curved": (x[0][1] + 0.1) ** 4 + (x[1][1] + 0.1) ** 4 <= 1e3,
            "mixed": sum(0.01 * s[0] + 0.02 * s[1] for s in x) <= 1e3,
            "single": 0.01 * x[0][1] + 0.01 * x[1][1] <= 1e3,
        },
    )
    certificate = sv.certify(problem, tighten=False)

    def h(u: Any) -> list[float]:
        return [(u[1] + 0.1) ** 4, 0.01 * u[0] + 0.02 * u[1], 0.01 * u[1]]

    promised, seen = shift(certificate, h, [0.0, 2.0], [0.0, 1.5], 0.5)
    assert seen <= promised


def named(A: Any) -> Certificate:
    """One agent with a state of several components, one affine row each, beside a second agent."""
    rows = np.asarray(A, dtype=float)
    x = sv.agents(2, lower=-1, upper=1, dim=[rows.shape[1], 1])
    own = list(np.atleast_1d(x[0]))
    g = [sum(float(c) * s for c, s in zip(row, own, strict=True)) + x[1] <= 90 for row in rows]
    return sv.certify(sv.Problem(objectives=[sum(own), x[1]], constraints=g).cloud)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_bound_is_the_largest_singular_value_rounded_up(seed: int) -> None:
    rng = np.random.default_rng(seed)
    A = rng.normal(size=rng.integers(1, 5, 2)) * 10.0 ** rng.integers(-3, 4)
    S = named(A).sensitivity
    precision = 10.0 ** rng.uniform(-3, 3, len(A))
    true = np.linalg.norm(np.sqrt(precision)[:, np.newaxis] * A, 2) ** 2
    found = S.together(precision)[0]
    assert true * (1 - 1e-13) <= found <= S.loads(precision)[0] * (1 + 1e-12)
    assert found == pytest.approx(true, rel=1e-9)


@pytest.mark.parametrize("kind", ["ones", "dense", "sparse"])
def test_a_fleet_gets_the_singular_value_of_each_of_its_agents(kind: str) -> None:
    rng = np.random.default_rng(4)
    n, k, w = 7, rng.uniform(0.5, 2, 7), rng.normal(size=(3, 7))
    ev = sv.agents(n, lower=0, upper=1, dim=2, name="ev", parameters={"k": k})
    p, q = ev.x
    weights: Any = {"ones": None, "dense": w, "sparse": sparse.csr_array(w)}[kind]
    terms = [p + ev["k"] * q, p - 2 * q]
    rows = 2 if weights is None else 6
    problem = sv.Problem(
        agents=ev,
        objectives=p + q,
        constraints=[sv.total(terms, weights=weights) <= np.full(rows, 90.0)],
    )
    precision = rng.uniform(0.5, 2, rows)
    found = sv.certify(problem.cloud).sensitivity.together(precision)
    used = np.ones((1, n)) if weights is None else w
    for i in range(n):
        slopes = np.array([[1.0, k[i]], [1.0, -2.0]])
        A = np.vstack([used[r, i] * slopes for r in range(len(used))])
        true = np.linalg.norm(np.sqrt(precision)[:, np.newaxis] * A, 2) ** 2
        assert true * (1 - 1e-13) <= found[i] <= true * (1 + 1e-9)


def test_curved_contributions_are_added_to_the_affine_ones() -> None:
    x = sv.agents(2, lower=-1, upper=1, dim=[2, 1])
    (p, q), r = x
    problem = sv.Problem(
        agents=x,
        objectives=[p, r],
        constraints=[p + q + r <= 9, p - q + r <= 9, p**2 + q**2 + r <= 9],
    )
    S = sv.certify(problem.cloud, tighten=False).sensitivity
    # |(1, 1), (1, -1)|_2^2 = 2, and (2 sqrt 2)^2 for the curved sum.
    assert S.together(np.ones(3))[0] == pytest.approx(10.0, rel=0.02)
    assert S.loads(np.ones(3))[0] == pytest.approx(12.0, rel=0.02)


def test_a_plan_takes_less_noise_where_sums_see_different_directions() -> None:
    # Rows (1, 1) and (1, -1) of one agent: sqrt(2) instead of 2 for both together.
    certificate = named([[1.0, 1.0], [1.0, -1.0]])
    plan = sv.plan(certificate, epsilon=1, delta=1e-5, hide=sv.Trajectory(radius=1))
    S, precision = certificate.sensitivity, 1 / plan.sigma**2
    assert plan.gdp_mu.max() == pytest.approx(float(np.sqrt(S.together(precision).max())), rel=1e-3)
    assert np.sqrt(S.loads(precision)[0]) > 1.3 * plan.gdp_mu.max()
    assert plan.gdp_mu.max() == pytest.approx(gdp_mu_of(1.0, 1e-5), rel=1e-3)
    assert plan.guarantee(0).epsilon <= 1.0


# --- Ranges of contributions: never narrower than what agents can add ---


def mixture(kind: str, seed: int) -> sv.Problem:
    """Two named agents beside a fleet whose weights may be negative where terms are affine."""
    rng = np.random.default_rng(seed)
    x = sv.agents(2, lower=[-1, 0.5], upper=[2, 1.5], dim=[2, 1])
    (p, q), r = x
    own = {"k": rng.normal(0, 2, 4)}
    ev = sv.agents(4, lower=-1.0, upper=rng.uniform(0, 2, 4), name="ev", parameters=own)
    weights: Any = None
    if kind != "ones":
        weights = rng.normal(0, 1, (2, 4)) * (rng.random((2, 4)) < 0.7)
        weights[0, 0] = 1.0
        weights[1, 1:] = -1.5
        weights = sparse.csr_array(weights) if kind == "sparse" else weights
    term = ev["k"] * ev.x if kind != "ones" else ev.x**2
    rows = 1 if weights is None else 2
    return sv.Problem(
        agents=[x, ev],
        objectives=[p**2 + q**2, r**2, ev.x**2],
        constraints=[
            sv.total(term, weights=weights) + p - 2 * q + sv.exp(r) <= np.full(rows, 90.0),
            (p - r) ** 2 + sv.exp(q) / 3 <= 80,
        ],
    )


def members(problem: sv.Problem, agent: int, points: Array) -> Array:
    """The contributions of one agent at several of its states, shape (points, sums)."""
    sums = problem.cloud.sums
    out = np.zeros((len(points), sums.count))
    if agent < 2:
        group = problem.cloud.groups[agent]
        for o, h in contributions(sums, group).items():
            out[:, o] = tape([h], group.symbols)(*points.T)[0]
        return out
    group, place = problem.cloud.groups[2], agent - 2
    part = sums.families[0].sums[0]
    here = {s: a[place] for s, a in group.parameters.items()}
    w: Any = np.ones((1, 4)) if part.weights is None else part.weights
    w = w.toarray() if sparse.issparse(w) else np.asarray(w)
    for row in range(len(w)):
        known = dict(zip(group.symbols, points.T, strict=True)) | here
        out[:, row] = w[row, place] * evaluate(part.terms[0], known)
    return out


@settings(max_examples=6, deadline=None)
@given(kind=st.sampled_from(["ones", "dense", "sparse"]), seed=st.integers(0, 2**32 - 1))
def test_ranges_slopes_and_sizes_are_never_below_what_agents_do(kind: str, seed: int) -> None:
    problem = mixture(kind, seed)
    certificate = sv.certify(problem.cloud)
    spread, S = certificate.contributions.spread.dense(), certificate.sensitivity.dense()
    rng = np.random.default_rng(seed)
    most = np.zeros(problem.cloud.sums.count)
    for agent in range(problem.agents):
        group = certificate.domain[min(agent, 2)]
        low, high = (b[agent - 2 if agent >= 2 else 0] for b in (group.lower, group.upper))
        corners = np.where(rng.random((20, group.dim)) < 0.5, low, high)
        points = np.vstack([corners, rng.uniform(low, high, (20, group.dim))])
        found = members(problem, agent, points)
        assert np.all(np.ptp(found, axis=0) <= spread[:, agent] * (1 + 1e-12))
        most += np.abs(found).max(axis=0)
        for i, j in rng.integers(0, len(points), (60, 2)):
            moved = np.abs(found[i] - found[j])
            assert np.all(moved <= S[:, agent] * np.linalg.norm(points[i] - points[j]) + 1e-12)
    assert np.all(most <= certificate.contributions.size * (1 + 1e-12))


def test_the_range_of_an_affine_contribution_is_exact() -> None:
    x = sv.agents(2, lower=[[-1, 0], [2, 2]], upper=[[1, 3], [5, 5]], dim=2)
    problem = sv.Problem(
        objectives=[s[0] + s[1] for s in x],
        constraints=[x[0][0] - 2 * x[0][1] + 3 * x[1][0] + x[1][1] <= 90],
    )
    found = contribution_ranges(problem.cloud.sums, problem.cloud.groups)
    assert found.spread.dense() == pytest.approx(np.array([[8.0, 12.0]]), rel=1e-9)
    assert found.size == pytest.approx([7.0 + 20.0], rel=1e-9)
    assert sum_ranges(problem.cloud.sums, problem.cloud.groups)[0] == pytest.approx((1.0, 21.0))


def test_sum_ranges_hold_where_large_contributions_cancel() -> None:
    ev = sv.agents(3, lower=[1e16, -1e16, 0.1], upper=[1e16, -1e16, 0.3])
    problem = sv.Problem(objectives=ev.x, constraints=[sv.total(ev.x) <= 9])
    low, high = sum_ranges(problem.cloud.sums, problem.cloud.groups)[0]
    assert low <= 0.1
    assert high >= 0.3


def test_a_sum_of_a_single_agent_keeps_its_range_to_the_last_bit() -> None:
    # sqrt is not defined beyond 0, so that a range one bit too wide would prove nothing.
    x = sv.agents(2, lower=[0.0, 0.1], upper=[0.7, 3.0])
    problem = sv.Problem(
        objectives=list(x), constraints=[x[0] ** 2 / x[1] + sv.exp(x[0] + x[1]) <= 40]
    )
    ranges = sum_ranges(problem.cloud.sums, problem.cloud.groups)
    assert (0.0, 0.7) in ranges
    assert (0.1, 3.0) in ranges


def test_a_contribution_without_a_finite_range_is_refused() -> None:
    x = sv.agents(2, lower=[0, -1], upper=1)
    problem = sv.Problem(objectives=list(x), constraints=[x[1] - sv.log(x[0]) <= 9])
    with pytest.raises(CertificateError, match="every contribution must have finite bounds"):
        contribution_ranges(problem.cloud.sums, problem.cloud.groups)


def test_the_range_of_an_agent_that_cannot_move_is_nothing() -> None:
    x = sv.agents(3, lower=[-400, 0, 0], upper=[-400, 5, 5])
    stated = sv.Problem(
        objectives=[x[0], x[1] ** 2, x[2] ** 2],
        constraints=[sv.exp(2 * x[0]) + x[1] ** 2 + sv.exp(x[2]) <= 20],
    )
    certificate = sv.certify(stated.cloud)
    assert certificate.contributions.spread.dense()[0, 0] == 0.0
    plan = sv.plan(certificate, epsilon=1.0, delta=1e-3, hide=sv.Everything(rounds=20))
    assert plan.gdp_mu[0] <= plan.gdp_rounding
