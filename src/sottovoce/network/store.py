"""The run on disk: every round is here, durably, before a byte of it leaves the cloud.

SQLite in WAL mode with synchronous=FULL: after a crash or a loss of power the store holds exactly
the rounds that were committed. It also holds the raw states of the last committed round, because a
repeated message must be told from a conflicting one: mode 0600, and each commit erases the states
of the round before unless ``keep_states`` asks otherwise. Releases, multipliers and incidents stay.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, final

import numpy as np

from sottovoce.network.config import RunConfig, read_config
from sottovoce.network.errors import HaltedError, StoreError
from sottovoce.network.protocol.actions import Record
from sottovoce.network.protocol.codec import Floats, pack, unpack
from sottovoce.network.protocol.messages import Code
from sottovoce.network.rounds import release_bytes
from sottovoce.privacy.sampler import Released

APPLICATION: Final = 0x53564F43
SCHEMA: Final = 2

Status = Literal["running", "done", "halted"]

TABLES: Final = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {SCHEMA};
CREATE TABLE run (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    run_id TEXT NOT NULL,
    config TEXT,
    status TEXT NOT NULL DEFAULT 'running',
    reason TEXT NOT NULL DEFAULT '',
    x BLOB,
    created TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now'))
);
CREATE TABLE rounds (
    k INTEGER PRIMARY KEY,
    x BLOB,
    mu BLOB NOT NULL,
    y BLOB NOT NULL,
    release BLOB NOT NULL,
    carried BLOB NOT NULL,
    digest BLOB NOT NULL,
    held BLOB NOT NULL
);
CREATE TABLE incidents (
    number INTEGER PRIMARY KEY,
    at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    code TEXT NOT NULL,
    agents TEXT NOT NULL,
    k INTEGER NOT NULL
);
"""

ERASE: Final = """
CREATE TEMP TRIGGER erase AFTER INSERT ON main.rounds
BEGIN UPDATE rounds SET x = NULL WHERE k = NEW.k - 1; END
"""
"""Makes erasing part of the statement that commits. TEMP: it is this process that asks for it."""

INSERT: Final = "INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?)"

INCIDENTS: Final = 100_000
"""Incidents kept; a flood must not fill the disk."""

WAITING: Final = 1_000
"""Incidents that may wait for the next commit."""


@final
class Store:
    """One run's file, owned by one cloud at a time.

    Args:
        path: the file, created if missing, in a directory that exists on a local disk.
        keep_states: keep the raw states of every round, for an audit.

    Raises:
        StoreError: another cloud owns it, or it is not a store.
    """

    def __init__(self, path: str | os.PathLike[str], *, keep_states: bool = False) -> None:
        self.path = Path(path)
        self._incidents: list[tuple[str, str, int, int]] = []
        self._lock = _own(self.path)
        try:
            self._database = _open(self.path, keep_states=keep_states)
        except BaseException:
            self._lock.close()
            raise
        row = self._one("SELECT run_id, config, status, reason FROM run")
        self.run_id: str = row[0]
        self.config: str | None = row[1]
        self.status: Status = row[2]
        self.reason: str = row[3]

    def pin(self, config: RunConfig) -> None:
        """Bind the store to a configuration, or check that it is bound to this one.

        Raises:
            StoreError: the store belongs to a run with another configuration.
            HaltedError: the run was halted.
        """
        if self.status == "halted":
            raise HaltedError(
                f"the run in {self.path} was halted for good: {self.reason}; start a new run with "
                "a new store, which spends privacy anew"
            )
        if self.config is None:
            self._write("UPDATE run SET config = ?", (config.text,))
            self.config = config.text
        elif self.config != config.text:
            raise StoreError(
                f"{self.path} must belong to this run, got a run that differs in "
                f"{_difference(read_config(self.config), config)}: use the same command as before, "
                "or a new store for a new run"
            )

    def commit(self, record: Record, released: Released) -> None:
        """Write a round durably; returns only when it is on disk."""
        values = (
            record.k,
            pack(record.x),
            pack(record.mu),
            pack(record.y),
            release_bytes(released),
            pack(record.carried),
            record.digest,
            struct.pack(f"<{len(record.held)}q", *sorted(record.held)),
        )
        try:
            if not self._incidents:
                # One statement is a transaction by itself, and the cheapest there is.
                self._database.execute(INSERT, values)
                return
            with self._database:
                self._database.execute("BEGIN IMMEDIATE")
                self._database.execute(INSERT, values)
                self._write_incidents()
        except sqlite3.Error as error:
            raise StoreError(f"{self.path} cannot be written ({error}); nothing was sent") from None

    def finish(self, x: Floats) -> None:
        """Write the states after the last round."""
        self._write("UPDATE run SET status = 'done', x = ?", (pack(x),))
        self.status = "done"

    def halt(self, reason: str) -> None:
        """End the run for good."""
        self._write("UPDATE run SET status = 'halted', reason = ?", (reason,))
        self.status, self.reason = "halted", reason

    def incident(self, code: Code, agents: tuple[int, ...], k: int) -> None:
        """Note a refusal, to be written with the next commit or flush; it holds no value."""
        if len(self._incidents) < WAITING:
            self._incidents.append((code.value, ",".join(map(str, agents[:16])), k, INCIDENTS))

    def flush(self) -> None:
        """Write the incidents noted since the last commit."""
        if not self._incidents:
            return
        try:
            with self._database:
                self._database.execute("BEGIN IMMEDIATE")
                self._write_incidents()
        except sqlite3.Error as error:
            raise StoreError(f"{self.path} cannot be written ({error})") from None

    def _write_incidents(self) -> None:
        # A write of its own for each would let a flood of nonsense slow the rounds down.
        self._database.executemany(
            "INSERT INTO incidents (code, agents, k) SELECT ?, ?, ? "
            "WHERE (SELECT coalesce(max(number), 0) FROM incidents) < ?",
            self._incidents,
        )
        self._incidents.clear()

    def digest(self, k: int) -> bytes | None:
        """The digest of a committed round, None for any other."""
        row = self._database.execute("SELECT digest FROM rounds WHERE k = ?", (k,)).fetchone()
        return None if row is None else bytes(row[0])

    def last(self) -> Record | None:
        """The last committed round, with its states."""
        row = self._database.execute(
            "SELECT k, x, mu, y, carried, digest, held FROM rounds ORDER BY k DESC LIMIT 1"
        ).fetchone()
        if row is None:
            return None
        x, mu, y, carried = (unpack(row[c]) for c in (1, 2, 3, 4))
        held = frozenset(np.frombuffer(row[6], dtype="<i8").tolist())
        return Record(k=row[0], x=x, mu=mu, y=y, carried=carried, digest=bytes(row[5]), held=held)

    def has_held(self) -> bool:
        """Whether an agent was held at its last state in some round."""
        return bool(self._one("SELECT EXISTS (SELECT 1 FROM rounds WHERE length(held) > 0)")[0])

    def close(self) -> None:
        """Give the store back."""
        self.flush()
        self._database.close()
        self._lock.close()

    def _one(self, query: str) -> Any:
        return self._database.execute(query).fetchone()

    def _write(self, statement: str, values: tuple[Any, ...]) -> None:
        try:
            self._database.execute(statement, values)
        except sqlite3.Error as error:
            raise StoreError(f"{self.path} cannot be written ({error})") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a store says about its run without a single state.

    Attributes:
        config: the configuration, None before the first start.
        status: "running" (or interrupted), "done" or "halted".
        reason: why it was halted.
        rounds: rounds released so far.
        mu: the answer so far: averaged multipliers, or the latest.
        held: agent-rounds in which an agent was held at its last state.
        incidents: how many refusals per code.
        created: when the run began, UTC.
    """

    config: RunConfig | None
    status: Status
    reason: str
    rounds: int
    mu: tuple[float, ...]
    held: int
    incidents: dict[str, int]
    created: str


def summarise(path: str | os.PathLike[str]) -> Summary:
    """Read a store's summary; a cloud may be writing to it meanwhile.

    Raises:
        StoreError: it is not a store.
    """
    file = Path(path)
    if not file.is_file():
        raise StoreError(f"store must exist, got {file}")
    database = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=10)
    try:
        _check(database, file)
        run = database.execute("SELECT config, status, reason, created FROM run").fetchone()
        rounds, held = database.execute(
            "SELECT count(*), coalesce(sum(length(held)), 0) / 8 FROM rounds"
        ).fetchone()
        mu = database.execute(
            "SELECT carried, length(mu) FROM rounds ORDER BY k DESC LIMIT 1"
        ).fetchone()
        counts = database.execute("SELECT code, count(*) FROM incidents GROUP BY code").fetchall()
    except sqlite3.Error as error:
        raise StoreError(f"{file} cannot be read ({error})") from None
    finally:
        database.close()
    return Summary(
        config=None if run[0] is None else read_config(run[0]),
        status=run[1],
        reason=run[2],
        rounds=rounds,
        mu=() if mu is None else tuple(unpack(mu[0][-mu[1] :]).tolist()),
        held=held,
        incidents=dict(counts),
        created=run[3],
    )


def multipliers(path: str | os.PathLike[str]) -> Floats:
    """Return the answer's multipliers after each round of a store, one row per round."""
    file = Path(path)
    database = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=10)
    try:
        _check(database, file)
        rows = database.execute("SELECT carried, length(mu) FROM rounds ORDER BY k").fetchall()
    finally:
        database.close()
    return np.array([unpack(carried[-size:]) for carried, size in rows])


def _own(path: Path) -> sqlite3.Connection:
    """Take the lock beside the store; the system gives it back when the process dies."""
    lock = path.with_name(path.name + ".lock")
    _touch(lock)
    connection = sqlite3.connect(lock, timeout=0, isolation_level=None)
    try:
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error:
        connection.close()
        raise StoreError(f"{path} must be free, but another cloud is using it") from None
    return connection


def _open(path: Path, *, keep_states: bool) -> sqlite3.Connection:
    _touch(path)
    database = sqlite3.connect(path, timeout=10, isolation_level=None)
    try:
        # An empty database is what a process leaves that was killed before it made the tables.
        if database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            database.execute("PRAGMA journal_mode = WAL")
            row = f"INSERT INTO run (only, run_id) VALUES (1, '{uuid.uuid4().hex}');"  # noqa: S608
            database.executescript(f"BEGIN; {TABLES} {row} COMMIT;")
        _check(database, path)
        for pragma in ("temp_store = MEMORY", "synchronous = FULL", "secure_delete = ON"):
            database.execute(f"PRAGMA {pragma}")
        if not keep_states:
            database.execute(ERASE)
    except sqlite3.Error as error:
        database.close()
        raise StoreError(f"{path} cannot be used as a store ({error})") from None
    except BaseException:
        database.close()
        raise
    return database


def _check(database: sqlite3.Connection, path: Path) -> None:
    try:
        application = database.execute("PRAGMA application_id").fetchone()[0]
        version = database.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error as error:
        raise StoreError(f"{path} is not a store of a run ({error})") from None
    if application != APPLICATION:
        raise StoreError(f"{path} is not a store of a run: choose another file")
    if version != SCHEMA:
        raise StoreError(f"{path} must have schema version {SCHEMA}, got {version}")


def _touch(path: Path) -> None:
    """Create the file for its owner alone, or leave it be.

    An existing file is not opened: closing it again would drop the locks that SQLite holds on it
    elsewhere in this process, such is POSIX.
    """
    try:
        if path.exists():
            path.chmod(0o600)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error.strerror}") from None


def _difference(stored: RunConfig, asked: RunConfig) -> str:
    names = ("problem", "plan", "algorithm", "rounds", "noise", "promise", "run_id")
    return ", ".join(n for n in names if getattr(stored, n) != getattr(asked, n)) or "its format"
