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
from sottovoce.privacy.feasibility import answer_shares
from sottovoce.problem.agents import Array


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DualAveraging:
    """Prices that maximise what recent releases say of the dual, in a metric learnt from them.

    Attributes:
        memory: a; weights grow as ``n^a``, so that about the last third of all rounds counts: the
            slope is wanted where prices are now, not where they began.
        doubt: of the noise in the releases added up, how much holds prices back where no slope is
            seen yet. More is slower, less lets noise alone drive prices where agents saturate.
        reach: how many times their spread prices may move on evidence beyond noise: growth per
            round until sums respond.
        theta: how strongly agents hold on to their last state; it keeps those with hardly any
            curvature from jumping between ends of their boxes.
        start: the worth ``lambda sigma`` of the first step, in the unit of the objective. Small:
            a decade too low costs a round, a decade too high saturates agents.
    """

    memory: float = 2.0
    doubt: float = 0.3
    reach: float = 16.0
    theta: float = 0.5
    start: float = 0.01

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            real(field.name, value, "finite and positive", lambda v: isfinite(v) and v > 0)

    def share(self, k: Any, rounds: int, *, noisy: bool) -> Array:
        """The weights of rounds k in the answer; without noise there is nothing to average."""
        return answer_shares(k, rounds) if noisy else np.ones(np.size(k))
