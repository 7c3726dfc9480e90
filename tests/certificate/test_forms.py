"""Other forms of a formula: the same value to 30 digits, and fewer repetitions."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import mpmath
import pytest
from hypothesis import given

from random_expressions import (
    SYMBOLS,
    boxes,
    expressions,
    fractions,
    inside,
    patiently,
    precise,
)
from sottovoce.certificate.forms import (
    equivalents,
    oriented,
)
from sottovoce.formula.canonical import canonical, exp_of, multiply, power
from sottovoce.formula.derive import rationalise
from sottovoce.formula.expression import Op, exact_arithmetic, nodes, number
from sottovoce.formula.functions import sqrt

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
    with exact_arithmetic():
        rational = rationalise(expr)
        forms = (*equivalents(rational), oriented(rational))
    for form in forms:
        other = precise(form, point)
        # A form may be undefined by a rounding of 50 digits only where a denominator vanishes.
        assert value is None or other is None or abs(value) > 1e15 or same(value, other)


def test_a_common_denominator_makes_repetitions_vanish() -> None:
    total = 1 + X**2 + Y
    curvature = canonical(1 / sqrt(total) - X**2 / total ** Fraction(3, 2))
    wanted = canonical((1 + Y) / total ** Fraction(3, 2))
    assert wanted in set(equivalents(curvature))


def test_floats_become_the_fractions_they_are() -> None:
    expr = rationalise(canonical(0.1 * X + Y**0.3))
    assert all(not isinstance(node.value, float) for node in nodes((expr,)))
    # In floating point 0.1 * 3 is not 0.3, and rewriting would have moved the value.
    with exact_arithmetic():
        assert multiply(rationalise(number(0.1)), number(3)) is not rationalise(number(0.3))


def test_no_constant_is_rounded_inside_exactly() -> None:
    tenth = Fraction(0.1)
    with exact_arithmetic():
        cube = power(number(tenth), 3)
        assert cube.value == tenth**3
        assert power(number(2), Fraction(1, 2)).op == Op.POW
        assert exp_of(number(2)).op == Op.EXP
    assert isinstance(power(number(tenth), 3).value, float)
