"""Enclosures of kinks and of their slopes, which jump: every subgradient lies inside."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add

import numpy as np
import sympy

from sottovoce.certify.arithmetic import Expr, Interval, interval, point, wrap
from sottovoce.problem import kinks

_HALF, _TWO = sympy.Rational(1, 2), sympy.Integer(2)
_LINE = interval(-np.inf, np.inf)


def is_kink(node: Expr) -> bool:
    """Whether a node is one of the functions of ``problem.kinks``."""
    return node.func in (*kinks.CONVEX, *kinks.SLOPES)


def kink_value(node: Expr, inner: Sequence[Interval]) -> Interval:
    """Enclose a kink, or the slope of one, whose arguments are enclosed by ``inner``."""
    if isinstance(node, kinks.absolute):
        return _size(inner[0])
    if isinstance(node, kinks.sgn):
        return _sign(inner[0])
    if isinstance(node, kinks.maximum):
        a, b = inner
        return wrap(np.maximum(a.lower, b.lower), np.maximum(a.upper, b.upper))
    if isinstance(node, kinks.chosen):
        return _either(*inner)
    if isinstance(node, kinks.norm):
        return _length(inner)
    if isinstance(node, kinks.along):
        half = len(inner) // 2
        return _along(inner[:half], inner[half:])
    return _huber(*inner)


def kink_slope(node: Expr, inner: Sequence[Interval], slopes: Sequence[Interval]) -> Interval:
    """Enclose all slopes of a node, given its arguments and their slopes.

    Where a function jumps, no finite slope bounds its changes.
    """
    if isinstance(node, kinks.absolute):
        return _sign(inner[0]) * slopes[0]
    if isinstance(node, kinks.sgn):
        return _jump(inner[0]) * slopes[0]
    if isinstance(node, kinks.maximum):
        return _either(inner[0] - inner[1], *slopes)
    if isinstance(node, kinks.chosen):
        return _jump(inner[0]) * slopes[0] + _either(inner[0], *slopes[1:])
    if isinstance(node, kinks.norm):
        return _along(inner, slopes)
    if isinstance(node, kinks.along):
        return reduce(add, (_LINE * slope for slope in slopes))
    a, m = inner
    clipped = wrap(np.clip(a.lower, -m.upper, m.upper), np.clip(a.upper, -m.upper, m.upper))
    return clipped * point(2.0) * slopes[0]


def _size(a: Interval) -> Interval:
    return wrap(np.maximum(np.maximum(a.lower, -a.upper), 0.0), a.magnitude)


def _sign(a: Interval) -> Interval:
    return wrap(np.sign(a.lower), np.sign(a.upper))


def _jump(d: Interval) -> Interval:
    """The line where d may be 0, and 0 elsewhere."""
    at = (d.lower <= 0.0) & (d.upper >= 0.0)
    return wrap(np.where(at, -np.inf, 0.0), np.where(at, np.inf, 0.0))


def _either(d: Interval, yes: Interval, no: Interval) -> Interval:
    """``yes`` where d is surely positive, ``no`` where it surely is not, both elsewhere."""
    above, below = d.lower > 0.0, d.upper <= 0.0
    low = np.where(above, yes.lower, np.where(below, no.lower, np.minimum(yes.lower, no.lower)))
    high = np.where(above, yes.upper, np.where(below, no.upper, np.maximum(yes.upper, no.upper)))
    return wrap(low, high)


def _length(a: Sequence[Interval]) -> Interval:
    return reduce(add, (part.power(_TWO) for part in a)).power(_HALF)


def _along(a: Sequence[Interval], b: Sequence[Interval]) -> Interval:
    """``sum_k a_k b_k / |a|``, at most ``|b|`` in size by Cauchy and Schwarz."""
    most = _length(b).upper
    length = _length(a)
    fraction = reduce(add, (x * y for x, y in zip(a, b, strict=True))) * length.reciprocal()
    apart = length.lower > 0.0
    low = np.where(apart, np.maximum(fraction.lower, -most), -most)
    high = np.where(apart, np.minimum(fraction.upper, most), most)
    return wrap(low, high)


def _huber(a: Interval, m: Interval) -> Interval:
    """It rises with |a|, never lies above a^2 nor below its tangent at M."""
    size = _size(a)
    square, line = size.power(_TWO), m * (size * point(2.0) - m)
    low = np.where(size.lower < m.lower, square.lower, np.maximum(line.lower, 0.0))
    high = np.where(size.upper <= m.upper, square.upper, line.upper)
    return wrap(np.minimum(low, high), high)
