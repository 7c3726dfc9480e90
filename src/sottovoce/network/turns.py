"""The cloud's half of a round, as the engine has it, with what it remembers between rounds."""

from __future__ import annotations

from typing import Protocol, final

import numpy as np

from sottovoce.algorithm.algorithm import Algorithm, GradientSteps, PriceRounds, by_name
from sottovoce.algorithm.steering import steering
from sottovoce.engine.turn import load_turn, public_rows
from sottovoce.errors import InputError
from sottovoce.network.errors import DivergedError
from sottovoce.network.schedule import Schedule, Shares
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.agents import Array


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
        if plan.method != "paper":
            raise InputError(
                "gradient steps need the paper's values and gradients on the network, got a plan "
                "that releases sums: plan with method='paper', or use the default algorithm"
            )
        return GradientTurns(plan, algorithm, rounds)
    if plan.method != "joint":
        raise InputError(
            "the default algorithm works with sums, got a plan of the paper's values and "
            "gradients: plan with method='joint', or use sv.Tikhonov()"
        )
    return PriceTurns(plan, algorithm, rounds)


@final
class PriceTurns:
    """The compiled ``cloud_round`` of an algorithm with prices, the very one of ``solve``."""

    def __init__(self, plan: NoisePlan, algorithm: PriceRounds, rounds: int) -> None:
        sums = plan.cloud.sums
        compiled = load_turn(algorithm, sums.regions)
        kept = plan.feasible
        target = None if kept is None else kept.target
        rows = public_rows(sums, plan.domain, plan.released_sigma, target)
        self._sizes = (sums.count, algorithm.memory_size(sums.count))
        self._compiled, self._turn, self._C = compiled, compiled.turn, rows.public
        constants = np.array(algorithm.constants, dtype=np.float64)
        self._public = (constants, rows.unit, rows.noise, *rows.public, *compiled.phi)
        self._shares = Shares(algorithm, rounds)
        self._steered, self._rounds = kept is not None, rounds
        self.restart()

    def restart(self) -> None:
        """Forget all rounds."""
        sums, memory = self._sizes
        self.price = np.zeros(sums)
        self.answer = np.zeros(sums)
        self.averaged = np.zeros(sums)
        self._memory = np.zeros(memory)

    def take(self, k: int, y: Array) -> Array:
        """Turn the noisy sums of round k into lambda(k+1)."""
        price = self.price.copy()  # records keep the one before
        share = self._shares[k]
        answer = self.answer + share * (price - self.answer)
        averaged = self.averaged + share * (y - self.averaged)
        seen = self._aimed(k, y, averaged) if self._steered else y
        if not self._turn(k, seen, price, self._memory, *self._public):
            raise DivergedError(k)
        self.price, self.answer, self.averaged = price, answer, averaged
        return price

    def _aimed(self, k: int, y: Array, averaged: Array) -> Array:
        """The sums of round k, less what the average of all has too much of."""
        inside = self._compiled.point(averaged, self._C)
        steer = float(steering(k, self._rounds)[0])
        return np.asarray(y + steer * (averaged - inside))


@final
class GradientTurns:
    """The paper's multipliers; agents step with mu(k) while the cloud works out mu(k+1)."""

    def __init__(self, plan: NoisePlan, algorithm: GradientSteps, rounds: int) -> None:
        self._rows = plan.cloud.rows
        self._algorithm = algorithm
        self._schedule = Schedule(algorithm, rounds)
        self.restart()

    def restart(self) -> None:
        """Forget all rounds."""
        self.price = self.answer = self.averaged = np.zeros(self._rows)

    def take(self, k: int, y: Array) -> Array:
        """Turn the noisy values of round k into mu(k+1), and return mu(k)."""
        told = self.price
        scalars = dict(zip(self._algorithm.scalars, self._schedule[k], strict=True))
        values = scalars | {"mu": told, "y_g": y}
        with np.errstate(all="ignore"):  # what overflows is found below
            price = np.asarray(by_name(self._algorithm.cloud_step, values), dtype=np.float64)
        if not np.isfinite(price).all():
            raise DivergedError(k)
        self.price = self.answer = price
        return told
