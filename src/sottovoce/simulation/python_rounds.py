"""Rounds that Python takes one by one: with objectives, or a cloud's step, that are code.

Agents with formulas and the default cloud still take their compiled halves of a round; a round
costs what Python costs, a tenth of a millisecond and more, instead of microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import final

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithm.algorithm import CloudStep
from sottovoce.errors import InputError
from sottovoce.kernels.cloud_kernel import RUNAWAY, CloudKernel, Gains, PublicSum
from sottovoce.kernels.fleet_kernel import MEASURES, FleetStates
from sottovoce.kernels.run_kernel import Release, normals
from sottovoce.problem.agents import Array
from sottovoce.simulation.drive import Task


@final
class PythonCloud:
    """What ``CloudKernel`` is, around a user's step: averages and steering are the same.

    Args:
        algorithm: with the step.
        public: C and the noise.
        planned: whether releases are noisy, so that the answer is an average.
    """

    def __init__(self, algorithm: CloudStep, public: PublicSum, *, planned: bool) -> None:
        self._algorithm, self._public, self._planned = algorithm, public, planned
        p = np.size(public.unit)
        self.price, self.answer, self.released = np.zeros(p), np.zeros(p), np.zeros(p)
        self.memory = np.zeros(algorithm.memory_size(p))
        self.nearest = CloudKernel(public, Gains(), planned=False).nearest

    def round(self, k: int, y: Array, *, share: float, steer: float = 0.0) -> bool:
        """Take the release of round k in; return whether prices stayed bounded."""
        if self._planned:
            self.answer += share * (self.price - self.answer)
            self.released += share * (y - self.released)
            if steer > 0.0:
                y = y + steer * (self.released - self.nearest(self.released))
        price = self._algorithm.cloud_round(
            k, y, self.price.copy(), self.memory, self._public, self.nearest
        )
        if np.shape(price) != self.price.shape:
            raise InputError(
                f"cloud_round must return {self.price.size} prices, got shape {np.shape(price)}"
            )
        self.price[:] = price
        if not self._planned:
            self.answer += share * (self.price - self.answer)
        return bool(np.all(np.abs(self.price) < RUNAWAY))


@final
class PythonRun:
    """What ``kernels.run_kernel.Run`` is, in Python.

    Args:
        fleets: with their states.
        release: offset, noise and grid.
        cloud: its state and its step.
        theta: the weight of the agents' damping.
    """

    def __init__(
        self,
        fleets: Sequence[FleetStates],
        release: Release,
        cloud: CloudKernel | PythonCloud,
        theta: float,
    ) -> None:
        self.fleets, self.cloud = list(fleets), cloud
        self._release, self._theta = release, theta
        self.failed_round = np.zeros(1)

    @property
    def failed(self) -> int:
        """The round in which prices diverged, or 0."""
        return int(self.failed_round[0])

    def tasks(
        self,
        done: int,
        until: int,
        steps: Array,
        *,
        marks: NDArray[np.int64],
        trace: Array,
        transcript: Array,
    ) -> list[Task]:
        """What takes the run through rounds ``done + 1 .. until``; as of ``Run``."""
        return [partial(self._advance, done, until, steps, marks, trace, transcript)]

    def _advance(
        self,
        done: int,
        until: int,
        steps: Array,
        marks: NDArray[np.int64],
        trace: Array,
        transcript: Array,
    ) -> None:
        noisy = np.flatnonzero(self._release.sigma)
        z = normals(self._release.seed, until - done, noisy.size, done=done)
        numbers, mark = steps.reshape(-1, 2).tolist(), 0
        if done == 0 and marks.size > 0 and marks[0] == 0:
            trace[0], mark = self._measured(), 1
        p, grid = self.cloud.price.size, self._release.grid
        sums = sum((f.contributions(p, grid) for f in self.fleets), np.zeros(p))
        for k in range(done + 1, until + 1):
            if not self.failed:
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

    def _round(self, k: int, y: Array, sums: Array, share: float, steer: float) -> Array:
        """Return the contributions after round k."""
        if not self.cloud.round(k, y, share=share, steer=steer):
            self.failed_round[0] = k
            return sums
        price, grid = self.cloud.price, self._release.grid
        every = (f.round(k, price, theta=self._theta, share=share, grid=grid) for f in self.fleets)
        return np.asarray(sum(every, np.zeros(price.size)))

    def _measured(self) -> Array:
        """Sums at the answer, the measures, the answer's prices and the last ones."""
        total, answer = np.zeros(len(MEASURES)), self.cloud.answer
        sums = self._release.offset.copy()
        for fleet in self.fleets:
            own, measures = fleet.measure(answer)
            sums += own
            total += [measures[name] for name in MEASURES]
        return np.concatenate([sums, total, answer, self.cloud.price])
