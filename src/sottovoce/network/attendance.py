"""Who is missing and since when, and who held the last rounds up: identities, never states."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Final, final

from sottovoce.network.journal_file import utc
from sottovoce.network.observe.logs import note
from sottovoce.network.protocol.cloud_machine import CloudMachine

RECENT: Final = 100
"""Rounds over which those who answered last are counted."""

NAMED: Final = 100
"""Agents named on a page; a page must stay readable where a whole fleet is missing."""

LOGGED: Final = 16
"""Agents named in a line of the log."""


@final
class Attendance:
    """Keeps count for one cloud.

    Args:
        agents: those who should be there, from 1; all are missing to begin with.
    """

    def __init__(self, agents: Sequence[int]) -> None:
        self._everybody = agents
        now = time.time()
        self._since = dict.fromkeys(self._everybody, now)
        self._last: deque[tuple[int, ...]] = deque(maxlen=RECENT)
        self._moves = 0

    def look(self, machine: CloudMachine) -> None:
        """Log who has come and gone since the last look; a fleet is counted when some have."""
        if machine.moves == self._moves:
            return
        self._moves, here, now = machine.moves, machine.present, time.time()
        gone = [a for a in self._everybody if a not in here and a not in self._since]
        back = [a for a in self._since if a in here]
        for agent in gone:
            self._since[agent] = now
        for agent in back:
            del self._since[agent]
        if gone:
            note("absent", level=logging.WARNING, agents=gone[:LOGGED], missing=len(self._since))
        if back:
            note("present", agents=back[:LOGGED], missing=len(self._since))

    def completed(self, agents: Sequence[int]) -> None:
        """A round is complete; these agents were the last, or were held."""
        self._last.append(tuple(agents))

    @property
    def missing(self) -> int:
        """How many agents are absent."""
        return len(self._since)

    def absent(self) -> list[dict[str, Any]]:
        """Return who is missing, the longest first, a hundred at most.

        Each with "agent", from 1; "since", when it was last seen, or when the cloud started, UTC;
        and "seconds", how long ago that was.
        """
        now = time.time()
        longest = sorted(self._since.items(), key=lambda item: (item[1], item[0]))
        return [
            {"agent": agent, "since": utc(since), "seconds": round(max(0.0, now - since), 3)}
            for agent, since in longest[:NAMED]
        ]

    def laggards(self) -> list[dict[str, Any]]:
        """Return who completed the last 100 rounds, so that all others waited for it.

        The most frequent first, each with "agents", those on one connection, such as "3" or
        "1-250", or those held in a round; and "rounds", in how many of them.
        """
        counts = Counter(self._last).most_common(NAMED)
        return [{"agents": _named(agents), "rounds": rounds} for agents, rounds in counts]


def _named(agents: tuple[int, ...]) -> str:
    """Agents as ranges, ``1-3,7``."""
    parts: list[list[int]] = []
    for agent in agents:
        if parts and agent == parts[-1][1] + 1:
            parts[-1][1] = agent
        else:
            parts.append([agent, agent])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
