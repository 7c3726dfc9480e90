"""The test at the end of a run: whether its answer may be applied."""

from __future__ import annotations

from typing import final

import numpy as np

from sottovoce.network.parties import Ranges
from sottovoce.privacy.answer import answer_shares
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.agents import Array


@final
class Verdict:
    """Follows the rounds of a run, and judges the averaged release after the last.

    Where an agent's last words counted again, the state that it averages need not be the one that
    was released: their contributions differ by its range at most, which counts with the weight of
    the round. Everything here is public, and follows from the store.

    Args:
        plan: with margins.
        rounds: T.
    """

    def __init__(self, plan: NoisePlan, rounds: int) -> None:
        assert plan.feasible is not None  # noqa: S101  the caller has asked
        self._feasible, self._rounds = plan.feasible, rounds
        self._sums = plan.cloud.sums.count
        self._ranges = Ranges(plan)
        self.restart()

    def restart(self) -> None:
        """Forget all rounds."""
        self._off = np.zeros(self._sums)

    def __call__(self, k: int, averaged: Array, held: frozenset[int]) -> bool | None:
        """Hear of round k; return whether the answer is confirmed after the last, else None."""
        if held or self._off.any():
            share = float(answer_shares(k, self._rounds)[0])
            self._off = self._off + share * (self._reach(held) - self._off)
        if k < self._rounds:
            return None
        return bool(self._feasible.confirmed(averaged, self._off * (1.0 + 2.0**-30))[0])

    def _reach(self, held: frozenset[int]) -> Array:
        """How far the contributions of these agents together can be apart."""
        reach = np.zeros(self._sums)
        if held:
            places = np.array(sorted(held), dtype=np.int64) - 1
            sums, grid, least, most = self._ranges.of(places)
            reach[sums] = (most - least) * grid
        return reach
