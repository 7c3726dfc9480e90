"""Runs of whole rounds: all threads on one run, or one thread on each of several."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithm.algorithm import Algorithm, GradientSteps
from sottovoce.engine.compile import load_kernel
from sottovoce.engine.drive import Final, Task
from sottovoce.engine.fleet_text import MEASURES
from sottovoce.engine.formulas import Fleet, Formulas
from sottovoce.engine.home_agent import HomeAgent
from sottovoce.engine.home_text import HomeText
from sottovoce.engine.kernel import KernelText
from sottovoce.engine.member import Member, member, packed, unpack
from sottovoce.engine.named_text import NamedText, first_state
from sottovoce.engine.normals import stream_seeds
from sottovoce.engine.search import interior_addresses, search_addresses
from sottovoce.engine.setting import Setting
from sottovoce.engine.source import QUANTITIES, steps_of
from sottovoce.engine.turn import load_turn, nearest_work, public_arguments
from sottovoce.engine.vectors import WIDTH
from sottovoce.problem.agents import Array, lower_bounds, upper_bounds

_MOST_CHUNKS = 64
_BLOCKS_PER_CHUNK = 8  # at least, as every chunk's sums have to be cleared and added up


@final
class Runs:
    """The states of all runs, and the kernel that advances them."""

    def __init__(
        self, formulas: Formulas, algorithm: Algorithm, setting: Setting, threads: int
    ) -> None:
        s = setting
        self._setting, self._threads = s, threads
        self._columns = formulas.named.columns
        self._named = [i for i, g in enumerate(s.domain) if g.count == 1 and self._columns]
        self._members = [self._member(f, algorithm, i) for i, f in enumerate(formulas.fleets)]
        rows = s.price0.size
        blocks = max((-(-f.group.count // WIDTH) for f in formulas.fleets), default=1)
        states = sum(g.count * g.dim for g in s.domain)
        self._chunks = _chunks(blocks, max(1, states // (rows + MEASURES)))
        text = NamedText(named=formulas.named, noise=s.noise, algorithm=algorithm)
        self._at = text.layout()
        home = HomeText.of(text)
        source = KernelText(
            text=text,
            home=home,
            fleets=[m.text for m in self._members],
            chunks=self._chunks,
            transcript=s.transcript,
            public=public_arguments(s.regions),
            stated=s.stated,
            gridded=s.gridded,
        ).source()
        kernel = load_kernel(source, *steps_of(algorithm))
        self._advance = kernel.advance
        self._offset = formulas.offset.copy()
        self._order = np.full(rows, -1, dtype=np.int64)
        self._order[list(s.noise.rows)] = np.arange(len(s.noise.rows))
        self._public: tuple[Any, ...] = ()
        self._means = not isinstance(algorithm, GradientSteps)
        if not isinstance(algorithm, GradientSteps):
            turn = load_turn(algorithm, s.regions)
            self._public = (*turn.addresses, _addresses(home), *s.limits)
            self._public += (np.array(algorithm.constants), *s.rows[:2])
            self._public += (*s.rows.public, *turn.phi)
        self._grid = s.grid
        self._seeds = stream_seeds(s.seed, s.numbers)
        named = [s.domain[i] for i in self._named]
        self._bounds = np.concatenate([lower_bounds(named), upper_bounds(named)])
        self._saddle = self._own_saddle()
        scratch = [m.text.layout()["end"] for m in self._members]
        measuring = 2 * rows + nearest_work(rows, regions=bool(s.regions))
        self._scratch = max(measuring, WIDTH * max([1, home.space, *scratch]))
        first = first_state(text, self._first_named(formulas, home), s.price0)
        self._state = np.tile(first, (s.runs, 1))
        start = [self._first_fleet(m, kernel) for m in self._members]
        self._x = [start, *([x.copy() for x in start] for _ in range(1, s.runs))]
        self._mean = [[x.copy() for x in xs] for xs in self._x] if self._means else []
        self._trace = np.full((s.runs, s.marks.size, len(QUANTITIES)), np.nan)
        self._transcript = np.zeros((s.runs, s.rounds if s.transcript else 0, s.released))

    def _member(self, fleet: Fleet, algorithm: Algorithm, index: int) -> Member:
        s = self._setting
        own = [s.domain[place] for place in fleet.places]
        return member(
            fleet,
            algorithm,
            _stacked([group.lower for group in own]),
            _stacked([group.upper for group in own]),
            index=index,
            size=len(self._columns),
            rows=s.price0.size,
            gridded=s.gridded,
            hat=None if s.saddle is None else s.saddle[0][self._states_of(fleet)],
        )

    def _states_of(self, fleet: Fleet) -> Any:
        """Where the states of a fleet's agents lie among all: a slice, unless stated one by one."""
        begin = np.cumsum([0, *(g.count * g.dim for g in self._setting.domain)])
        spans = [slice(int(begin[p]), int(begin[p + 1])) for p in fleet.places]
        return spans[0] if len(spans) == 1 else np.r_[tuple(spans)]

    def _first_named(self, formulas: Formulas, home: HomeText) -> Array:
        """Where named agents begin: the points of their own sets nearest to the start."""
        s, found = self._setting, [np.zeros(0)]
        for who, i in enumerate(self._named):
            lower, upper = s.domain[i].lower, s.domain[i].upper
            x = np.clip(s.start[i], lower, upper).ravel()
            if who in home.bound_by_rows:
                own, shape = formulas.named.alone[who], home.shapes[who]
                x = HomeAgent(own, shape, lower[0], upper[0]).nearest(x)
            found.append(x)
        return np.concatenate(found)

    def _first_fleet(self, one: Member, kernel: Any) -> Array:
        """Where a fleet's agents begin, likewise."""
        s, places = self._setting, one.text.fleet.places
        if len(places) == 1:
            x = packed(s.start[places[0]], group=s.domain[places[0]])
        else:
            own = (np.clip(s.start[p], s.domain[p].lower, s.domain[p].upper) for p in places)
            x = packed(np.concatenate(list(own)))
        if one.text.bound_by_rows:
            settle = getattr(kernel, f"settle{one.text.index}_all")
            arrays = (self._state[0], np.zeros(1), np.empty(self._scratch), s.grid)
            settle(*arrays, *one.given(x, x))
        return x

    def _own_saddle(self) -> Array:
        s = self._setting
        if s.saddle is None:
            return np.full(len(self._columns) + s.price0.size, np.nan)
        return np.concatenate([s.saddle[0][list(self._columns)], s.saddle[1]])

    def tasks(self, done: int, until: int, steps: Array) -> list[Task]:
        """What takes all runs through rounds ``done + 1 .. until``: each run, or a team's parts."""
        team = min(self._threads, self._chunks) if self._setting.runs == 1 else 1
        found: list[Task] = []
        for run in range(self._setting.runs):
            counter = np.zeros(1, dtype=np.int64)
            sums = np.empty(3 * self._chunks * (self._setting.price0.size + MEASURES))
            for me in range(team):
                # The first thread keeps the run's state; the others work on copies of their own.
                state = self._state[run] if me == 0 else self._state[run].copy()
                who, what = (me, team, counter), (done, until, steps)
                found.append(partial(self._run, run, who, what, state, sums))
        return found

    def _run(
        self,
        run: int,
        who: tuple[int, int, NDArray[np.int64]],
        what: tuple[int, int, Array],
        state: Array,
        sums: Array,
    ) -> None:
        s = self._setting
        done, until, steps = what
        first, last = s.records(done, until)
        means = self._mean[run] if self._mean else [None] * len(self._members)
        fleets = [
            argument
            for one, x, mean in zip(self._members, self._x[run], means, strict=True)
            for argument in one.given(x, mean)
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
            self._grid,
            self._order,
            self._saddle,
            s.marks[first:last],
            self._trace[run, first:last].reshape(-1),
            self._transcript[run, done:until].reshape(-1),
            np.empty(4 * s.noise.pairs),
            np.empty(s.price0.size),
            sums,
            np.empty(self._scratch),
            *self._public,
            *fleets,
        )

    def arrays(self) -> dict[str, Any]:
        """Everything that rounds change, for a checkpoint."""
        fleets = {f"x{run}.{i}": x for run, xs in enumerate(self._x) for i, x in enumerate(xs)}
        return {
            "state": self._state,
            "trace": self._trace,
            "transcript": self._transcript,
            **fleets,
            **{f"mean{run}.{i}": x for run, xs in enumerate(self._mean) for i, x in enumerate(xs)},
        }

    def final(self) -> Final:
        """Where every run ended."""
        n, m, answer = len(self._columns), self._setting.price0.size, self._at["mean"]
        last_x = self._states(self._x, 0)
        return Final(
            x=self._states(self._mean, answer) if self._means else last_x,
            price=self._state[:, answer + n :][:, :m].copy(),
            last_x=last_x,
            last_price=self._state[:, n : n + m].copy(),
            released=self._released(),
            failed=self._state[:, -1].astype(np.int64),
        )

    def _released(self) -> Array | None:
        """The releases of every run, averaged."""
        if not self._setting.gridded:
            return None
        at = self._at["released"]
        return self._state[:, at : at + self._setting.price0.size].copy()

    def _states(self, fleets: list[list[Array]], first: int) -> Array:
        """All agents' states in the problem's order: named from ``first`` on, and fleets."""
        s = self._setting
        x = np.empty((s.runs, sum(g.count * g.dim for g in s.domain)))
        x[:, list(self._columns)] = self._state[:, first : first + len(self._columns)]
        for run, xs in enumerate(fleets):
            for one, own in zip(self._members, xs, strict=True):
                group, at = one.text.fleet.group, self._states_of(one.text.fleet)
                if isinstance(at, slice):
                    unpack(own, x[run, at].reshape(group.count, -1))
                else:
                    states = np.empty((group.count, group.dim))
                    unpack(own, states)
                    x[run, at] = states.ravel()
        return x

    def trace(self, records: int) -> dict[str, Array]:
        """What was measured at the first ``records`` marks, arrays of shape (runs, records)."""
        return {name: self._trace[:, :records, q].copy() for q, name in enumerate(QUANTITIES)}

    def released(self, rounds: int) -> Array:
        """The released numbers, shape (runs, rounds, rows)."""
        return self._transcript[:, :rounds]


def _stacked(bounds: Sequence[Array]) -> Array:
    return bounds[0] if len(bounds) == 1 else np.concatenate(bounds)


def _addresses(home: HomeText) -> NDArray[np.int64]:
    """Where kernels find the named agents' searches, and their interior-point method."""
    searches, source = search_addresses(home.searches()), home.derive_source()
    return searches if source is None else np.concatenate([searches, interior_addresses(source)])


def _chunks(blocks: int, most: int) -> int:
    """How many chunks: a power of two, so that two or four threads get the same share each."""
    wanted = max(1, min(_MOST_CHUNKS, blocks // _BLOCKS_PER_CHUNK, most))
    return 1 << (wanted.bit_length() - 1)
