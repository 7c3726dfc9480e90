"""The minimiser of a convex function on a box, from its gradient alone: truncated Newton steps.

Curvature comes from differences of gradients, so an agent's objective may be any code that tells
its gradient, and no matrix is ever formed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_NEWTON = 25
_CONJUGATE = 12
_SHORTER = 20
_NEAR = 1e-3
_SMALL = 1e-9  # a step this much shorter than the box is the last: the one after would be rounding
_NUDGE = 2.0**-20  # the distance at which curvature is measured, relative to the box
_RESIDUAL = 1e-6  # how far the Newton equations are solved: then convergence is quadratic


def minimise_vector(
    gradient: Any, context: Any, anchor: Any, lower: Any, upper: Any, weight: Any
) -> Any:
    """Return ``argmin over [lower, upper] of phi(x) + sum_c weight_c (x_c - anchor_c)^2 / 2``.

    ``gradient(context, x)`` is that of phi, which must be convex. Each step minimises the quadratic
    model in the components that no bound holds, by conjugate gradients, and is halved until the
    slope along the path, bent at the bounds, rises no more than it fell. Loops are written out:
    compiled and in Python they give the same bits, and compile in a third of the time.

    Args:
        gradient: a function of ``context`` and the vector x that gives a new array.
        context: whatever gradient wants besides.
        anchor: where to start, inside the box.
        lower: the box's lower ends.
        upper: its upper ends.
        weight: not negative.
    """
    size = anchor.size
    x, there, step = anchor.copy(), np.empty(size), np.empty(size)
    force, after = np.empty(size), np.empty(size)
    slope = gradient(context, x)
    for c in range(size):
        force[c] = slope[c]
    for _ in range(_NEWTON):
        newton_step(gradient, context, x, force, lower, upper, weight, step)
        share, fall, moved = 1.0, 0.0, 0.0
        for _ in range(_SHORTER):
            for c in range(size):
                there[c] = inside(x[c] + share * step[c], lower[c], upper[c])
            slope = gradient(context, there)
            fall, rise, moved = 0.0, 0.0, 0.0
            for c in range(size):
                gone = there[c] - x[c]
                after[c] = slope[c] + weight[c] * (there[c] - anchor[c])
                fall += force[c] * gone
                rise += after[c] * gone
                if upper[c] > lower[c]:
                    moved = max(moved, abs(gone) / (upper[c] - lower[c]))
            if fall < 0.0 and rise <= -0.5 * fall:
                break
            share *= 0.5
        if not fall < 0.0:
            break
        x, there = there, x
        force, after = after, force
        if not moved > _SMALL:
            break
    for c in range(size):
        if force[c] != force[c]:
            return force
    return x


def inside(value: Any, lower: Any, upper: Any) -> Any:
    """The nearest number in an interval; NaN stays NaN."""
    if value < lower:
        return lower
    if value > upper:
        return upper
    return value


def nearness(x: Any, force: Any, lower: Any, upper: Any) -> Any:
    """How near to a bound that it is pushed against a component counts as held by it.

    A share of the width, at most ``_NEAR``, that goes to 0 as x converges (Bertsekas 1982): without
    it a step would be bent by bounds just ahead, and lead nowhere.
    """
    steepest = 0.0
    for c in range(x.size):
        steepest = max(steepest, abs(force[c]) * (upper[c] - lower[c]))
    if not steepest > 0.0:
        return _NEAR
    farthest = 0.0
    for c in range(x.size):
        width = upper[c] - lower[c]
        if width > 0.0:
            there = inside(x[c] - width * width * force[c] / steepest, lower[c], upper[c])
            farthest = max(farthest, abs(there - x[c]) / width)
    return min(_NEAR, farthest)


def newton_step(
    gradient: Any,
    context: Any,
    x: Any,
    force: Any,
    lower: Any,
    upper: Any,
    weight: Any,
    step: Any,
) -> None:
    """Fill step: to the bound where one holds a component, and Newton's in all others.

    Conjugate gradients on ``H step = -force``, preconditioned by widths, being units of x.
    Curvature is measured at a point pulled so far inside that no gradient is asked for outside the
    box, where an objective need not be defined.
    """
    size, near = x.size, nearness(x, force, lower, upper)
    scale, rest, towards = np.empty(size), np.empty(size), np.empty(size)
    center, probe, held = np.empty(size), np.empty(size), np.empty(size)
    left = 0.0
    for c in range(size):
        width = upper[c] - lower[c]
        falls = force[c] >= 0.0 and x[c] - lower[c] <= near * width
        rises = force[c] <= 0.0 and upper[c] - x[c] <= near * width
        scale[c] = 0.0 if falls or rises else width * width
        held[c] = lower[c] - x[c] if falls else upper[c] - x[c]
        rest[c], step[c] = -force[c], 0.0
        towards[c] = scale[c] * rest[c]
        left += rest[c] * towards[c]
        room = 2.0 * _NUDGE * width
        center[c] = inside(x[c], lower[c] + room, upper[c] - room)
    level = gradient(context, center)
    goal = _RESIDUAL * _RESIDUAL * left
    for _ in range(_CONJUGATE):
        if not left > goal:
            break
        longest = 0.0
        for c in range(size):
            if scale[c] > 0.0:
                longest = max(longest, abs(towards[c]) / (upper[c] - lower[c]))
        nudge = _NUDGE / longest
        for c in range(size):
            probe[c] = center[c] + nudge * towards[c]
        bent = gradient(context, probe)
        curvature, gone = 0.0, 0.0
        for c in range(size):
            bent[c] = (bent[c] - level[c]) / nudge + weight[c] * towards[c]
            curvature += towards[c] * bent[c]
            gone += step[c] * step[c]
        if not curvature > 0.0:
            if gone == 0.0:
                for c in range(size):
                    step[c] = towards[c] / longest  # no curvature: as far as the box allows
            break
        before, length = left, left / curvature
        left = 0.0
        for c in range(size):
            step[c] += length * towards[c]
            rest[c] -= length * bent[c]
            left += scale[c] * rest[c] * rest[c]
        for c in range(size):
            towards[c] = scale[c] * rest[c] + left / before * towards[c]
    for c in range(size):
        if scale[c] == 0.0:
            step[c] = held[c]
