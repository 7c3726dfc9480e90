"""What the engine and the network ask of an algorithm, and the algorithms there are.

Two kinds differ in what the cloud hears and says. With *prices* agents minimise at home and
contribute to sums; the cloud turns noisy sums into prices. With *gradient steps*, the paper's way,
agents send states, and the cloud answers with noisy values and gradients of the constraints.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

from sottovoce.errors import InputError
from sottovoce.problem.agents import Array


@runtime_checkable
class PriceRounds(Protocol):
    """An algorithm whose cloud turns noisy sums into prices: a frozen dataclass of plain numbers.

    Functions are plain arithmetic on arrays, so that one text serves Python and compiled kernels.
    """

    @property
    def constants(self) -> Any:
        """Its numbers as a named tuple of floats; one of them is ``theta``."""
        ...

    @property
    def cloud_round(self) -> Any:
        """``(k, y, price, memory, rows, constants, phi) -> fine``: price and memory in place."""
        ...

    def memory_size(self, sums: int) -> int:
        """How many floats of memory the cloud needs, scratch included; all 0 before round 1."""
        ...

    def share(self, k: Any, rounds: int, *, noisy: bool) -> Array:
        """The weights of rounds k in the answer: ``answer += share (value - answer)``."""
        ...


@runtime_checkable
class GradientSteps(Protocol):
    """The paper's kind of algorithm: agents and cloud step at the same time, along gradients.

    Steps are called by the names of their arguments: the agent's gets ``x``, ``slope``, ``lower``,
    ``upper`` and any of ``scalars``, component by component; the cloud's ``mu``, ``y_g`` and any of
    ``scalars``.

    Attributes:
        scalars: the numbers that ``schedule`` gives per round.
    """

    scalars: ClassVar[tuple[str, ...]]

    @property
    def agent_step(self) -> Any:
        """The function that gives x_i(k+1)."""
        ...

    @property
    def cloud_step(self) -> Any:
        """The function that gives mu(k+1)."""
        ...

    def schedule(self, k: Any, rounds: int) -> Array:
        """Return the values of ``scalars`` for rounds k of 1..rounds, one row per round."""
        ...


Algorithm: TypeAlias = PriceRounds | GradientSteps


@cache
def names_of(step: Any) -> tuple[str, ...]:
    """Return the names of a step's arguments."""
    return tuple(inspect.signature(step).parameters)


def by_name(step: Any, values: Mapping[str, Any]) -> Any:
    """Call a step with each of its arguments by its name."""
    return step(*[values[name] for name in names_of(step)])


def require_algorithm(given: Any) -> Algorithm:
    """Return an algorithm, or refuse what is none."""
    if isinstance(given, type) or not isinstance(given, PriceRounds | GradientSteps):
        raise InputError(
            f"algorithm must be an Algorithm, got algorithm={given!r:.60}: use sv.DualAveraging() "
            "or sv.Tikhonov()"
        )
    return given
