"""Minimising a convex function of one variable from its slope."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.algorithm.search import PRECISION, minimise

SLOPES: dict[str, Callable[[float], float]] = {
    "quadratic": lambda x: 2 * (x - 0.3),
    "steep": lambda x: 8 * (x - 1) ** 7 + 1.8 + 1.28 * x,
    "flat": lambda x: 6 * (x + 3) ** 5,
    "logarithm": lambda x: 3 - 1 / (x + 10) if x > -10 else -math.inf,
    "exponential": lambda x: math.exp(x) - 50,
    "falling": lambda x: -2.0,
    "kink": lambda x: x + (1.0 if x > 2 else -4.0),
}


@given(
    name=st.sampled_from(sorted(SLOPES)),
    anchor=st.floats(-10, 10),
    weight=st.sampled_from([0.0, 1e-6, 0.1, 1.0, 1e6]),
)
def test_the_slope_changes_its_sign_at_the_minimiser(
    name: str, anchor: float, weight: float
) -> None:
    slope = SLOPES[name]

    def whole(x: float) -> float:
        return float(slope(x)) + weight * (x - anchor)

    x = minimise(lambda context, v: slope(v), None, anchor, -10.0, 10.0, weight)
    assert -10.0 <= x <= 10.0
    near = 40 * PRECISION
    assert x <= -10.0 + near or whole(x - near) <= 0.0
    assert x >= 10.0 - near or whole(x + near) >= 0.0


@pytest.mark.parametrize(("name", "most"), [("quadratic", 7), ("steep", 25), ("exponential", 20)])
def test_few_slopes_are_asked_for(name: str, most: int) -> None:
    asked = []

    def slope(context: Any, x: float) -> float:
        asked.append(x)
        return float(SLOPES[name](x))

    minimise(slope, None, 9.0, -10.0, 10.0, 0.0)
    assert len(asked) <= most
    asked.clear()
    there = minimise(lambda context, x: SLOPES[name](x), None, 9.0, -10.0, 10.0, 0.0)
    minimise(slope, None, there + 1e-3, -10.0, 10.0, 0.0)
    assert len(asked) <= 10


def test_where_nothing_pulls_or_nothing_can_move_the_state_stays() -> None:
    assert minimise(lambda context, x: 0.0, None, 1.5, -2.0, 2.0, 0.0) == 1.5
    assert minimise(lambda context, x: 7.0, None, 1.5, 1.5, 1.5, 0.0) == 1.5
    assert minimise(lambda context, x: 7.0, None, -2.0, -2.0, 2.0, 0.0) == -2.0


def test_the_weight_keeps_the_minimiser_near_its_anchor() -> None:
    assert minimise(lambda context, x: -1.0, None, 0.0, -9.0, 9.0, 4.0) == pytest.approx(0.25)


@pytest.mark.parametrize("bad", [0.0, 1.0])
def test_a_slope_that_is_no_number_gives_no_number(bad: float) -> None:
    def slope(context: Any, x: float) -> float:
        return math.nan if x >= bad else -1.0

    assert math.isnan(minimise(slope, None, 0.0, -2.0, 2.0, 0.0))
