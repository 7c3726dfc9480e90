"""The proximal step of a public cost U of the sums, in a diagonal metric.

    u = argmin over u in C of  U(u) + sum_o d_o (u_o - v_o)^2 / 2

U adds up over disjoint groups of sums, each of one kind:

    SMOOTH   psi(u)                                     Newton's method; of one sum also with kinks
    PEAK     psi(u) + max(floor, max_i a_i u_i + b_i)   psi smooth and separable
    NORM     w |u - c|                                  by Moreau's identity a projection on a ball

Kinds beyond ``LEVEL`` are costs; ``low`` and ``high`` are their intervals of C.
"""

from .plain import *
from .projection import minimise_penalty, phi, project, project_ball

SEARCH_STEPS = 120
BEFORE_HALVING = 8  # steps of Newton's method; then every other step halves the bracket
SEARCH_EXACT = 4e-16  # relative: a bracket this short is rounding


def prox(v, weight, public_set, u, work):
    """Fill u with the point of C that minimises U plus the distance to v; ``weight`` is d."""
    project(v, weight, public_set, u, work)
    for r in range(public_set.regions):
        kind, start = public_set.kinds[r], public_set.starts[r]
        if kind <= LEVEL:
            continue
        size = public_set.starts[r + 1] - start
        point, metric, nearest = work, skip(work, size), skip(work, 2 * size)
        rest = skip(work, 3 * size)
        for i in range(size):
            point[i] = v[public_set.members[start + i]]
            metric[i] = weight[public_set.members[start + i]]
            inside = min(max(point[i], public_set.least[start + i]), public_set.most[start + i])
            nearest[i] = min(max(inside, public_set.low[start + i]), public_set.high[start + i])
        if kind == NORM:
            prox_norm(
                size, point, metric, skip(public_set.centers, start), public_set.radii[r],
                nearest, rest,
            )  # fmt: skip
        elif size == 1:
            minimise_one(public_set, r, point[0], metric[0], nearest, rest)
        else:
            minimise_penalty(public_set, r, 1.0, point, metric, nearest, rest)
        if kind == PEAK:
            lower_peak(public_set, r, point, metric, nearest, rest)
        for i in range(size):
            u[public_set.members[start + i]] = nearest[i]


def prox_norm(size, v, weight, center, most, u, work):
    """Fill u with ``argmin w |u - c| + sum d (u - v)^2 / 2 = v - l / d``, w being ``most``.

    l is the projection of ``d (v - c)`` on ``|l| <= w`` in the metric ``1/d``.
    """
    force, flexibility, zero, price = work, skip(work, size), skip(work, 2 * size), u
    for i in range(size):
        force[i] = weight[i] * (v[i] - center[i])
        flexibility[i] = 1.0 / weight[i]
    fill(zero, 0.0, size)
    project_ball(size, force, flexibility, zero, most, price)
    for i in range(size):
        # Exactly c where the ball holds all of the force.
        u[i] = center[i] if price[i] == force[i] else v[i] - price[i] / weight[i]


def minimise_one(public_set, r, v, weight, u, work):
    """Move ``u[0]`` to the minimiser for one sum: the zero of ``d (u - v) + psi'(u)``, which rises.

    Newton's method inside a bracket, so that a kink is where the bracket closes. The zero is no
    farther from a point than ``1/d`` of the value there. A derivative that is NaN lies beyond where
    psi is defined: there the cost is infinite.
    """
    slope, curvature = work, skip(work, 1)
    low, high = public_set.low[public_set.starts[r]], public_set.high[public_set.starts[r]]
    inside = u[0]
    for step in range(SEARCH_STEPS):
        phi(public_set, r, u, slope, curvature)
        off = weight * (u[0] - v) + slope[0]
        if off == 0.0:
            return
        if step == 0:
            low, high = max(low, u[0] - fabs(off) / weight), min(high, u[0] + fabs(off) / weight)
        if off > 0.0 or (off != off and u[0] > inside):
            high = u[0]
        else:
            low = u[0]
        there = u[0] - off / (weight + curvature[0])
        if not (low <= there <= high) or (step > BEFORE_HALVING and step % 2 == 0):
            there = 0.5 * (low + high)
        if high - low <= SEARCH_EXACT * max(fabs(low), fabs(high)) or there == u[0]:
            return
        u[0] = there


def lower_peak(public_set, r, v, weight, u, work):
    """Lower the largest ``a_i u_i + b_i`` from the minimiser without it, in u, to its level t.

    What holds sum i down to ``a_i u_i + b_i = t`` is its share ``(d_i (v_i - u_i) - psi_i') / a_i``
    of the maximum's price; shares fall as t rises, and at the minimiser they add up to 1, or t is
    the floor, or an edge.
    """
    start = public_set.starts[r]
    size = public_set.starts[r + 1] - start
    free, slope, curvature = work, skip(work, size), skip(work, 2 * size)
    copy_some(free, u, size)
    low, high = public_set.floors[r], public_set.floors[r]
    for i in range(size):
        a, b = public_set.peak_slopes[start + i], public_set.peak_offsets[start + i]
        if a != 0.0:
            # No share is above 1, so that no sum is pulled lower than this, or than its bound.
            down = free[i] - a / weight[i]
            down = min(max(down, public_set.low[start + i]), public_set.high[start + i])
            low = max(low, a * down + b)
            high = max(high, a * free[i] + b)
    level = low
    for step in range(SEARCH_STEPS):
        for i in range(size):
            a, b = public_set.peak_slopes[start + i], public_set.peak_offsets[start + i]
            u[i] = (level - b) / a if a != 0.0 and a * free[i] + b > level else free[i]
        phi(public_set, r, u, slope, curvature)
        share, fall = 0.0, 0.0
        for i in range(size):
            a, b = public_set.peak_slopes[start + i], public_set.peak_offsets[start + i]
            if a != 0.0 and a * free[i] + b >= level:  # at an edge the force may point outwards
                share += max(0.0, (weight[i] * (v[i] - u[i]) - slope[i]) / a)
                fall += (weight[i] + curvature[i * size + i]) / (a * a)
        if share > 1.0:
            low = level
        elif step == 0:
            return  # even the lowest level there is costs less than it saves
        else:
            high = level
        there = level + (share - 1.0) / fall if fall > 0.0 else high
        if not (low <= there <= high) or (step > BEFORE_HALVING and step % 2 == 0):
            there = 0.5 * (low + high)
        if high - low <= SEARCH_EXACT * max(fabs(low), fabs(high)) or there == level:
            return
        level = there


def cost_gradient(public_set, r, u, g, hessian):
    """Fill the gradient and the Hessian of a region's function; of a peak, of psi alone."""
    start = public_set.starts[r]
    size = public_set.starts[r + 1] - start
    kind = public_set.kinds[r]
    if kind != BALL and kind != NORM:
        phi(public_set, r, u, g, hessian)
        return
    length = 0.0
    for i in range(size):
        g[i] = u[i] - public_set.centers[start + i]
        length += g[i] * g[i]
    length = sqrt(length)
    for i in range(size):
        for j in range(size):
            hessian[i * size + j] = 1.0 if i == j else 0.0
    if kind == BALL or length == 0.0:
        return
    for i in range(size):
        for j in range(size):
            hessian[i * size + j] -= g[i] * g[j] / (length * length)
            hessian[i * size + j] *= public_set.radii[r] / length
    for i in range(size):
        g[i] *= public_set.radii[r] / length
