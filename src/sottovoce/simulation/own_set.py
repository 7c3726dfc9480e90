"""Where each agent may be: the part of its own set that lies in the public domain of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sottovoce.errors import InputError, ProblemError
from sottovoce.problem.agents import Array, Group, read_only
from sottovoce.problem.feasible import require_nonempty
from sottovoce.problem.local import LocalSet


def own_domain(
    groups: Sequence[Group], domain: Sequence[Group], local: Sequence[LocalSet]
) -> tuple[Group, ...]:
    """Return the public groups with every agent's own bounds inside the public ones.

    Args:
        groups: the agents, with all their parameters.
        domain: the groups with the public boxes of a run.
        local: what each group's agents keep to besides.

    Raises:
        ProblemError: naming the agent, and the rows, that leave it no point there.
    """
    found = []
    for group, public, own in zip(groups, domain, local, strict=True):
        lower, upper = own_bounds(group, own, public.lower, public.upper)
        same = lower is public.lower and upper is public.upper
        found.append(public if same else replace(public, lower=lower, upper=upper))
    return tuple(found)


def require_no_rows(local: Sequence[LocalSet]) -> None:
    """Refuse sets with rows: a gradient step ends in a box.

    Raises:
        InputError: naming the first row.
    """
    for own in local:
        if own.rows:
            raise InputError(
                "gradient steps keep agents in boxes, got the local row "
                f"{own.labels[0]:.80}: use the default algorithm"
            )


def own_bounds(group: Group, own: LocalSet, lower: Array, upper: Array) -> tuple[Array, Array]:
    """Return the bounds of the agents' own sets inside public ones, all of shape (count, d).

    Raises:
        ProblemError: naming the agent, and the rows, that leave it no point there.
    """
    low = _tighter(own.lower, lower, np.maximum)
    high = _tighter(own.upper, upper, np.minimum)
    if (low is not own.lower or high is not own.upper) and np.any(low > high):
        place = int(np.argmax(np.any(low > high, axis=1)))
        raise ProblemError(
            f"the own bounds of {group.label(place)} must meet the public domain, got none in "
            "common: widen them, or relax the public constraints that shrank its box"
        )
    if own.rows and not (low is own.lower and high is own.upper):
        require_nonempty(group, replace(own, lower=low, upper=high))
    return low, high


def _tighter(own: Array, public: Array, pick: np.ufunc) -> Array:
    """The tighter of two bounds; one of both themselves where it is that, as fleets are large."""
    if own is public:
        return public
    flat = public[:1] if public.strides[0] == 0 else public
    tight = pick(own, flat)
    for same in (own, public):  # the agent's own first: its rows need no second look then
        if np.array_equal(tight, same):
            return same
    return read_only(tight)
