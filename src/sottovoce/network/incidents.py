"""Refusals, counted by code and agent: a flood takes one row and crowds out nobody.

The run's own row says how many refusals there are in all, so rows cannot go missing unseen.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from typing import Final, final

from sottovoce.network.protocol.messages import Code
from sottovoce.network.seal import seal

TABLE: Final = """CREATE TABLE incidents (
    code TEXT NOT NULL,
    agent INTEGER NOT NULL,
    count INTEGER NOT NULL,
    first_at TEXT NOT NULL,
    last_at TEXT NOT NULL,
    last_k INTEGER NOT NULL,
    seal BLOB NOT NULL,
    PRIMARY KEY (code, agent)
) WITHOUT ROWID"""


@final
class Incidents:
    """Refusals that wait to be written; none of them holds a value."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()
        self._rounds: dict[tuple[str, int], int] = {}

    @property
    def total(self) -> int:
        """How many wait."""
        return self._counts.total()

    def note(self, code: Code, agents: tuple[int, ...], k: int) -> None:
        """Note a refusal of a connection's first agent, or of 0 if it had not said who it is."""
        key = code.value, agents[0] if agents else 0
        self._counts[key] += 1
        self._rounds[key] = k

    def write(self, database: sqlite3.Connection) -> None:
        """Add what waits to the table, within a transaction of the caller's."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        for (code, agent), count in self._counts.items():
            before = database.execute(
                "SELECT count, first_at FROM incidents WHERE code = ? AND agent = ?", (code, agent)
            ).fetchone()
            known, first = (0, now) if before is None else before
            row = (code, agent, known + count, first, now, self._rounds[code, agent])
            database.execute(
                "INSERT OR REPLACE INTO incidents VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*row, _seal(*row)),
            )

    def clear(self) -> None:
        """Forget what waits: it is written."""
        self._counts.clear()
        self._rounds.clear()


def read_incidents(database: sqlite3.Connection, total: int) -> dict[str, int] | None:
    """Return how many refusals there were by code; None if the table is not as it was written.

    Args:
        database: the store's.
        total: how many there must be in all.
    """
    found: Counter[str] = Counter()
    for *row, mark in database.execute("SELECT * FROM incidents"):
        try:
            whole = _seal(*row) == mark
        except (AttributeError, TypeError, OverflowError):  # values of other kinds
            whole = False
        if not whole:
            return None
        found[row[0]] += row[2]
    return dict(found) if found.total() == total else None


def _seal(code: str, agent: int, count: int, first: str, last: str, k: int) -> bytes:
    return seal(code.encode(), agent, count, first.encode(), last.encode(), k)
