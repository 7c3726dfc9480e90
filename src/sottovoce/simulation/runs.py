"""Simulated runs: the request, the layout that all runs of a problem share, every run's states."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal, TypeAlias, final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithm.algorithm import Algorithm, GradientSteps
from sottovoce.algorithm.dual_averaging import DualAveraging, steering
from sottovoce.algorithm.price_memory import PriceMemory
from sottovoce.algorithm.public_sum import PublicSum, public_sums
from sottovoce.formula.canonical import add
from sottovoce.formula.expression import Expression
from sottovoce.kernels.cloud_kernel import CloudKernel, make_cloud, price_memory
from sottovoce.kernels.core.plain import LANES
from sottovoce.kernels.fleet_kernel import MEASURES, FleetKernel, FleetStates
from sottovoce.kernels.run_kernel import PythonRun, Release, Run, Task, stream_seed
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.code import Objective, Watched
from sottovoce.problem.constraints import named_rows
from sottovoce.problem.costs import cost_of
from sottovoce.problem.feasible import own_domain
from sottovoce.problem.fleets import Fleet, FleetContribution, fleets_of
from sottovoce.problem.groups import Array, Group, state_columns
from sottovoce.problem.linear_rows import sparse
from sottovoce.problem.local import box_of
from sottovoce.problem.numeric import Numeric
from sottovoce.problem.problem import Problem
from sottovoce.simulation.result import QUANTITIES

_VIOLATION, _RESIDUAL, _OBJECTIVE = map(QUANTITIES.index, ("violation", "residual", "objective"))
Saddle: TypeAlias = tuple[Array, Array]
_CLOUD_ARRAYS = ("price", "answer", "released", "memory")  # that rounds change
_FINEST_GRID = 2.0**-60  # the grid of a sum that no agent moves and that has no noise


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class SimulationRequest:
    """A checked request with its problem and plan, picklable."""

    problem: Problem
    plan: NoisePlan | None
    algorithm: Algorithm
    rounds: int
    runs: int
    seed: int
    first: int = 0  # the number of the first run, from 0; run r depends on (seed, r) alone
    start: tuple[Array, ...]  # x per group, (count, d), before projection onto the domain
    price0: Array  # prices, or multipliers, at the start
    marks: NDArray[np.int64]  # after how many rounds to measure, in order
    transcript: bool
    warm: PriceMemory | None = None  # what the cloud begins with
    saddle: Saddle | None = None  # x_hat and the prices there, if known

    @cached_property
    def gradient(self) -> bool:
        """Whether by gradient steps, whose prices are the constraints' multipliers."""
        return isinstance(self.algorithm, GradientSteps)

    @cached_property
    def lanes(self) -> int:
        """How many runs go together: 16 of Algorithm 1 where all agents are named."""
        # Up to half a block of runs one by one is faster than a block with empty lanes.
        if not self.gradient or self.runs <= LANES // 2:
            return 1
        return LANES if all(group.count == 1 for group in self.problem.groups) else 1

    def steps(self, k: NDArray[np.int64]) -> Array:
        """The numbers of rounds k, a row each: the answer's weight, the gain of steering, theta.

        Of gradient steps the step and the regularisation.
        """
        if isinstance(self.algorithm, GradientSteps):
            return self.algorithm.schedule(k)
        share = self.algorithm.share(k, self.rounds, noisy=self.plan is not None)
        theta = np.full(share.shape, self.algorithm.theta)
        if isinstance(self.algorithm, DualAveraging) and self.plan is None:
            theta = self.algorithm.noise_free_theta(k)
        steered = self.plan is not None and self.plan.feasible is not None
        steer = steering(k, self.rounds) if steered else np.zeros(share.shape)
        return np.stack([share, steer, theta], axis=1)

    def records(self, done: int, until: int) -> tuple[int, int]:
        """Which marks belong to rounds ``done + 1 .. until``; the start belongs to the first."""
        first, last = np.searchsorted(self.marks, [done, until], side="right")
        return (0 if done == 0 else int(first)), int(last)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """The layout that all simulations of a problem with one plan, or without, share."""

    size: int  # how many states there are
    domain: tuple[Group, ...]  # the groups with the bounds that their agents keep to
    release: Release  # how sums, or rows of g, are released, for any seeds
    noisy: tuple[tuple[int, int], ...]  # the gradient entries that are, by row and column
    public: PublicSum  # what is public of the sums: units, noise and what of C is aimed at
    kernels: Sequence[FleetKernel]  # one per fleet
    code: Sequence[tuple[slice, Objective]]  # objectives that are code, with where their states lie
    unmeasured: Numeric | None  # constraints whose sums do not show how much they are violated
    noise: str  # what noise there is, in words

    @property
    def released(self) -> int:
        """How many numbers a round releases."""
        return int(self.release.sigma.size) + len(self.noisy)

    def assemble(
        self, fleets: Sequence[FleetStates], part: Literal["answer", "states"], lanes: int = 1
    ) -> Array:
        """Return the answer or the last states of all agents, in the problem's order, by run."""
        x = np.empty((lanes, self.size))
        for kernel, fleet in zip(self.kernels, fleets, strict=True):
            x[:, kernel.fleet.columns] = getattr(fleet, part).reshape(lanes, -1)
        return x


# Simulations of one problem follow each other: the last layout is kept.
_layouts: WeakKeyDictionary[Problem, tuple[NoisePlan | None, tuple[bool, int], Layout]]
_layouts = WeakKeyDictionary()


def layout_of(
    problem: Problem, plan: NoisePlan | None, *, gradient: bool, lanes: int = 1
) -> Layout:
    """Return the layout of a problem, a plan, a kind of algorithm and so many runs together."""
    kind = gradient, lanes
    known_plan, known_kind, layout = _layouts.get(problem, (None, kind, None))
    if layout is None or known_plan is not plan or known_kind != kind:
        layout = _lay_out(problem, plan, gradient=gradient, lanes=lanes)
        if not layout.code:  # code is watched anew in every simulation
            _layouts[problem] = (plan, kind, layout)
    return layout


def _lay_out(problem: Problem, plan: NoisePlan | None, *, gradient: bool, lanes: int) -> Layout:
    sums, groups = problem.cloud.sums, problem.groups
    families = problem.constraints if gradient else sums.families
    offset = np.concatenate([np.zeros(0), *(family.offset for family in families)])
    release = Release(offset=offset, sigma=np.zeros(offset.size), grid=None)
    public_groups, sigma, target, noise = groups, None, None, "none: nothing is private"
    noisy: tuple[tuple[int, int], ...] = ()
    if plan is not None:
        public_groups, sigma = plan.domain, plan.released_sigma
        target = None if plan.feasible is None else plan.feasible.target
        noisy = tuple((o.row, o.column) for o in plan.outputs if o.column is not None)
        grid = None if gradient else np.array([o.grid or _FINEST_GRID for o in plan.outputs])
        is_entry = np.array([o.column is not None for o in plan.outputs])
        entries = tuple(sigma[is_entry].tolist())
        release = replace(release, sigma=sigma[~is_entry], grid=grid, entries=entries)
        gradients = f" and {len(entries)} gradient entries" if entries else ""
        noise = (
            f"simulated: {np.count_nonzero(release.sigma)} sums{gradients} per round, repeatable "
            "from the seed, hence not private"
        )
    domain = own_domain(groups, public_groups, problem.local)
    pairs = zip(problem.constraints, sums.origins, strict=True)
    mixing = [f for f, origin in pairs if not (gradient or f.sums or origin.as_stated)]
    columns = state_columns(groups)
    return Layout(
        size=columns[-1].stop,
        domain=domain,
        release=release,
        noisy=noisy,
        public=public_sums(sums, public_groups, sigma, target),
        kernels=_make_steps(problem, domain, noisy, lanes)
        if gradient
        else _make_kernels(problem, domain),
        code=[(columns[i], code) for i, code in problem.coded.items()],
        unmeasured=Numeric(problem.cloud, mixing) if mixing else None,
        noise=noise,
    )


def _make_kernels(problem: Problem, domain: Sequence[Group]) -> list[FleetKernel]:
    kernels = []
    for fleet in problem.fleets:
        box, index = fleet.within(domain), fleet.places[0]
        code = problem.code[index]  # which stands alone in its fleet
        watched = None if code is None else _with_warning(problem.groups[index], code)
        kernels.append(FleetKernel(fleet, box.lower, box.upper, gradient=watched))
    return kernels


def _make_steps(
    problem: Problem, domain: Sequence[Group], entries: Iterable[tuple[int, int]], lanes: int
) -> list[FleetKernel]:
    """All fleets, and named agents as one agent with a long state: steps see no difference.

    With lanes there is such an agent per run; ``entries`` of dg/dx with noise are of named agents.
    """
    groups, count = problem.groups, sum(group.count > 1 for group in problem.groups)
    fleets = fleets_of(groups, problem.constraints, problem.objectives, problem.local)[:count]
    kernels = []
    for fleet in fleets:
        box = fleet.within(domain)
        kernels.append(FleetKernel(fleet, box.lower, box.upper, gradient_steps=True))
    if count == len(groups):
        return kernels
    rows = {j: h for j, h in enumerate(named_rows(problem.constraints)) if not h.is_zero}
    fleet, term = _named_fleet(problem, rows, lanes), {j: t for t, j in enumerate(rows)}
    box = fleet.within(domain)
    lower, upper = (np.broadcast_to(end, (lanes, box.dim)) for end in (box.lower, box.upper))
    noisy = [(term[j], column) for j, column in entries]
    return [*kernels, FleetKernel(fleet, lower, upper, gradient_steps=True, noisy=noisy)]


def _named_fleet(problem: Problem, rows: Mapping[int, Expression], lanes: int) -> Fleet:
    """All named agents as one, which adds to rows of g; row j of run l is ``j lanes + l``."""
    groups, columns = problem.groups, state_columns(problem.groups)
    named, terms = [i for i, group in enumerate(groups) if group.count == 1], len(rows)
    row = np.add.outer(np.arange(lanes), np.array(list(rows)) * lanes).ravel()
    entries = np.ones(row.size), (row, np.arange(lanes * terms))
    group = Group(
        name="named",
        symbols=tuple(s for i in named for s in groups[i].symbols),
        lower=np.concatenate([groups[i].lower for i in named], axis=1),
        upper=np.concatenate([groups[i].upper for i in named], axis=1),
    )
    return Fleet(
        group=group,
        local=box_of(group),
        objective=named_objective(problem),
        sums=(
            FleetContribution(
                row=0, terms=tuple(rows.values()), weights=sparse.csr_array(entries), table=True
            ),
        ),
        places=tuple(named),
        columns=np.concatenate([np.r_[columns[i]] for i in named]),
    )


def named_objective(problem: Problem) -> Expression:
    """Return the sum of the objectives of all named agents."""
    pairs = zip(problem.groups, problem.objectives, strict=True)
    return add(*(group.fill(f) for group, f in pairs if group.count == 1))


def _with_warning(group: Group, code: Objective) -> Watched:
    def report() -> None:
        warnings.warn(
            f"the gradient of {group.name} is not monotone: its objective is not convex, and the "
            "answer need not be the minimum",
            stacklevel=2,
        )

    return Watched(group.name, code.gradient, group.dim, report)


@final
class Runs:
    """The states of all runs, advanced by at most ``threads`` threads.

    Attributes:
        trace: what was measured, shape (runs, marks, ``QUANTITIES``).
    """

    def __init__(self, request: SimulationRequest, layout: Layout, threads: int) -> None:
        s, self._request, self._layout = request, request, layout
        # Formulas of several named agents, and code, are evaluated at marks, not in kernels.
        self._has_unmeasured = layout.unmeasured is not None or bool(layout.code)
        compiled = isinstance(s.algorithm, DualAveraging | GradientSteps)
        self._in_python = bool(layout.code) or not compiled
        team = threads if s.runs == 1 and not self._has_unmeasured else 1
        first = [self._start_fleet(kernel) for kernel in layout.kernels]
        self._runs = [
            self._make_run(place, first if place == 0 else [f.copy() for f in first], team)
            for place in range(-(-s.runs // s.lanes))
        ]
        self.trace = np.full((s.runs, s.marks.size, len(QUANTITIES)), np.nan)
        rounds = s.rounds if s.transcript else 0
        self._transcript = np.zeros((len(self._runs), rounds, layout.released, s.lanes))

    @property
    def transcript(self) -> Array:
        """Every released number, shape (runs, rounds, numbers); no rounds if not kept."""
        by_run = np.moveaxis(self._transcript, -1, 1)
        return by_run.reshape(-1, *by_run.shape[2:])[: self._request.runs]

    def _start_fleet(self, kernel: FleetKernel) -> FleetStates:
        """A fleet at the points of its agents' own sets nearest to the start."""
        start, saddle, shape = self._request.start, self._request.saddle, kernel.lower.shape
        x0 = np.concatenate([start[group].ravel() for group in kernel.fleet.places])
        hat = np.full(x0.size, np.nan) if saddle is None else saddle[0][kernel.fleet.columns]
        x0 = np.broadcast_to(x0.reshape(-1, shape[1]), shape)
        return FleetStates(kernel, x0, solution=np.broadcast_to(hat.reshape(-1, shape[1]), shape))

    def _make_run(self, place: int, fleets: Sequence[FleetStates], team: int) -> Run | PythonRun:
        s, layout, algorithm = self._request, self._layout, self._request.algorithm
        # Empty lanes repeat the last run.
        runs = np.minimum(np.arange(s.lanes) + place * s.lanes, s.runs - 1)
        seeds = tuple(map(partial(stream_seed, s.seed), (s.first + runs).tolist()))
        release = replace(layout.release, seeds=seeds)
        if isinstance(algorithm, GradientSteps):
            steps = Run(fleets, release, None, threads=team)
            steps.mu[:] = np.repeat(s.price0, s.lanes)
            return steps
        if isinstance(algorithm, DualAveraging) and not self._in_python:
            return Run(fleets, release, (layout.public, algorithm), warm=s.warm, threads=team)
        cloud = make_cloud(algorithm, layout.public, planned=s.plan is not None, warm=s.warm)
        return PythonRun(fleets, release, cloud)

    def tasks(self, done: int, until: int, steps: Array) -> list[Task]:
        """The tasks of rounds ``done + 1 .. until``: one per run, or per thread of a single run.

        Several tasks run at the same time. ``steps`` is of ``SimulationRequest.steps``.
        """
        if len(self._runs) == 1 and not self._has_unmeasured:
            (leader, *helpers), record = self._prepare(0, done, until, steps)
            return [partial(_run_serially, [leader, record]), *helpers]  # the leader ends last
        advance = self._advance_by_marks if self._has_unmeasured else self._advance
        tasks: list[Task] = [
            partial(advance, run, done, until, steps) for run in range(len(self._runs))
        ]
        # Code need not be thread-safe: one thread takes all runs.
        return [partial(_run_serially, tasks)] if self._in_python else tasks

    def _prepare(self, run: int, done: int, until: int, steps: Array) -> tuple[list[Task], Task]:
        """The tasks of some rounds of a run, and the one that records them afterwards."""
        s = self._request
        first, last = s.records(done, until)
        trace = np.empty((last - first, 3 * s.price0.size + len(MEASURES), s.lanes))
        tasks = self._runs[run].tasks(
            done,
            until,
            steps,
            marks=s.marks[first:last],
            trace=trace,
            transcript=self._transcript[run, done:until],
        )
        of_runs = range(run * s.lanes, min(run * s.lanes + s.lanes, s.runs))
        records = [partial(self._record, r, first, trace[..., r % s.lanes]) for r in of_runs]
        return tasks, partial(_run_serially, records)

    def _advance(self, run: int, done: int, until: int, steps: Array) -> None:
        tasks, record = self._prepare(run, done, until, steps)
        _run_serially([*tasks, record])

    def _advance_by_marks(self, run: int, done: int, until: int, steps: Array) -> None:
        """Advance from mark to mark, and evaluate the answers there."""
        first, last = self._request.records(done, until)
        marks, values = self._request.marks[first:last].tolist(), list[tuple[float, float]]()
        for end in (*marks, until):
            if end > done:
                self._advance(run, done, end, steps[: end - done])
                done, steps = end, steps[end - done :]
            if len(values) < len(marks):
                values.append(self._evaluate_unmeasured(run))
        for record, (violation, objective) in zip(self.trace[run, first:last], values, strict=True):
            record[_VIOLATION] = max(record[_VIOLATION], violation)
            record[_OBJECTIVE] += objective
            if self._layout.code:
                record[_RESIDUAL] = np.nan  # no formula gives the gradient of a callback

    def _evaluate_unmeasured(self, run: int) -> tuple[float, float]:
        """The worst stated constraint at the answer, and the sum of objectives that are code."""
        layout = self._layout
        (x,) = layout.assemble(self._runs[run].fleets, "answer")
        g = np.zeros(0) if layout.unmeasured is None else layout.unmeasured.constraints(x)
        coded = [np.nan if f.value is None else float(f.value(x[c])) for c, f in layout.code]
        return float(np.fmax.reduce(g, initial=0.0)), float(sum(coded))

    def _record(self, run: int, first: int, trace: Array) -> None:
        """Turn what a run recorded into ``QUANTITIES``."""
        if not len(trace):
            return
        s, p = self._request, self._request.price0.size
        sums, measures, answer, last = np.split(trace, np.cumsum([p, len(MEASURES), p]), axis=1)
        objective, residual, error, last_error = measures.T
        hat = np.full(p, np.nan) if s.saddle is None else s.saddle[1]
        with np.errstate(all="ignore"):
            if s.gradient:
                price_residual, excess = answer - np.maximum(answer + sums, 0.0), sums
            else:
                limits = s.problem.cloud.sums
                price_residual = sums - self._project(run, sums + answer)
                excess = np.fmax(sums - limits.upper, limits.lower - sums)
                if limits.costs:
                    objective = objective + cost_of(limits.costs, sums)
            columns = (  # in the order of QUANTITIES
                np.sqrt(error),
                np.linalg.norm(answer - hat, axis=1),
                np.fmax.reduce(excess, axis=1, initial=0.0),
                np.sqrt(residual + np.sum(price_residual**2, axis=1)),
                objective,
                np.sqrt(last_error),
                np.linalg.norm(last - hat, axis=1),
            )
        self.trace[run, first : first + len(trace)] = np.stack(columns, axis=1)

    def _project(self, run: int, points: Array) -> Array:
        """The points of C nearest to others, row by row, with the public cost beside."""
        public, cloud = self._layout.public, self._runs[run].cloud
        if not public.regions or cloud is None:
            return np.clip(points, public.lower, public.upper)
        nearest = (cloud.nearest(point, priced=True) for point in points)
        return np.array(list(nearest)).reshape(points.shape)

    def arrays(self) -> dict[str, Array]:
        """The mutable arrays, for a checkpoint."""
        arrays = {"trace": self.trace, "transcript": self._transcript}
        for place, run in enumerate(self._runs):
            if run.cloud is None:
                parts = {"price": run.mu}
            else:
                parts = {name: getattr(run.cloud, name) for name in _CLOUD_ARRAYS}
            parts["failed"] = run.failed_round
            arrays |= {f"{name}{place}": array for name, array in parts.items()}
            for i, fleet in enumerate(run.fleets):
                names = ("x",) if fleet.mean is fleet.x else ("x", "mean", "center", "worth")
                arrays |= {f"{name}{place}.{i}": getattr(fleet, name) for name in names}
        return arrays

    def final(self) -> dict[str, NDArray[np.generic]]:
        """The final states of every run, as fields of a ``Result``."""
        ends = list(map(self._end, self._runs))  # the last ones may have empty lanes
        runs = self._request.runs
        return {name: np.concatenate([end[name] for end in ends])[:runs] for name in ends[0]}

    def _end(self, run: Run | PythonRun) -> dict[str, NDArray[np.generic]]:
        """The same of the runs in the lanes of one; of multipliers the last are the answer."""
        lanes, cloud = self._request.lanes, run.cloud
        price, answer = (
            (run.mu, run.mu) if run.cloud is None else (run.cloud.price, run.cloud.answer)
        )
        end: dict[str, NDArray[np.generic]] = {
            "x": self._layout.assemble(run.fleets, "answer", lanes),
            "last_x": self._layout.assemble(run.fleets, "states", lanes),
            "price": answer.reshape(-1, lanes).T,
            "last_price": price.reshape(-1, lanes).T,
            "failed": run.failed_round.astype(np.int64),
        }
        if cloud is not None and self._layout.release.grid is not None:
            end["released"] = cloud.released[np.newaxis]
        return end

    def price_memory(self, done: int) -> PriceMemory | None:
        """Return what the first run's cloud learnt; None if it failed, or had no prices."""
        s, cloud = self._request, self._runs[0].cloud
        if not isinstance(cloud, CloudKernel) or self._runs[0].failed_round[0]:
            return None
        labels, before = s.problem.cloud.sums.labels, 0 if s.warm is None else s.warm.begun
        return price_memory(cloud.memory, cloud.answer, self._layout.public, labels, before + done)


def _run_serially(tasks: Sequence[Task]) -> None:
    for task in tasks:
        task()
