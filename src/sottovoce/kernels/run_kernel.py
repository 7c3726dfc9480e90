"""Whole rounds of one run: compiled, by a team of threads, or taken one by one in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.algorithm.price_memory import PriceMemory
from sottovoce.algorithm.public_sum import PublicSum
from sottovoce.formula.tape import Array
from sottovoce.kernels.cloud_kernel import CloudKernel, PythonCloud
from sottovoce.kernels.core.plain import LANES
from sottovoce.kernels.fleet_kernel import MEASURES, FleetStates
from sottovoce.kernels.variant import core, variant

Task: TypeAlias = Callable[[], None]
"""A thread's part in rounds; all of a list must run at the same time."""

_MAX_CHUNKS: Final = 64
_BLOCKS_PER_CHUNK: Final = 8  # at least, as every chunk's sums have to be cleared and added up
_NO_MARKS: Final = np.zeros(0, dtype=np.int64)
_NO_NUMBERS: Final = np.zeros(0)


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


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Release:
    """How sums are released in simulation."""

    offset: Array  # the constants of the rows
    sigma: Array  # the standard deviation of every sum, 0 for none; in the units of the sums
    grid: Array | None  # of every sum under a plan, the offset then in grid steps; else None
    seeds: tuple[int, ...] = ()  # by run, of its stream of normals
    entries: Sequence[float] = ()  # sigma of every noisy entry of dg/dx, which follow


@final
class Run:
    """One run of all fleets, or 16 of Algorithm 1 in lanes.

    Args:
        fleets: with their states; named agents are fleets of one.
        release: offset, noise and grid; with several seeds the only fleet has an agent per run.
        cloud: C and the constants of dual averaging; None runs Algorithm 1.
        warm: what an earlier run's cloud learnt, to begin with.
        threads: how many, at most.

    Attributes:
        cloud: the cloud's state; None for Algorithm 1.
        mu: the multipliers of Algorithm 1, in lanes.
        failed_round: by run the round in which numbers stopped being finite, or 0.
    """

    def __init__(
        self,
        fleets: Sequence[FleetStates],
        release: Release,
        cloud: tuple[PublicSum, DualAveraging] | None,
        *,
        warm: PriceMemory | None = None,
        threads: int = 1,
    ) -> None:
        lanes = len(release.seeds)
        p = release.offset.size * lanes
        self.fleets, self._release, self._cloud_of = list(fleets), release, cloud
        self._warm = warm
        self.mu, self.failed_round = np.zeros(p), np.zeros(lanes)
        self.cloud = self._new_cloud()
        self.chunks = _chunks(fleets, p)
        self.threads = 1 if variant() == "plain" else min(threads, self.chunks)
        self._parts = np.zeros(3 * self.chunks * (p + len(MEASURES) * lanes))
        sigma = np.concatenate([release.sigma, release.entries])
        noisy = np.flatnonzero(sigma)
        self._order = np.full(sigma.size, -1, dtype=np.int64)
        self._order[noisy] = np.arange(noisy.size)
        self._sigma = sigma[noisy]
        self._helpers = [[f.kernel.core(f) for f in fleets] for _ in range(1, self.threads)]
        self._first = self._part(0)

    def tasks(
        self,
        done: int,
        until: int,
        steps: Array,
        *,
        marks: NDArray[np.int64] = _NO_MARKS,
        trace: Array = _NO_NUMBERS,
        transcript: Array = _NO_NUMBERS,
    ) -> list[Task]:
        """The tasks of rounds ``done + 1 .. until``, one per thread.

        Args:
            done: rounds done.
            until: where to stop.
            steps: a row per round: share, steer and theta with prices, gamma and alpha without.
            marks: the rounds after which to measure, among these; 0 is the start.
            trace: per mark the sums, ``MEASURES``, the answer's prices and the last ones, each in
                lanes, filled in.
            transcript: a row of releases per round, filled in; empty for none.
        """
        counter = np.zeros(1, dtype=np.int64)
        shared = (done, until, steps.ravel(), counter, marks, trace.reshape(-1))
        tasks: list[Task] = [partial(advance, self._first, *shared, transcript.reshape(-1))]
        for me in range(1, self.threads):
            tasks.append(partial(advance, self._part(me), *shared, _NO_NUMBERS))
        return tasks

    def _new_cloud(self) -> CloudKernel | None:
        if self._cloud_of is None:
            return None
        planned = self._release.grid is not None
        return CloudKernel(*self._cloud_of, planned=planned, warm=self._warm)

    def _part(self, me: int) -> Any:
        """One thread's part; helpers work on copies of what is small."""
        release, lanes, p = self._release, len(self._release.seeds), self.mu.size
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
            "lanes": lanes, "gridded": release.grid is not None, "entries": len(release.entries),
        }  # fmt: skip
        arrays = {
            "offset": np.repeat(release.offset, lanes), "sigma": self._sigma, "order": self._order,
            "grid": np.ones(p) if release.grid is None else release.grid,
            "normals": np.zeros(2 * pairs * LANES), "parts": self._parts, "y": np.zeros(p),
            "failed": failed, "mu": mu, "seeds": np.array(release.seeds, dtype=np.uint64),
            "pointers": np.zeros(max(1, len(self.fleets)), dtype=np.uint64),
        }  # fmt: skip
        fleets = [f.core for f in self.fleets] if me == 0 else self._helpers[me - 1]
        data = fleets[0].arrays["data"]
        arrays["entry_noise"] = data[data.size - len(release.entries) * lanes :]
        return core().RunCore(sizes, arrays, fleets, None if cloud is None else cloud.core)


def advance(part: Any, *arguments: Any) -> None:
    """Let a compiled part take rounds; a number that is not finite is noted, not warned of."""
    with np.errstate(all="ignore"):
        part.advance(*arguments)


def _chunks(fleets: Sequence[FleetStates], sums: int) -> int:
    """How many chunks: a power of two, so that two or four threads get the same share each."""
    blocks = max(-(-f.kernel.count // f.kernel.width) for f in fleets)
    states = sum(f.kernel.count * f.kernel.d for f in fleets)
    chunks = min(_MAX_CHUNKS, blocks // _BLOCKS_PER_CHUNK, states // (sums + len(MEASURES)))
    return 1 << (int(max(1, chunks)).bit_length() - 1)


@final
class PythonRun:
    """A run that Python takes round by round: an objective or the cloud's step is code.

    Agents with formulas and the default cloud still take their compiled halves of a round; a round
    costs what Python costs, a tenth of a millisecond and more, instead of microseconds.
    """

    def __init__(
        self,
        fleets: Sequence[FleetStates],
        release: Release,
        cloud: CloudKernel | PythonCloud,
    ) -> None:
        self.fleets, self.cloud = list(fleets), cloud
        self._release = release
        self.failed_round = np.zeros(1)

    def tasks(self, done: int, until: int, steps: Array, **records: Any) -> list[Task]:
        """One task, as of ``Run.tasks``."""
        return [partial(self._advance, done, until, steps, **records)]

    def _advance(
        self,
        done: int,
        until: int,
        steps: Array,
        *,
        marks: NDArray[np.int64],
        trace: Array,
        transcript: Array,
    ) -> None:
        trace, transcript = trace[..., 0], transcript[..., 0]  # one run, without lanes
        noisy = np.flatnonzero(self._release.sigma)
        z = normals(self._release.seeds[0], until - done, noisy.size, done=done)
        numbers, mark = steps.tolist(), 0
        if done == 0 and marks.size > 0 and marks[0] == 0:
            trace[0], mark = self._measured(), 1
        p, grid = self.cloud.price.size, self._release.grid
        sums = sum((f.contributions(p, grid) for f in self.fleets), np.zeros(p))
        for k in range(done + 1, until + 1):
            if not self.failed_round[0]:
                y = self._released(sums, noisy, z[k - done - 1])
                if transcript.size > 0:
                    transcript[k - done - 1] = y
                sums = self._round(k, y, sums, *numbers[k - done - 1])
            if mark < marks.size and marks[mark] == k:
                trace[mark] = self._measured()
                mark += 1

    def _released(self, sums: Array, noisy: NDArray[np.int64], z: Array) -> Array:
        release = self._release
        y = release.offset + sums
        if release.grid is not None:
            y *= release.grid
        y[noisy] += release.sigma[noisy] * z
        return y

    def _round(
        self, k: int, y: Array, sums: Array, share: float, steer: float, theta: float
    ) -> Array:
        """Return the contributions after round k."""
        if not self.cloud.round(k, y, share=share, steer=steer):
            self.failed_round[0] = k
            return sums
        price, grid = self.cloud.price, self._release.grid
        total = np.zeros(price.size)
        for fleet in self.fleets:
            total += fleet.round(k, price, theta=theta, share=share, grid=grid)
        return total

    def _measured(self) -> Array:
        """Sums at the answer, the measures, the answer's prices and the last ones."""
        answer = self.cloud.answer
        measured = np.concatenate([self._release.offset, np.zeros(len(MEASURES))])
        for fleet in self.fleets:
            measured += fleet.measure(answer)
        return np.concatenate([measured, answer, self.cloud.price])
