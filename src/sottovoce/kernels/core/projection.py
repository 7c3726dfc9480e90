"""The exact projection on the public set C in a diagonal metric.

    u = argmin over u in C of  sum_o d_o (u_o - v_o)^2 / 2

C is a product of intervals and of regions over disjoint groups of sums: balls, and sets
``{u: phi_r(u) + level_r <= 0}`` with phi_r, its gradient and its Hessian on a tape. Such a set ends
one width beyond the ranges of its sums: no sum is there, so that nothing is excluded, and phi_r
does not overflow at noisy averages far away. Public costs are of no matter here.
"""

from . import plain as cython
from .interpreter import interpret
from .linear import backward, cholesky, forward
from .plain import *

PROJECTION_STEPS = 60
ROOT_STEPS = 100
PROJECTION_HALVINGS = 40
PROJECTION_ROUNDING = 1e-15  # relative: a step this short, or a pivot this small, is rounding
ROOT_CLOSE = 1e-14  # relative, of nu: a displacement this much off is rounding
QUADRATIC = 1e-8  # after a step this short, relative to the way to go, the next would be rounding


def project_work(size):
    """How many floats of scratch a projection takes, with regions of at most ``size`` sums."""
    return 8 * size + 2 * size * size


def project(v, weight, public_set, u, work):
    """Fill u with the projection of v on C; ``weight`` is d, the metric."""
    for o in range(public_set.sums):
        u[o] = min(max(v[o], public_set.lower[o]), public_set.upper[o])
    for r in range(public_set.regions):
        start = public_set.starts[r]
        if public_set.kinds[r] > LEVEL:
            continue
        size = public_set.starts[r + 1] - start
        point, metric, nearest = work, skip(work, size), skip(work, 2 * size)
        for i in range(size):
            point[i] = v[public_set.members[start + i]]
            metric[i] = weight[public_set.members[start + i]]
        if public_set.kinds[r] == BALL:
            project_ball(
                size, point, metric, skip(public_set.centers, start), public_set.radii[r], nearest
            )
        else:
            project_region(public_set, r, point, metric, nearest, skip(work, 3 * size))
        for i in range(size):
            u[public_set.members[start + i]] = nearest[i]


def project_ball(size, v, weight, center, radius, u):
    """Fill u with the nearest point of ``|u - c| <= radius``.

    ``u = c + d (v - c) / (d + nu)`` with nu the root of ``1/|u - c| = 1/radius``, which Newton's
    method reaches from the left without a safeguard, as the left side is concave in nu (Reinsch).
    In an equal metric the first step is exact.
    """
    distance = 0.0
    for i in range(size):
        distance += (v[i] - center[i]) * (v[i] - center[i])
    distance = sqrt(distance)
    if distance <= radius:
        copy_some(u, v, size)
        return
    if radius == 0.0:
        copy_some(u, center, size)
        return
    nu = 0.0
    for _ in range(PROJECTION_STEPS):
        length, slope = 0.0, 0.0
        for i in range(size):
            part = weight[i] * (v[i] - center[i]) / (weight[i] + nu)
            length += part * part
            slope += part * part / (weight[i] + nu)
        step = length / slope * (sqrt(length) / radius - 1.0)
        nu += step
        if step <= PROJECTION_ROUNDING * nu:
            break
    for i in range(size):
        u[i] = center[i] + weight[i] * (v[i] - center[i]) / (weight[i] + nu)


def phi(public_set, r, u, gradient, hessian):
    """Return phi_r(u), and fill its gradient and its Hessian, row by row."""
    size = public_set.starts[r + 1] - public_set.starts[r]
    registers = skip(public_set.phi_registers, public_set.phi_register_starts[r])
    outputs = skip_int(public_set.phi_outputs, public_set.phi_output_starts[r])
    code = skip_int(public_set.phi_code, public_set.phi_code_starts[r])
    copy_some(registers, u, size)
    length = public_set.phi_code_starts[r + 1] - public_set.phi_code_starts[r]
    interpret(code, length, registers, 1)
    for i in range(size):
        gradient[i] = registers[outputs[1 + i]]
    for i in range(size * size):
        hessian[i] = registers[outputs[1 + size + i]]
    return registers[outputs[0]]


def project_region(public_set, r, v, weight, u, work):
    """Fill u with the nearest point of ``phi_r(u) + level_r <= 0``.

    ``u(nu) = argmin sum_o d_o (u_o - v_o)^2 / 2 + nu phi(u)``, and nu is the root of the decreasing
    ``phi(u(nu)) + level``: Newton's method kept inside a bracket, which bisection shrinks where a
    step leaves it. Scratch: ``5 m + 2 m^2`` of m sums.
    """
    start = public_set.starts[r]
    size = public_set.starts[r + 1] - start
    gradient, solved, fixed, hessian = (
        work, skip(work, size), skip(work, 3 * size), skip(work, 4 * size)
    )  # fmt: skip
    factor = skip(hessian, size * size)
    level = public_set.levels[r]
    for i in range(size):
        u[i] = min(max(v[i], public_set.low[start + i]), public_set.high[start + i])
    value = phi(public_set, r, u, gradient, hessian) + level
    if value <= 0.0:
        return
    low, high, nu, last = 0.0, inf, 0.0, inf
    away, steep = 0.0, 0.0
    for i in range(size):
        u[i] = min(max(v[i], public_set.least[start + i]), public_set.most[start + i])
    value = phi(public_set, r, u, gradient, hessian) + level
    for i in range(size):
        away += weight[i] * fabs(v[i] - u[i])
        steep += fabs(gradient[i])
    if away > 0.0:  # far off: begin with the nu that would keep the sums in their ranges
        nu = away / steep if steep > 0.0 else 1.0
        value = minimise_penalty(public_set, r, nu, v, weight, u, work) + level
    for _ in range(ROOT_STEPS):
        # d phi(u(nu)) / d nu = -gradient' (D + nu Hessian)^-1 gradient, of what no bound fixes
        mark_active_bounds(public_set, r, nu, v, weight, u, gradient, fixed)
        factorise(size, hessian, nu, weight, fixed, factor)
        for i in range(size):
            solved[i] = 0.0 if fixed[i] > 0.0 else gradient[i]
        solve_factored(size, factor, solved)
        slope = 0.0
        for i in range(size):
            slope += gradient[i] * solved[i]
        if value > 0.0:
            low = nu
        else:
            high = nu
        if not slope > 0.0:
            break
        before = nu
        nu = before + value / slope
        if fabs(nu - before) <= ROOT_CLOSE * nu or (high < inf and high - low <= ROOT_CLOSE * high):
            break
        if high == inf and value > 0.5 * last:
            nu = max(nu, 4.0 * before)  # too far off for Newton's method to be fast
        elif not (low < nu and nu < high):
            nu = 0.5 * (low + high)
        last = value
        value = minimise_penalty(public_set, r, nu, v, weight, u, work) + level


def mark_active_bounds(public_set, r, nu, v, weight, u, gradient, fixed):
    """Fill fixed with 1 for members at a bound that a step would leave, and with 0 for others."""
    start = public_set.starts[r]
    for i in range(public_set.starts[r + 1] - start):
        pull = weight[i] * (u[i] - v[i]) + nu * gradient[i]
        below: cython.bint = u[i] <= public_set.low[start + i] and pull > 0.0
        above: cython.bint = u[i] >= public_set.high[start + i] and pull < 0.0
        fixed[i] = 1.0 if below or above else 0.0


def minimise_penalty(public_set, r, nu, v, weight, u, work):
    """Move u to u(nu) by projected Newton steps; return phi there, with derivatives.

    A step is halved until the objective falls enough; where phi overflows or is NaN it does not.
    """
    start = public_set.starts[r]
    size = public_set.starts[r + 1] - start
    gradient, step, there, fixed = (
        work,
        skip(work, size),
        skip(work, 2 * size),
        skip(work, 3 * size),
    )
    hessian, factor = skip(work, 4 * size), skip(work, 4 * size + size * size)
    value = phi(public_set, r, u, gradient, hessian)
    for _ in range(PROJECTION_STEPS):
        mark_active_bounds(public_set, r, nu, v, weight, u, gradient, fixed)
        factorise(size, hessian, nu, weight, fixed, factor)
        for i in range(size):
            step[i] = -(weight[i] * (u[i] - v[i]) + nu * gradient[i]) * (1.0 - fixed[i])
        copy_some(there, step, size)
        solve_factored(size, factor, step)
        fall, length, distance = 0.0, 0.0, 0.0
        for i in range(size):
            fall += there[i] * step[i]
            length += weight[i] * step[i] * step[i]
            distance += weight[i] * ((u[i] - v[i]) * (u[i] - v[i]))
        if not length > 0.0:
            break
        last: cython.bint = length <= QUADRATIC * QUADRATIC * distance
        here = 0.5 * distance + nu * value
        share = 1.0
        for _ in range(PROJECTION_HALVINGS):
            distance = 0.0
            for i in range(size):
                there[i] = max(u[i] + share * step[i], public_set.low[start + i])
                there[i] = min(there[i], public_set.high[start + i])
                distance += weight[i] * ((there[i] - v[i]) * (there[i] - v[i]))
            value = phi(public_set, r, there, gradient, hessian)
            slack = 4.0 * PROJECTION_ROUNDING * fabs(here)
            if 0.5 * distance + nu * value <= here - 0.25 * share * fall + slack:
                break
            share *= 0.5
        copy_some(u, there, size)
        if last:
            break
    return value


def factorise(size, hessian, nu, weight, fixed, factor):
    """Fill the Cholesky factor of ``diag(weight) + nu hessian``, and behind it its least pivots.

    Rows that are fixed become those of the identity.
    """
    least = skip(factor, size * size)
    for i in range(size):
        least[i] = PROJECTION_ROUNDING * weight[i]
        for j in range(i):
            free: cython.bint = fixed[i] == 0.0 and fixed[j] == 0.0
            factor[i * size + j] = nu * hessian[i * size + j] if free else 0.0
        factor[i * size + i] = nu * hessian[i * size + i] + weight[i] if fixed[i] == 0.0 else 1.0
    cholesky(size, factor, least, False)


def solve_factored(size, factor, right):
    """Solve ``L L' x = right`` in place."""
    forward(size, factor, right)
    backward(size, factor, right)
