"""The engine's noise on the network, so that a study in one process can be checked against it."""

from __future__ import annotations

from typing import final

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.kernels.core.plain import LANES
from sottovoce.kernels.rounds import normals, stream_seed
from sottovoce.privacy.sampler import Integers, Released, Sampler, grid_of
from sottovoce.problem.agents import Array


@final
class EngineSampler(Sampler):
    """The normals of ``simulate``'s first run with the same seed. Simulated: not private.

    Args:
        sigma: standard deviation of each output.
        seed: of ``simulate``.
        done: rounds already released; the next release is that of round ``done + 1``.
    """

    def __init__(self, sigma: Array, seed: int, *, done: int = 0) -> None:
        self._sigma = sigma
        self._stream = stream_seed(seed, 0)
        self._done = self._drawn = done
        self._normals = np.empty((0, sigma.size))

    def release_multiples(self, multiples: Integers) -> Released:
        """Return multiples * grid + sigma z, as the engine does with contributions."""
        return self.release(multiples * grid_of(self._sigma))

    def release(self, values: ArrayLike) -> Released:
        """Return values + sigma z with the engine's z of this round."""
        if self._done == self._drawn:
            self._normals = normals(self._stream, LANES, self._sigma.size, done=self._done)
            self._drawn += LANES
        noise = self._sigma * self._normals[self._done - self._drawn]
        self._done += 1
        return Released(values=np.asarray(values, dtype=np.float64) + noise)
