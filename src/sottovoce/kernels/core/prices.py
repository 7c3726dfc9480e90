"""The prices that maximise a quadratic model of the dual: the inner problem of the cloud's step.

    l = argmax  S'l - A W*(l) - (l - c)'H(l - c)/2,    W = U + indicator of C

U is the public cost of the sums, 0 if there is none: then ``W*`` is the support function of C. Rows
are in units of their noise here: C is that of the sums divided by ``unit``. H is dense or, for many
sums, diagonal. With ``b = S + H c`` the optimality condition is

    H l + A u = b,    l a subgradient of W at u.

Intervals alone: the primal active set method. With regions, a cost or a diagonal H: in a diagonal
metric D any such pair is ``u = P(z), l = D (z - P(z))`` with P the proximal
step of W, which is the projection on C where there is no cost. So one vector z is sought,
``G(z) = H l + A u - b = 0``, by Newton's method: its derivative ``H D (I - P') + A P'`` is regular
wherever P has one. Where the step, halved up to ``PRICE_HALVINGS`` times, does not lower the
residual enough, the proximal step ``z - G/A`` is taken, which never raises it.
"""

from . import plain as cython
from .linear import cholesky, eliminate
from .plain import *
from .plain import Struct as CostStep
from .projection import factorise, phi, project_work, solve_factored
from .public_cost import lay_out_cost, prox, slope_column

EXCHANGES = 20  # of the active set, per row: hardly any is needed from round to round
GAIN_ROUNDING = 1e-13  # relative: a gain this small is rounding
TINY = 1e-300
PRICE_PIVOT = 1e-15  # relative: rounding must not make a positive definite matrix anything else
PRICE_STEPS = 300
PRICE_HALVINGS = 6
MIN_ROW = 2.0**-40  # of the largest row of H, the least that the metric is made of
PRICE_EXACT = 1e-11  # relative, of prices: where Newton's steps end
RESIDUAL_ROUNDING = 1e-14  # relative, of what prices are solved from
EDGE_ROUNDING = 1e-12  # relative: a sum this near to a bound is at it
LARGEST_REGION = 128  # sums that one region may hold: scratch grows as their square


def prices_work(p, entries):
    """How many floats of scratch ``maximise`` takes, with H of so many entries."""
    regions = p + 9 * p + 2 * entries + project_work(min(p, LARGEST_REGION))
    return max(5 * p + entries, regions)


def row_of(model, o, price):
    """Return ``(H price)_o``."""
    if not model.dense:
        return model.H[o] * price[o]
    value = 0.0
    for q in range(model.p):
        value += model.H[o * model.p + q] * price[q]
    return value


def maximise(model, center, price, aim, work):
    """Fill price with l and aim with u, the point of C that attains the support.

    Price holds a first guess, with regions aim too. The model's S becomes b; ``center`` is c.
    """
    p = model.p
    right = work
    for o in range(p):
        right[o] = model.total[o] + row_of(model, o, center)
    model.right = right
    if model.public_set.regions > 0 or not model.dense:
        by_regions(model, price, aim, skip(work, p))
        return
    by_exchange(model, price, skip(work, p))
    for o in range(p):
        value = (right[o] - row_of(model, o, price)) / model.recent
        lower, upper = (
            model.public_set.lower[o] / model.unit[o],
            model.public_set.upper[o] / model.unit[o],
        )
        aim[o] = min(max(value, lower), upper)


def by_exchange(model, price, work):
    """Intervals: ``H l = b - A bound`` on rows with a price, exchanged until all signs fit.

    The primal active set method for a strictly convex quadratic: every exchange raises the
    objective, so none comes back.
    """
    p = model.p
    side, goal, inner = work, skip(work, p), skip(work, 2 * p)
    for o in range(p):
        side[o] = 1.0 if price[o] > 0.0 else (-1.0 if price[o] < 0.0 else 0.0)
        if model.public_set.lower[o] == model.public_set.upper[o]:
            side[o] = 2.0  # a point: a price of either sign
    for _ in range(EXCHANGES * p):
        solve_active(model, side, goal, inner)
        share = 1.0
        hit: cython.Py_ssize_t = -1
        for o in range(p):
            if (side[o] == 1.0 and goal[o] < 0.0) or (side[o] == -1.0 and goal[o] > 0.0):
                reached = price[o] / (price[o] - goal[o])
                if reached < share:
                    share, hit = reached, o
        for o in range(p):
            if side[o] != 0.0:
                price[o] = goal[o] if share == 1.0 else price[o] + share * (goal[o] - price[o])
        if hit >= 0:
            price[hit] = 0.0
            side[hit] = 0.0
        elif not activate(model, price, side):
            break


def activate(model, price, side):
    """Activate the row that gains most by it; return whether there is any."""
    p = model.p
    worst, sign = 0.0, 0.0
    which: cython.Py_ssize_t = -1
    for o in range(p):
        if side[o] != 0.0:
            continue
        value, size = model.right[o], fabs(model.right[o])
        for q in range(p):
            value -= model.H[o * p + q] * price[q]
            size += fabs(model.H[o * p + q] * price[q])
        scale = sqrt(model.H[o * p + o])
        above = value - model.recent * model.public_set.upper[o] / model.unit[o]
        below = model.recent * model.public_set.lower[o] / model.unit[o] - value
        if above > GAIN_ROUNDING * size and above > worst * scale:
            worst, which, sign = above / scale, o, 1.0
        if below > GAIN_ROUNDING * size and below > worst * scale:
            worst, which, sign = below / scale, o, -1.0
    if which >= 0:
        side[which] = sign
    return which >= 0


def solve_active(model, side, goal, work):
    """Solve ``H_FF goal_F = b_F - A bound_F`` over the active rows F."""
    p, H = model.p, model.H
    size: cython.Py_ssize_t = 0
    for i in range(p):
        goal[i] = 0.0
        size += 1 if side[i] != 0.0 else 0
    right, least, factor = work, skip(work, p), skip(work, 2 * p)
    a: cython.Py_ssize_t = 0
    for i in range(p):
        if side[i] != 0.0:
            bound = model.public_set.lower[i] if side[i] == -1.0 else model.public_set.upper[i]
            right[a] = model.right[i] - model.recent * bound / model.unit[i]
            least[a] = max(PRICE_PIVOT * H[i * p + i], TINY)
            b: cython.Py_ssize_t = 0
            for j in range(i + 1):
                if side[j] != 0.0:
                    factor[a * size + b] = H[i * p + j]
                    b += 1
            a += 1
    cholesky(size, factor, least, False)
    solve_factored(size, factor, right)
    a = 0
    for i in range(p):
        if side[i] != 0.0:
            goal[i] = right[a]
            a += 1


def by_regions(model, price, aim, work):
    """Fill price and aim with the pair (l, u); both hold that of another model on entry."""
    p = model.p
    model.metric = work
    model.residual = skip(work, p)
    rest = skip(work, 2 * p)
    largest = TINY
    for o in range(p):
        bound = 0.0
        if model.dense:
            for q in range(p):
                bound += fabs(model.H[o * p + q])
        else:
            bound = fabs(model.H[o])
        model.metric[o] = bound
        largest = max(largest, bound)
    # Beside regions any D will do; a row of H that is 0 must not hide the others' residuals.
    least = MIN_ROW * largest if model.public_set.regions > 0 else TINY
    for o in range(p):
        model.metric[o] = model.recent / max(model.metric[o], least)
    if model.dense and p > 1:
        by_newton(model, price, aim, rest)
        return
    for o in range(p):  # H is diagonal: H l = A (z - u), and z is known
        rest[o] = model.right[o] / model.recent
    price_residual(model, rest, price, aim, skip(rest, p))


def by_newton(model, price, aim, work):
    """Newton's method from the pair of another model."""
    p, recent = model.p, model.recent
    z, there, step, proximal = work, skip(work, p), skip(work, 2 * p), skip(work, 3 * p)
    inner = skip(work, 4 * p)
    right_size = 0.0
    for o in range(p):
        z[o] = aim[o] + price[o] / model.metric[o]
        right_size += model.right[o] * model.right[o] * model.metric[o]
    off = price_residual(model, z, price, aim, inner)
    for _ in range(PRICE_STEPS):
        size = 0.0
        for o in range(p):
            size += price[o] * price[o] / model.metric[o]
        accurate = (PRICE_EXACT * recent) * (PRICE_EXACT * recent) * size
        if off <= max(accurate, RESIDUAL_ROUNDING * RESIDUAL_ROUNDING * right_size):
            return
        newton_direction(model, z, price, aim, step, inner)
        for o in range(p):
            proximal[o] = z[o] - model.residual[o] / recent
        share, after, enough = 1.0, off, off
        for _ in range(PRICE_HALVINGS):
            for o in range(p):
                there[o] = z[o] + share * step[o]
            after = price_residual(model, there, price, aim, inner)
            enough = (1.0 - 0.5 * share) * (1.0 - 0.5 * share) * off
            if after <= enough:
                break
            share *= 0.5
        enough = (1.0 - 0.5 * share) * (1.0 - 0.5 * share) * off
        if after > enough:
            copy_some(there, proximal, p)
            after = price_residual(model, there, price, aim, inner)
        copy_some(z, there, p)
        off = after


def price_residual(model, z, price, aim, work):
    """Fill ``u = P(z)``, ``l = D (z - u)`` and G; return ``G'D G``."""
    p = model.p
    point, metric, scratch = work, skip(work, p), skip(work, 2 * p)
    for o in range(p):
        point[o] = z[o] * model.unit[o]
        metric[o] = model.metric[o] / (model.unit[o] * model.unit[o])
    prox(point, metric, model.public_set, aim, scratch)
    for o in range(p):
        # Exactly 0 where the projection moved nothing.
        price[o] = model.metric[o] * (point[o] - aim[o]) / model.unit[o]
        aim[o] /= model.unit[o]
    total = 0.0
    for o in range(p):
        model.residual[o] = row_of(model, o, price) + model.recent * aim[o] - model.right[o]
        total += model.residual[o] * model.residual[o] * model.metric[o]
    return total


def newton_direction(model, z, price, aim, step, work):
    """Fill Newton's step ``-(H D (I - P') + A P')^-1 G``."""
    p, H = model.p, model.H
    slope, matrix, scratch = work, skip(work, p * p), skip(work, 2 * p * p)
    for o in range(p):
        for q in range(p):
            slope[o * p + q] = 0.0
        value = z[o] * model.unit[o]
        if model.public_set.lower[o] < value and value < model.public_set.upper[o]:
            slope[o * p + o] = 1.0
    for r in range(model.public_set.regions):
        if model.public_set.kinds[r] == COST:
            cost_slopes(model, r, slope)
        else:
            region_slope(model, r, price, aim, slope, scratch)
    for o in range(p):
        for q in range(p):
            value = model.recent * slope[o * p + q] + H[o * p + q] * model.metric[q]
            for e in range(p):
                value -= H[o * p + e] * model.metric[e] * slope[e * p + q]
            matrix[o * p + q] = value
        step[o] = -model.residual[o]
    eliminate(p, matrix, step)


def cost_slopes(model, r, slope):
    """Put in the derivative of the proximal step of a public cost, which was taken last."""
    step = cython.declare(CostStep)
    lay_out_cost(cython.address(step), model.public_set, r)
    members = model.public_set.starts[r]
    for j in range(step.sums):
        q = model.public_set.members[members + j]
        slope_column(cython.address(step), j)
        for i in range(step.sums):
            o = model.public_set.members[members + i]
            slope[o * model.p + q] = step.solved[i] * model.unit[q] / model.unit[o]


def region_slope(model, r, price, aim, slope, work):
    """Put in the derivative of P where region r moves a point.

    ``P' = (K - K g g'K / g'K g) D`` with ``K = (D + nu Hessian)^-1``; g is the gradient of the
    region's function, and nu follows from ``l = nu g``. What an edge holds does not move.
    """
    p, start = model.p, model.public_set.starts[r]
    size = model.public_set.starts[r + 1] - start
    metric, u, g, solved = work, skip(work, size), skip(work, 2 * size), skip(work, 3 * size)
    fixed, hessian = skip(work, 5 * size), skip(work, 6 * size)
    factor = skip(hessian, size * size)
    active = 0.0
    for i in range(size):
        o = model.public_set.members[start + i]
        active = max(active, fabs(price[o]))
        u[i] = aim[o] * model.unit[o]
        metric[i] = model.metric[o]
    if not active > 0.0:
        return
    if model.public_set.kinds[r] == LEVEL:
        phi(model.public_set, r, u, g, hessian)
    else:
        for i in range(size):
            g[i] = u[i] - model.public_set.centers[start + i]
            for j in range(size):
                hessian[i * size + j] = 1.0 if i == j else 0.0
    above, below, still = 0.0, 0.0, 0.0
    for i in range(size):
        o = model.public_set.members[start + i]
        g[i] *= model.unit[o]
        fixed[i] = 0.0
        if model.public_set.kinds[r] == LEVEL and at_edge(model, r, start + i, price, u[i]):
            fixed[i] = 1.0
        g[i] *= 1.0 - fixed[i]
        above += price[o] * g[i] / metric[i]
        below += g[i] * g[i] / metric[i]
        still += fixed[i]
        for j in range(size):
            hessian[i * size + j] *= model.unit[o] * model.unit[model.public_set.members[start + j]]
    nu = max(above / below, 0.0) if below > 0.0 else 0.0
    factorise(size, hessian, nu, metric, fixed, factor)
    copy_some(solved, g, size)
    solve_factored(size, factor, solved)
    length = 0.0
    for i in range(size):
        length += g[i] * solved[i]
    curved: cython.bint = nu > 0.0 or still == 0.0  # otherwise edges alone hold the point
    column = u
    for j in range(size):
        q = model.public_set.members[start + j]
        for i in range(size):
            column[i] = metric[j] * (1.0 - fixed[j]) if i == j else 0.0
        solve_factored(size, factor, column)
        for i in range(size):
            o = model.public_set.members[start + i]
            along = solved[i] * solved[j] * metric[j] / length if length > 0.0 else column[i]
            slope[o * p + q] = column[i] - (along if curved else 0.0)


def at_edge(model, r, i, price, u):
    """Whether member i of region r is at an active bound."""
    priced: cython.bint = price[model.public_set.members[i]] > 0.0
    bound = model.public_set.high[i] if priced else model.public_set.low[i]
    return fabs(u - bound) <= EDGE_ROUNDING * fabs(bound)
