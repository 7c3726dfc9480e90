"""What agents minimise at home: signs of slopes, projected steps, Clarabel's answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import cvxpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_builds import kernel_of, make_fleet

from sottovoce.formula.canonical import canonical
from sottovoce.formula.expression import Expression, symbol
from sottovoce.formula.functions import exp, log
from sottovoce.kernels.core.box_search import PRECISION
from sottovoce.kernels.fleet_kernel import FleetStates
from sottovoce.problem.fleets import FleetContribution

cp: Any = cvxpy  # it has no types


def states(d: int) -> tuple[Expression, ...]:
    return tuple(symbol(f"x{c}") for c in range(d))


def minimised(x0: Any, lower: Any, upper: Any, *, gradient: Any = None, **stated: Any) -> Any:
    """Where an agent goes that no price moves; with rows by the interior-point method."""
    x = states(len(x0))
    sums = (FleetContribution(row=0, terms=(x[0],)),)
    kernel = kernel_of(
        make_fleet(x, sums, ([lower], [upper]), **stated), interior=True, gradient=gradient
    )
    agent = FleetStates(kernel, np.array([x0], dtype=float))
    agent.round(1, np.zeros(1), theta=0.5, share=1.0)
    return agent.states[0]


SLOPES: dict[str, Callable[[float], float]] = {
    "quadratic": lambda x: 2 * (x - 0.3),
    "steep": lambda x: 8 * (x - 1) ** 7 + 1.8 + 1.28 * x,
    "flat": lambda x: 6 * (x + 3) ** 5,
    "logarithm": lambda x: 3 - 1 / (x + 10) if x > -10 else -math.inf,
    "exponential": lambda x: math.exp(x) - 50,
    "falling": lambda x: -2.0,
    "kink": lambda x: x + (1.0 if x > 2 else -4.0),
}


def scalar(slope: Callable[[float], float], x0: float, lower: float, upper: float) -> float:
    return float(minimised([x0], [lower], [upper], gradient=lambda x: [slope(float(x[0]))])[0])


@given(name=st.sampled_from(sorted(SLOPES)), start=st.floats(-10, 10))
def test_the_slope_changes_its_sign_at_the_minimiser(name: str, start: float) -> None:
    slope, near = SLOPES[name], 40 * PRECISION
    x = scalar(slope, start, -10.0, 10.0)
    assert -10.0 <= x <= 10.0
    assert x <= -10.0 + near or slope(x - near) <= 0.0
    assert x >= 10.0 - near or slope(x + near) >= 0.0


@pytest.mark.parametrize(("name", "most"), [("quadratic", 7), ("steep", 25), ("exponential", 20)])
def test_few_slopes_are_asked_for(name: str, most: int) -> None:
    asked = []

    def slope(x: float) -> float:
        asked.append(x)
        return SLOPES[name](x)

    there = scalar(slope, 9.0, -10.0, 10.0)
    assert len(asked) <= most
    asked.clear()
    scalar(slope, there + 1e-3, -10.0, 10.0)
    assert len(asked) <= 10


X = states(1)[0]
FORMULAS: dict[str, Expression] = {
    "quadratic": (X - 0.3) ** 2,
    "steep": (X - 1) ** 8 + 1.8 * X + 0.64 * X**2,
    "flat": (X + 3) ** 6,
    "logarithm": 3 * X - log(X + 10),
    "exponential": exp(X) - 50 * X,
    "falling": -2 * X,
    "kink": X**2 / 2 - 1.5 * X + 2.5 * abs(X - 2),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_search_that_knows_the_curvature_finds_the_change_of_sign(name: str) -> None:
    """Over seventeen agents and over each alone, to the same bits."""
    starts, slope = np.linspace(-9.9, 10, 17)[:, np.newaxis], SLOPES[name]
    sums = (FleetContribution(row=0, terms=(X,)),)
    objective, ends = canonical(FORMULAS[name]), []
    for x0 in (starts, *starts[:, np.newaxis]):
        bounds = (np.full(x0.shape, -10.0), np.full(x0.shape, 10.0))
        fleet = FleetStates(kernel_of(make_fleet((X,), sums, bounds, objective=objective)), x0)
        fleet.round(1, np.zeros(1), theta=0.5, share=1.0)
        ends.append(fleet.states)
    assert ends[0].tobytes() == np.concatenate(ends[1:]).tobytes()
    near = 40 * PRECISION
    for x in ends[0].ravel():
        assert x <= -10.0 + near or slope(x - near) <= 0.0
        assert x >= 10.0 - near or slope(x + near) >= 0.0


def test_where_nothing_pulls_or_nothing_can_move_the_state_stays() -> None:
    assert scalar(lambda x: 0.0, 1.5, -2.0, 2.0) == 1.5
    assert scalar(lambda x: 7.0, 1.5, 1.5, 1.5) == 1.5
    assert scalar(lambda x: 7.0, -2.0, -2.0, 2.0) == -2.0


@pytest.mark.parametrize("bad", [0.0, 1.0])
def test_a_slope_that_is_no_number_gives_no_number(bad: float) -> None:
    assert math.isnan(scalar(lambda x: math.nan if x >= bad else -1.0, 0.0, -2.0, 2.0))


def step_from(gradient: Any, x: Any, lower: Any, upper: Any) -> float:
    """How far a projected gradient step leads from x: 0 at the minimiser."""
    return float(np.max(np.abs(x - np.clip(x - gradient(x), lower, upper))))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(2, 12), condition=st.floats(0, 4))
def test_quadratics_on_boxes_are_minimised(seed: int, size: int, condition: float) -> None:
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(size, size)))[0]
    hessian = turn * 10 ** rng.uniform(-condition, 0, size) @ turn.T
    target = rng.normal(size=size) * 2
    lower, upper = -rng.uniform(0, 2, size), rng.uniform(0, 2, size)
    upper[rng.uniform(size=size) < 0.2] = 0.0
    lower[upper == 0.0] = 0.0
    asked = []

    def gradient(x: Any) -> Any:
        asked.append(x)
        return hessian @ (x - target)

    x = minimised(rng.uniform(lower, upper), lower, upper, gradient=gradient)
    assert np.all((asked >= lower) & (asked <= upper))  # nothing is asked for outside the box
    assert np.all((x >= lower) & (x <= upper))
    assert step_from(gradient, x, lower, upper) < 1e-8


GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "charger": lambda x: 0.1 + 0.004 * x + 0.8 * (x.sum() - 9.0) + np.linspace(0, 0.05, x.size),
    "exponential": lambda x: np.exp(x) + x - 1.5 + x.mean(),
    "eighth": lambda x: 8 * (x - 1) ** 7 + 0.1 * x,
    "linear": lambda x: np.linspace(-1, 1, x.size),
}


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("start", [-3.0, 2.5])
def test_stiff_flat_and_linear_functions_are_minimised_too(name: str, start: float) -> None:
    lower, upper = np.full(24, -3.0), np.full(24, 7.4)
    lower[20:] = upper[20:] = 0.0
    asked = []

    def gradient(x: Any) -> Any:
        asked.append(1)
        return GRADIENTS[name](x)

    x = minimised(np.full(24, start), lower, upper, gradient=gradient)
    assert step_from(GRADIENTS[name], x, lower, upper) < 1e-9
    assert len(asked) < 300


def test_an_agent_already_there_stays_to_the_bit() -> None:
    there = np.array([0.5, -0.5])
    x = minimised(there, -np.ones(2), np.ones(2), gradient=lambda v: v - there)
    np.testing.assert_array_equal(x, there)


def test_a_gradient_that_is_no_number_gives_no_number() -> None:
    bad = np.array([1.0, np.nan])
    x = minimised(np.zeros(2), -np.ones(2), np.ones(2), gradient=lambda v: bad)
    assert np.isnan(x).any()


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), ball=st.booleans())
def test_quadratics_over_rows_are_minimised_as_clarabel_does(seed: int, ball: bool) -> None:
    rng = np.random.default_rng(seed)
    d, q = int(rng.integers(2, 6)), int(rng.integers(0, 2))
    lower, upper = -rng.uniform(0, 2, d), rng.uniform(0, 2, d)
    lower[rng.uniform(size=d) < 0.15] = 0.0
    upper[lower == 0.0] = 0.0
    half = rng.normal(size=(d, d))
    H, slope = half @ half.T + 0.1 * np.eye(d), rng.normal(size=d) * 10 ** rng.uniform(-1, 1)
    inside, m = rng.uniform(lower, upper), int(rng.integers(0, 2 * d))
    A = rng.normal(size=(m, d)) * (rng.uniform(size=(m, d)) < 0.5)
    b, E = A @ inside + rng.uniform(0, 0.5, m), rng.normal(size=(q, d))
    e, radius = E @ inside, float(inside @ inside) + 0.1
    x = states(d)
    f = sum(0.5 * H[i, j] * x[i] * x[j] for i in range(d) for j in range(d))
    rows = [sum(A[r, c] * x[c] for c in range(d)) - b[r] for r in range(m) if A[r].any()]
    rows += [sum(s**2 for s in x) - radius] if ball else []
    equal = [sum(E[r, c] * x[c] for c in range(d)) - e[r] for r in range(q)]
    found = minimised(
        inside, lower, upper, objective=canonical(f + sum(slope[c] * x[c] for c in range(d))),
        inequalities=tuple(map(canonical, rows)), equalities=tuple(map(canonical, equal)),
    )  # fmt: skip
    y = cp.Variable(d)
    kept = [y >= lower, y <= upper] + ([A @ y <= b] if m else []) + ([E @ y == e] if q else [])
    kept += [cp.sum_squares(y) <= radius] if ball else []
    tight = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}
    cost = cp.quad_form(y, cp.psd_wrap(H)) / 2 + slope @ y
    cp.Problem(cp.Minimize(cost), kept).solve(solver="CLARABEL", **tight)
    np.testing.assert_allclose(found, y.value, atol=1e-5)
    assert np.all((found >= lower) & (found <= upper))
    assert np.all(A @ found <= b + 1e-9)
    assert np.all(np.abs(E @ found - e) <= 1e-9)
    assert not ball or found @ found <= radius + 1e-9


@pytest.mark.parametrize("scale", [(1.0, 1.0), (1e6, 1e-3), (1e-5, 1e4)])
@pytest.mark.parametrize("pinned", [False, True])
def test_units_and_sets_of_one_point_do_not_disturb_the_interior_point(
    scale: tuple[float, float], pinned: bool
) -> None:
    """``(x/s0 - 2)^2 + (y/s1 - 2)^2`` over x/s0 + y/s1 = 1, and x/s0 - y/s1 = 0.2 if pinned."""
    x, (a, b) = states(2), (1.0 / scale[0], 1.0 / scale[1])
    objective = canonical((a * x[0] - 2) ** 2 + (b * x[1] - 2) ** 2)
    equal = [canonical(a * x[0] + b * x[1] - 1)]
    equal += [canonical(a * x[0] - b * x[1] - 0.2)] if pinned else []
    upper = 3.0 * np.array(scale)
    result = minimised(np.zeros(2), -upper, upper, objective=objective, equalities=tuple(equal))
    expected = np.array([0.6, 0.4]) if pinned else np.array([0.5, 0.5])
    np.testing.assert_allclose(result / scale, expected, atol=1e-8)
