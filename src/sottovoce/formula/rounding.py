"""How far a float64 evaluation of a formula can be off, for every point of a box."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from sottovoce.formula.canonical import is_integer
from sottovoce.formula.enclosure import IntervalBox, evaluate
from sottovoce.formula.expression import Expression, Op, Scalar
from sottovoce.formula.intervals import FloatArray, Interval

UNIT = 2.0**-53
"""The largest relative error of one rounding."""

UNDERFLOW = 2.0**-1022
"""What an operation may lose besides, near zero. Subnormal numbers are 2^-1074 apart; the smallest
normal number also covers a processor that some library has set to flush them to zero."""

UP = 1.0 + 2.0**-46
"""More than all the roundings of these bounds themselves."""

_OVERFLOW = 2.0**1000  # a partial result beyond this may leave the range of float64
_LARGEST_LOG = 750.0  # of any positive float64, in size
_LIBRARY = 16.0  # ulps that exp, log and real powers may err by, with room to spare
_SHORT = 2.0**-500  # more than the root of what squares may lose to underflow

Pair: TypeAlias = tuple[Interval, FloatArray]
"""The range of an operand and a bound of its error."""


def evaluation_error(expr: Expression, box: IntervalBox) -> FloatArray:
    """Bound ``|fl(expr(x)) - expr(x)|`` over every box, whatever order sums and products take.

    With unit roundoff u, underflow t = 2^-1022, magnitudes M and errors e of the operands: a sum
    of k terms errs by ``sum e + k u sum (M + e) + k t``, a product by ``prod (M + e) - prod M +
    k u prod (M + e) + k t prod max(1, M + e)``, a function by its steepest slope times e plus a few
    u of its value plus t, a power x^n by multiplications plus 4 n t. Inputs are exact doubles that
    may count as 0 if they are subnormal; constants are rounded once. A coefficient that all terms
    of a sum share may be multiplied after the sum, and factors below may be multiplied before the
    division: no bound gets larger by it.

    Returns:
        One bound per box; infinite where none exists, or where a partial result may overflow.
    """
    ranges = evaluate(expr, box)
    errors: dict[Expression, FloatArray] = {}
    with np.errstate(all="ignore"):
        for node, value in ranges.items():
            inner = [(ranges[a], errors[a]) for a in node.args]
            error = np.asarray(_ERRORS[node.op](node, value.magnitude, inner) * UP)
            errors[node] = np.where(np.isnan(error), np.inf, error)
    return errors[expr]


def _sum(inner: Sequence[Pair]) -> FloatArray:
    reach = sum(value.magnitude + error for value, error in inner)
    lost = len(inner) * (UNIT * reach + UNDERFLOW)
    return np.asarray(sum(error for _, error in inner) + lost)


def _product(inner: Sequence[Pair]) -> FloatArray:
    product, exact, grown = np.ones(1), np.ones(1), np.ones(1)
    for value, error in inner:
        most = value.magnitude + error
        product, exact = product * most, exact * value.magnitude
        grown = grown * np.maximum(most, 1.0)
    # The subtraction cancels, so that its own rounding counts in full.
    rounded = product - exact + 8 * len(inner) * UNIT * product
    # A partial product that underflowed may be enlarged by the other factors.
    return np.where(grown < _OVERFLOW, rounded + len(inner) * UNDERFLOW * grown, np.inf)


def _wide(pair: Pair) -> Interval:
    value, error = pair
    return Interval(lower=value.lower - error, upper=value.upper + error)


def _power(pair: Pair, exponent: Scalar) -> FloatArray:
    wide, error, exact = _wide(pair), pair[1], Fraction(exponent)
    q = abs(float(exact))
    slope = q * wide.power(exact - 1).magnitude
    result = wide.power(exact).magnitude
    if is_integer(exponent):
        steps = np.asarray(2.0 * q)
    elif exact == float(exact):
        steps = np.zeros(1)
    else:
        # The exponent is rounded too, which moves x^q by the factor 1 + u |ln x^q|.
        steps = np.minimum(2.0 * q * wide.log().magnitude, _LARGEST_LOG)
    rounded = slope * error + (_LIBRARY + steps) * UNIT * result
    # Partial powers underflow only where |x| < 1, and no later factor enlarges them there.
    return np.asarray(rounded + np.where(result < _OVERFLOW, (4.0 * q + 1.0) * UNDERFLOW, np.inf))


def _exp(pair: Pair) -> FloatArray:
    top = _wide(pair).exp().magnitude
    return np.asarray(top * pair[1] + _LIBRARY * UNIT * top + UNDERFLOW)


def _log(pair: Pair) -> FloatArray:
    wide = _wide(pair)
    lost = _LIBRARY * UNIT * wide.log().magnitude + UNDERFLOW
    return np.asarray(wide.reciprocal().magnitude * pair[1] + lost)


def _undecided(pair: Pair) -> FloatArray:
    """Where rounding may decide on which side of 0 an operand lies."""
    value, error = pair
    return np.asarray((value.lower - error <= 0.0) & (value.upper + error >= 0.0))


def _where(condition: Pair, yes: Pair, no: Pair) -> FloatArray:
    apart = yes[0].magnitude + no[0].magnitude
    return np.where(_undecided(condition), apart, 0.0) + np.maximum(yes[1], no[1])


def _norm(size: FloatArray, inner: Sequence[Pair]) -> FloatArray:
    k, errors = len(inner), sum(error for _, error in inner)
    return np.asarray(errors + (k + 4) * UNIT * (size + errors) + k * _SHORT)


def _along(inner: Sequence[Pair]) -> FloatArray:
    direction = inner[len(inner) // 2 :]
    return np.asarray(2.0 * sum(value.magnitude + error for value, error in direction))


def _huber(size: FloatArray, pair: Pair, width: Scalar) -> FloatArray:
    value, error = pair
    steep = 2.0 * np.minimum(value.magnitude + error, float(width) * UP)
    return np.asarray(steep * error + 8.0 * UNIT * (size + steep * error) + 4.0 * UNDERFLOW)


_ERRORS: dict[str, Callable[[Expression, FloatArray, Sequence[Pair]], FloatArray]] = {
    Op.SYMBOL: lambda _, __, ___: np.full(1, UNDERFLOW),
    Op.NUMBER: lambda _, size, __: size * UNIT,
    Op.ADD: lambda _, __, inner: _sum(inner),
    Op.MUL: lambda _, __, inner: _product(inner),
    Op.POW: lambda node, _, inner: _power(inner[0], node.value),
    Op.EXP: lambda _, __, inner: _exp(inner[0]),
    Op.LOG: lambda _, __, inner: _log(inner[0]),
    # Sizes and maxima are exact operations that pass errors on. A slope that jumps is off by its
    # whole jump where rounding may decide on which side of it the operand lies.
    Op.ABS: lambda _, __, inner: inner[0][1],
    Op.MAX: lambda _, __, inner: np.maximum.reduce(np.broadcast_arrays(*(e for _, e in inner))),
    Op.SIGN: lambda _, __, inner: np.where(_undecided(inner[0]), 2.0, 0.0),
    Op.WHERE: lambda _, __, inner: _where(*inner),
    Op.NORM: lambda _, size, inner: _norm(size, inner),
    Op.ALONG: lambda _, __, inner: _along(inner),
    Op.HUBER: lambda node, size, inner: _huber(size, inner[0], node.value),
}
