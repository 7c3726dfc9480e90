"""Advice before anything is run: what to hide, how well, and in how many rounds."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from textwrap import fill
from typing import TYPE_CHECKING, final

import numpy as np

from sottovoce.arguments import entries, instance, real, whole
from sottovoce.certificate.certificate import Certificate, certify
from sottovoce.certificate.optimum import known_saddle
from sottovoce.errors import InputError, PrivacyError
from sottovoce.privacy.adjacency import Everything, Kind, Trajectory, adjacency_of, kind_of
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.plan import plan
from sottovoce.privacy.statement import down, up
from sottovoce.problem.problem import Problem
from sottovoce.progress import Progress, watched
from sottovoce.simulation.scatter import executor_of, scatter
from sottovoce.simulation.simulate import simulate as simulate_runs
from sottovoce.study.prediction import (
    FEASIBLE,
    FEWEST_ROUNDS,
    Prediction,
    Response,
    linear_response,
    measured_prediction,
    predict,
    rounds_for,
)
from sottovoce.study.promise import stated_number
from sottovoce.tables import PlainTable, cut

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EPSILONS = (0.1, 0.3, 1.0, 3.0)  # privacy losses that are compared by default

_RADIUS_SHARE = 0.05  # of the typical box's width, where no radius is stated
_MOST_CONSTRAINTS = 12  # that the table of constraints lists
_LEAST_DRAWN_SHARE = 1e-5  # in place of 0, which a logarithmic axis cannot show
_CONVERGED_RATIO = 1.25  # of a measured error to its prediction, up to which rounds suffice
_MOST_ROUNDS = 4_000  # after which no more are tried
_MOST_STEPS = 10**10  # runs x rounds x states up to which a row is simulated
_KIND_STYLES: dict[Kind, tuple[str, str, str]] = {
    "trajectory": ("a trajectory", "#7a8b99", "hide a change of {:g} in total"),
    "offset": ("an offset", "#1f5a8c", "hide an offset of {:g} in every round"),
    "everything": ("everything", "#c2571a", "hide everything an agent does"),
}
"""What can be hidden, the strongest last: in words, its colour and its label in the figure."""
_NOTES = (
    "worst noise: standard deviation of the noisiest constraint at the answer, of its scale",
    "over limit: probability that some inequality is violated if nothing is done about it",
    "margin costs: what keeping all of them as often as stated costs, of the objective",
    "error of x, of f: of the boxes, of the objective",
    "1% from: so many agents of the same kind pay less than 1% for their margin",
    "In brackets: measured in simulated runs.",
)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AdviceRow:
    """One promise, and what it costs.

    Attributes:
        sigma: the standard deviations of the released sums, least and largest.
        predicted: what to expect; None if the plan is refused.
        measured: the same, from simulated runs; None unless asked for.
        fleet: the number of agents from which on keeping the constraints costs less than 1% of the
            objective: more agents of the same kind, under bounds that grow with them.
        refused: why there is no such plan; None if there is one.
        no_margin: why there is no room for margins that keep the constraints with probability
            ``feasible``; None if there is.
    """

    hide: Kind
    radius: float | None
    epsilon: float
    delta: float
    rounds: int
    sigma: tuple[float, float] = (0.0, 0.0)
    predicted: Prediction | None = None
    measured: Prediction | None = None
    fleet: int = 0
    refused: str | None = None
    feasible: float = FEASIBLE
    no_margin: str | None = None

    @property
    def cost(self) -> float:
        """What feasibility costs, or where that is not known the noise; infinite if refused."""
        return math.inf if self.predicted is None else self.predicted.cost

    @property
    def worst_noise(self) -> float:
        """The standard deviation of the noisiest constraint over its scale; infinite if refused."""
        return math.inf if self.predicted is None else self.predicted.worst[1]

    @property
    def useless(self) -> bool:
        """Whether there is no such plan, or its answer will be useless."""
        return self.predicted is None or bool(self.predicted.useless)

    @property
    def hidden_offset(self) -> float | None:
        """The constant offset of a state that stays hidden over all rounds; None if any does."""
        if self.radius is None or self.predicted is None:
            return None
        return self.radius / math.sqrt(self.rounds) if self.hide == "trajectory" else self.radius

    @property
    def privacy(self) -> str:
        """The line for ``problem.toml``: the table ``[privacy]`` in TOML."""
        radius = "" if self.radius is None else f"radius = {self.radius!r}, "
        feasible = "" if self.no_margin else f"feasible = {self.feasible!r}, "
        return (
            f'privacy = {{ hide = "{self.hide}", {radius}epsilon = {self.epsilon!r}, '
            f"delta = {self.delta!r}, {feasible}rounds = {self.rounds} }}"
        )

    def cells(self, *, chosen: bool) -> tuple[str, ...]:
        """Return the row of the table; measured figures in brackets."""
        head = (("* " if chosen else "  ") + self.hide, up(self.epsilon, 3), f"{self.rounds:,}")
        if self.predicted is None:
            return (*head, "refused")
        name = self.predicted.worst[0]
        worst = self.predicted.rows.index(name) if name else None
        cells = [percent(share) for share in self.predicted.shares(worst)]
        if self.measured is not None:
            for column, share in enumerate(self.measured.shares(worst)):
                cells[column] += "" if share is None else f" ({percent(share)})"
        return (*head, *cells, "useless" if self.useless else f"{self.fleet:,}")

    def data(self) -> dict[str, object]:
        """Return everything as plain values for JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)} | {
            "hidden_offset": self.hidden_offset,
            "privacy": self.privacy,
            "predicted": None if self.predicted is None else self.predicted.data(),
            "measured": None if self.measured is None else self.measured.data(),
        }


def percent(share: float | None) -> str:
    """Write a share in percent, rounded up; infinite is what there is no room for."""
    if share is None or share == math.inf:
        return "-" if share is None else "no room"
    return f"{up(100 * share, 2 if share < 10 else 3)}%"


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Advice:
    """What promises cost on a problem, and which of them to take.

    Attributes:
        feasible: the probability with which feasibility is priced.
        accuracy: the error, as a share, that is good enough.
        rows: one per promise, by what is hidden and then by epsilon.
        recommended: the promise to take; None if none is worth anything.
        interrupted: whether it was stopped before the last row.
    """

    agents: int
    feasible: float
    accuracy: float
    rows: tuple[AdviceRow, ...]
    recommended: AdviceRow | None
    interrupted: bool = False

    @property
    def line(self) -> str:
        """The recommended line for the top of ``problem.toml``; empty if there is none."""
        return "" if self.recommended is None else self.recommended.privacy

    @property
    def words(self) -> str:
        """The recommendation in words."""
        if self.recommended is None:
            return (
                "None of these promises leaves an answer that is worth anything: hide less, allow "
                "a larger epsilon, or bring more agents under the same promise."
            )
        best, allowed = self.recommended, percent(self.accuracy)
        text = f"Hide {_KIND_STYLES[best.hide][0]} with epsilon {up(best.epsilon, 3)}: "
        if best.no_margin:
            return f"{text}worth something, but without room for margins that keep constraints."
        text += f"keeping all constraints costs {percent(best.cost)}, " + (
            f"within the {allowed} that you allow."
            if best.cost <= self.accuracy
            else f"the cheapest of these, and more than the {allowed} wanted; from {best.fleet:,} "
            "agents of this kind on it would be less than 1%."
        )
        if best.hide == "trajectory" and best.hidden_offset is not None:
            text += (
                f" It hides little: of a state that stays where it is, an offset of "
                f"{down(best.hidden_offset, 2)}."
            )
        return text

    def table(self) -> PlainTable:
        """All promises, one per line; measured figures in brackets."""
        over = {"trajectory": "in all rounds together", "offset": "in every round"}
        radius = {row.hide: row.radius for row in self.rows if row.radius is not None}
        return PlainTable(
            title=f"What promises cost; feasibility at {percent(self.feasible)}",
            columns=(
                "hidden", "epsilon", "rounds", "worst noise", "over limit", "margin costs",
                "error of x", "error of f", "1% from",
            ),
            rows=tuple(row.cells(chosen=row is self.recommended) for row in self.rows),
            notes=(
                *(f"{kind}: a change of {down(r, 3)} {over[kind]}" for kind, r in radius.items()),
                *_NOTES,
                *(
                    f"refused ({row.hide}, epsilon {up(row.epsilon, 3)}): {cut(row.refused)}"
                    for row in self.rows
                    if row.refused
                ),
            ),
        )  # fmt: skip

    def constraints(self) -> PlainTable:
        """The noise of every constraint in percent of its scale, for what is recommended."""
        kind = self.rows[0].hide if self.recommended is None else self.recommended.hide
        rows = [(r.epsilon, r.predicted) for r in self.rows if r.hide == kind and r.predicted]
        names = rows[0][1].rows if rows else ()
        by_noise = sorted(range(len(names)), key=lambda j: -float(rows[0][1].noise[j]))
        order = by_noise[:_MOST_CONSTRAINTS]
        more = len(names) - len(order)
        return PlainTable(
            title=f"Noise of the answer in percent of each constraint's scale, hiding "
            f"{_KIND_STYLES[kind][0]}",
            columns=("constraint", *(f"epsilon {up(epsilon, 3)}" for epsilon, _ in rows)),
            rows=tuple(
                (cut(names[j], 24), *(percent(float(p.noise[j])) for _, p in rows)) for j in order
            ),
            notes=(f"... and {more:,} more",) if more else (),
        )

    def data(self) -> dict[str, object]:
        """Return everything as plain values for JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)} | {
            "recommended": self.line or None,
            "words": self.words,
            "rows": [row.data() for row in self.rows],
        }

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw two panels over epsilon: what keeping the limits costs, and how sure they are."""
        from matplotlib.figure import Figure

        from sottovoce.simulation.summary import draw

        figure = Figure(figsize=(11.0, 5.2), layout="constrained")
        left, right = figure.subplots(1, 2, sharex=True)
        # Useless answers are left out, whatever they cost.
        _draw_panel(left, self, lambda row: math.inf if row.useless else row.cost)
        left.set(title="What keeping every limit costs", ylabel="extra cost, % of the objective")
        left.axhspan(_LEAST_DRAWN_SHARE / 10, 0.01, color="#2e7d32", alpha=0.08)
        _draw_panel(right, self, lambda row: row.worst_noise)
        right.set(title="How far a limit may be missed (standard deviation)",
                  ylabel="noise, % of the limit")  # fmt: skip
        right.axhline(1.0, color="#b71c1c", linewidth=1.0, linestyle="--")
        for axes, height, text, side, colour in (
            (left, 0.01, "less than 1%", "top", "#2e7d32"),
            (right, 1.0, "above: the answer is useless", "bottom", "#b71c1c"),
        ):
            axes.text(0.02, height, text, transform=axes.get_yaxis_transform(), va=side,
                      color=colour, fontsize=9)  # fmt: skip
            axes.set_ylim(bottom=max(axes.get_ylim()[0], _LEAST_DRAWN_SHARE))
        entries = left.get_legend_handles_labels()
        figure.legend(*entries, loc="outside lower center", ncols=4, frameon=False)
        figure.suptitle(fill(f"{self.agents:,} agents. {self.words}", 120), fontsize=11)
        draw(figure, path)

    def __str__(self) -> str:
        parts = [str(self.table()), str(self.constraints()), self.words]
        return "\n\n".join(parts + ([self.line] if self.line else []))

    def _repr_html_(self) -> str:
        end = PlainTable(title=self.words, rows=((self.line,),) if self.line else ())
        return "".join(t._repr_html_() for t in (self.table(), self.constraints(), end))

    def __repr__(self) -> str:
        return f"Advice(rows={len(self.rows)}, recommended={self.line!r})"


def _draw_panel(axes: Axes, advice: Advice, value: Callable[[AdviceRow], float]) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    for kind, (_, colour, label) in _KIND_STYLES.items():
        rows = [r for r in advice.rows if r.hide == kind and r.predicted is not None]
        finite = [row for row in rows if math.isfinite(value(row))]
        shares = [max(value(row), _LEAST_DRAWN_SHARE) for row in finite]
        if rows:
            axes.plot([row.epsilon for row in finite], shares, marker="o", color=colour,
                      label=label.format(rows[0].radius))  # fmt: skip
    best = advice.recommended
    if best is not None and math.isfinite(value(best)):
        axes.plot([best.epsilon], [max(value(best), _LEAST_DRAWN_SHARE)], marker="*", markersize=20,
                  color=_KIND_STYLES[best.hide][1], markeredgecolor="black", linestyle="none",
                  label="recommended")  # fmt: skip
    epsilons = sorted({row.epsilon for row in advice.rows})
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel(
        r"$\leftarrow$ stronger privacy          $\varepsilon$          weaker $\rightarrow$"
    )
    axes.set_xticks(epsilons, [up(loss, 3) for loss in epsilons])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
    axes.grid(visible=True, alpha=0.25)


def advise(
    problem: Problem,
    *,
    hide: str | Sequence[str] | None = None,
    radius: float | None = None,
    epsilons: Sequence[float] = EPSILONS,
    delta: float | None = None,
    rounds: int | None = None,
    accuracy: float = 0.01,
    feasible: float = FEASIBLE,
    simulate: bool = False,
    runs: int = 64,
    seed: int = 0,
    progress: bool | Progress | None = None,
    executor: object = None,
) -> Advice:
    """Return what promises cost on a problem, and which of them to take.

    For every epsilon and adjacency: the noise of every constraint at the answer, the probability
    that one is violated, what keeping all of them costs, the errors of x and of the objective, the
    rounds to ask for, and the size of the fleet for which the promise costs less than 1%.
    Predictions are those of the asymptotic limit (``study.prediction``).

    Args:
        problem: what to solve, with its objectives: advice is for those who may see everything.
        hide: "trajectory", "offset", "everything" or some of them; all by default.
        radius: b, how much is hidden of a trajectory or an offset; by default the problem's
            ``[privacy]``, or else 5% of the typical box.
        epsilons: privacy losses.
        delta: the failure probability; by default the problem's, or else at most a tenth of one
            over the number of agents.
        rounds: T for all rows; by default what suits each.
        accuracy: the error, as a share, that is good enough: of a trajectory's rounds, and of the
            recommendation's cost.
        feasible: the probability with which all constraints shall be kept.
        simulate: whether to measure every row in simulated runs beside the prediction.
        runs: how many of them.
        seed: as for ``sv.simulate``.
        progress: likewise.
        executor: likewise. Ctrl-C keeps the first rows that are done.
    """
    instance("problem", problem, Problem, "sv.Problem(...)")
    tasks = _list_promises(hide, epsilons)
    radius, delta = _radius_and_delta(problem, radius, delta)
    rounds = None if rounds is None else whole("rounds", rounds, least=1)
    for name, share in (("accuracy", accuracy), ("feasible", feasible)):
        real(name, share, "between 0 and 1", _is_share)
    runs, seed = whole("runs", runs, least=2), whole("seed", seed)
    pool = None if executor is None else executor_of(executor)
    with watched(progress) as report:
        certificate = certify(problem, progress=report)
        certificate.require()
        saddle = known_saddle(problem)
        study = AdviceStudy(
            problem=problem, certificate=certificate, radius=radius, delta=delta, rounds=rounds,
            accuracy=accuracy, feasible=feasible, runs=runs if simulate else 0, seed=seed,
            response=None if saddle is None else linear_response(problem, saddle),
        )  # fmt: skip
        rows: list[AdviceRow] = []
        if pool is not None:
            rows, _ = scatter(pool, advise_row, study, tasks, report=report, activity="planning")
        else:
            for index, task in enumerate(tasks):
                report("planning", index / len(tasks))
                rows.append(advise_row(study, task))
    return Advice(
        agents=problem.agents,
        feasible=feasible,
        accuracy=accuracy,
        rows=tuple(rows),
        recommended=_recommend(rows, accuracy),
        interrupted=len(rows) < len(tasks),
    )


def _radius_and_delta(
    problem: Problem, radius: float | None, delta: float | None
) -> tuple[float, float]:
    """The arguments, or else the problem's, or else what suits its boxes and number of agents."""
    width = problem.cloud.upper() - problem.cloud.lower()
    typical_width = float(np.median(width[width > 0.0])) if np.any(width > 0.0) else 1.0
    default_delta = float(10.0 ** -math.ceil(math.log10(10 * problem.agents)))
    defaults = {"radius": float(f"{_RADIUS_SHARE * typical_width:.2g}"), "delta": default_delta}
    stated: dict[str, object] = {}
    for name, value in (("radius", radius), ("delta", delta)):
        number = stated_number(problem, name, value)
        if isinstance(number, list) and len(set(number)) != 1:
            raise InputError(
                f"{name} must be one number for all agents, got {len(number)} numbers: give one"
            )
        one = number[0] if isinstance(number, list) else number
        stated[name] = defaults[name] if one is None else one
    return (
        real("radius", stated["radius"], "positive", _is_positive),
        real("delta", stated["delta"], "in (0, 1)", _is_share),
    )


def _is_positive(value: float) -> bool:
    return 0 < value < math.inf


def _is_share(value: float) -> bool:
    return 0 < value < 1


def _list_promises(hide: object, epsilons: object) -> list[tuple[Kind, float]]:
    """What is hidden with which epsilon, row by row."""
    kinds = list(_KIND_STYLES) if hide is None else [hide] if isinstance(hide, str) else hide
    names = entries("hide", kinds, "trajectory, offset, everything or a list of them")
    losses = [
        real("epsilons", e, "positive numbers", _is_positive)
        for e in entries("epsilons", epsilons, "a list of numbers")
    ]
    return [(kind_of(name), loss) for name in names for loss in losses]


def _recommend(rows: Sequence[AdviceRow], accuracy: float) -> AdviceRow | None:
    """The strongest promise within ``accuracy``; else the cheapest with a useful answer.

    Where there is no room to keep the constraints, the noise decides.
    """
    useful = [row for row in rows if not row.useless]
    for kind in reversed(_KIND_STYLES):
        cheap = [row for row in useful if row.hide == kind and row.cost <= accuracy]
        if cheap:
            return min(cheap, key=lambda row: row.epsilon)
    return min(useful, key=lambda row: (row.cost, row.worst_noise), default=None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AdviceStudy:
    """What all rows share: the arguments of ``advise``, and what is known of the problem."""

    problem: Problem
    certificate: Certificate
    response: Response | None
    radius: float
    delta: float
    rounds: int | None
    accuracy: float
    feasible: float
    runs: int  # simulated per row; 0 for none
    seed: int

    def plan(self, row: AdviceRow, feasible: float | None = None) -> NoisePlan:
        """Return the plan of a promise; hard constraints have none without margins."""
        if any(family.hard for family in self.problem.constraints):
            feasible = self.feasible
        return plan(
            self.certificate.for_study(),
            epsilon=row.epsilon,
            delta=row.delta,
            hide=adjacency_of(row.hide, radius=row.radius, rounds=row.rounds),
            feasible=feasible,
            progress=False,
        )


def advise_row(study: AdviceStudy, task: tuple[Kind, float]) -> AdviceRow:
    """Plan a promise and predict its cost; simulate it, in rounds that suffice, if asked for."""
    row = _plan_row(study, *task, study.rounds)
    if study.runs:
        row = _simulate_row(study, row)
        while study.rounds is None and not _has_converged(row, study.accuracy):
            row = _simulate_row(study, _plan_row(study, *task, 2 * row.rounds))
    return row


def _plan_row(study: AdviceStudy, kind: Kind, epsilon: float, rounds: int | None) -> AdviceRow:
    """One promise with what to expect of it, by default in as many rounds as suit it."""
    row = AdviceRow(
        hide=kind,
        radius=None if kind == Everything.kind else study.radius,
        epsilon=epsilon,
        delta=study.delta,
        rounds=rounds or FEWEST_ROUNDS,
        feasible=study.feasible,
    )
    try:
        plan = study.plan(row)
        predicted = predict(study.response, plan, plan.rounds, feasible=study.feasible)
        if rounds is None:
            # One number of rounds serves for all: only averaged noise counts, and how it scales.
            error = max(predicted.cost, predicted.x or 0.0)
            rounds = rounds_for(kind, predicted.worst[1], error, row.rounds, study.accuracy)
            if rounds != row.rounds:
                return _plan_row(study, kind, epsilon, rounds)
    except PrivacyError as refusal:
        return replace(row, refused=str(refusal))
    noisy, no_margin = plan.released_sigma[plan.sigma > 0], None
    if not predicted.useless:
        try:
            margins = study.plan(row, feasible=study.feasible).feasible
            if study.response is not None and margins is not None and margins.cost is not None:
                cost = margins.cost.more / study.response.size
                predicted = replace(predicted, feasibility_cost=cost)
        except PrivacyError as refusal:
            no_margin = str(refusal)
    # So many agents of this kind pay 1% for what costs these a share.
    fleet = max(1, math.ceil(study.problem.agents * predicted.cost / 0.01))
    if no_margin:
        predicted = replace(predicted, feasibility_cost=math.inf)
    return replace(
        row,
        predicted=predicted,
        sigma=(float(noisy.min(initial=np.inf)), float(noisy.max(initial=0.0))),
        fleet=fleet,
        no_margin=no_margin,
    )


def _simulate_row(study: AdviceStudy, row: AdviceRow) -> AdviceRow:
    """The promise with what simulated runs measured; without it where that would take too long."""
    problem, response, runs = study.problem, study.response, study.runs
    if response is None or row.predicted is None or runs * row.rounds * problem.size > _MOST_STEPS:
        return row
    bare = replace(study.plan(row), feasible=None)  # without margins, as was predicted
    result = simulate_runs(
        problem, bare, rounds=row.rounds, runs=runs, seed=study.seed, record=[row.rounds],
        progress=False,
    )  # fmt: skip
    x = result.x[result.failed == 0]
    return replace(row, measured=measured_prediction(response, x, row.rounds)) if x.size else row


def _has_converged(row: AdviceRow, accuracy: float) -> bool:
    """Whether measured errors are near the predicted ones, or small, or more rounds no help."""
    predicted, measured = row.predicted, row.measured
    if predicted is None or measured is None or predicted.useless:
        return True
    if row.hide == Trajectory.kind or row.rounds > _MOST_ROUNDS:
        return True
    acceptable = np.maximum(_CONVERGED_RATIO * predicted.noise, 0.5 * accuracy)
    return bool(np.all(measured.noise <= acceptable))
