"""Interval arithmetic with outward rounding, on whole arrays of intervals at once.

Each operation encloses the exact real result. How each one rounds:

- a + b: the rounding error of a float64 sum is itself a float64 (Knuth's TwoSum), and its sign
  says whether the end must move: no end moves needlessly.
- a * b, 1 / a, sqrt(a): IEEE 754 rounds them correctly, so one step outward encloses the result.
  The step is saved where the result is certainly exact: all operands fit in float32, whose
  products need at most 48 of the 53 bits, or one factor is 0, 1 or -1.
- exp, log, a**q: NumPy promises no correct rounding (its vector library allows 4 units in the last
  place and may flush subnormal numbers), so the result moves by 2**-49 relatively, at least 8
  units, and by the smallest normal number.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, reduce
from typing import final

import numpy as np
import numpy.typing as npt

from sottovoce.errors import InputError
from sottovoce.formula.expression import Scalar

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

_LARGEST = float(np.finfo(np.float64).max)
_TINY = float(np.finfo(np.float64).tiny)
_SLACK = 2.0**-49
_without_warnings = np.errstate(all="ignore")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """All reals from `lower` to `upper`, element by element; ends may be infinite, never NaN.

    The shapes of `lower` and `upper` broadcast.
    """

    lower: FloatArray
    upper: FloatArray

    def __post_init__(self) -> None:
        ends = np.broadcast_arrays(self.lower, self.upper)
        lower, upper = (np.array(end, dtype=np.float64) for end in ends)
        if not np.all((lower <= upper) & (lower < np.inf) & (upper > -np.inf)):
            raise InputError(
                "an interval must satisfy lower <= upper and hold a real number, "
                f"got lower={self.lower}, upper={self.upper}"
            )
        _set_ends(self, lower, upper)

    @property
    def shape(self) -> tuple[int, ...]:
        """The common shape of both ends."""
        return self.lower.shape

    @property
    def magnitude(self) -> FloatArray:
        """The largest absolute value in each interval."""
        return np.maximum(-self.lower, self.upper)

    def __neg__(self) -> Interval:
        return unchecked(-self.upper, -self.lower)

    @_without_warnings
    def __add__(self, other: Interval) -> Interval:
        lower, below = _two_sum(self.lower, other.lower)
        upper, above = _two_sum(self.upper, other.upper)
        # NaN, the error of an infinite or overflowing sum, counts as inexact.
        return unchecked(*_outward(lower, upper, below >= 0, above <= 0))

    def __sub__(self, other: Interval) -> Interval:
        return self + -other

    @_without_warnings
    def __mul__(self, other: Interval) -> Interval:
        (a, b), (c, d) = (self.lower, self.upper), (other.lower, other.upper)
        corners = (a * c, a * d, b * c, b * d)
        # fmin and fmax skip the NaN of 0 * inf. Another corner then holds the end sought, unless
        # one factor is the number 0: then all four are NaN and the product is 0.
        lower, upper = (np.asarray(reduce(pick, corners)) for pick in (np.fmin, np.fmax))
        for end in (lower, upper):
            np.copyto(end, 0.0, where=np.isnan(end))
        exact = (
            (_fits_float32(a) & _fits_float32(b) & _fits_float32(c) & _fits_float32(d))
            | _is_exact_factor(a, b)
            | _is_exact_factor(c, d)
        )
        _outward(lower, upper, exact, exact)
        # A step outward must not cost the sign, which monotonicity tests rest on.
        np.maximum(lower, 0, out=lower, where=((a >= 0) & (c >= 0)) | ((b <= 0) & (d <= 0)))
        np.minimum(upper, 0, out=upper, where=((a >= 0) & (d <= 0)) | ((b <= 0) & (c >= 0)))
        return unchecked(lower, upper)

    @_without_warnings
    def reciprocal(self) -> Interval:
        """Enclose 1 / x; an end is infinite where x comes to 0 from its side."""
        a, b = self.lower, self.upper
        lower, upper = np.asarray(1 / b), np.asarray(1 / a)
        exact = [
            _fits_float32(x) & _fits_float32(r) & (x * r == 1) for x, r in ((b, lower), (a, upper))
        ]
        _outward(lower, upper, *exact)
        np.maximum(lower, 0, out=lower, where=a >= 0)
        np.minimum(upper, 0, out=upper, where=b <= 0)
        zero = (a == 0) & (b == 0)
        np.copyto(lower, -np.inf, where=((a < 0) & (b >= 0)) | zero)
        np.copyto(upper, np.inf, where=((a <= 0) & (b > 0)) | zero)
        return unchecked(lower, upper)

    def power(self, exponent: Scalar) -> Interval:
        """Enclose x**exponent, over the x >= 0 alone unless the exponent is an integer."""
        q = Fraction(exponent)
        if q == 0:
            return constant(1)
        if q < 0:
            return self.power(-q).reciprocal()
        if q.denominator == 1:
            return _integer_power(self, q.numerator)
        if q.denominator == 2:
            return _nonnegative_power(square_root(self.nonnegative_part()), q.numerator)
        return self._real_power(constant(q))

    @_without_warnings
    def _real_power(self, exponent: Interval) -> Interval:
        # Whether x**q grows with q depends on x, so both ends of q are tried.
        low, high = (
            [np.power(np.maximum(end, _TINY), q) for q in (exponent.lower, exponent.upper)]
            for end in (self.lower, self.upper)
        )
        return _widened(
            np.where(self.lower < _TINY, 0.0, np.minimum(*low)),
            np.where(self.upper > 0, np.maximum(*high), 0.0),
        ).nonnegative_part()

    def nonnegative_part(self) -> Interval:
        """Keep the nonnegative part; 0 where there is none."""
        return unchecked(np.maximum(self.lower, 0.0), np.maximum(self.upper, 0.0))

    @_without_warnings
    def exp(self) -> Interval:
        """Enclose the exponential."""
        return _widened(np.exp(self.lower), np.exp(self.upper)).nonnegative_part()

    @_without_warnings
    def log(self) -> Interval:
        """Enclose the logarithm over the x > 0 alone; the whole line where there are none."""
        lower, upper = np.log(np.maximum(self.lower, _TINY)), np.log(np.maximum(self.upper, _TINY))
        return _widened(
            np.where(self.lower < _TINY, -np.inf, lower), np.where(self.upper > 0, upper, np.inf)
        )


def interval(lower: npt.ArrayLike, upper: npt.ArrayLike) -> Interval:
    """Build an interval from numbers or arrays."""
    return Interval(lower=np.asarray(lower, np.float64), upper=np.asarray(upper, np.float64))


def _set_ends(target: Interval, lower: FloatArray, upper: FloatArray) -> None:
    for name, end in (("lower", lower), ("upper", upper)):
        end.flags.writeable = False
        object.__setattr__(target, name, end)


def unchecked(lower: npt.ArrayLike, upper: npt.ArrayLike) -> Interval:
    """Build an interval from fresh ends known to be in order, without checks or copies."""
    result = object.__new__(Interval)
    _set_ends(result, np.asarray(lower), np.asarray(upper))
    return result


def _two_sum(a: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the rounded sum s and the exact a + b - s."""
    s = np.asarray(a + b)
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _outward(
    lower: FloatArray, upper: FloatArray, keep_lower: BoolArray, keep_upper: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Move both ends one float outward in place, except where they may be kept."""
    np.nextafter(lower, -np.inf, out=lower, where=~keep_lower)
    np.nextafter(upper, np.inf, out=upper, where=~keep_upper)
    return lower, upper


def _widened(lower: FloatArray, upper: FloatArray) -> Interval:
    """Allow for the error of a library function."""
    lower = np.minimum(lower, _LARGEST)  # where the function overflowed
    return unchecked(lower - np.abs(lower) * _SLACK - _TINY, upper + np.abs(upper) * _SLACK + _TINY)


def _fits_float32(a: FloatArray) -> BoolArray:
    fits: BoolArray = a.astype(np.float32) == a
    return fits


def _is_exact_factor(a: FloatArray, b: FloatArray) -> BoolArray:
    trivial: BoolArray = (a == b) & ((a == 0) | (np.abs(a) == 1))
    return trivial


def _nonnegative_power(base: Interval, exponent: int) -> Interval:
    """Enclose base**exponent for a nonnegative base and a positive integer exponent."""
    result = base
    for bit in f"{exponent:b}"[1:]:
        result = result * result if bit == "0" else result * result * base
    return result


def _integer_power(base: Interval, exponent: int) -> Interval:
    positive, negative = base.nonnegative_part(), (-base).nonnegative_part()
    if exponent % 2 == 1:
        # One of the two parts is 0 at each end, so the difference is exact.
        return _nonnegative_power(positive, exponent) - _nonnegative_power(negative, exponent)
    size = unchecked(np.maximum(positive.lower, negative.lower), base.magnitude)
    return _nonnegative_power(size, exponent)


@_without_warnings
def square_root(base: Interval) -> Interval:
    """Enclose the square root of a nonnegative interval."""
    lower, upper = np.asarray(np.sqrt(base.lower)), np.asarray(np.sqrt(base.upper))
    exact = [_fits_float32(r) & (r * r == x) for r, x in ((lower, base.lower), (upper, base.upper))]
    return unchecked(*_outward(lower, upper, *exact)).nonnegative_part()


@lru_cache(maxsize=4096, typed=True)
def constant(number: Scalar) -> Interval:
    """Enclose a constant as tightly as floats allow: a double is exact, a fraction may not be."""
    value = Fraction(number)
    try:
        nearest = value.numerator / value.denominator
    except OverflowError:
        beyond = interval(_LARGEST, np.inf)
        return beyond if value > 0 else -beyond
    return interval(
        nearest if nearest <= value else np.nextafter(nearest, -np.inf),
        nearest if nearest >= value else np.nextafter(nearest, np.inf),
    )
