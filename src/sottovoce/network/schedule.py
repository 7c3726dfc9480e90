"""The answer's weights, round by round, worked out ahead: many cost hardly more than one."""

from __future__ import annotations

from typing import Final, final

import numpy as np

from sottovoce.algorithm.algorithm import PriceRounds

_AHEAD: Final = 256


@final
class Shares:
    """The weight of every round in the answer's average; a network's releases are noisy."""

    def __init__(self, algorithm: PriceRounds, rounds: int) -> None:
        self._algorithm, self._rounds = algorithm, rounds
        self._first = 0
        self._shares: list[float] = []

    def __getitem__(self, k: int) -> float:
        """The weight of round k."""
        if not self._first <= k < self._first + len(self._shares):
            ahead = np.arange(k, k + _AHEAD)
            self._first = k
            self._shares = self._algorithm.share(ahead, self._rounds, noisy=True).tolist()
        return self._shares[k - self._first]
