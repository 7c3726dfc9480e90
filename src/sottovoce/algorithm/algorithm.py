"""The interfaces of algorithms, for simulation and the network.

Two kinds differ in what the cloud hears and says. With *prices* agents minimise locally and
contribute to sums; the cloud turns noisy sums into prices. With *gradient steps* agents send
states, and the cloud answers with noisy values and gradients of the constraints: another release.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    final,
    runtime_checkable,
)

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.errors import InputError
from sottovoce.formula.parse import parse_number
from sottovoce.problem.groups import Array

if TYPE_CHECKING:
    from sottovoce.algorithm.public_sum import Nearest, PublicSum
    from sottovoce.privacy.noise_plan import NoisePlan


@runtime_checkable
class PriceRounds(Protocol):
    """An algorithm whose cloud turns noisy sums into prices."""

    @property
    def theta(self) -> float:
        """The weight of the agents' proximal terms."""
        ...

    def share(self, k: Any, rounds: int, *, noisy: bool) -> Array:
        """The weights of rounds k in the answer: ``answer += share (value - answer)``."""
        ...


@runtime_checkable
class CloudStep(PriceRounds, Protocol):
    """An algorithm with a cloud's step of its own, a Python function; for simulations."""

    def memory_size(self, sums: int) -> int:
        """How many floats the cloud remembers from round to round; all 0 before round 1."""
        ...

    def cloud_round(
        self, k: int, y: Array, price: Array, memory: Array, public: PublicSum, nearest: Nearest
    ) -> Array:
        """Return lambda(k+1).

        Args:
            k: the round, from 1.
            y: its release, in the units of the sums.
            price: lambda(k); 0 in round 1.
            memory: what the cloud remembers, to be changed in place.
            public: C, and the noise of every sum.
            nearest: gives the point of C nearest to a point: ``CloudKernel.nearest``.
        """
        ...


class GradientSteps(ABC):
    """An algorithm whose agents and cloud step at the same time, along gradients."""

    __slots__ = ()
    release: ClassVar[str]  # the name of the release that it works with on the network

    @abstractmethod
    def schedule(self, k: Any) -> Array:
        """The step and the regularisation of rounds k, one row per round."""


Algorithm: TypeAlias = PriceRounds | GradientSteps
_Value = TypeVar("_Value")
_Algorithm = TypeVar("_Algorithm")
_AHEAD: Final = 256


@final
class RoundValues(Generic[_Value]):
    """``k -> value of round k``, computed 256 rounds at a time: they cost hardly more than one.

    Args:
        values: gives the values of an array of rounds.
    """

    def __init__(self, values: Callable[[NDArray[np.int64]], Array]) -> None:
        self._of, self._first = values, 0
        self._values: list[_Value] = []

    def __getitem__(self, k: int) -> _Value:
        """The value of round k."""
        if not self._first <= k < self._first + len(self._values):
            # As Python's numbers, which NumPy multiplies by faster than by its own.
            self._first, self._values = k, self._of(np.arange(k, k + _AHEAD)).tolist()
        return self._values[k - self._first]


def from_schedule(kind: type[_Algorithm], schedule: Mapping[str, Any]) -> _Algorithm:
    """Return an algorithm with the settings that a table ``[schedule]`` states for it."""
    stated = {f.name: schedule[f.name] for f in fields(cast("Any", kind)) if f.name in schedule}
    return kind(
        **{
            name: parse_number(value, where=f"[schedule] {name}")
            if isinstance(value, str)
            else value
            for name, value in stated.items()
        }
    )


def noisy_shares(algorithm: PriceRounds, rounds: int) -> RoundValues[float]:
    """Return the weight of every round in the answer's average where releases are noisy."""
    return RoundValues(lambda k: algorithm.share(k, rounds, noisy=True))


def require_algorithm(algorithm: Any) -> Algorithm:
    """Return an algorithm, or refuse what is none."""
    if isinstance(algorithm, DualAveraging | GradientSteps):
        return algorithm
    if isinstance(algorithm, type) or not isinstance(algorithm, CloudStep):
        raise InputError(
            "algorithm must be sv.DualAveraging(), sv.paper.Tikhonov(), or an object with theta, "
            f"share, memory_size and cloud_round, got {algorithm=!r:.60}"
        )
    return algorithm


def require_release(plan: NoisePlan, algorithm: Algorithm, *, simulated: bool = False) -> None:
    """Refuse a plan that releases other numbers than the algorithm works with.

    A simulation's gradient steps admit sums that are the stated constraints: it computes their
    gradients itself.
    """
    if isinstance(algorithm, GradientSteps):
        fits = plan.release is not None and plan.release.name == algorithm.release
        sums = simulated and plan.release is None and plan.cloud.sums.free
        if not (fits or sums):
            raise InputError(
                "gradient steps need values and gradients of constraints, got a plan that releases "
                "sums: use sv.paper.plan, or the default algorithm"
            )
    elif plan.release is not None:
        raise InputError(
            "the default algorithm works with sums, got a plan that releases values and gradients "
            "of constraints: use sv.plan, or sv.paper.Tikhonov()"
        )
