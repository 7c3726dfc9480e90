"""What a cloud remembers between rounds: its step's state, and the test at the end of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, final

import numpy as np

from sottovoce.algorithm.algorithm import (
    Algorithm,
    GradientSteps,
    PriceRounds,
    noisy_shares,
    require_release,
)
from sottovoce.algorithm.dual_averaging import steering
from sottovoce.algorithm.public_sum import public_sums
from sottovoce.kernels.cloud_kernel import make_cloud
from sottovoce.network.failures import DivergedError
from sottovoce.network.protocol.actions import Part
from sottovoce.network.protocol.collected import merge_gaps
from sottovoce.network.protocol.messages import Gap
from sottovoce.network.setup import Ranges
from sottovoce.privacy.feasibility import answer_shares, answer_weights
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.agents import Array


class CloudState(Protocol):
    """Takes releases in, gives prices out, round by round.

    Attributes:
        price: lambda(k+1) after round k; zeros before round 1.
        answer: the prices to report: averaged, or the last.
        averaged: the releases so far, averaged with the answer's weights.
    """

    price: Array
    answer: Array
    averaged: Array

    def take(self, k: int, y: Array) -> Array:
        """Turn the release of round k into prices, and return those that agents are told.

        Raises:
            DivergedError: prices diverged.
        """

    def restart(self) -> None:
        """Forget all rounds."""


def cloud_state(plan: NoisePlan, algorithm: Algorithm, rounds: int) -> CloudState:
    """Return the cloud's half of an algorithm under a plan.

    Raises:
        InputError: the plan releases other numbers than the algorithm works with.
    """
    require_release(plan, algorithm)
    if isinstance(algorithm, GradientSteps):
        assert plan.release is not None  # noqa: S101  else the plan was refused
        turns: CloudState = plan.release.prices(plan, algorithm)
        return turns
    return PriceState(plan, algorithm, rounds)


@final
class PriceState:
    """The step of an algorithm with prices, the one that ``simulate`` takes."""

    def __init__(self, plan: NoisePlan, algorithm: PriceRounds, rounds: int) -> None:
        kept = plan.feasible
        target = None if kept is None else kept.target
        self._public = public_sums(plan.cloud.sums, plan.domain, plan.released_sigma, target)
        self._algorithm = algorithm
        self._shares = noisy_shares(algorithm, rounds)
        self._steered, self._rounds = kept is not None, rounds
        self.restart()

    def restart(self) -> None:
        """Forget all rounds."""
        self._cloud = make_cloud(self._algorithm, self._public, planned=True)
        self._copy()

    def take(self, k: int, y: Array) -> Array:
        """Turn the noisy sums of round k into lambda(k+1)."""
        steer = float(steering(k, self._rounds)[0]) if self._steered else 0.0
        if not self._cloud.round(k, y, share=self._shares[k], steer=steer):
            raise DivergedError(k)
        self._copy()
        return self.price

    def _copy(self) -> None:
        """Records keep these, and rounds change the cloud's own."""
        cloud = self._cloud
        self.price, self.answer, self.averaged = (
            array.copy() for array in (cloud.price, cloud.answer, cloud.released)
        )


@final
class Verdict:
    """Follows the rounds of a run, and judges the averaged release after the last.

    Where an agent's last contribution was reused, the state it averages need not be the one that
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
            held: agents whose last contribution was reused in it.
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
