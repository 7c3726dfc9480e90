"""The cloud's journal: every round is here, durably, before a byte of it leaves the cloud.

It also holds what agents said in the last committed round, because a repeated message must be told
from a conflicting one: mode 0600, and each commit erases the round before, the end of the run the
last one, unless ``keep_states`` asks otherwise. Releases, prices and incidents stay; what the
algorithm remembers is worked out from them.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, final

import msgspec
from msgspec.structs import replace

from sottovoce.errors import PrivacyError
from sottovoce.network.config import RunConfig, read_config
from sottovoce.network.failures import StoreError
from sottovoce.network.journal import Journal, JournalRow
from sottovoce.network.journal_file import damaged
from sottovoce.network.protocol.actions import Commit, Part, Party, Record, Setup
from sottovoce.network.protocol.codec import pack
from sottovoce.network.protocol.messages import Gap
from sottovoce.network.round_arithmetic import Rounds, release_bytes
from sottovoce.privacy.adjacency import Trajectory
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.sampler import Released

Attendance = tuple[tuple[int, ...], tuple[Gap, ...]]
"""Agents whose last contribution was reused in a round, and gaps in averages known since."""

_PARTY: Final = "party "
_QUESTION: Final = "question"

_encoder = msgspec.msgpack.Encoder()
_said: Final = msgspec.msgpack.Decoder(tuple[tuple[int, bytes], ...])
_attendance: Final = msgspec.msgpack.Decoder(Attendance)
_question: Final = msgspec.msgpack.Decoder(
    tuple[int, bytes, list[tuple[tuple[int, ...], bytes, tuple[Gap, ...]]]]
)


@final
class CloudStore(Journal):
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
        self._numbers: dict[tuple[int, ...], int] = {}
        self._spoke: dict[int, tuple[Party, int]] = {}  # by the first agent: who spoke last
        super().__init__(path, "cloud", keep=keep_states, new=new)

    def pin(self, config: RunConfig) -> None:
        """Bind the store to a configuration, or check that it is bound to this one.

        Raises:
            StoreError: the store belongs to a run with another configuration.
            HaltedError: the run was halted, or failed.
            DiskError: the name of the run cannot be written now.
        """
        self.require_running()
        if self.config not in ("", config.text):
            raise StoreError(
                f"{self.path} must belong to this run, got a run that differs in "
                f"{_difference(read_config(self.config), config)}: use the same command as "
                "before, or a new store for a new run"
            )
        self.bind(config.text)

    def commit(self, record: Record, released: Released) -> None:
        """Write a round durably; returns only when it is on disk."""
        said, parties = self._numbered(record.parts)
        attendance = (tuple(sorted(record.held)), record.missed)
        row = JournalRow(
            k=record.k,
            context=pack(record.price),
            release=release_bytes(released),
            digest=record.digest,
            attendance=_encoder.encode(attendance) if any(attendance) else b"",
            said=said,
        )
        self.append(row, parties)

    def said(self, party: Callable[[tuple[int, ...]], Party]) -> dict[str, Any]:
        """Return ``parts`` and ``held`` of the last round; a run that is over keeps no parts.

        Args:
            party: describes agents that spoke together.
        """
        for row in self.rounds(f"WHERE k = {self.released:d}"):
            said = said_in(row, parties_in(self._notes), self.path)
            parts = tuple(Part(party=party(who), data=data) for who, data in said)
            return {"parts": parts, "held": frozenset(attendance_in(row)[0])}
        raise damaged(self.path, "it holds no round")

    def silent(self) -> dict[int, int]:
        """Return who was held in the last round, with the last round in which each spoke."""
        silent: dict[int, int] = {}
        last = 0
        for row, held in self._held():
            before = silent if row.k == last + 1 else {}
            silent = {agent: before.get(agent, row.k - 1) for agent in held}
            last = row.k
        return silent if last == self.released else {}

    def has_held(self) -> bool:
        """Whether an agent's last contribution was reused in some round."""
        return any(True for _ in self._held())

    def _held(self) -> Iterator[tuple[JournalRow, tuple[int, ...]]]:
        for row in self.rounds("WHERE length(attendance) > 0"):
            held, _ = attendance_in(row)
            if held:
                yield row, held

    def _verify(self) -> None:
        super()._verify()
        parties = parties_in(self._notes)
        self._numbers = {agents: number for number, agents in parties.items()}
        if self._last is not None:
            if self._last.said is None and self.status == "running":
                raise damaged(self.path, "what was said in the last round is missing")
            said_in(self._last, parties, self.path)

    def _numbered(self, parts: tuple[Part, ...]) -> tuple[bytes, dict[str, bytes]]:
        """Return what was said with the numbers of the parties, and notes of new parties."""
        said, new = [], {}
        for part in parts:
            party = part.party
            known, number = self._spoke.get(party.agents[0], (None, 0))
            if known is not party:
                if party.agents not in self._numbers:
                    number = self._numbers[party.agents] = len(self._numbers) + 1
                    new[f"{_PARTY}{number}"] = struct.pack(f"<{len(party.agents)}q", *party.agents)
                number = self._numbers[party.agents]
                self._spoke[party.agents[0]] = party, number
            said.append((number, part.data))
        return _encoder.encode(said), new


@final
class PendingQuestion:
    """The question at hand of a split cloud, in its store: a cloud that is killed asks it again.

    The helper answers once per round. A cloud that was killed between its question and its commit,
    while an agent lost its saved state and so has new masks, could not put the same question
    together any more. It holds masked contributions, which tell nothing, and the receipt of the
    last answer.

    Args:
        store: the cloud's.
        agents: agents of the problem.
        sums: how many sums there are.

    Attributes:
        receipt: of the helper's last answer, empty if it is not known.
        room: bytes that a question takes at most.
    """

    def __init__(self, store: CloudStore, *, agents: int, sums: int) -> None:
        self.room = (1 << 16) + agents * (704 + 8 * sums)
        self.receipt = b""
        self._store = store

    def parts(self, k: int, party: Callable[[tuple[int, ...]], Party]) -> tuple[Part, ...]:
        """Return what had been said of round k when the helper was asked, if it was."""
        body = self._store.notes().get(_QUESTION)
        if body is None:
            return ()
        round_, receipt, said = _question.decode(body)
        if round_ != k:
            return ()
        self.receipt = receipt
        return tuple(Part(party=party(who), data=data, missed=missed) for who, data, missed in said)

    def write(self, full: Commit) -> None:
        """Keep a question before it is asked."""
        said = [(part.party.agents, part.data, part.missed) for part in full.parts]
        self._store.put(_QUESTION, _encoder.encode((full.k, self.receipt, said)))


def resumed(store: CloudStore, rounds: Rounds, setup: Setup, *, secure: bool) -> Record | None:
    """Take all steps of a store's rounds again, and return the last of them.

    The store keeps releases and prices, not what the algorithm remembers: that is worked out anew,
    and every price must come out as it was sent.

    Raises:
        StoreError: a price comes out differently.
        DivergedError: likewise, beyond all bounds.
    """
    previous, last = setup.config_hash, None
    for row in store.rounds():
        held, missed = attendance_in(row)
        last = rounds.replay(
            row.k,
            row.release,
            secure=secure,
            previous=previous,
            held=frozenset(held),
            missed=missed,
        )
        if pack(last.price) != row.context:
            raise StoreError(
                f"{store.path} must hold the prices that follow from its releases, got others in "
                f"round {row.k:,}: it was written by another version of sottovoce or on another "
                "kind of machine; continue there, or begin a new run with a new store, which "
                "spends privacy anew"
            )
        previous = row.digest
    return None if last is None else replace(last, **store.said(setup.party))


def check_store(plan: NoisePlan, store: CloudStore) -> None:
    """Refuse to continue a run that held agents under a promise that does not cover it.

    Raises:
        PrivacyError: agents were held, and the plan hides a trajectory.
    """
    if isinstance(plan.hide, Trajectory) and store.has_held():
        raise PrivacyError(
            f"a run that hides a trajectory must not have held agents, got {store.path}, where "
            "last words of some counted again: it released more than it promised and cannot go "
            "on; start anew with another store, and wait for stragglers or plan with "
            "sv.Offset(...) or sv.Everything(...)"
        )


def attendance_in(row: JournalRow) -> Attendance:
    """Return the agents, from 1, that were held in a round, and the gaps known since."""
    return _attendance.decode(row.attendance) if row.attendance else ((), ())


def parties_in(notes: Mapping[str, bytes]) -> dict[int, tuple[int, ...]]:
    """Return who has spoken together, by number."""
    return {
        int(name.removeprefix(_PARTY)): struct.unpack(f"<{len(agents) // 8}q", agents)
        for name, agents in notes.items()
        if name.startswith(_PARTY)
    }


def said_in(
    row: JournalRow, parties: Mapping[int, tuple[int, ...]], path: os.PathLike[str]
) -> tuple[tuple[tuple[int, ...], bytes], ...]:
    """Return who spoke in a round and what they said; nothing once it is erased."""
    if row.said is None:
        return ()
    try:
        return tuple((parties[number], data) for number, data in _said.decode(row.said))
    except (KeyError, msgspec.DecodeError):
        raise damaged(path, f"a party of round {row.k} is missing") from None


def _difference(stored: RunConfig, asked: RunConfig) -> str:
    names = ("problem", "plan", "algorithm", "rounds", "noise", "promise", "run_id")
    return ", ".join(n for n in names if getattr(stored, n) != getattr(asked, n)) or "its format"
