"""Runs of whole rounds: all threads on one run, or one thread on each of several."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import final

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithm.algorithm import CloudStep, GradientSteps
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.formula.tape import tape
from sottovoce.kernels.cloud_kernel import CloudKernel
from sottovoce.kernels.fleet_kernel import MEASURES, FleetStates
from sottovoce.kernels.run_kernel import Release, Run, stream_seed, trace_size
from sottovoce.problem.agents import Array
from sottovoce.simulation.drive import Task
from sottovoce.simulation.fleet_layout import FleetLayout
from sottovoce.simulation.layout import gains
from sottovoce.simulation.python_rounds import PythonCloud, PythonRun
from sottovoce.simulation.request import SimulationRequest
from sottovoce.simulation.result import QUANTITIES

_VIOLATION, _RESIDUAL, _OBJECTIVE = map(QUANTITIES.index, ("violation", "residual", "objective"))


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
        self._agents = agents
        self._coded = bool(agents.values)
        # What formulas of several named agents, or code, say of answers is asked for at marks.
        self._looks = bool(s.stated) or self._coded
        self._stated = tape(s.stated, agents.symbols)
        own = not isinstance(s.algorithm, DualAveraging | GradientSteps)
        self._in_python = own or self._coded
        team = threads if s.runs == 1 and not self._looks else 1
        first = agents.start(s.start, None if s.saddle is None else s.saddle[0])
        self._runs = [
            self._run(run, first if run == 0 else [f.copy() for f in first], team)
            for run in range(s.runs)
        ]
        self._trace = np.full((s.runs, s.marks.size, len(QUANTITIES)), np.nan)
        self._transcript = np.zeros((s.runs, s.rounds if s.transcript else 0, s.released))

    def _run(self, run: int, fleets: Sequence[FleetStates], team: int) -> Run | PythonRun:
        s, algorithm = self._request, self._request.algorithm
        release = Release(
            offset=self._agents.offset,
            sigma=s.sigma,
            grid=s.grid if s.gridded else None,
            seed=stream_seed(s.seed, s.first + run),
        )
        if isinstance(algorithm, GradientSteps):
            made = Run(fleets, release, None, threads=team)
            made.mu[:] = s.price0
            return made
        if not isinstance(algorithm, DualAveraging):
            assert isinstance(algorithm, CloudStep)  # noqa: S101  checked by ``simulate``
            own = PythonCloud(algorithm, s.public, planned=s.gridded)
            return PythonRun(fleets, release, own, algorithm.theta)
        if self._in_python:
            cloud = CloudKernel(s.public, gains(algorithm), planned=s.gridded)
            return PythonRun(fleets, release, cloud, algorithm.theta)
        return Run(fleets, release, (s.public, gains(algorithm)), threads=team)

    def tasks(self, done: int, until: int, steps: Array) -> list[Task]:
        """What takes all runs through rounds ``done + 1 .. until``: each run, or a team's parts."""
        steps = steps.reshape(-1, 2)
        if self._looks or self._in_python:
            runs = range(len(self._runs))
            own: list[Task] = [partial(self._look, run, done, until, steps) for run in runs]
            # Code may mind threads: one takes all runs.
            return [partial(_one_by_one, own)] if self._in_python else own
        if len(self._runs) == 1:
            return self._team(done, until, steps)
        return [partial(self._advance, run, done, until, steps) for run in range(len(self._runs))]

    def _advance(self, run: int, done: int, until: int, steps: Array) -> None:
        tasks, first, raw = self._parts(run, done, until, steps)
        tasks[0]()
        self._keep(run, first, raw)

    def _team(self, done: int, until: int, steps: Array) -> list[Task]:
        """The parts of the only run; the first thread's ends last."""
        tasks, first, raw = self._parts(0, done, until, steps)
        return [partial(_one_by_one, [tasks[0], partial(self._keep, 0, first, raw)]), *tasks[1:]]

    def _parts(
        self, run: int, done: int, until: int, steps: Array
    ) -> tuple[list[Task], int, Array]:
        s = self._request
        first, last = s.records(done, until)
        raw = np.empty((last - first, trace_size(s.price0.size)))
        kept = self._transcript[run, done:until]
        marks = s.marks[first:last]
        tasks = self._runs[run].tasks(done, until, steps, marks=marks, trace=raw, transcript=kept)
        return tasks, first, raw

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
            found = self._trace[run, at]
            found[_VIOLATION] = max(found[_VIOLATION], violation)
            found[_OBJECTIVE] += objective
            if self._coded:
                found[_RESIDUAL] = np.nan  # no formula gives the gradient of a callback

    def _seen(self, run: int) -> tuple[float, float]:
        """The worst stated constraint at the answer, and the sum of objectives that are code."""
        x = self._agents.together([f.answer for f in self._runs[run].fleets])
        stated = self._stated(*x[self._agents.named]) if self._request.stated else []
        own = sum(value(x[here]) for here, value in self._agents.values)
        return max(0.0, *map(float, stated), 0.0), float(own)

    def _keep(self, run: int, first: int, raw: Array) -> None:
        """Turn what a run recorded into ``QUANTITIES``."""
        if raw.shape[0]:
            self._trace[run, first : first + raw.shape[0]] = self._quantities(run, raw)

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
                least, most = s.limits
                off = sums - self._nearest(run, sums + answer)
                over = np.fmax(sums - most, least - sums)
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
        public, cloud = self._request.public, self._runs[run].cloud
        if not public.regions or cloud is None:
            return np.clip(points, public.lower, public.upper)
        return np.array([cloud.nearest(point) for point in points]).reshape(points.shape)

    def arrays(self) -> dict[str, Array]:
        """Everything that rounds change, for a checkpoint."""
        found = {"trace": self._trace, "transcript": self._transcript}
        for number, run in enumerate(self._runs):
            for name, array in _state_of(run).items():
                found[f"{name}{number}"] = array
            for i, fleet in enumerate(run.fleets):
                found[f"x{number}.{i}"] = fleet.x
                if fleet.mean is not fleet.x:
                    found[f"mean{number}.{i}"] = fleet.mean
        return found

    def final(self) -> dict[str, NDArray[np.generic]]:
        """Where every run ended, as a ``Result`` has it."""
        runs = self._runs
        ends: dict[str, NDArray[np.generic]] = {
            "last_x": self._stacked([[f.states for f in run.fleets] for run in runs]),
            "price": np.array([_price_of(run, "answer") for run in runs]),
            "last_price": np.array([_price_of(run, "price") for run in runs]),
            "failed": np.array([run.failed for run in runs], dtype=np.int64),
        }
        ends["x"] = ends["last_x"]
        if not self._request.gradient:
            ends["x"] = self._stacked([[f.answer for f in run.fleets] for run in runs])
        if self._request.gridded:
            ends["released"] = np.array([_price_of(run, "released") for run in runs])
        return ends

    def _stacked(self, parts: Sequence[Sequence[Array]]) -> Array:
        return np.array([self._agents.together(part) for part in parts])

    def trace(self, records: int) -> dict[str, Array]:
        """What was measured at the first ``records`` marks, arrays of shape (runs, records)."""
        return {name: self._trace[:, :records, q].copy() for q, name in enumerate(QUANTITIES)}

    def released(self, rounds: int) -> Array:
        """The released numbers, shape (runs, rounds, rows)."""
        return self._transcript[:, :rounds]


def _state_of(run: Run | PythonRun) -> dict[str, Array]:
    """What a run remembers beside its agents' states."""
    if run.cloud is None:
        return {"mu": run.mu, "failed": run.failed_round}
    cloud = {name: getattr(run.cloud, name) for name in ("price", "answer", "released", "memory")}
    return {**cloud, "failed": run.failed_round}


def _price_of(run: Run | PythonRun, name: str) -> Array:
    """Prices, or multipliers, of which the last are the answer."""
    found = run.mu if run.cloud is None else getattr(run.cloud, name)
    return np.array(found)


def _one_by_one(tasks: Sequence[Task]) -> None:
    for task in tasks:
        task()
