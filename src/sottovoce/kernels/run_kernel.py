"""Whole rounds: a run by a team of threads, and ensembles of Algorithm 1 with runs in lanes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.formula.derive import gradient
from sottovoce.formula.expression import ZERO, Expression
from sottovoce.formula.tape import Array
from sottovoce.kernels.cloud_kernel import CloudKernel, Gains, PublicSum
from sottovoce.kernels.core.plain import LANES
from sottovoce.kernels.fleet_kernel import MEASURES, FleetStates
from sottovoce.kernels.lower import TapeBuilder, registers_of
from sottovoce.kernels.variant import core, variant

Marks: TypeAlias = NDArray[np.int64]
Task: TypeAlias = Callable[[], None]
"""A thread's part in rounds; all of a list must run at the same time."""

_MAX_CHUNKS: Final = 64
_BLOCKS_PER_CHUNK: Final = 8  # at least, as every chunk's sums have to be cleared and added up
_NO_MARKS: Final[Marks] = np.zeros(0, dtype=np.int64)
_NOTHING: Final[Array] = np.zeros(0)


def stream_seed(seed: int, run: int) -> int:
    """Return the 64-bit seed of a run's stream of normals, a hash of (seed, run)."""
    state = np.random.SeedSequence(seed, spawn_key=(run,)).generate_state(1, np.uint64)
    return int(state[0])


def normals(seed: int, rounds: int, count: int, *, done: int = 0) -> Array:
    """Return a stream's normals of rounds ``done + 1``, ..., shape (rounds, count)."""
    pairs = (count + 1) // 2
    blocks = -(-rounds // LANES)
    out = np.empty((blocks, 2 * pairs, LANES))
    for block in range(blocks):
        core().fill_rounds(seed, done + block * LANES, pairs, out[block].reshape(-1))
    return out.transpose(0, 2, 1).reshape(blocks * LANES, 2 * pairs)[:rounds, :count].copy()


def trace_size(sums: int) -> int:
    """How many numbers a mark records: sums, ``MEASURES``, answer's prices, last prices."""
    return 3 * sums + len(MEASURES)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Release:
    """How sums are released in simulation.

    Attributes:
        offset: the constants of the rows.
        sigma: the standard deviation of every sum, 0 for none; in the units of the sums.
        grid: with a plan the public grid of every sum, None without one. The offset is then in
            grid steps.
        seed: of the stream of normals.
    """

    offset: Array
    sigma: Array
    grid: Array | None
    seed: int


@final
class Run:
    """One run of all fleets.

    Args:
        fleets: with their states; named agents are fleets of one.
        release: offset, noise and grid.
        cloud: C and the gains of dual averaging; None runs Algorithm 1.
        threads: how many, at most.

    Attributes:
        cloud: the cloud's state; None for Algorithm 1.
        mu: the multipliers of Algorithm 1.
        failed_round: the round in which numbers stopped being finite, or 0, an array of one.
    """

    def __init__(
        self,
        fleets: Sequence[FleetStates],
        release: Release,
        cloud: tuple[PublicSum, Gains] | None,
        *,
        threads: int = 1,
    ) -> None:
        p = release.offset.size
        self.fleets, self._release, self._given = list(fleets), release, cloud
        self.mu, self.failed_round = np.zeros(p), np.zeros(1)
        self.cloud = self._new_cloud()
        self.chunks = _chunks(fleets, p)
        self.threads = 1 if variant() == "plain" else min(threads, self.chunks)
        self._parts = np.zeros(3 * self.chunks * (p + len(MEASURES)))
        noisy = np.flatnonzero(release.sigma)
        self._order = np.full(p, -1, dtype=np.int64)
        self._order[noisy] = np.arange(noisy.size)
        self._sigma = np.array(release.sigma[noisy], dtype=np.float64)
        self._helpers = [[f.another_core() for f in fleets] for _ in range(1, self.threads)]
        self._first = self._part(0)

    @property
    def failed(self) -> int:
        """The round in which numbers stopped being finite, or 0."""
        return int(self.failed_round[0])

    def tasks(
        self,
        done: int,
        until: int,
        steps: Array,
        *,
        marks: Marks = _NO_MARKS,
        trace: Array = _NOTHING,
        transcript: Array = _NOTHING,
    ) -> list[Task]:
        """What takes the run through rounds ``done + 1 .. until``, one task per thread.

        Args:
            done: rounds done.
            until: where to stop.
            steps: shape (until - done, 2): share and steer with prices, gamma and alpha without.
            marks: the rounds after which to measure, among these; 0 is the start.
            trace: a row of ``trace_size`` per mark, filled in.
            transcript: a row of p releases per round, filled in; empty for none.
        """
        counter, tasks = np.zeros(1, dtype=np.int64), list[Task]()
        given = (done, until, steps.ravel(), counter, marks, trace.reshape(-1))
        for me in range(self.threads):
            kept = transcript.reshape(-1) if me == 0 else _NOTHING
            part = self._first if me == 0 else self._part(me)
            tasks.append(partial(_advance, part, *given, kept))
        return tasks

    def advance(self, done: int, until: int, steps: Array, **records: Any) -> None:
        """Run the tasks."""
        tasks = self.tasks(done, until, steps, **records)
        if len(tasks) == 1:
            tasks[0]()
            return
        with ThreadPoolExecutor(len(tasks)) as pool:
            for future in [pool.submit(task) for task in tasks]:
                future.result()

    def _new_cloud(self) -> CloudKernel | None:
        if self._given is None:
            return None
        public, gains = self._given
        return CloudKernel(public, gains, planned=self._release.grid is not None)

    def _part(self, me: int) -> Any:
        """One thread's part; helpers work on copies of what is small."""
        release, p = self._release, self._release.offset.size
        cloud, mu, failed = self.cloud, self.mu, self.failed_round
        if me > 0:
            mu, failed = mu.copy(), failed.copy()
            cloud = self._new_cloud()
            if cloud is not None and self.cloud is not None:
                for name in ("price", "answer", "released", "memory"):
                    getattr(cloud, name)[:] = getattr(self.cloud, name)
        pairs = (self._sigma.size + 1) // 2
        sizes = {
            "me": me, "team": self.threads, "chunks": self.chunks, "pairs": pairs,
            "seed": release.seed, "gridded": release.grid is not None,
        }  # fmt: skip
        arrays = {
            "offset": release.offset, "sigma": self._sigma, "order": self._order,
            "grid": np.ones(p) if release.grid is None else release.grid,
            "normals": np.zeros(2 * pairs * LANES), "parts": self._parts, "y": np.zeros(p),
            "failed": failed, "mu": mu,
            "pointers": np.zeros(max(1, len(self.fleets)), dtype=np.uint64),
        }  # fmt: skip
        fleets = [f.core for f in self.fleets] if me == 0 else self._helpers[me - 1]
        return core().RunCore(sizes, arrays, fleets, None if cloud is None else cloud.core)


def _advance(part: Any, *given: Any) -> None:
    with np.errstate(all="ignore"):
        part.advance(*given)


def _chunks(fleets: Sequence[FleetStates], sums: int) -> int:
    """How many chunks: a power of two, so that two or four threads get the same share each."""
    blocks = max(-(-f.kernel.count // f.kernel.width) for f in fleets)
    states = sum(f.kernel.count * f.kernel.d for f in fleets)
    wanted = min(_MAX_CHUNKS, blocks // _BLOCKS_PER_CHUNK, states // (sums + len(MEASURES)))
    return 1 << (int(max(1, wanted)).bit_length() - 1)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GradientProblem:
    """Agents stated one by one, with the paper's release of values and gradients.

    Attributes:
        states: the symbols of all agents' states.
        objective: ``sum_i f_i``.
        rows: g_j, their constants included.
        lower: bounds, shape (n,).
        upper: likewise.
        sigma: of every g_j, 0 for none.
        entries: sigma of the released entries of g', by (row, state).
    """

    states: tuple[Expression, ...]
    objective: Expression
    rows: tuple[Expression, ...]
    lower: Array
    upper: Array
    sigma: Array
    entries: Mapping[tuple[int, int], float]


@final
class Ensemble:
    """Runs of Algorithm 1 in blocks of 16 lanes, or one by one; blocks change no number.

    Args:
        problem: the agents.
        x0: where all runs start.
        mu0: likewise.
        seeds: of every run's stream of normals.
    """

    def __init__(
        self, problem: GradientProblem, x0: Array, mu0: Array, seeds: Sequence[int]
    ) -> None:
        n, m = len(problem.states), len(problem.rows)
        self.n, self.m, self.runs = n, m, len(seeds)
        # Up to half a block of runs one by one is faster than a block with empty lanes.
        self.width = 1 if len(seeds) <= LANES // 2 else LANES
        self.blocks = -(-len(seeds) // self.width)
        self.released = m + len(problem.entries)
        self._sizes = {"width": self.width, "n": n, "m": m, "released": self.released}
        self._arrays = _gradient_arrays(problem, self._sizes)
        self._r = [self._arrays["r"].copy() for _ in range(self.blocks)]
        for r in self._r:
            shaped = r.reshape(-1, self.width)
            shaped[:n], shaped[n : n + m] = x0[:, None], mu0[:, None]
        self._failed = np.zeros((self.blocks, self.width))
        padded = np.array([*seeds, *[seeds[-1]] * (self.blocks * self.width - len(seeds))],
                          dtype=np.uint64)  # fmt: skip
        self._seeds = padded.reshape(self.blocks, self.width)

    @property
    def arrays(self) -> list[Array]:
        """Everything that rounds change."""
        return [*self._r, self._failed]

    def _by_run(self, first: int, count: int) -> Array:
        rows = [r.reshape(-1, self.width)[first : first + count] for r in self._r]
        return np.concatenate(rows, axis=1).T[: self.runs].copy()

    @property
    def x(self) -> Array:
        """The states, shape (runs, n)."""
        return self._by_run(0, self.n)

    @property
    def mu(self) -> Array:
        """The multipliers, shape (runs, m)."""
        return self._by_run(self.n, self.m)

    @property
    def failed(self) -> NDArray[np.int64]:
        """The round in which each run's numbers stopped being finite, or 0."""
        return self._failed.ravel()[: self.runs].astype(np.int64)

    def tasks(
        self,
        done: int,
        until: int,
        steps: Array,
        *,
        marks: Marks = _NO_MARKS,
        trace: Array | None = None,
        transcript: Array | None = None,
    ) -> list[Task]:
        """What takes the blocks through rounds ``done + 1 .. until``, one each.

        Args:
            done: rounds done.
            until: where to stop.
            steps: gamma and alpha of each, shape (until - done, 2).
            marks: the rounds after which to record x and mu; 0 is the start.
            trace: shape (blocks, marks, n + m, width), filled in.
            transcript: shape (blocks, rounds, released, width), filled in.
        """
        records = [[None if a is None else a[b] for a in (trace, transcript)]
                   for b in range(self.blocks)]  # fmt: skip
        return [
            partial(self.advance_block, b, done, until, steps, marks, *records[b])
            for b in range(self.blocks)
        ]

    def advance_block(
        self,
        block: int,
        done: int,
        until: int,
        steps: Array,
        marks: Marks,
        trace: Array | None,
        transcript: Array | None,
    ) -> None:
        """Take one block through rounds ``done + 1 .. until``; arguments as of ``tasks``."""
        own = {
            "r": self._r[block], "seeds": self._seeds[block], "failed": self._failed[block],
            "normals": np.zeros(2 * int(self._sizes["pairs"]) * LANES),
            "slopes": np.zeros(self.n * self.width),
        }  # fmt: skip
        part = core().EnsembleCore(self._sizes, self._arrays | own)
        kept = [_NOTHING if a is None else a.reshape(-1) for a in (trace, transcript)]
        _advance(part, done, until, steps.ravel(), marks, *kept)

    def advance(self, done: int, until: int, steps: Array, **records: Any) -> None:
        """Run the tasks, one after the other."""
        for task in self.tasks(done, until, steps, **records):
            task()


def _gradient_arrays(problem: GradientProblem, sizes: dict[str, int]) -> dict[str, NDArray[Any]]:
    """The arrays of ``EnsembleView``; adds the pairs of normals to ``sizes``."""
    states, n, m = problem.states, sizes["n"], sizes["m"]
    builder = TapeBuilder(n + m, {s: i for i, s in enumerate(states)})
    own = gradient(problem.objective, states)
    outputs = [builder.value(own.get(s, ZERO)) for s in states]
    outputs += [builder.value(g) for g in problem.rows]
    slopes = [gradient(g, states) for g in problem.rows]
    noisy = np.flatnonzero(problem.sigma)
    order = {entry: noisy.size + i for i, entry in enumerate(problem.entries)}
    place = {entry: m + i for i, entry in enumerate(problem.entries)}
    starts, table = [0], list[tuple[int, int, int]]()
    for i, s in enumerate(states):
        for j, dg in enumerate(slopes):
            if s in dg or (j, i) in order:
                outputs.append(builder.value(dg.get(s, ZERO)))
                table.append((j, order.get((j, i), -1), place.get((j, i), -1)))
        starts.append(len(table))
    code = builder.finish(outputs)
    row_order = np.full(m, -1, dtype=np.int64)
    row_order[noisy] = np.arange(noisy.size)
    sizes["pairs"] = (noisy.size + len(order) + 1) // 2
    columns = np.array(table, dtype=np.int64).reshape(-1, 3).T
    return {
        "code": code.lanes if sizes["width"] == LANES else code.one,
        "outputs": code.outputs,
        "r": registers_of([code], sizes["width"]),
        "lower": np.array(problem.lower, dtype=np.float64),
        "upper": np.array(problem.upper, dtype=np.float64),
        "sigma": np.array([*problem.sigma[noisy], *problem.entries.values()], dtype=np.float64),
        "row_order": row_order,
        "entry_start": np.array(starts, dtype=np.int64),
        "entry_row": np.ascontiguousarray(columns[0]),
        "entry_order": np.ascontiguousarray(columns[1]),
        "entry_output": np.ascontiguousarray(columns[2]),
    }
