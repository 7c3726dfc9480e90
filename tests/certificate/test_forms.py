from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import mpmath
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
    total,
)

from sottovoce.certificate.forms import (
    collected,
    equivalents,
    exact,
    gathered,
    oriented,
    squared_norm,
)
from sottovoce.formula.canonical import canonical, exp_of, multiply, negate, power
from sottovoce.formula.expression import Op, exactly, nodes, number
from sottovoce.formula.functions import exp, sqrt

X, Y, Z = SYMBOLS


@pytest.fixture(autouse=True)
def _many_digits() -> Iterator[None]:
    with mpmath.workdps(50):
        yield


def same(a: Any, b: Any) -> bool:
    return bool(abs(a - b) <= mpmath.mpf("1e-30") * (1 + abs(a) + abs(b)))


@patiently
@given(expressions, boxes, fractions)
def test_every_form_has_the_same_value(expr: Any, box: Any, shares: list[float]) -> None:
    point = inside(box, shares)
    value = precise(expr, point)
    with exactly():
        rational = exact(expr)
        forms = (*equivalents(rational), collected(rational), oriented(rational))
    for form in forms:
        other = precise(form, point)
        # A form may be undefined by a rounding of 50 digits only where a denominator vanishes.
        assert value is None or other is None or abs(value) > 1e15 or same(value, other)


@patiently
@given(st.lists(expressions, min_size=2, max_size=3), boxes, fractions)
def test_the_squared_norm_is_the_sum_of_squares(
    exprs: list[Any], box: Any, shares: list[float]
) -> None:
    point = inside(box, shares)
    values = [precise(expr, point) for expr in exprs]
    with exactly():
        square = squared_norm([exact(expr) for expr in exprs])
    total = precise(square, point)
    if None not in (*values, total) and max(map(abs, values)) < 1e10:
        assert same(mpmath.fsum(value**2 for value in values), total)


def test_exponentials_are_gathered_in_the_sum_below_them() -> None:
    total = exp(X) + exp(Y) + 3
    assert gathered(canonical(exp(X) / total)) is canonical(1 / (1 + exp(Y - X) + 3 * exp(-X)))
    halves = exp((X - Y) / 2) + exp((Y - X) / 2) + 3 * exp(-(X + Y) / 2)
    assert gathered(canonical(2 * exp(X + Y) / total**2)) is canonical(2 / halves**2)


def test_shared_factors_are_taken_out_of_sums() -> None:
    expr = canonical(X**2 * Y + X**2 * Z + exp(Y))
    assert collected(expr) is canonical(X**2 * (Y + Z) + exp(Y))


def test_a_difference_has_one_form() -> None:
    assert oriented(canonical((X - Y) ** 2 * Z)) is oriented(canonical((Y - X) ** 2 * Z))
    length = sqrt(1 + (X - Y) ** 2)
    one, other = (oriented(canonical(d / length)) for d in (X - Y, Y - X))
    assert one is negate(other)


def test_a_common_denominator_makes_repetitions_vanish() -> None:
    total = 1 + X**2 + Y
    curvature = canonical(1 / sqrt(total) - X**2 / total ** Fraction(3, 2))
    wanted = canonical((1 + Y) / total ** Fraction(3, 2))
    assert wanted in set(equivalents(curvature))


def test_floats_become_the_fractions_they_are() -> None:
    expr = exact(canonical(0.1 * X + Y**0.3))
    assert all(not isinstance(node.value, float) for node in nodes((expr,)))
    # In floating point 0.1 * 3 is not 0.3, and rewriting would have moved the value.
    with exactly():
        assert multiply(exact(number(0.1)), number(3)) is not exact(number(0.3))


def test_no_constant_is_rounded_inside_exactly() -> None:
    tenth = Fraction(0.1)
    with exactly():
        cube = power(number(tenth), 3)
        assert cube.value == tenth**3
        assert power(number(2), Fraction(1, 2)).op == Op.POW
        assert exp_of(number(2)).op == Op.EXP
    assert isinstance(power(number(tenth), 3).value, float)


def test_large_expressions_are_left_as_they_are() -> None:
    large = total(1 / (X + k) for k in range(400))
    assert equivalents(large) == (large,)
