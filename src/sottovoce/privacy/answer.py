"""The answer's weights: of which rounds the answer is the average, a public matter.

An answer is ``xbar = sum_k w_k x(k)`` over the states whose contributions were released, with
weights that depend on k and T alone. So the average of the releases, ``Ybar = sum_k w_k y(k)``, is
the sums at the answer plus Gaussian noise of exactly known size: what ``feasible`` rests on.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from sottovoce.problem.agents import Array

BURN_IN = 0.1
UNIT_ROUNDS = 10.0
WEIGHT_POWER = 0.25
_EXACT = 100_000  # rounds up to which the weights' norm is added up; beyond, it is bounded


def counted_rounds(k: Any, rounds: int) -> Array:
    """Return which of the rounds that count k is, from 1; 1 for those before them too.

    The first tenth of all rounds and the ten rounds (at most another tenth) in which prices find
    their unit do not count.
    """
    skipped = _skipped(rounds)
    return np.maximum(1.0, np.atleast_1d(np.asarray(k, dtype=np.float64)) - skipped)


def answer_shares(k: Any, rounds: int) -> Array:
    """Return the shares of rounds k: ``answer += share (value - answer)``, so ``w_k ~ k^0.25``."""
    return (1.0 + WEIGHT_POWER) / (counted_rounds(k, rounds) + WEIGHT_POWER)


def answer_weights(rounds: int) -> Array:
    """Return ``w_1 .. w_T``, which add up to 1."""
    shares = answer_shares(np.arange(1, rounds + 1), rounds)
    kept = np.append(np.cumprod(1.0 - shares[:0:-1])[::-1], 1.0)
    return np.asarray(shares * kept)


@cache
def weights_norm(rounds: int) -> float:
    """Return ``|w|_2``, rounded up: the noise of Ybar is ``sigma |w|``.

    With N rounds that count, ``w_j = 1.25 G(j) / (N G(N) (1 + 0.25/N))`` with
    ``G(j) = Gamma(j + 0.25) / Gamma(j) <= j^0.25``, and ``G(N) >= N / (N + 0.25)^0.75`` (Wendel).
    """
    if rounds <= _EXACT:
        return float(np.linalg.norm(answer_weights(rounds))) * (1.0 + 2.0**-30)
    n = float(rounds - _skipped(rounds))
    total = ((n + 1.0) ** 1.5 - 1.0) / 1.5  # above sum_j j^0.5
    return float(np.sqrt(total) * 1.25 / (n * (n + 0.25) ** 0.25)) * (1.0 + 2.0**-30)


def _skipped(rounds: int) -> int:
    return int(np.floor(BURN_IN * rounds + min(BURN_IN * rounds, UNIT_ROUNDS)))
