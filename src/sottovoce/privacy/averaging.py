"""The average over rounds: weights ``w_k ~ k^0.25`` after a burn-in, for answers and releases."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.problem.groups import Array

BURN_IN = 0.1  # the share of all rounds that no average counts
UNIT_ROUNDS = 10.0  # in which prices find their scale: not counted either, at most another BURN_IN
WEIGHT_POWER = 0.25  # of k, by which the weights of the average grow
_SUMMED_ROUNDS = 100_000  # up to which the weights' norm is added up; beyond, it is bounded


def counted_rounds(k: ArrayLike, rounds: int) -> Array:
    """Return the index of round k among those that are averaged, from 1; 1 during the burn-in."""
    burn_in = np.floor(BURN_IN * rounds + min(BURN_IN * rounds, UNIT_ROUNDS))
    return np.asarray(np.maximum(1.0, np.array(k, dtype=np.float64, ndmin=1) - burn_in))


def answer_shares(k: ArrayLike, rounds: int) -> Array:
    """Return the steps of the running average, ``answer += share (value - answer)``, for rounds k.

    They give the weights ``w_k ~ k^0.25``.
    """
    return (1.0 + WEIGHT_POWER) / (counted_rounds(k, rounds) + WEIGHT_POWER)


def answer_weights(rounds: int) -> Array:
    """Return ``w_1 .. w_T``, which add up to 1.

    An answer is ``xbar = sum_k w_k x(k)`` over the states whose contributions were released, with
    weights that depend on k and T alone. So the average of the releases, ``Ybar = sum_k w_k y(k)``,
    is the sums at the answer plus Gaussian noise of exactly known size.
    """
    shares = answer_shares(np.arange(1, rounds + 1), rounds)
    remaining = np.append(np.cumprod(1.0 - shares[:0:-1])[::-1], 1.0)
    return np.asarray(shares * remaining)


@cache
def weights_norm(rounds: int) -> float:
    """Return ``|w|_2``, rounded up: the noise of Ybar is ``sigma |w|``.

    With N counted rounds, ``w_j = 1.25 G(j) / (N G(N) (1 + 0.25/N))`` with
    ``G(j) = Gamma(j + 0.25) / Gamma(j) <= j^0.25``, and ``G(N) >= N / (N + 0.25)^0.75`` (Wendel).
    """
    if rounds <= _SUMMED_ROUNDS:
        return float(np.linalg.norm(answer_weights(rounds))) * (1.0 + 2.0**-30)
    n = float(counted_rounds(rounds, rounds)[0])
    total = ((n + 1.0) ** 1.5 - 1.0) / 1.5  # above sum_j j^0.5
    return float(np.sqrt(total) * 1.25 / (n * (n + 0.25) ** 0.25)) * (1.0 + 2.0**-30)
