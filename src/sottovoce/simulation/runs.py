"""Runs of whole rounds: all agents laid out for kernels, and the states of every run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeAlias, final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithm.algorithm import GradientSteps
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.formula.canonical import add
from sottovoce.formula.expression import ZERO, Expression
from sottovoce.formula.tape import tape
from sottovoce.kernels.cloud_kernel import make_cloud
from sottovoce.kernels.fleet_kernel import MEASURES, FleetKernel, FleetStates
from sottovoce.kernels.run_kernel import (
    PythonRun,
    Release,
    RoundSlice,
    Run,
    Task,
    stream_seed,
    trace_size,
)
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.code import Objective, Watched
from sottovoce.problem.constraints import named_rows
from sottovoce.problem.fleet import Fleet, FleetContribution
from sottovoce.problem.fleets import fleets_of
from sottovoce.problem.problem import Problem
from sottovoce.simulation.request import SimulationRequest
from sottovoce.simulation.result import QUANTITIES

Value: TypeAlias = Callable[[Array], float]
_VIOLATION, _RESIDUAL, _OBJECTIVE = map(QUANTITIES.index, ("violation", "residual", "objective"))


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetLayout:
    """A problem's agents, named ones of one template together.

    Attributes:
        kernels: one per fleet.
        offset: the constants of the rows.
        values: of objectives that are code, with where their states lie.
        symbols: the states of all named agents.
        named: where these lie.
    """

    kernels: Sequence[FleetKernel]
    offset: Array
    values: Sequence[tuple[slice, Value]]
    symbols: tuple[Expression, ...]
    named: NDArray[np.int64]

    def start(self, x0: Sequence[Array], solution: Array | None) -> list[FleetStates]:
        """Return all fleets at the points of their own sets nearest to ``x0``, a part per group."""
        fleets = []
        for kernel in self.kernels:
            hat = None if solution is None else kernel.fleet.of(solution)
            start = np.concatenate([x0[group].ravel() for group in kernel.fleet.places])
            shape = (kernel.count, kernel.d)
            fleets.append(FleetStates(kernel, start.reshape(shape), solution=hat))
        return fleets

    def together(self, parts: Sequence[Array]) -> Array:
        """Return all states in the problem's order."""
        x = np.empty(sum(part.size for part in parts))
        for kernel, part in zip(self.kernels, parts, strict=True):
            x[kernel.fleet.columns] = part.ravel()
        return x


# Simulations of one problem follow each other: its fleets are kept, and the last layout.
_fleets: WeakKeyDictionary[Problem, dict[bool, list[Fleet]]] = WeakKeyDictionary()
_layouts: WeakKeyDictionary[Problem, tuple[object, bool, FleetLayout]] = WeakKeyDictionary()


def lay_out(problem: Problem, domain: Sequence[Group], *, gradient: bool) -> FleetLayout:
    """Lay out a problem's agents.

    Args:
        problem: whose.
        domain: the groups with the bounds that their agents keep to.
        gradient: whether they take gradient steps, all named agents as one.
    """
    known = _layouts.get(problem)
    if known is not None and known[0] is domain and known[1] == gradient:
        return known[2]
    by_kind = _fleets.setdefault(problem, {})
    if gradient not in by_kind:
        by_kind[gradient] = _stepping(problem) if gradient else _minimising(problem)
    layout = _layout(problem, by_kind[gradient], domain, gradient=gradient)
    if not layout.values:  # code is watched anew in every simulation
        _layouts[problem] = (domain, gradient, layout)
    return layout


def _layout(
    problem: Problem, fleets: Sequence[Fleet], domain: Sequence[Group], *, gradient: bool
) -> FleetLayout:
    kernels = []
    for fleet in fleets:
        box = fleet.within(domain)
        code = problem.code[fleet.places[0]] if len(fleet.places) == 1 else None
        watched = None if code is None else _watched(problem.groups[fleet.places[0]], code)
        kernels.append(
            FleetKernel(fleet, box.lower, box.upper, gradient=watched, gradient_steps=gradient)
        )
    ends = np.cumsum([0, *(g.count * g.dim for g in domain)]).tolist()
    spans = [slice(first, last) for first, last in pairwise(ends)]
    families = problem.constraints if gradient else problem.cloud.sums.families
    named = [i for i, g in enumerate(domain) if g.count == 1]
    codes = zip(spans, problem.code, strict=True)
    return FleetLayout(
        kernels=kernels,
        offset=np.concatenate([np.zeros(0), *(family.offset for family in families)]),
        values=[(span, _value(code)) for span, code in codes if code is not None],
        symbols=tuple(s for i in named for s in domain[i].symbols),
        named=np.concatenate([np.zeros(0, np.int64), *(np.r_[spans[i]] for i in named)]),
    )


def _minimising(problem: Problem) -> list[Fleet]:
    code = [i for i, objective in enumerate(problem.code) if objective is not None]
    objectives = [ZERO if i in code else f for i, f in enumerate(problem.objectives)]
    families = problem.cloud.sums.families
    return fleets_of(problem.groups, families, objectives, problem.local, alone=code)


def _stepping(problem: Problem) -> list[Fleet]:
    """All fleets, and all named agents as one agent with a long state: steps see no difference."""
    groups, stated = problem.groups, sum(g.count > 1 for g in problem.groups)
    fleets = fleets_of(groups, problem.constraints, problem.objectives, problem.local)[:stated]
    named = [i for i, g in enumerate(groups) if g.count == 1]
    if not named:
        return fleets
    begin = np.cumsum([0, *(g.count * g.dim for g in groups)])
    rows = enumerate(named_rows(problem.constraints))
    together = Fleet(
        group=Group(
            name="named",
            count=1,
            symbols=tuple(s for i in named for s in groups[i].symbols),
            lower=np.concatenate([groups[i].lower for i in named], axis=1),
            upper=np.concatenate([groups[i].upper for i in named], axis=1),
            parameters={},
        ),
        objective=named_objective(problem),
        sums=tuple(FleetContribution(row=j, terms=(h,)) for j, h in rows if not h.is_zero),
        places=tuple(named),
        columns=np.concatenate([np.arange(begin[i], begin[i + 1]) for i in named]),
    )
    return [*fleets, together]


def named_objective(problem: Problem) -> Expression:
    """Return the sum of the objectives of all named agents."""
    pairs = zip(problem.groups, problem.objectives, strict=True)
    return add(*(group.fill(f) for group, f in pairs if group.count == 1))


def _value(code: Objective) -> Value:
    value = code.value
    return lambda x: np.nan if value is None else float(value(x))


def _watched(group: Group, code: Objective) -> Watched:
    def report() -> None:
        warnings.warn(
            f"the gradient of {group.name} is not monotone: its objective is not convex, and the "
            "answer need not be the minimum",
            stacklevel=2,
        )

    return Watched(group.name, code.gradient, group.dim, report)


@final
class Runs:
    """The states of all runs, and what advances them.

    Args:
        agents: laid out for kernels.
        request: what to run.
        threads: how many, at most.
    """

    def __init__(self, agents: FleetLayout, request: SimulationRequest, threads: int) -> None:
        s = self._request = request
        self._agents, self._coded = agents, bool(agents.values)
        stated = s.stated
        self._stated = tape(stated, agents.symbols) if stated else None
        # What formulas of several named agents, or code, say of answers is asked for at marks.
        self._looks = bool(stated) or self._coded
        compiled = isinstance(s.algorithm, DualAveraging | GradientSteps)
        self._in_python = self._coded or not compiled
        team = threads if s.runs == 1 and not self._looks else 1
        first = agents.start(s.start, None if s.saddle is None else s.saddle[0])
        self._runs = [
            self._run(run, first if run == 0 else [f.copy() for f in first], team)
            for run in range(s.runs)
        ]
        self._trace = np.full((s.runs, s.marks.size, len(QUANTITIES)), np.nan)
        self._transcript = np.zeros((s.runs, s.rounds if s.transcript else 0, s.released))

    def _run(self, run: int, fleets: Sequence[FleetStates], team: int) -> Run | PythonRun:
        s, algorithm, public = self._request, self._request.algorithm, self._request.planned.public
        seed = stream_seed(s.seed, s.first + run)
        release = Release(offset=self._agents.offset, sigma=s.sigma, grid=s.grid, seed=seed)
        if isinstance(algorithm, GradientSteps):
            steps = Run(fleets, release, None, threads=team)
            steps.mu[:] = s.price0
            return steps
        if isinstance(algorithm, DualAveraging) and not self._in_python:
            return Run(fleets, release, (public, algorithm), threads=team)
        cloud = make_cloud(algorithm, public, planned=s.gridded)
        return PythonRun(fleets, release, cloud, algorithm.theta)

    def tasks(self, done: int, until: int, steps: Array) -> list[Task]:
        """What takes all runs through rounds ``done + 1 .. until``: each run, or a team's parts."""
        if len(self._runs) == 1 and not (self._looks or self._in_python):
            rounds, first = self._slice(0, done, until, steps)
            leader, *helpers = self._runs[0].tasks(rounds)  # the leader ends last
            return [partial(_one_by_one, [leader, partial(self._keep, 0, first, rounds)]), *helpers]
        advance = self._look if self._looks or self._in_python else self._advance
        tasks: list[Task] = [
            partial(advance, run, done, until, steps) for run in range(len(self._runs))
        ]
        # Code may mind threads: one takes all runs.
        return [partial(_one_by_one, tasks)] if self._in_python else tasks

    def _slice(self, run: int, done: int, until: int, steps: Array) -> tuple[RoundSlice, int]:
        """Rounds of a run, and the first mark that they record."""
        s = self._request
        first, last = s.records(done, until)
        rounds = RoundSlice(
            done=done,
            until=until,
            steps=steps,
            marks=s.marks[first:last],
            trace=np.empty((last - first, trace_size(s.price0.size))),
            transcript=self._transcript[run, done:until],
        )
        return rounds, first

    def _advance(self, run: int, done: int, until: int, steps: Array) -> None:
        rounds, first = self._slice(run, done, until, steps)
        _one_by_one(self._runs[run].tasks(rounds))
        self._keep(run, first, rounds)

    def _look(self, run: int, done: int, until: int, steps: Array) -> None:
        """Advance from mark to mark, and look at the answers there."""
        marks, seen = self._request.marks, dict[int, tuple[float, float]]()
        if done == 0 and marks.size > 0 and marks[0] == 0:
            seen[0] = self._seen(run)
        for end in np.unique([*marks[(marks > done) & (marks <= until)], until]).tolist():
            self._advance(run, done, end, steps[: end - done])
            done, steps = end, steps[end - done :]
            at = int(np.searchsorted(marks, done))
            if at < marks.size and marks[at] == done:
                seen[at] = self._seen(run)
        for at, (violation, objective) in seen.items():
            record = self._trace[run, at]
            record[_VIOLATION] = max(record[_VIOLATION], violation)
            record[_OBJECTIVE] += objective
            if self._coded:
                record[_RESIDUAL] = np.nan  # no formula gives the gradient of a callback

    def _seen(self, run: int) -> tuple[float, float]:
        """The worst stated constraint at the answer, and the sum of objectives that are code."""
        x = self._agents.together([f.answer for f in self._runs[run].fleets])
        stated = [] if self._stated is None else self._stated(*x[self._agents.named])
        own = sum(value(x[here]) for here, value in self._agents.values)
        return max(0.0, *map(float, stated), 0.0), float(own)

    def _keep(self, run: int, first: int, rounds: RoundSlice) -> None:
        """Turn what a run recorded into ``QUANTITIES``."""
        if rounds.marks.size:
            last = first + rounds.marks.size
            self._trace[run, first:last] = self._quantities(run, rounds.trace)

    def _quantities(self, run: int, raw: Array) -> Array:
        s, p = self._request, self._request.price0.size
        ends = np.cumsum([p, len(MEASURES), p])
        sums, measures, answer, last = np.split(raw, ends, axis=1)
        objective, residual, error, last_error = measures.T
        hat = np.full(p, np.nan) if s.saddle is None else s.saddle[1]
        with np.errstate(all="ignore"):
            if s.gradient:
                off, over = answer - np.maximum(answer + sums, 0.0), sums
            else:
                limits = s.problem.cloud.sums
                off = sums - self._nearest(run, sums + answer)
                over = np.fmax(sums - limits.upper, limits.lower - sums)
            residual = residual + np.sum(off**2, axis=1)
            values = {
                "error_x": np.sqrt(error),
                "error_price": np.linalg.norm(answer - hat, axis=1),
                "violation": np.fmax.reduce(over, axis=1, initial=0.0),
                "residual": np.sqrt(residual),
                "objective": objective,
                "last_error_x": np.sqrt(last_error),
                "last_error_price": np.linalg.norm(last - hat, axis=1),
            }
        return np.stack([values[name] for name in QUANTITIES], axis=1)

    def _nearest(self, run: int, points: Array) -> Array:
        """The points of C nearest to others, row by row."""
        public, cloud = self._request.planned.public, self._runs[run].cloud
        if not public.regions or cloud is None:
            return np.clip(points, public.lower, public.upper)
        return np.array([cloud.nearest(point) for point in points]).reshape(points.shape)

    def arrays(self) -> dict[str, Array]:
        """Everything that rounds change, for a checkpoint."""
        kept = {"trace": self._trace, "transcript": self._transcript}
        for number, run in enumerate(self._runs):
            kept |= {f"{name}{number}": array for name, array in _state_of(run).items()}
            for i, fleet in enumerate(run.fleets):
                kept[f"x{number}.{i}"] = fleet.x
                if fleet.mean is not fleet.x:
                    kept[f"mean{number}.{i}"] = fleet.mean
                    kept[f"center{number}.{i}"] = fleet.center
                    kept[f"worth{number}.{i}"] = fleet.worth
        return kept

    def final(self) -> dict[str, NDArray[np.generic]]:
        """Where every run ended, as a ``Result`` has it."""
        runs, together = self._runs, self._agents.together
        states = [_state_of(run) for run in runs]
        ends: dict[str, NDArray[np.generic]] = {
            "x": np.array([together([f.answer for f in run.fleets]) for run in runs]),
            "last_x": np.array([together([f.states for f in run.fleets]) for run in runs]),
            "price": np.array([state["answer"] for state in states]),
            "last_price": np.array([state["price"] for state in states]),
            "failed": np.array([run.failed for run in runs], dtype=np.int64),
        }
        if self._request.gridded:
            ends["released"] = np.array([state["released"] for state in states])
        return ends

    def trace(self, records: int) -> dict[str, Array]:
        """What was measured at the first ``records`` marks, arrays of shape (runs, records)."""
        return {name: self._trace[:, :records, q].copy() for q, name in enumerate(QUANTITIES)}

    def released(self, rounds: int) -> Array:
        """The released numbers, shape (runs, rounds, rows)."""
        return self._transcript[:, :rounds]


def _state_of(run: Run | PythonRun) -> dict[str, Array]:
    """What a run remembers beside its agents' states; of multipliers the last are the answer."""
    if run.cloud is None:
        return {"price": run.mu, "answer": run.mu, "failed": run.failed_round}
    cloud = {name: getattr(run.cloud, name) for name in ("price", "answer", "released", "memory")}
    return {**cloud, "failed": run.failed_round}


def _one_by_one(tasks: Sequence[Task]) -> None:
    for task in tasks:
        task()
