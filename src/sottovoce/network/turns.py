"""The cloud's half of a round, as the engine has it, with what it remembers between rounds."""

from __future__ import annotations

from typing import Protocol, final

from sottovoce.algorithm.algorithm import Algorithm, CloudStep, GradientSteps, PriceRounds
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.algorithm.steering import steering
from sottovoce.errors import InputError
from sottovoce.kernels.cloud import Cloud, PublicSum
from sottovoce.network.errors import DivergedError
from sottovoce.network.schedule import Shares
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.agents import Array
from sottovoce.simulation.layout import gains, public_sums
from sottovoce.simulation.own_cloud import OwnCloud


class Turns(Protocol):
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
            DivergedError: the prices ran away.
        """

    def restart(self) -> None:
        """Forget all rounds."""


def turns_of(plan: NoisePlan, algorithm: Algorithm, rounds: int) -> Turns:
    """Return the cloud's half of an algorithm under a plan.

    Raises:
        InputError: the plan releases other numbers than the algorithm works with.
    """
    if isinstance(algorithm, GradientSteps):
        if plan.release is None or plan.release.name != algorithm.release:
            raise InputError(
                "gradient steps need values and gradients of constraints on the network, got a "
                "plan that releases sums: use sv.paper.plan, or the default algorithm"
            )
        turns: Turns = plan.release.prices(plan, algorithm)
        return turns
    if plan.release is not None:
        raise InputError(
            "the default algorithm works with sums, got a plan that releases values and gradients "
            "of constraints: use sv.plan, or sv.paper.Tikhonov()"
        )
    return PriceTurns(plan, algorithm, rounds)


@final
class PriceTurns:
    """The step of an algorithm with prices, the one that ``simulate`` takes."""

    def __init__(self, plan: NoisePlan, algorithm: PriceRounds, rounds: int) -> None:
        kept = plan.feasible
        target = None if kept is None else kept.target
        self._public = public_sums(plan.cloud.sums, plan.domain, plan.released_sigma, target)
        self._algorithm = algorithm
        self._shares = Shares(algorithm, rounds)
        self._steered, self._rounds = kept is not None, rounds
        self.restart()

    def restart(self) -> None:
        """Forget all rounds."""
        self._cloud = _cloud(self._algorithm, self._public)
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


def _cloud(algorithm: PriceRounds, public: PublicSum) -> Cloud | OwnCloud:
    if isinstance(algorithm, DualAveraging):
        return Cloud(public, gains(algorithm), planned=True)
    assert isinstance(algorithm, CloudStep)  # noqa: S101  there is no other kind
    return OwnCloud(algorithm, public, planned=True)
