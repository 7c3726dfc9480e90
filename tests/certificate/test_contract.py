from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_expressions import (
    SYMBOLS,
    boxes,
    expressions,
    fractions,
    inside,
    patiently,
    precise,
    symbols,
    total,
)
from sottovoce.certificate import domain as module
from sottovoce.certificate.domain import EmptyDomainError
from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import canonical
from sottovoce.formula.functions import exp, log, sqrt
from sottovoce.formula.intervals import Interval, interval

X1, X2, X3, X4, X5, X6, X7 = STATES = symbols("x", 7)
X, Y, Z = SYMBOLS
TEN = {symbol: interval(-10, 10) for symbol in STATES}


def contract(expr: Any, box: dict[Any, Interval], upper: Any = 0.0) -> dict[Any, Interval]:
    return module.contract(canonical(expr), box, upper)


def propagate(constraints: list[Any], box: dict[Any, Interval]) -> dict[Any, Interval]:
    """Contract by all constraints in turn, often enough for the examples here."""
    current = dict(box)
    for _ in range(20):
        for constraint in constraints:
            current = contract(constraint, current)
    return current


@pytest.fixture(autouse=True)
def _many_digits() -> Iterator[None]:
    with mpmath.workdps(50):
        yield


def ends(side: Interval) -> tuple[float, float]:
    return float(side.lower), float(side.upper)


def test_the_papers_constraints_tighten_its_box() -> None:
    box = propagate(
        [
            X1 + X2 + X3 - 3,
            X5**2 + X6**4 / 12 + X7**4 / 12 - 20,
            X3**2 + X4 + X6 - 1,
            X6**2 + X7**2 - 5,
        ],
        TEN,
    )
    root = math.sqrt(5)
    for symbol, radius in ((X6, root), (X7, root), (X5, math.sqrt(20))):
        assert ends(box[symbol]) == pytest.approx((-radius, radius), rel=1e-14)
    assert ends(box[X4]) == pytest.approx((-10, 1 + root), rel=1e-14)
    assert ends(box[X3]) == pytest.approx((-math.sqrt(11 + root), math.sqrt(11 + root)), rel=1e-14)
    assert ends(box[X1]) == ends(box[X2]) == (-10, 10)


def test_an_exponential_bounds_its_argument() -> None:
    box = propagate([exp(X2) - X3], {X2: interval(0, 100), X3: interval(0, 10)})
    assert ends(box[X2]) == pytest.approx((0, math.log(10)), rel=1e-14)
    assert ends(box[X3]) == pytest.approx((1, 10), rel=1e-14)


def test_reciprocals_bound_from_below() -> None:
    weights: dict[Any, Any] = {X1: 4, X2: Fraction(9, 4), X3: 1, X4: Fraction(1, 4)}
    whole = total(weight / x for x, weight in weights.items())
    box = propagate([whole - Fraction(401, 10_000)], dict.fromkeys(weights, interval(1e-3, 4e5)))
    for x, weight in weights.items():
        rest = float(sum(weights.values()) - weight) / 4e5
        assert float(box[x].lower) == pytest.approx(float(weight) / (0.0401 - rest), rel=1e-12)


@pytest.mark.parametrize(
    ("expr", "side", "expected"),
    [
        (1 - X**2, (-0.5, 10), (1, 10)),
        (1 - X**2, (-10, 0.5), (-10, -1)),
        (1 - X**2, (-10, 10), (-10, 10)),
        (X**2 - 4, (-10, 10), (-2, 2)),
        (8 + X**3, (-5, 10), (-5, -2)),
        (X**3 - 8, (-5, 10), (-5, 2)),
        (-log(X) - 5, (-5, 10), (math.exp(-5), 10)),
        (log(X) - 1, (-5, 10), (0, math.e)),
        (sqrt(X) - 2, (-2, 50), (0, 4)),
        (2 - sqrt(X), (-2, 50), (4, 50)),
        (X ** Fraction(1, 3) - 2, (-10, 50), (0, 8)),
        (1 / sqrt(X) - 2, (-10, 50), (0.25, 50)),
        (1 / X - 2, (0, 50), (0.5, 50)),
        (1 / X**2 - 4, (-0.1, 50), (0.5, 50)),
        (1 / X**3 + 8, (-9, 0), (-0.5, 0)),
        (X**math.pi - 3, (0, 50), (0, 3 ** (1 / math.pi))),
        (exp(-X) - 3, (-50, 50), (-math.log(3), 50)),
        (-2 * X + 3, (-50, 50), (1.5, 50)),
    ],
)
def test_each_operation_is_solved_for_its_operand(expr: Any, side: Any, expected: Any) -> None:
    box = contract(expr, {X: interval(*side)})
    assert ends(box[X]) == pytest.approx(expected, rel=1e-13, abs=1e-13)
    assert ends(box[X])[0] <= expected[0] * (1 + 1e-15 * np.sign(expected[0]))
    assert ends(box[X])[1] >= expected[1] * (1 - 1e-15 * np.sign(expected[1]))


def test_products_are_divided_soundly_when_a_factor_may_vanish() -> None:
    sides = {X: interval(0, 5), Y: interval(-10, 10)}
    assert ends(contract(1 - X * Y, sides)[Y]) == pytest.approx((0.2, 10), rel=1e-14)
    assert ends(contract(X * Y, sides)[Y]) == (-10, 10)
    assert ends(contract(X * Y + 1, {X: interval(2, 5), Y: interval(-10, 10)})[Y]) == pytest.approx(
        (-10, -0.2), rel=1e-14
    )


@patiently
@given(expressions, boxes, fractions, st.floats(-2, 2))
def test_contraction_never_loses_a_feasible_point(
    expr: Any, box: Any, shares: list[float], upper: float
) -> None:
    point = inside(box, shares)
    value = precise(expr, point)
    if value is None or value > upper:
        return
    contracted = contract(expr, {s: interval(*side) for s, side in box.items()}, upper)
    for symbol, side in contracted.items():
        assert box[symbol][0] <= side.lower <= point[symbol] <= side.upper <= box[symbol][1]


@patiently
@given(st.lists(expressions, min_size=2, max_size=3), boxes, fractions)
def test_propagation_never_loses_a_common_point(
    exprs: list[Any], box: Any, shares: list[float]
) -> None:
    point = inside(box, shares)
    values = [precise(expr, point) for expr in exprs]
    feasible = [e - 1 for e, v in zip(exprs, values, strict=True) if v is not None and v <= 0.999]
    contracted = propagate(feasible, {s: interval(*side) for s, side in box.items()})
    for symbol, side in contracted.items():
        assert side.lower <= point[symbol] <= side.upper


def test_the_search_for_lost_points_notices_inward_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lost() -> int:
        box = {X: interval(-3, 3), Y: interval(-3, 3)}
        thresholds = np.linspace(0.01, 8.9, 500)
        kept = [contract(X**2 + Y**2, box, c)[X].upper for c in thresholds]
        exact = [mpmath.sqrt(mpmath.mpf(float(c))) for c in thresholds]
        return sum(mpmath.mpf(float(k)) < e for k, e in zip(kept, exact, strict=True))

    assert lost() == 0

    def nearest(result: Interval, _: Any, base: Interval) -> Interval:
        root = np.sqrt(np.maximum(result.upper, 0))
        return interval(-root, root)

    monkeypatch.setattr(module, "_base", nearest)
    assert lost() > 100


def test_a_fleet_is_contracted_agent_by_agent() -> None:
    radius = np.array([1.0, 4.0, 100.0])
    box = contract(X**2, {X: interval(np.full(3, -5.0), 5.0)}, radius)
    assert box[X].upper.tolist() == [1.0, 2.0, 5.0]
    assert box[X].lower.tolist() == [-1.0, -2.0, -5.0]


def test_a_symbol_outside_the_constraint_keeps_its_bounds() -> None:
    assert ends(contract(X - 1, {X: interval(0, 5), Y: interval(-7, 7)})[Y]) == (-7, 7)


@pytest.mark.parametrize(
    "expr",
    [
        X + 100,
        X**2 + 1,
        exp(X),
        X**2 - 2 * X + 200,
        -log(X) + 20,
        11 - sqrt(X**2),
    ],
)
def test_an_infeasible_constraint_is_proven_empty_by_name(expr: Any) -> None:
    with pytest.raises(EmptyDomainError, match="holds nowhere") as caught:
        contract(expr, {X: interval(-10, 10)})
    assert str(canonical(expr)) in str(caught.value)
    assert isinstance(caught.value, ProblemError)


def test_one_empty_agent_of_a_fleet_is_enough() -> None:
    with pytest.raises(EmptyDomainError):
        contract(X, {X: interval([0.0, 2.0], [1.0, 3.0])}, 1.5)


def test_constraints_that_exclude_each_other_are_proven_empty() -> None:
    with pytest.raises(EmptyDomainError):
        propagate([X + Y - 1, 3 - X - Y], {X: interval(0, 1), Y: interval(0, 1)})


def test_a_touching_point_is_not_called_empty() -> None:
    assert ends(contract(X**2, {X: interval(-1, 1)})[X]) == (0, 0)
    assert ends(contract(X + Y, {X: interval(0, 1), Y: interval(0, 1)})[X]) == (0, 0)


def test_unbounded_sides_become_bounded() -> None:
    line = interval(-np.inf, np.inf)
    box = propagate([X**2 + Y**2 - 1], {X: line, Y: line})
    assert ends(box[X]) == ends(box[Y]) == (-1, 1)
