"""The minimiser of a convex function of one variable on an interval, from its slope alone."""

from __future__ import annotations

from typing import Any

PRECISION = 1e-13
"""How closely a minimiser is found, relative to the width of its interval."""

_NEAR = 2.0**-10  # how far the first look goes: minimisers move little from round to round
_FARTHER = 32.0
_EVALUATIONS = 100


def minimise(slope: Any, context: Any, anchor: Any, lower: Any, upper: Any, weight: Any) -> Any:
    """Return ``argmin over [lower, upper] of phi(x) + weight (x - anchor)^2 / 2``.

    ``phi' = slope(context, x)`` must not decrease. The minimiser lies within ``|slope|/weight`` of
    the anchor, so the search starts there and goes outwards until the slope changes its sign; then
    Chandrupatla's method closes in, never slower than bisection. NaN if the slope is.

    Args:
        slope: a function of ``context`` and x.
        context: whatever slope wants besides.
        anchor: where to start, inside the interval.
        lower: the interval's lower end.
        upper: its upper end.
        weight: not negative.
    """
    here, force = anchor, slope(context, anchor)
    if not lower < upper or force == 0.0:
        return anchor
    if force != force:
        return force
    width = upper - lower
    reach = min(abs(force) / weight, width) if weight > 0.0 else width
    distance = min(reach, _NEAR * width)
    while True:
        there = anchor - distance if force > 0.0 else anchor + distance
        there = min(max(there, lower), upper)
        if there == here:
            return here
        farther = slope(context, there) + weight * (there - anchor)
        if farther != farther:
            return farther
        if farther == 0.0 or (farther > 0.0) != (force > 0.0):
            return close_in(
                slope, context, anchor, weight, here, force, there, farther, PRECISION * width
            )
        if distance >= reach:
            return there
        here, force, distance = there, farther, min(reach, _FARTHER * distance)


def close_in(
    slope: Any,
    context: Any,
    anchor: Any,
    weight: Any,
    b: Any,
    slope_b: Any,
    a: Any,
    slope_a: Any,
    tolerance: Any,
) -> Any:
    """The zero of the slope between a and b, where it has opposite signs (Chandrupatla 1997)."""
    share = slope_a / (slope_a - slope_b)  # where a straight line would have its zero
    for _ in range(_EVALUATIONS):
        least = tolerance / abs(b - a)
        if slope_a == 0.0 or slope_b == 0.0 or not least < 0.5:
            break
        share = max(least, min(share, 1.0 - least)) if share == share else 0.5
        x = a + share * (b - a)
        value = slope(context, x) + weight * (x - anchor)
        if (value > 0.0) == (slope_a > 0.0):
            c, slope_c = a, slope_a
        else:
            c, slope_c, b, slope_b = b, slope_b, a, slope_a
        a, slope_a = x, value
        share = 0.5
        if slope_c != slope_a and slope_c != slope_b:
            place, level = (a - b) / (c - b), (slope_a - slope_b) / (slope_c - slope_b)
            if level * level < place and (1.0 - level) * (1.0 - level) < 1.0 - place:
                # The inverse parabola through all three is trustworthy here.
                first = slope_a / (slope_b - slope_a) * slope_c / (slope_b - slope_c)
                other = slope_a / (slope_c - slope_a) * slope_b / (slope_c - slope_b)
                share = first + (c - a) / (b - a) * other
    return a if abs(slope_a) <= abs(slope_b) else b
