"""What the engine and the network ask of an algorithm, and the algorithms there are.

Two kinds differ in what the cloud hears and says. With *prices* agents minimise locally and
contribute to sums; the cloud turns noisy sums into prices. With *gradient steps* agents send
states, and the cloud answers with noisy values and gradients of the constraints: another release.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.errors import InputError
from sottovoce.kernels.cloud_kernel import PublicSum
from sottovoce.problem.agents import Array


@runtime_checkable
class PriceRounds(Protocol):
    """An algorithm whose cloud turns noisy sums into prices."""

    @property
    def theta(self) -> float:
        """The weight of the agents' damping."""
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
        self,
        k: int,
        y: Array,
        price: Array,
        memory: Array,
        public: PublicSum,
        nearest: Callable[[Array], Array],
    ) -> Array:
        """Return lambda(k+1).

        Args:
            k: the round, from 1.
            y: its release, in the units of the sums.
            price: lambda(k); 0 in round 1.
            memory: what the cloud remembers, to be changed in place.
            public: C, and the noise of every sum.
            nearest: gives the point of C nearest to a point.
        """
        ...


class GradientSteps(ABC):
    """An algorithm whose agents and cloud step at the same time, along gradients.

    Attributes:
        release: the name of the release that it works with on the network.
    """

    __slots__ = ()
    release: ClassVar[str]

    @abstractmethod
    def schedule(self, k: Any) -> Array:
        """The step and the regularisation of rounds k, one row per round."""


Algorithm: TypeAlias = PriceRounds | GradientSteps


def require_algorithm(given: Any) -> Algorithm:
    """Return an algorithm, or refuse what is none."""
    if isinstance(given, DualAveraging | GradientSteps):
        return given
    if isinstance(given, type) or not isinstance(given, CloudStep):
        raise InputError(
            f"algorithm must be an Algorithm, got algorithm={given!r:.60}: use sv.DualAveraging() "
            "or sv.paper.Tikhonov()"
        )
    return given
