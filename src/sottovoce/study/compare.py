"""Methods at equal privacy against each other and against the asymptotic limit."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import cycle, groupby
from typing import TYPE_CHECKING, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithm.algorithm import Algorithm, GradientSteps
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.arguments import entries, instance, whole
from sottovoce.certificate.certificate import certify
from sottovoce.certificate.contributions import row_scales
from sottovoce.certificate.optimum import ReferenceOptimum, reference_optimum, saddle_prices
from sottovoce.errors import InputError, SottovoceError
from sottovoce.privacy.adjacency import PerAgent
from sottovoce.privacy.limit import accuracy_limit
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.constraints import equalities
from sottovoce.problem.groups import Array
from sottovoce.problem.numeric import Numeric
from sottovoce.problem.problem import Problem, violation
from sottovoce.progress import Progress, watched
from sottovoce.study.promise import Promise
from sottovoce.study.rivals import RIVALS, references, rivals_of
from sottovoce.study.rivals.hale_egerstedt import paper_runs
from sottovoce.study.rivals.rival import (
    JOINT,
    NOISES,
    OWN,
    PAPER,
    PUBLISHED,
    RefusedMethod,
    RivalRun,
    RivalTask,
    algorithm_run,
    root_mean_square,
)
from sottovoce.tables import PlainTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROUNDS = (500, 2_000, 10_000)  # numbers of rounds that are compared by default

_CURVE_START = 25  # rounds at the first point of a curve
_CURVE_POINTS = 9
_CURVE_SPACING = 1.3  # the least ratio of a point to a number of rounds that is run anyway

# Okabe and Ito's colours for colour-blind readers; plans may coincide, so widths differ.
_PLAN_STYLES = {
    PUBLISHED: ("#E69F00", 4.5), PAPER: ("#8A2A00", 1.5), OWN: ("#CC79A7", 1.5),
    JOINT: ("#0072B2", 1.9),
}  # fmt: skip
_ALGORITHM_STYLES = (
    ("-", "o"), ("--", "s"), ("-.", "^"), ((0, (1, 1)), "v"), ((0, (5, 1)), "D"),
    ((0, (3, 1, 1, 1, 1, 1)), "P"), ((0, (8, 3)), "X"), ("-", "*"),
)  # fmt: skip


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRow:
    """One noise, method and number of rounds; errors are root mean squares over the runs.

    Attributes:
        failed: how many of the runs ended in numbers that are not finite, and count nowhere else.
        x: error of the answer's x without flat components; NaN if all runs failed.
        price: error of the answer's prices, of the multipliers for the paper's algorithm.
        flat_x: error of the answer's x in the flat components alone.
        last_x: error of the last iterate's x, as ``x``; ``last_price`` of its prices.
        limit_x: the asymptotic error of x of T releases with this noise (``accuracy_limit``), no
            lower bound; ``limit_price`` of prices. NaN where no such limit is known.
        cost: mean of the objective above its least; negative where answers violate constraints.
        violation: mean of the worst violation of a constraint, as a share of its scale.
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
    cost: float
    violation: float

    @property
    def efficiency_x(self) -> float:
        """``x / limit_x``: 1 is as good as it gets for many rounds; NaN without a limit."""
        return self.x / self.limit_x if self.limit_x > 0 else math.nan

    @property
    def efficiency_price(self) -> float:
        """``price / limit_price``, likewise."""
        return self.price / self.limit_price if self.limit_price > 0 else math.nan

    def data(self) -> dict[str, object]:
        """Return everything as plain values; NaN becomes None."""
        efficiency = {"efficiency_x": self.efficiency_x, "efficiency_price": self.efficiency_price}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in (asdict(self) | efficiency).items()
        }


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MethodComparison:
    """Errors of algorithms with noise plans; ``print`` shows them as a table.

    Attributes:
        flat: components of x, from 0, that the errors leave out: no curvature determines them.
        rows: of so many ``runs`` each, by plan, then T, then algorithm.
        refusals: plans that do not exist, methods that cannot run.
        references: the methods' sources, in BibTeX.
        interrupted: whether it was stopped before the last row.
    """

    runs: int
    seed: int
    flat: tuple[int, ...]
    rows: tuple[CompareRow, ...]
    refusals: tuple[RefusedMethod, ...]
    references: str
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
                if name != OWN:  # every method's own noise has its own limit
                    limits = (_write(rows[0].limit_x), "", _write(rows[0].limit_price))
                    cells.append(("  limit", f"{count:,}", *limits))
        return PlainTable(
            title=f"Root-mean-square errors of {self.runs} runs against the saddle point",
            columns=("noise, method", "rounds", "x", "x/ limit", "price", "price/ limit", "cost",
                     "violation"),
            rows=tuple(cells),
            notes=tuple(self._write_notes(shown)),
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
            "rows": [row.data() for row in self.rows if row.rounds in rounds],
            "grid": [row.data() for row in self.rows if row.rounds not in rounds],
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
        flat = ", ".join(str(component + 1) for component in self.flat)
        without = f" without flat component {flat}" if self.flat else ""
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

    def _write_notes(self, shown: Sequence[CompareRow]) -> Iterator[str]:
        yield from _list_winners(shown)
        yield (
            "limit: the best that so many releases with this noise allow, once rounds are many. "
            "While they are few, start and boxes say more than the releases do: ratios below 1."
        )
        if self.flat:
            flat = ", ".join(str(component + 1) for component in self.flat)
            yield f"Without flat component {flat} of x, where no such limit exists."
        failed = sum(row.failed for row in self.rows)
        if failed:
            yield f"Runs that failed, in brackets after the algorithm, count nowhere: {failed:,}."
        for refusal in self.refusals:
            yield f"{refusal.plan}, refused: {refusal.why}"
        if self.interrupted:
            yield "Interrupted: rows are missing."

    def _draw_curves(self, axes: Axes, name: str, title: str) -> None:
        from matplotlib.ticker import LogLocator

        # The joint plan has the most methods, the default first.
        by_plan = sorted(self.rows, key=lambda row: -NOISES.index(row.plan))
        algorithms = list(dict.fromkeys(map(_method, by_plan)))
        for plan in dict.fromkeys(row.plan for row in self.rows):
            of_plan = [row for row in self.rows if row.plan == plan]
            colour, width = _PLAN_STYLES[plan]
            limits = {row.rounds: getattr(row, f"limit_{name}") for row in of_plan}
            if plan != OWN and all(value > 0 for value in limits.values()):
                axes.plot(list(limits), list(limits.values()), color=colour, linestyle=":",
                          linewidth=1.3, label=f"{plan}: asymptotic limit")  # fmt: skip
            for algorithm, (line, marker) in zip(algorithms, cycle(_ALGORITHM_STYLES)):
                curve = [row for row in of_plan if _method(row) == algorithm]
                if curve:
                    axes.plot([row.rounds for row in curve], [getattr(row, name) for row in curve],
                              color=colour, linestyle=line, linewidth=width, marker=marker,
                              markersize=2.5 + width, label=f"{plan}: {algorithm}")  # fmt: skip
        axes.set(xscale="log", yscale="log", xlabel="rounds $T$")
        axes.set_title(title, fontsize=12)
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.set_xticks([], minor=True)
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
    rivals: Sequence[str] | None = None,
    progress: bool | Progress | None = None,
    executor: object = None,
) -> MethodComparison:
    """Run every method with the noise of one promise, and compare errors with the limit.

    ``x = sqrt(mean_r |x_r - x-hat|^2)`` over the runs r, and ``efficiency_x = x / limit_x`` with
    ``limit_x^2 = trace(J^-1 Sigma J^-T / T)``; the same for prices. Every method keeps the same
    promise: with the noise that its own theorem asks for, and with that of the joint plan for
    noisy sums where this is less. A method that cannot run is kept as a refusal. Every T is a
    simulation of its own, since a method may plan ahead for T rounds.

    Args:
        problem: what to solve; its ``[privacy]`` decides where one of the next four is left out.
        epsilon: the privacy loss, one number or one per agent.
        delta: the failure probability, likewise.
        radius: b, how much is hidden of a trajectory or an offset, likewise.
        hide: "trajectory", "offset" or "everything".
        rounds: the numbers of rounds T.
        runs: independent runs per row.
        seed: as for ``sv.simulate``.
        algorithms: those to compare, by name; ``DualAveraging()`` by default.
        rivals: "paper", "laplace", "hhrw", "ndmd", "han", "output", "hindsight"; by default the
            paper's method, or none beside ``algorithms``.
        progress: as for ``sv.simulate``.
        executor: likewise. Ctrl-C keeps the rows that are done.
    """
    instance("problem", problem, Problem, "sv.Problem(...)")
    horizons = _check_rounds(rounds)
    runs, seed = whole("runs", runs, least=1), whole("seed", seed)
    chosen = rivals_of((["paper"] if algorithms is None else []) if rivals is None else rivals)
    methods: list[tuple[str, _Method]] = _algorithm_methods(algorithms)
    methods += [(rival.label, rival.runs) for rival in chosen]
    promise = Promise(epsilon=epsilon, delta=delta, radius=radius, hide=hide)
    with watched(progress) as report:
        certificate = certify(problem, progress=report)
        plan_of = partial(promise.plan, problem, certificate.for_study(), progress=report)
        planner, saddle = partial(_plan, cache(plan_of), horizons[-1]), reference_optimum(problem)
        tasks = [
            RivalTask(
                problem=problem, certificate=certificate, plan=planner(count),
                planner=partial(planner, count), saddle=saddle, rounds=count, runs=runs, seed=seed,
                executor=executor,
            )
            for count in horizons
        ]  # fmt: skip
        offered, refusals = _collect_runs(methods, tasks)
        rows = _run_methods(offered, report)
    return MethodComparison(
        runs=runs,
        seed=seed,
        flat=accuracy_limit(problem, tasks[-1].plan, horizons[-1], saddle=saddle).flat,
        rows=tuple(rows),
        refusals=refusals,
        references=references(chosen),
        interrupted=len(rows) < len(offered),
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


_Method: TypeAlias = Callable[[RivalTask], Iterator[RivalRun | RefusedMethod]]


def _algorithm_methods(algorithms: Mapping[str, Algorithm] | None) -> list[tuple[str, _Method]]:
    """Algorithms as methods: gradient steps as the paper's, others with the joint plan alone."""
    if algorithms is None:
        algorithms = {"DualAveraging": DualAveraging()}
    named = isinstance(algorithms, Mapping) and len(algorithms) > 0
    if not named or not all(isinstance(a, Algorithm) for a in algorithms.values()):
        raise InputError(
            "algorithms must be algorithms by name, such as {'default': sv.DualAveraging()}, got "
            f"algorithms={algorithms!r:.60}"
        )

    def method(label: str, algorithm: Algorithm) -> _Method:
        if isinstance(algorithm, GradientSteps):
            return lambda task: paper_runs(task, label, algorithm)
        return lambda task: iter([algorithm_run(task, JOINT, label, task.plan, algorithm)])

    return [(label, method(label, algorithm)) for label, algorithm in algorithms.items()]


def _plan(
    plan_of: Callable[..., NoisePlan], longest: int, count: int, method: str = "joint", **how: bool
) -> NoisePlan:
    """One plan of a promise and method for all T, or one for each T where rounds cost noise."""
    plan = plan_of(rounds=longest, method=method, **how)
    return plan if plan.hide.kind == "trajectory" else plan_of(rounds=count, method=method, **how)


def _collect_runs(
    methods: Sequence[tuple[str, _Method]], tasks: Sequence[RivalTask]
) -> tuple[list[tuple[RivalTask, RivalRun]], tuple[RefusedMethod, ...]]:
    """What all methods offer, in the order of the table, and what they refuse."""
    offered: dict[tuple[str, str, int], tuple[RivalTask, RivalRun]] = {}
    refusals: dict[RefusedMethod, None] = {}
    for label, method in methods:
        for task in tasks:
            try:
                for item in method(task):
                    if isinstance(item, RefusedMethod):
                        refusals[item] = None
                    else:
                        offered.setdefault((item.noise, item.label, task.rounds), (task, item))
            except SottovoceError as error:
                refusals[RefusedMethod(label, str(error))] = None
    pairs = sorted(offered.values(), key=lambda p: (NOISES.index(p[1].noise), p[0].rounds))
    return pairs, tuple(refusals)


def _run_methods(
    offered: Sequence[tuple[RivalTask, RivalRun]], report: Progress
) -> list[CompareRow]:
    """Carry out what methods offer; the first rows, if that was interrupted."""
    rows: list[CompareRow] = []
    completed, total = 0, sum(task.rounds for task, _ in offered)
    for task, run in offered:
        row = _run_method(task, run, report, completed / total, task.rounds / total)
        if row is None:
            break
        rows.append(row)
        completed += task.rounds
    return rows


def _run_method(
    task: RivalTask, run: RivalRun, report: Progress, begin: float, size: float
) -> CompareRow | None:
    """Carry out all runs of a method; None if that was interrupted."""
    problem, saddle = task.problem, task.saddle
    hat = saddle.mu if run.multipliers else saddle_prices(problem, saddle)

    def progress(doing: str, share: float | None = None) -> None:
        doing = f"{run.noise}, {run.label}, {task.rounds:,} rounds"
        report(doing, begin + size * (share or 0.0))

    progress("running", 0.0)
    try:
        answers = run.answers(progress)
    except KeyboardInterrupt:
        return None
    if answers.interrupted:
        return None
    limit = accuracy_limit(problem, run.plan or task.plan, task.rounds, saddle=saddle)
    limited = math.nan if run.plan is None else 1.0
    completed = answers.failed == 0
    flat = np.isin(np.arange(saddle.x.size), limit.flat)
    cost, worst = _assess_cost(problem, saddle, answers.x[completed])

    def error(values: Array, true: Array, keep: slice | NDArray[np.bool_] = slice(None)) -> float:
        return root_mean_square((values - true)[completed][:, keep])

    return CompareRow(
        plan=run.noise,
        algorithm=f"{run.label} ({answers.note})" if answers.note else run.label,
        rounds=task.rounds,
        runs=len(answers.x),
        failed=int(np.count_nonzero(~completed)),
        x=error(answers.x, saddle.x, ~flat),
        price=error(answers.price, hat),
        flat_x=error(answers.x, saddle.x, flat),
        last_x=error(answers.last_x, saddle.x, ~flat),
        last_price=error(answers.last_price, hat),
        limit_x=limited * float(np.linalg.norm(limit.x_each[~flat])),
        limit_price=limited * limit.price,
        cost=cost,
        violation=worst,
    )


def _assess_cost(problem: Problem, saddle: ReferenceOptimum, x: Array) -> tuple[float, float]:
    """Means over answers of the objective above its least, and of the worst violation."""
    if not len(x):
        return math.nan, math.nan
    numeric, scale = Numeric(problem), row_scales(problem.cloud)
    equality = equalities(problem.constraints)
    off = [violation(numeric.constraints(answer), equality) / scale for answer in x]
    above = np.mean([numeric.objective(answer) for answer in x]) - saddle.objective
    return float(above), float(np.mean([part.max(initial=0.0) for part in off]))


def _method(row: CompareRow) -> str:
    """The method of a row, without what was chosen on the way."""
    return row.algorithm.partition(" (")[0]


def _list_winners(rows: Sequence[CompareRow]) -> Iterator[str]:
    """Say which rows have smaller errors of x than the default with as many rounds."""
    informed = {r.label: r.side_information for r in RIVALS.values() if r.side_information}
    default = {row.rounds: row.x for row in rows if row.algorithm == "DualAveraging"}
    for row in rows:
        least = default.get(row.rounds, -math.inf)
        if row.x < least and row.algorithm != "DualAveraging":
            words = informed.get(_method(row))
            knowing = f", which knows {words}," if words else ""
            yield (
                f"{row.algorithm}{knowing} beats the default after {row.rounds:,} rounds with the "
                f"noise {row.plan!r}: {row.x / least:.2f} of its error of x."
            )


def _format_row(row: CompareRow) -> tuple[str, ...]:
    failed = f" ({row.failed} of {row.runs} failed)" if row.failed else ""
    return (
        f"  {row.algorithm}{failed}",
        f"{row.rounds:,}",
        *(_write(row.x), _write(row.efficiency_x, ratio=True)),
        *(_write(row.price), _write(row.efficiency_price, ratio=True)),
        *(_write(row.cost), f"{100 * row.violation:.3g}%"),
    )


def _write(value: float, *, ratio: bool = False) -> str:
    """Three digits, or two decimals of a ratio, in eight letters at most."""
    if not math.isfinite(value):
        return "-"
    if value < (1_000 if ratio else 100):
        return f"{value:.2f}" if ratio else f"{value:#.3g}"
    return f"{value:,.0f}" if value < 999_999.5 else f"{value:.2e}"
