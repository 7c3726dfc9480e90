"""Rounds of one run by a team of threads, with one barrier a round.

Each thread passes over its chunks of every fleet; after the barrier each does for itself, to the
same bits, what is small: the noise and the cloud. Sums have two buffers in turn (and a third for
measures), so a thread that runs ahead writes into the one that no thread reads.

    price_rounds      y(k) = s(x(k)) + w(k);  lambda(k+1) = cloud_round;  x(k+1) = minimise
    gradient_rounds   y(k) = g(x(k)) + w(k);  mu(k+1) = [mu + gamma (y - alpha mu)]_+,
                      x(k+1) = gradient_step with mu(k): Algorithm 1

Where all agents are named, Algorithm 1 takes them for one with a long state. Then noise may be on
entries of dg/dx too, as the paper has it, and 16 runs go in lanes: the fleet has an agent per run,
and row j of lane l is row ``j lanes + l`` of all.
"""

from . import plain as cython
from .cloud_step import cloud_round, cloud_view
from .fleet_view import add_scaled_row, fleet_view, output
from .normals import draw_rounds, draw_runs
from .passes import MEASURES, contribute, gradient_step, measure, minimise
from .plain import *
from .plain import Struct as RunView
from .plain import fill_struct as fill_run_view


def price_rounds(run, done, until, steps):
    """Rounds ``done + 1 .. until`` with prices; ``steps`` holds share, steer and theta of each."""
    cloud, mark = run.cloud, start_marks(run, done)
    chunk_sums = skip(run.parts, (done % 2) * run.chunks * run.stride)
    for c in range(run.first_chunk, run.last_chunk):
        sums = skip(chunk_sums, c * run.stride)
        fill(sums, 0.0, run.stride)
        for i in range(run.fleet_count):
            contribute(run.fleets[i], c, run.chunks, run.grid, run.gridded, sums)
    wait(run)
    for k in range(done, until):
        step = skip(steps, 3 * (k - done))
        share, steer, theta = step[0], step[1], step[2]
        add_up(run, k % 2)
        draw(run, k, done)
        release(run, k, done)
        bounded: cython.bint = cloud_round(cloud, k + 1, run.y, share, steer)
        if not bounded and run.failed[0] == 0.0:
            run.failed[0] = k + 1.0
        chunk_sums = skip(run.parts, ((k + 1) % 2) * run.chunks * run.stride)
        retained = (k + 1.0) / (k + 2.0)
        for c in range(run.first_chunk, run.last_chunk):
            sums = skip(chunk_sums, c * run.stride)
            fill(sums, 0.0, run.stride)
            for i in range(run.fleet_count):
                minimise(
                    run.fleets[i], c, run.chunks, cloud.price, run.grid, run.gridded, sums,
                    theta, retained, share,
                )  # fmt: skip
        wait(run)
        if mark < run.mark_count and run.marks[mark] == k + 1:
            record(run, mark, cloud.answer, cloud.price)
            mark += 1


def gradient_rounds(run, done, until, steps):
    """Rounds ``done + 1 .. until`` of Algorithm 1; ``steps`` holds gamma and alpha of each."""
    mu, mark = run.mu, start_marks(run, done)
    for k in range(done, until):
        gamma, alpha = steps[2 * (k - done)], steps[2 * (k - done) + 1]
        draw(run, k, done)
        fill(run.entry_noise, 0.0, run.entries * run.lanes)
        add_noise(run, run.entry_noise, run.p // run.lanes, run.entries, (k - done) % LANES)
        chunk_sums = skip(run.parts, (k % 2) * run.chunks * run.stride)
        for c in range(run.first_chunk, run.last_chunk):
            sums = skip(chunk_sums, c * run.stride)
            fill(sums, 0.0, run.stride)
            for i in range(run.fleet_count):
                gradient_step(run.fleets[i], c, run.chunks, mu, sums, gamma, alpha)
        wait(run)
        add_up(run, k % 2)
        release(run, k, done)
        for j in range(run.p):
            value = mu[j] + gamma * (run.y[j] - alpha * mu[j])
            mu[j] = 0.0 if value < 0.0 else value
        note_failures(run, k + 1.0)
        if mark < run.mark_count and run.marks[mark] == k + 1:
            record(run, mark, mu, mu)
            mark += 1


def note_failures(run, number):
    """Note the round in which a run's multipliers, or its named agents, stopped being finite."""
    first, lanes = run.fleets[0], run.lanes
    states = first.d if run.fleet_count == 1 and first.count == lanes else 0
    # A finite number less itself is 0, any other is not.
    for j in range(run.p):
        if run.mu[j] - run.mu[j] != 0.0:
            fail(run, j % lanes, number)
    for c in range(states * lanes):
        if first.x[c] - first.x[c] != 0.0:
            fail(run, c % lanes, number)


def fail(run, lane, number):
    """Note the first round in which a run failed."""
    if run.failed[lane] == 0.0:
        run.failed[lane] = number


def wait(run):
    """Wait for all threads of the team."""
    if run.team > 1:
        run.arrivals += run.team
        barrier(run.counter, run.arrivals)


def add_up(run, which):
    """``y = offset + sums of all chunks``, in order."""
    p, parts = run.p, skip(run.parts, which * run.chunks * run.stride)
    copy_some(run.y, run.offset, p)
    for c in range(run.chunks):
        for j in range(p):
            run.y[j] += parts[c * run.stride + j]


def draw(run, k, done):
    """Draw the normals of a round of all runs, or of the next 16 rounds of one."""
    if run.pairs > 0 and run.lanes > 1:
        draw_runs(run.seeds, k, run.pairs, run.normals)
    elif run.pairs > 0 and (k - done) % LANES == 0:
        draw_rounds(run.seeds[0], k, run.pairs, run.normals)


def add_noise(run, y, first, count, b):
    """Add the noise of released numbers from ``first`` on, in round b of the 16 of one run."""
    for i in range(count):
        order = run.order[first + i]
        if order >= 0 and run.lanes > 1:
            add_scaled_row(row(y, i), row(run.normals, order), run.sigma[order])
        elif order >= 0:
            y[i] += run.sigma[order] * run.normals[order * LANES + b]


def release(run, k, done):
    """From grid steps to the sums' units, noise, and the transcript."""
    if run.gridded:
        for j in range(run.p):
            run.y[j] *= run.grid[j]
    add_noise(run, run.y, 0, run.p // run.lanes, (k - done) % LANES)
    if run.transcribed:
        first, lanes = run.fleets[0], run.lanes
        out = skip(run.transcript, (k - done) * (run.p + run.entries * lanes))
        copy_some(out, run.y, run.p)
        for e in range(run.entries):
            slope = output(first, cython.address(first.step), first.terms + first.d + e)
            copy_some(skip(out, run.p + e * lanes), slope, lanes)


def start_marks(run, done):
    """Record the start, if it is asked for; return the next mark."""
    if done == 0 and run.mark_count > 0 and run.marks[0] == 0:
        record(run, 0, run.answer, run.price)
        return 1
    return 0


def record(run, mark, answer, price):
    """Measure: sums at the answer, the measures, the answer's prices and the last ones."""
    p, measures = run.p, MEASURES * run.lanes
    parts = skip(run.parts, 2 * run.chunks * run.stride)
    for c in range(run.first_chunk, run.last_chunk):
        sums = skip(parts, c * run.stride)
        fill(sums, 0.0, run.stride)
        for i in range(run.fleet_count):
            measure(run.fleets[i], c, run.chunks, answer, sums, p, run.lanes)
    wait(run)
    if run.me > 0:
        return
    add_up(run, 2)
    out = skip(run.trace, mark * (3 * p + measures))
    copy_some(out, run.y, p)
    fill(skip(out, p), 0.0, measures)
    for c in range(run.chunks):
        for q in range(measures):
            out[p + q] += parts[c * run.stride + p + q]
    copy_some(skip(out, p + measures), answer, p)
    copy_some(skip(out, 2 * p + measures), price, p)


class RunCore:
    """Owns what a ``RunView`` points to: one thread's part in a run.

    Args:
        sizes: the integers of ``RunView``, by name.
        arrays: its arrays, by name; all are kept as they are.
        fleets: the thread's ``FleetCore`` objects.
        cloud: its ``CloudCore``; None for Algorithm 1.
    """

    def __init__(self, sizes, arrays, fleets, cloud):
        self.arrays = arrays
        self.fleets = fleets
        self.cloud = cloud
        if not cython.compiled:
            self.view = RunView()
        view = cython.address(self.view)
        fill_run_view(view, sizes | arrays)
        view.first_chunk = view.me * view.chunks // view.team
        view.last_chunk = (view.me + 1) * view.chunks // view.team
        view.p = len(arrays["offset"])
        view.stride = view.p + MEASURES * view.lanes
        view.fleet_count = len(fleets)
        view.fleets = fleet_pointers(arrays["pointers"])
        for i in range(view.fleet_count):
            view.fleets[i] = fleet_view(fleets[i])
        view.answer = view.mu
        view.price = view.mu
        if cloud is not None:
            view.cloud = cloud_view(cloud)
            view.answer = view.cloud.answer
            view.price = view.cloud.price

    def advance(self, done, until, steps, counter, marks, trace, transcript):
        """Take the rounds ``done + 1 .. until``; every thread of the team calls this at once.

        Args:
            done: rounds done.
            until: where to stop.
            steps: per round share, steer and theta, or gamma and alpha.
            counter: one integer, 0, the same array for all threads.
            marks: after which rounds to measure.
            trace: where measures go.
            transcript: where releases go; empty: nowhere.
        """
        view = cython.address(self.view)
        view.arrivals = 0
        view.mark_count = len(marks)
        view.transcribed = len(transcript) > 0
        arrays = {"counter": counter, "marks": marks, "trace": trace, "transcript": transcript}
        fill_run_view(view, arrays)
        numbers = doubles(steps)
        prices: cython.bint = self.cloud is not None
        with cython.nogil:
            if prices:
                price_rounds(view, done, until, numbers)
            else:
                gradient_rounds(view, done, until, numbers)
