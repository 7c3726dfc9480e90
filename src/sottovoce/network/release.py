"""A round in which everybody has spoken, up to where it may be sent."""

from __future__ import annotations

from typing import final

from sottovoce.network.protocol.actions import Commit, Record
from sottovoce.network.rounds import Rounds
from sottovoce.network.store import CloudStore
from sottovoce.privacy.fence import Fence


@final
class Release:
    """Adds up, adds noise, steps, writes and fences: in this order, and nothing is sent before.

    Args:
        rounds: adds up, adds the noise and steps.
        store: where the round is written.
        fence: of the run in the ledger, if there is one.
        first: digest(0).
    """

    def __init__(
        self, rounds: Rounds, store: CloudStore, fence: Fence | None, first: bytes
    ) -> None:
        self._rounds = rounds
        self._store = store
        self._fence = fence
        self._first = first

    def __call__(self, full: Commit, last: Record | None, answer: bytes = b"") -> Record:
        """Return the round: durable in the store and fenced off in the ledger, so it may be sent.

        Args:
            full: what was said in it.
            last: the round before.
            answer: the helper's, of a split cloud.

        Raises:
            DivergedError: the prices ran away; the round has no outcome.
            DiskError: it cannot be written now.
            RollbackError: the ledger knows of a round that the store does not hold.
        """
        previous = self._first if last is None else last.digest
        record, released = self._rounds.play(full.k, full.parts, previous, full.held, answer)
        self._store.commit(record, released)
        if self._fence is not None:
            self._fence.rise(record.k, record.digest)
        return record

    def prepare(self) -> None:
        """Have noise drawn for the rounds to come, while nobody knows what is said in them."""
        self._rounds.prepare()
