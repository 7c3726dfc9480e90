"""Token buckets: so much at once, and so much in the long run."""

from __future__ import annotations

import time
from typing import final


@final
class Bucket:
    """Holds up to ``capacity`` tokens, and gains ``rate`` of them per second.

    The clock is read only when there are too few, which a message for every agent and round can
    afford. So tokens taken long ago come back all at once, and twice the capacity may be taken
    within an instant, never more.

    Args:
        capacity: what may be taken at once.
        rate: what may be taken per second in the long run.
    """

    __slots__ = ("_at", "_capacity", "_level", "_rate")

    def __init__(self, capacity: float, rate: float) -> None:
        self._capacity = self._level = float(capacity)
        self._rate = float(rate)
        self._at = time.monotonic()

    def take(self, amount: float = 1.0) -> bool:
        """Take tokens; False, and nothing is taken, if there are too few."""
        if self._level < amount:
            self._fill()
            if self._level < amount:
                return False
        self._level -= amount
        return True

    def put(self, amount: float) -> None:
        """Put tokens in, beside those that come with time."""
        self._level = min(self._capacity, self._level + amount)

    def wait(self, amount: float = 1.0) -> float:
        """Return the seconds until so many tokens will be there."""
        self._fill()
        return max(0.0, (amount - self._level) / self._rate)

    def _fill(self) -> None:
        now = time.monotonic()
        self._level = min(self._capacity, self._level + (now - self._at) * self._rate)
        self._at = now
