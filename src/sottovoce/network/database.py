"""The SQLite file under a store: its tables, the seal on every row, and what is checked on opening.

A seal is a checksum of everything in its row. What agents said is sealed apart, so that erasing it
erases its checksum too: a hash that outlives a contribution would still answer guesses about it.
Digests chain every round to the one before, so that no row can be missing, doubled or out of place.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from sottovoce.errors import NetworkError
from sottovoce.network.errors import DiskError, StoreError
from sottovoce.network.incidents import TABLE as INCIDENTS
from sottovoce.network.incidents import read_incidents
from sottovoce.network.lock import touch
from sottovoce.network.protocol.receipt import next_digest
from sottovoce.network.seal import seal

APPLICATION: Final = 0x53564F43
SCHEMA: Final = 5

LOG_PAGES: Final = 256
LOG_BYTES: Final = (LOG_PAGES + 16) * (4096 + 24)
"""SQLite's log: pages after which it is copied into the file and begun again, with room for what is
written beyond that at once. A round is one page of 4,096 bytes, or two, each with a head."""

Status = Literal["running", "done", "halted", "failed"]

TABLES: Final = (
    """CREATE TABLE run (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    run_id TEXT NOT NULL,
    config TEXT NOT NULL,
    status TEXT NOT NULL,
    reason TEXT NOT NULL,
    created TEXT NOT NULL,
    incidents INTEGER NOT NULL,
    seal BLOB NOT NULL
)""",
    """CREATE TABLE rounds (
    k INTEGER PRIMARY KEY,
    price BLOB NOT NULL,
    release BLOB NOT NULL,
    digest BLOB NOT NULL,
    held BLOB NOT NULL,
    missed BLOB NOT NULL,
    seal BLOB NOT NULL,
    said BLOB,
    said_seal BLOB
)""",
    """CREATE TABLE parties (
    number INTEGER PRIMARY KEY,
    agents BLOB NOT NULL,
    seal BLOB NOT NULL
)""",
    INCIDENTS,
)

PRAGMAS: Final = ("temp_store = MEMORY", "synchronous = FULL", "secure_delete = ON")

ERASE: Final = """
CREATE TEMP TRIGGER erase AFTER INSERT ON main.rounds
BEGIN UPDATE rounds SET said = NULL, said_seal = NULL WHERE k = NEW.k - 1; END
"""
"""Makes erasing part of the statement that commits. TEMP: it is this process that asks for it."""

_RUN: Final = "SELECT run_id, config, status, reason, created, incidents, seal FROM run"
_ROUNDS: Final = "SELECT k, price, release, digest, held, missed, seal, said, said_seal FROM rounds"

_said: Final = msgspec.msgpack.Decoder(tuple[tuple[int, bytes], ...])

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
        status: "running" (or interrupted), "done", or "halted" or "failed" for good.
        reason: why it was halted or failed.
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
    """One round as its bytes.

    Attributes:
        k: the round.
        price: the prices after it.
        release: whole numbers on the grid, or the floats of a simulation.
        digest: names the history up to here.
        held: agents whose last words counted again, from 1.
        missed: gaps in agents' averages that are known since this round, four numbers each.
        said: what every party said, None once it is erased.
    """

    k: int
    price: bytes
    release: bytes
    digest: bytes
    held: bytes
    missed: bytes
    said: bytes | None

    @property
    def seal(self) -> bytes:
        """The row's checksum, without what was said."""
        return seal(self.k, self.price, self.release, self.digest, self.held, self.missed)


def connect(path: Path, run: Run, *, keep: bool) -> sqlite3.Connection:
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
        for pragma in (*PRAGMAS, f"wal_autocheckpoint = {LOG_PAGES}"):
            database.execute(f"PRAGMA {pragma}")
        _lengthen_log(path)
        if not keep:
            database.execute(ERASE)
    except sqlite3.Error as error:
        database.close()
        raise trouble(path, error) from None
    except OSError as error:
        database.close()
        raise DiskError(f"{path} cannot be written now ({error.strerror})") from None
    except BaseException:
        database.close()
        raise
    return database


def checkpoint(database: sqlite3.Connection, path: Path) -> None:
    """Copy the log into the file, durably.

    Raises:
        DiskError: the disk is full or failing, or somebody reads an older state all the time.
    """
    try:
        busy, _, _ = database.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
    except sqlite3.Error as error:
        raise trouble(path, error) from None
    if busy:
        raise DiskError(f"{path} cannot be written now (somebody is reading it); nothing was sent")


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
    run_id, config, status, reason, created, incidents, mark = values[0]
    try:
        run = Run(
            run_id=run_id,
            config=config,
            status=status,
            reason=reason,
            created=created,
            incidents=incidents,
        )
        whole = run.seal == mark
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
            *own, mark, said, said_mark = values
            row = Row(**dict(zip(Row.__struct_fields__, [*own, said], strict=True)))
            try:
                whole = row.seal == mark and _whole(said, said_mark)
            except (AttributeError, TypeError, OverflowError):
                whole = False
            if not whole:
                raise damaged(path, f"round {row.k} is not as it was written")
            yield row
    except sqlite3.Error as error:
        raise trouble(path, error) from None


def read_parties(database: sqlite3.Connection, path: Path) -> dict[int, tuple[int, ...]]:
    """Return who has spoken together, by number, or refuse what is not as it was written."""
    found = {}
    try:
        for number, agents, mark in database.execute("SELECT number, agents, seal FROM parties"):
            if not isinstance(agents, bytes) or seal(number, agents) != mark:
                raise damaged(path, f"party {number} is not as it was written")
            found[number] = struct.unpack(f"<{len(agents) // 8}q", agents)
    except sqlite3.Error as error:
        raise trouble(path, error) from None
    return found


def read_said(
    row: Row, parties: Mapping[int, tuple[int, ...]], path: Path
) -> tuple[tuple[tuple[int, ...], bytes], ...]:
    """Return who spoke in a round and what they said; nothing once it is erased."""
    if row.said is None:
        return ()
    try:
        return tuple((parties[number], data) for number, data in _said.decode(row.said))
    except (KeyError, msgspec.DecodeError):
        raise damaged(path, f"a party of round {row.k} is missing") from None


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
        if row.k != after or row.digest != next_digest(previous, row.k, row.price, row.release):
            raise damaged(path, f"round {after} does not follow from the round before")
        previous, last = row.digest, row
    if last is not None and last.said is None and run.status == "running":
        raise damaged(path, "what was said in the last round is missing")
    parties = read_parties(database, path)
    if last is not None:
        read_said(last, parties, path)
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


def _whole(said: bytes | None, mark: bytes | None) -> bool:
    return mark is None if said is None else seal(said) == mark


def _lengthen_log(path: Path) -> None:
    """Let SQLite's log have its full length before round 1.

    A commit within a file waits for its own bytes; one that makes the file longer waits for the
    file system's journal as well, which takes several times as long. Zeros at the end of a log are
    to SQLite what is left of an older one: no part of it.
    """
    file = os.open(path.with_name(path.name + "-wal"), os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        size = os.fstat(file).st_size
        if size < LOG_BYTES:
            os.pwrite(file, bytes(LOG_BYTES - size), size)
            os.fsync(file)
    finally:
        os.close(file)


def _create(database: sqlite3.Connection, run: Run) -> None:
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("BEGIN")
    database.execute(f"PRAGMA application_id = {APPLICATION}")
    database.execute(f"PRAGMA user_version = {SCHEMA}")
    for table in TABLES:
        database.execute(table)
    database.execute(
        "INSERT INTO run VALUES (1, ?, '', 'running', '', ?, 0, ?)",
        (run.run_id, run.created, run.seal),
    )
    database.execute("COMMIT")
