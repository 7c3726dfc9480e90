"""Algorithms and noise plans against each other and against the asymptotic limit."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithm.algorithm import Algorithm, GradientSteps
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.arguments import entries, instance, whole
from sottovoce.certificate.certificate import certify
from sottovoce.certificate.optimum import ReferenceOptimum, reference_optimum, saddle_prices
from sottovoce.errors import InputError, SottovoceError
from sottovoce.paper.reproduction import published_noise
from sottovoce.paper.tikhonov import Tikhonov
from sottovoce.privacy.adjacency import PerAgent, Trajectory
from sottovoce.privacy.limit import accuracy_limit
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.agents import Array
from sottovoce.problem.gallery import paper as paper_problem
from sottovoce.problem.problem import Problem
from sottovoce.progress import Progress, watched
from sottovoce.simulation.simulate import require_steppable, simulate
from sottovoce.study.promise import Promise
from sottovoce.tables import PlainTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PUBLISHED, PAPER, JOINT = "published", "paper's method, certified", "joint"
ROUNDS = (500, 2_000, 10_000)
"""Numbers of rounds that are compared by default."""

_CURVE_START = 25  # rounds at the first point of a curve
_CURVE_POINTS = 9
_CURVE_SPACING = 1.3  # the least ratio of a point to a number of rounds that is run anyway

# Okabe and Ito's colours for colour-blind readers; plans may coincide, so widths differ.
_PLAN_STYLES = {PUBLISHED: ("#E69F00", 4.5), PAPER: ("#8A2A00", 1.5), JOINT: ("#0072B2", 1.9)}
_LINE_STYLES = ("-", "--", "-.")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRow:
    """One plan, algorithm and number of rounds; errors are root mean squares over the runs.

    Attributes:
        failed: how many of the runs ended in numbers that are not finite, and count nowhere else.
        x: error of the answer's x without flat components; NaN if all runs failed.
        price: error of the answer's prices, of the multipliers for the paper's algorithm.
        flat_x: error of the answer's x in the flat components alone.
        last_x: error of the last iterate's x, as ``x``; ``last_price`` of its prices.
        limit_x: the least error of x that T releases with this noise allow; ``limit_price`` of
            prices.
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


class RefusedMethod(NamedTuple):
    """A plan that does not exist for this problem, or an algorithm that cannot run it, and why."""

    plan: str
    why: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MethodComparison:
    """Errors of algorithms with noise plans; ``print`` shows them as a table.

    Attributes:
        flat: components of x, from 0, that the errors leave out: no curvature determines them.
        rows: of so many ``runs`` each, by plan, then T, then algorithm.
        refusals: plans that do not exist, algorithms that cannot run.
        interrupted: whether it was stopped before the last row.
    """

    runs: int
    seed: int
    flat: tuple[int, ...]
    rows: tuple[CompareRow, ...]
    refusals: tuple[RefusedMethod, ...]
    interrupted: bool

    def table(self, rounds: Collection[int] | None = None) -> PlainTable:
        """Return the rows of these numbers of rounds, of all by default, and the limits."""
        cells: list[tuple[str, ...]] = []
        shown = [row for row in self.rows if rounds is None or row.rounds in rounds]
        for name, of_plan in groupby(shown, key=lambda row: row.plan):
            cells.append((name,))
            for count, of_rounds in groupby(of_plan, key=lambda row: row.rounds):
                rows = list(of_rounds)
                cells += map(_format_row, rows)
                limits = (_write(rows[0].limit_x), "", "", _write(rows[0].limit_price), "", "")
                cells.append(("  limit", f"{count:,}", *limits))
        cells += [(f"{refusal.plan}: refused, see below",) for refusal in self.refusals]
        return PlainTable(
            title=f"Root-mean-square errors of {self.runs} runs against the saddle point",
            columns=(
                "plan, algorithm", "rounds", "x", "last x", "x/ limit", "price", "last price",
                "price/ limit",
            ),
            rows=tuple(cells),
            notes=tuple(self._write_notes()),
        )  # fmt: skip

    def data(self, rounds: Collection[int]) -> dict[str, object]:
        """Return everything as plain values for JSON; components count from 1, NaN becomes None.

        Rows with other numbers of rounds than these are in ``grid``.
        """
        return {
            "runs": self.runs,
            "seed": self.seed,
            "flat": [component + 1 for component in self.flat],
            "interrupted": self.interrupted,
            "rows": [_to_data(row) for row in self.rows if row.rounds in rounds],
            "grid": [_to_data(row) for row in self.rows if row.rounds not in rounds],
            "refusals": [refusal._asdict() for refusal in self.refusals],
        }

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw errors against rounds, log-log: x and prices side by side, one colour per plan.

        Solid, dashed: the algorithms in turn. Dotted: the limit
        ``sqrt(trace(J^-1 Sigma J^-T / T))``.
        """
        from matplotlib.figure import Figure

        from sottovoce.simulation.summary import draw

        figure = Figure(figsize=(10.5, 5.4), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        without = f" without flat component {self._flat}" if self.flat else ""
        self._draw_curves(left, "x", rf"$\|x - \hat{{x}}\|${without}")
        self._draw_curves(right, "price", r"$\|\lambda - \hat{\lambda}\|$")
        left.set_ylabel("root-mean-square error")
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False,
                      handlelength=3.2)  # fmt: skip
        draw(figure, path)

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    @property
    def _flat(self) -> str:
        return ", ".join(str(component + 1) for component in self.flat)

    def _write_notes(self) -> Iterator[str]:
        yield (
            "limit: the best that so many releases with this noise allow, once rounds are many. "
            "While they are few, start and boxes say more than the releases do: ratios below 1."
        )
        if self.flat:
            yield f"Without flat component {self._flat} of x, where no such limit exists."
        failed = sum(row.failed for row in self.rows)
        if failed:
            yield f"Runs that failed, in brackets after the algorithm, count nowhere: {failed:,}."
        for refusal in self.refusals:
            yield f"{refusal.plan}, refused: {refusal.why}"
        if self.interrupted:
            yield "Interrupted: rows are missing."

    def _draw_curves(self, axes: Axes, name: str, title: str) -> None:
        algorithms = list(dict.fromkeys(row.algorithm for row in self.rows))
        for plan in dict.fromkeys(row.plan for row in self.rows):
            of_plan = [row for row in self.rows if row.plan == plan]
            colour, width = _PLAN_STYLES[plan]
            limits = {row.rounds: getattr(row, f"limit_{name}") for row in of_plan}
            if all(value > 0 for value in limits.values()):
                axes.plot(list(limits), list(limits.values()), color=colour, linestyle=":",
                          linewidth=1.3, label=f"{plan}: asymptotic limit")  # fmt: skip
            for algorithm, style in zip(algorithms, _LINE_STYLES, strict=False):
                curve = [row for row in of_plan if row.algorithm == algorithm]
                if curve:
                    axes.plot([row.rounds for row in curve], [getattr(row, name) for row in curve],
                              color=colour, linestyle=style, linewidth=width, marker="o",
                              markersize=2.5 + width, label=f"{plan}: {algorithm}")  # fmt: skip
        axes.set(xscale="log", yscale="log", xlabel="rounds $T$")
        axes.set_title(title, fontsize=12)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.grid(which="major", alpha=0.3)
        axes.grid(which="minor", alpha=0.12)


def compare(
    problem: Problem,
    *,
    epsilon: PerAgent | None = None,
    delta: PerAgent | None = None,
    radius: PerAgent | None = None,
    hide: str | None = None,
    rounds: Sequence[int] = ROUNDS,
    runs: int = 64,
    seed: int = 0,
    algorithms: Mapping[str, Algorithm] | None = None,
    progress: bool | Progress | None = None,
    executor: object = None,
) -> MethodComparison:
    """Run every algorithm with every noise plan of a promise, and compare errors with the limit.

    ``x = sqrt(mean_r |x_r - x-hat|^2)`` over the runs r, and ``efficiency_x = x / limit_x`` with
    ``limit_x^2 = trace(J^-1 Sigma J^-T / T)``; the same for prices. All plans keep the same
    promise: the joint plan releases noisy sums, the paper's method values and gradients. On the
    paper's problem its published noise is compared too. A plan that the paper's method refuses is
    kept as a refusal. Dual averaging needs sums; the paper's algorithm takes values and gradients,
    or sums that are the constraints: other pairs do not exist. Every T is a simulation of its own,
    since an algorithm may plan ahead for T rounds.

    Args:
        problem: what to solve; its ``[privacy]`` decides where one of the next four is left out.
        epsilon: the privacy loss, one number or one per agent.
        delta: the failure probability, likewise.
        radius: b, how much is hidden of a trajectory or an offset, likewise.
        hide: "trajectory", "offset" or "everything".
        rounds: the numbers of rounds T.
        runs: independent runs per row.
        seed: as for ``sv.simulate``.
        algorithms: those to compare, by name; ``DualAveraging()`` and the paper's by default.
        progress: as for ``sv.simulate``.
        executor: likewise. Ctrl-C keeps the rows that are done.
    """
    instance("problem", problem, Problem, "sv.Problem(...)")
    horizons = _check_rounds(rounds)
    runs, seed = whole("runs", runs, least=1), whole("seed", seed)
    runnable, incapable = _select_runnable(problem, algorithms)
    promise = Promise(epsilon=epsilon, delta=delta, radius=radius, hide=hide)
    with watched(progress) as report:
        plans, refused = _plan_methods(problem, promise, horizons, report)
        saddle = reference_optimum(problem)
        tasks = _list_tasks(plans, runnable, free=problem.cloud.sums.free)
        rows: list[CompareRow] = []
        completed, total = 0, sum(task.rounds for task in tasks)
        for task in tasks:
            row = _simulate_row(
                problem, saddle, task, runs=runs, seed=seed, executor=executor,
                progress=task.within(report, completed / total, task.rounds / total),
            )  # fmt: skip
            if row is None:
                break
            rows.append(row)
            completed += task.rounds
    longest = horizons[-1]
    return MethodComparison(
        runs=runs,
        seed=seed,
        flat=accuracy_limit(problem, plans[JOINT][longest], longest, saddle=saddle).flat,
        rows=tuple(rows),
        refusals=(*refused, *incapable),
        interrupted=len(rows) < len(tasks),
    )


def curve_rounds(rounds: Sequence[int]) -> list[int]:
    """Return these numbers of rounds and some between, evenly spaced in ``log T``.

    ``25 (T/25)^(i/8)`` for i = 0..8 up to the largest T, without those close to one of ``rounds``.
    """
    longest = max(rounds)
    grid = np.geomspace(min(_CURVE_START, longest), longest, _CURVE_POINTS)
    between = [
        round(float(point))
        for point in grid
        if all(max(point / count, count / point) > _CURVE_SPACING for count in rounds)
    ]
    return sorted({*rounds, *between})


def _check_rounds(rounds: Sequence[int]) -> list[int]:
    kind = "integers of at least 1"
    horizons = {whole("rounds", count, least=1) for count in entries("rounds", rounds, kind)}
    if not horizons:
        raise InputError(f"rounds must be {kind}, got none")
    return sorted(horizons)


def _select_runnable(
    problem: Problem, algorithms: Mapping[str, Algorithm] | None
) -> tuple[dict[str, Algorithm], list[RefusedMethod]]:
    """The algorithms that can run a problem, and why the others cannot."""
    if algorithms is None:
        algorithms = {"DualAveraging": DualAveraging(), "Tikhonov": Tikhonov()}
    known = isinstance(algorithms, Mapping) and len(algorithms) > 0
    if not known or not all(isinstance(a, Algorithm) for a in algorithms.values()):
        raise InputError(
            "algorithms must be algorithms by name, such as {'default': sv.DualAveraging()}, got "
            f"algorithms={algorithms!r:.60}"
        )
    try:
        require_steppable(problem)
    except InputError as error:
        incapable = [name for name, a in algorithms.items() if isinstance(a, GradientSteps)]
        runnable = {name: a for name, a in algorithms.items() if name not in incapable}
        return runnable, [RefusedMethod(name, str(error)) for name in incapable]
    return dict(algorithms), []


_Plans = dict[str, dict[int, NoisePlan]]
"""Plans by name and number of rounds."""


def _plan_methods(
    problem: Problem, promise: Promise, horizons: Sequence[int], report: Progress
) -> tuple[_Plans, list[RefusedMethod]]:
    """Every plan that exists, and why the others do not."""
    certificate, longest = certify(problem, progress=report), horizons[-1]
    plan = partial(promise.plan, problem, certificate.for_study(), progress=report)

    def plan_horizons(method: str) -> dict[int, NoisePlan]:
        """One plan for all T, unless every round costs noise of its own."""
        last = plan(rounds=longest, method=method)
        if isinstance(last.hide, Trajectory):
            return dict.fromkeys(horizons, last)
        plans = {count: plan(rounds=count, method=method) for count in horizons[:-1]}
        return plans | {longest: last}

    joint = plan_horizons("joint")  # if this fails, input is wrong
    plans: _Plans = {}
    refusals: list[RefusedMethod] = []
    if problem.fingerprint == paper_problem().fingerprint:
        published = published_noise(certificate)
        if longest <= published.rounds:
            plans[PUBLISHED] = dict.fromkeys(horizons, published)
        else:
            why = f"covers {published.rounds:,} rounds, not {longest:,}"
            refusals.append(RefusedMethod(PUBLISHED, why))
    try:
        plans[PAPER] = plan_horizons("paper")
    except SottovoceError as error:
        refusals.append(RefusedMethod(PAPER, str(error)))
    plans[JOINT] = joint
    return plans, refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class _CompareTask:
    """One row to compute."""

    name: str
    plan: NoisePlan
    label: str
    algorithm: Algorithm
    rounds: int

    def within(self, report: Progress, begin: float, size: float) -> Progress:
        """Return a callback for this row, which is a share of ``size`` of all rounds."""
        words = f"{self.name}, {self.label}, {self.rounds:,} rounds"
        return lambda _, share=None: report(words, begin + size * (share or 0.0))


def _list_tasks(
    plans: _Plans, algorithms: Mapping[str, Algorithm], *, free: bool
) -> list[_CompareTask]:
    def is_pair(name: str, algorithm: Algorithm) -> bool:
        return (name != JOINT or free) if isinstance(algorithm, GradientSteps) else name == JOINT

    return [
        _CompareTask(name=name, plan=plan, label=label, algorithm=algorithm, rounds=count)
        for name, by_rounds in plans.items()
        for count, plan in by_rounds.items()
        for label, algorithm in algorithms.items()
        if is_pair(name, algorithm)
    ]


def _simulate_row(
    problem: Problem,
    saddle: ReferenceOptimum,
    task: _CompareTask,
    *,
    runs: int,
    seed: int,
    progress: Progress,
    executor: object,
) -> CompareRow | None:
    """Simulate; None if that was interrupted."""
    steps = isinstance(task.algorithm, GradientSteps)
    hat = saddle.mu if steps else saddle_prices(problem, saddle)
    try:
        result = simulate(
            problem, task.plan, rounds=task.rounds, runs=runs, seed=seed, algorithm=task.algorithm,
            saddle=(saddle.x, hat), record=[task.rounds], progress=progress, executor=executor,
        )  # fmt: skip
    except KeyboardInterrupt:
        return None
    if result.interrupted:
        return None
    limit = accuracy_limit(problem, task.plan, task.rounds, saddle=saddle)
    completed = result.failed == 0
    flat = np.isin(np.arange(saddle.x.size), limit.flat)

    def error(values: Array, true: Array, keep: slice | NDArray[np.bool_] = slice(None)) -> float:
        return root_mean_square((values - true)[completed][:, keep])

    return CompareRow(
        plan=task.name,
        algorithm=task.label,
        rounds=result.rounds,
        runs=result.runs,
        failed=int(np.count_nonzero(~completed)),
        x=error(result.x, saddle.x, ~flat),
        price=error(result.price, hat),
        flat_x=error(result.x, saddle.x, flat),
        last_x=error(result.last_x, saddle.x, ~flat),
        last_price=error(result.last_price, hat),
        limit_x=float(np.linalg.norm(limit.x_each[~flat])),
        limit_price=limit.price,
    )


def root_mean_square(errors: Array) -> float:
    """Return ``sqrt(mean_r |e_r|^2)`` of one error vector per run; NaN without any run."""
    squares = np.sum(np.square(errors), axis=1)
    return math.sqrt(float(np.mean(squares))) if squares.size else math.nan


def _format_row(row: CompareRow) -> tuple[str, ...]:
    failed = f" ({row.failed} of {row.runs} failed)" if row.failed else ""
    return (
        f"  {row.algorithm}{failed}",
        f"{row.rounds:,}",
        *(_write(row.x), _write(row.last_x), _write(row.efficiency_x, ratio=True)),
        *(_write(row.price), _write(row.last_price), _write(row.efficiency_price, ratio=True)),
    )


def _write(value: float, *, ratio: bool = False) -> str:
    """Three digits, or two decimals of a ratio, in eight letters at most."""
    if not math.isfinite(value):
        return "-"
    if value < (1_000 if ratio else 100):
        return f"{value:.2f}" if ratio else f"{value:#.3g}"
    return f"{value:,.0f}" if value < 999_999.5 else f"{value:.2e}"


def _to_data(row: CompareRow) -> dict[str, object]:
    values = asdict(row) | {
        "efficiency_x": row.efficiency_x,
        "efficiency_price": row.efficiency_price,
    }
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
