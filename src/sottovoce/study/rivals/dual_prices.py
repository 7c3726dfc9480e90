"""Rivals whose cloud turns noisy sums into prices: two papers', and a reference by hindsight.

All take averages with equal weights and agents without proximal terms. Those of the papers hide
everything about an agent; for another adjacency Delta is how far a pair moves the sums in one
round, because their composition knows no trajectories. Sums are in units of the most that one agent
moves each. What bounds the prices is their optimum by hindsight, which no user knows.

``hhrw``: Hsu, Huang, Roth and Wu 2016, "Jointly Private Convex Programming", arXiv 1411.0998.

    lambda(k+1) = P_[0, 2 tau] (lambda(k) + eta (y(k) - b)),     answers are averages
    sigma    = Delta sqrt(2 ln(1.25/delta')) / epsilon'     (the Gaussian mechanism, each round)
    epsilon' = epsilon / sqrt(8 T ln(2/delta)),   delta' = delta / (2 T)  (advanced composition)

tau is the largest optimal price. ``eta = D / (G sqrt(T))`` is the step of their analysis, with D
the diameter of the box and G^2 the bound on E|y - b|^2. Where C is no half-line, the projection
onto C takes the place of b. The constraints' tightening, by which they become feasible, is left
out: the table shows violations.

``ndmd``: Chen and Chua 2024, "Noisy Dual Mirror Descent", openreview 6ArNmbMpKF, with negative
entropy (potential, ``K = 1.1 u/(y b)``, Renyi accounting).

    w(k+1)  ~  w(k) exp(eta (y(k) - u(k))),     lambda = K w,    answers are averages
    sigma   =  Delta sqrt(T/2) / (sqrt(ln(1/delta) + epsilon) - sqrt(ln(1/delta)))

w lies in the simplex with one coordinate more, so that prices add up to at most K, 1.1 times the
sum of the optimal prices; u(k) is the point of C with the largest ``lambda'u``, b for a half-line
``s <= b``. A sum that C bounds on both sides has a coordinate for either sign of its price. sigma
is that of T Gaussian releases by Renyi divergences, ``alpha T Delta^2 / (2 sigma^2) +
ln(1/delta)/(alpha - 1)``, at the best alpha. ``eta = sqrt(2 ln(M + 1) / T) / G`` for M coordinates,
with G the bound on ``|y - u|`` in the maximum norm, noise included.

``hindsight``: the best fixed step, a reference that no user can have.

    lambda(k+1) = d (v - u),   v = y + lambda/d,   u = P_C(v),   d_o = s / (sigma_o^2 sqrt(T))

A proximal dual gradient step under the joint plan; ``s`` is the one of 0.1 to 1,000 with the least
error of x over the first 16 runs, measured against the true optimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.special import softmax

from sottovoce.algorithm.algorithm import Algorithm
from sottovoce.algorithm.public_sum import Nearest, PublicSum
from sottovoce.certificate.optimum import saddle_prices
from sottovoce.errors import InputError
from sottovoce.privacy.limit import accuracy_limit
from sottovoce.problem.groups import Array
from sottovoce.progress import Progress
from sottovoce.study.rivals.rival import (
    JOINT,
    OWN,
    Answers,
    Change,
    Rival,
    RivalRun,
    RivalTask,
    algorithm_run,
    change_per_round,
    root_mean_square,
    simulated,
    with_sigma,
)

STEPS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0)  # s of the hindsight
_TRIED_RUNS = 16
_FAR = 1e4  # ranges beyond C, from where the nearest point of C is nearly that of a direction


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlainAverage:
    """Averages with equal weights, and agents without proximal terms."""

    theta: float = 0.0

    def memory_size(self, sums: int) -> int:
        """No memory."""
        return 0

    def share(self, k: Any, rounds: int, *, noisy: bool) -> Array:
        """All rounds weigh the same."""
        return 1.0 / np.atleast_1d(np.asarray(k, dtype=np.float64))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProximalAscent(PlainAverage):
    """``lambda <- P[d (v - u)]`` with ``v = y + lambda/d``, u the point of C nearest to v in d.

    For a half-line ``s <= b`` it is ``P[lambda + d (y - b)]_+``, the projected dual gradient.
    """

    step: Array  # d of every sum
    most: Array  # what no price exceeds

    def cloud_round(
        self, k: int, y: Array, price: Array, memory: Array, public: PublicSum, nearest: Nearest
    ) -> Array:
        """Return lambda(k+1)."""
        v = y + price / self.step
        price = self.step * (v - nearest(v, metric=self.step, priced=True))
        return np.clip(price, -self.most, self.most)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EntropicAscent(PlainAverage):
    """Mirror ascent on prices of either sign that add up to at most ``total``; see above."""

    unit: Array  # of every sum
    rate: float  # eta
    total: float  # K, in these units

    def memory_size(self, sums: int) -> int:
        """The gradients added up."""
        return sums

    def cloud_round(
        self, k: int, y: Array, price: Array, memory: Array, public: PublicSum, nearest: Nearest
    ) -> Array:
        """Return lambda(k+1)."""
        lower, upper = np.asarray(public.lower), np.asarray(public.upper)
        above, below = np.isfinite(upper), np.isfinite(lower)
        u = np.where(above & ((price >= 0.0) | ~below), upper, np.where(below, lower, y))
        mixed = [member for region in public.regions for member in region.members]
        if mixed:
            length = float(np.linalg.norm(price[mixed])) or 1.0
            far = nearest(y + _FAR * float(self.unit[mixed].max()) * price / length)
            u[mixed] = far[mixed]
            above[mixed] = below[mixed] = True
        memory += self.rate * (y - u) / self.unit
        p = y.size
        gains = np.where(np.stack([above, below]), np.stack([memory, -memory]), -np.inf)
        weights = softmax(np.append(gains, 0.0))
        return np.asarray(self.total * (weights[:p] - weights[p : 2 * p]) / self.unit)


def composed_sigma(epsilon: float, delta: float, rounds: int, size: float) -> float:
    """Return the noise of each of T releases by advanced composition, for l2 sensitivity 1."""
    each = epsilon / math.sqrt(8.0 * rounds * math.log(2.0 / delta))
    return size * math.sqrt(2.0 * math.log(1.25 * 2.0 * rounds / delta)) / each


def renyi_sigma(epsilon: float, delta: float, rounds: int, size: float) -> float:
    """Return the noise of each of T releases by Renyi divergences, for l2 sensitivity ``size``."""
    tail = math.log(1.0 / delta)
    return size * math.sqrt(rounds / 2.0) / (math.sqrt(tail + epsilon) - math.sqrt(tail))


def _box_ascent(task: RivalTask, change: Change, prices: Array, sigma: Array) -> ProximalAscent:
    most, noise = 2.0 * float(prices.max()), sigma / change.unit
    largest = math.sqrt(float(np.sum(np.square(change.width)) + np.sum(np.square(noise))))
    step = most * math.sqrt(sigma.size) / (largest * math.sqrt(task.rounds))
    return ProximalAscent(step=step / np.square(change.unit), most=most / change.unit)


def _simplex_ascent(task: RivalTask, change: Change, prices: Array, sigma: Array) -> EntropicAscent:
    coordinates = 2.0 * math.log(2 * sigma.size + 1)
    noise = float(np.max(sigma / change.unit)) * math.sqrt(coordinates)
    rate = math.sqrt(coordinates / task.rounds) / (float(change.width.max()) + noise)
    return EntropicAscent(unit=change.unit, rate=rate, total=1.1 * float(prices.sum()))


def _price_runs(
    label: str,
    least_sigma: Callable[[float, float, int, float], float],
    algorithm: Callable[[RivalTask, Change, Array, Array], Algorithm],
    task: RivalTask,
) -> Iterator[RivalRun]:
    """Yield a method with the noise of its theorem, and with that of the joint plan if less."""
    if task.problem.cloud.cost is not None:
        raise InputError("it knows constraints alone, got a public cost")
    change, ours = change_per_round(task), task.plan.released_sigma
    prices = np.abs(saddle_prices(task.problem, task.saddle)) * change.unit
    if not prices.max(initial=0.0) > 0.0:
        raise InputError("its box of prices is a point, because no constraint is active")
    sigma = change.unit * least_sigma(*task.strictest, task.rounds, change.size)
    noises = [(OWN, with_sigma(task.plan, sigma), sigma), (JOINT, task.plan, ours)]
    for noise, plan, each in noises if np.any(ours < sigma) else noises[:1]:
        yield algorithm_run(task, noise, label, plan, algorithm(task, change, prices, each))


def fixed_step(task: RivalTask, s: float) -> ProximalAscent:
    """Return the algorithm with one step."""
    unit = task.plan.released_sigma
    unit = np.where(unit > 0.0, unit, 1.0)
    step = s / (np.square(unit) * np.sqrt(task.rounds))
    return ProximalAscent(step=step, most=np.full(unit.size, np.inf))


def _best_step(task: RivalTask, progress: Progress) -> Answers:
    limit = accuracy_limit(task.problem, task.plan, task.rounds, saddle=task.saddle)
    curved = ~np.isin(np.arange(task.saddle.x.size), limit.flat)

    def run(place: int, s: float, runs: int) -> Answers:
        def part(doing: str, share: float | None = None) -> None:
            progress(doing, (place + (share or 0.0)) / (len(STEPS) + 1))

        return simulated(replace(task, runs=runs), task.plan, fixed_step(task, s), part)

    errors = []
    for place, s in enumerate(STEPS):
        trial = run(place, s, min(task.runs, _TRIED_RUNS))
        if trial.interrupted:
            return trial
        error = root_mean_square((trial.x - task.saddle.x)[:, curved])
        errors.append(np.inf if trial.failed.any() else error)
    best = STEPS[int(np.argmin(errors))]
    return replace(run(len(STEPS), best, task.runs), note=f"s = {best:g}")


def _fixed_step_runs(task: RivalTask) -> Iterator[RivalRun]:
    answers = partial(_best_step, task)
    yield RivalRun(noise=JOINT, label=HINDSIGHT.label, plan=task.plan, answers=answers)


HHRW = Rival(
    name="hhrw", label="HHRW 2016", cites="HsuHuangRothWu2016",
    side_information="the largest optimal price",
    runs=partial(_price_runs, "HHRW 2016", composed_sigma, _box_ascent),
)  # fmt: skip
NDMD = Rival(
    name="ndmd", label="NDMD 2024", cites="ChenChua2024",
    side_information="the sum of the optimal prices",
    runs=partial(_price_runs, "NDMD 2024", renyi_sigma, _simplex_ascent),
)  # fmt: skip
HINDSIGHT = Rival(
    name="hindsight", label="best step", cites="", side_information="the optimum",
    runs=_fixed_step_runs,
)  # fmt: skip
