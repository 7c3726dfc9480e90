"""Hsu, Huang, Roth and Wu 2016, "Jointly Private Convex Programming": dual gradient in a box.

    lambda(k+1) = P_[0, 2 tau] (lambda(k) + eta (y(k) - b)),     answers are averages
    sigma    = Delta sqrt(2 ln(1.25/delta')) / epsilon'     (the Gaussian mechanism, each round)
    epsilon' = epsilon / sqrt(8 T ln(2/delta)),   delta' = delta / (2 T)  (advanced composition)

Source: arXiv 1411.0998, as we read it. It hides everything about an agent; for another adjacency
Delta is how far a pair moves the sums in one round, because the composition knows no trajectories.
Sums are in units of the most that one agent moves each. tau bounds the optimal prices; here it is
their largest, which no user knows. ``eta = D / (G sqrt(T))`` is the step of their analysis, with D
the diameter of the box and G^2 the bound on E|y - b|^2. Where C is no half-line, the projection
onto C takes the place of b. The constraints' tightening, by which they become feasible, is left
out: the table shows violations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from sottovoce.certificate.optimum import saddle_prices
from sottovoce.errors import InputError
from sottovoce.problem.groups import Array
from sottovoce.study.rivals.rival import (
    ProximalAscent,
    Rival,
    RivalRun,
    RivalTask,
    change_per_round,
    price_runs,
)


def composed_sigma(epsilon: float, delta: float, rounds: int, size: float) -> float:
    """Return the noise of each of T releases by advanced composition, for l2 sensitivity 1."""
    each = epsilon / math.sqrt(8.0 * rounds * math.log(2.0 / delta))
    return size * math.sqrt(2.0 * math.log(1.25 * 2.0 * rounds / delta)) / each


def optimal_prices(task: RivalTask, unit: Array) -> Array:
    """Return the optimal prices in units of the sums, by hindsight; refused if all are 0."""
    prices = np.abs(saddle_prices(task.problem, task.saddle)) * unit
    if not prices.max(initial=0.0) > 0.0:
        raise InputError("its box of prices is a point, because no constraint is active")
    return prices


def _runs(task: RivalTask) -> Iterator[RivalRun]:
    task.require_no_cost()
    change = change_per_round(task)
    most = 2.0 * float(optimal_prices(task, change.unit).max())

    def algorithm(sigma: Array) -> ProximalAscent:
        noise = sigma / change.unit
        diameter = most * math.sqrt(sigma.size)
        largest = math.sqrt(float(np.sum(np.square(change.width)) + np.sum(np.square(noise))))
        step = diameter / (largest * math.sqrt(task.rounds))
        return ProximalAscent(step=step / np.square(change.unit), most=most / change.unit)

    epsilon, delta = task.strictest
    sigma = change.unit * composed_sigma(epsilon, delta, task.rounds, change.size)
    yield from price_runs(task, RIVAL.label, sigma, algorithm)


RIVAL = Rival(
    name="hhrw",
    label="HHRW 2016",
    cites="HsuHuangRothWu2016",
    side_information="the largest optimal price",
    runs=_runs,
)
