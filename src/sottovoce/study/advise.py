"""What to hide, how well, and in how many rounds: advice before anything is run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from sottovoce.arguments import entries, instance, real, whole
from sottovoce.certificate.certificate import Certificate, certify
from sottovoce.certificate.contributions import row_scales
from sottovoce.certificate.optimum import ReferenceOptimum, known_saddle
from sottovoce.errors import InputError, PrivacyError
from sottovoce.privacy.adjacency import Everything, Kind, Trajectory, adjacency_of, kind_of, radii
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.plan import plan
from sottovoce.problem.agents import Array
from sottovoce.problem.constraints import equalities
from sottovoce.problem.numeric import Numeric
from sottovoce.problem.problem import Problem
from sottovoce.progress import Progress, watched
from sottovoce.simulation.scatter import executor_of, scatter
from sottovoce.simulation.simulate import simulate
from sottovoce.study.advice import Advice, AdviceRow
from sottovoce.study.prediction import (
    FEASIBLE,
    FEWEST,
    Prediction,
    Response,
    predict,
    predict_publicly,
    response,
    rounds_for,
)
from sottovoce.study.promise import promised

EPSILONS = (0.1, 0.3, 1.0, 3.0)
_STRONGEST: tuple[Kind, ...] = ("everything", "offset", "trajectory")
_RADIUS = 0.05  # of the boxes' width, where no radius is stated
_NEAR = 1.25  # times the prediction: how far a measured error may be off when rounds suffice
_LONGEST = 4_000  # rounds after which no more are tried
_WORK = 10**10  # runs x rounds x states up to which a row is simulated


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

    The noise of every constraint at the answer, the probability that one is violated, what keeping
    all of them costs, the errors of x and of the objective, the rounds to ask for, and the size of
    the fleet for which the promise costs less than 1%; for every epsilon and every thing to hide.
    Predictions are those of the statistical limit (``study.prediction``).

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
        seed: any integer that is not negative.
        progress: whether to show progress once it has taken two seconds, by default on a terminal;
            or a callback.
        executor: where to work, a ``concurrent.futures.Executor`` or a Dask client; rows do not
            depend on it. Ctrl-C keeps the first rows that are done.
    """
    instance("problem", problem, Problem, "sv.Problem(...)")
    share = "between 0 and 1"
    losses = [
        real("epsilons", e, "positive numbers", lambda v: 0 < v < math.inf)
        for e in entries("epsilons", epsilons, "a list of numbers")
    ]
    settings: dict[str, Any] = {
        "delta": _delta(problem, delta),
        "radius": _radius(problem, radius),
        "rounds": None if rounds is None else whole("rounds", rounds, least=1),
        "accuracy": real("accuracy", accuracy, share, lambda v: 0 < v < 1),
        "feasible": real("feasible", feasible, share, lambda v: 0 < v < 1),
        "runs": whole("runs", runs, least=2) if simulate else 0,
        "seed": whole("seed", seed),
    }
    tasks = [(kind, loss) for kind in _kinds(hide) for loss in losses]
    pool = None if executor is None else executor_of(executor)
    with watched(progress) as tell:
        certificate = certify(problem, progress=tell)
        certificate.require()
        saddle = known_saddle(problem)
        known = None if saddle is None else response(problem, saddle)
        study = _Study(
            problem=problem, certificate=certificate, saddle=saddle, known=known, **settings
        )
        rows: list[AdviceRow] = []
        if pool is not None:
            rows = scatter(pool, _row, study, tasks, tell=tell, doing="planning").answers
        else:
            for done, task in enumerate(tasks):
                tell("planning", done / len(tasks))
                rows.append(_row(study, task))
    return Advice(
        agents=problem.agents,
        feasible=study.feasible,
        accuracy=study.accuracy,
        rows=tuple(rows),
        recommended=_recommended(rows, study.accuracy),
        interrupted=len(rows) < len(tasks),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Study:
    """What all rows share; ``runs`` is 0 where nothing is simulated."""

    problem: Problem
    certificate: Certificate
    saddle: ReferenceOptimum | None
    known: Response | None
    delta: float
    radius: float
    rounds: int | None
    accuracy: float
    feasible: float
    runs: int
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

    def predict(self, plan: NoisePlan) -> Prediction:
        """Return what to expect of a plan."""
        if self.known is None:
            return predict_publicly(plan, plan.rounds)
        return predict(self.known, plan, plan.rounds, feasible=self.feasible)

    def fleet(self, cost: float) -> int:
        """Return how many agents of this kind pay 1% for what costs these a share of ``cost``."""
        return max(1, math.ceil(self.problem.agents * cost / 0.01))


def _row(study: _Study, task: tuple[Kind, float]) -> AdviceRow:
    row = _promise(study, task, study.rounds)
    if study.runs:
        row = _simulated(study, row)
        while study.rounds is None and not _settled(row, study.accuracy):
            row = _simulated(study, _promise(study, task, 2 * row.rounds))
    return row


def _promise(study: _Study, task: tuple[Kind, float], rounds: int | None) -> AdviceRow:
    """One promise with what to expect of it, by default in as many rounds as suit it."""
    kind, epsilon = task
    row = AdviceRow(
        hide=kind,
        radius=None if kind == Everything.kind else study.radius,
        epsilon=epsilon,
        delta=study.delta,
        rounds=rounds or FEWEST,
        feasible=study.feasible,
    )
    try:
        plan = study.plan(row)
        predicted = study.predict(plan)
        suits = rounds
        if suits is None:
            # One number of rounds serves for all: only averaged noise counts, and how it scales.
            error = max(predicted.cost, predicted.x or 0.0)
            suits = rounds_for(kind, predicted.worst[1], error, row.rounds, study.accuracy)
        if suits != row.rounds:
            row = replace(row, rounds=suits)
            plan = study.plan(row)
            predicted = study.predict(plan)
    except PrivacyError as refusal:
        return replace(row, refused=str(refusal))
    noisy = plan.released_sigma[plan.sigma > 0]
    row = replace(
        row,
        predicted=predicted,
        sigma=(float(noisy.min(initial=np.inf)), float(noisy.max(initial=0.0))),
        hidden_offset=_hidden_offset(plan),
        fleet=study.fleet(predicted.cost),
    )
    return row if predicted.useless else _with_margins(study, row, predicted)


def _with_margins(study: _Study, row: AdviceRow, predicted: Prediction) -> AdviceRow:
    """The promise with what its margins really cost, or why there is no room for them."""
    try:
        kept = study.plan(row, feasible=study.feasible).feasible
    except PrivacyError as refusal:
        lost = replace(predicted, feasibility_cost=math.inf)
        return replace(row, predicted=lost, unkept=str(refusal))
    if study.known is None or kept is None or kept.cost is None:
        return row
    share = kept.cost.more / (abs(study.known.best) or 1.0)
    return replace(
        row, predicted=replace(predicted, feasibility_cost=share), fleet=study.fleet(share)
    )


def _simulated(study: _Study, row: AdviceRow) -> AdviceRow:
    """The promise with what simulated runs measured; without it where that would take too long."""
    problem, saddle = study.problem, study.saddle
    work = study.runs * row.rounds * problem.size
    if saddle is None or study.known is None or row.predicted is None or work > _WORK:
        return row
    bare = replace(study.plan(row), feasible=None)  # if nothing is done about violations
    result = simulate(
        problem, bare, rounds=row.rounds, runs=study.runs, seed=study.seed, record=[row.rounds],
        progress=False,
    )  # fmt: skip
    x = result.x[result.failed == 0]
    if not x.size:
        return replace(row, measured=None)
    return replace(row, measured=_measured(problem, saddle, study.known.flat, x, row.rounds))


def _measured(
    problem: Problem, saddle: ReferenceOptimum, flat: Sequence[int], x: Array, rounds: int
) -> Prediction:
    """The figures of a prediction from the answers of simulated runs, one per line of ``x``."""
    here, equality = Numeric(problem), equalities(problem.constraints)
    g = np.array([here.constraints(one) for one in x])
    f = np.array([here.objective(one) for one in x])
    best = here.constraints(saddle.x)
    width = problem.cloud.upper() - problem.cloud.lower()
    counted = width > 0.0
    counted[list(flat)] = False
    off = (x - saddle.x)[:, counted] / width[counted]
    violated = np.any(g[:, ~equality] > 0.0, axis=1)
    size = abs(saddle.objective) or 1.0
    return Prediction(
        rounds=rounds,
        rows=tuple(problem.cloud.row_labels()),
        noise=np.sqrt(np.mean(np.square(g - best), axis=0)) / row_scales(problem.cloud),
        violation=None if equality.all() else float(np.mean(violated)),
        x=float(np.sqrt(np.mean(np.square(off)))) if counted.any() else 0.0,
        objective=float(np.sqrt(np.mean(np.square(f - saddle.objective)))) / size,
    )


def _settled(row: AdviceRow, accuracy: float) -> bool:
    """Whether measured errors are near the predicted ones, or small, or more rounds no help."""
    predicted, measured = row.predicted, row.measured
    if predicted is None or measured is None or predicted.useless or row.rounds > _LONGEST:
        return True
    if row.hide == Trajectory.kind:
        return True
    return bool(np.all(measured.noise <= np.maximum(_NEAR * predicted.noise, 0.5 * accuracy)))


def _recommended(rows: Sequence[AdviceRow], accuracy: float) -> AdviceRow | None:
    """The strongest promise that costs little; else the cheapest that is worth something."""
    worth = [row for row in rows if row.predicted is not None and not row.predicted.useless]
    for kind in _STRONGEST:
        cheap = [row for row in worth if row.hide == kind and row.cost <= accuracy]
        if cheap:
            return min(cheap, key=lambda row: row.epsilon)
    return min(worth, key=_dear, default=None)


def _dear(row: AdviceRow) -> tuple[float, float]:
    """How dear a promise is; by its noise where there is no room to keep the constraints."""
    return row.cost, math.inf if row.predicted is None else row.predicted.worst[1]


def _hidden_offset(plan: NoisePlan) -> float | None:
    """The least constant offset over all rounds that is hidden of any agent."""
    if isinstance(plan.hide, Everything):
        return None
    least = float(radii(plan.hide, plan.cloud.agents).min())
    return least / math.sqrt(plan.rounds) if isinstance(plan.hide, Trajectory) else least


def _kinds(hide: str | Sequence[str] | None) -> list[Kind]:
    if hide is None:
        return list(get_args(Kind))
    return [kind_of(name) for name in ([hide] if isinstance(hide, str) else entries(
        "hide", hide, "trajectory, offset, everything or a list of them"
    ))]  # fmt: skip


def _delta(problem: Problem, value: float | None) -> float:
    delta = _one(problem, "delta", value)
    if delta is None:
        return float(10.0 ** -math.ceil(math.log10(10 * problem.agents)))
    return real("delta", delta, "in (0, 1)", lambda v: 0 < v < 1)


def _radius(problem: Problem, value: float | None) -> float:
    radius = _one(problem, "radius", value)
    if radius is None:
        width = problem.cloud.upper() - problem.cloud.lower()
        typical = float(np.median(width[width > 0.0])) if np.any(width > 0.0) else 1.0
        return float(f"{_RADIUS * typical:.2g}")
    return real("radius", radius, "positive", lambda v: 0 < v < math.inf)


def _one(problem: Problem, name: str, value: float | None) -> object:
    """One number for all agents."""
    stated = promised(problem, name, value)
    if not isinstance(stated, list):
        return stated
    if len(set(stated)) != 1:
        raise InputError(f"{name} must be one number for all agents, got {len(stated)} numbers")
    return stated[0]
