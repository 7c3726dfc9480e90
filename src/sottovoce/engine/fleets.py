"""Runs of a problem with fleets: all threads on one run, or one thread on each of several."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithm.algorithm import Algorithm
from sottovoce.engine.compile import load_kernel
from sottovoce.engine.fleet_kernel import fleet_source
from sottovoce.engine.fleet_text import MEASURES, WIDTH, FleetText, kind_of
from sottovoce.engine.formulas import Fleet, Formulas
from sottovoce.engine.named_text import NamedText
from sottovoce.engine.normals import stream_seeds
from sottovoce.engine.setting import Setting
from sottovoce.engine.source import QUANTITIES
from sottovoce.errors import InputError
from sottovoce.problem.agents import Array, Group

_MOST_CHUNKS = 64
_BLOCKS_PER_CHUNK = 8  # at least, as every chunk's sums have to be cleared and added up
_PACK = 1 << 16  # agents laid out at a time, so that copies stay small


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Member:
    """One fleet's place in the problem, its text, and its arrays that no round changes."""

    place: int
    text: FleetText
    data: Array
    bounds: Array
    hat: Array
    rest: tuple[NDArray[Any], ...]


@final
class Fleets:
    """The states of all runs, and the kernel that advances them."""

    def __init__(
        self, formulas: Formulas, algorithm: Algorithm, setting: Setting, threads: int
    ) -> None:
        s = setting
        self._setting, self._threads = s, threads
        self._named = [i for i, g in enumerate(s.domain) if g.count == 1]
        self._columns = formulas.named.columns
        self._members = [
            _member(f, formulas, algorithm, s, i) for i, f in enumerate(formulas.fleets)
        ]
        self._noisy = any(member.text.noisy for member in self._members)
        if s.transcript and self._noisy:
            raise InputError(
                "transcript must be off where gradients of a fleet are released with noise: "
                "there is one per agent and constraint"
            )
        rows = s.mu0.size
        blocks = max(-(-f.group.count // WIDTH) for f in formulas.fleets)
        states = sum(g.count * g.dim for g in s.domain)
        self._chunks = _chunks(blocks, states // (rows + MEASURES))
        text = NamedText(named=formulas.named, noise=s.noise, algorithm=algorithm)
        source = fleet_source(
            text, [m.text for m in self._members], self._chunks, transcript=s.transcript
        )
        kernel = load_kernel(source, algorithm.agent_step, algorithm.cloud_step)
        self._advance = kernel.advance
        self._offset = formulas.offset.copy()
        self._order = np.full(rows, -1, dtype=np.int64)
        self._order[list(s.noise.rows)] = np.arange(len(s.noise.rows))
        self._seeds = stream_seeds(s.seed, range(s.runs))
        self._bounds = np.concatenate(
            [np.zeros(0)]
            + [s.domain[i].lower.ravel() for i in self._named]
            + [s.domain[i].upper.ravel() for i in self._named]
        )
        self._saddle = self._own_saddle()
        own = [
            np.clip(s.start[i], s.domain[i].lower, s.domain[i].upper).ravel() for i in self._named
        ]
        first = np.concatenate([*own, s.mu0, [0.0]])
        self._state = np.tile(first, (s.runs, 1))
        self._x = [
            [packed(s.start[m.place], group=s.domain[m.place]) for m in self._members]
            for _ in range(s.runs)
        ]
        self._trace = np.full((s.runs, s.marks.size, len(QUANTITIES)), np.nan)
        self._transcript = np.zeros((s.runs, s.rounds if s.transcript else 0, s.released))

    def _own_saddle(self) -> Array:
        s = self._setting
        if s.saddle is None:
            return np.full(len(self._columns) + s.mu0.size, np.nan)
        return np.concatenate([s.saddle[0][list(self._columns)], s.saddle[1]])

    def advance(self, pool: Executor, done: int, until: int, steps: Array) -> list[Future[None]]:
        """Start all runs on rounds ``done + 1 .. until``."""
        team = min(self._threads, self._chunks) if self._setting.runs == 1 else 1
        tasks = []
        for run in range(self._setting.runs):
            counter = np.zeros(1, dtype=np.int64)
            normal = np.empty(4 * self._setting.noise.pairs)
            sums = np.empty(3 * self._chunks * (self._setting.mu0.size + MEASURES))
            for me in range(team):
                # The first thread keeps the run's state; the others work on copies of their own.
                state = self._state[run] if me == 0 else self._state[run].copy()
                own = normal if self._noisy else np.empty_like(normal)
                tasks.append((run, (me, team, counter), (done, until, steps), state, own, sums))
        return [pool.submit(self._run, *task) for task in tasks]

    def _run(
        self,
        run: int,
        who: tuple[int, int, NDArray[np.int64]],
        what: tuple[int, int, Array],
        state: Array,
        normal: Array,
        sums: Array,
    ) -> None:
        s = self._setting
        done, until, steps = what
        first, last = s.records(done, until)
        scratch = WIDTH * max(m.text.layout()["end"] for m in self._members)
        arrays = [
            array
            for member, x in zip(self._members, self._x[run], strict=True)
            for array in (x, member.data, member.bounds, member.hat, *member.rest)
        ]
        self._advance(
            *who,
            done,
            until,
            steps,
            self._seeds[run],
            state,
            self._bounds,
            self._offset,
            s.sigma,
            self._order,
            self._saddle,
            s.marks[first:last],
            self._trace[run, first:last].reshape(-1),
            self._transcript[run, done:until].reshape(-1),
            normal,
            np.empty(s.mu0.size),
            sums,
            np.empty(scratch),
            *arrays,
        )

    def arrays(self) -> dict[str, Any]:
        """Everything that rounds change, for a checkpoint."""
        fleets = {f"x{run}.{i}": x for run, xs in enumerate(self._x) for i, x in enumerate(xs)}
        return {
            "state": self._state,
            "trace": self._trace,
            "transcript": self._transcript,
            **fleets,
        }

    def final(self) -> tuple[Array, Array, Any]:
        """The last x and mu of every run, and the round in which it failed or 0."""
        s = self._setting
        n, m = len(self._columns), s.mu0.size
        x = np.empty((s.runs, sum(g.count * g.dim for g in s.domain)))
        x[:, list(self._columns)] = self._state[:, :n]
        for run, xs in enumerate(self._x):
            for member, own in zip(self._members, xs, strict=True):
                fleet = member.text.fleet
                end = fleet.column + fleet.group.count * fleet.group.dim
                unpack(own, x[run, fleet.column : end].reshape(fleet.group.count, -1))
        return x, self._state[:, n : n + m].copy(), self._state[:, -1].astype(np.int64)

    def trace(self, records: int) -> dict[str, Array]:
        """What was measured at the first ``records`` marks, arrays of shape (runs, records)."""
        return {name: self._trace[:, :records, q].copy() for q, name in enumerate(QUANTITIES)}

    def released(self, rounds: int) -> Array:
        """The released numbers, shape (runs, rounds, rows of g and gradient entries)."""
        return self._transcript[:, :rounds]


def _chunks(blocks: int, most: int) -> int:
    """How many chunks: a power of two, so that two or four threads get the same share each."""
    wanted = max(1, min(_MOST_CHUNKS, blocks // _BLOCKS_PER_CHUNK, most))
    return 1 << (wanted.bit_length() - 1)


def packed(*columns: Array, group: Group | None = None) -> Array:
    """Lay out arrays (count, c), side by side, in blocks: ``[block, c, lane]``, flat.

    With ``group`` the values are states, and are projected onto the group's box on the way.
    """
    count, rows = columns[0].shape[0], sum(c.shape[1] for c in columns)
    out = np.zeros((-(-count // WIDTH), rows, WIDTH))
    for begin in range(0, count, _PACK):
        part = slice(begin, min(count, begin + _PACK))
        row = 0
        for values in columns:
            own = values[part]
            if group is not None:
                own = np.clip(own, group.lower[part], group.upper[part])
            full = np.zeros((-(-own.shape[0] // WIDTH) * WIDTH, own.shape[1]))
            full[: own.shape[0]] = own
            blocks = full.reshape(-1, WIDTH, own.shape[1]).transpose(0, 2, 1)
            at = begin // WIDTH
            out[at : at + blocks.shape[0], row : row + own.shape[1]] = blocks
            row += own.shape[1]
    return out.reshape(-1)


def unpack(blocks: Array, out: Array) -> None:
    """Undo ``packed`` into ``out`` of shape (count, c)."""
    count, rows = out.shape
    shaped = blocks.reshape(-1, rows, WIDTH)
    for begin in range(0, count, _PACK):
        end = min(count, begin + _PACK)
        at = slice(begin // WIDTH, -(-end // WIDTH))
        out[begin:end] = shaped[at].transpose(0, 2, 1).reshape(-1, rows)[: end - begin]


def _member(
    fleet: Fleet, formulas: Formulas, algorithm: Algorithm, s: Setting, index: int
) -> _Member:
    place = [g.name for g in s.domain].index(fleet.group.name)
    domain = s.domain[place]
    entries = _entries(fleet, s)
    text = FleetText(
        index=index,
        fleet=fleet,
        algorithm=algorithm,
        size=len(formulas.named.symbols),
        rows=s.mu0.size,
        noisy=entries is not None,
        known=s.saddle is not None,
        shared_lower=_shared(domain.lower),
        shared_upper=_shared(domain.upper),
    )
    own = [values[:, np.newaxis] for values in fleet.group.parameters.values()]
    own += [] if text.shared_lower else [domain.lower]
    own += [] if text.shared_upper else [domain.upper]
    hat = np.zeros(0)
    if s.saddle is not None:
        size = fleet.group.count * fleet.group.dim
        hat = packed(s.saddle[0][fleet.column :][:size].reshape(-1, fleet.group.dim))
    return _Member(
        place=place,
        text=text,
        data=packed(*own) if own else np.zeros(0),
        bounds=np.concatenate([domain.lower[0], domain.upper[0]]),
        hat=hat,
        rest=(*_weights(fleet), *(entries or ())),
    )


def _shared(bound: Array) -> bool:
    return bool(bound.strides[0] == 0 or np.all(bound == bound[:1]))


def _weights(fleet: Fleet) -> tuple[NDArray[Any], ...]:
    arrays: list[NDArray[Any]] = []
    for part in fleet.sums:
        if kind_of(part) == "dense":
            arrays.append(packed(np.asarray(part.weights).T))
        if kind_of(part) == "sparse":
            by_agent = part.weights.tocsc()
            arrays += [
                by_agent.indptr.astype(np.int64),
                by_agent.indices.astype(np.int32),
                by_agent.data.astype(np.float64),
            ]
    return tuple(arrays)


def _entries(fleet: Fleet, s: Setting) -> tuple[NDArray[np.int64], ...] | None:
    """The fleet's released gradient entries by column: where each begins, its row, its normal."""
    size = fleet.group.count * fleet.group.dim
    own = [
        (column - fleet.column, row, order)
        for (row, column), order in s.noise.entries.items()
        if fleet.column <= column < fleet.column + size
    ]
    if not own:
        return None
    columns, rows, orders = np.array(sorted(own), dtype=np.int64).T
    begin = np.searchsorted(columns, np.arange(size + 1))
    return begin.astype(np.int64), rows.copy(), orders.copy()
