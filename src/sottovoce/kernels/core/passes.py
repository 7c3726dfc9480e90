"""Passes over the agents of a fleet, chunk by chunk.

contribute      s = sum_i h_i(x_i)
minimise        x_i := argmin over X_i of f_i + lambda'h_i + sum_c eps_c (x_c - x_ic)^2 / 2, then
                contribute; eps_c = theta k^-1/2 |d(lambda'h_i)/dx_c| / width_c keeps an agent
                from jumping across its set when a price moves by little, and fades
measure         objective, residual and errors of the answer, and its sums
project_start   x_i := the nearest point of X_i
gradient_step   x_i := P[x_i - gamma (d(f_i + mu'h_i)/dx + alpha x_i)], Algorithm 1's, and the
                sums at the states before it
"""

try:
    import cython

    if not cython.compiled:
        raise ModuleNotFoundError
except ModuleNotFoundError:
    from . import plain as cython

if not cython.compiled:
    from . import box_newton, dual_search, scalar_search
    from .dual_search import box_search, row_search, two_row_search
    from .fleet_view import (
        NEWTON,
        SCALAR,
        SEPARABLE,
        add_contributions,
        clear,
        gather,
        lanes_used,
        load,
        output,
        run_tape,
        set_prices,
        weigh_prices,
    )  # fmt: skip
    from .interior_point import interior_minimum
    from .lanes import LANES, copy, copy_some, doubles, fill, row, skip, spread
    from .plain import Struct, fabs, sqrt
    from .scalar_search import minimise_lanes

    lay_out_search, lay_out_separable = scalar_search.lay_out, dual_search.lay_out
    minimise_scalar, minimise_box = scalar_search.minimise, box_newton.minimise
    SlopeTape = LaneSearch = GradientTape = DerivativeTapes = SeparableProblem = Struct

MEASURES = 4  # objective, residual, squared errors of the answer and of x


def chunk_start(fleet, chunk, chunks):
    """The first block of a chunk."""
    return chunk * fleet.blocks // chunks


def contribute(fleet, chunk, chunks, price, grid, gridded, sums):
    """Add a chunk's contributions at the states as they are."""
    clear(fleet)
    for b in range(chunk_start(fleet, chunk, chunks), chunk_start(fleet, chunk + 1, chunks)):
        load(fleet, b, fleet.x)
        run_tape(fleet, cython.address(fleet.contributions))
        add_contributions(fleet, b, cython.address(fleet.contributions), grid, gridded, sums)
    gather(fleet, sums)


def minimise(fleet, chunk, chunks, price, grid, gridded, sums, k, theta, share):
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
        k: the round, from 1.
        theta: the weight of the damping.
        share: the round's weight in the answer.
    """
    size = fleet.d * fleet.width
    root = sqrt(k + 0.0)
    clear(fleet)
    set_prices(fleet, price)
    for b in range(chunk_start(fleet, chunk, chunks), chunk_start(fleet, chunk + 1, chunks)):
        x, mean = skip(fleet.x, b * size), skip(fleet.mean, b * size)
        if gridded:
            average(mean, x, share, size)
        weigh_prices(fleet, b, price)
        solve_block(fleet, b, fleet.x, root, theta, 0.0)
        copy_some(x, fleet.result, size)
        if not gridded:
            average(mean, x, share, size)
        copy_some(fleet.r, fleet.result, size)
        run_tape(fleet, cython.address(fleet.contributions))
        add_contributions(fleet, b, cython.address(fleet.contributions), grid, gridded, sums)
    gather(fleet, sums)


def average(mean, x, share, size):
    """``mean += share (x - mean)``."""
    if size == 1:  # a scalar state alone: no vector loop to set up
        mean[0] += share * (x[0] - mean[0])
        return
    for i in range(size):
        mean[i] += share * (x[i] - mean[i])


def solve_block(fleet, b, states, root, theta, near):
    """Fill ``result`` with the minimisers of block b.

    Args:
        fleet: with the block's multipliers in its registers.
        b: the block.
        states: what the damping holds on to.
        root: the root of k.
        theta: the weight of the damping.
        near: 1 adds ``|x - state|^2 / 2``, a proximal step.
    """
    load(fleet, b, states)
    if fleet.how == SEPARABLE:
        solve_separable(fleet, b, root, theta, near)
    elif fleet.how == SCALAR and fleet.width == LANES:
        solve_scalars(fleet, b, root, theta)
    elif fleet.how == SCALAR:
        solve_scalar(fleet, b, root, theta)
    elif fleet.how == NEWTON:
        solve_box(fleet, b, root, theta)
    else:
        solve_interior(fleet, b, root, theta, near, True)


def damping(pull, lower, upper, root, theta):
    """``eps = theta |pull| / (sqrt(k) width)``; 0 where there is no width."""
    width = upper - lower
    eps = theta * fabs(pull) / (root * (width if width > 0.0 else 1.0))
    return eps if width > 0.0 else 0.0


def damping_row(to, pull, lower, upper, root, theta):
    """The same in lanes."""
    for lane in range(LANES):
        width = upper[lane] - lower[lane]
        eps = theta * fabs(pull[lane]) / (root * (width if width > 0.0 else 1.0))
        to[lane] = eps if width > 0.0 else 0.0


def solve_scalar(fleet, b, root, theta):
    """One agent whose state is a number."""
    x = fleet.r[0]
    lower, upper = fleet.lower[b * fleet.lower_stride], fleet.upper[b * fleet.upper_stride]
    fleet.result[0] = x
    if not lower < upper:
        return
    problem = cython.declare(SlopeTape)
    tape = cython.address(fleet.slope)
    problem.one = tape.one
    problem.one_size = tape.one_size
    problem.r = fleet.r
    problem.x = 0
    problem.output = tape.outputs[0]
    if not cython.compiled:
        problem.callback = fleet.callback
    run_tape(fleet, cython.address(fleet.pull))
    pull = output(fleet, cython.address(fleet.pull), 0)[0]
    weight = damping(pull, lower, upper, root, theta)
    fleet.result[0] = minimise_scalar(cython.address(problem), x, lower, upper, weight)


def solve_scalars(fleet, b, root, theta):
    """Sixteen of them."""
    problem, search = cython.declare(SlopeTape), cython.declare(LaneSearch)
    lower, upper = (
        skip(fleet.lower, b * fleet.lower_stride),
        skip(fleet.upper, b * fleet.upper_stride),
    )
    tape = cython.address(fleet.slope)
    problem.lanes = tape.lanes
    problem.lanes_size = tape.lanes_size
    problem.r = fleet.r
    problem.x = 0
    problem.output = tape.outputs[0]
    lay_out_search(cython.address(search), fleet.work)
    copy(search.anchor, fleet.r)
    copy(search.lower, lower)
    copy(search.upper, upper)
    run_tape(fleet, cython.address(fleet.pull))
    pull = output(fleet, cython.address(fleet.pull), 0)
    damping_row(search.weight, pull, lower, upper, root, theta)
    minimise_lanes(cython.address(problem), cython.address(search))
    copy(fleet.result, search.answer)


def solve_box(fleet, b, root, theta):
    """One agent whose state is a vector in a box."""
    d, work = fleet.d, fleet.work
    anchor, weight = work, skip(work, d)
    lower, upper = (
        skip(fleet.lower, b * fleet.lower_stride),
        skip(fleet.upper, b * fleet.upper_stride),
    )
    problem = cython.declare(GradientTape)
    tape = cython.address(fleet.slope)
    problem.d = d
    problem.one = tape.one
    problem.one_size = tape.one_size
    problem.r = fleet.r
    problem.x = 0
    problem.outputs = tape.outputs
    if not cython.compiled:
        problem.callback = fleet.callback
    copy_some(anchor, fleet.r, d)
    run_tape(fleet, cython.address(fleet.pull))
    for c in range(d):
        pull = output(fleet, cython.address(fleet.pull), c)[0]
        weight[c] = damping(pull, lower[c], upper[c], root, theta)
    rest = skip(work, 2 * d)
    minimise_box(cython.address(problem), anchor, lower, upper, weight, fleet.result, rest)


def solve_separable(fleet, b, root, theta, near):
    """Sixteen agents with a separable quadratic and up to two rows."""
    d = fleet.d
    problem = cython.declare(SeparableProblem)
    if not cython.compiled:
        problem.first, problem.second = Struct(), Struct()
    tape, at = cython.address(fleet.problem), cython.address(problem)
    lay_out_separable(at, d, fleet.work)
    run_tape(fleet, tape)
    copy_bounds(fleet, b, at)
    for c in range(d):
        copy(row(at.point, c), row(fleet.r, c))
        copy(row(at.gradient, c), output(fleet, tape, c))
        curvature, pull = output(fleet, tape, d + c), output(fleet, tape, 2 * d + c)
        lower, upper = row(at.lower, c), row(at.upper, c)
        damp_curvature(row(at.curvature, c), curvature, pull, lower, upper, root, theta, near)
    copy_rows(fleet, tape, at, 3 * d, fleet.linear_rows)
    search(at, fleet.linear_rows)
    for c in range(d):
        copy(row(fleet.result, c), row(at.x, c))


def damp_curvature(to, curvature, pull, lower, upper, root, theta, near):
    """``w = f'' + (eps + near)``."""
    for lane in range(LANES):
        width = upper[lane] - lower[lane]
        eps = theta * fabs(pull[lane]) / (root * (width if width > 0.0 else 1.0))
        eps = eps if width > 0.0 else 0.0
        to[lane] = curvature[lane] + (eps + near)


def copy_bounds(fleet, b, at):
    """A block's box."""
    lower, upper = (
        skip(fleet.lower, b * fleet.lower_stride),
        skip(fleet.upper, b * fleet.upper_stride),
    )
    for c in range(fleet.d):
        copy(row(at.lower, c), row(lower, c))
        copy(row(at.upper, c), row(upper, c))


def copy_rows(fleet, tape, at, start, count):
    """Rows' factors, limits and slacks, from the outputs ``start ..`` of a tape."""
    d = fleet.d
    for order in range(count):
        line = cython.address(at.first) if order == 0 else cython.address(at.second)
        for c in range(d):
            copy(row(line.factor, c), output(fleet, tape, start + c))
        copy(line.least, output(fleet, tape, start + d))
        copy(line.most, output(fleet, tape, start + d + 1))
        copy(line.slack, output(fleet, tape, start + d + 2))
        start += d + 3


def search(at, rows):
    """The search over no row, one or two."""
    if rows == 0:
        box_search(at)
    elif rows == 1:
        row_search(at)
    else:
        two_row_search(at)


def solve_interior(fleet, b, root, theta, near, with_objective):
    """One agent with any convex problem."""
    d, n, work = fleet.d, fleet.n, fleet.work
    anchor, weight, lower, upper = work, skip(work, n), skip(work, 2 * n), skip(work, 3 * n)
    copy_some(lower, skip(fleet.lower, b * fleet.lower_stride), d)
    copy_some(upper, skip(fleet.upper, b * fleet.upper_stride), d)
    copy_some(anchor, fleet.r, d)
    if with_objective and theta > 0.0:
        run_tape(fleet, cython.address(fleet.pull))
        for c in range(d):
            pull = output(fleet, cython.address(fleet.pull), c)[0]
            weight[c] = damping(pull, lower[c], upper[c], root, theta)
    else:
        fill(weight, near, d)
    for e in range(n - d):
        lower[d + e] = fleet.extra_lower[b * (n - d) + e]
        upper[d + e] = fleet.extra_upper[b * (n - d) + e]
        anchor[d + e] = 0.5 * (lower[d + e] + upper[d + e])
        weight[d + e] = 0.0
    tapes = cython.declare(DerivativeTapes)
    set_derivatives(fleet, cython.address(tapes), with_objective)
    out, rest = skip(work, 4 * n), skip(work, 5 * n)
    interior_minimum(cython.address(tapes), anchor, weight, lower, upper, out, rest)
    copy_some(fleet.result, out, d)


def set_derivatives(fleet, tapes, with_objective):
    """What the interior-point method reads."""
    rows, objective = cython.address(fleet.rows), cython.address(fleet.objective)
    tapes.n = fleet.n
    tapes.m = fleet.inequalities
    tapes.q = fleet.equalities
    tapes.rows = rows.one
    tapes.rows_size = rows.one_size
    tapes.rows_outputs = rows.outputs
    tapes.rows_count = rows.count // 3
    tapes.objective = objective.one
    tapes.objective_size = objective.one_size
    tapes.objective_outputs = objective.outputs
    tapes.objective_count = objective.count // 3
    tapes.r = fleet.r
    tapes.x = 0
    tapes.multiplier = fleet.row_multiplier
    tapes.with_objective = with_objective
    if not cython.compiled:
        tapes.callback = fleet.callback


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
            solve_interior(fleet, b, 1.0, 0.0, 1.0, False)
        copy_some(skip(fleet.x, b * size), fleet.result, size)


def clip_block(fleet, b):
    """Into the box."""
    lower, upper = (
        skip(fleet.lower, b * fleet.lower_stride),
        skip(fleet.upper, b * fleet.upper_stride),
    )
    for i in range(fleet.d * fleet.width):
        x = lower[i] if fleet.r[i] < lower[i] else fleet.r[i]
        fleet.result[i] = upper[i] if x > upper[i] else x


def project_separable(fleet, b):
    """Into the box and the hard rows."""
    problem = cython.declare(SeparableProblem)
    if not cython.compiled:
        problem.first, problem.second = Struct(), Struct()
    tape, at = cython.address(fleet.projection), cython.address(problem)
    lay_out_separable(at, fleet.d, fleet.work)
    run_tape(fleet, tape)
    copy_bounds(fleet, b, at)
    for c in range(fleet.d):
        copy(row(at.point, c), row(fleet.r, c))
        spread(row(at.gradient, c), 0.0)
        spread(row(at.curvature, c), 1.0)
    copy_rows(fleet, tape, at, 0, fleet.hard_rows)
    search(at, fleet.hard_rows)
    for c in range(fleet.d):
        copy(row(fleet.result, c), row(at.x, c))


def measure(fleet, chunk, chunks, price, sums, p):
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
    """
    clear(fleet)
    set_prices(fleet, price)
    tape = cython.address(fleet.measure)
    for b in range(chunk_start(fleet, chunk, chunks), chunk_start(fleet, chunk + 1, chunks)):
        weigh_prices(fleet, b, price)
        if fleet.local_rows > 0:
            solve_block(fleet, b, fleet.mean, 1.0, 0.0, 1.0)
        load(fleet, b, fleet.mean)
        run_tape(fleet, tape)
        add_contributions(fleet, b, tape, price, False, sums)
        for lane in range(lanes_used(fleet, b)):
            measure_agent(fleet, b, lane, skip(sums, p))
    gather(fleet, sums)


def measure_agent(fleet, b, lane, out):
    """One agent's objective, residual and errors."""
    d, width, tape = fleet.d, fleet.width, cython.address(fleet.measure)
    lower, upper = (
        skip(fleet.lower, b * fleet.lower_stride),
        skip(fleet.upper, b * fleet.upper_stride),
    )
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
    out[1] += residual
    out[2] += error
    out[3] += last


def gradient_step(fleet, chunk, chunks, price, sums, gamma, alpha):
    """Algorithm 1's step of a chunk; its sums are those before it."""
    d, width = fleet.d, fleet.width
    tape = cython.address(fleet.step)
    clear(fleet)
    set_prices(fleet, price)
    for b in range(chunk_start(fleet, chunk, chunks), chunk_start(fleet, chunk + 1, chunks)):
        weigh_prices(fleet, b, price)
        load(fleet, b, fleet.x)
        run_tape(fleet, tape)
        add_contributions(fleet, b, tape, price, False, sums)
        lower = skip(fleet.lower, b * fleet.lower_stride)
        upper = skip(fleet.upper, b * fleet.upper_stride)
        for c in range(d):
            slope = output(fleet, tape, fleet.terms + c)
            at, x = c * width, skip(fleet.x, (b * d + c) * width)
            if width == LANES:
                step_row(x, slope, skip(lower, at), skip(upper, at), gamma, alpha)
            else:
                x[0] = projected_step(x[0], slope[0], lower[at], upper[at], gamma, alpha)
    gather(fleet, sums)


def projected_step(x, slope, lower, upper, gamma, alpha):
    """``P[x - gamma (slope + alpha x)]``; NaN stays NaN."""
    y = x - gamma * (slope + alpha * x)
    y = lower if y < lower else y
    return upper if y > upper else y


def step_row(x, slope, lower, upper, gamma, alpha):
    """The same in lanes."""
    for lane in range(LANES):
        low, high = lower[lane], upper[lane]
        y = x[lane] - gamma * (slope[lane] + alpha * x[lane])
        y = low if y < low else y
        x[lane] = high if y > high else y


def run_minimise(core, price, grid, gridded, sums, k, theta, share):
    """A whole pass of ``minimise``, from Python: a network agent's round."""
    minimise(
        cython.address(core.view), 0, 1, doubles(price), doubles(grid), gridded, doubles(sums), k,
        theta, share,
    )  # fmt: skip


def run_contribute(core, grid, gridded, sums):
    """A whole pass of ``contribute``, from Python."""
    contribute(
        cython.address(core.view), 0, 1, doubles(sums), doubles(grid), gridded, doubles(sums)
    )  # fmt: skip


def run_measure(core, price, sums):
    """A whole pass of ``measure``, from Python."""
    p: cython.Py_ssize_t = len(price)
    measure(cython.address(core.view), 0, 1, doubles(price), doubles(sums), p)


def run_project_start(core):
    """``project_start``, from Python."""
    project_start(cython.address(core.view))


def run_gradient_step(core, price, sums, gamma, alpha):
    """A whole pass of ``gradient_step``, from Python."""
    gradient_step(
        cython.address(core.view), 0, 1, doubles(price), doubles(sums), gamma, alpha
    )  # fmt: skip
