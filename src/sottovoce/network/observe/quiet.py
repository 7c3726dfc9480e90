"""How often one thing may be said in a log: a flood must not fill the journal."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Final, final

LINES: Final = 5
PERIOD_SECONDS: Final = 60.0


@final
class Quiet:
    """Lets a few lines of each kind through per minute, and counts the rest."""

    def __init__(self) -> None:
        self._said: dict[Hashable, tuple[float, int]] = {}

    def unsaid(self, kind: Hashable) -> int | None:
        """Return how many lines of this kind were left out before this one; None: leave it out."""
        now = time.monotonic()
        since, count = self._said.get(kind, (now, 0))
        if now - since >= PERIOD_SECONDS:
            self._said[kind] = (now, 1)
            return max(0, count - LINES)
        self._said[kind] = (since, count + 1)
        return 0 if count < LINES else None
