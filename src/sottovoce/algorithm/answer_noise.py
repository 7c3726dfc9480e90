"""How much of the noise of all rounds is left in the answer, which averages them."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from sottovoce.algorithm.dual_averaging import DualAveraging

_MANY = 10_000


@cache
def answer_noise(rounds: int) -> float:
    """Return ``|w|_2`` of the answer's weights: an averaged release has noise ``sigma |w|``."""
    if rounds > _MANY:
        # Weights k^a over the last 90%: |w|^2 = (1 + a)^2 / (1 + 2 a) / 0.9 T.
        return 1.25 / math.sqrt(1.5 * 0.9 * rounds)
    shares = DualAveraging().share(np.arange(1, rounds + 1), rounds, noisy=True)
    kept = np.append(np.cumprod(1.0 - shares[:0:-1])[::-1], 1.0)
    return float(np.linalg.norm(shares * kept))
