"""Exact signs of polynomials, with SymPy as the oracle."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.certificate.hessian import nonnegative, polynomial
from sottovoce.formula.canonical import canonical
from sottovoce.formula.expression import exactly, symbol
from sottovoce.formula.functions import exp

S, X = sp.Symbol("x"), symbol("x")


def coefficients(poly: Any) -> list[Fraction]:
    return [Fraction(int(c.p), int(c.q)) for c in reversed(poly.all_coeffs())]


ROOTS = st.lists(st.fractions(-2, 2, max_denominator=5), min_size=1, max_size=4)


@settings(max_examples=80, deadline=None)
@given(roots=ROOTS, doubled=st.booleans(), sign=st.sampled_from([1, -1]))
def test_a_polynomial_is_nonnegative_if_and_only_if_no_sampled_value_is_negative(
    roots: list[Fraction], doubled: bool, sign: int
) -> None:
    poly = sp.Poly(sign, S)
    for r in roots:
        poly *= sp.Poly(S - sp.Rational(r), S) ** (2 if doubled else 1)
    # Roots are multiples of 1/60 apart at least, so a finer grid meets every interval of signs.
    grid = [sp.Rational(k, 128) for k in range(-128, 129)]
    expected = all(poly.eval(t) >= 0 for t in grid)
    assert nonnegative(coefficients(poly), -1.0, 1.0) == expected


def test_a_polynomial_that_dips_below_zero_between_two_close_roots_is_not_nonnegative() -> None:
    third, gap = Fraction(1, 3), Fraction(1, 10**20)

    def judged(expr: Any) -> bool:
        with exactly():
            p = polynomial(canonical(expr), X)
        assert p is not None
        return nonnegative(p, 0.0, 1.0)

    assert not judged((X - third) * (X - third - gap))
    assert judged((X - third) ** 2)
    assert judged(X * (1 - X))
    assert judged(X - X)


@pytest.mark.parametrize("expr", [exp(X), X**0.5, X**-1, X * symbol("y")])
def test_other_formulas_are_no_polynomials(expr: Any) -> None:
    assert polynomial(canonical(expr), X) is None
