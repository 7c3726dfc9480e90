"""What a store tells to people and audits; a cloud may be writing to it meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sottovoce.algorithm.algorithm import PriceRounds, noisy_shares
from sottovoce.network.config import RunConfig, algorithm_of, read_config
from sottovoce.network.journal import JournalReader, RunNote, Status
from sottovoce.network.protocol.actions import JournalRow
from sottovoce.network.protocol.codec import Floats, unpack
from sottovoce.network.store import Said, attendance_in, said_in


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What a store says about its run without anything that agents said."""

    config: RunConfig | None  # None before the first start
    status: Status
    reason: str  # why it was halted or failed
    rounds: int  # released so far
    price: tuple[float, ...]  # the answer so far, averaged or the latest; none of a helper
    held: int  # agent-rounds in which an agent's last contribution was reused
    incidents: dict[str, int]  # how many refusals per code
    created: str  # when the run began, UTC


def summarise(path: str | os.PathLike[str]) -> RunSummary:
    """Read a store's summary; a cloud may be writing to it meanwhile."""
    held, rounds, price = 0, 0, np.zeros(0)
    with JournalReader.open(path) as journal:
        run = journal.read_run()
        config = _config(run)
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
    )


def answers(path: str | os.PathLike[str]) -> Floats:
    """Return the prices to report after each round of a store, one row per round."""
    with JournalReader.open(path) as journal:
        return np.array([answer for _, answer in _answers(journal.read_run(), journal.rounds())])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredTranscript:
    """All rounds of a store, for an audit; what was said is as private as the store itself."""

    config: RunConfig | None  # None before the first start
    said: tuple[Said, ...] | None  # in every round; None if some round was not kept
    multiples: Any  # the released integers, one row per round


def transcript(path: str | os.PathLike[str]) -> StoredTranscript:
    """Read every round of a store."""
    with JournalReader.open(path) as journal:
        config = _config(journal.read_run())
        rows = list(journal.rounds())
    kept = tuple(said_in(row) for row in rows if row.said is not None)
    return StoredTranscript(
        config=config,
        said=kept if rows and len(kept) == len(rows) else None,
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
