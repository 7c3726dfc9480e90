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
    slope along the path, bent at the bounds, rises no more than it fell.

    Args:
        gradient: a function of ``context`` and the vector x.
        context: whatever gradient wants besides.
        anchor: where to start, inside the box.
        lower: the box's lower ends.
        upper: its upper ends.
        weight: not negative.
    """
    x = anchor.copy()
    width = upper - lower
    force = gradient(context, x)
    for _ in range(_NEWTON):
        near = nearness(x, force, lower, upper) * width
        falls = (force >= 0.0) & (x - lower <= near)
        rises = (force <= 0.0) & (upper - x <= near)
        step = newton_step(gradient, context, x, force, ~(falls | rises), lower, upper, weight)
        step = np.where(falls, lower - x, np.where(rises, upper - x, step))
        share = 1.0
        for _ in range(_SHORTER):
            there = np.minimum(np.maximum(x + share * step, lower), upper)
            fall = np.sum(force * (there - x))
            after = gradient(context, there) + weight * (there - anchor)
            if fall < 0.0 and np.sum(after * (there - x)) <= -0.5 * fall:
                break
            share *= 0.5
        if not fall < 0.0:
            break
        moved = np.max(np.abs(there - x) / np.where(width > 0.0, width, 1.0))
        x, force = there, after
        if not moved > _SMALL:
            break
    return x if np.all(force == force) else force


def nearness(x: Any, force: Any, lower: Any, upper: Any) -> Any:
    """How near to a bound that it is pushed against a component counts as held by it.

    A share of the width, at most ``_NEAR``, that goes to 0 as x converges (Bertsekas 1982): without
    it a step would be bent by bounds just ahead, and lead nowhere.
    """
    width = upper - lower
    steepest = np.max(np.abs(force) * width)
    if not steepest > 0.0:
        return _NEAR
    there = np.minimum(np.maximum(x - width * width * force / steepest, lower), upper)
    return min(_NEAR, np.max(np.abs(there - x) / np.where(width > 0.0, width, 1.0)))


def newton_step(
    gradient: Any,
    context: Any,
    x: Any,
    force: Any,
    free: Any,
    lower: Any,
    upper: Any,
    weight: Any,
) -> Any:
    """Conjugate gradients on ``H step = -force`` over the free components.

    Curvature is measured at a point pulled so far inside that no gradient is asked for outside the
    box, where an objective need not be defined.
    """
    width = upper - lower
    room = 2.0 * _NUDGE * width
    inside = np.minimum(np.maximum(x, lower + room), upper - room)
    level = gradient(context, inside)
    step = np.zeros(x.size)
    rest = np.where(free, -force, 0.0)
    scale = np.where(width > 0.0, width * width, 0.0)  # widths, being units of x, precondition
    ready = scale * rest
    towards = ready
    left = np.sum(rest * ready)
    goal = _RESIDUAL * _RESIDUAL * left
    for _ in range(_CONJUGATE):
        if not left > goal:
            break
        size = np.max(np.abs(towards) / np.where(width > 0.0, width, 1.0))
        nudge = _NUDGE / size
        probe = gradient(context, inside + nudge * towards)
        bent = np.where(free, (probe - level) / nudge + weight * towards, 0.0)
        curvature = np.sum(towards * bent)
        if not curvature > 0.0:
            if np.sum(step * step) == 0.0:
                step = towards / size  # no curvature: as far as the box allows
            break
        length = left / curvature
        step = step + length * towards
        rest = rest - length * bent
        ready = scale * rest
        before, left = left, np.sum(rest * ready)
        towards = ready + left / before * towards
    return step
