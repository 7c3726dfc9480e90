"""Algorithm 1 of agents stated one by one: 16 runs in lanes, or one run.

    y_g = g(x) + w_g,   Y_ji = dg_j/dx_i + w_ji
    x_i  := P[x_i - gamma (df/dx_i + sum_j mu_j Y_ji + alpha x_i)]
    mu_j := [mu_j + gamma (y_gj - alpha mu_j)]_+

One tape gives df/dx_i, g_j and the entries dg_j/dx_i; x and mu are its first registers, a lane per
run. Noise is the paper's: on values and on entries of the gradient.
"""

from . import plain as cython
from .normals import draw_rounds, draw_runs
from .passes import projected_step, step_row
from .plain import *
from .plain import Struct as EnsembleView
from .plain import fill_struct as fill_ensemble_view
from .tape import accumulate, accumulate_product, interpret


def rounds_of_runs(e, done, until, steps):
    """Rounds ``done + 1 .. until`` of 16 runs."""
    n, m = e.n, e.m
    noisy, released = cython.declare(cython.double[16]), cython.declare(cython.double[16])
    mark: cython.Py_ssize_t = first_mark(e, done)
    for k in range(done, until):
        gamma, alpha = steps[2 * (k - done)], steps[2 * (k - done) + 1]
        out = row(e.transcript, (k - done) * e.released)
        if e.pairs > 0:
            draw_runs(e.seeds, k, e.pairs, e.normals)
        interpret(e.code, e.code_size, e.r, LANES)
        for i in range(n):
            slope = row(e.slopes, i)
            copy(slope, row(e.r, e.outputs[i]))
            for s in range(e.entry_start[i], e.entry_start[i + 1]):
                mu = row(e.r, n + e.entry_row[s])
                entry, order = row(e.r, e.outputs[n + m + s]), e.entry_order[s]
                if order >= 0:
                    add_noise(released, entry, row(e.normals, order), e.sigma[order])
                    accumulate_product(slope, mu, released, LANES)
                    if e.transcribed:
                        copy(row(out, e.entry_output[s]), released)
                else:
                    accumulate_product(slope, mu, entry, LANES)
        for j in range(m):
            g, order = row(e.r, e.outputs[n + j]), e.row_order[j]
            if order >= 0:
                add_noise(noisy, g, row(e.normals, order), e.sigma[order])
            else:
                copy(noisy, g)
            if e.transcribed:
                copy(row(out, j), noisy)
            multiplier_row(row(e.r, n + j), noisy, gamma, alpha)
        for i in range(n):
            bound_step(e, i, gamma, alpha)
        note_failure(e, k + 1.0)
        if mark < e.mark_count and e.marks[mark] == k + 1:
            copy_some(row(e.trace, mark * (n + m)), e.r, (n + m) * LANES)
            mark += 1


def first_mark(e, done):
    """Record the start, if it is asked for; return the next mark."""
    if done == 0 and e.mark_count > 0 and e.marks[0] == 0:
        copy_some(e.trace, e.r, (e.n + e.m) * e.width)
        return 1
    return 0


def bound_step(e, i, gamma, alpha):
    """State i of 16 runs."""
    lower, upper = cython.declare(cython.double[16]), cython.declare(cython.double[16])
    spread(lower, e.lower[i])
    spread(upper, e.upper[i])
    step_row(row(e.r, i), row(e.slopes, i), lower, upper, gamma, alpha)


def add_noise(to, value, normal, sigma):
    """``value + sigma z`` in lanes."""
    for lane in range(LANES):
        to[lane] = value[lane] + sigma * normal[lane]


def multiplier_row(mu, y, gamma, alpha):
    """``[mu + gamma (y - alpha mu)]_+`` in lanes."""
    for lane in range(LANES):
        value = mu[lane] + gamma * (y[lane] - alpha * mu[lane])
        mu[lane] = 0.0 if value < 0.0 else value


def note_failure(e, number):
    """Note the round in which a run's numbers stopped being finite."""
    sums = cython.declare(cython.double[16])
    spread(sums, 0.0)
    for i in range(e.n + e.m):
        accumulate(sums, row(e.r, i), LANES)
    mark_failure(sums, number, e.failed)


def mark_failure(total, number, failed):
    """A finite sum less itself is 0, any other is not."""
    for lane in range(LANES):
        bad = number if total[lane] - total[lane] != 0.0 else 0.0
        failed[lane] = failed[lane] if failed[lane] > 0.0 else bad


def rounds_of_one(e, done, until, steps):
    """The same of one run; normals of 16 rounds are drawn at once."""
    n, m, r = e.n, e.m, e.r
    mark: cython.Py_ssize_t = first_mark(e, done)
    for k in range(done, until):
        b = (k - done) % LANES
        if b == 0 and e.pairs > 0:
            draw_rounds(e.seeds[0], k, e.pairs, e.normals)
        gamma, alpha = steps[2 * (k - done)], steps[2 * (k - done) + 1]
        out = skip(e.transcript, (k - done) * e.released)
        interpret(e.code, e.code_size, r, 1)
        for i in range(n):
            slope = r[e.outputs[i]]
            for s in range(e.entry_start[i], e.entry_start[i + 1]):
                y = r[e.outputs[n + m + s]]
                order = e.entry_order[s]
                if order >= 0:
                    y = y + e.sigma[order] * e.normals[order * LANES + b]
                    if e.transcribed:
                        out[e.entry_output[s]] = y
                slope = slope + r[n + e.entry_row[s]] * y
            e.slopes[i] = slope
        total = 0.0
        for i in range(n):
            r[i] = projected_step(r[i], e.slopes[i], e.lower[i], e.upper[i], gamma, alpha)
            total += r[i]
        for j in range(m):
            y = r[e.outputs[n + j]]
            order = e.row_order[j]
            if order >= 0:
                y = y + e.sigma[order] * e.normals[order * LANES + b]
            if e.transcribed:
                out[j] = y
            value = r[n + j] + gamma * (y - alpha * r[n + j])
            r[n + j] = 0.0 if value < 0.0 else value
            total += r[n + j]
        if e.failed[0] == 0.0 and total - total != 0.0:
            e.failed[0] = k + 1.0
        if mark < e.mark_count and e.marks[mark] == k + 1:
            copy_some(skip(e.trace, mark * (n + m)), r, n + m)
            mark += 1


class EnsembleCore:
    """Owns what an ``EnsembleView`` points to: one block of runs.

    Args:
        sizes: the integers of ``EnsembleView``, by name.
        arrays: its arrays, by name; all are kept as they are.
    """

    def __init__(self, sizes, arrays):
        self.arrays = arrays
        if not cython.compiled:
            self.view = EnsembleView()
        view = cython.address(self.view)
        fill_ensemble_view(view, sizes | arrays)
        view.code_size = len(arrays["code"])

    def advance(self, done, until, steps, marks, trace, transcript):
        """Take the rounds ``done + 1 .. until``; ``steps`` holds gamma and alpha of each."""
        view = cython.address(self.view)
        view.mark_count = len(marks)
        view.transcribed = len(transcript) > 0
        fill_ensemble_view(view, {"marks": marks, "trace": trace, "transcript": transcript})
        numbers = doubles(steps)
        with cython.nogil:
            if view.width == LANES:
                rounds_of_runs(view, done, until, numbers)
            else:
                rounds_of_one(view, done, until, numbers)
