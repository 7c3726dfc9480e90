"""Prices of sums at the saddle point: the forces of the stated constraints, seen through sums."""

from __future__ import annotations

import numpy as np
import pytest

import sottovoce as sv
from formula_values import evaluate
from sottovoce.certificate.optimum import saddle_prices
from sottovoce.formula.derive import derivative
from sottovoce.problem.numeric import Numeric


def forces(problem: sv.Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What stated constraints and sums do to every state at the saddle point, and the prices."""
    at = sv.reference_optimum(problem)
    prices = saddle_prices(problem, at)
    rows = Numeric(problem, problem.cloud.sums.families)
    return Numeric(problem).pullback(at.x, at.mu), rows.pullback(at.x, prices), prices


def mixture() -> sv.Problem:
    """Stated sums, regions and unwrapped ones beside a fleet, in names that might be confused."""
    x = sv.agents(["a", "b", "c"], lower=-3, upper=3)
    a, b, c = x
    ev = sv.agents(4, lower=-3, upper=3, name="ev", parameters={"t": [1.0, 2.0, 3.0, 4.0]})
    return sv.Problem(
        agents=[x, ev],
        objectives=[(a - 3) ** 2, (b + 2) ** 2, (c - 1) ** 2, (ev.x - ev["t"]) ** 2],
        constraints={
            "g mixed": sv.total(ev.x) + a <= 5,
            "g": sv.total(ev.x**2 / 4) + sv.exp(a - b) <= 9,
            "h": sv.log(sv.exp(b) + sv.exp(c)) <= 1,
            "k": (a - c) ** 2 + b**2 <= 4,
            "balance": a + b + c == 1,
        },
    )


@pytest.mark.parametrize("name", ["mixture", "coupled", "paper", "hs10", "hs52"])
def test_sums_push_every_state_as_the_stated_constraints_do(name: str) -> None:
    problem = mixture() if name == "mixture" else sv.gallery.get(name)
    stated, through_sums, _ = forces(problem)
    np.testing.assert_allclose(through_sums, stated, atol=1e-7 * (1 + np.abs(stated).max()))


def test_the_price_of_a_sum_as_stated_is_its_multiplier() -> None:
    problem = sv.gallery.chargers(20, hours=3)
    at = sv.reference_optimum(problem)
    np.testing.assert_array_equal(saddle_prices(problem, at), at.mu)


def test_prices_lie_in_the_normal_cone_of_the_public_set() -> None:
    problem = mixture()
    _, _, prices = forces(problem)
    sums = problem.cloud.sums
    held = {row for region in sums.regions for row in region.rows}
    for o in range(sums.count):
        if o not in held and np.isinf(sums.lower[o]):
            assert prices[o] >= -1e-9
    at = sv.reference_optimum(problem)
    values = Numeric(problem, sums.families).constraints(at.x)
    for region in sums.regions:
        here = dict(zip(region.symbols, values[list(region.rows)].tolist(), strict=True))
        slope = np.array([evaluate(derivative(region.phi, s), here) for s in region.symbols])
        own = prices[list(region.rows)]
        pressure = float(own @ slope) / float(slope @ slope)
        assert pressure >= -1e-9
        np.testing.assert_allclose(own, pressure * slope, atol=1e-9)
