"""Dual averaging with a learnt slope, the default algorithm: its numbers and its weights.

The cloud's step with these numbers is in ``sottovoce.kernels.core.cloud_step``, the agents' in
``sottovoce.kernels.core.passes``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, final

import numpy as np

from sottovoce.arguments import real
from sottovoce.privacy.averaging import answer_shares, counted_rounds
from sottovoce.problem.groups import Array

_STEERING_GAIN = 2.0
_GROWTH, _MOST_GROWTH = 100.0, 10.0  # rounds in which theta doubles without noise, and how far
_NOISE_FREE_START = 1e-6  # of ``start``, without noise
_HALF_GAIN_ROUNDS = 20.0  # counted rounds after which steering has half of its gain


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DualAveraging:
    """Proximal dual averaging: prices maximise a model of the dual from recent releases.

    Attributes:
        memory: a; weights grow as ``n^a``, so that about the last third of all rounds counts: the
            slope is wanted where prices are now, not where they began.
        doubt: regularisation, as a share of the accumulated noise, of directions without a slope
            estimate. More is slower, less lets noise drive prices where agents saturate.
        reach: largest step on evidence beyond noise, in multiples of the spread of prices: growth
            per round until sums respond. Twice as much in the first rounds.
        theta: the weight of the agents' proximal terms, as a share of what the sums are worth to
            them: it keeps agents without curvature from jumping between ends of their boxes.
        start: the worth ``lambda sigma`` of the first step, in the unit of the objective. Small:
            a decade too low costs a round, a decade too high saturates agents.
    """

    memory: float = 2.0
    doubt: float = 0.3
    reach: float = 5.0
    theta: float = 0.1
    start: float = 0.01

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            real(field.name, value, "finite and positive", lambda v: isfinite(v) and v > 0)

    def share(self, k: Any, rounds: int, *, noisy: bool) -> Array:
        """The weights of rounds k in the answer; without noise there is nothing to average."""
        return answer_shares(k, rounds) if noisy else np.ones(np.size(k))

    def noise_free_theta(self, k: Any) -> Array:
        """Return theta of rounds k without noise: ``theta min(10, 1 + k / 100)``.

        More of it is slower, and less does not settle in ill-conditioned linear programs.
        """
        return np.asarray(self.theta * np.minimum(_MOST_GROWTH, 1.0 + np.asarray(k) / _GROWTH))

    def first_step(self, *, noisy: bool) -> float:
        """Return ``start``; without noise prices find their unit from below, in a few rounds."""
        return self.start * (1.0 if noisy else _NOISE_FREE_START)


def steering(k: Any, rounds: int) -> Array:
    """Return c of rounds k of T: 0 while the average is of one release, then growing to 2.

    Prices are aimed so that the average of all releases, not the last ones, meets C: the algorithm
    forgets how far off the beginning was, the answer does not. With ``Ybar`` the average of the
    releases so far and ``P(Ybar)`` the point of C nearest to it, the cloud's round takes

        y(k) + c (Ybar(k) - P(Ybar(k)))        instead of        y(k),

    so that what was too much in the average is taken off what is aimed at from now on: its
    remainder falls as ``k^(-1.25 (1 + c))`` instead of ``k^-1.25``. All of it is public.
    """
    counted = counted_rounds(k, rounds)
    return _STEERING_GAIN * (counted - 1.0) / (counted + _HALF_GAIN_ROUNDS)
