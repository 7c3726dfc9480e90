"""What a privacy budget buys, before anything is run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from sottovoce.arguments import entries, instance, whole
from sottovoce.certify.certificate import Certificate, certify
from sottovoce.certify.saddle import SaddlePoint, saddle_point
from sottovoce.engine.scatter import executor_of, scatter
from sottovoce.privacy.hide import Everything, Trajectory, hide_of, radii
from sottovoce.privacy.limit import limit
from sottovoce.privacy.plan import NoisePlan, plan
from sottovoce.problem.problem import Problem
from sottovoce.progress import Progress, watched


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeoffRow:
    """One epsilon and number of rounds.

    Attributes:
        epsilon: the privacy loss.
        rounds: T.
        sigma_least: the smallest standard deviation of the noise.
        sigma_most: the largest.
        hidden_offset: the constant offset of a state that stays hidden over all T rounds; None if
            everything is hidden, whatever its size.
        x: root-mean-square error of x to expect at best, flat directions apart.
        price: the same for prices.
    """

    epsilon: float
    rounds: int
    sigma_least: float
    sigma_most: float
    hidden_offset: float | None
    x: float
    price: float


def tradeoff(
    problem: Problem,
    *,
    epsilons: Sequence[float],
    rounds: Sequence[int],
    delta: float,
    radius: Any,
    hide: str,
    progress: bool | Progress | None = None,
    executor: Executor | Any = None,
) -> list[TradeoffRow]:
    """Return noise, hidden offset and the statistical limit for every epsilon and every T.

    The accuracy is ``sqrt(trace(J^-1 Sigma J^-T / T))``, what T releases allow at best.

    Args:
        problem: what to solve.
        epsilons: privacy losses.
        rounds: numbers of rounds T.
        delta: the failure probability.
        radius: b, how much is hidden; None to hide everything.
        hide: what is hidden: trajectory, offset or everything.
        progress: whether to show what is being done once it has taken two seconds, by default on a
            terminal; or somebody to tell.
        executor: where to plan, a ``concurrent.futures.Executor`` or a Dask client; rows do not
            depend on it. Ctrl-C keeps the first rows that are done.
    """
    instance("problem", problem, Problem, "sv.Problem(...)")
    epsilons = entries("epsilons", epsilons, "a list of numbers")
    rounds = [
        whole("rounds", count, least=1)
        for count in entries("rounds", rounds, "a list of whole numbers")
    ]
    pool = None if executor is None else executor_of(executor)
    with watched(progress) as tell:
        shared = _Shared(
            problem=problem,
            certificate=certify(problem, progress=tell),
            saddle=saddle_point(problem),
            asked={"delta": delta, "radius": radius, "hide": hide},
        )
        tasks = [(epsilon, count) for epsilon in epsilons for count in rounds]
        if pool is not None:
            return scatter(pool, _row, shared, tasks, tell=tell, doing="planning").answers
        rows = []
        for done, task in enumerate(tasks):
            tell("planning", done / len(tasks))
            rows.append(_row(shared, task))
        return rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Shared:
    """What all rows need."""

    problem: Problem
    certificate: Certificate
    saddle: SaddlePoint
    asked: Mapping[str, Any]


def _row(shared: _Shared, task: tuple[float, int]) -> TradeoffRow:
    epsilon, count = task
    asked = shared.asked
    made = plan(
        shared.certificate,
        epsilon=epsilon,
        delta=asked["delta"],
        hide=hide_of(asked["hide"], radius=asked["radius"], rounds=count),
        progress=False,
    )
    least = limit(shared.problem, made, count, saddle=shared.saddle)
    noisy = made.sigma[made.sigma > 0]
    return TradeoffRow(
        epsilon=epsilon,
        rounds=count,
        sigma_least=float(noisy.min()),
        sigma_most=float(noisy.max()),
        hidden_offset=_hidden_offset(made),
        x=least.x,
        price=least.price,
    )


def _hidden_offset(made: NoisePlan) -> float | None:
    """The least constant offset over all rounds that is hidden of any agent."""
    if isinstance(made.hide, Everything):
        return None
    least = float(radii(made.hide, made.cloud.agents).min())
    return least / math.sqrt(made.rounds) if isinstance(made.hide, Trajectory) else least
