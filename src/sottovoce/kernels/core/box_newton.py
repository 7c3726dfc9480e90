"""The minimiser of a convex function on a box, from its gradient alone: truncated Newton steps.

    x = argmin over [lower, upper] of  phi(x) + sum_c weight_c (x_c - anchor_c)^2 / 2

Each step minimises the quadratic model in the components that no bound holds, by conjugate
gradients, and is halved until the slope along the path, bent at the bounds, rises no more than it
fell. Curvature comes from differences of gradients: no matrix is ever formed.
"""

try:
    import cython

    if not cython.compiled:
        raise ModuleNotFoundError
except ModuleNotFoundError:
    from . import plain as cython

if not cython.compiled:
    from .lanes import copy_some, skip
    from .plain import fabs
    from .tape import tape_run_one

NEWTON_STEPS = 25
CONJUGATE_STEPS = 12
HALVINGS = 20
NEAR = 1e-3  # of the width: components this near to a bound that they are pushed against are held
SMALL = 1e-9  # a step this much shorter than the box is the last: the next would be rounding
NUDGE = 2.0**-20  # the distance at which curvature is measured, relative to the box
RESIDUAL = 1e-6  # how far the Newton equations are solved: then convergence is quadratic


def newton_work(d):
    """How many floats of scratch ``minimise`` takes."""
    return 13 * d


def gradient(problem, x, out):
    """Fill phi's gradient."""
    d = problem.d
    copy_some(skip(problem.r, problem.x), x, d)
    tape_run_one(problem.one, problem.one_size, problem.r)
    for c in range(d):
        out[c] = problem.r[problem.outputs[c]]
    if not cython.compiled:
        if problem.callback is not None:  # an objective that is Python code
            out[:d] += problem.callback(x[:d].copy())


def minimise(problem, anchor, lower, upper, weight, x, work):
    """Fill x with the minimiser; NaN if a gradient is.

    Args:
        problem: the gradient's tape, and registers with all else that it reads.
        anchor: where to start, inside the box.
        lower: the box's lower ends.
        upper: its upper ends.
        weight: not negative.
        x: the result.
        work: scratch.
    """
    d = problem.d
    there, step, force = work, skip(work, d), skip(work, 2 * d)
    after, rest = skip(work, 3 * d), skip(work, 4 * d)
    copy_some(x, anchor, d)
    gradient(problem, x, force)
    for _ in range(NEWTON_STEPS):
        newton_step(problem, x, force, lower, upper, weight, step, rest)
        share, fall, moved = 1.0, 0.0, 0.0
        for _ in range(HALVINGS):
            for c in range(d):
                there[c] = clip(x[c] + share * step[c], lower[c], upper[c])
            gradient(problem, there, after)
            fall, rise, moved = 0.0, 0.0, 0.0
            for c in range(d):
                gone = there[c] - x[c]
                after[c] = after[c] + weight[c] * (there[c] - anchor[c])
                fall += force[c] * gone
                rise += after[c] * gone
                if upper[c] > lower[c]:
                    moved = max(moved, fabs(gone) / (upper[c] - lower[c]))
            if fall < 0.0 and rise <= -0.5 * fall:
                break
            share *= 0.5
        if not fall < 0.0:
            break
        copy_some(x, there, d)
        copy_some(force, after, d)
        if not moved > SMALL:
            break
    nan: cython.bint = False
    for c in range(d):
        nan = nan or force[c] != force[c]
    if nan:
        copy_some(x, force, d)


def clip(value, lower, upper):
    """The nearest number in an interval; NaN stays NaN."""
    if value < lower:
        return lower
    if value > upper:
        return upper
    return value


def nearness(d, x, force, lower, upper):
    """How near to a bound that it is pushed against a component counts as held by it.

    A share of the width, at most ``NEAR``, that goes to 0 as x converges (Bertsekas 1982): without
    it a step would be bent by bounds just ahead, and lead nowhere.
    """
    steepest = 0.0
    for c in range(d):
        steepest = max(steepest, fabs(force[c]) * (upper[c] - lower[c]))
    if not steepest > 0.0:
        return NEAR
    farthest = 0.0
    for c in range(d):
        width = upper[c] - lower[c]
        if width > 0.0:
            there = clip(x[c] - width * width * force[c] / steepest, lower[c], upper[c])
            farthest = max(farthest, fabs(there - x[c]) / width)
    return min(NEAR, farthest)


def newton_step(problem, x, force, lower, upper, weight, step, work):
    """Fill step: to the bound where one holds a component, and Newton's in all others.

    Curvature is measured at a point pulled so far inside that no gradient is asked for outside the
    box, where an objective need not be defined.
    """
    d = problem.d
    scale, rest, towards, held = work, skip(work, d), skip(work, 2 * d), skip(work, 3 * d)
    center, level = skip(work, 4 * d), skip(work, 5 * d)
    near = nearness(d, x, force, lower, upper)
    for c in range(d):
        width = upper[c] - lower[c]
        falls: cython.bint = force[c] >= 0.0 and x[c] - lower[c] <= near * width
        rises: cython.bint = force[c] <= 0.0 and upper[c] - x[c] <= near * width
        scale[c] = 0.0 if falls or rises else width * width
        held[c] = lower[c] - x[c] if falls else upper[c] - x[c]
        rest[c] = -force[c]
        step[c] = 0.0
        towards[c] = scale[c] * rest[c]
        room = 2.0 * NUDGE * width
        center[c] = clip(x[c], lower[c] + room, upper[c] - room)
    gradient(problem, center, level)
    conjugate_gradients(problem, lower, upper, weight, step, work)
    for c in range(d):
        if scale[c] == 0.0:
            step[c] = held[c]


def conjugate_gradients(problem, lower, upper, weight, step, work):
    """Solve ``H step = -force`` in the free components, preconditioned by widths, units of x."""
    d = problem.d
    scale, rest, towards = work, skip(work, d), skip(work, 2 * d)
    center, level = skip(work, 4 * d), skip(work, 5 * d)
    probe, product = skip(work, 6 * d), skip(work, 7 * d)
    left = 0.0
    for c in range(d):
        left += rest[c] * towards[c]
    goal = RESIDUAL * RESIDUAL * left
    for _ in range(CONJUGATE_STEPS):
        if not left > goal:
            break
        longest = 0.0
        for c in range(d):
            if scale[c] > 0.0:
                longest = max(longest, fabs(towards[c]) / (upper[c] - lower[c]))
        nudge = NUDGE / longest
        for c in range(d):
            probe[c] = center[c] + nudge * towards[c]
        gradient(problem, probe, product)
        curvature, gone = 0.0, 0.0
        for c in range(d):
            product[c] = (product[c] - level[c]) / nudge + weight[c] * towards[c]
            curvature += towards[c] * product[c]
            gone += step[c] * step[c]
        if not curvature > 0.0:
            if gone == 0.0:
                for c in range(d):
                    step[c] = towards[c] / longest  # no curvature: as far as the box allows
            break
        before, length = left, left / curvature
        left = 0.0
        for c in range(d):
            step[c] += length * towards[c]
            rest[c] -= length * product[c]
            left += scale[c] * rest[c] * rest[c]
        for c in range(d):
            towards[c] = scale[c] * rest[c] + left / before * towards[c]
