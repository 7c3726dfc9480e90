"""The journal of a party: one SQLite file, from which it goes on after whatever happens to it.

SQLite in WAL mode. A commit that is durable (synchronous=FULL) is on the disk when it returns; one
that is not survives the death of the process, and may be lost with the power. Every row ends with a
checksum of all that it holds, and digests chain each round to the one before, so that no row can be
changed, missing, doubled or out of place. Contributions are sealed apart, so that erasing them
erases their checksum too: a hash that outlives a contribution would still answer guesses about it.

A marker beside the file says how far the journal had got, so that an older copy is refused.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sottovoce.network.failures import HaltedError, StoreError
from sottovoce.network.journal_file import (
    APPLICATION,
    BEGIN_ANEW,
    LOG_PAGES,
    SCHEMA,
    TABLES,
    Marker,
    Reached,
    checkpoint,
    damaged,
    lengthen_log,
    lock_file,
    marker_of,
    seal,
    set_aside,
    sqlite_error,
    touch,
    translated,
    utc,
)
from sottovoce.network.protocol.actions import JournalRow
from sottovoce.network.protocol.messages import Code
from sottovoce.network.protocol.receipt import next_digest

Role: TypeAlias = Literal["cloud", "helper", "agent"]
Status: TypeAlias = Literal["running", "done", "halted", "failed"]

ENDED: Final = {"halted": "was halted", "failed": "has failed"}

_ROUNDS: Final = "SELECT * FROM rounds"
_INSERT: Final = "INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_RUN: Final = "run"
_NOTE: Final = """INSERT INTO notes VALUES (?, ?, ?)
ON CONFLICT (name) DO UPDATE SET value = excluded.value, seal = excluded.seal"""
_FORGET: Final = """
UPDATE rounds SET said = NULL, said_seal = NULL WHERE k = (SELECT max(k) FROM rounds)"""

_ERASE: Final = """
CREATE TEMP TRIGGER erase AFTER INSERT ON main.rounds
BEGIN UPDATE rounds SET said = NULL, said_seal = NULL WHERE k = NEW.k - 1; END
"""
"""Makes erasing part of the statement that commits. TEMP: it is this process that asks for it."""

_DURABLE: Final = ("synchronous = FULL", "secure_delete = ON", f"wal_autocheckpoint = {LOG_PAGES}")
_QUICK: Final = ("synchronous = NORMAL",)  # only copying the log into the file waits for the disk


class RunNote(Struct, frozen=True, kw_only=True):
    """The run, as a note."""

    role: Role  # whose journal it is
    run_id: str  # names it for ever; a cloud's names the run
    created: str  # when it began, UTC
    config: str = ""  # empty before the first start
    status: Status = "running"  # or interrupted
    reason: str = ""  # why it was halted or failed
    # Refusals by code and first agent: how many, when the first and the last, and in which round.
    incidents: dict[str, tuple[int, str, str, int]] = {}

    @property
    def refused(self) -> dict[str, int]:
        """How many refusals there were, by code."""
        counts: Counter[str] = Counter()
        for name, (count, _, _, _) in self.incidents.items():
            counts[name.split()[0]] += count
        return dict(counts)


_encoder = msgspec.msgpack.Encoder()
_run = msgspec.msgpack.Decoder(RunNote)


class JournalReader:
    """What a journal says, each row as it was written; its owner may be writing meanwhile."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self.path = path
        self._database = database

    @staticmethod
    @contextmanager
    def open(path: str | os.PathLike[str]) -> Iterator[JournalReader]:
        """Read one moment of a journal, however it goes on; StoreError if it is damaged."""
        file = Path(path)
        if not file.is_file():
            raise StoreError(f"store must exist, got {file}")
        uri = f"{file.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=10)) as database, translated(file):
            reader = JournalReader(file, database)
            reader.check()
            database.execute("BEGIN")
            yield reader

    def check(self) -> None:
        """Refuse what is not a journal of this version, or whose pages contradict each other."""
        path = self.path
        with translated(path):
            application, version, faults = (
                self._database.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("application_id", "user_version", "integrity_check(1)")
            )
            tables = "SELECT sql FROM sqlite_master WHERE type = 'table'"
            created = self._database.execute(tables).fetchall()
        if application != APPLICATION:
            raise StoreError(f"{path} is not a store of a run: choose another file")
        if version != SCHEMA:
            raise StoreError(
                f"{path} must have schema version {SCHEMA}, got {version}: continue with the "
                "version of sottovoce that wrote it, or begin a new run with a new file"
            )
        if faults != "ok":
            raise damaged(path, str(faults))
        if sorted(sql for (sql,) in created) != sorted(TABLES):
            raise damaged(path, "its tables are not as they were made")

    def read_run(self) -> RunNote:
        """Return what is noted about the run."""
        body = self.notes().get(_RUN)
        if body is None:
            raise damaged(self.path, "it does not say whose it is")
        return _run.decode(body)

    def rounds(self, where: str = "") -> Iterator[JournalRow]:
        """Yield rounds in order; ``where`` is SQL, words of our own only."""
        with translated(self.path):
            for values in self._database.execute(f"{_ROUNDS} {where} ORDER BY k"):
                k, context, release, digest, attendance, _, said, _ = values
                row = JournalRow(k, context, release, digest, attendance, said)
                try:
                    intact = _values(row) == values
                except (AttributeError, TypeError, OverflowError):
                    intact = False
                if not intact:
                    raise damaged(self.path, f"round {row.k} is not as it was written")
                yield row

    def notes(self) -> dict[str, bytes]:
        """Return all notes by name."""
        with translated(self.path):
            rows = self._database.execute("SELECT name, value, seal FROM notes").fetchall()
        for name, value, mark in rows:
            kinds = isinstance(name, str) and isinstance(value, bytes)
            if not kinds or seal(name.encode(), value) != mark:
                raise damaged(self.path, f"the note {name!s:.40} is not as it was written")
        return {name: value for name, value, _ in rows}


class Journal(JournalReader):
    """The journal of one party, owned by one process at a time; roles extend it.

    Args:
        path: the file, created if missing, in a directory that exists on a local disk.
        role: whose it is.
        keep: keep the contributions of every round, for an audit.
        durable: whether a commit waits for the disk, and a marker guards against old copies.
        new: begin a new run where a journal is damaged or has lost rounds; its files are set aside.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        role: Role,
        *,
        keep: bool = False,
        durable: bool = True,
        new: bool = False,
    ) -> None:
        # Two names of one file are one journal, with one lock and one marker.
        self.path = Path(path).resolve()
        self.run: RunNote
        self.last: JournalRow | None = None  # the last round
        self._role: Role = role
        self._keep, self._durable = keep, durable
        self._flushed = True
        self._lock = lock_file(self.path, owner=role)
        try:
            self._open(new=new)
        except BaseException:
            self._lock.close()
            raise

    @property
    def released(self) -> int:
        """How many rounds it holds."""
        return 0 if self.last is None else self.last.k

    def bind(self, config: str) -> None:
        """Bind a new journal to a configuration, durably."""
        if not self.run.config:
            self._write(replace(self.run, config=config))
        if not self.released:
            # A run whose log is lost must not come back under another name: the ledger knows it
            # by this one.
            checkpoint(self._database, self.path)

    def append(self, row: JournalRow) -> None:
        """Write a round durably; returns only when it is on disk."""
        if self._flushed:
            self._execute(_INSERT, _values(row))  # a transaction by itself, and the cheapest
        else:
            self._write(self.run, row)
        self.last = row
        self._marker.write(Reached(run_id=self.run.run_id, rounds=row.k, digest=row.digest))

    def put(self, name: str, value: bytes) -> None:
        """Write a note, which survives the process and maybe not a power cut."""
        if not self._durable:
            self._execute(_NOTE, _note(name, value))
            return
        self._execute("PRAGMA synchronous = NORMAL")
        try:
            self._execute(_NOTE, _note(name, value))
        finally:
            self._execute("PRAGMA synchronous = FULL")

    def end(self, status: Status, reason: str = "") -> None:
        """End the run; no contribution is needed any more."""
        if status == self.run.status:
            return
        self._write(replace(self.run, status=status, reason=reason), forget=not self._keep)
        if status in ENDED:
            reached = self._marker.reached or Reached(run_id=self.run.run_id)
            self._marker.write(replace(reached, halted=True))

    def incident(self, code: Code, agents: tuple[int, ...], k: int) -> None:
        """Count a refusal of a connection's first agent, 0 before hello; it holds no value.

        It is written with the next round or ``flush``: a flood takes one entry, and hides no other.
        """
        name, now = f"{code.value} {agents[0] if agents else 0}", utc()
        count, first, _, _ = self.run.incidents.get(name, (0, now, now, 0))
        self.run.incidents[name] = (count + 1, first, now, k)
        self._flushed = False

    def flush(self) -> None:
        """Write the incidents since the last commit."""
        if not self._flushed:
            self._write(self.run)

    def digest(self, k: int) -> bytes | None:
        """The digest of a committed round, None for one that is still to come."""
        if not 1 <= k <= self.released:
            return None
        for row in self.rounds(f"WHERE k = {k:d}"):
            return row.digest
        raise damaged(self.path, f"round {k} is missing")

    def close(self) -> None:
        """Give the journal back."""
        try:
            self.flush()
        finally:
            self._database.close()
            self._marker.close()
            self._lock.close()

    def _execute(self, statement: str, values: tuple[object, ...] = ()) -> None:
        try:
            self._database.execute(statement, values)
        except sqlite3.Error as error:
            raise sqlite_error(self.path, error) from None

    def _open(self, *, new: bool) -> None:
        try:
            self._load()
        except StoreError:
            if not (new and marker_of(self.path).exists()):
                raise  # without a marker it is no journal of ours, and stays where it is
            set_aside(self.path)
            self._load()
        else:
            if new and self.run.config:
                self._database.close()
                self._marker.close()
                raise StoreError(
                    f"{self.path} must have lost its run for --new, got one that is whole: leave "
                    "--new out to go on with it, or choose another file"
                )

    def _load(self) -> None:
        """Open marker and database, check both, and hold one against the other."""
        with ExitStack() as undo:
            self._marker = Marker(self.path if self._durable else None)
            undo.callback(self._marker.close)
            reached = self._marker.reached
            if reached is not None and not (self.path.exists() and self.path.stat().st_size):
                raise _lost(self.path, reached, 0)
            self._database = self._connect()
            undo.callback(self._database.close)
            self.run = self.read_run()
            if self.run.role != self._role:
                raise StoreError(
                    f"{self.path} must be the file of {_a(self._role)}, got that of "
                    f"{_a(self.run.role)}: choose another file"
                )
            self._verify()
            self._compare(reached)
            run = self.run
            if run.status in ENDED:
                raise HaltedError(
                    f"the run in {self.path} {ENDED[run.status]} for good: {run.reason}; start a "
                    "new run with a new store, which spends privacy anew"
                )
            undo.pop_all()

    def _connect(self) -> sqlite3.Connection:
        """Open the database, or make one if the file is missing or empty."""
        touch(self.path)
        database = sqlite3.connect(self.path, timeout=10, isolation_level=None)
        try:
            with translated(self.path):
                # An empty one is what a process leaves that was killed before it made the tables.
                if database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
                    _create(database, self._role)
                JournalReader(self.path, database).check()
                database.execute("PRAGMA temp_store = MEMORY")
                for pragma in _DURABLE if self._durable else _QUICK:
                    database.execute(f"PRAGMA {pragma}")
                if self._durable:
                    lengthen_log(self.path)
                if not self._keep:
                    database.execute(_ERASE)
        except BaseException:
            database.close()
            raise
        return database

    def _verify(self) -> None:
        """Check every row and the chain of digests."""
        previous, last = hashlib.sha256(self.run.config.encode()).digest(), None
        for row in self.rounds():
            after = 1 if last is None else last.k + 1
            if row.k != after or row.digest != next_digest(
                previous, row.k, row.context, row.release
            ):
                raise damaged(self.path, f"round {after} does not follow from the round before")
            previous, last = row.digest, row
        self.last = last
        self._notes = self.notes()

    def _compare(self, reached: Reached | None) -> None:
        run_id, ended = self.run.run_id, self.run.status in ENDED
        if reached is None:
            digest = b"" if self.last is None else self.last.digest
            reached = Reached(run_id=run_id, rounds=self.released, digest=digest, halted=ended)
            self._marker.write(reached)
        forgot = reached.halted and not ended
        if reached.run_id != run_id or reached.rounds > self.released or forgot:
            raise _lost(self.path, reached, self.released)
        if reached.rounds and self.digest(reached.rounds) != reached.digest:
            raise _lost(self.path, reached, reached.rounds - 1)

    def _write(self, run: RunNote, row: JournalRow | None = None, *, forget: bool = False) -> None:
        """Write what is noted about the run, with its incidents, and a round."""
        database = self._database
        with translated(self.path), database:
            database.execute("BEGIN IMMEDIATE")
            if row is not None:
                database.execute(_INSERT, _values(row))
            database.execute(_NOTE, _note(_RUN, _encoder.encode(run)))
            if forget:
                database.execute(_FORGET)
        self.run, self._flushed = run, True


def _note(name: str, value: bytes) -> tuple[object, ...]:
    return name, value, seal(name.encode(), value)


def _values(row: JournalRow) -> tuple[object, ...]:
    """The values of a round's row; its checksum leaves out contributions, which have their own."""
    fields = (row.context, row.release, row.digest, row.attendance)
    mark = seal(row.k.to_bytes(8, "little", signed=True), *fields)
    return (row.k, *fields, mark, row.said, None if row.said is None else seal(row.said))


def _lost(path: Path, reached: Reached, rounds: int) -> StoreError:
    was = "halted for good" if reached.halted else f"at round {reached.rounds:,}"
    return StoreError(
        f"{path} must hold run {reached.run_id}, which was {was}, got a store that ends with "
        f"round {rounds:,}, so it has lost files or was rolled back: {BEGIN_ANEW}"
    )


def _a(role: Role) -> str:
    return "an agent" if role == "agent" else f"a {role}"


def _create(database: sqlite3.Connection, role: Role) -> None:
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("BEGIN")
    database.execute(f"PRAGMA application_id = {APPLICATION}")
    database.execute(f"PRAGMA user_version = {SCHEMA}")
    for table in TABLES:
        database.execute(table)
    run = RunNote(role=role, run_id=uuid.uuid4().hex, created=utc())
    database.execute(_NOTE, _note(_RUN, _encoder.encode(run)))
    database.execute("COMMIT")
