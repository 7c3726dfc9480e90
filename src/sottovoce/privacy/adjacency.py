"""Adjacency: which two behaviours of an agent a plan makes indistinguishable.

A behaviour is what an agent does whatever it receives: the states it takes, round by round. The
plan bounds how well an attacker who sees all messages distinguishes two *adjacent* behaviours; the
values here say which ones are adjacent, and for how many rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal, TypeAlias, cast, final, get_args

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.arguments import whole
from sottovoce.errors import InputError
from sottovoce.problem.groups import Array, read_only

PerAgent: TypeAlias = float | Sequence[float] | Array  # one number for all agents, or one each
TRAJECTORY_ROUNDS: Final = 1_000_000  # by default: only the rounding allowance depends on them


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Two behaviours whose state sequences differ by at most ``radius`` in l2 over all rounds.

    ``sqrt(sum_k |x_l(k) - x'_l(k)|^2) <= b``, the paper's adjacency. A change in one round may be
    as large as b; a constant offset over T rounds only ``b / sqrt(T)``.

    The guarantee covers ``rounds``, by default ``TRAJECTORY_ROUNDS``; it is then ``open_ended``,
    and a run names its own number.
    """

    radius: PerAgent  # b
    rounds: int = cast("int", None)  # T; never None after __post_init__
    open_ended: bool = field(init=False, repr=False, compare=False)
    kind: ClassVar[Kind] = "trajectory"

    def __post_init__(self) -> None:
        object.__setattr__(self, "open_ended", self.rounds is None)
        if self.open_ended:
            object.__setattr__(self, "rounds", TRAJECTORY_ROUNDS)
        whole("rounds", self.rounds, least=1)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """Two behaviours that differ by at most ``radius`` in every round, all rounds together.

    ``|x_l(k) - x'_l(k)| <= b`` for every k: a constant offset of b stays hidden. The noise grows
    as sqrt(T) with the rounds that the guarantee covers.
    """

    radius: PerAgent  # b
    rounds: int  # T
    kind: ClassVar[Kind] = "offset"

    def __post_init__(self) -> None:
        whole("rounds", self.rounds, least=1)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Everything:
    """Any two behaviours within the agent's public set: objective and data are hidden too.

    The noise grows as sqrt(T) with the rounds that the guarantee covers.
    """

    rounds: int  # T
    kind: ClassVar[Kind] = "everything"

    def __post_init__(self) -> None:
        whole("rounds", self.rounds, least=1)


Adjacency: TypeAlias = Trajectory | Offset | Everything
Kind: TypeAlias = Literal["trajectory", "offset", "everything"]


def kind_of(name: str) -> Kind:
    """Return the kind of that name, or refuse it."""
    if name not in get_args(Kind):
        raise InputError(f"hide must be one of {', '.join(get_args(Kind))}, got {name!r:.60}")
    return cast("Kind", name)


def adjacency_of(
    kind: str, *, radius: PerAgent | None = None, rounds: int | None = None
) -> Adjacency:
    """Return what is hidden from its parts, as commands and files name them, or refuse them."""
    kind = kind_of(kind)
    require_radius(kind, has_radius=radius is not None)
    if rounds is None and kind != Trajectory.kind:
        raise InputError(
            f"rounds must be given to hide {kind}: every round adds to what is revealed, so T "
            "rounds cost sqrt(T) more noise"
        )
    covered = cast("int", rounds)
    if radius is None:
        return Everything(rounds=covered)
    if kind == Offset.kind:
        return Offset(radius=radius, rounds=covered)
    return Trajectory(radius=radius, rounds=covered)


def require_radius(kind: Kind, *, has_radius: bool) -> None:
    """Refuse a radius where any two behaviours are adjacent, and none where it is needed."""
    if kind == Everything.kind and has_radius:
        raise InputError(
            "radius must not be given to hide everything, where any two behaviours are adjacent: "
            "leave it out"
        )
    if kind != Everything.kind and not has_radius:
        raise InputError(
            f"radius must be given to hide {'a' if kind == Trajectory.kind else 'an'} {kind}, got "
            "none: name the largest distance of adjacent behaviours"
        )


def per_agent(name: str, values: ArrayLike, agents: int) -> Array:
    """Return one number per agent, a read-only view if one was given for all."""
    requirement = f"{name} must be one number or one per agent ({agents})"
    try:
        array = read_only(values)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{requirement}, got {values!r:.60}") from None
    if array.ndim > 1 or (array.ndim == 1 and array.size != agents):
        raise InputError(f"{requirement}, got shape {array.shape}")
    return np.broadcast_to(array, (agents,))


def radii(hide: Trajectory | Offset, agents: int) -> Array:
    """Return b_l for every agent l."""
    values = per_agent("radius", hide.radius, agents)
    wrong = ~(np.isfinite(values) & (values > 0))
    if np.any(wrong):
        raise InputError(f"radius must be positive and finite, got radius={values[wrong][0]:g}")
    return values
