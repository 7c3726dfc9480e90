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

The ledger's file is SQLite in WAL mode with synchronous=FULL, created whole or not at all.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, final

from sottovoce.errors import InputError, PrivacyError, RollbackError, UnavailableError

LOCK_SECONDS: Final = 60.0  # seconds to wait while another process writes

_TRANSIENT: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
    }
)
"""Errors that time or a restart resolves; the ledger is undamaged."""

APPLICATION: Final = int.from_bytes(b"svlg")
SCHEMA: Final = 2

# radius: NULL for "everything"
# spent: the exact sum of the squares in units of 4^-BITS, hexadecimal
# fence, digest: the last round of the run that may be sent
TABLES: Final = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {SCHEMA};
CREATE TABLE accounts (
    agent TEXT PRIMARY KEY,
    hide TEXT NOT NULL,
    radius REAL,
    epsilon REAL NOT NULL,
    delta REAL NOT NULL,
    budget REAL NOT NULL,
    spent TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE runs (
    number INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    note TEXT NOT NULL,
    at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now')),
    fence INTEGER NOT NULL DEFAULT 0,
    digest BLOB NOT NULL DEFAULT x''
);
CREATE TABLE spends (
    number INTEGER NOT NULL REFERENCES runs,
    agent TEXT NOT NULL REFERENCES accounts,
    hide TEXT NOT NULL,
    radius REAL,
    mu REAL NOT NULL,
    allowance REAL NOT NULL,
    PRIMARY KEY (number, agent)
) WITHOUT ROWID;
"""


def create_ledger(path: Path) -> None:
    """Make an empty ledger beside path and link it into place whole, or not at all."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    except OSError as error:
        raise InputError(f"ledger {path} cannot be created: {error.strerror}") from error
    os.close(handle)
    try:
        with closing(_connect(Path(name))) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.executescript(f"BEGIN; {TABLES} COMMIT;")
        try:
            os.link(name, path)
        except FileExistsError:
            return  # another process was faster
        directory = os.open(path.parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
    finally:
        Path(name).unlink()


@contextmanager
def transaction(path: Path, kind: str) -> Iterator[sqlite3.Connection]:
    """Commit what the body did; if it raises, closing the file undoes all of it."""
    with ledger_errors(path), closing(_connect(path)) as database:
        database.execute(f"BEGIN {kind}")
        _check_version(database, path)
        yield database
        database.execute("COMMIT")


@contextmanager
def ledger_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours: UnavailableError if they are transient."""
    try:
        yield
    except sqlite3.Error as error:
        # The low byte of the extended code is the kind of error.
        transient = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in _TRANSIENT
        kind, now = (UnavailableError, " now") if transient else (PrivacyError, "")
        raise kind(
            f"ledger {path} cannot be used{now} ({error}); nothing may be released without it"
        ) from error


def _connect(path: Path) -> sqlite3.Connection:
    """Open a file that exists: a ledger that vanished does not come back empty."""
    address = f"{path.absolute().as_uri()}?mode=rw"
    database = sqlite3.connect(address, uri=True, timeout=LOCK_SECONDS, isolation_level=None)
    database.execute("PRAGMA synchronous = FULL")
    database.execute("PRAGMA foreign_keys = ON")
    return database


def _check_version(database: sqlite3.Connection, path: Path) -> None:
    application = database.execute("PRAGMA application_id").fetchone()[0]
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION:
        raise PrivacyError(f"{path} is not a ledger: restore it or choose another file")
    if version == 1:
        raise PrivacyError(
            f"ledger {path} must have schema version {SCHEMA}, got 1, which does not say for which "
            "adjacency and radius its budgets were spent: read what remains with the release that "
            "wrote it, and grant that much in a new file"
        )
    if version != SCHEMA:
        raise PrivacyError(
            f"ledger {path} must have schema version {SCHEMA}, got {version}: "
            "use the release of sottovoce that wrote it"
        )


Digests = Callable[[int], bytes | None]  # of a round in a store; None for one it does not hold
RAISE_FENCE = "UPDATE runs SET fence = ?, digest = ? WHERE run_id = ? AND fence = ? AND digest = ?"


@final
class Fence:
    """One run's fence, on a connection of its own: opening the ledger anew costs several commits.

    The run is recorded in the ledger at ``path``, and the fence stands at round k with its digest.
    """

    def __init__(self, path: Path, run_id: str, k: int, digest: bytes) -> None:
        self._path = path
        self._run_id = run_id
        self._standing = k, digest
        with ledger_errors(path):
            self._database = _connect(path)
        self._file = _file_identity(path)

    def rise(self, k: int, digest: bytes) -> None:
        """Let round k through; returns only when that is on disk.

        Raises:
            RollbackError: another cloud raised it first; nothing of this round may be sent.
            UnavailableError: the ledger cannot be written now; start again to continue.
        """
        if k != self._standing[0] + 1:
            raise PrivacyError(
                f"the fence of run {self._run_id!r} must rise by one round, got round {k} after "
                f"round {self._standing[0]}"
            )
        if _file_identity(self._path) != self._file:
            raise PrivacyError(
                f"ledger {self._path} was replaced while a run used it; nothing may be released "
                "before it is the newest one again"
            )
        with ledger_errors(self._path):
            # One statement is a transaction by itself.
            values = (k, digest, self._run_id, *self._standing)
            risen = self._database.execute(RAISE_FENCE, values).rowcount
        if risen != 1:
            raise RollbackError(
                f"round {k} of run {self._run_id!r} must be released once, but another cloud has "
                f"raised the fence in ledger {self._path}: this store is a copy; nothing was sent"
            )
        self._standing = k, digest

    def close(self) -> None:
        """Close the connection to the ledger."""
        self._database.close()


def require_fence(database: sqlite3.Connection, run_id: str, rounds: int, digest: Digests) -> None:
    """Check a store of so many rounds against the fence; raise it if a crash left it one behind.

    Raises:
        RollbackError: the store is behind the fence, or holds another round there.
        PrivacyError: the ledger is behind the store.
    """
    fence, fenced_digest = database.execute(
        "SELECT fence, digest FROM runs WHERE run_id = ?", (run_id,)
    ).fetchone()
    if rounds < fence:
        raise RollbackError(
            f"the store of run {run_id!r} must hold every round that was released, got {rounds} "
            f"of {fence}: it is a copy or an old backup, and would release round {rounds + 1} "
            "again with other noise; use the newest store, or start a new run with a new store, "
            "which spends privacy anew"
        )
    if fence > 0 and digest(fence) != fenced_digest:
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
        last_digest = digest(rounds) or b""
        database.execute(RAISE_FENCE, (rounds, last_digest, run_id, fence, fenced_digest))


def _file_identity(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise UnavailableError(
            f"ledger {path} cannot be used now ({error.strerror}); nothing may be released "
            "without it"
        ) from None
    return status.st_dev, status.st_ino
