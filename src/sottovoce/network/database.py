"""The SQLite file under a store: its tables, the seal on every row, and what is checked on opening.

A seal is a checksum of everything in its row. States are sealed apart, so that erasing them erases
their checksum too: a hash that outlives a state would still answer guesses about it. Digests chain
every round to the one before, so that no row can be missing, doubled or out of place.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from sottovoce.network.errors import DiskError, NetworkError, StoreError
from sottovoce.network.incidents import TABLE as INCIDENTS
from sottovoce.network.incidents import read_incidents
from sottovoce.network.lock import touch
from sottovoce.network.protocol.receipt import next_digest
from sottovoce.network.seal import seal

APPLICATION: Final = 0x53564F43
SCHEMA: Final = 3

Status = Literal["running", "done", "halted"]

TABLES: Final = (
    """CREATE TABLE run (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    run_id TEXT NOT NULL,
    config TEXT NOT NULL,
    status TEXT NOT NULL,
    reason TEXT NOT NULL,
    created TEXT NOT NULL,
    incidents INTEGER NOT NULL,
    seal BLOB NOT NULL,
    x BLOB,
    x_seal BLOB
)""",
    """CREATE TABLE rounds (
    k INTEGER PRIMARY KEY,
    x BLOB,
    mu BLOB NOT NULL,
    y BLOB NOT NULL,
    release BLOB NOT NULL,
    carried BLOB NOT NULL,
    digest BLOB NOT NULL,
    held BLOB NOT NULL,
    seal BLOB NOT NULL,
    x_seal BLOB
)""",
    INCIDENTS,
)

ERASE: Final = """
CREATE TEMP TRIGGER erase AFTER INSERT ON main.rounds
BEGIN UPDATE rounds SET x = NULL, x_seal = NULL WHERE k = NEW.k - 1; END
"""
"""Makes erasing part of the statement that commits. TEMP: it is this process that asks for it."""

_RUN: Final = "SELECT run_id, config, status, reason, created, incidents, seal, x, x_seal FROM run"
_ROUNDS: Final = "SELECT k, mu, y, release, carried, digest, held, seal, x, x_seal FROM rounds"

_LASTING: Final = frozenset(
    {
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_NOTADB,
    }
)
"""What SQLite says of a file that no time mends; whatever else it says may pass."""


class Run(Struct, frozen=True, kw_only=True):
    """The row of the run, all that is sealed in it.

    Attributes:
        run_id: names the run for ever.
        config: its configuration, empty before the first start.
        status: "running" (or interrupted), "done" or "halted".
        reason: why it was halted.
        created: when it began, UTC.
        incidents: how many refusals the table of incidents adds up to.
    """

    run_id: str
    created: str
    config: str = ""
    status: Status = "running"
    reason: str = ""
    incidents: int = 0

    @property
    def seal(self) -> bytes:
        """The row's checksum."""
        texts = (self.run_id, self.config, self.status, self.reason, self.created)
        return seal(*(text.encode() for text in texts), self.incidents)

    @property
    def first_digest(self) -> bytes:
        """digest(0), with which the chain of rounds begins."""
        return hashlib.sha256(self.config.encode()).digest()


class Row(Struct, frozen=True, kw_only=True):
    """One round as its bytes."""

    k: int
    mu: bytes
    y: bytes
    release: bytes
    carried: bytes
    digest: bytes
    held: bytes
    x: bytes | None

    @property
    def seal(self) -> bytes:
        """The row's checksum, without the states."""
        return seal(self.k, self.mu, self.y, self.release, self.carried, self.digest, self.held)


def connect(path: Path, run: Run, *, keep_states: bool) -> sqlite3.Connection:
    """Open a store's database, or make one for this run if the file is missing or empty.

    Raises:
        StoreError: it is something else.
        DiskError: it cannot be read or written now.
    """
    touch(path)
    database = sqlite3.connect(path, timeout=10, isolation_level=None)
    try:
        # An empty database is what a process leaves that was killed before it made the tables.
        if database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            _create(database, run)
        check(database, path)
        for pragma in ("temp_store = MEMORY", "synchronous = FULL", "secure_delete = ON"):
            database.execute(f"PRAGMA {pragma}")
        if not keep_states:
            database.execute(ERASE)
    except sqlite3.Error as error:
        database.close()
        raise trouble(path, error) from None
    except BaseException:
        database.close()
        raise
    return database


def connect_to_read(path: str | os.PathLike[str]) -> sqlite3.Connection:
    """Open a store that a cloud may be writing to meanwhile.

    Raises:
        StoreError: it is not a store.
    """
    file = Path(path)
    if not file.is_file():
        raise StoreError(f"store must exist, got {file}")
    database = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=10)
    try:
        check(database, file)
    except BaseException:
        database.close()
        raise
    return database


def check(database: sqlite3.Connection, path: Path) -> None:
    """Refuse what is not a store of this version, or whose pages contradict each other."""
    try:
        application = database.execute("PRAGMA application_id").fetchone()[0]
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if application != APPLICATION:
            raise StoreError(f"{path} is not a store of a run: choose another file")
        if version != SCHEMA:
            raise StoreError(f"{path} must have schema version {SCHEMA}, got {version}")
        faults = database.execute("PRAGMA quick_check(1)").fetchone()[0]
        made = database.execute("SELECT sql FROM sqlite_master WHERE type = 'table'").fetchall()
    except sqlite3.Error as error:
        raise trouble(path, error) from None
    if faults != "ok":
        raise damaged(path, str(faults))
    if sorted(sql for (sql,) in made) != sorted(TABLES):
        raise damaged(path, "its tables are not as they were made")


def read_run(database: sqlite3.Connection, path: Path) -> Run:
    """Return the run, or refuse if it is not as it was written."""
    try:
        values = database.execute(_RUN).fetchall()
    except sqlite3.Error as error:
        raise trouble(path, error) from None
    if len(values) != 1:
        raise damaged(path, "it must hold one run")
    run_id, config, status, reason, created, incidents, mark, x, x_mark = values[0]
    try:
        run = Run(
            run_id=run_id,
            config=config,
            status=status,
            reason=reason,
            created=created,
            incidents=incidents,
        )
        whole = run.seal == mark and _states_whole(x, x_mark)
    except (AttributeError, TypeError):  # a damaged header gives values of other kinds
        whole = False
    if not whole:
        raise damaged(path, "the row of the run is not as it was written")
    return run


def read_rounds(database: sqlite3.Connection, path: Path, where: str = "") -> Iterator[Row]:
    """Yield rounds in order, each as it was written, or refuse.

    Args:
        database: the store's.
        path: for messages.
        where: which, in SQL: words of our own only.
    """
    try:
        for values in database.execute(f"{_ROUNDS} {where} ORDER BY k"):
            *own, mark, x, x_mark = values
            row = Row(**dict(zip(Row.__struct_fields__, [*own, x], strict=True)))
            try:
                whole = row.seal == mark and _states_whole(x, x_mark)
            except (AttributeError, TypeError, OverflowError):
                whole = False
            if not whole:
                raise damaged(path, f"round {row.k} is not as it was written")
            yield row
    except sqlite3.Error as error:
        raise trouble(path, error) from None


def read_refusals(database: sqlite3.Connection, path: Path, run: Run) -> dict[str, int]:
    """Return how many refusals there were by code, all that the run has counted."""
    try:
        found = read_incidents(database, run.incidents)
    except sqlite3.Error as error:
        raise trouble(path, error) from None
    if found is None:
        raise damaged(path, "its incidents are not as they were written")
    return found


def verify(database: sqlite3.Connection, path: Path, run: Run) -> Row | None:
    """Check every row and the chain of digests; return the last round.

    Raises:
        StoreError: something is not as it was written.
    """
    previous, last = run.first_digest, None
    for row in read_rounds(database, path):
        after = 1 if last is None else last.k + 1
        if row.k != after or row.digest != next_digest(previous, row.k, row.mu, row.release):
            raise damaged(path, f"round {after} does not follow from the round before")
        previous, last = row.digest, row
    if last is not None and last.x is None:
        raise damaged(path, "the states of the last round are missing")
    read_refusals(database, path, run)
    return last


def damaged(path: Path, what: str) -> StoreError:
    """Return the error of a store that says what was never written."""
    return StoreError(
        f"{path} is damaged: {what}; nothing is sent from it. Restore the disk's own copy, or say "
        "--new to begin a new run, which spends privacy anew"
    )


def trouble(path: Path, error: sqlite3.Error) -> NetworkError:
    """Return what SQLite's error means: a file that no time mends, or a disk that may recover."""
    # The low byte is the kind; the rest says where it happened.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code == sqlite3.SQLITE_CORRUPT:
        return damaged(path, str(error))
    if code in _LASTING:
        return StoreError(f"{path} cannot be used as a store of a run ({error})")
    return DiskError(f"{path} cannot be read or written now ({error}); nothing was sent")


def _states_whole(x: bytes | None, mark: bytes | None) -> bool:
    return mark is None if x is None else seal(x) == mark


def _create(database: sqlite3.Connection, run: Run) -> None:
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("BEGIN")
    database.execute(f"PRAGMA application_id = {APPLICATION}")
    database.execute(f"PRAGMA user_version = {SCHEMA}")
    for table in TABLES:
        database.execute(table)
    database.execute(
        "INSERT INTO run VALUES (1, ?, '', 'running', '', ?, 0, ?, NULL, NULL)",
        (run.run_id, run.created, run.seal),
    )
    database.execute("COMMIT")
