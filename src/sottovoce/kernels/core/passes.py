"""Passes over the agents of a fleet, chunk by chunk.

contribute      s = sum_i h_i(x_i)
minimise        z_i := z_i + (x_i - z_i) / 2,  W_i := max(w, r W_i),
                x_i := argmin over X_i of f_i + lambda'h_i + sum_c rho_c (x_c - z_ic)^2 / 2, with
                w = max_c |d(lambda'h_i)/dx_c| width_c and rho_c = theta W_i / width_c^2; then
                contribute
measure         objective, residual and errors of the answer, and its sums
project_start   x_i := the nearest point of X_i
gradient_step   x_i := P[x_i - gamma (d(f_i + mu'h_i)/dx + alpha x_i)], Algorithm 1's, and the
                sums at the states before it
"""

from . import plain as cython
from .box_search import minimise_box, minimise_lanes, minimise_scalar
from .dual_search import free_minimum, keep_largest, lay_out_separable, search
from .fleet_view import *
from .interior_point import interior_minimum
from .plain import *
from .plain import LaneStruct as LaneSearch
from .plain import LaneStruct as SeparableProblem
from .plain import Struct as Interior
from .tape import run_tape

TRAILING = 0.5  # of the way from z to x, each round; 0.3 and 0.8 do worse on flat agents
NEGLIGIBLE_STATE = 1e-290  # adding it changes no number above 1e-273
UNPRICED = 0.5  # r where no price concerns an agent: its proximal term goes at once
MEASURES = 4  # objective, residual, squared errors of the answer and of x


def chunk_start(fleet, chunk, chunks):
    """The first block of a chunk."""
    return chunk * fleet.blocks // chunks


def contribute(fleet, chunk, chunks, grid, gridded, sums):
    """Add a chunk's contributions at the states as they are."""
    clear(fleet)
    for b in range(chunk_start(fleet, chunk, chunks), chunk_start(fleet, chunk + 1, chunks)):
        load(fleet, b, fleet.x)
        run_tape(cython.address(fleet.contributions), fleet.r, fleet.width)
        add_contributions(fleet, b, cython.address(fleet.contributions), grid, gridded, sums)
    gather(fleet, sums)


def minimise(fleet, chunk, chunks, price, grid, gridded, sums, theta, retained, share):
    """Minimise, average, and add a chunk's contributions at the new states.

    Args:
        fleet: the fleet.
        chunk: which of the chunks.
        chunks: how many there are.
        price: lambda(k+1).
        grid: the grid of every sum.
        gridded: with a plan contributions are integers, and the answer averages the states that
            were released; without one it averages the new states.
        sums: where contributions go.
        theta: the weight of the proximal term.
        retained: r, k/(k+1) in round k: the worth of the sums is their largest so far, fading.
        share: the round's weight in the answer.
    """
    size = fleet.d * fleet.width
    if fleet.how == SCALAR and fleet.width == 1:
        if chunk == chunks - 1:
            minimise_number(fleet, price, grid, gridded, sums, theta, retained, share)
        return
    clear(fleet)
    set_prices(fleet, price)
    for b in range(chunk_start(fleet, chunk, chunks), chunk_start(fleet, chunk + 1, chunks)):
        x, mean = skip(fleet.x, b * size), skip(fleet.mean, b * size)
        if gridded:
            average(mean, x, share, size)
        weigh_prices(fleet, b, price)
        trail(skip(fleet.center, b * size), x, size)
        solve_block(fleet, b, fleet.center, theta, retained, 0.0)
        if not gridded:
            average(mean, fleet.result, share, size)
        copy_some(x, fleet.result, size)
        copy_some(fleet.r, fleet.result, size)
        run_tape(cython.address(fleet.contributions), fleet.r, fleet.width)
        add_contributions(fleet, b, cython.address(fleet.contributions), grid, gridded, sums)
    gather(fleet, sums)


def minimise_number(fleet, price, grid, gridded, sums, theta, retained, share):
    """The same for an agent alone whose state is a number: no blocks, no lanes, no components."""
    lower, upper, multiplier = fleet.lower[0], fleet.upper[0], skip(fleet.r, fleet.multiplier)
    pull, slope = cython.address(fleet.pull), cython.address(fleet.slope)
    if gridded:
        average(fleet.mean, fleet.x, share, 1)
    for t in range(fleet.terms):
        multiplier[t] = 0.0
    weigh_entries(fleet, 0, multiplier, price)
    trail(fleet.center, fleet.x, 1)
    load(fleet, 0, fleet.center)
    run_tape(pull, fleet.r, 1)
    now = fabs(output(fleet, pull, 0)[0]) * (upper - lower)
    fleet.worth[0] = decayed_maximum(fleet.worth[0], now, retained)
    weight = proximal_weight(fleet.worth[0], lower, upper, theta)
    force, curvature = output(fleet, pull, 1)[0], output(fleet, pull, 2)[0]
    if not cython.compiled:
        if slope.callback is not None and lower < upper:  # an objective that is Python code
            force += slope.callback(fleet.r[0])
    fleet.result[0] = minimise_scalar(slope, fleet.r, force, curvature, lower, upper, weight)
    if not gridded:
        average(fleet.mean, fleet.result, share, 1)
    fleet.x[0] = fleet.r[0] = fleet.result[0]
    run_tape(cython.address(fleet.contributions), fleet.r, 1)
    add_entries(fleet, 0, 0, cython.address(fleet.contributions), grid, gridded, sums)


def average(mean, x, share, size):
    """``mean += share (x - mean)``."""
    for i in range(size):
        mean[i] += share * (x[i] - mean[i])


def trail(center, x, size):
    """``z += (x - z) / 2``; less than 1e-306 becomes 0, as processors are slow with subnormals."""
    for i in range(size):
        z = center[i] + TRAILING * (x[i] - center[i])
        center[i] = (z + NEGLIGIBLE_STATE) - NEGLIGIBLE_STATE


def solve_block(fleet, b, states, theta, retained, near):
    """Fill ``result`` with the minimisers of block b.

    Args:
        fleet: with the block's multipliers in its registers.
        b: the block.
        states: what the proximal term pulls to.
        theta: its weight.
        retained: how much of the worth of the sums lasts.
        near: 1 adds ``|x - state|^2 / 2``, a proximal step.
    """
    load(fleet, b, states)
    if fleet.how == SEPARABLE:
        solve_separable(fleet, b, theta, retained, near)
    elif fleet.how == SCALAR:
        solve_scalars(fleet, b, theta, retained)
    elif fleet.how == NEWTON:
        solve_box(fleet, b, theta, retained)
    else:
        solve_interior(fleet, b, theta, retained, near, True)


def decayed_maximum(worth, now, retained):
    """``max(w, r W)``: the largest ``w``, what sums are worth to an agent over its box, fading."""
    before = worth * (retained if now > 0.0 else UNPRICED)
    return now if now > before else before


def proximal_weight(worth, lower, upper, theta):
    """``rho = theta W / width^2``; 0 where there is no width."""
    width = upper - lower
    rho = theta * worth / (width * width if width > 0.0 else 1.0)
    return rho if width > 0.0 else 0.0


def proximal_weights(fleet, b, theta, retained, weight):
    """Fill ``weight`` with rho of every component of a single agent; the registers hold z."""
    lower, upper, tape = lower_of(fleet, b), upper_of(fleet, b), cython.address(fleet.pull)
    now = 0.0
    run_tape(tape, fleet.r, 1)
    for c in range(fleet.d):
        size = fabs(output(fleet, tape, c)[0]) * (upper[c] - lower[c])
        now = size if size > now else now
    fleet.worth[b] = decayed_maximum(fleet.worth[b], now, retained)
    for c in range(fleet.d):
        weight[c] = proximal_weight(fleet.worth[b], lower[c], upper[c], theta)


def update_worths(worth, now, retained):
    """``W := max(w, r W)`` in lanes."""
    for lane in range(LANES):
        worth[lane] = decayed_maximum(worth[lane], now[lane], retained)


def raise_worths(now, pull, lower, upper):
    """``w := max(w, |pull| width)`` in lanes."""
    for lane in range(LANES):
        size = fabs(pull[lane]) * (upper[lane] - lower[lane])
        now[lane] = size if size > now[lane] else now[lane]


def weight_row(to, worth, lower, upper, theta):
    """``proximal_weight`` in lanes."""
    for lane in range(LANES):
        to[lane] = proximal_weight(worth[lane], lower[lane], upper[lane], theta)


def solve_scalars(fleet, b, theta, retained):
    """Sixteen agents whose states are numbers."""
    lanes, worth = cython.declare(LaneSearch), skip(fleet.worth, b * LANES)
    lower, upper, tape = lower_of(fleet, b), upper_of(fleet, b), cython.address(fleet.pull)
    copy(lanes.lower, lower)
    copy(lanes.upper, upper)
    run_tape(tape, fleet.r, LANES)
    spread(lanes.weight, 0.0)
    raise_worths(lanes.weight, output(fleet, tape, 0), lower, upper)
    update_worths(worth, lanes.weight, retained)
    weight_row(lanes.weight, worth, lower, upper, theta)
    force, curvature = output(fleet, tape, 1), output(fleet, tape, 2)
    minimise_lanes(
        cython.address(fleet.slope), fleet.r, force, curvature, cython.address(lanes)
    )  # fmt: skip
    copy(fleet.result, lanes.answer)


def solve_box(fleet, b, theta, retained):
    """One agent whose state is a vector in a box."""
    weight, rest = fleet.work, skip(fleet.work, fleet.d)
    proximal_weights(fleet, b, theta, retained, weight)
    tape = cython.address(fleet.slope)
    minimise_box(tape, fleet.r, lower_of(fleet, b), upper_of(fleet, b), weight, fleet.result, rest)


def solve_separable(fleet, b, theta, retained, near):
    """Sixteen agents with a separable quadratic and up to two rows."""
    d, storage, now = fleet.d, cython.declare(SeparableProblem), cython.declare(cython.double[16])
    tape, problem = cython.address(fleet.problem), cython.address(storage)
    worth = skip(fleet.worth, b * LANES)
    run_tape(tape, fleet.r, LANES)
    lay_out_block(fleet, b, tape, problem)
    if theta > 0.0:
        spread(now, 0.0)
        for c in range(d):
            raise_worths(
                now, output(fleet, tape, 2 * d + c), row(problem.lower, c), row(problem.upper, c)
            )
        update_worths(worth, now, retained)
    free_minimum(problem, worth, theta, near)
    search(problem, fleet.linear_rows, 3 * d)


def lay_out_block(fleet, b, tape, problem):
    """A block's problem: its states, its box, its tape, and where its answer goes."""
    lay_out_separable(problem, fleet.d, fleet.work)
    problem.r = fleet.r
    problem.outputs = tape.outputs
    problem.point = fleet.r
    problem.last = skip(fleet.x, b * fleet.d * LANES)
    problem.lower = lower_of(fleet, b)
    problem.upper = upper_of(fleet, b)
    problem.x = fleet.result


def solve_interior(fleet, b, theta, retained, near, with_objective):
    """One agent with any convex problem."""
    d, n, work = fleet.d, fleet.n, fleet.work
    anchor, weight, lower, upper = work, skip(work, n), skip(work, 2 * n), skip(work, 3 * n)
    copy_some(lower, lower_of(fleet, b), d)
    copy_some(upper, upper_of(fleet, b), d)
    copy_some(anchor, fleet.r, d)
    fill(weight, near, d)
    if with_objective and theta > 0.0:
        proximal_weights(fleet, b, theta, retained, weight)
    for e in range(n - d):
        lower[d + e] = fleet.extra_lower[b * (n - d) + e]
        upper[d + e] = fleet.extra_upper[b * (n - d) + e]
        anchor[d + e] = 0.5 * (lower[d + e] + upper[d + e])
        weight[d + e] = 0.0
    storage = cython.declare(Interior)
    ip = cython.address(storage)
    ip.n = n
    ip.m = fleet.inequalities
    ip.q = fleet.equalities
    ip.rows = cython.address(fleet.rows)
    ip.objective = cython.address(fleet.objective)
    ip.with_objective = with_objective
    ip.r = fleet.r
    ip.row_multiplier = fleet.row_multiplier
    out, rest = skip(work, 4 * n), skip(work, 5 * n)
    interior_minimum(ip, anchor, weight, lower, upper, out, rest)
    copy_some(fleet.result, out, d)


def project_start(fleet):
    """Take all states to the nearest points of their agents' own sets."""
    size = fleet.d * fleet.width
    for b in range(fleet.blocks):
        load(fleet, b, fleet.x)
        if fleet.local_rows == 0:
            clip_block(fleet, b)
        elif fleet.how == SEPARABLE:
            project_separable(fleet, b)
        else:
            solve_interior(fleet, b, 0.0, 0.0, 1.0, False)
        copy_some(skip(fleet.x, b * size), fleet.result, size)


def clip_block(fleet, b):
    """Into the box."""
    lower, upper = lower_of(fleet, b), upper_of(fleet, b)
    for i in range(fleet.d * fleet.width):
        x = lower[i] if fleet.r[i] < lower[i] else fleet.r[i]
        fleet.result[i] = upper[i] if x > upper[i] else x


def project_separable(fleet, b):
    """Into the box and the hard rows: w is 1, and the free minimum p."""
    storage = cython.declare(SeparableProblem)
    problem = cython.address(storage)
    run_tape(cython.address(fleet.projection), fleet.r, LANES)
    lay_out_block(fleet, b, cython.address(fleet.projection), problem)
    spread(problem.force, 0.0)
    for c in range(fleet.d):
        copy(row(problem.x, c), row(problem.point, c))
        spread(row(problem.flexibility, c), 1.0)
        keep_largest(problem.force, row(problem.upper, c))
        keep_largest(problem.force, row(problem.lower, c))
    search(problem, fleet.hard_rows, 0)


def measure(fleet, chunk, chunks, price, sums, p, runs):
    """Add a chunk's sums at the answer, and its measures behind them.

    The residual of an agent is how far a proximal step leads from its answer: where only bounds
    hold it ``x - P[x - d(f + lambda'h)/dx]``.

    Args:
        fleet: the fleet.
        chunk: which of the chunks.
        chunks: how many there are.
        price: the answer's prices.
        sums: p sums, then MEASURES.
        p: how many sums there are.
        runs: where agents are that many runs, each has measures of its own; else 1.
    """
    clear(fleet)
    set_prices(fleet, price)
    tape = cython.address(fleet.measure)
    for b in range(chunk_start(fleet, chunk, chunks), chunk_start(fleet, chunk + 1, chunks)):
        weigh_prices(fleet, b, price)
        if fleet.local_rows > 0:
            solve_block(fleet, b, fleet.mean, 0.0, 0.0, 1.0)
        load(fleet, b, fleet.mean)
        run_tape(tape, fleet.r, fleet.width)
        add_contributions(fleet, b, tape, price, False, sums)
        for lane in range(lanes_used(fleet, b)):
            measure_agent(fleet, b, lane, skip(sums, p + (lane if runs > 1 else 0)), runs)
    gather(fleet, sums)


def measure_agent(fleet, b, lane, out, stride):
    """One agent's objective, residual and errors, ``stride`` apart."""
    d, width, tape = fleet.d, fleet.width, cython.address(fleet.measure)
    lower, upper = lower_of(fleet, b), upper_of(fleet, b)
    residual, error, last = 0.0, 0.0, 0.0
    for c in range(d):
        i = c * width + lane
        x = fleet.r[i]
        if fleet.local_rows > 0:
            near = fleet.result[i]
        else:
            near = x - output(fleet, tape, fleet.terms + 1 + c)[lane]
            near = lower[i] if near < lower[i] else near
            near = upper[i] if near > upper[i] else near
        hat = fleet.hat[b * d * width + i]
        now = fleet.x[b * d * width + i]
        residual += (x - near) * (x - near)
        error += (x - hat) * (x - hat)
        last += (now - hat) * (now - hat)
    out[0] += output(fleet, tape, fleet.terms)[lane]
    out[stride] += residual
    out[2 * stride] += error
    out[3 * stride] += last


def gradient_step(fleet, chunk, chunks, price, sums, gamma, alpha):
    """Algorithm 1's step of a chunk; its sums are those before it."""
    d, width = fleet.d, fleet.width
    tape = cython.address(fleet.step)
    clear(fleet)
    set_prices(fleet, price)
    for b in range(chunk_start(fleet, chunk, chunks), chunk_start(fleet, chunk + 1, chunks)):
        weigh_prices(fleet, b, price)
        load(fleet, b, fleet.x)
        run_tape(tape, fleet.r, fleet.width)
        add_contributions(fleet, b, tape, price, False, sums)
        lower, upper = lower_of(fleet, b), upper_of(fleet, b)
        for c in range(d):
            slope = output(fleet, tape, fleet.terms + c)
            offset, x = c * width, skip(fleet.x, (b * d + c) * width)
            if width == LANES:
                step_row(x, slope, skip(lower, offset), skip(upper, offset), gamma, alpha)
            else:
                x[0] = projected_step(x[0], slope[0], lower[offset], upper[offset], gamma, alpha)
    gather(fleet, sums)


def projected_step(x, slope, lower, upper, gamma, alpha):
    """``P[x - gamma (slope + alpha x)]``; NaN stays NaN."""
    y = x - gamma * (slope + alpha * x)
    y = lower if y < lower else y
    return upper if y > upper else y


def step_row(x, slope, lower, upper, gamma, alpha):
    """The same in lanes."""
    for lane in range(LANES):
        x[lane] = projected_step(x[lane], slope[lane], lower[lane], upper[lane], gamma, alpha)


def run_minimise(core, price, grid, gridded, sums, k, theta, share):
    """A whole pass of ``minimise``, from Python: a network agent's round."""
    minimise(
        cython.address(core.view), 0, 1, doubles(price), doubles(grid), gridded, doubles(sums),
        theta, k / (k + 1.0), share,
    )  # fmt: skip


def run_contribute(core, grid, gridded, sums):
    """A whole pass of ``contribute``, from Python."""
    contribute(cython.address(core.view), 0, 1, doubles(grid), gridded, doubles(sums))


def run_measure(core, price, sums):
    """A whole pass of ``measure``, from Python."""
    p: cython.Py_ssize_t = len(price)
    measure(cython.address(core.view), 0, 1, doubles(price), doubles(sums), p, 1)


def run_project_start(core):
    """``project_start``, from Python."""
    project_start(cython.address(core.view))
