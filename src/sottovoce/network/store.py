"""The run on disk: every round is here, durably, before a byte of it leaves the cloud.

SQLite in WAL mode with synchronous=FULL: after a crash or a loss of power the store holds exactly
the rounds that were committed. It also holds the raw states of the last committed round, because a
repeated message must be told from a conflicting one: mode 0600, and each commit erases the states
of the round before unless ``keep_states`` asks otherwise. Releases, multipliers and incidents stay.
On opening it is held against the seals of its rows, and against the mark of how far the run had
got: a store that is damaged or has lost a round is refused.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from msgspec.structs import replace

from sottovoce.network.config import RunConfig, read_config
from sottovoce.network.database import (
    Row,
    Run,
    Status,
    connect,
    connect_to_read,
    damaged,
    read_refusals,
    read_rounds,
    read_run,
    trouble,
    verify,
)
from sottovoce.network.errors import HaltedError, StoreError
from sottovoce.network.incidents import Incidents
from sottovoce.network.lock import own
from sottovoce.network.mark import Mark, Reached, mark_of
from sottovoce.network.protocol.actions import Record
from sottovoce.network.protocol.codec import Floats, pack, unpack
from sottovoce.network.protocol.messages import Code
from sottovoce.network.rounds import release_bytes
from sottovoce.network.seal import seal
from sottovoce.privacy.sampler import Released

INSERT: Final = "INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
UPDATE: Final = "UPDATE run SET config = ?, status = ?, reason = ?, incidents = ?, seal = ?"


@final
class Store:
    """One run's file, owned by one cloud at a time.

    Args:
        path: the file, created if missing, in a directory that exists on a local disk.
        keep_states: keep the raw states of every round, for an audit.
        new: begin a new run where a store is damaged or has lost rounds; its files are set aside.

    Raises:
        BusyError: another cloud owns it.
        StoreError: it is not a store, is damaged, or has lost rounds that were released.
        DiskError: it cannot be read or written now.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, keep_states: bool = False, new: bool = False
    ) -> None:
        # Two names of one file are one store, with one lock and one mark.
        self.path = Path(path).resolve()
        self._waiting = Incidents()
        self._lock = own(self.path, owner="cloud")
        try:
            self._open(keep_states=keep_states, new=new)
        except BaseException:
            self._lock.close()
            raise

    @property
    def run_id(self) -> str:
        """The run's name."""
        return self._run.run_id

    @property
    def status(self) -> Status:
        """Where the run is."""
        return self._run.status

    @property
    def reason(self) -> str:
        """Why it was halted."""
        return self._run.reason

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
        if not self._run.config:
            self._write(replace(self._run, config=config.text))
        elif self._run.config != config.text:
            raise StoreError(
                f"{self.path} must belong to this run, got a run that differs in "
                f"{_difference(read_config(self._run.config), config)}: use the same command as "
                "before, or a new store for a new run"
            )

    def commit(self, record: Record, released: Released) -> None:
        """Write a round durably; returns only when it is on disk."""
        row = _row(record, released)
        values = (
            row.k,
            row.x,
            row.mu,
            row.y,
            row.release,
            row.carried,
            row.digest,
            row.held,
            row.seal,
            seal(pack(record.x)),
        )
        if self._waiting.total:
            self._write(self._run, values)
        else:
            try:
                # One statement is a transaction by itself, and the cheapest there is.
                self._database.execute(INSERT, values)
            except sqlite3.Error as error:
                raise trouble(self.path, error) from None
        self._rounds = record.k
        self._mark.write(Reached(run_id=self.run_id, rounds=record.k, digest=record.digest))

    def finish(self, x: Floats) -> None:
        """Write the states after the last round."""
        self._write(replace(self._run, status="done"), x=pack(x))

    def halt(self, reason: str) -> None:
        """End the run for good."""
        self._write(replace(self._run, status="halted", reason=reason))
        reached = self._mark.reached
        self._mark.write(replace(reached or Reached(run_id=self.run_id), halted=True))

    def incident(self, code: Code, agents: tuple[int, ...], k: int) -> None:
        """Note a refusal, to be written with the next commit or flush; it holds no value."""
        self._waiting.note(code, agents, k)

    def flush(self) -> None:
        """Write the incidents noted since the last commit."""
        if self._waiting.total:
            self._write(self._run)

    def digest(self, k: int) -> bytes | None:
        """The digest of a committed round, None for one that is still to come.

        Raises:
            StoreError: the round is not as it was written.
        """
        if not 1 <= k <= self._rounds:
            return None
        for row in read_rounds(self._database, self.path, f"WHERE k = {k:d}"):
            return row.digest
        raise damaged(self.path, f"round {k} is missing")

    def last(self) -> Record | None:
        """The last committed round, with its states."""
        for row in read_rounds(self._database, self.path, f"WHERE k = {self._rounds:d}"):
            return _record(row)
        return None

    def has_held(self) -> bool:
        """Whether an agent was held at its last state in some round."""
        return any(row.held for row in read_rounds(self._database, self.path))

    def close(self) -> None:
        """Give the store back."""
        try:
            self.flush()
        finally:
            self._database.close()
            self._mark.close()
            self._lock.close()

    def _open(self, *, keep_states: bool, new: bool) -> None:
        try:
            self._load(keep_states)
        except StoreError:
            if not (new and mark_of(self.path).exists()):
                raise  # without a mark it was no store of ours: somebody's file stays where it is
            _set_aside(self.path)
            self._load(keep_states)
        else:
            if new and self._run.config:
                self._database.close()
                self._mark.close()
                raise StoreError(
                    f"{self.path} must have lost its run for --new, got one that is whole: leave "
                    "--new out to go on with it, or choose another file"
                )

    def _load(self, keep_states: bool) -> None:
        """Open mark and database, check both, and hold one against the other."""
        with ExitStack() as undo:
            self._mark = Mark(self.path)
            undo.callback(self._mark.close)
            reached = self._mark.reached
            if reached is not None and not _has_content(self.path):
                raise _lost(self.path, reached, 0)
            created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            run = Run(run_id=uuid.uuid4().hex, created=created)
            self._database = connect(self.path, run, keep_states=keep_states)
            undo.callback(self._database.close)
            self._run = read_run(self._database, self.path)
            last = verify(self._database, self.path, self._run)
            self._rounds = 0 if last is None else last.k
            self._compare(reached, last)
            undo.pop_all()

    def _compare(self, reached: Reached | None, last: Row | None) -> None:
        if reached is None:
            digest = b"" if last is None else last.digest
            self._mark.write(
                Reached(
                    run_id=self.run_id,
                    rounds=self._rounds,
                    digest=digest,
                    halted=self.status == "halted",
                )
            )
            return
        forgot = reached.halted and self.status != "halted"
        if reached.run_id != self.run_id or reached.rounds > self._rounds or forgot:
            raise _lost(self.path, reached, self._rounds)
        if reached.rounds and self.digest(reached.rounds) != reached.digest:
            raise _lost(self.path, reached, reached.rounds - 1)

    def _write(
        self, run: Run, round_: tuple[object, ...] | None = None, *, x: bytes | None = None
    ) -> None:
        """Write the run's row, with a round or the last states, and the incidents that wait."""
        run = replace(run, incidents=run.incidents + self._waiting.total)
        database = self._database
        try:
            with database:
                database.execute("BEGIN IMMEDIATE")
                if round_ is not None:
                    database.execute(INSERT, round_)
                self._waiting.write(database)
                values = (run.config, run.status, run.reason, run.incidents, run.seal)
                database.execute(UPDATE, values)
                if x is not None:
                    database.execute("UPDATE run SET x = ?, x_seal = ?", (x, seal(x)))
        except sqlite3.Error as error:
            raise trouble(self.path, error) from None
        self._run = run
        self._waiting.clear()


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
        StoreError: it is not a store, or damaged.
    """
    file = Path(path)
    database = connect_to_read(file)
    try:
        database.execute("BEGIN")  # one moment of the run, however it goes on
        run = read_run(database, file)
        held, last = 0, None
        for row in read_rounds(database, file):
            held += len(row.held) // 8
            last = row
        incidents = read_refusals(database, file, run)
    except sqlite3.Error as error:
        raise trouble(file, error) from None
    finally:
        database.close()
    return Summary(
        config=read_config(run.config) if run.config else None,
        status=run.status,
        reason=run.reason,
        rounds=0 if last is None else last.k,
        mu=() if last is None else tuple(_answer(last).tolist()),
        held=held,
        incidents=incidents,
        created=run.created,
    )


def multipliers(path: str | os.PathLike[str]) -> Floats:
    """Return the answer's multipliers after each round of a store, one row per round."""
    file = Path(path)
    database = connect_to_read(file)
    try:
        return np.array([_answer(row) for row in read_rounds(database, file)])
    finally:
        database.close()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transcript:
    """All rounds of a store, for an audit; the states are as private as the store itself.

    Attributes:
        config: the configuration, None before the first start.
        states: x(k), one row per round; None if the states of some round were not kept.
        multiples: the released integers, one row per round.
    """

    config: RunConfig | None
    states: Floats | None
    multiples: Any


def transcript(path: str | os.PathLike[str]) -> Transcript:
    """Read every round of a store.

    Raises:
        StoreError: it is not a store, or damaged.
    """
    file = Path(path)
    database = connect_to_read(file)
    try:
        database.execute("BEGIN")
        run = read_run(database, file)
        rows = list(read_rounds(database, file))
    except sqlite3.Error as error:
        raise trouble(file, error) from None
    finally:
        database.close()
    kept = [unpack(row.x) for row in rows if row.x is not None]
    return Transcript(
        config=read_config(run.config) if run.config else None,
        states=np.array(kept) if rows and len(kept) == len(rows) else None,
        multiples=np.array([np.frombuffer(row.release, dtype="<i8") for row in rows]),
    )


def _answer(row: Row) -> Floats:
    return unpack(row.carried[-len(row.mu) :])


def _row(record: Record, released: Released) -> Row:
    return Row(
        k=record.k,
        x=pack(record.x),
        mu=pack(record.mu),
        y=pack(record.y),
        release=release_bytes(released),
        carried=pack(record.carried),
        digest=record.digest,
        held=struct.pack(f"<{len(record.held)}q", *sorted(record.held)),
    )


def _record(row: Row) -> Record:
    assert row.x is not None  # noqa: S101  opening has looked
    x, mu, y, carried = (unpack(part) for part in (row.x, row.mu, row.y, row.carried))
    held = frozenset(np.frombuffer(row.held, dtype="<i8").tolist())
    return Record(k=row.k, x=x, mu=mu, y=y, carried=carried, digest=row.digest, held=held)


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _lost(path: Path, reached: Reached, rounds: int) -> StoreError:
    was = "halted" if reached.halted else f"at round {reached.rounds:,}"
    return StoreError(
        f"{path} must hold run {reached.run_id}, which was {was}, got a store that has lost it "
        f"after round {rounds:,}: put the lost files back, or say --new to begin a new run, which "
        "spends privacy anew"
    )


def _set_aside(path: Path) -> None:
    """Rename the files of a store that cannot be used."""
    aside = f"{path.name}.lost-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    for end in ("", "-wal", "-shm", ".mark"):
        file = path.with_name(path.name + end)
        if file.exists():
            file.rename(path.with_name(aside + end))


def _difference(stored: RunConfig, asked: RunConfig) -> str:
    names = ("problem", "plan", "algorithm", "rounds", "noise", "promise", "run_id")
    return ", ".join(n for n in names if getattr(stored, n) != getattr(asked, n)) or "its format"
