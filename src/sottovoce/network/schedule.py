"""An algorithm's numbers, round by round."""

from __future__ import annotations

from typing import Final, final

import numpy as np

from sottovoce.algorithm.algorithm import Algorithm

_AHEAD: Final = 256


@final
class Schedule:
    """``k -> algorithm.schedule(k, rounds)``, worked out ahead: many cost hardly more than one."""

    def __init__(self, algorithm: Algorithm, rounds: int) -> None:
        self._algorithm, self._rounds = algorithm, rounds
        self._first = 0
        self._rows: list[list[float]] = []
        self._share = algorithm.scalars.index("share") if "share" in algorithm.scalars else None

    def __getitem__(self, k: int) -> list[float]:
        """The numbers of round k, in the order of ``algorithm.scalars``."""
        if not self._first <= k < self._first + len(self._rows):
            rows = self._algorithm.schedule(np.arange(k, k + _AHEAD), self._rounds)
            # As Python's numbers, which NumPy multiplies by faster than by its own.
            self._first, self._rows = k, rows.tolist()
        return self._rows[k - self._first]

    def share(self, k: int) -> float:
        """The weight of round k in the answer's average; 1 if the answer is the last iterate."""
        return 1.0 if self._share is None else self[k][self._share]
