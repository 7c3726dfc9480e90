"""The interface of a release other than noisy sums, and the registry of such releases.

A release says what agents send (contribute), which noisy numbers the cloud makes of it (release),
and how prices and states follow from these (answer). Noisy sums are the default and need no entry
here. Any other registers itself when its package is imported. Plans, rounds of a simulation and
rounds on the network reach it through ``NoisePlan.release`` or, by name, ``release_of``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final

from sottovoce.errors import InputError

if TYPE_CHECKING:
    from sottovoce.certificate.optimum import ReferenceOptimum
    from sottovoce.privacy.noise_plan import NoisePlan
    from sottovoce.problem.groups import Array
    from sottovoce.problem.problem import CloudView, Problem

REGISTERED: Final[dict[str, Callable[[], StateRelease]]] = {}  # what loads each release, by name
ALGORITHMS: Final[dict[str, str]] = {}  # releases by algorithm; all others work with sums


class StateRelease(ABC):
    """What agents, cloud and simulation do where the release is computed from states, not sums.

    Agents send their states, and the cloud answers with noisy values and gradients of constraints;
    ``NoisePlan.outputs`` lists these.
    """

    name: ClassVar[str]
    sent: ClassVar[str]  # what an agent sends, in one word

    @property
    @abstractmethod
    def algorithm(self) -> type:
        """The algorithm that works with it, a frozen dataclass of plain numbers."""

    @property
    @abstractmethod
    def plan(self) -> Callable[..., NoisePlan]:
        """What chooses its noise, as ``sv.plan`` does that of sums."""

    @abstractmethod
    def limit(
        self, problem: Problem, plan: NoisePlan, rounds: int, optimum: ReferenceOptimum
    ) -> tuple[Array, Array, tuple[int, ...]]:
        """Return the least standard deviations of x and of prices, and the flat components of x."""

    @abstractmethod
    def contribution(
        self,
        cloud: CloudView,
        group: Any,
        algorithm: Any,
        *,
        welcome: Any,
        begin: int,
        bounds: tuple[Array, Array],
    ) -> Any:
        """Return an agent's half of a round on the network: ``(k, x, price, y) -> x(k+1)``.

        Args:
            cloud: the public problem.
            group: the agent, a ``network.agent_group.LocalGroup`` of one.
            algorithm: whose step it takes.
            welcome: the cloud's description of the run.
            begin: the offset of its states among those of its connection.
            bounds: lower and upper, shape (1, d) each.
        """

    @abstractmethod
    def outputs(self, plan: NoisePlan) -> Any:
        """Return what turns messages into released numbers: a ``CloudRelease``."""

    @abstractmethod
    def prices(self, plan: NoisePlan, algorithm: Any) -> Any:
        """Return what turns released numbers into prices: a ``CloudState``."""


def register_release(name: str, algorithm: str, load: Callable[[], StateRelease]) -> None:
    """Make a release known by its name, and by that of its algorithm; ``load`` imports it."""
    REGISTERED[name] = load
    ALGORITHMS[algorithm] = name


def release_of(name: str) -> StateRelease:
    """Return the release of that name, or refuse it."""
    if name not in REGISTERED:
        methods = " or ".join(map(repr, ("joint", *REGISTERED)))
        raise InputError(f"method must be {methods}, got {name!r:.60}")
    return REGISTERED[name]()
