from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mpmath
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from random_expressions import SYMBOLS, boxes, expressions, fractions, inside, patiently, precise

from sottovoce.certify.forms import collected, equivalents, exact, gathered, oriented, squared_norm

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
    for form in (*equivalents(exact(expr)), collected(exact(expr)), oriented(exact(expr))):
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
    total = precise(squared_norm([exact(expr) for expr in exprs]), point)
    if None not in (*values, total) and max(map(abs, values)) < 1e10:
        assert same(mpmath.fsum(value**2 for value in values), total)


def test_exponentials_are_gathered_in_the_sum_below_them() -> None:
    total = sympy.exp(X) + sympy.exp(Y) + 3
    share = gathered(sympy.exp(X) / total)
    assert share == 1 / (1 + sympy.exp(Y - X) + 3 * sympy.exp(-X))
    product = gathered(2 * sympy.exp(X) * sympy.exp(Y) / total**2)
    half = sympy.Rational(1, 2)
    expected = sympy.exp(half * X - half * Y) + sympy.exp(half * Y - half * X)
    assert product == 2 / (expected + 3 * sympy.exp(-half * X - half * Y)) ** 2


def test_shared_factors_are_taken_out_of_sums() -> None:
    expr = X**2 * Y + X**2 * Z + sympy.exp(Y)
    assert collected(expr) == X**2 * (Y + Z) + sympy.exp(Y)


def test_a_difference_has_one_form() -> None:
    for expr in ((X - Y) ** 2 * Z, (Y - X) ** 2 * Z):
        assert oriented(expr) == oriented((X - Y) ** 2) * Z
    for factor in (X - Y, Y - X):
        ratio = oriented(factor / sympy.sqrt(1 + (X - Y) ** 2))
        assert (
            len(
                {
                    node
                    for node in ratio.atoms(sympy.Add)
                    if node.free_symbols and 1 not in node.args
                }
            )
            == 1
        )


def test_a_common_denominator_makes_repetitions_vanish() -> None:
    total = 1 + X**2 + Y
    curvature = 1 / sympy.sqrt(total) - X**2 / total ** sympy.Rational(3, 2)
    assert (1 + Y) / total ** sympy.Rational(3, 2) in equivalents(curvature)


def test_floats_become_the_rationals_they_are() -> None:
    expr = exact(0.1 * X + Y**0.5)
    assert not expr.atoms(sympy.Float)
    assert expr.coeff(X) == sympy.Rational(0.1)
    assert expr.has(sympy.sqrt(Y))
    # In floating point 0.1 * 3 is not 0.3, and rewriting would have moved the value.
    assert exact(0.1) * 3 != exact(0.3)


def test_large_expressions_are_left_as_they_are() -> None:
    large = sympy.Add(*(1 / (X + k) for k in range(400)))
    assert equivalents(large) == (large,)
