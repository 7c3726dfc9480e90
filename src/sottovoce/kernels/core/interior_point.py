"""A convex function over a box, convex rows and affine rows: a primal-dual interior-point method.

    minimise  phi(x) + sum_c weight_c (x_c - anchor_c)^2 / 2   over  lower <= x <= upper,
              c_j(x) <= 0 for m inequalities,  e_k(x) = 0 for q affine equalities

Mehrotra's predictor and corrector on the optimality conditions in units of the box, with halved
steps where the residual does not fall. An iterate is one vector: the n components, their distances
from both bounds, m slacks, m + q multipliers of rows, and those of both bounds. Derivatives come
from two tapes, of the rows and of the objective, whose outputs are scattered to where they belong.
"""

from . import plain as cython
from .linear import backward, cholesky, forward
from .plain import *
from .tape import run_tape

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


def lay_out_interior(at, n, m, q, work):
    """Give every part of a solve its place; all are 0 but the rows' units."""
    size, rows = iterate_size(n, m, q), m + q
    fill(work, 0.0, interior_work(n, m, q))
    at.iterate = work
    at.step = skip(at.iterate, size)
    at.trial = skip(at.step, size)
    at.x = skip(at.trial, size)
    at.unit = skip(at.x, n)
    at.bounded = skip(at.unit, n)
    at.row_unit = skip(at.bounded, 2 * n)
    at.multiplier = skip(at.row_unit, rows)
    at.gradient = skip(at.multiplier, rows)
    at.values = skip(at.gradient, n)
    at.jacobian = skip(at.values, rows)
    at.hessian = skip(at.jacobian, rows * n)
    at.matrix = skip(at.hessian, n * n)
    at.solved_rows = skip(at.matrix, n * n)
    at.schur = skip(at.solved_rows, q * n)
    at.residual = skip(at.schur, q * q)
    at.complementarity = skip(at.residual, n + rows)
    at.best = skip(at.complementarity, m + 2 * n)
    fill(at.row_unit, 1.0, rows)


def derive(at, n, m, q):
    """Derivatives at x; without the objective where the nearest point is sought."""
    r, rows, objective = at.r, at.rows, at.objective
    copy_some(r, at.x, n)
    copy_some(skip(r, at.row_multiplier), at.multiplier, m + q)
    run_tape(rows, r, 1)
    scatter(rows, r, at)
    if at.with_objective:
        run_tape(objective, r, 1)
        scatter(objective, r, at)
        if not cython.compiled:
            if objective.callback is not None:  # an objective that is Python code
                objective.callback(at)
    else:
        fill(at.gradient, 0.0, n)


def scatter(tape, r, at):
    """Put outputs (kind, place, register) where they belong; Hessians are added to."""
    outputs = tape.outputs
    for i in range(tape.count // 3):
        kind, place, value = outputs[3 * i], outputs[3 * i + 1], r[outputs[3 * i + 2]]
        if kind == 0:
            at.gradient[place] = value
        elif kind == 1:
            at.values[place] = value
        elif kind == 2:
            at.jacobian[place] = value
        else:
            at.hessian[place] += value


def interior_minimum(at, anchor, weight, lower, upper, out, work):
    """Fill out with the minimiser; NaN where there is none.

    Args:
        at: sizes, tapes and registers; all else is laid out here.
        anchor: what the proximal term pulls to; any point.
        weight: of the proximal term, not negative.
        lower: the box's lower ends; infinite where there is none.
        upper: its upper ends.
        out: the result; may be the anchor.
        work: scratch.
    """
    n, m, q = at.n, at.m, at.q
    lay_out_interior(at, n, m, q, work)
    start_interior(at, anchor, lower, upper, n)
    copy_some(at.best, at.x, n)
    scale, gap, worst, best, share = 0.0, 1.0, 0.0, inf, 1.0
    tries: cython.Py_ssize_t = 0
    for _ in range(ITERATIONS):
        for j in range(m + q):
            own = at.trial[3 * n + m + j] * at.row_unit[j]
            at.multiplier[j] = own / scale if scale > 0.0 else 0.0
        fill(at.hessian, 0.0, n * n)
        derive(at, n, m, q)
        for c in range(n):
            at.gradient[c] += weight[c] * (at.x[c] - anchor[c])
            at.hessian[c * n + c] += weight[c]
        if scale == 0.0:
            scale = choose_scales(at, n, m, q)
        scale_derivatives(at, scale, n, m + q)
        if tries == 0:
            start_slacks(at, n, m, q)
        residual = residuals(at, n, m, q)
        if tries > 0 and tries < HALVINGS and not residual <= 2.0 * worst + gap:
            share, tries = 0.5 * share, tries + 1
            take_step(at, share, lower, upper, n, m, q)
            continue
        copy_some(at.iterate, at.trial, iterate_size(n, m, q))
        gap = mean_gap(at, n, m, q, 0.0)
        off = gap if residual < ROUNDING else 1.0 + residual
        if off < best:
            copy_some(at.best, at.x, n)
        elif not best > ROUNDING:
            break
        best = min(best, off)
        if residual != residual or (gap < GAP and residual < RESIDUAL):
            break
        worst, tries = residual, 1
        factorise_newton(at, n, m, q)
        share = predictor_corrector(at, n, m, q, gap)
        take_step(at, share, lower, upper, n, m, q)
    for c in range(n):
        out[c] = at.best[c] if best < inf else nan


def start_interior(at, anchor, lower, upper, n):
    """The first iterate: the anchor pulled inside its bounds."""
    for c in range(n):
        width = upper[c] - lower[c]
        has_lower: cython.bint = lower[c] > -inf
        has_upper: cython.bint = upper[c] < inf
        at.unit[c] = width if has_lower and has_upper else max(fabs(anchor[c]), 1.0)
        at.bounded[c] = 1.0 if has_lower and width > 0.0 else 0.0
        at.bounded[n + c] = 1.0 if has_upper and width > 0.0 else 0.0
        margin = START_MARGIN * at.unit[c]
        x = anchor[c]
        x = max(x, lower[c] + margin) if has_lower else x
        at.x[c] = min(x, upper[c] - margin) if has_upper else x
        if width > 0.0:
            at.trial[c] = at.x[c] / at.unit[c]
            at.trial[n + c] = (at.x[c] - lower[c]) / at.unit[c] if has_lower else 1.0
            at.trial[2 * n + c] = (upper[c] - at.x[c]) / at.unit[c] if has_upper else 1.0
        else:
            at.x[c] = lower[c]
            at.unit[c] = 0.0


def choose_scales(at, n, m, q):
    """Fill the rows' units from their slopes, and return the factor of the objective."""
    steepest = 0.0
    for c in range(n):
        steepest = max(steepest, fabs(at.gradient[c]) * at.unit[c])
        steepest = max(steepest, fabs(at.hessian[c * n + c]) * at.unit[c] * at.unit[c])
    for j in range(m + q):
        largest = 0.0
        for c in range(n):
            largest = max(largest, fabs(at.jacobian[j * n + c]) * at.unit[c])
        at.row_unit[j] = 1.0 / largest if largest > 0.0 else 1.0
    return 1.0 / steepest if steepest > 0.0 else 1.0


def scale_derivatives(at, scale, n, rows):
    """Take derivatives to units; entries of the Jacobian are filled anew every time."""
    for c in range(n):
        at.gradient[c] *= scale * at.unit[c]
        for d in range(n):
            at.hessian[c * n + d] *= scale * at.unit[c] * at.unit[d]
    for j in range(rows):
        at.values[j] *= at.row_unit[j]


def start_slacks(at, n, m, q):
    """Slacks that rows leave at the start, or a little; multipliers in balance with them."""
    for j in range(m):
        slack = max(-at.values[j], MIN_SLACK)
        at.trial[3 * n + j] = slack
        at.trial[3 * n + m + j] = 0.1 / slack
    for c in range(2 * n):
        at.trial[3 * n + 2 * m + q + c] = 0.1 * at.bounded[c] / max(at.trial[n + c], MIN_SLACK)


def residuals(at, n, m, q):
    """Fill the residuals of gradient and rows; return the largest, NaN if any is."""
    prices, worst = 3 * n + m, 0.0
    head = prices + m + q
    for c in range(n):
        total = at.gradient[c] - at.trial[head + c] + at.trial[head + n + c]
        for j in range(m + q):
            if at.jacobian[j * n + c] != 0.0:
                slope = at.jacobian[j * n + c] * at.row_unit[j] * at.unit[c]
                total += slope * at.trial[prices + j]
        at.residual[c] = total if at.unit[c] > 0.0 else 0.0
    for j in range(m + q):
        at.residual[n + j] = at.values[j] + (at.trial[3 * n + j] if j < m else 0.0)
    for i in range(n + m + q):
        size = fabs(at.residual[i])
        worst = size if not size <= worst else worst
    return worst


def mean_gap(at, n, m, q, share):
    """Mean complementarity of the iterate, ``share`` of its step ahead."""
    total, count = 0.0, 0.0
    for j in range(m):
        slack = at.iterate[3 * n + j] + share * at.step[3 * n + j]
        total += slack * (at.iterate[3 * n + m + j] + share * at.step[3 * n + m + j])
        count += 1.0
    head = 3 * n + 2 * m + q
    for c in range(2 * n):
        if at.bounded[c] > 0.0:
            room = at.iterate[n + c] + share * at.step[n + c]
            total += room * (at.iterate[head + c] + share * at.step[head + c])
            count += 1.0
    return total / count if count > 0.0 else 0.0


def factorise_newton(at, n, m, q):
    """``H + J'(multiplier/slack)J + bounds`` and the Schur complement, as Cholesky factors."""
    prices, head = 3 * n + m, 3 * n + 2 * m + q
    for c in range(n):
        for d in range(c + 1):
            at.matrix[c * n + d] = at.hessian[c * n + d]
        if at.bounded[c] > 0.0:
            at.matrix[c * n + c] += at.iterate[head + c] / at.iterate[n + c]
        if at.bounded[n + c] > 0.0:
            at.matrix[c * n + c] += at.iterate[head + n + c] / at.iterate[2 * n + c]
    for j in range(m):
        weight = at.iterate[prices + j] / at.iterate[3 * n + j] * at.row_unit[j] * at.row_unit[j]
        for c in range(n):
            if at.jacobian[j * n + c] != 0.0:
                own = weight * at.jacobian[j * n + c] * at.unit[c]
                for d in range(c + 1):
                    at.matrix[c * n + d] += own * at.jacobian[j * n + d] * at.unit[d]
    for c in range(n):
        if at.unit[c] == 0.0:
            for d in range(n):
                at.matrix[max(c, d) * n + min(c, d)] = 1.0 if c == d else 0.0
    pivoted(n, at.matrix, at.step)
    for k in range(q):
        for c in range(n):
            at.solved_rows[k * n + c] = (
                at.jacobian[(m + k) * n + c] * at.row_unit[m + k] * at.unit[c]
            )
        forward(n, at.matrix, skip(at.solved_rows, k * n))
    for k in range(q):
        for i in range(k + 1):
            total = 0.0
            for c in range(n):
                total += at.solved_rows[k * n + c] * at.solved_rows[i * n + c]
            at.schur[k * q + i] = total
    pivoted(q, at.schur, at.step)


def pivoted(n, matrix, least):
    """Cholesky's factor in place; what has no pivot does not move."""
    largest = 0.0
    for c in range(n):
        largest = max(largest, matrix[c * n + c])
    fill(least, PIVOT * largest, n)
    cholesky(n, matrix, least, True)


def predictor_corrector(at, n, m, q, gap):
    """Fill the step: Newton's, corrected by what its first try would leave; return its length."""
    head = 3 * n + 2 * m + q
    for j in range(m):
        at.complementarity[j] = at.iterate[3 * n + j] * at.iterate[3 * n + m + j]
    for c in range(2 * n):
        at.complementarity[m + c] = at.iterate[n + c] * at.iterate[head + c] * at.bounded[c]
    newton_step(at, n, m, q)
    share = longest_share(at, n, m, q)
    ahead = mean_gap(at, n, m, q, share) / gap if gap > 0.0 else 0.0
    centre = ahead * ahead * ahead * gap
    for j in range(m):
        at.complementarity[j] += at.step[3 * n + j] * at.step[3 * n + m + j] - centre
    for c in range(2 * n):
        if at.bounded[c] > 0.0:
            at.complementarity[m + c] += at.step[n + c] * at.step[head + c] - centre
    newton_step(at, n, m, q)
    return min(1.0, TO_BOUNDARY * longest_share(at, n, m, q))


def newton_step(at, n, m, q):
    """Newton's step for the residuals and the complementarity to be removed."""
    prices = 3 * n + m
    head = prices + m + q
    move, free = at.step, skip(at.step, prices + m)
    for c in range(n):
        total = -at.residual[c]
        if at.bounded[c] > 0.0:
            total -= at.complementarity[m + c] / at.iterate[n + c]
        if at.bounded[n + c] > 0.0:
            total += at.complementarity[m + n + c] / at.iterate[2 * n + c]
        for j in range(m):
            if at.jacobian[j * n + c] != 0.0:
                left = at.iterate[prices + j] * at.residual[n + j] - at.complementarity[j]
                slope = at.jacobian[j * n + c] * at.row_unit[j] * at.unit[c]
                total -= slope * left / at.iterate[3 * n + j]
        move[c] = total if at.unit[c] > 0.0 else 0.0
    forward(n, at.matrix, move)
    for k in range(q):
        total = at.residual[n + m + k]
        for c in range(n):
            total += at.solved_rows[k * n + c] * move[c]
        free[k] = total
    forward(q, at.schur, free)
    backward(q, at.schur, free)
    for c in range(n):
        for k in range(q):
            move[c] -= at.solved_rows[k * n + c] * free[k]
    backward(n, at.matrix, move)
    for j in range(m):
        total = at.residual[n + j]
        for c in range(n):
            if at.jacobian[j * n + c] != 0.0:
                total += at.jacobian[j * n + c] * at.row_unit[j] * at.unit[c] * move[c]
        slack, price = at.iterate[3 * n + j], at.iterate[prices + j]
        at.step[3 * n + j] = -total
        at.step[prices + j] = (price * total - at.complementarity[j]) / slack
    for c in range(n):
        at.step[n + c] = move[c] * at.bounded[c]
        at.step[2 * n + c] = -move[c] * at.bounded[n + c]
        for side in range(2):
            end = c + side * n
            lost = at.complementarity[m + end] + at.iterate[head + end] * at.step[n + end]
            at.step[head + end] = -lost / at.iterate[n + end] if at.bounded[end] > 0.0 else 0.0


def longest_share(at, n, m, q):
    """The longest share of the step, at most 1, that keeps all slacks and multipliers positive."""
    share = 1.0
    for i in range(n, 5 * n + 2 * m + q):
        if i >= 3 * n + 2 * m and i < 3 * n + 2 * m + q:
            continue
        if at.step[i] < 0.0 and -at.iterate[i] > share * at.step[i]:
            share = -at.iterate[i] / at.step[i]
    return share


def take_step(at, share, lower, upper, n, m, q):
    """Set the trial a share of the step ahead, and its x from the nearer bound."""
    for i in range(5 * n + 2 * m + q):
        at.trial[i] = at.iterate[i] + share * at.step[i]
    for c in range(n):
        if at.unit[c] > 0.0:
            low, high = at.trial[n + c], at.trial[2 * n + c]
            if at.bounded[c] > 0.0 and (low <= high or at.bounded[n + c] == 0.0):
                at.x[c] = lower[c] + low * at.unit[c]
            elif at.bounded[n + c] > 0.0:
                at.x[c] = upper[c] - high * at.unit[c]
            else:
                at.x[c] = at.trial[c] * at.unit[c]
