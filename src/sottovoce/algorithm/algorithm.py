"""What the engine and the network ask of an algorithm."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from sottovoce.problem.agents import Array


class Algorithm(Protocol):
    """A frozen configuration: numbers per round, a step for agents and a step for the cloud.

    Both steps are pure functions of plain arithmetic, so that one text serves floats, NumPy arrays
    and compiled kernels. They are called by the names of their arguments: ``x``, ``slope``,
    ``lower`` and ``upper`` for an agent, ``mu`` and ``y_g`` for the cloud, and any of ``scalars``.
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

    def schedule(self, k: Any) -> Array:
        """Return the values of ``scalars`` for the rounds ``k >= 1``, one row per round."""
        ...
