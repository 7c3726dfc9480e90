"""Arithmetic of constants: exact as long as integers and fractions stay small, then doubles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from sottovoce.errors import ProblemError
from sottovoce.formula.expression import Scalar, in_exact_arithmetic, scalar


def exact_sum(values: Sequence[Scalar]) -> Scalar:
    """The sum of constants, the same in every order: exact, or rounded once."""
    if len(values) == 1:
        return values[0]
    exact: Scalar = 0
    doubles = []
    for value in values:
        if not isinstance(value, float):
            value = scalar(exact + value)
            exact = 0 if isinstance(value, float) else value
        if isinstance(value, float):
            doubles.append(value)
    if not doubles:
        return exact
    try:
        return scalar(math.fsum((*doubles, float(exact))))
    except OverflowError:
        raise ProblemError("a sum of numbers is too large for double precision") from None


def exact_product(values: Sequence[Scalar]) -> Scalar:
    """The product of constants, the same in every order: exact ones first, then doubles by size."""
    if len(values) == 1:
        return values[0]
    result: Scalar = 1
    for value in sorted(values, key=lambda v: (isinstance(v, float), v)):
        if not value:
            return 0
        result = scalar(result * value)
        if not result:
            raise ProblemError("a product of numbers is too close to zero for double precision")
    return result


def constant_power(value: Scalar, c: Scalar) -> Scalar:
    """A power of a constant, refused if it is not a finite real number or underflows."""
    if not value and c < 0:
        raise ProblemError("the expression divides by zero")
    if value < 0 and not isinstance(c, int):
        raise ProblemError("the expression has a negative number under a root")
    if isinstance(value, int | Fraction) and isinstance(c, int):
        bits = max(abs(value.numerator), value.denominator).bit_length() * abs(c)
        if bits <= 2048 or in_exact_arithmetic():
            return scalar(Fraction(value) ** c)
    try:
        result = scalar(float(value) ** float(c))
    except OverflowError:
        raise ProblemError(f"{value}**{c} is too large for double precision") from None
    if not result and value:
        raise ProblemError(f"{value}**{c} is too close to zero for double precision")
    return result
