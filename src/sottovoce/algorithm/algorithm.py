"""What the engine and the network ask of an algorithm."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, ClassVar, Protocol

from sottovoce.errors import InputError
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


@cache
def names_of(step: Any) -> tuple[str, ...]:
    """Return the names of a step's arguments."""
    return tuple(inspect.signature(step).parameters)


def by_name(step: Any, values: Mapping[str, Any]) -> Any:
    """Call a step with each of its arguments by its name."""
    return step(*[values[name] for name in names_of(step)])


def cloud_rows(
    algorithm: Algorithm,
    numbers: Iterable[float],
    mu: Array,
    memory: Iterable[Array],
    y_g: Array,
    *,
    sigma: Array,
    coupled: Array,
) -> tuple[Array, list[Array]]:
    """Take the cloud's step on all rows at once and return mu and the memory.

    Args:
        algorithm: whose step.
        numbers: its ``scalars`` of the round.
        mu: the rows along the last axis, and any number of runs before.
        memory: the parts of ``algorithm.memory``, likewise.
        y_g: the released values, likewise.
        sigma: the noise of every row.
        coupled: 1 for every row with a gradient entry that agents need from the cloud, else 0.
    """
    values: dict[str, Any] = dict(zip(algorithm.scalars, numbers, strict=True))
    values |= dict(zip(algorithm.memory, memory, strict=True))
    values |= {"mu": mu, "y_g": y_g, "sigma": sigma, "coupled": coupled}
    if "worth" in values:
        values["largest"] = values["worth"].max(axis=-1, keepdims=True)
    after, *kept = by_name(algorithm.cloud_step, values)
    return after, kept


def averages(algorithm: Algorithm) -> bool:
    """Whether the answer is an average of the iterates; otherwise it is the last of them."""
    return "share" in algorithm.scalars


def require_algorithm(given: Any) -> Algorithm:
    """Return an algorithm, or refuse what is none."""
    if isinstance(given, type) or not hasattr(given, "cloud_step"):
        raise InputError(
            f"algorithm must be an Algorithm, got algorithm={given!r:.60}: use sv.Averaging() or "
            "sv.Tikhonov()"
        )
    return given  # type: ignore[no-any-return]
