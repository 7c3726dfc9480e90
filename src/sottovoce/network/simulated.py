"""The engine's noise on the network, so that a study in one process can be checked against it."""

from __future__ import annotations

from typing import final

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.engine.normals import fill_pairs, stream_seeds
from sottovoce.privacy.sampler import Integers, Released, Sampler, grid_of
from sottovoce.problem.agents import Array


@final
class EngineSampler(Sampler):
    """The normals of ``solve``'s first run with the same seed. Simulated: not private.

    Args:
        sigma: standard deviation of each output.
        seed: of ``solve``.
        done: rounds already released; the next release is that of round ``done + 1``.
    """

    def __init__(self, sigma: Array, seed: int, *, done: int = 0) -> None:
        self._sigma = sigma
        self._stream = stream_seeds(seed, range(1))[0]
        self._done = done
        self._pairs = (sigma.size + 1) // 2
        self._normals = np.empty(2 * self._pairs)

    def release_multiples(self, multiples: Integers) -> Released:
        """Return multiples * grid + sigma z, as the engine does with contributions."""
        return self.release(multiples * grid_of(self._sigma))

    def release(self, values: ArrayLike) -> Released:
        """Return values + sigma z with the engine's z of this round."""
        fill_pairs(self._stream, self._done, self._pairs, 0, self._pairs, self._normals)
        self._done += 1
        noise = self._sigma * self._normals[: self._sigma.size]
        return Released(values=np.asarray(values, dtype=np.float64) + noise)
