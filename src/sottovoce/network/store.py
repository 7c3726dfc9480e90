"""The run on disk: every round is here, durably, before a byte of it leaves the cloud.

SQLite in WAL mode with synchronous=FULL: after a crash or a loss of power the store holds exactly
the rounds that were committed. It also holds what agents said in the last committed round, because
a repeated message must be told from a conflicting one: mode 0600, and each commit erases the round
before, the end of the run the last one, unless ``keep_states`` asks otherwise. Releases, prices and
incidents stay; what the algorithm remembers is worked out from them. On opening it is held against
the seals of its rows, and against the mark of how far the run had got: a store that is damaged or
has lost a round is refused.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, final

import msgspec
from msgspec.structs import astuple, replace

from sottovoce.network.config import RunConfig, read_config
from sottovoce.network.database import (
    Row,
    Run,
    Status,
    checkpoint,
    connect,
    damaged,
    read_parties,
    read_rounds,
    read_run,
    read_said,
    trouble,
    verify,
)
from sottovoce.network.errors import HaltedError, StoreError
from sottovoce.network.incidents import Incidents
from sottovoce.network.lock import own
from sottovoce.network.mark import Mark, Reached, mark_of
from sottovoce.network.protocol.actions import Part, Party, Record
from sottovoce.network.protocol.codec import pack
from sottovoce.network.protocol.messages import Code, Gap
from sottovoce.network.rounds import release_bytes
from sottovoce.network.seal import seal
from sottovoce.privacy.sampler import Released

INSERT: Final = "INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
PARTY: Final = "INSERT INTO parties VALUES (?, ?, ?)"
FORGET: Final = """
UPDATE rounds SET said = NULL, said_seal = NULL WHERE k = (SELECT max(k) FROM rounds)
"""
ENDED: Final = {"halted": "was halted", "failed": "has failed"}
UPDATE: Final = "UPDATE run SET config = ?, status = ?, reason = ?, incidents = ?, seal = ?"


_encoder = msgspec.msgpack.Encoder()


@final
class Store:
    """One run's file, owned by one cloud at a time.

    Args:
        path: the file, created if missing, in a directory that exists on a local disk.
        keep_states: keep what agents said in every round, for an audit.
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
        self._keep_states = keep_states
        self._numbers: dict[tuple[int, ...], int] = {}
        self._spoke: dict[int, tuple[Party, int]] = {}  # by the first agent: who spoke last
        self._lock = own(self.path, owner="cloud")
        try:
            self._open(new=new)
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
        """Why it was halted or failed."""
        return self._run.reason

    def pin(self, config: RunConfig) -> None:
        """Bind the store to a configuration, or check that it is bound to this one.

        Raises:
            StoreError: the store belongs to a run with another configuration.
            HaltedError: the run was halted, or failed.
            DiskError: the name of the run cannot be written now.
        """
        if self.status in ENDED:
            raise HaltedError(
                f"the run in {self.path} {ENDED[self.status]} for good: {self.reason}; start a new "
                "run with a new store, which spends privacy anew"
            )
        if not self._run.config:
            self._write(replace(self._run, config=config.text))
        elif self._run.config != config.text:
            raise StoreError(
                f"{self.path} must belong to this run, got a run that differs in "
                f"{_difference(read_config(self._run.config), config)}: use the same command as "
                "before, or a new store for a new run"
            )
        if self._rounds == 0:
            # A run whose log is lost must not come back under another name: the ledger knows it
            # by this one.
            checkpoint(self._database, self.path)

    def commit(self, record: Record, released: Released) -> None:
        """Write a round durably; returns only when it is on disk."""
        said, new = self._numbered(record.parts)
        row = Row(
            k=record.k,
            price=pack(record.price),
            release=release_bytes(released),
            digest=record.digest,
            held=_numbers(sorted(record.held)),
            missed=_numbers([number for gap in record.missed for number in gap]),
            said=said,
        )
        values = (*astuple(row)[:-1], row.seal, said, seal(said))
        if new or self._waiting.total:
            self._write(self._run, values, new)
        else:
            try:
                # One statement is a transaction by itself, and the cheapest there is.
                self._database.execute(INSERT, values)
            except sqlite3.Error as error:
                raise trouble(self.path, error) from None
        self._rounds = record.k
        self._mark.write(Reached(run_id=self.run_id, rounds=record.k, digest=record.digest))

    def finish(self) -> None:
        """The last round was written: nothing that was said is needed any more."""
        self._write(replace(self._run, status="done"), forget=not self._keep_states)

    def fail(self, reason: str) -> None:
        """End the run for good, because its prices ran away."""
        self._end("failed", reason)

    def halt(self, reason: str) -> None:
        """End the run for good, because its store was rolled back."""
        self._end("halted", reason)

    def _end(self, status: Status, reason: str) -> None:
        self._write(replace(self._run, status=status, reason=reason), forget=not self._keep_states)
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

    @property
    def released(self) -> int:
        """How many rounds it holds."""
        return self._rounds

    def rounds(self) -> Iterator[Row]:
        """Yield all rounds, in order."""
        return read_rounds(self._database, self.path)

    def said(self, party: Callable[[tuple[int, ...]], Party]) -> dict[str, Any]:
        """Return ``parts`` and ``held`` of the last round; a run that is over keeps no parts.

        Args:
            party: describes agents that spoke together.
        """
        for row in read_rounds(self._database, self.path, f"WHERE k = {self._rounds:d}"):
            agents = {number: who for who, number in self._numbers.items()}
            said = read_said(row, agents, self.path)
            parts = tuple(Part(party=party(who), data=data) for who, data in said)
            return {"parts": parts, "held": frozenset(held_in(row))}
        raise damaged(self.path, "it holds no round")

    def silent(self) -> dict[int, int]:
        """Return who was held in the last round, with the last round in which each spoke."""
        found: dict[int, int] = {}
        last = 0
        for row in read_rounds(self._database, self.path, "WHERE length(held) > 0"):
            before = found if row.k == last + 1 else {}
            found = {agent: before.get(agent, row.k - 1) for agent in held_in(row)}
            last = row.k
        return found if last == self._rounds else {}

    def has_held(self) -> bool:
        """Whether an agent's last words counted again in some round."""
        return any(row.held for row in self.rounds())

    def close(self) -> None:
        """Give the store back."""
        try:
            self.flush()
        finally:
            self._database.close()
            self._mark.close()
            self._lock.close()

    def _open(self, *, new: bool) -> None:
        try:
            self._load()
        except StoreError:
            if not (new and mark_of(self.path).exists()):
                raise  # without a mark it was no store of ours: somebody's file stays where it is
            _set_aside(self.path)
            self._load()
        else:
            if new and self._run.config:
                self._database.close()
                self._mark.close()
                raise StoreError(
                    f"{self.path} must have lost its run for --new, got one that is whole: leave "
                    "--new out to go on with it, or choose another file"
                )

    def _load(self) -> None:
        """Open mark and database, check both, and hold one against the other."""
        with ExitStack() as undo:
            self._mark = Mark(self.path)
            undo.callback(self._mark.close)
            reached = self._mark.reached
            if reached is not None and not _has_content(self.path):
                raise _lost(self.path, reached, 0)
            created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            run = Run(run_id=uuid.uuid4().hex, created=created)
            self._database = connect(self.path, run, keep=self._keep_states)
            undo.callback(self._database.close)
            self._run = read_run(self._database, self.path)
            last = verify(self._database, self.path, self._run)
            self._rounds = 0 if last is None else last.k
            parties = read_parties(self._database, self.path)
            self._numbers = {agents: number for number, agents in parties.items()}
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
                    halted=self.status in ENDED,
                )
            )
            return
        forgot = reached.halted and self.status not in ENDED
        if reached.run_id != self.run_id or reached.rounds > self._rounds or forgot:
            raise _lost(self.path, reached, self._rounds)
        if reached.rounds and self.digest(reached.rounds) != reached.digest:
            raise _lost(self.path, reached, reached.rounds - 1)

    def _numbered(self, parts: Sequence[Part]) -> tuple[bytes, list[tuple[int, ...]]]:
        """Return what was said with the numbers of the parties, and parties without one yet."""
        said, new = [], []
        for part in parts:
            party = part.party
            known, number = self._spoke.get(party.agents[0], (None, 0))
            if known is not party:
                if party.agents not in self._numbers:
                    self._numbers[party.agents] = len(self._numbers) + 1
                    new.append(party.agents)
                number = self._numbers[party.agents]
                self._spoke[party.agents[0]] = party, number
            said.append((number, part.data))
        return _encoder.encode(said), new

    def _write(
        self,
        run: Run,
        round_: tuple[object, ...] | None = None,
        parties: Sequence[tuple[int, ...]] = (),
        *,
        forget: bool = False,
    ) -> None:
        """Write the run's row, with a round and its new parties, and the incidents that wait."""
        run = replace(run, incidents=run.incidents + self._waiting.total)
        database = self._database
        try:
            with database:
                database.execute("BEGIN IMMEDIATE")
                for agents in parties:
                    number, listed = self._numbers[agents], _numbers(agents)
                    database.execute(PARTY, (number, listed, seal(number, listed)))
                if round_ is not None:
                    database.execute(INSERT, round_)
                self._waiting.write(database)
                values = (run.config, run.status, run.reason, run.incidents, run.seal)
                database.execute(UPDATE, values)
                if forget:
                    database.execute(FORGET)
        except sqlite3.Error as error:
            raise trouble(self.path, error) from None
        self._run = run
        self._waiting.clear()


def _numbers(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def held_in(row: Row) -> tuple[int, ...]:
    """Return the agents, from 1, whose last words counted again in a round."""
    return struct.unpack(f"<{len(row.held) // 8}q", row.held)


def missed_in(row: Row) -> tuple[Gap, ...]:
    """Return the gaps in agents' averages that are known since a round."""
    return tuple(struct.iter_unpack("<4q", row.missed))


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _lost(path: Path, reached: Reached, rounds: int) -> StoreError:
    was = "halted for good" if reached.halted else f"at round {reached.rounds:,}"
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
