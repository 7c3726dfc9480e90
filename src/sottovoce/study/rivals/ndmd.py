"""Chen and Chua 2024, "Noisy Dual Mirror Descent", with negative entropy.

    w(k+1)  ~  w(k) exp(eta (y(k) - u(k))),     lambda = K w,    answers are averages
    sigma   =  Delta sqrt(T/2) / (sqrt(ln(1/delta) + epsilon) - sqrt(ln(1/delta)))

w lies in the simplex with one coordinate more, so that prices add up to at most K; u(k) is the
point of C with the largest ``lambda'u``, b for a half-line ``s <= b``. A sum that C bounds on both
sides has a coordinate for either sign of its price. sigma is that of T Gaussian releases by Renyi
divergences, ``alpha T Delta^2 / (2 sigma^2) + ln(1/delta)/(alpha - 1)``, at the best alpha.

Source: openreview 6ArNmbMpKF, as we read it (potential, ``K = 1.1 u/(y b)``, Renyi accounting). It
hides everything about an agent; for another adjacency Delta is how far a pair moves the sums in one
round. Sums are in units of the most that one agent moves each. K is 1.1 times the sum of the
optimal prices, which no user knows. ``eta = sqrt(2 ln(M + 1) / T) / G`` for M coordinates, with G
the bound on ``|y - u|`` in the maximum norm, noise included.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

from sottovoce.algorithm.public_sum import Nearest, PublicSum
from sottovoce.problem.groups import Array
from sottovoce.study.rivals.hhrw import optimal_prices
from sottovoce.study.rivals.rival import (
    PlainAverage,
    Rival,
    RivalRun,
    RivalTask,
    change_per_round,
    price_runs,
)

_FAR = 1e4  # ranges beyond C, from where the nearest point of C is nearly that of a direction


def renyi_sigma(epsilon: float, delta: float, rounds: int, size: float) -> float:
    """Return the noise of each of T releases by Renyi divergences, for l2 sensitivity ``size``."""
    tail = math.log(1.0 / delta)
    return size * math.sqrt(rounds / 2.0) / (math.sqrt(tail + epsilon) - math.sqrt(tail))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EntropicAscent(PlainAverage):
    """Mirror ascent on prices of either sign that add up to at most ``total``; see the module."""

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


def _runs(task: RivalTask) -> Iterator[RivalRun]:
    task.require_no_cost()
    change = change_per_round(task)
    total = 1.1 * float(optimal_prices(task, change.unit).sum())
    coordinates = 2 * change.unit.size + 1

    def algorithm(sigma: Array) -> EntropicAscent:
        noise = float(np.max(sigma / change.unit)) * math.sqrt(2.0 * math.log(coordinates))
        largest = float(change.width.max()) + noise
        rate = math.sqrt(2.0 * math.log(coordinates) / task.rounds) / largest
        return EntropicAscent(unit=change.unit, rate=rate, total=total)

    epsilon, delta = task.strictest
    sigma = change.unit * renyi_sigma(epsilon, delta, task.rounds, change.size)
    yield from price_runs(task, RIVAL.label, sigma, algorithm)


RIVAL = Rival(
    name="ndmd",
    label="NDMD 2024",
    cites="ChenChua2024",
    side_information="the sum of the optimal prices",
    runs=_runs,
)
