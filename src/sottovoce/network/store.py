"""The cloud's journal: every round is here, durably, before a byte of it leaves the cloud.

It also holds the contributions of the last committed round, to tell a repeated message
from a conflicting one: mode 0600, and each commit erases the round before, the end of the run the
last one, unless ``keep_states`` asks otherwise. Releases, prices and incidents stay, and what the
cloud remembers after the last round. Summaries and transcripts of a store are read while a cloud
may be writing to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from sottovoce.algorithm.algorithm import PriceRounds, noisy_shares
from sottovoce.algorithm.price_memory import PriceMemory
from sottovoce.errors import PrivacyError
from sottovoce.network.config import RunConfig, algorithm_of, read_config
from sottovoce.network.failures import StoreError
from sottovoce.network.journal import MEMORY, Journal, JournalReader, RunNote, Status
from sottovoce.network.journal_place import damaged
from sottovoce.network.protocol.actions import (
    CloudMemory,
    Commit,
    JournalRow,
    Part,
    Party,
    Record,
    Setup,
    agents_in,
)
from sottovoce.network.protocol.codec import Floats, MalformedError, pack, pack_release, unpack
from sottovoce.network.protocol.messages import Gap
from sottovoce.privacy.adjacency import Trajectory
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.groups import read_only

if TYPE_CHECKING:  # a store is read without noise and rounds
    from sottovoce.network.round_arithmetic import Rounds
    from sottovoce.privacy.sampler import Released

Absences: TypeAlias = tuple[tuple[int, ...], tuple[Gap, ...], bool]
"""Agents that missed a round, gaps in averages known since, and whether the agents' last
contributions were reused, in place of their fallbacks."""

Said: TypeAlias = tuple[tuple[tuple[int, ...], bytes], ...]
"""Who contributed to a round, agents by their numbers, and what, as it travelled."""


class _StoredPart(Struct, frozen=True, array_like=True):
    """A part as it is stored."""

    first: int  # of its agents
    last: int
    others: tuple[int, ...]  # all of its agents, where some between first and last are of others
    missed: tuple[Gap, ...]
    data: bytes

    @property
    def agents(self) -> tuple[int, ...]:
        return self.others or tuple(range(self.first, self.last + 1))


class RunLine(Struct, frozen=True, kw_only=True):
    """A run of a series that is over, or was not opened."""

    number: int
    opened: str  # UTC
    status: str  # "done", "unanswered" or "skipped"
    reason: str = ""  # why it was not answered, or not opened
    rounds: int = 0
    seconds: float = 0.0
    agents: int = 0  # how many took part
    sat_out: dict[str, int] = {}  # how many others, by the reason
    confirmed: bool | None = None


class SeriesNote(Struct, frozen=True, kw_only=True):
    """Where a series is, beside the journal of its current or last run."""

    name: str
    origin: str
    created: float  # seconds since 1970
    number: int = 0  # of the current or last run, 0 before the first
    due: float = 0.0  # when that was due
    running: bool = False
    public: dict[str, float | list[float]] = {}
    sat_out: dict[str, list[int]] = {}  # agents, from 1, by the reason
    warm: PriceMemory | None = None  # what the current run began with
    learnt: PriceMemory | None = None  # after the last run with an answer
    learnt_at: tuple[int, float] = (0, 0.0)  # number and time of that run
    answered: int = 0  # how many runs had an answer
    runs: tuple[RunLine, ...] = ()  # the latest

    @property
    def absent(self) -> frozenset[int]:
        """The agents that do not take part, from 1."""
        return frozenset(agent for agents in self.sat_out.values() for agent in agents)


SERIES: Final = "series"
_QUESTION: Final = "question"

_encoder = msgspec.msgpack.Encoder(enc_hook=np.ndarray.tolist)
_said: Final = msgspec.msgpack.Decoder(tuple[_StoredPart, ...])
_attendance: Final = msgspec.msgpack.Decoder(Absences)
_series: Final = msgspec.msgpack.Decoder(
    SeriesNote, dec_hook=lambda _, values: read_only(np.array(values, dtype=np.float64))
)
_memory: Final = msgspec.msgpack.Decoder(CloudMemory)
_question: Final = msgspec.msgpack.Decoder(tuple[int, bytes, tuple[_StoredPart, ...]])


@final
class CloudStore(Journal):
    """One run's file, owned by one cloud at a time; as ``Journal``, with ``keep_states``."""

    def __init__(
        self, path: str | os.PathLike[str], *, keep_states: bool = False, new: bool = False
    ) -> None:
        super().__init__(path, "cloud", keep=keep_states, new=new)

    def pin(self, config: RunConfig) -> None:
        """Bind the store to a configuration, or check that it is bound to this one."""
        if self.run.config not in ("", config.text):
            raise StoreError(
                f"{self.name} must belong to this run, got a run that differs in "
                f"{_difference(read_config(self.run.config), config)}: use the same command as "
                "before, or a new store for a new run"
            )
        self.bind(config.text)

    def commit(self, record: Record, released: Released) -> None:
        """Write a round durably; returns only when it is on disk."""
        again = bool(record.held) and not record.held.isdisjoint(agents_in(record.parts))
        attendance = (tuple(sorted(record.held)), record.missed, again)
        row = JournalRow(
            k=record.k,
            context=pack(record.price),
            release=pack_release(released),
            digest=record.digest,
            attendance=_encoder.encode(attendance) if any(attendance) else b"",
            said=_encoder.encode(_stored(record.parts)),
        )
        self.append(row, b"" if record.memory is None else _encoder.encode(record.memory))

    def memory(self) -> CloudMemory | None:
        """Return what the cloud remembered after the last round."""
        body = self.notes().get(MEMORY)
        return None if body is None else _memory.decode(body)

    def series(self) -> SeriesNote | None:
        """Return where the series is that this is the store of."""
        return read_series(self.notes())

    def keep_series(self, note: SeriesNote) -> None:
        """Keep where the series is."""
        self.put(SERIES, _encoder.encode(note))

    def open_run(self, run_id: str, config: RunConfig, note: SeriesNote) -> None:
        """Begin the next run of the series."""
        self.begin(run_id, config.text, {SERIES: _encoder.encode(note)})

    def parts(self, party: Callable[[tuple[int, ...]], Party]) -> tuple[Part, ...]:
        """Return the contributions of the last round; a run that is over keeps none."""
        contributions = () if self.last is None else said_in(self.last)
        return tuple(Part(party=party(who), data=data) for who, data in contributions)

    def keep_question(self, full: Commit, receipt: bytes) -> None:
        """Keep the question to the helper before it is asked: a cloud that is killed repeats it.

        The helper answers once per round. A cloud that was killed between its question and its
        commit, while an agent lost its saved state and so has new masks, could not put the same
        question together any more. It holds masked contributions, which tell nothing, and the
        receipt of the helper's last answer.
        """
        self.put(_QUESTION, _encoder.encode((full.k, receipt, _stored(full.parts))))

    def question(
        self, k: int, party: Callable[[tuple[int, ...]], Party]
    ) -> tuple[bytes, tuple[Part, ...] | None]:
        """Return the receipt and the contributions to round k, None if the helper was not asked."""
        body = self.notes().get(_QUESTION)
        number, receipt, stored = (0, b"", ()) if body is None else _question.decode(body)
        if number != k:
            return b"", None
        return receipt, tuple(
            [Part(party=party(p.agents), data=p.data, missed=p.missed) for p in stored]
        )

    def _verify(self) -> None:
        super()._verify()
        if self.last is not None and self.last.said is None and self.run.status == "running":
            raise damaged(self.name, "the contributions of the last round are missing")


def resumed(
    store: CloudStore, rounds: Rounds, setup: Setup, *, secure: bool
) -> tuple[Record | None, dict[int, int]]:
    """Go on from what the cloud remembered, which must have the price that was sent.

    Returned are the last round, and who was held in it, with the round each contributed to last.
    """
    row, memory, before = store.last, store.memory(), 0
    silent, gaps = dict[int, int](), set[Gap]()
    if row is None:
        return None, silent
    for absences in store.rounds("AND length(attendance) > 0"):
        held, missed, _ = attendance_in(absences)
        earlier, before = silent if absences.k == before + 1 else {}, absences.k
        silent = {agent: earlier.get(agent, before - 1) for agent in held}
        gaps.update(missed)
    silent = silent if before == row.k else {}
    if memory is None or memory.k != row.k:
        raise damaged(store.name, f"what its cloud remembered is not of round {row.k:,}")
    try:
        last = rounds.resume(row, memory, frozenset(silent), gaps, secure=secure)
    except MalformedError as error:
        raise damaged(store.name, str(error)) from None
    if pack(last.price) != row.context:
        raise damaged(
            store.name, f"its cloud remembered other prices than those of round {row.k:,}"
        )
    return replace(last, parts=store.parts(setup.party)), silent


def read_series(notes: Mapping[str, bytes]) -> SeriesNote | None:
    """Return what the notes of a journal say of a series."""
    body = notes.get(SERIES)
    return None if body is None else _series.decode(body)


def check_store(plan: NoisePlan, store: CloudStore) -> None:
    """Refuse to continue a run that reused contributions under a promise that does not cover it."""
    rows = store.rounds("AND length(attendance) > 0")
    if isinstance(plan.hide, Trajectory) and any(attendance_in(row)[2] for row in rows):
        raise PrivacyError(
            f"a run that hides a trajectory must not have reused contributions, got {store.name}, "
            "where the last ones of some agents counted again: it released more than it promised "
            "and cannot go on; start anew with another store and straggler='fallback' or 'wait', "
            "or plan with sv.Offset(...) or sv.Everything(...)"
        )


def attendance_in(row: JournalRow) -> Absences:
    """Return what a round tells of those who missed it."""
    return _attendance.decode(row.attendance) if row.attendance else ((), (), False)


def said_in(row: JournalRow) -> Said:
    """Return who contributed to a round and what; nothing once it is erased."""
    stored = () if row.said is None else _said.decode(row.said)
    return tuple([(part.agents, part.data) for part in stored])


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What a store tells of its run, without contributions."""

    config: RunConfig | None  # None before the first start
    status: Status
    reason: str  # why it was halted or failed
    rounds: int  # released so far
    price: tuple[float, ...]  # the answer so far, averaged or the latest; none of a helper
    held: int  # agent-rounds in which an agent's fallback or last contribution counted
    incidents: dict[str, int]  # how many refusals per code
    created: str  # when the run began, UTC
    series: SeriesNote | None  # of which it is a run, without what it has learnt


def summarise(path: str | os.PathLike[str]) -> RunSummary:
    """Read a store's summary; a cloud may be writing to it meanwhile."""
    held, rounds, price = 0, 0, np.zeros(0)
    with JournalReader.open(path) as journal:
        run = journal.read_run()
        config, series = _config(run), read_series(journal.notes())
        for row, answer in _answers(run, journal.rounds()):
            held += len(attendance_in(row)[0])
            rounds, price = row.k, answer
    return RunSummary(
        config=config,
        status=run.status,
        reason=run.reason,
        rounds=rounds,
        price=tuple(price.tolist()),
        held=held,
        incidents=run.refused,
        created=run.created,
        series=None if series is None else replace(series, warm=None, learnt=None),
    )


def answers(path: str | os.PathLike[str]) -> Floats:
    """Return the prices to report after each round of a store, one row per round."""
    with JournalReader.open(path) as journal:
        return np.array([answer for _, answer in _answers(journal.read_run(), journal.rounds())])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredTranscript:
    """All rounds of a store, for an audit; contributions are as private as the store itself."""

    config: RunConfig | None  # None before the first start
    said: tuple[Said, ...] | None  # in every round; None if some round was not kept
    multiples: Any  # the released integers, one row per round


def transcript(path: str | os.PathLike[str]) -> StoredTranscript:
    """Read every round of a store."""
    with JournalReader.open(path) as journal:
        config = _config(journal.read_run())
        rows = list(journal.rounds())
    every_round = tuple(said_in(row) for row in rows if row.said is not None)
    return StoredTranscript(
        config=config,
        said=every_round if rows and len(every_round) == len(rows) else None,
        multiples=np.array([np.frombuffer(row.release, dtype="<i8") for row in rows]),
    )


def _config(run: RunNote) -> RunConfig | None:
    return read_config(run.config) if run.config else None


def _answers(run: RunNote, rows: Iterable[JournalRow]) -> Iterator[tuple[JournalRow, Floats]]:
    """Yield every round with the prices to report after it; a helper knows none."""
    config = _config(run)
    algorithm = None if config is None else algorithm_of(config.algorithm)
    shares = None
    if config is not None and isinstance(algorithm, PriceRounds):
        shares = noisy_shares(algorithm, config.rounds)
    answer: Floats | None = None
    for row in rows:
        price = unpack(row.context if run.role == "cloud" else b"")
        if answer is None:
            answer = before = np.zeros(price.size)
        # What is averaged are the prices that led to what was released in the round.
        answer = price if shares is None else answer + shares[row.k] * (before - answer)
        before = price
        yield row, answer


def _stored(parts: Iterable[Part]) -> list[_StoredPart]:
    stored = []
    for part in parts:
        agents = part.party.agents
        others = () if isinstance(part.party.places, slice) else agents
        stored.append(_StoredPart(agents[0], agents[-1], others, part.missed, part.data))
    return stored


def _difference(stored: RunConfig, requested: RunConfig) -> str:
    names = RunConfig.__struct_fields__
    return (
        ", ".join(n for n in names if getattr(stored, n) != getattr(requested, n)) or "its format"
    )
