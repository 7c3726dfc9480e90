"""Derivatives: SymPy's where formulas are smooth, subgradients at kinks."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import sympy as sp
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from random_formulas import OURS, ours, points, smooth

from formula_values import evaluate
from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import canonical
from sottovoce.formula.derive import (
    definiteness,
    derivative,
    gradient,
    hessian,
    is_affine,
    is_smooth,
)
from sottovoce.formula.expression import ZERO, Expression, symbol
from sottovoce.formula.functions import exp, huber, log, maximum, minimum, norm, pos
from sottovoce.formula.tape import tape
from sympy_oracle import sympy_of, sympy_symbol

SYMBOLS = list(OURS.values())
x, y, p = symbol("x"), symbol("y"), symbol("p")


@settings(max_examples=100, deadline=None)
@given(smooth, points)
def test_derivatives_are_sympys(recipe: Any, at: tuple[float, ...]) -> None:
    try:
        formula = canonical(ours(recipe))
        expected = sympy_of(ours(recipe))
    except ProblemError:
        assume(False)
    first, second = gradient(formula, SYMBOLS), hessian(formula, SYMBOLS)
    for k, s in enumerate(SYMBOLS):
        slope = sp.diff(expected, sympy_symbol(s))
        _agrees(first.get(s, ZERO), slope, at)
        for t in SYMBOLS[k:]:
            _agrees(second.get((s, t), ZERO), sp.diff(slope, sympy_symbol(t)), at)


def _agrees(formula: Expression, oracle: sp.Expr, at: tuple[float, ...]) -> None:
    exact = [sp.Rational(*v.as_integer_ratio()) for v in at]
    expected = oracle.subs(dict(zip(map(sympy_symbol, SYMBOLS), exact, strict=True)))
    expected = expected.evalf(30) if expected.is_finite is not False else sp.nan
    if expected.is_real and abs(expected) < 1e6:
        value = float(evaluate(formula, dict(zip(SYMBOLS, at, strict=True))))
        assume(math.isfinite(value))  # at the border of a domain a double may fall outside
        assert value == pytest.approx(float(expected), rel=1e-5, abs=1e-5)


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


SQUARES = st.integers(1, 4).flatmap(
    lambda n: st.lists(st.lists(st.integers(-3, 3), min_size=n, max_size=n), min_size=n, max_size=n)
)


@settings(max_examples=80, deadline=None)
@given(rows=SQUARES, shift=st.sampled_from([0, 0, 1, -1]), gram=st.booleans())
@example(rows=[[0, 1], [0, 5]], shift=0, gram=False)
@example(rows=[[0, 0], [0, 5]], shift=0, gram=False)
@example(rows=[[0, 0], [0, 0]], shift=0, gram=False)
def test_definiteness_agrees_with_the_signs_of_all_principal_minors(
    rows: list[list[int]], shift: int, gram: bool
) -> None:
    a = sp.Matrix(rows)
    matrix = (a.T * a if gram else a + a.T) / 7 + sp.Rational(shift, 10**9) * sp.eye(a.rows)
    n = a.rows
    chosen = [[k for k in range(n) if mask >> k & 1] for mask in range(1, 2**n)]
    minors = [matrix.extract(rows, rows).det() for rows in chosen]
    leading = [matrix[:k, :k].det() for k in range(1, n + 1)]
    expected = 1 if min(leading) > 0 else 0 if min(minors) >= 0 else -1
    fractions = [[Fraction(int(e.p), int(e.q)) for e in row] for row in matrix.tolist()]
    assert definiteness(fractions) == expected


@pytest.mark.parametrize(("corner", "verdict"), [(1, 1), (0, 0), (-1, -1)])
def test_definiteness_sees_one_part_in_two_to_the_200(corner: int, verdict: int) -> None:
    zero, unit, near = Fraction(0), Fraction(1), 1 + Fraction(corner, 2**200)
    assert definiteness([[unit, unit], [unit, near]]) == verdict
    block = [[unit, unit, zero], [unit, near, zero], [zero, zero, unit]]
    assert definiteness(block) == verdict
