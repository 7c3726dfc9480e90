"""The fence: per run, the last round that may be sent, so that no copy of a store sends it again.

A cloud commits round k in its store, then raises the fence from k - 1 to k in the ledger, then
sends. Both steps are durable. The fence rises by exactly one and keeps the digest of what it let
through, hence

- a store may be ahead of the fence by one round, after a crash between the two commits. That round
  was not sent, and the fence is raised before anything is;
- a store that does not hold the fenced round with the fenced digest is a copy or an old backup, or
  lost a race against one: what it would send was sent already, with other noise. It is refused;
- of two clouds on two copies at most one raises the fence to any round. The other has committed
  its round in its own store and sent nothing, and never will: its digest is another one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import final

from sottovoce.errors import PrivacyError, RollbackError, UnavailableError
from sottovoce.privacy.ledger_file import connect_ledger, ledger_errors

Digests = Callable[[int], bytes | None]
"""The digest of a round in a store, None for a round that it does not hold."""

RAISE = "UPDATE runs SET fence = ?, digest = ? WHERE run_id = ? AND fence = ? AND digest = ?"


@final
class Fence:
    """One run's fence, on a connection of its own: opening the ledger anew costs several commits.

    Args:
        path: the ledger.
        run_id: names a run that is recorded there.
        k: the round at which the fence stands.
        digest: of round k.
    """

    def __init__(self, path: Path, run_id: str, k: int, digest: bytes) -> None:
        self._path = path
        self._run_id = run_id
        self._standing = k, digest
        with ledger_errors(path):
            self._database = connect_ledger(path)
        self._file = _identity(path)

    def rise(self, k: int, digest: bytes) -> None:
        """Let round k through; returns only when that is on disk.

        Raises:
            RollbackError: another cloud was here first; nothing of this round may be sent.
            UnavailableError: the ledger cannot be written now; start again to continue.
        """
        if k != self._standing[0] + 1:
            raise PrivacyError(
                f"the fence of run {self._run_id!r} must rise by one round, got round {k} after "
                f"round {self._standing[0]}"
            )
        if _identity(self._path) != self._file:
            raise PrivacyError(
                f"ledger {self._path} was replaced while a run used it; nothing may be released "
                "before it is the newest one again"
            )
        with ledger_errors(self._path):
            # One statement is a transaction by itself.
            values = (k, digest, self._run_id, *self._standing)
            risen = self._database.execute(RAISE, values).rowcount
        if risen != 1:
            raise RollbackError(
                f"round {k} of run {self._run_id!r} must be released once, but another cloud has "
                f"raised the fence in ledger {self._path}: this store is a copy; nothing was sent"
            )
        self._standing = k, digest

    def close(self) -> None:
        """Give the ledger back."""
        self._database.close()


def place(database: sqlite3.Connection, run_id: str, rounds: int, digest: Digests) -> None:
    """Check a store against the fence, and raise it if a crash left it one round behind.

    Args:
        database: the ledger, in an immediate transaction.
        run_id: the run, recorded there.
        rounds: how many rounds the store holds.
        digest: of its rounds.

    Raises:
        RollbackError: the store is behind the fence, or holds another round there.
        PrivacyError: the ledger is behind the store.
    """
    fence, known = database.execute(
        "SELECT fence, digest FROM runs WHERE run_id = ?", (run_id,)
    ).fetchone()
    if rounds < fence:
        raise RollbackError(
            f"the store of run {run_id!r} must hold every round that was released, got {rounds} "
            f"of {fence}: it is a copy or an old backup, and would release round {rounds + 1} "
            "again with other noise; use the newest store, or start a new run with a new store, "
            "which spends privacy anew"
        )
    if fence > 0 and digest(fence) != known:
        raise RollbackError(
            f"the store of run {run_id!r} must hold round {fence} as it was released, got another "
            "one: it is a copy that another cloud has overtaken; use that cloud's store, or start "
            "a new run with a new store, which spends privacy anew"
        )
    if rounds > fence + 1:
        raise PrivacyError(
            f"the ledger must know all {rounds} rounds of run {run_id!r} but the last, got "
            f"{fence}: it is an old copy, or the run was continued without it; restore the newest "
            "ledger, or start a new run with a new store, which spends privacy anew"
        )
    if rounds == fence + 1:
        last = digest(rounds) or b""
        database.execute(RAISE, (rounds, last, run_id, fence, known))


def _identity(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise UnavailableError(
            f"ledger {path} cannot be used now ({error.strerror}); nothing may be released "
            "without it"
        ) from None
    return status.st_dev, status.st_ino
