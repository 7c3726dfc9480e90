"""One promise of an advice: planned, predicted, its margins priced, and simulated if asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import final

import numpy as np

from sottovoce.certificate.certificate import Certificate
from sottovoce.errors import PrivacyError
from sottovoce.privacy.adjacency import Everything, Kind, Trajectory, adjacency_of
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.plan import plan
from sottovoce.privacy.statement import up
from sottovoce.problem.problem import Problem
from sottovoce.simulation.simulate import simulate
from sottovoce.study.prediction import (
    FEASIBLE,
    FEWEST_ROUNDS,
    Prediction,
    Response,
    measured_prediction,
    predict,
    rounds_for,
)

_CONVERGED_RATIO = 1.25  # of a measured error to its prediction, up to which rounds suffice
_MOST_ROUNDS = 4_000  # after which no more are tried
_MOST_STEPS = 10**10  # runs x rounds x states up to which a row is simulated


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

    def fleet(self, cost: float) -> int:
        """Return how many agents of this kind pay 1% for what costs these a share of ``cost``."""
        return max(1, math.ceil(self.problem.agents * cost / 0.01))


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
                row = replace(row, rounds=rounds)
                plan = study.plan(row)
                predicted = predict(study.response, plan, plan.rounds, feasible=study.feasible)
    except PrivacyError as refusal:
        return replace(row, refused=str(refusal))
    noisy = plan.released_sigma[plan.sigma > 0]
    row = replace(
        row,
        predicted=predicted,
        sigma=(float(noisy.min(initial=np.inf)), float(noisy.max(initial=0.0))),
        fleet=study.fleet(predicted.cost),
    )
    return row if predicted.useless else _price_margins(study, row, predicted)


def _price_margins(study: AdviceStudy, row: AdviceRow, predicted: Prediction) -> AdviceRow:
    """The promise with what its margins really cost, or why there is no room for them."""
    try:
        margins = study.plan(row, feasible=study.feasible).feasible
    except PrivacyError as refusal:
        predicted = replace(predicted, feasibility_cost=math.inf)
        return replace(row, predicted=predicted, no_margin=str(refusal))
    if study.response is None or margins is None or margins.cost is None:
        return row
    cost = margins.cost.more / study.response.size
    predicted = replace(predicted, feasibility_cost=cost)
    return replace(row, predicted=predicted, fleet=study.fleet(cost))


def _simulate_row(study: AdviceStudy, row: AdviceRow) -> AdviceRow:
    """The promise with what simulated runs measured; without it where that would take too long."""
    problem, response, runs = study.problem, study.response, study.runs
    if response is None or row.predicted is None or runs * row.rounds * problem.size > _MOST_STEPS:
        return row
    bare = replace(study.plan(row), feasible=None)  # without margins, as was predicted
    result = simulate(
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
