"""Systems with more rows than states, and the dispatch whose saddle point they find."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.certificate.condensed import CondensedSystem, kkt_system
from sottovoce.certificate.kkt import KktMatrix, KktSystem
from sottovoce.problem.local_numeric import numeric_of

cp: Any = import_module("cvxpy")  # its type hints do not name what it exports
GENERATORS, HOURS, LINES = 3, 4, 20
RAMPS = (12.0, None, 25.0)  # the second ramps freely: agents of one form with fewer local rows


class Dispatch:
    """Generators with quadratic costs, a balance and lines per hour, and ramps of their own."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.bend, self.slope = rng.uniform(0.05, 0.1, GENERATORS), rng.uniform(5, 12, GENERATORS)
        self.shift = rng.uniform(-1, 1, (LINES, GENERATORS))
        self.demand = 40.0 * GENERATORS + np.array([0.0, 45.0, -20.0, 10.0])
        self.limit = np.abs(self.shift @ np.full(GENERATORS, 40.0)) + 30.0

    def problem(self) -> sv.Problem:
        x = sv.states(GENERATORS, lower=0, upper=100, dim=HOURS)
        of_hour = np.eye(HOURS)
        balance, flows = np.kron(np.ones(GENERATORS), of_hour), np.kron(self.shift, of_hour)
        costs = [
            sum(float(b) * p**2 + float(s) * p for p in own)
            for b, s, own in zip(self.bend, self.slope, x, strict=True)
        ]
        local = [
            row
            for own, ramp in zip(x, RAMPS, strict=True)
            for t in range(HOURS - 1)
            if ramp is not None
            for row in (own[t + 1] - own[t] <= ramp, own[t] - own[t + 1] <= ramp)
        ]
        return sv.Problem(
            states=x,
            objectives=costs,
            constraints=[
                balance @ x == self.demand,
                flows @ x <= np.repeat(self.limit, HOURS),
            ],
            local=local,
        )

    def by_clarabel(self) -> tuple[Any, Any]:
        x = cp.Variable((GENERATORS, HOURS))
        rows = [x >= 0, x <= 100, self.shift @ x <= self.limit[:, np.newaxis]]
        rows += [cp.abs(cp.diff(x[i])) <= r for i, r in enumerate(RAMPS) if r is not None]
        balance = cp.sum(x, axis=0) == self.demand
        cost = cp.sum(cp.multiply(self.bend[:, np.newaxis], x**2)) + cp.sum(self.slope @ x)
        settings = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-10)
        cp.Problem(cp.Minimize(cost), [*rows, balance]).solve(solver="CLARABEL", **settings)
        return x.value, balance.dual_value


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_dispatch_with_ramps_is_that_of_another_solver(seed: int) -> None:
    dispatch = Dispatch(seed)
    found = sv.reference_optimum(dispatch.problem())
    x, price = dispatch.by_clarabel()
    np.testing.assert_allclose(found.x, x.ravel(), atol=1e-4)
    np.testing.assert_allclose(found.mu[:HOURS], price, atol=1e-4)
    assert found.residual < 1e-9
    assert np.any(found.local > 1e-3)  # some ramp holds a generator back


def test_rows_or_states_may_be_eliminated() -> None:
    numeric = numeric_of(Dispatch(0).problem())
    rng = np.random.default_rng(4)
    x = rng.uniform(10, 90, GENERATORS * HOURS)
    m = numeric.equality.size
    stiff = 10.0 ** rng.uniform(-9, 3, m)
    given = KktMatrix(
        jacobian=numeric.jacobian(x),
        hessian=numeric.lagrangian_hessian(x, np.zeros(m)),
        diagonal=rng.uniform(0, 1, x.size),
        held=rng.random(x.size) < 0.2,
        shift=np.where(numeric.equality, 0.0, stiff),
        rows=rng.random(m) < 0.9,
    )
    condensed = kkt_system(given)
    assert isinstance(condensed, CondensedSystem)
    assert condensed.out.size > 20
    assert condensed.kept.size > 20
    r, q = rng.normal(size=x.size), rng.normal(size=m)
    for mine, other in zip(condensed.solve(r, q), KktSystem(given).solve(r, q), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-7 * np.max(np.abs(other)))
