"""What a privacy budget buys, before anything is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sottovoce.arguments import entries, instance, whole
from sottovoce.certify.certificate import certify
from sottovoce.certify.saddle import saddle_point
from sottovoce.privacy.limit import limit
from sottovoce.privacy.plan import plan
from sottovoce.problem.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeoffRow:
    """One epsilon and number of rounds.

    Attributes:
        epsilon: the privacy loss.
        rounds: T.
        sigma_least: the smallest standard deviation of the noise.
        sigma_most: the largest.
        hidden_offset: the constant offset of a state that stays hidden over all T rounds.
        x: root-mean-square error of x to expect at best, flat directions apart.
        mu: the same for mu.
    """

    epsilon: float
    rounds: int
    sigma_least: float
    sigma_most: float
    hidden_offset: float
    x: float
    mu: float


def tradeoff(
    problem: Problem,
    *,
    epsilons: Sequence[float],
    rounds: Sequence[int],
    delta: float,
    radius: Any,
    adjacency: str,
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
                radius=radius,
                adjacency=adjacency,
                rounds=count,
            )
            least = limit(problem, made, count, saddle=saddle)
            reach = made.radius * (1.0 if adjacency == "trajectory" else np.sqrt(count))
            noisy = made.sigma[made.sigma > 0]
            rows.append(
                TradeoffRow(
                    epsilon=epsilon,
                    rounds=count,
                    sigma_least=float(noisy.min()),
                    sigma_most=float(noisy.max()),
                    hidden_offset=float(reach.min() / np.sqrt(count)),
                    x=least.x,
                    mu=least.mu,
                )
            )
    return rows
