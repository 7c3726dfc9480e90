"""A cloud whose step is a user's own Python function."""

from __future__ import annotations

from typing import final

import numpy as np

from sottovoce.algorithm.algorithm import CloudStep
from sottovoce.errors import InputError
from sottovoce.kernels.cloud import Cloud, Gains, PublicSum
from sottovoce.problem.agents import Array

_RUNAWAY = 1e20  # no objective is worth so much: contributions do not answer to prices


@final
class OwnCloud:
    """What ``kernels.cloud.Cloud`` is, around a user's step: averages and steering are the same.

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
        self.nearest = Cloud(public, Gains(), planned=False).nearest

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
        return bool(np.all(np.abs(self.price) < _RUNAWAY))
