"""Polynomials of one variable with rational coefficients: are they nonnegative on an interval?

A polynomial is the list of its coefficients, that of 1 first, without zeros at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import TypeAlias

from sottovoce.formula.canonical import addends, base_exponent, coefficient, expand, is_integer
from sottovoce.formula.expression import Expression

Polynomial: TypeAlias = list[Fraction]


def polynomial(expr: Expression, variable: Expression) -> Polynomial | None:
    """Read a formula as a polynomial in a variable; None if it is none."""
    terms: dict[int, Fraction] = {}
    for term in addends(expand(expr)):
        c, rest = coefficient(term)
        base, degree = (variable, 0) if rest.is_one else base_exponent(rest)
        if base is not variable or not is_integer(degree) or degree < 0:
            return None
        terms[int(degree)] = Fraction(c)
    return _trimmed([terms.get(k, Fraction(0)) for k in range(max(terms) + 1)])


def nonnegative(p: Polynomial, low: float, high: float) -> bool:
    """Decide exactly whether a polynomial is nonnegative on ``[low, high]``."""
    a, b = Fraction(low), Fraction(high)
    if not p or min(_at(p, a), _at(p, b)) < 0:
        return not p
    # The sign changes at roots of odd multiplicity and nowhere else.
    if any(_roots_between(factor, a, b) for factor in _odd_factors(p)):
        return False
    steps = (a + (b - a) / k for k in range(2, len(p) + 3))
    return next(value for x in steps if (value := _at(p, x))) > 0


def _at(p: Polynomial, x: Fraction) -> Fraction:
    total = Fraction(0)
    for c in reversed(p):
        total = total * x + c
    return total


def _trimmed(p: Polynomial) -> Polynomial:
    while p and not p[-1]:
        p.pop()
    return p


def _slope(p: Polynomial) -> Polynomial:
    return [k * c for k, c in enumerate(p)][1:]


def _minus(p: Polynomial, q: Polynomial) -> Polynomial:
    size = max(len(p), len(q))
    left, right = ([*v, *[Fraction(0)] * (size - len(v))] for v in (p, q))
    return _trimmed([x - y for x, y in zip(left, right, strict=True)])


def _divided(p: Polynomial, q: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Quotient and remainder."""
    rest, quotient = list(p), [Fraction(0)] * max(len(p) - len(q) + 1, 0)
    while len(rest) >= len(q):
        shift, factor = len(rest) - len(q), rest[-1] / q[-1]
        quotient[shift] = factor
        for k, c in enumerate(q):
            rest[shift + k] -= factor * c
        _trimmed(rest)
    return quotient, rest


def _common(p: Polynomial, q: Polynomial) -> Polynomial:
    """The greatest common divisor, with 1 as its leading coefficient."""
    while q:
        p, q = q, _divided(p, q)[1]
    return [c / p[-1] for c in p]


def _odd_factors(p: Polynomial) -> list[Polynomial]:
    """The square-free factors of odd multiplicity (Yun)."""
    found: list[Polynomial] = []
    common = _common(p, _slope(p))
    c = _divided(p, common)[0]
    d = _minus(_divided(_slope(p), common)[0], _slope(c))
    odd = True
    while len(c) > 1:
        factor = _common(c, d)
        if odd:
            found.append(factor)
        c = _divided(c, factor)[0]
        d = _minus(_divided(d, factor)[0], _slope(c))
        odd = not odd
    return found


def _roots_between(p: Polynomial, a: Fraction, b: Fraction) -> int:
    """How many roots a square-free polynomial has strictly between two points (Sturm)."""
    chain = [p, _slope(p)]
    while chain[-1]:
        chain.append([-c for c in _divided(chain[-2], chain[-1])[1]])
    changes = [_sign_changes([_at(q, x) for q in chain[:-1]]) for x in (a, b)]
    return changes[0] - changes[1] - (not _at(p, b))


def _sign_changes(values: Sequence[Fraction]) -> int:
    signs = [value > 0 for value in values if value]
    return sum(left != right for left, right in pairwise(signs))
