"""What the engine and the network ask of an algorithm."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from sottovoce.problem.agents import Array


class Algorithm(Protocol):
    """A frozen configuration: numbers per round, a step for agents and a step for the cloud.

    Steps are pure functions of plain arithmetic, so that one text serves floats, NumPy arrays and
    compiled kernels. They are called by the names of their arguments.

    The cloud's step gets, of one row of g or of all as arrays, ``mu``, ``y_g``, whatever is named
    in ``memory``, ``sigma``, ``coupled`` (1 where a gradient entry of the row is released, else 0),
    ``largest`` (the largest ``worth`` of any row, if the memory has one) and any of ``scalars``. It
    returns mu and the memory, as a tuple.

    The agents' step depends on ``thinks``. Without, agents and cloud step at the same time, each
    component by itself, from ``x``, ``slope``, ``lower``, ``upper`` and any of ``scalars``. With
    it, agents step after the cloud, with the new mu, and get their own part of the Lagrangian as a
    function: ``agent_step`` for a scalar state, ``vector_step`` for others, with ``slope``,
    ``context`` (what slope wants besides x), ``x``, ``lower``, ``upper``, ``coupling`` (0 unless
    gradient entries are released to the agent: ``sum_released mu_j L_ji``) and any of ``scalars``.

    Attributes:
        scalars: the numbers that ``schedule`` gives per round. If ``share`` is among them, the
            answer is an average: ``answer += share (x - answer)`` after every round, by the agent,
            while the cloud keeps that of mu.
        memory: what the cloud remembers of every row, besides mu; the last part is called
            ``answer`` if the answer is not mu itself.
        thinks: whether agents minimise at home.
    """

    scalars: ClassVar[tuple[str, ...]]
    memory: ClassVar[tuple[str, ...]]
    thinks: ClassVar[bool]

    @property
    def agent_step(self) -> Any:
        """The function that gives x_i(k+1)."""
        ...

    @property
    def vector_step(self) -> Any:
        """The function that gives x_i(k+1) where agents think and x_i is a vector."""
        ...

    @property
    def cloud_step(self) -> Any:
        """The function that gives mu(k+1)."""
        ...

    def start(self, mu: Any) -> tuple[Any, ...]:
        """Return the memory before round 1, given mu(1)."""
        ...

    def schedule(self, k: Any, rounds: int) -> Array:
        """Return the values of ``scalars`` for rounds k of 1..rounds, one row per round."""
        ...


def by_name(step: Any, values: Mapping[str, Any]) -> Any:
    """Call a step with each of its arguments by its name."""
    return step(*(values[name] for name in inspect.signature(step).parameters))


def averages(algorithm: Algorithm) -> bool:
    """Whether the answer is an average of the iterates; otherwise it is the last of them."""
    return "share" in algorithm.scalars
