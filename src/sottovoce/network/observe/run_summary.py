"""What a store tells to people and audits; a cloud may be writing to it meanwhile."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from sottovoce.algorithm.algorithm import PriceRounds
from sottovoce.network.config import RunConfig, algorithm_of, read_config
from sottovoce.network.database import (
    Row,
    Run,
    Status,
    connect_to_read,
    read_parties,
    read_refusals,
    read_rounds,
    read_run,
    read_said,
    trouble,
)
from sottovoce.network.protocol.codec import Floats, unpack
from sottovoce.network.schedule import Shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a store says about its run without anything that agents said.

    Attributes:
        config: the configuration, None before the first start.
        status: "running" (or interrupted), "done", "halted" or "failed".
        reason: why it was halted or failed.
        rounds: rounds released so far.
        price: the answer so far: averaged prices, or the latest.
        held: agent-rounds in which an agent's last words counted again.
        incidents: how many refusals per code.
        created: when the run began, UTC.
    """

    config: RunConfig | None
    status: Status
    reason: str
    rounds: int
    price: tuple[float, ...]
    held: int
    incidents: dict[str, int]
    created: str


def summarise(path: str | os.PathLike[str]) -> Summary:
    """Read a store's summary; a cloud may be writing to it meanwhile.

    Raises:
        StoreError: it is not a store, or damaged.
    """
    held, rounds, price = 0, 0, np.zeros(0)
    with _opened(path) as (database, file, run):
        config = _config(run)
        for row, answer in _answers(config, read_rounds(database, file)):
            held += len(row.held) // 8
            rounds, price = row.k, answer
        incidents = read_refusals(database, file, run)
    return Summary(
        config=config,
        status=run.status,
        reason=run.reason,
        rounds=rounds,
        price=tuple(price.tolist()),
        held=held,
        incidents=incidents,
        created=run.created,
    )


def answers(path: str | os.PathLike[str]) -> Floats:
    """Return the prices to report after each round of a store, one row per round."""
    with _opened(path) as (database, file, run):
        rows = read_rounds(database, file)
        return np.array([answer for _, answer in _answers(_config(run), rows)])


Said: TypeAlias = tuple[tuple[tuple[int, ...], bytes], ...]
"""Who spoke in a round, agents by their numbers, and what, as it travelled."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transcript:
    """All rounds of a store, for an audit; what was said is as private as the store itself.

    Attributes:
        config: the configuration, None before the first start.
        said: what was said in every round; None if some round was not kept.
        multiples: the released integers, one row per round.
    """

    config: RunConfig | None
    said: tuple[Said, ...] | None
    multiples: Any


def transcript(path: str | os.PathLike[str]) -> Transcript:
    """Read every round of a store.

    Raises:
        StoreError: it is not a store, or damaged.
    """
    with _opened(path) as (database, file, run):
        rows = list(read_rounds(database, file))
        agents = read_parties(database, file)
    kept = tuple(read_said(row, agents, file) for row in rows if row.said is not None)
    return Transcript(
        config=_config(run),
        said=kept if rows and len(kept) == len(rows) else None,
        multiples=np.array([np.frombuffer(row.release, dtype="<i8") for row in rows]),
    )


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[tuple[sqlite3.Connection, Path, Run]]:
    """One moment of a store's run, however it goes on meanwhile."""
    file = Path(path)
    database = connect_to_read(file)
    try:
        database.execute("BEGIN")
        yield database, file, read_run(database, file)
    except sqlite3.Error as error:
        raise trouble(file, error) from None
    finally:
        database.close()


def _config(run: Run) -> RunConfig | None:
    return read_config(run.config) if run.config else None


def _answers(config: RunConfig | None, rows: Iterable[Row]) -> Iterator[tuple[Row, Floats]]:
    """Yield every round with the prices to report after it."""
    algorithm = None if config is None else algorithm_of(config.algorithm)
    shares = None
    if config is not None and isinstance(algorithm, PriceRounds):
        shares = Shares(algorithm, config.rounds)
    answer: Floats | None = None
    for row in rows:
        price = unpack(row.price)
        if answer is None:
            answer = before = np.zeros(price.size)
        # What is averaged are the prices that led to what was released in the round.
        answer = price if shares is None else answer + shares[row.k] * (before - answer)
        before = price
        yield row, answer
