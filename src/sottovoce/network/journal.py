"""The journal of a party, from which it goes on after whatever happens to it.

It is a file of SQLite or a schema of PostgreSQL. A commit that is durable is on the disk when it
returns; one that is not survives the death of the process, and may be lost with the power. Every
row ends with a checksum of all that it holds, and digests chain each round to the one before, so
that no row can be changed, missing, doubled or out of place. Contributions are sealed apart, so
that erasing them erases their checksum too: a hash that outlives a contribution would still answer
guesses about it.

A marker beside the file says how far the journal had got, so that an older copy is refused.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sottovoce.database import Database, Statement, address_of, connect, transaction
from sottovoce.network.failures import HaltedError, StoreError
from sottovoce.network.journal_place import (
    APPLICATION,
    BEGIN_ANEW,
    SCHEMA,
    SECONDS,
    TABLES,
    JournalFile,
    JournalSchema,
    Marker,
    Reached,
    damaged,
    seal,
    store_error,
    store_errors,
    translated,
    utc,
)
from sottovoce.network.protocol.actions import JournalRow
from sottovoce.network.protocol.messages import Code
from sottovoce.network.protocol.receipt import next_digest

if TYPE_CHECKING:  # agents have no ledger
    from sottovoce.privacy.fence import Fence

Role: TypeAlias = Literal["cloud", "helper", "agent"]
Status: TypeAlias = Literal["running", "done", "unanswered", "halted", "failed"]
"""A run of a series that failed is "unanswered": others follow in the same journal."""

ENDED: Final = {"halted": "was halted", "failed": "has failed"}

_PAGE: Final = 1_000  # rounds that are read at once
_ROUNDS: Final = "SELECT * FROM rounds WHERE k > ? {} ORDER BY k LIMIT ?"
_FIRST: Final = -(2**63)  # a damaged row may have any number
_INSERT: Final = "INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_RUN: Final = "run"
MEMORY: Final = "memory"  # what its owner goes on from: only the last is kept
_NOTE: Final = """INSERT INTO notes VALUES (?, ?, ?)
ON CONFLICT (name) DO UPDATE SET value = excluded.value, seal = excluded.seal"""
_ERASE: Final = "UPDATE rounds SET said = NULL, said_seal = NULL WHERE k = ?"


class RunNote(Struct, frozen=True, kw_only=True):
    """The run, as a note."""

    role: Role  # whose journal it is
    run_id: str  # names it for ever; a cloud's names the run
    created: str  # when it began, UTC
    config: str = ""  # empty before the first start
    before: str = ""  # the run before it in this journal, of a series
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

    def __init__(self, name: str, database: Database) -> None:
        self.name = name  # as messages show it
        self._database = database

    @staticmethod
    @contextmanager
    def open(path: str | os.PathLike[str]) -> Iterator[JournalReader]:
        """Read one moment of a journal, however it goes on; StoreError if it is damaged."""
        address = address_of("store", path)
        if address.file is not None and not address.file.is_file():
            raise StoreError(f"store must exist, got {address.name}")
        with (
            translated(address.name),
            closing(connect(address, mode="ro", seconds=SECONDS)) as database,
        ):
            reader = JournalReader(address.name, database)
            reader.check()
            database.begin(write=False)
            yield reader

    def check(self) -> None:
        """Refuse what is not a journal of this version, or whose pages contradict each other."""
        with translated(self.name):
            application, version = self._database.stamp("rounds") or (0, 0)
            faults = self._database.faults(TABLES if version == SCHEMA else ())
        if application != APPLICATION:
            raise StoreError(f"{self.name} is not a store of a run: choose another")
        if version != SCHEMA:
            raise StoreError(
                f"{self.name} must have schema version {SCHEMA}, got {version}: continue with the "
                "version of sottovoce that wrote it, or begin a new run with a new store"
            )
        if faults:
            raise damaged(self.name, faults)

    def read_run(self) -> RunNote:
        """Return what is noted about the run."""
        body = self.notes().get(_RUN)
        if body is None:
            raise damaged(self.name, "it does not say whose it is")
        return _run.decode(body)

    def rounds(self, condition: str = "") -> Iterator[JournalRow]:
        """Yield rounds in order; ``condition`` is SQL, ``AND ...``, words of our own only."""
        statement, after = _ROUNDS.format(condition), _FIRST
        while True:
            with translated(self.name):
                page = self._database.execute(statement, (after, _PAGE)).fetchall()
            for values in page:
                k, context, release, digest, attendance, _, said, _ = values
                row = JournalRow(k, context, release, digest, attendance, said)
                try:
                    intact = _values(row) == values
                except (AttributeError, TypeError, OverflowError):
                    intact = False
                if not intact:
                    raise damaged(self.name, f"round {row.k} is not as it was written")
                yield row
            if len(page) < _PAGE:
                return
            after = page[-1][0]

    def notes(self) -> dict[str, bytes]:
        """Return all notes by name."""
        with translated(self.name):
            rows = self._database.execute("SELECT name, value, seal FROM notes").fetchall()
        for name, value, mark in rows:
            kinds = isinstance(name, str) and isinstance(value, bytes)
            if not kinds or seal(name.encode(), value) != mark:
                raise damaged(self.name, f"the note {name!s:.40} is not as it was written")
        return {name: value for name, value, _ in rows}


class Journal(JournalReader):
    """The journal of one party, owned by one process at a time; roles extend it.

    Args:
        path: the file, created if missing, in a directory that exists on a local disk; or a URL of
            PostgreSQL.
        role: whose it is.
        keep: keep the contributions of every round, for an audit.
        durable: whether a commit waits for the disk, and a marker guards against old copies.
        new: begin a new run where a journal is damaged or has lost rounds, which is set aside.

    Raises:
        LeasedError: another process has the lease in PostgreSQL; it may expire.
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
        self.run: RunNote
        self.last: JournalRow | None = None  # the last round
        self._role: Role = role
        self._keep, self._durable = keep, durable
        self._flushed = True
        self._address = address_of("store", path)
        self._fence: Fence | None = None
        file = self._address.file
        self._place: JournalFile | JournalSchema = (
            JournalSchema(self._address, role) if file is None else JournalFile(file, role)
        )
        self.name = self._place.name
        try:
            self._open(new=new)
        except BaseException:
            self._place.close()
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
            with translated(self.name):
                self._place.settle(self._database)

    def begin(self, run_id: str, config: str, notes: Mapping[str, bytes]) -> None:
        """Forget the run that is over, durably, and begin another with these notes: of a series."""
        run = RunNote(
            role=self._role, run_id=run_id, created=utc(), config=config, before=self.run.run_id
        )
        database = self._database
        with translated(self.name), transaction(database, write=True):
            self._place.hold(database)
            database.execute("DELETE FROM rounds")
            database.execute("DELETE FROM notes WHERE name = ?", (MEMORY,))
            for name, value in {**notes, _RUN: _encoder.encode(run)}.items():
                database.execute(_NOTE, _note(name, value))
        self.run, self.last, self._flushed, self._fence = run, None, True, None
        self._marker.write(Reached(run_id=run_id))
        with translated(self.name):
            self._place.settle(database)

    def join(self, fence: Fence) -> bool:
        """Raise a fence in the transaction of each round, if its ledger is in this database."""
        if not self._address.url or fence.address.url != self._address.url:
            return False
        fence.use(self._database)
        self._fence = fence
        return True

    def append(self, row: JournalRow, memory: bytes = b"") -> None:
        """Write a round durably, and what its owner remembers; returns only when it is on disk.

        Raises:
            LeasedError: another process has taken the lease over; nothing is written.
            RollbackError: another cloud has raised the fence; nothing is written.
        """
        self._write(self.run, row, memory)
        self.last = row
        self._marker.write(Reached(run_id=self.run.run_id, rounds=row.k, digest=row.digest))

    def put(self, name: str, value: bytes) -> None:
        """Write a note, which survives the process and maybe not a power cut."""
        database = self._database
        try:
            if not self._durable:
                database.execute(_NOTE, _note(name, value))
                return
            database.execute(database.relaxed)
            try:
                with transaction(database, write=True):
                    self._place.hold(database)
                    database.execute(_NOTE, _note(name, value))
            finally:
                database.execute(database.strict)
        except store_errors() as error:
            raise store_error(self.name, error) from None

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
        """Write the incidents since the last commit, and prolong a lease."""
        if not self._flushed:
            self._write(self.run)
            return
        with translated(self.name):
            self._place.hold()

    def digest(self, k: int) -> bytes | None:
        """The digest of a committed round, None for one that is still to come."""
        if not 1 <= k <= self.released:
            return None
        for row in self.rounds(f"AND k = {k:d}"):
            return row.digest
        raise damaged(self.name, f"round {k} is missing")

    def close(self) -> None:
        """Give the journal back."""
        try:
            if not self._flushed:
                self.flush()
        finally:
            self._database.close()
            self._marker.close()
            self._place.close()

    def _open(self, *, new: bool) -> None:
        try:
            self._load()
        except StoreError:
            if not (new and self._place.is_ours()):
                raise
            with translated(self.name):
                self._place.set_aside()
            self._load()
        else:
            if new and self.run.config:
                self._database.close()
                self._marker.close()
                raise StoreError(
                    f"{self.name} must have lost its run for --new, got one that is whole: leave "
                    "--new out to go on with it, or choose another file"
                )

    def _load(self) -> None:
        """Open marker and database, check both, and hold one against the other."""
        with ExitStack() as undo:
            self._marker = Marker(self._place.mark if self._durable else None)
            undo.callback(self._marker.close)
            reached = self._marker.reached
            if reached is not None and not self._place.exists():
                raise _lost(self.name, reached, 0)
            self._database = self._connect()
            undo.callback(self._database.close)
            self.run = self.read_run()
            if self.run.role != self._role:
                raise StoreError(
                    f"{self.name} must be the file of {_a(self._role)}, got that of "
                    f"{_a(self.run.role)}: choose another file"
                )
            self._verify()
            self._compare(reached)
            run = self.run
            if run.status in ENDED:
                raise HaltedError(
                    f"the run in {self.name} {ENDED[run.status]} for good: {run.reason}; start a "
                    "new run with a new store, which spends privacy anew"
                )
            undo.pop_all()

    def _connect(self) -> Database:
        """Open the database, or make one."""
        run = RunNote(role=self._role, run_id=uuid.uuid4().hex, created=utc())
        first: Statement = (_NOTE, _note(_RUN, _encoder.encode(run)))
        with translated(self.name):
            database = self._place.open(first)
            try:
                JournalReader(self.name, database).check()
                self._place.prepare(database, durable=self._durable)
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
                raise damaged(self.name, f"round {after} does not follow from the round before")
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
        if run_id != reached.run_id == self.run.before and not (self.released or reached.halted):
            reached = Reached(run_id=run_id)  # killed before the marker was written
            self._marker.write(reached)
        if reached.run_id != run_id or reached.rounds > self.released or forgot:
            raise _lost(self.name, reached, self.released)
        if reached.rounds and self.digest(reached.rounds) != reached.digest:
            raise _lost(self.name, reached, reached.rounds - 1)

    def _write(
        self,
        run: RunNote,
        row: JournalRow | None = None,
        memory: bytes = b"",
        *,
        forget: bool = False,
    ) -> None:
        """Write a round, and what is noted about the run, with its incidents, where it is new."""
        database = self._database
        with translated(self.name), transaction(database, write=True):
            self._place.hold(database)
            if row is not None:
                database.execute(_INSERT, _values(row))
                if memory:
                    database.execute(_NOTE, _note(MEMORY, memory))
                forget = not self._keep
                if self._fence is not None:
                    self._fence.rise(row.k, row.digest)
            if forget:
                database.execute(_ERASE, (self.released,))
            if run is not self.run or not self._flushed:
                database.execute(_NOTE, _note(_RUN, _encoder.encode(run)))
        self.run, self._flushed = run, True


def _note(name: str, value: bytes) -> tuple[object, ...]:
    return name, value, seal(name.encode(), value)


def _values(row: JournalRow) -> tuple[object, ...]:
    """The values of a round's row; its checksum leaves out contributions, which have their own."""
    fields = (row.context, row.release, row.digest, row.attendance)
    mark = seal(row.k.to_bytes(8, "little", signed=True), *fields)
    return (row.k, *fields, mark, row.said, None if row.said is None else seal(row.said))


def _lost(name: str, reached: Reached, rounds: int) -> StoreError:
    was = "halted for good" if reached.halted else f"at round {reached.rounds:,}"
    return StoreError(
        f"{name} must hold run {reached.run_id}, which was {was}, got a store that ends with "
        f"round {rounds:,}, so it has lost files or was rolled back: {BEGIN_ANEW}"
    )


def _a(role: Role) -> str:
    return "an agent" if role == "agent" else f"a {role}"
