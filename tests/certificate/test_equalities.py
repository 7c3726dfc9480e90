"""Equalities: feasible points, multipliers of either sign, boxes contracted from both sides."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from sottovoce.certificate.domain import tightened_domain
from sottovoce.certificate.slater import slater_point
from sottovoce.errors import ProblemError
from sottovoce.problem.numeric import Numeric


def stated(*constraints: Any, lower: Any = -2.0, upper: Any = 2.0) -> sv.Problem:
    x = sv.agents(3, lower=lower, upper=upper)
    rows = [row(x) for row in constraints]
    return sv.Problem(agents=x, objectives=[(s - 1) ** 2 for s in x], constraints=rows)


def test_slaters_condition_asks_equalities_for_a_point_and_inequalities_for_an_interior() -> None:
    problem = stated(lambda x: x[0] + x[1] == 1, lambda x: x[1] + x[2] ** 2 <= 1)
    found = slater_point(problem.cloud, problem.cloud.groups)
    assert found.status == "numerical"
    assert found.slack < 0
    assert abs(Numeric(problem).constraints(found.point)[0]) < 1e-12
    assert "equalities met to rounding" in found.how


def test_equalities_alone_need_no_interior() -> None:
    problem = stated(lambda x: x[0] + x[1] + x[2] == 6)  # one point: every x at its bound
    assert slater_point(problem.cloud, problem.cloud.groups).status == "numerical"
    problem = stated(lambda x: x[0] + x[1] == 0, lambda x: x[1] - x[2] == 0.5)
    assert sv.certify(problem).holds


def test_equalities_over_a_large_fleet_are_met_without_a_dense_matrix() -> None:
    n = 40_000
    ev = sv.agents(n, lower=0, upper=1, dim=2)
    problem = sv.Problem(
        agents=ev,
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
        agents=x,
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


def test_a_fleet_balances_a_demand() -> None:
    rng = np.random.default_rng(5)
    n = 3_000
    c = rng.uniform(0.5, 2, n)
    ev = sv.agents(n, lower=-10, upper=10, parameters={"c": c})
    problem = sv.Problem(
        agents=ev,
        objectives=ev["c"] * ev.x**2 / 2,
        constraints=[sv.total(ev.x) == n],
    )
    found = sv.reference_optimum(problem)
    price = -n / np.sum(1 / c)
    assert found.mu == pytest.approx([price], rel=1e-9)
    np.testing.assert_allclose(found.x, -price / c, rtol=1e-8)
    assert sv.certify(problem).holds
