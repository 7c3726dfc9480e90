"""Derivatives: SymPy's where formulas are smooth, subgradients at kinks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import sympy as sp
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_formulas import NAMES, OURS, THEIRS, ours, points, smooth, theirs

from formula_values import evaluate
from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import canonical
from sottovoce.formula.derive import (
    derivative,
    gradient,
    hessian,
    is_affine,
    is_smooth,
)
from sottovoce.formula.expression import ZERO, Expression, symbol
from sottovoce.formula.functions import exp, huber, log, maximum, minimum, norm, pos
from sottovoce.formula.tape import tape

x, y, p = symbol("x"), symbol("y"), symbol("p")


@settings(max_examples=100, deadline=None)
@given(smooth, points)
def test_derivatives_are_sympys(recipe: Any, at: tuple[float, ...]) -> None:
    try:
        formula = canonical(ours(recipe))
        expected = theirs(recipe)
    except ProblemError:
        assume(False)
    where = {
        s: sp.Rational(*v.as_integer_ratio()) for s, v in zip(THEIRS.values(), at, strict=True)
    }
    here = dict(zip(OURS.values(), at, strict=True))
    symbols = list(OURS.values())
    first, second = gradient(formula, symbols), hessian(formula, symbols)
    for n in NAMES:
        slope = sp.diff(expected, THEIRS[n])
        _agrees(first.get(OURS[n], ZERO), here, slope, where)
        for m in NAMES[NAMES.index(n) :]:
            _agrees(second.get((OURS[n], OURS[m]), ZERO), here, sp.diff(slope, THEIRS[m]), where)


def _agrees(found: Expression, here: Any, expected: sp.Expr, where: Any) -> None:
    there = expected.subs(where)
    there = there.evalf(30) if there.is_finite is not False else sp.nan
    if there.is_real and abs(there) < 1e6:
        value = float(evaluate(found, here))
        assume(math.isfinite(value))  # at the border of a domain a double may fall outside
        assert value == pytest.approx(float(there), rel=1e-5, abs=1e-5)


def test_zeros_are_left_out_and_other_symbols_are_numbers() -> None:
    formula = canonical(p * x * y + symbol("z") - symbol("z") * 1.0)
    found = gradient(formula, (x, symbol("z")))
    assert list(found) == [x]
    assert found[x] is canonical(p * y)
    assert derivative(formula, symbol("other")) is ZERO
    assert list(hessian(formula, (x, y))) == [(x, y)]


KINKS = [
    abs(x - 3) + 2 * abs(-2 * x + y),
    maximum(x, 0, 2 * x - 1),
    -minimum(x, 3 - y),
    norm(x - 1, y, 2 * x),
    huber(x - y, 1.5),
    pos(x) ** 2 + exp(abs(y)),
    maximum(abs(x), abs(y), 1),
    norm(abs(x), pos(y - 1)),
    maximum([x, y, -x - y]) * 3,
]


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(KINKS), *(st.integers(-16, 16).map(lambda k: k / 4) for _ in range(4)))
def test_slopes_at_kinks_are_subgradients(
    formula: Expression, a: float, b: float, u: float, v: float
) -> None:
    expr = canonical(formula)
    slopes = gradient(expr, (x, y))
    values = tape((expr, slopes.get(x, ZERO), slopes.get(y, ZERO)), (x, y))
    here, dx, dy = map(float, values(a, b))
    assert float(values(u, v)[0]) >= here + dx * (u - a) + dy * (v - b) - 1e-9


@pytest.mark.parametrize(
    ("formula", "affine", "without_kinks"),
    [
        (2 * x + y - 3, True, True),
        (x * y + x, False, True),
        ((x + y) ** 2 - x**2 - 2 * x * y, False, True),
        ((x + 1) ** 2 - (x**2 + 2 * x + 1), True, True),
        (x**3, False, True),
        (abs(x) + y, False, False),
        (log(p) * x, False, True),
    ],
)
def test_degrees_are_those_of_the_mathematics(
    formula: Expression, affine: bool, without_kinks: bool
) -> None:
    expr = canonical(formula)
    assert is_affine(expr) == affine
    assert is_smooth(expr) == without_kinks
    assert is_affine(canonical(log(p) * x), [x])
    assert is_affine(canonical(abs(p) * x), [x])


def test_huber_is_a_square_and_then_a_line() -> None:
    formula = canonical(huber(x, 2))
    assert [float(evaluate(formula, {x: v})) for v in (-1.0, 2.0, 3.0)] == [1.0, 4.0, 8.0]
