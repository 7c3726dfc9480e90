"""Points of agents' own sets: what they apply when there is no answer must be theirs to apply."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy as sp

from sottovoce.errors import ProblemError
from sottovoce.problem.agents import Array, Group, read_states
from sottovoce.problem.kinks import NUMPY
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
    symbols = [*group.symbols, *group.parameters]
    values = [*points.T, *group.parameters.values()]
    found = np.zeros((group.count, own.rows))
    with np.errstate(all="ignore"):
        for r, g in enumerate((*own.inequalities, *own.equalities)):
            row = sp.lambdify(symbols, g, modules=[NUMPY, "numpy"])(*values)
            size = sum(np.abs(np.asarray(v, dtype=np.float64)) for v in values)
            off = np.abs(row) if r >= len(own.inequalities) else np.asarray(row)
            beyond = off - _CLOSE * (1.0 + size)
            found[:, r] = np.where(np.isfinite(beyond), beyond, np.inf)
    return found
