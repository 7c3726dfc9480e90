"""The ledger's file: SQLite in WAL mode with synchronous=FULL, created whole or not at all."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from sottovoce.errors import InputError, PrivacyError, UnavailableError

PATIENCE: Final = 60.0
"""Seconds to wait while another process writes."""

_PASSING: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
    }
)
"""Kinds of errors that time or a restart mends: what a ledger holds is as good as before."""

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
        with closing(_connect(Path(name).absolute().as_uri())) as database:
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


def connect_ledger(path: Path) -> sqlite3.Connection:
    """Open a ledger that exists; one that vanished does not come back empty.

    Raises:
        sqlite3.Error: it cannot be opened.
    """
    return _connect(f"{path.absolute().as_uri()}?mode=rw")


@contextmanager
def transaction(path: Path, kind: str) -> Iterator[sqlite3.Connection]:
    """Commit what the body did; if it raises, closing the file undoes all of it.

    Raises:
        PrivacyError: the file is damaged, of another version or not a ledger.
        UnavailableError: it cannot be read or written now.
    """
    with ledger_errors(path), closing(connect_ledger(path)) as database:
        database.execute(f"BEGIN {kind}")
        _check_version(database, path)
        yield database
        database.execute("COMMIT")


@contextmanager
def ledger_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours.

    Raises:
        UnavailableError: the file is locked, missing, or on a disk that is full or failing.
        PrivacyError: it is damaged or not a ledger.
    """
    try:
        yield
    except sqlite3.Error as error:
        # The low byte is the kind; the rest says where it happened.
        passing = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in _PASSING
        kind, now = (UnavailableError, " now") if passing else (PrivacyError, "")
        raise kind(
            f"ledger {path} cannot be used{now} ({error}); nothing may be released without it"
        ) from error


def _connect(address: str) -> sqlite3.Connection:
    database = sqlite3.connect(address, uri=True, timeout=PATIENCE, isolation_level=None)
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
