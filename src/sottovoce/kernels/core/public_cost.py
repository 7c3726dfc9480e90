"""The proximal step of a public cost U of the sums, in a diagonal metric.

    u = argmin over u in C of  U(u) + sum_o d_o (u_o - v_o)^2 / 2

U adds up over disjoint groups of sums. Each is smooth and convex in its sums u and in auxiliary
variables t, behind them in w = (u, t), that stand for its non-smooth terms (``problem.epigraph``):

    U(u) = min over t of  psi(w)    with  c(w) <= 0,   low <= w <= high

A primal-dual interior-point method with Mehrotra's corrector: ``M = D + psi'' + mu'c'' +
A' diag(mu/s) A`` with A the slopes of all rows, mu their multipliers and s their slacks. The
derivative of the step is ``du/dv = M^-1 D`` with a large number and 0 in the place of mu/s, for
rows that are active and not.
"""

from . import plain as cython
from .interpreter import interpret
from .linear import cholesky
from .plain import *
from .plain import Struct as CostStep
from .projection import project, solve_factored

COST_STEPS = 80
COST_HALVINGS = 30
COST_EXACT = 1e-13  # of the energy of a step through the range: a gap this small is rounding
COST_ROUNDING = 1e-30  # of what the sums' own sizes would be worth, likewise
COST_PIVOT = 1e-15  # relative: rounding must not make a positive definite matrix anything else
ENOUGH = 1e-4  # the part of the promised decrease that a step must bring
TO_BOUND = 0.995  # of the way to the nearest bound that a step goes
CENTRED = 0.1  # of the gap that is aimed at while the equations are further off than that
LEAST = 1e-300
UNMOVED = 1e-15  # relative: a sum moved this far is where it was
STIFF = 1e8  # how much harder than d an active row is in the derivative


def cost_work(size, rows):
    """How many floats of scratch a group takes with so many variables w and rows c."""
    return 9 * size + size * size + 8 * (rows + 2 * size)


def prox(v, weight, public_set, u, work):
    """Fill u with the point of C that minimises U plus the distance to v; ``weight`` is d."""
    step = cython.declare(CostStep)
    project(v, weight, public_set, u, work)
    for r in range(public_set.regions):
        if public_set.kinds[r] == COST:
            lay_out_cost(cython.address(step), public_set, r)
            start = public_set.starts[r]
            for i in range(step.sums):
                step.metric[i] = weight[public_set.members[start + i]]
                step.aim[i] = v[public_set.members[start + i]]
            minimise_cost(cython.address(step))
            for i in range(step.sums):
                o = public_set.members[start + i]
                w, aim = step.w[i], step.aim[i]
                # Exactly v where it is moved by rounding: the price is d times the way.
                if fabs(w - aim) <= UNMOVED * (fabs(aim) + step.most[i] - step.least[i]):
                    w = aim
                # Where prices may not be negative, the sum is no larger than it wants to be.
                u[o] = min(w, aim) if step.rising[i] > 0.0 else w


def lay_out_cost(step, public_set, r):
    """Point to what describes group r, and to the parts of its scratch."""
    start, first = public_set.starts[r], public_set.variable_starts[r]
    step.sums = public_set.starts[r + 1] - start
    step.size = public_set.variable_starts[r + 1] - first
    step.rows = public_set.rows[r]
    step.all = step.rows + 2 * step.size
    step.rising = skip(public_set.rising, start)
    step.least = skip(public_set.variable_least, first)
    step.most = skip(public_set.variable_most, first)
    step.low = skip(public_set.variable_low, first)
    step.high = skip(public_set.variable_high, first)
    step.registers = skip(public_set.phi_registers, public_set.phi_register_starts[r])
    step.outputs = skip_int(public_set.phi_outputs, public_set.phi_output_starts[r])
    step.code = skip_int(public_set.phi_code, public_set.phi_code_starts[r])
    step.length = public_set.phi_code_starts[r + 1] - public_set.phi_code_starts[r]
    at, n, each = skip(public_set.scratch, public_set.scratch_starts[r]), step.size, step.all
    step.w, step.metric, step.aim = at, skip(at, n), skip(at, 2 * n)
    step.move, step.before, step.off = skip(at, 3 * n), skip(at, 4 * n), skip(at, 5 * n)
    step.solved, step.matrix = skip(at, 6 * n), skip(at, 7 * n)
    at = skip(at, 9 * n + n * n)  # behind the matrix its least pivots
    step.slack, step.mu, step.c = at, skip(at, each), skip(at, 2 * each)
    step.slack_move, step.mu_move = skip(at, 3 * each), skip(at, 4 * each)
    step.slack_before, step.mu_before = skip(at, 5 * each), skip(at, 6 * each)
    step.force = skip(at, 7 * each)


def minimise_cost(step):
    """Fill w with the minimiser, and the matrix with the factor of the M of the derivative."""
    begin_cost(step)
    for _ in range(COST_STEPS):
        for k in range(step.all):
            step.force[k] = step.mu[k] / step.slack[k]
        factor_cost(step)
        copy_some(step.before, step.w, step.size)
        copy_some(step.slack_before, step.slack, step.all)
        copy_some(step.mu_before, step.mu, step.all)
        gap, size, energy = LEAST, LEAST, 0.0
        for k in range(step.all):
            if step.slack[k] < inf:
                gap += step.slack[k] * step.mu[k]
                size += 1.0
        for j in range(step.sums):
            width = step.most[j] - step.least[j]
            away = min(fabs(step.w[j] - step.aim[j]), width)
            size_of = fabs(step.w[j]) + fabs(step.aim[j]) + width
            energy += COST_EXACT * step.metric[j] * away * away
            energy += COST_ROUNDING * step.metric[j] * size_of * size_of
        direction(step, 0.0, 0.0)
        decrement = 0.0
        for j in range(step.size):
            decrement += fabs(step.off[j] * step.move[j])
        if gap <= energy + LEAST and decrement <= energy + LEAST:
            break
        mean, share = gap / size, to_bound(step, 1.0)
        reached = LEAST
        for k in range(step.all):
            if step.slack[k] < inf:
                slack = step.slack[k] + share * step.slack_move[k]
                reached += slack * (step.mu[k] + share * step.mu_move[k])
        centre = (reached / gap) * (reached / gap) * (reached / gap)
        if decrement > gap:
            # Products that vanish long before the equations hold would pin w to a bound.
            centre = max(centre, CENTRED)
        direction(step, centre * mean, 1.0)
        if not advance(step, centre * mean, mean, 1):
            direction(step, centre * mean, 0.0)
            if not advance(step, centre * mean, mean, COST_HALVINGS):
                direction(step, 0.0, 0.0)
                break
    settle(step)


def settle(step):
    """Take the last step, and factor M with rows that are active or not."""
    stiff = 0.0
    for j in range(step.sums):
        stiff = max(stiff, STIFF * step.metric[j])
        for k in range(step.all):
            slope = slope_of(step, k, j)
            if slope != 0.0 and step.slack[k] < inf:
                stiff = max(stiff, STIFF * step.metric[j] / (slope * slope))
    for k in range(step.all):
        # Tapia's indicators: slacks of active rows vanish, multipliers of the others do.
        step.force[k] = 0.0
        if step.slack[k] < inf:
            falls: cython.bint = step.slack_move[k] * step.mu[k] < step.mu_move[k] * step.slack[k]
            step.force[k] = stiff if falls else 0.0
    take(step, to_bound(step, TO_BOUND))
    evaluate_cost(step)
    factor_cost(step)


def begin_cost(step):
    """Begin inside all bounds with the auxiliary variables as large as they can be."""
    for j in range(step.size):
        low, high = max(step.least[j], step.low[j]), min(step.most[j], step.high[j])
        inset = max(0.1 * (high - low), 0.0)
        step.w[j] = high
        if j < step.sums:
            step.w[j] = min(max(step.aim[j], low + inset), high - inset)
    for k in range(step.all):
        step.mu[k] = step.slack_move[k] = step.mu_move[k] = 0.0
    evaluate_cost(step)
    lagrangian_slope(step, step.mu, step.off)
    energy = LEAST
    for j in range(step.size):
        width = step.most[j] - step.least[j]
        way = fabs(step.off[j]) * width
        if j < step.sums:
            way = min(way if width > 0.0 else inf, step.off[j] * step.off[j] / step.metric[j])
        energy += way
    for k in range(step.all):
        scale = LEAST
        for j in range(step.size):
            scale += fabs(slope_of(step, k, j)) * (step.most[j] - step.least[j])
        step.slack[k] = max(-step.c[k], 1e-3 * scale) if step.c[k] > -inf else inf
        step.mu[k] = energy / (step.all * step.slack[k])
    evaluate_cost(step)


def slope_of(step, k, j):
    """Return ``A_kj``: those of the rows c, then of lower bounds, then of upper ones."""
    if k < step.rows:
        return step.registers[step.outputs[step.size + step.rows + k * step.size + j]]
    if k < step.rows + step.size:
        return -1.0 if k == step.rows + j else 0.0
    return 1.0 if k == step.rows + step.size + j else 0.0


def evaluate_cost(step):
    """Run the tape at w and the multipliers; fill c, bounds included."""
    n, m = step.size, step.rows
    copy_some(step.registers, step.w, n)
    copy_some(skip(step.registers, n), step.mu, m)
    interpret(step.code, step.length, step.registers, 1)
    for k in range(m):
        step.c[k] = step.registers[step.outputs[n + k]]
    for j in range(n):
        fixed: cython.bint = step.low[j] == step.high[j]
        step.c[m + j] = -inf if fixed else step.low[j] - step.w[j]
        step.c[m + n + j] = -inf if fixed else step.w[j] - step.high[j]


def lagrangian_slope(step, mu, out):
    """Fill ``psi' + D (u - v) + A' mu``; 0 where bounds leave no room."""
    n, m = step.size, step.rows
    for j in range(n):
        out[j] = 0.0
        if step.low[j] < step.high[j]:
            out[j] = step.registers[step.outputs[j]] - mu[m + j] + mu[m + n + j]
            if j < step.sums:
                out[j] += step.metric[j] * (step.w[j] - step.aim[j])
            for k in range(m):
                out[j] += mu[k] * step.registers[step.outputs[n + m + k * n + j]]


def factor_cost(step):
    """Replace the matrix by the Cholesky factor of M."""
    n, m, matrix = step.size, step.rows, step.matrix
    curvature = skip_int(step.outputs, n + m + m * n)
    for i in range(n):
        for j in range(i + 1):
            matrix[i * n + j] = step.registers[curvature[i * n + j]]
        matrix[i * n + i] += step.metric[i] if i < step.sums else 0.0
        matrix[i * n + i] += step.force[m + i] + step.force[m + n + i]
    for k in range(m):
        slopes = skip_int(step.outputs, n + m + k * n)
        for i in range(n):
            slope = step.force[k] * step.registers[slopes[i]]
            for j in range(i + 1 if slope != 0.0 else 0):
                matrix[i * n + j] += slope * step.registers[slopes[j]]
    least = skip(matrix, n * n)
    for i in range(n):
        least[i] = max(COST_PIVOT * matrix[i * n + i], LEAST)
        if step.low[i] == step.high[i]:
            for j in range(n):
                matrix[max(i, j) * n + min(i, j)] = 1.0 if i == j else 0.0
    cholesky(n, matrix, least, False)


def direction(step, target, corrected):
    """Fill the Newton step to ``s mu = target``; ``corrected`` by the products of the last one."""
    n, m = step.size, step.rows
    for k in range(step.all):
        product = corrected * step.slack_move[k] * step.mu_move[k]
        step.slack_move[k] = step.mu_move[k] = 0.0
        if step.slack[k] < inf:
            primal_residual = step.c[k] + step.slack[k]
            step.slack_move[k] = -primal_residual
            step.mu_move[k] = (target - product + step.mu[k] * primal_residual) / step.slack[k]
    lagrangian_slope(step, step.mu, step.off)
    lagrangian_slope(step, step.mu_move, step.move)
    for j in range(n):
        step.move[j] = -step.move[j]
    solve_factored(n, step.matrix, step.move)
    for k in range(step.all):
        along = 0.0
        if k >= m:
            along = -step.move[k - m] if k < m + n else step.move[k - m - n]
        for j in range(n if k < m else 0):
            along += step.registers[step.outputs[n + m + k * n + j]] * step.move[j]
        if step.slack[k] < inf:
            step.slack_move[k] -= along
            step.mu_move[k] += step.force[k] * along - step.mu[k]


def to_bound(step, part):
    """Return the longest step, at most 1, that goes this part of the way to the nearest bound."""
    share = 1.0
    for k in range(step.all):
        if step.slack_move[k] < 0.0:
            share = min(share, -part * step.slack[k] / step.slack_move[k])
        if step.mu_move[k] < 0.0:
            share = min(share, -part * step.mu[k] / step.mu_move[k])
    return share


def advance(step, target, mean, halvings):
    """Go along the step as far as the equations get better; return whether they do anywhere."""
    share, before = to_bound(step, TO_BOUND), distance(step, target, mean)
    for _ in range(halvings):
        take(step, share)
        evaluate_cost(step)
        if distance(step, target, mean) <= (1.0 - ENOUGH * share) * before:
            return True
        share *= 0.5
    take(step, 0.0)
    evaluate_cost(step)
    return False


def take(step, share):
    """Go this part of the step."""
    for j in range(step.size):
        step.w[j] = step.before[j] + share * step.move[j]
    for k in range(step.all):
        step.slack[k] = step.slack_before[k] + share * step.slack_move[k]
        step.mu[k] = step.mu_before[k] + share * step.mu_move[k]


def distance(step, target, mean):
    """Return how far off the equations are, squared, in units of the mean product of the rows."""
    lagrangian_slope(step, step.mu, step.off)
    copy_some(step.solved, step.off, step.size)
    solve_factored(step.size, step.matrix, step.solved)
    total = 0.0
    for j in range(step.size):
        total += step.off[j] * step.solved[j]
    for k in range(step.all):
        if step.slack[k] < inf:
            product = step.slack[k] * step.mu[k] - target
            behind = step.mu_before[k] * (step.c[k] + step.slack[k])
            total += (product * product + behind * behind) / mean
    return total


def slope_column(step, j):
    """Fill ``solved`` with ``dw / dv_j`` of the last step."""
    fill(step.solved, 0.0, step.size)
    step.solved[j] = step.metric[j] if step.low[j] < step.high[j] else 0.0
    solve_factored(step.size, step.matrix, step.solved)
