"""Minimisers of a convex function on a box, from its slope or gradient alone, which a tape gives.

    x = argmin over [lower, upper] of  phi(x) + sum_c weight_c (x_c - anchor_c)^2 / 2

One component: phi' must not decrease. The minimiser lies within ``|phi'(anchor)| / weight`` of the
anchor. The search takes Newton's step from there and then goes outwards, beyond the zero of the
secant, until the slope changes its sign; Chandrupatla's method (1997) closes in, never slower than
bisection. It ends when the bracket is short or the slope so small that, rising by ``weight`` at
least, it has its zero next to here.
``minimise_lanes`` does the same for 16 agents: each lane makes the same evaluations as alone, so it
has the same bits; lanes that are done wait for the others.

Several components: truncated Newton steps. Each minimises the quadratic model in the components
that no bound holds, by conjugate gradients, and is halved until the slope along the path, bent at
the bounds, rises no more than it fell. Curvature comes from differences of gradients: no matrix is
ever formed.

The tape's first registers hold the anchor. The result is NaN if a slope is NaN.
"""

from . import plain as cython
from .interpreter import run_tape
from .plain import *

PRECISION = 1e-13  # of a minimiser, relative to the width of its interval
FIRST_STEP = 2.0**-10  # without curvature, relative to the width: minimisers move little in a round
OVERSHOOT = 2.0  # how many times as far as the secant's zero the second step leads, to enclose it
GROWTH = 32.0  # of that, in every further step outwards
MAX_EVALUATIONS = 100
OUTWARDS, CLOSING, DONE = 1.0, 2.0, 3.0  # phases of a lane
BOX_STEPS = 25
CONJUGATE_STEPS = 12
BOX_HALVINGS = 20
NEAR = 1e-3  # of the width: components this near to a bound that they are pushed against are active
SMALL = 1e-9  # a step this much shorter than the box is the last: the next would be rounding
NUDGE = 2.0**-20  # the distance at which curvature is measured, relative to the box
CG_TOLERANCE = 1e-6  # how far the Newton equations are solved: then convergence is quadratic


def slope(tape, r, x):
    """phi'(x)."""
    r[0] = x
    run_tape(tape, r, 1)
    value = r[tape.outputs[0]]
    if not cython.compiled:
        if tape.callback is not None:  # an objective that is Python code
            return value + tape.callback(x)
    return value


def minimise_scalar(tape, r, force, curvature, lower, upper, weight):
    """Return the minimiser; ``tape`` gives slopes from r, whose first register is the anchor.

    ``force`` and ``curvature`` are phi' and phi'' at the anchor, NaN where phi'' is not known.
    """
    anchor, width = r[0], upper - lower
    here, overshoot, tolerance = anchor, OVERSHOOT, PRECISION * width
    if not lower < upper or fabs(force) <= weight * tolerance:
        return anchor
    if force != force:
        return force
    reach = min(fabs(force) / weight, width) if weight > 0.0 else width
    distance = fabs(force) / (curvature + weight)
    distance = min(reach, distance if distance == distance else FIRST_STEP * width)
    while True:
        there = anchor - distance if force > 0.0 else anchor + distance
        there = min(max(there, lower), upper)
        if there == here:
            return here
        farther = slope(tape, r, there) + weight * (there - anchor)
        if farther != farther:
            return farther
        if farther == 0.0 or (farther > 0.0) != (force > 0.0):
            return find_zero(tape, r, anchor, weight, here, force, there, farther, tolerance)
        if distance >= reach or fabs(farther) <= weight * tolerance:
            return there
        ahead = fabs(farther * (there - here) / (force - farther))
        distance = min(reach, distance + overshoot * max(ahead, tolerance))
        here, force, overshoot = there, farther, GROWTH * overshoot


def find_zero(tape, r, anchor, weight, b, slope_b, a, slope_a, tolerance):
    """The zero of the slope between a and b, where it has opposite signs."""
    towards = b - a
    step = slope_a / (slope_a - slope_b) * towards  # where a straight line would have its zero
    for _ in range(MAX_EVALUATIONS):
        gap = fabs(towards)
        if fabs(slope_a) <= weight * tolerance or not 2.0 * tolerance < gap:
            break
        length = step if towards > 0.0 else -step
        length = max(tolerance, min(length, gap - tolerance)) if step == step else 0.5 * gap
        x = a + length if towards > 0.0 else a - length
        value = slope(tape, r, x) + weight * (x - anchor)
        # Chosen without branches, as no processor could predict them.
        same: cython.bint = (value > 0.0) == (slope_a > 0.0)
        c, slope_c = a if same else b, slope_a if same else slope_b
        b, slope_b = b if same else a, slope_b if same else slope_a
        a, slope_a, towards = x, value, b - x
        # Is the inverse parabola through all three trustworthy? In products, not quotients.
        wide, cb, ca, ab = fabs(c - b), slope_b - slope_c, slope_c - slope_a, slope_b - slope_a
        above = slope_a * (slope_c * ca * towards - slope_b * ab * (c - a))
        step = above / (ab * cb * ca)
        step = step if ab * ab * wide < fabs(towards) * cb * cb else 0.5 * towards
        step = step if ca * ca * wide < fabs(c - a) * cb * cb else 0.5 * towards
        step = step if ca != 0.0 else 0.5 * towards
    return a if fabs(slope_a) <= fabs(slope_b) else b


def minimise_lanes(tape, r, force, curvature, search):
    """Fill ``search.answer``; lower, upper and weight are filled in."""
    x = r
    copy(search.anchor, x)
    start_lanes(search, force, curvature, x)
    force = row(r, tape.outputs[0])
    while any_open(search.phase):
        run_tape(tape, r, LANES)
        advance_lanes(search, force, x)


def any_open(phase):
    """Whether a lane is not done."""
    for lane in range(LANES):
        if phase[lane] < DONE:
            return True
    return False


def start_lanes(s, force, curvature, x):
    """What the slopes at the anchors say; the next x of every lane.

    Here and below: loaded first, chosen by one comparison each, stored last, so that the loop
    becomes vector code.
    """
    for lane in range(LANES):
        anchor, lower, upper = s.anchor[lane], s.lower[lane], s.upper[lane]
        weight, f = s.weight[lane], force[lane]
        width = upper - lower
        reach = fabs(f) / (weight if weight > 0.0 else 1.0)
        reach = width if width < reach else reach
        reach = reach if weight > 0.0 else width
        distance = fabs(f) / (curvature[lane] + weight)
        distance = distance if distance == distance else FIRST_STEP * width
        distance = distance if distance < reach else reach
        there = anchor - distance
        there = there if f > 0.0 else anchor + distance
        there = lower if lower > there else there
        there = upper if upper < there else there
        phase = OUTWARDS if lower < upper else DONE
        phase = DONE if there == anchor else phase
        phase = DONE if fabs(f) <= weight * (PRECISION * width) else phase
        phase = phase if f == f else DONE
        answer = f if f != f else anchor
        answer = answer if lower < upper else anchor
        s.a[lane] = anchor
        s.slope_a[lane] = f
        s.b[lane] = anchor
        s.slope_b[lane] = f
        s.reach[lane] = reach
        s.distance[lane] = distance
        s.overshoot[lane] = OVERSHOOT
        s.phase[lane] = phase
        s.answer[lane] = answer
        s.evaluations[lane] = 0.0
        x[lane] = there if phase < DONE else anchor


def advance_lanes(s, force, xs):
    """Take every lane that is not done one evaluation further."""
    most_evaluations = MAX_EVALUATIONS + 0.0
    for lane in range(LANES):
        anchor, lower, upper = s.anchor[lane], s.lower[lane], s.upper[lane]
        weight, x = s.weight[lane], xs[lane]
        a, f_a, b, f_b = s.a[lane], s.slope_a[lane], s.b[lane], s.slope_b[lane]
        reach, distance, phase = s.reach[lane], s.distance[lane], s.phase[lane]
        answer, evaluations = s.answer[lane], s.evaluations[lane]
        value = force[lane] + weight * (x - anchor)
        up = 1.0 if value > 0.0 else 0.0
        tolerance, small = PRECISION * (upper - lower), weight * (PRECISION * (upper - lower))
        # Outwards: has the sign changed, and if not, is there anything farther?
        crossed = 0.0 if up == (1.0 if f_b > 0.0 else 0.0) else 1.0
        crossed = 1.0 if value == 0.0 else crossed
        ahead = fabs(value * (x - b) / (f_b - value))
        ahead = ahead if ahead > tolerance else tolerance
        overshoot = s.overshoot[lane]
        wider = distance + overshoot * ahead
        wider = wider if wider < reach else reach
        farther = anchor - wider
        farther = farther if value > 0.0 else anchor + wider
        farther = lower if lower > farther else farther
        farther = upper if upper < farther else farther
        over = DONE if farther == x else OUTWARDS
        over = DONE if distance >= reach else over
        over = DONE if fabs(value) <= small else over
        # Closing in: c is the third point.
        same = 1.0 if up == (1.0 if f_a > 0.0 else 0.0) else 0.0
        c, f_c = a if same > 0.0 else b, f_a if same > 0.0 else f_b
        d, f_d = b if same > 0.0 else a, f_b if same > 0.0 else f_a
        other, f_other = d if phase == CLOSING else b, f_d if phase == CLOSING else f_b
        towards, wide, beyond = other - x, fabs(c - other), fabs(c - x)
        gap, step = fabs(towards), 0.5 * towards
        ab, cb, ca = f_other - value, f_other - f_c, f_c - value
        above = value * (f_c * ca * towards - f_other * ab * (c - x))
        parabola = above / (ab * cb * ca)
        parabola = parabola if ab * ab * wide < gap * cb * cb else step
        parabola = parabola if ca * ca * wide < beyond * cb * cb else step
        parabola = step if ca == 0.0 else parabola
        secant = value / (value - f_other) * towards
        step = parabola if phase == CLOSING else secant
        evaluations = evaluations + 1.0 if phase == CLOSING else evaluations
        ended = CLOSING if 2.0 * tolerance < gap else DONE
        ended = DONE if fabs(value) <= small else ended
        ended = DONE if f_other == 0.0 else ended
        ended = DONE if evaluations >= most_evaluations else ended
        best = x if fabs(value) <= fabs(f_other) else other
        length = step if towards > 0.0 else -step
        most = gap - tolerance
        inner = most if most < length else length
        inner = inner if inner > tolerance else tolerance
        inner = inner if step == step else 0.5 * gap
        inside = x + inner
        inside = inside if towards > 0.0 else x - inner
        # What becomes of a lane: outwards, closing in, or done.
        closes = crossed if phase == OUTWARDS else 1.0
        following = ended if closes > 0.0 else over
        following = following if value == value else DONE
        following = DONE if phase == DONE else following
        following = ended if phase == CLOSING else following
        result = best if closes > 0.0 else x
        result = result if value == value else value
        result = best if phase == CLOSING else result
        s.a[lane] = x
        s.slope_a[lane] = value
        s.b[lane] = other if closes > 0.0 else x
        s.slope_b[lane] = f_other if closes > 0.0 else value
        s.distance[lane] = distance if closes > 0.0 else wider
        s.overshoot[lane] = GROWTH * overshoot
        s.evaluations[lane] = evaluations
        s.answer[lane] = answer if phase == DONE else result
        s.phase[lane] = following
        goes = inside if closes > 0.0 else farther
        xs[lane] = goes if following < DONE else x


def newton_work(d):
    """How many floats of scratch ``minimise_box`` takes."""
    return 14 * d


def gradient(tape, r, x, out):
    """Fill phi's gradient."""
    d = tape.count
    copy_some(r, x, d)
    run_tape(tape, r, 1)
    for c in range(d):
        out[c] = r[tape.outputs[c]]
    if not cython.compiled:
        if tape.callback is not None:  # an objective that is Python code
            out[:d] += tape.callback(x[:d].copy())


def minimise_box(tape, r, lower, upper, weight, x, work):
    """Fill x with the minimiser; ``tape`` gives the gradient from the registers r."""
    d = tape.count
    there, step, force = work, skip(work, d), skip(work, 2 * d)
    after, anchor, rest = skip(work, 3 * d), skip(work, 4 * d), skip(work, 5 * d)
    copy_some(anchor, r, d)
    copy_some(x, r, d)
    gradient(tape, r, x, force)
    for _ in range(BOX_STEPS):
        box_step(tape, r, x, force, lower, upper, weight, step, rest)
        share, fall, moved = 1.0, 0.0, 0.0
        for _ in range(BOX_HALVINGS):
            for c in range(d):
                there[c] = clip(x[c] + share * step[c], lower[c], upper[c])
            gradient(tape, r, there, after)
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
    """How near to a bound that it is pushed against a component counts as active.

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


def box_step(tape, r, x, force, lower, upper, weight, step, work):
    """Fill step: to the bound where a component is active, and Newton's in all others.

    Curvature is measured at a point pulled so far inside that no gradient is asked for outside the
    box, where an objective need not be defined.
    """
    d = tape.count
    scale, rest, towards, bound_step = work, skip(work, d), skip(work, 2 * d), skip(work, 3 * d)
    center, level = skip(work, 4 * d), skip(work, 5 * d)
    near = nearness(d, x, force, lower, upper)
    for c in range(d):
        width = upper[c] - lower[c]
        falls: cython.bint = force[c] >= 0.0 and x[c] - lower[c] <= near * width
        rises: cython.bint = force[c] <= 0.0 and upper[c] - x[c] <= near * width
        scale[c] = 0.0 if falls or rises else width * width
        bound_step[c] = lower[c] - x[c] if falls else upper[c] - x[c]
        rest[c] = -force[c]
        step[c] = 0.0
        towards[c] = scale[c] * rest[c]
        room = 2.0 * NUDGE * width
        center[c] = clip(x[c], lower[c] + room, upper[c] - room)
    gradient(tape, r, center, level)
    conjugate_gradients(tape, r, lower, upper, weight, step, work)
    for c in range(d):
        if scale[c] == 0.0:
            step[c] = bound_step[c]


def conjugate_gradients(tape, r, lower, upper, weight, step, work):
    """Solve ``H step = -force`` in the free components, preconditioned by widths, units of x."""
    d = tape.count
    scale, rest, towards = work, skip(work, d), skip(work, 2 * d)
    center, level = skip(work, 4 * d), skip(work, 5 * d)
    probe, product = skip(work, 6 * d), skip(work, 7 * d)
    left = 0.0
    for c in range(d):
        left += rest[c] * towards[c]
    goal = CG_TOLERANCE * CG_TOLERANCE * left
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
        gradient(tape, r, probe, product)
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
