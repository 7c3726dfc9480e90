"""Which two behaviours of an agent must look alike: trajectory, per-round or everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast, get_args

import numpy as np

from sottovoce.arguments import whole
from sottovoce.errors import InputError
from sottovoce.problem.agents import Array, Group, read_only

Adjacency = Literal["trajectory", "per-round", "everything"]

# Rounds covered if a trajectory plan names no number: its noise does not depend on it, only the
# allowance for rounding does.
TRAJECTORY_ROUNDS = 1_000_000
_MOST_ROUNDS = 2**53


def adjacency_of(name: str) -> Adjacency:
    """Return the adjacency of that name.

    Raises:
        InputError: there is none.
    """
    for kind in get_args(Adjacency):
        if name == kind:
            return cast("Adjacency", kind)
    raise InputError(f"adjacency must be one of {', '.join(get_args(Adjacency))}, got {name!r}")


def per_agent(name: str, values: Any, agents: int) -> Array:
    """Return one number per agent, a read-only view if one was given for all."""
    wanted = f"{name} must be one number or one per agent ({agents})"
    try:
        array = read_only(values)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{wanted}, got {values!r:.60}") from None
    if array.ndim > 1 or (array.ndim == 1 and array.size != agents):
        raise InputError(f"{wanted}, got shape {array.shape}")
    return np.broadcast_to(array, (agents,))


def radii(
    adjacency: str, radius: Any, domain: Sequence[Group], *, agents: int
) -> tuple[Adjacency, Array]:
    """Return the adjacency and b_l for every agent l.

    ``trajectory``: the two state sequences differ by at most b_l in l2 over all rounds (the paper).
    ``per-round``: they differ by at most b_l in every round. ``everything``: per-round with b_l the
    diameter of X_l, so that any two behaviours are adjacent.

    Args:
        adjacency: one of the three.
        radius: b, one number for all or one per agent; must not be given for "everything".
        domain: the boxes X_l.
        agents: the number of agents n.
    """
    kind = adjacency_of(adjacency)
    if kind == "everything":
        if radius is not None:
            raise InputError(
                f"radius must not be given with adjacency='everything', where it is the diameter "
                f"of each agent's box, got radius={radius!r:.60}: leave it out"
            )
        return kind, read_only(np.concatenate([diameters(group) for group in domain]))
    if radius is None:
        raise InputError(
            f"radius must be given with adjacency={adjacency!r}, got none: how far apart may two "
            "behaviours be that must look alike?"
        )
    values = per_agent("radius", radius, agents)
    wrong = ~(np.isfinite(values) & (values > 0))
    if np.any(wrong):
        raise InputError(f"radius must be positive and finite, got radius={values[wrong][0]:g}")
    return kind, values


def rounds_covered(adjacency: Adjacency, rounds: int | None) -> int:
    """Return the number of rounds T that a plan covers."""
    if rounds is None:
        if adjacency != "trajectory":
            raise InputError(
                f"rounds must be given with adjacency={adjacency!r}, got none: every round adds to "
                "what is revealed, so T rounds cost sqrt(T) more noise"
            )
        return TRAJECTORY_ROUNDS
    return whole("rounds", rounds, least=1, most=_MOST_ROUNDS)


def diameters(group: Group) -> Array:
    """The diameter of each agent's box, rounded up."""
    # hypot neither overflows nor underflows on the way, and errs by less than an ulp per step.
    width = np.asarray(group.upper - group.lower)
    return np.asarray(np.hypot.reduce(width, axis=1) * (1.0 + group.dim * 2.0**-50))
