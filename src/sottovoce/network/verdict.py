"""The test at the end of a run: whether its answer may be applied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import numpy as np

from sottovoce.network.parties import Ranges
from sottovoce.network.protocol.actions import Part
from sottovoce.network.protocol.collected import merge_gaps
from sottovoce.network.protocol.messages import Gap
from sottovoce.privacy.feasibility import answer_shares, answer_weights
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.agents import Array


@final
class Verdict:
    """Follows the rounds of a run, and judges the averaged release after the last.

    Where an agent's last words counted again, the state that it averages need not be the one that
    was released: their contributions differ by its range at most, which counts with the weight of
    the round. So do rounds that its average lacks. Everything here is public, and follows from the
    store.

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
        self._gaps: set[Gap] = set()

    def news(self, parts: Iterable[Part]) -> tuple[Gap, ...]:
        """Return the gaps that agents speak of and that are not known yet."""
        return tuple(sorted({gap for part in parts for gap in part.missed} - self._gaps))

    def __call__(
        self, k: int, averaged: Array, held: frozenset[int], missed: Iterable[Gap] = ()
    ) -> bool | None:
        """Hear of round k; return whether the answer is confirmed after the last, else None.

        Args:
            k: the round.
            averaged: the releases up to it, averaged.
            held: agents whose last words counted again in it.
            missed: gaps in averages that are known since.
        """
        self._gaps.update(missed)
        if held or self._off.any():
            share = float(answer_shares(k, self._rounds)[0])
            self._off = self._off + share * (self._reach(held) - self._off)
        if k < self._rounds:
            return None
        off = self._off + self._lacking()
        return bool(self._feasible.confirmed(averaged, off * (1.0 + 2.0**-30))[0])

    def _lacking(self) -> Array:
        """How far the answer can be off where averages have gaps."""
        off = np.zeros(self._sums)
        weights = answer_weights(self._rounds) if self._gaps else off
        for first, last, begin, end in merge_gaps(self._gaps):
            share = float(weights[begin - 1 : end].sum())
            off += share * self._reach(frozenset(range(first, last + 1)))
        return off

    def _reach(self, held: frozenset[int]) -> Array:
        """How far the contributions of these agents together can be apart."""
        reach = np.zeros(self._sums)
        if held:
            places = np.array(sorted(held), dtype=np.int64) - 1
            sums, grid, least, most = self._ranges.of(places)
            reach[sums] = (most - least) * grid
        return reach
