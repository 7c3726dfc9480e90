"""Algorithms and noise plans against each other and against the statistical limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np

from sottovoce.algorithm.algorithm import Algorithm, GradientSteps
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.algorithm.tikhonov import Tikhonov
from sottovoce.certificate.certificate import Certificate
from sottovoce.certificate.optimum import ReferenceOptimum, reference_optimum, saddle_prices
from sottovoce.errors import InputError, SottovoceError
from sottovoce.privacy.adjacency import Trajectory
from sottovoce.privacy.limit import Limit, accuracy_limit
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.agents import Array
from sottovoce.problem.gallery import paper as paper_problem
from sottovoce.problem.problem import Problem
from sottovoce.progress import Progress, watched
from sottovoce.simulation.own_set import require_no_rows
from sottovoce.simulation.result import Result
from sottovoce.simulation.simulate import simulate
from sottovoce.study.paper import published_noise

PUBLISHED, PAPER, JOINT = "published", "paper's method, certified", "joint"

_FIRST, _POINTS, _BESIDE = 25, 9, 1.3


class Planner(Protocol):
    """Makes the noise plan of a method for so many rounds, such as ``partial(plan, ...)``."""

    def __call__(self, *, method: str, rounds: int) -> NoisePlan:
        """Return the plan, or raise why there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRow:
    """One plan, algorithm and number of rounds; errors are root mean squares over the runs.

    Attributes:
        plan: which noise.
        algorithm: which algorithm.
        rounds: T.
        runs: how many runs there were.
        failed: how many of them ended in numbers that are not finite, and count nowhere else.
        x: error of the answer's x, flat components apart; NaN if all runs failed.
        price: error of the answer's prices, of the multipliers for the paper's algorithm.
        flat_x: error of the answer's x in the flat components alone.
        last_x: error of the last iterate's x, flat components apart.
        last_price: error of the last iterate's prices.
        limit_x: what T releases with this noise allow in x at best, flat components apart.
        limit_price: the same for prices.
    """

    plan: str
    algorithm: str
    rounds: int
    runs: int
    failed: int
    x: float
    price: float
    flat_x: float
    last_x: float
    last_price: float
    limit_x: float
    limit_price: float

    @property
    def efficiency_x(self) -> float:
        """``x / limit_x``: 1 is as good as it gets for many rounds; NaN without a limit."""
        return self.x / self.limit_x if self.limit_x > 0 else math.nan

    @property
    def efficiency_price(self) -> float:
        """``price / limit_price``, likewise."""
        return self.price / self.limit_price if self.limit_price > 0 else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A plan that does not exist for this problem, or an algorithm that cannot run it, and why."""

    plan: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What came out.

    Attributes:
        runs: how many runs each row has.
        seed: the seed of all rows.
        flat: components of x, from 0, that the errors leave out because no curvature holds them.
        rows: by plan, then T, then algorithm.
        refusals: plans that were not made, algorithms that cannot run.
        interrupted: whether somebody stopped it before the last row.
    """

    runs: int
    seed: int
    flat: tuple[int, ...]
    rows: tuple[CompareRow, ...]
    refusals: tuple[Refusal, ...]
    interrupted: bool


def compare(
    problem: Problem,
    certificate: Certificate,
    planner: Planner,
    *,
    rounds: Sequence[int],
    runs: int = 64,
    seed: int = 0,
    algorithms: Mapping[str, Algorithm] | None = None,
    progress: bool | Progress | None = None,
    executor: Executor | Any = None,
) -> Compared:
    """Run every algorithm with every plan for every T, and hold the errors against the limit.

    ``x = sqrt(mean_r |x_r - x-hat|^2)`` over the runs r, and ``efficiency_x = x / limit_x`` with
    ``limit_x^2 = trace(J^-1 Sigma J^-T / T)``; the same for prices. Every T is a solve of its own,
    since an algorithm may plan ahead for T rounds. The published noise is compared where the
    problem is the paper's; a plan that the paper's method refuses is kept as a refusal. Prices need
    sums and the paper's algorithm values and gradients, so that not every pair exists.

    Args:
        problem: what to solve.
        certificate: its certificate.
        planner: makes a plan from ``method`` and ``rounds``.
        rounds: the numbers of rounds T.
        runs: independent runs per row.
        seed: any integer that is not negative.
        algorithms: what to compare, by name; ``DualAveraging()`` and ``Tikhonov()`` by default.
        progress: whether to show what is being done once it has taken two seconds, by default on a
            terminal; or somebody to tell.
        executor: where to run, a ``concurrent.futures.Executor`` or a Dask client; results do not
            depend on it.
    """
    counts = _counts(rounds)
    asked = algorithms or {"DualAveraging": DualAveraging(), "Tikhonov": Tikhonov()}
    plans, refusals = _plans(problem, certificate, planner, counts[-1])
    entrants, unable = _entrants(problem, asked)
    refusals += unable
    saddle = reference_optimum(problem)
    prices = saddle_prices(problem, saddle)

    def hat_of(algorithm: Algorithm) -> Array:
        return saddle.mu if isinstance(algorithm, GradientSteps) else prices

    rows: list[CompareRow] = []
    interrupted = False
    with watched(progress) as tell:
        for task in _tasks(plans, counts, entrants, free=problem.cloud.sums.free):
            made, hat = task.plan(task.rounds), hat_of(task.algorithm)
            try:
                result = simulate(
                    problem, made, rounds=task.rounds, runs=runs, seed=seed,
                    algorithm=task.algorithm, saddle=(saddle.x, hat), record=[task.rounds],
                    progress=task.told(tell), executor=executor,
                )  # fmt: skip
                interrupted = result.interrupted
            except KeyboardInterrupt:
                interrupted = True
            if interrupted:
                break
            least = accuracy_limit(problem, made, task.rounds, saddle=saddle)
            rows.append(_row(task, result, saddle, hat, least))
    return Compared(
        runs=runs,
        seed=seed,
        flat=accuracy_limit(problem, plans[JOINT](counts[-1]), counts[-1], saddle=saddle).flat,
        rows=tuple(rows),
        refusals=tuple(refusals),
        interrupted=interrupted,
    )


def curve_rounds(asked: Sequence[int]) -> list[int]:
    """Return the numbers of rounds asked for and some between, evenly spaced in ``log T``.

    ``25 (T/25)^(i/8)`` for i = 0..8 up to the largest T, without those that fall beside one that
    was asked for.
    """
    longest = max(asked)
    grid = np.geomspace(min(_FIRST, longest), longest, _POINTS)
    apart = [
        round(float(point))
        for point in grid
        if all(max(point / count, count / point) > _BESIDE for count in asked)
    ]
    return sorted({*asked, *apart})


def _counts(rounds: Sequence[int]) -> list[int]:
    wrong = [count for count in rounds if int(count) != count or count < 1]
    if wrong or not rounds:
        got = wrong[0] if wrong else "none"
        raise InputError(f"rounds must be whole numbers of at least 1, got {got}")
    return sorted({int(count) for count in rounds})


def _plans(
    problem: Problem, certificate: Certificate, planner: Planner, longest: int
) -> tuple[dict[str, Callable[[int], NoisePlan]], list[Refusal]]:
    """Every plan that exists, as a function of T, and why the others do not."""
    joint = _maker(planner, "joint", longest)  # first: where this fails, the input is wrong
    plans: dict[str, Callable[[int], NoisePlan]] = {}
    refusals: list[Refusal] = []
    if problem.fingerprint == paper_problem().fingerprint:
        published = published_noise(certificate)
        if longest <= published.rounds:
            plans[PUBLISHED] = lambda count: published
        else:
            why = f"covers {published.rounds:,} rounds, not {longest:,}"
            refusals.append(Refusal(plan=PUBLISHED, why=why))
    try:
        plans[PAPER] = _maker(planner, "paper", longest)
    except SottovoceError as error:
        refusals.append(Refusal(plan=PAPER, why=str(error)))
    plans[JOINT] = joint
    return plans, refusals


def _entrants(
    problem: Problem, asked: Mapping[str, Algorithm]
) -> tuple[dict[str, Algorithm], list[Refusal]]:
    """The algorithms that can run a problem, and why the others cannot."""
    able: dict[str, Algorithm] = {}
    refusals: list[Refusal] = []
    for name, algorithm in asked.items():
        try:
            if isinstance(algorithm, GradientSteps):
                require_no_rows(problem.local)
            able[name] = algorithm
        except InputError as error:
            refusals.append(Refusal(plan=name, why=str(error)))
    return able, refusals


def _maker(planner: Planner, method: str, longest: int) -> Callable[[int], NoisePlan]:
    """The plan for T rounds: one for all T unless every round costs noise of its own."""
    made = planner(method=method, rounds=longest)
    if isinstance(made.hide, Trajectory):
        return lambda count: made
    return cache(lambda count: made if count == longest else planner(method=method, rounds=count))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """One row to come, the share of all rounds that come before it, and its own."""

    name: str
    plan: Callable[[int], NoisePlan]
    label: str
    algorithm: Algorithm
    rounds: int
    done: float
    share: float

    def told(self, tell: Progress) -> Progress:
        """Tell of this row within all of them."""
        words = f"{self.name}, {self.label}, {self.rounds:,} rounds"

        def within(doing: str, share: float | None = None) -> None:
            tell(words, self.done + self.share * (share or 0.0))

        return within


def _tasks(
    plans: Mapping[str, Callable[[int], NoisePlan]],
    counts: Sequence[int],
    algorithms: Mapping[str, Algorithm],
    *,
    free: bool,
) -> Iterator[_Task]:
    def fits(name: str, algorithm: Algorithm) -> bool:
        return (name != JOINT or free) if isinstance(algorithm, GradientSteps) else name == JOINT

    pairs = [(n, label) for n in plans for label, a in algorithms.items() if fits(n, a)]
    total, done = len(pairs) * sum(counts), 0
    for name, make in plans.items():
        for count in counts:
            for label, algorithm in algorithms.items():
                if (name, label) not in pairs:
                    continue
                yield _Task(
                    name=name, plan=make, label=label, algorithm=algorithm, rounds=count,
                    done=done / total, share=count / total,
                )  # fmt: skip
                done += count


def _row(
    task: _Task, result: Result, saddle: ReferenceOptimum, hat: Array, least: Limit
) -> CompareRow:
    good = result.failed == 0
    flat = np.isin(np.arange(saddle.x.size), least.flat)

    def error(values: Array, true: Array, keep: Any = slice(None)) -> float:
        return root_mean_square((values - true)[good][:, keep])

    return CompareRow(
        plan=task.name,
        algorithm=task.label,
        rounds=result.rounds,
        runs=result.runs,
        failed=int(np.count_nonzero(~good)),
        x=error(result.x, saddle.x, ~flat),
        price=error(result.price, hat),
        flat_x=error(result.x, saddle.x, flat),
        last_x=error(result.last_x, saddle.x, ~flat),
        last_price=error(result.last_price, hat),
        limit_x=float(np.linalg.norm(least.x_each[~flat])),
        limit_price=least.price,
    )


def root_mean_square(errors: Array) -> float:
    """Return ``sqrt(mean_r |e_r|^2)`` of one error vector per run; NaN without any run."""
    squares = np.sum(np.square(errors), axis=1)
    return math.sqrt(float(np.mean(squares))) if squares.size else math.nan
