"""What a privacy budget buys, before anything is run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sottovoce.arguments import entries, instance, whole
from sottovoce.certify.certificate import certify
from sottovoce.certify.saddle import saddle_point
from sottovoce.privacy.hide import Everything, Trajectory, hide_of, radii
from sottovoce.privacy.limit import limit
from sottovoce.privacy.plan import NoisePlan, plan
from sottovoce.problem.problem import Problem


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
) -> list[TradeoffRow]:
    """Return noise, hidden offset and the statistical limit for every epsilon and every T.

    The accuracy is ``sqrt(trace(J^-1 Sigma J^-T / T))``, what T releases allow at best.
    """
    instance("problem", problem, Problem, "sv.Problem(...)")
    epsilons = entries("epsilons", epsilons, "a list of numbers")
    rounds = [
        whole("rounds", count, least=1)
        for count in entries("rounds", rounds, "a list of whole numbers")
    ]
    certificate = certify(problem)
    saddle = saddle_point(problem)
    rows = []
    for epsilon in epsilons:
        for count in rounds:
            made = plan(
                certificate,
                epsilon=epsilon,
                delta=delta,
                hide=hide_of(hide, radius=radius, rounds=count),
            )
            least = limit(problem, made, count, saddle=saddle)
            noisy = made.sigma[made.sigma > 0]
            rows.append(
                TradeoffRow(
                    epsilon=epsilon,
                    rounds=count,
                    sigma_least=float(noisy.min()),
                    sigma_most=float(noisy.max()),
                    hidden_offset=_hidden_offset(made),
                    x=least.x,
                    price=least.price,
                )
            )
    return rows


def _hidden_offset(made: NoisePlan) -> float | None:
    """The least constant offset over all rounds that is hidden of any agent."""
    if isinstance(made.hide, Everything):
        return None
    least = float(radii(made.hide, made.cloud.agents).min())
    return least / math.sqrt(made.rounds) if isinstance(made.hide, Trajectory) else least
