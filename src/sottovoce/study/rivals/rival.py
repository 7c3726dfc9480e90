"""The interface of a rival method: its task, and the runs that it offers.

All methods get one problem, one promise (epsilon, delta, what is hidden), T rounds and the same
streams of normals. A method runs with the noise that its own theorem asks for, and with the joint
plan's where that is less anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from sottovoce.algorithm.algorithm import Algorithm, GradientSteps
from sottovoce.certificate.certificate import Certificate
from sottovoce.certificate.contributions import sum_ranges
from sottovoce.certificate.optimum import ReferenceOptimum, saddle_prices
from sottovoce.privacy.adjacency import Everything, radii
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.groups import Array
from sottovoce.problem.problem import Problem
from sottovoce.progress import Progress
from sottovoce.simulation.simulate import simulate

PUBLISHED, PAPER, OWN, JOINT = "published", "paper's method, certified", "own theorem", "joint"
NOISES = (PUBLISHED, PAPER, OWN, JOINT)  # whose noise a row has, in the order of the table


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RivalTask:
    """The task of every method: problem, promise, rounds, runs."""

    problem: Problem
    certificate: Certificate
    plan: NoisePlan  # the joint plan of the promise, for noisy sums
    planner: Callable[..., NoisePlan]  # the promise's plan by a method's name, as ``Promise.plan``
    saddle: ReferenceOptimum
    rounds: int  # T
    runs: int  # independent runs, from ``seed``
    seed: int
    executor: object

    @property
    def strictest(self) -> tuple[float, float]:
        """The least epsilon and delta of any agent."""
        return float(self.plan.epsilon.min()), float(self.plan.delta.min())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answers:
    """Where all runs ended: states (runs, N) and prices (runs, p), and rounds that failed, or 0."""

    x: Array
    price: Array
    last_x: Array
    last_price: Array
    failed: Array
    interrupted: bool = False
    note: str = ""  # what was chosen on the way, for the label


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RivalRun:
    """One method with one noise."""

    noise: str  # whose, one of ``NOISES``
    label: str  # the method
    plan: NoisePlan | None  # the released numbers and their noise; None if they are of another kind
    multipliers: bool = False  # whether prices are multipliers of stated constraints, not of sums
    answers: Callable[[Progress], Answers]  # carries all runs out


class RefusedMethod(NamedTuple):
    """A plan that does not exist for this problem, or a method that cannot run it, and why."""

    plan: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A method by its name on the command line; ``runs`` refuses by errors or as items."""

    name: str
    label: str
    cites: str  # the key of its source in ``references.bib``; empty without one
    side_information: str = ""  # what it knows that no user does, as words
    runs: Callable[[RivalTask], Iterator[RivalRun | RefusedMethod]]


def root_mean_square(errors: Array) -> float:
    """Return ``sqrt(mean_r |e_r|^2)`` of one error vector per run; NaN without any run."""
    squares = np.sum(np.square(errors), axis=1)
    return math.sqrt(float(np.mean(squares))) if squares.size else math.nan


def algorithm_run(
    task: RivalTask, noise: str, label: str, plan: NoisePlan, algorithm: Algorithm
) -> RivalRun:
    """Return the simulation of an algorithm under a plan."""
    return RivalRun(
        noise=noise, label=label, plan=plan, multipliers=isinstance(algorithm, GradientSteps),
        answers=partial(simulated, task, plan, algorithm),
    )  # fmt: skip


def simulated(
    task: RivalTask, plan: NoisePlan, algorithm: Algorithm, progress: Progress
) -> Answers:
    """Simulate all runs of an algorithm."""
    steps = isinstance(algorithm, GradientSteps)
    hat = task.saddle.mu if steps else saddle_prices(task.problem, task.saddle)
    result = simulate(
        task.problem, plan, rounds=task.rounds, runs=task.runs, seed=task.seed,
        algorithm=algorithm, saddle=(task.saddle.x, hat), record=[task.rounds], progress=progress,
        executor=task.executor,
    )  # fmt: skip
    return Answers(
        x=result.x, price=result.price, last_x=result.last_x, last_price=result.last_price,
        failed=np.asarray(result.failed), interrupted=result.interrupted,
    )  # fmt: skip


def with_sigma(plan: NoisePlan, sigma: Array) -> NoisePlan:
    """Return a plan with other standard deviations, for a study: it states no promise."""
    pairs = zip(plan.outputs, sigma.tolist(), strict=True)
    return replace(plan, outputs=tuple(replace(o, sigma=s) for o, s in pairs), certified=False)


class Change(NamedTuple):
    """How far adjacent behaviours of one agent move the sums within one round."""

    unit: Array  # the most that any agent moves each sum; 1 where none does
    size: float  # the l2 norm of all sums in these units, for the agent with the largest
    width: Array  # the width of each sum's range, in these units


def change_per_round(task: RivalTask) -> Change:
    """Return certified bounds: by the radius, or by what is public if everything is hidden."""
    plan, certificate = task.plan, task.certificate
    S, reach = certificate.contributions.spread, np.ones(plan.cloud.agents)
    if not isinstance(plan.hide, Everything):
        S, reach = certificate.sensitivity, radii(plan.hide, plan.cloud.agents)
    largest = S.largest() * float(reach.max())
    unit = np.where(largest > 0.0, largest, 1.0)
    low, high = np.array(sum_ranges(plan.cloud.sums, plan.domain)).T
    size = float(np.max(reach * np.sqrt(S.together(np.square(1.0 / unit)))))
    return Change(unit=unit, size=size, width=(high - low) / unit)
