"""Points of agents' own sets: what they apply when there is no answer must be theirs to apply."""

from __future__ import annotations

from typing import Any

import numpy as np

from sottovoce.errors import ProblemError
from sottovoce.formula.tape import tape
from sottovoce.problem.agents import Array, Group, read_states
from sottovoce.problem.local import LocalSet

_CLOSE = 1e-9  # how far off a row may be, relative to the size of what it adds up


def read_fallback(given: Any, group: Group, own: LocalSet) -> Array | None:
    """Return what the agents of a group apply without an answer, shape (count, d), if it is said.

    Args:
        given: one state for all of them, or one for each.
        group: the agents.
        own: the set that each of them keeps to.

    Raises:
        ProblemError: if it is no such state; the values stay unsaid, they are private.
    """
    if given is None:
        return None
    points = read_states("fallback", given, group)
    inside = np.all((points >= own.lower) & (points <= own.upper), axis=1)
    inside &= np.all(_off(group, own, points) <= 0.0, axis=1)
    if not inside.all():
        place = int(np.argmin(inside))
        raise ProblemError(
            f"fallback of {group.label(place)} must lie in its own set, bounds and local rows, got "
            "a state that does not: it is applied when there is no answer"
        )
    return points


def _off(group: Group, own: LocalSet, points: Array) -> Array:
    """How much each row is off beyond rounding, shape (count, rows)."""
    values = [*points.T, *group.parameters.values()]
    rows = tape((*own.inequalities, *own.equalities), (*group.symbols, *group.parameters))
    found = np.stack([np.zeros(group.count), *rows.arrays(values, (group.count,))], axis=1)[:, 1:]
    equal = len(own.inequalities)
    found[:, equal:] = np.abs(found[:, equal:])
    size = np.abs(values).sum(axis=0)
    beyond = found - _CLOSE * (1.0 + size[:, np.newaxis])
    return np.where(np.isfinite(beyond), beyond, np.inf)
