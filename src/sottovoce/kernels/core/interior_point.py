"""A convex function over a box, convex rows and affine rows: a primal-dual interior-point method.

    minimise  phi(x) + sum_c weight_c (x_c - anchor_c)^2 / 2   over  lower <= x <= upper,
              c_j(x) <= 0 for m inequalities,  e_k(x) = 0 for q affine equalities

Mehrotra's predictor and corrector on the optimality conditions in units of the box, with halved
steps where the residual does not fall. An iterate is one vector: the n components, their distances
from both bounds, m slacks, m + q multipliers of rows, and those of both bounds. Derivatives come
from two tapes, of the rows and of the objective, whose outputs are scattered to where they belong.
"""

from . import plain as cython
from .interpreter import run_tape
from .linear import backward, cholesky, forward
from .plain import *

ITERATIONS = 100
HALVINGS = 12
START_MARGIN = 0.1  # how far from its bounds a component starts, as a share of its width
MIN_SLACK = 0.1  # the least slack to start with, in units of the row
TO_BOUNDARY = 0.99  # how much of the way to the boundary is taken
GAP = 1e-19  # complementarity to stop at: its root is how far a component may be off a bound
RESIDUAL = 1e-12
ROUNDING = 1e-9  # residuals below are rounding soon: the gap then tells what is better
PIVOT = 1e-30  # relative: what has no pivot does not move


def iterate_size(n, m, q):
    """The length of an iterate."""
    return 5 * n + 2 * m + q


def interior_work(n, m, q):
    """How many floats of scratch a solve takes."""
    rows = m + q
    vectors = 3 * iterate_size(n, m, q) + 6 * n + 4 * rows + (n + rows) + (m + 2 * n)
    return vectors + rows * n + 2 * n * n + q * n + q * q


def lay_out_interior(ip, n, m, q, work):
    """Give every part of a solve its place; all are 0 but the rows' units."""
    size, rows = iterate_size(n, m, q), m + q
    fill(work, 0.0, interior_work(n, m, q))
    ip.iterate = work
    ip.step = skip(ip.iterate, size)
    ip.trial = skip(ip.step, size)
    ip.x = skip(ip.trial, size)
    ip.unit = skip(ip.x, n)
    ip.bounded = skip(ip.unit, n)
    ip.row_unit = skip(ip.bounded, 2 * n)
    ip.multiplier = skip(ip.row_unit, rows)
    ip.gradient = skip(ip.multiplier, rows)
    ip.values = skip(ip.gradient, n)
    ip.jacobian = skip(ip.values, rows)
    ip.hessian = skip(ip.jacobian, rows * n)
    ip.matrix = skip(ip.hessian, n * n)
    ip.solved_rows = skip(ip.matrix, n * n)
    ip.schur = skip(ip.solved_rows, q * n)
    ip.residual = skip(ip.schur, q * q)
    ip.complementarity = skip(ip.residual, n + rows)
    ip.best = skip(ip.complementarity, m + 2 * n)
    fill(ip.row_unit, 1.0, rows)


def derive(ip, n, m, q):
    """Derivatives at x; without the objective where the nearest point is sought."""
    r, rows, objective = ip.r, ip.rows, ip.objective
    copy_some(r, ip.x, n)
    copy_some(skip(r, ip.row_multiplier), ip.multiplier, m + q)
    run_tape(rows, r, 1)
    scatter(rows, r, ip)
    if ip.with_objective:
        run_tape(objective, r, 1)
        scatter(objective, r, ip)
        if not cython.compiled:
            if objective.callback is not None:  # an objective that is Python code
                objective.callback(ip)
    else:
        fill(ip.gradient, 0.0, n)


def scatter(tape, r, ip):
    """Put outputs (kind, place, register) where they belong; Hessians are added to."""
    outputs = tape.outputs
    for i in range(tape.count // 3):
        kind, place, value = outputs[3 * i], outputs[3 * i + 1], r[outputs[3 * i + 2]]
        if kind == 0:
            ip.gradient[place] = value
        elif kind == 1:
            ip.values[place] = value
        elif kind == 2:
            ip.jacobian[place] = value
        else:
            ip.hessian[place] += value


def interior_minimum(ip, anchor, weight, lower, upper, out, work):
    """Fill out with the minimiser, NaN where there is none; out may be the anchor.

    ``ip`` comes with sizes, tapes and registers. Bounds may be infinite, weights may be 0.
    """
    n, m, q = ip.n, ip.m, ip.q
    lay_out_interior(ip, n, m, q, work)
    start_interior(ip, anchor, lower, upper, n)
    copy_some(ip.best, ip.x, n)
    scale, gap, worst, best, share = 0.0, 1.0, 0.0, inf, 1.0
    tries: cython.Py_ssize_t = 0
    for _ in range(ITERATIONS):
        for j in range(m + q):
            scaled = ip.trial[3 * n + m + j] * ip.row_unit[j]
            ip.multiplier[j] = scaled / scale if scale > 0.0 else 0.0
        fill(ip.hessian, 0.0, n * n)
        derive(ip, n, m, q)
        for c in range(n):
            ip.gradient[c] += weight[c] * (ip.x[c] - anchor[c])
            ip.hessian[c * n + c] += weight[c]
        if scale == 0.0:
            scale = choose_scales(ip, n, m, q)
        scale_derivatives(ip, scale, n, m + q)
        if tries == 0:
            start_slacks(ip, n, m, q)
        residual = residuals(ip, n, m, q)
        if tries > 0 and tries < HALVINGS and not residual <= 2.0 * worst + gap:
            share, tries = 0.5 * share, tries + 1
            take_step(ip, share, lower, upper, n, m, q)
            continue
        copy_some(ip.iterate, ip.trial, iterate_size(n, m, q))
        gap = mean_gap(ip, n, m, q, 0.0)
        off = gap if residual < ROUNDING else 1.0 + residual
        if off < best:
            copy_some(ip.best, ip.x, n)
        elif not best > ROUNDING:
            break
        best = min(best, off)
        if residual != residual or (gap < GAP and residual < RESIDUAL):
            break
        worst, tries = residual, 1
        factorise_newton(ip, n, m, q)
        share = predictor_corrector(ip, n, m, q, gap)
        take_step(ip, share, lower, upper, n, m, q)
    for c in range(n):
        out[c] = ip.best[c] if best < inf else nan


def start_interior(ip, anchor, lower, upper, n):
    """The first iterate: the anchor pulled inside its bounds."""
    for c in range(n):
        width = upper[c] - lower[c]
        has_lower: cython.bint = lower[c] > -inf
        has_upper: cython.bint = upper[c] < inf
        ip.unit[c] = width if has_lower and has_upper else max(fabs(anchor[c]), 1.0)
        ip.bounded[c] = 1.0 if has_lower and width > 0.0 else 0.0
        ip.bounded[n + c] = 1.0 if has_upper and width > 0.0 else 0.0
        margin = START_MARGIN * ip.unit[c]
        x = anchor[c]
        x = max(x, lower[c] + margin) if has_lower else x
        ip.x[c] = min(x, upper[c] - margin) if has_upper else x
        if width > 0.0:
            ip.trial[c] = ip.x[c] / ip.unit[c]
            ip.trial[n + c] = (ip.x[c] - lower[c]) / ip.unit[c] if has_lower else 1.0
            ip.trial[2 * n + c] = (upper[c] - ip.x[c]) / ip.unit[c] if has_upper else 1.0
        else:
            ip.x[c] = lower[c]
            ip.unit[c] = 0.0


def choose_scales(ip, n, m, q):
    """Fill the rows' units from their slopes, and return the factor of the objective."""
    steepest = 0.0
    for c in range(n):
        steepest = max(steepest, fabs(ip.gradient[c]) * ip.unit[c])
        steepest = max(steepest, fabs(ip.hessian[c * n + c]) * ip.unit[c] * ip.unit[c])
    for j in range(m + q):
        largest = 0.0
        for c in range(n):
            largest = max(largest, fabs(ip.jacobian[j * n + c]) * ip.unit[c])
        ip.row_unit[j] = 1.0 / largest if largest > 0.0 else 1.0
    return 1.0 / steepest if steepest > 0.0 else 1.0


def scale_derivatives(ip, scale, n, rows):
    """Take derivatives to units; entries of the Jacobian are filled anew every time."""
    for c in range(n):
        ip.gradient[c] *= scale * ip.unit[c]
        for d in range(n):
            ip.hessian[c * n + d] *= scale * ip.unit[c] * ip.unit[d]
    for j in range(rows):
        ip.values[j] *= ip.row_unit[j]


def start_slacks(ip, n, m, q):
    """Slacks that rows leave at the start, or a little; multipliers in balance with them."""
    for j in range(m):
        slack = max(-ip.values[j], MIN_SLACK)
        ip.trial[3 * n + j] = slack
        ip.trial[3 * n + m + j] = 0.1 / slack
    for c in range(2 * n):
        ip.trial[3 * n + 2 * m + q + c] = 0.1 * ip.bounded[c] / max(ip.trial[n + c], MIN_SLACK)


def residuals(ip, n, m, q):
    """Fill the residuals of gradient and rows; return the largest, NaN if any is."""
    prices, worst = 3 * n + m, 0.0
    head = prices + m + q
    for c in range(n):
        total = ip.gradient[c] - ip.trial[head + c] + ip.trial[head + n + c]
        for j in range(m + q):
            if ip.jacobian[j * n + c] != 0.0:
                slope = ip.jacobian[j * n + c] * ip.row_unit[j] * ip.unit[c]
                total += slope * ip.trial[prices + j]
        ip.residual[c] = total if ip.unit[c] > 0.0 else 0.0
    for j in range(m + q):
        ip.residual[n + j] = ip.values[j] + (ip.trial[3 * n + j] if j < m else 0.0)
    for i in range(n + m + q):
        size = fabs(ip.residual[i])
        worst = size if not size <= worst else worst
    return worst


def mean_gap(ip, n, m, q, share):
    """Mean complementarity of the iterate, ``share`` of its step ahead."""
    total, count = 0.0, 0.0
    for j in range(m):
        slack = ip.iterate[3 * n + j] + share * ip.step[3 * n + j]
        total += slack * (ip.iterate[3 * n + m + j] + share * ip.step[3 * n + m + j])
        count += 1.0
    head = 3 * n + 2 * m + q
    for c in range(2 * n):
        if ip.bounded[c] > 0.0:
            room = ip.iterate[n + c] + share * ip.step[n + c]
            total += room * (ip.iterate[head + c] + share * ip.step[head + c])
            count += 1.0
    return total / count if count > 0.0 else 0.0


def factorise_newton(ip, n, m, q):
    """``H + J'(multiplier/slack)J + bounds`` and the Schur complement, as Cholesky factors."""
    prices, head = 3 * n + m, 3 * n + 2 * m + q
    for c in range(n):
        for d in range(c + 1):
            ip.matrix[c * n + d] = ip.hessian[c * n + d]
        if ip.bounded[c] > 0.0:
            ip.matrix[c * n + c] += ip.iterate[head + c] / ip.iterate[n + c]
        if ip.bounded[n + c] > 0.0:
            ip.matrix[c * n + c] += ip.iterate[head + n + c] / ip.iterate[2 * n + c]
    for j in range(m):
        weight = ip.iterate[prices + j] / ip.iterate[3 * n + j] * ip.row_unit[j] * ip.row_unit[j]
        for c in range(n):
            if ip.jacobian[j * n + c] != 0.0:
                scaled = weight * ip.jacobian[j * n + c] * ip.unit[c]
                for d in range(c + 1):
                    ip.matrix[c * n + d] += scaled * ip.jacobian[j * n + d] * ip.unit[d]
    for c in range(n):
        if ip.unit[c] == 0.0:
            for d in range(n):
                ip.matrix[max(c, d) * n + min(c, d)] = 1.0 if c == d else 0.0
    pivoted(n, ip.matrix, ip.step)
    for k in range(q):
        for c in range(n):
            ip.solved_rows[k * n + c] = (
                ip.jacobian[(m + k) * n + c] * ip.row_unit[m + k] * ip.unit[c]
            )
        forward(n, ip.matrix, skip(ip.solved_rows, k * n))
    for k in range(q):
        for i in range(k + 1):
            total = 0.0
            for c in range(n):
                total += ip.solved_rows[k * n + c] * ip.solved_rows[i * n + c]
            ip.schur[k * q + i] = total
    pivoted(q, ip.schur, ip.step)


def pivoted(n, matrix, least):
    """Cholesky's factor in place; what has no pivot does not move."""
    largest = 0.0
    for c in range(n):
        largest = max(largest, matrix[c * n + c])
    fill(least, PIVOT * largest, n)
    cholesky(n, matrix, least, True)


def predictor_corrector(ip, n, m, q, gap):
    """Fill the step: Newton's, corrected by what its first try would leave; return its length."""
    head = 3 * n + 2 * m + q
    for j in range(m):
        ip.complementarity[j] = ip.iterate[3 * n + j] * ip.iterate[3 * n + m + j]
    for c in range(2 * n):
        ip.complementarity[m + c] = ip.iterate[n + c] * ip.iterate[head + c] * ip.bounded[c]
    newton_step(ip, n, m, q)
    share = longest_share(ip, n, m, q)
    ahead = mean_gap(ip, n, m, q, share) / gap if gap > 0.0 else 0.0
    centre = ahead * ahead * ahead * gap
    for j in range(m):
        ip.complementarity[j] += ip.step[3 * n + j] * ip.step[3 * n + m + j] - centre
    for c in range(2 * n):
        if ip.bounded[c] > 0.0:
            ip.complementarity[m + c] += ip.step[n + c] * ip.step[head + c] - centre
    newton_step(ip, n, m, q)
    return min(1.0, TO_BOUNDARY * longest_share(ip, n, m, q))


def newton_step(ip, n, m, q):
    """Newton's step for the residuals and the complementarity to be removed."""
    prices = 3 * n + m
    head = prices + m + q
    move, free = ip.step, skip(ip.step, prices + m)
    for c in range(n):
        total = -ip.residual[c]
        if ip.bounded[c] > 0.0:
            total -= ip.complementarity[m + c] / ip.iterate[n + c]
        if ip.bounded[n + c] > 0.0:
            total += ip.complementarity[m + n + c] / ip.iterate[2 * n + c]
        for j in range(m):
            if ip.jacobian[j * n + c] != 0.0:
                left = ip.iterate[prices + j] * ip.residual[n + j] - ip.complementarity[j]
                slope = ip.jacobian[j * n + c] * ip.row_unit[j] * ip.unit[c]
                total -= slope * left / ip.iterate[3 * n + j]
        move[c] = total if ip.unit[c] > 0.0 else 0.0
    forward(n, ip.matrix, move)
    for k in range(q):
        total = ip.residual[n + m + k]
        for c in range(n):
            total += ip.solved_rows[k * n + c] * move[c]
        free[k] = total
    forward(q, ip.schur, free)
    backward(q, ip.schur, free)
    for c in range(n):
        for k in range(q):
            move[c] -= ip.solved_rows[k * n + c] * free[k]
    backward(n, ip.matrix, move)
    for j in range(m):
        total = ip.residual[n + j]
        for c in range(n):
            if ip.jacobian[j * n + c] != 0.0:
                total += ip.jacobian[j * n + c] * ip.row_unit[j] * ip.unit[c] * move[c]
        slack, price = ip.iterate[3 * n + j], ip.iterate[prices + j]
        ip.step[3 * n + j] = -total
        ip.step[prices + j] = (price * total - ip.complementarity[j]) / slack
    for c in range(n):
        ip.step[n + c] = move[c] * ip.bounded[c]
        ip.step[2 * n + c] = -move[c] * ip.bounded[n + c]
        for side in range(2):
            end = c + side * n
            lost = ip.complementarity[m + end] + ip.iterate[head + end] * ip.step[n + end]
            ip.step[head + end] = -lost / ip.iterate[n + end] if ip.bounded[end] > 0.0 else 0.0


def longest_share(ip, n, m, q):
    """The longest share of the step, at most 1, that keeps all slacks and multipliers positive."""
    share = 1.0
    for i in range(n, 5 * n + 2 * m + q):
        if i >= 3 * n + 2 * m and i < 3 * n + 2 * m + q:
            continue
        if ip.step[i] < 0.0 and -ip.iterate[i] > share * ip.step[i]:
            share = -ip.iterate[i] / ip.step[i]
    return share


def take_step(ip, share, lower, upper, n, m, q):
    """Set the trial a share of the step ahead, and its x from the nearer bound."""
    for i in range(5 * n + 2 * m + q):
        ip.trial[i] = ip.iterate[i] + share * ip.step[i]
    for c in range(n):
        if ip.unit[c] > 0.0:
            low, high = ip.trial[n + c], ip.trial[2 * n + c]
            if ip.bounded[c] > 0.0 and (low <= high or ip.bounded[n + c] == 0.0):
                ip.x[c] = lower[c] + low * ip.unit[c]
            elif ip.bounded[n + c] > 0.0:
                ip.x[c] = upper[c] - high * ip.unit[c]
            else:
                ip.x[c] = ip.trial[c] * ip.unit[c]
