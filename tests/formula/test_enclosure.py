from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import flint
import mpmath
import numpy as np
import pytest
from flint import arb
from hypothesis import assume, given
from hypothesis import strategies as st

from random_expressions import (
    SYMBOLS,
    as_arb,
    boxes,
    expressions,
    fractions,
    inside,
    patiently,
    precise,
)
from sottovoce.errors import CertificateError
from sottovoce.formula.canonical import canonical
from sottovoce.formula.derive import derivative
from sottovoce.formula.enclosure import (
    enclose,
    enclose_with_gradient,
    evaluate,
    require_defined,
)
from sottovoce.formula.expression import number
from sottovoce.formula.functions import exp, log, sqrt
from sottovoce.formula.intervals import Interval, interval

X, Y, Z = SYMBOLS


@pytest.fixture(autouse=True)
def _many_digits() -> Iterator[None]:
    before = flint.ctx.prec
    flint.ctx.prec = 300
    with mpmath.workdps(50):
        yield
    flint.ctx.prec = before


def holds(enclosure: Interval, value: Any) -> bool:
    return bool(mpmath.mpf(float(enclosure.lower)) <= value <= mpmath.mpf(float(enclosure.upper)))


def is_line(enclosure: Interval) -> bool:
    return bool(enclosure.lower == -np.inf and enclosure.upper == np.inf)


@patiently
@given(expressions, boxes, fractions)
def test_an_enclosure_holds_the_value_at_every_point(
    expr: Any, box: Any, shares: list[float]
) -> None:
    sides = {symbol: interval(*side) for symbol, side in box.items()}
    value, enclosure = precise(expr, inside(box, shares)), enclose(expr, sides)
    assert is_line(enclosure) if value is None else holds(enclosure, value)


@patiently
@given(expressions, boxes, fractions)
def test_an_enclosure_overlaps_the_ball_that_arb_computes(
    expr: Any, box: Any, shares: list[float]
) -> None:
    point = inside(box, shares)
    ball = as_arb(expr, point)
    assume(ball.is_finite())
    enclosure = enclose(expr, {s: interval(*side) for s, side in box.items()})
    assert not ball < arb(float(enclosure.lower))
    assert not ball > arb(float(enclosure.upper))


@patiently
@given(expressions, boxes, fractions)
def test_a_gradient_holds_the_partial_derivatives_at_every_point(
    expr: Any, box: Any, shares: list[float]
) -> None:
    sides = {symbol: interval(*side) for symbol, side in box.items()}
    value, gradient = enclose_with_gradient(expr, sides, SYMBOLS)
    plain = enclose(expr, sides)
    assert (value.lower, value.upper) == (plain.lower, plain.upper)
    for symbol, lower, upper in zip(SYMBOLS, gradient.lower, gradient.upper, strict=True):
        slope = precise(derivative(expr, symbol), inside(box, shares))
        assert slope is None or holds(interval(lower, upper), slope)


@patiently
@given(st.lists(st.tuples(expressions, boxes), min_size=1, max_size=1), st.data())
def test_many_boxes_at_once_are_enclosed_like_one_by_one(case: Any, data: st.DataObject) -> None:
    [(expr, first)] = case
    several = [first, data.draw(boxes)]
    stacked = {
        s: interval([box[s][0] for box in several], [box[s][1] for box in several]) for s in SYMBOLS
    }
    together = enclose(expr, stacked)
    for index, box in enumerate(several):
        alone = enclose(expr, {s: interval(*side) for s, side in box.items()})
        assert alone.lower == together.lower[index]
        assert alone.upper == together.upper[index]


@pytest.mark.parametrize(
    ("expr", "side", "expected"),
    [
        (X**2, (-3, 2), (0, 9)),
        (X**4, (-3, -2), (16, 81)),
        (X**3, (-3, 2), (-27, 8)),
        (X**-2, (2, 4), (0.0625, 0.25)),
        (X**-1, (-4, -2), (-0.5, -0.25)),
        (sqrt(X), (4, 9), (2, 3)),
        (X**2.0, (-3, 2), (0, 9)),
        (X**1.0, (-3, 2), (-3, 2)),
        (X ** Fraction(3, 2), (4, 9), (8, 27)),
        (-X, (1, 2), (-2, -1)),
        (2 * X - 1, (-0.5, 3), (-2, 5)),
        (number(7), (0, 1), (7, 7)),
    ],
)
def test_exact_results_stay_exact(expr: Any, side: Any, expected: Any) -> None:
    value = enclose(canonical(expr), {X: interval(*side)})
    assert (value.lower, value.upper) == expected


@pytest.mark.parametrize("exponent", [math.pi, -math.pi, 0.3, Fraction(22, 7)])
def test_an_exponent_may_be_any_constant(exponent: Any) -> None:
    formula = canonical(X**exponent)
    value = enclose(formula, {X: interval(2, 3)})
    ends = sorted(precise(formula, {X: x}) for x in (2.0, 3.0))
    assert holds(value, ends[0])
    assert holds(value, ends[1])
    assert value.upper - value.lower <= float(ends[1] - ends[0]) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("expr", "side"),
    [
        (log(X), (0, 1)),
        (log(X), (-1, 1)),
        (1 / X, (-1, 1)),
        (1 / X**2, (0, 1)),
        (sqrt(X), (-1, 1)),
        (X ** Fraction(-1, 2), (0, 1)),
        (1 / (5 + log(X) ** 2), (-1, 2)),
        (exp(-1 / X**2), (-1, 1)),
    ],
)
def test_a_box_that_may_hold_an_undefined_point_gets_the_whole_line(expr: Any, side: Any) -> None:
    value, gradient = enclose_with_gradient(canonical(expr), {X: interval(*side)}, [X])
    assert is_line(value)
    assert gradient.lower[0] == -np.inf
    assert gradient.upper[0] == np.inf


@pytest.mark.parametrize("expr", [log(X - 5), sqrt(X - 5), (X - 5) ** -0.5, log(X**2), 1 / X])
def test_an_expression_undefined_on_a_whole_box_is_refused_with_the_remedy(expr: Any) -> None:
    with pytest.raises(CertificateError, match=r"tighten the bounds so that .* stays positive"):
        require_defined(canonical(expr), {X: interval([0, 0], [0, 2])})


def test_unbounded_symbols_are_refused() -> None:
    with pytest.raises(CertificateError, match="no bounds for y"):
        enclose(canonical(X + Y), {X: interval(0, 1)})


def test_a_common_subexpression_is_evaluated_once() -> None:
    shared = canonical(log(X + Y))
    box = dict.fromkeys(SYMBOLS, interval(1, 2))
    nodes = list(map(id, evaluate(canonical(shared**2 + shared * Z + 1 / shared), box)))
    assert nodes.count(id(shared)) == 1
    assert nodes.index(id(canonical(X + Y))) < nodes.index(id(shared))


def test_a_fleet_of_a_million_agents_is_one_evaluation() -> None:
    a = np.linspace(0.5, 1.5, 1_000_000)
    value = enclose(
        canonical(Y * X**2 + Z * X), {X: interval(-a, a), Y: interval(a, a), Z: interval(1, 2)}
    )
    assert value.shape == (1_000_000,)
    assert np.all(value.upper >= a**3 + 2 * a)
    assert np.all(value.upper <= (a**3 + 2 * a) * (1 + 1e-14))
