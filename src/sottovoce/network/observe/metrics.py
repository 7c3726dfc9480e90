"""Counters of one process.

None depends on a state, but for the count of clipped contributions, which honest agents leave at 0.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Final, final

from prometheus_client import Histogram

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper ends of the round latency histogram, seconds."""

TURNED_AWAY: Final = ("accept", "address", "certificate", "crowd", "descriptors", "flood",
                      "handshake", "pages", "request", "viewer")  # fmt: skip
"""Why a connection may be turned away."""


@final
class Metrics:
    """Counts rounds, refusals and connections turned away."""

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        self.turned_away: Counter[str] = Counter()
        self.held = 0
        self.round_seconds = Histogram(
            "sottovoce_round_seconds", "Time from one round to the next.", buckets=BUCKETS,
            registry=None,
        )  # fmt: skip
        self.start()

    @property
    def waited(self) -> float:
        """Seconds since the last round, or since the start."""
        return time.perf_counter() - self._marked

    def start(self) -> None:
        """The cloud listens from now on."""
        self._marked = time.perf_counter()

    def round(self, *, held: int) -> None:
        """Count a round and how long it took from the one before."""
        now = time.perf_counter()
        self.round_seconds.observe(now - self._marked)
        self._marked = now
        self.held += held
