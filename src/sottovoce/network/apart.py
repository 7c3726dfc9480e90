"""Agents whose own sets miss the public domain of a run.

The domain follows from public constraints, an agent's set from what only the agent knows. One that
ended there would stop the run, which tells everybody something of its set. So it takes part with
the public point nearest to its set in all rounds, and applies its fallback.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import ProblemError
from sottovoce.formula.expression import ZERO
from sottovoce.kernels import fleet as kernels
from sottovoce.problem.agents import Array
from sottovoce.problem.fleet import Fleet
from sottovoce.simulation.layout import fleet_kernel
from sottovoce.simulation.own_set import own_bounds

_STEPS = 200  # between the two sets; without rows one is exact


def apart(fleet: Fleet, lower: Array, upper: Array) -> NDArray[np.bool_]:
    """Return which agents have no point of their own set between public bounds, (count, d) each."""
    count = fleet.group.count
    if not _misses(fleet, lower, upper):
        return np.zeros(count, dtype=np.bool_)
    alone = (fleet.some(np.array([place])) for place in range(count))
    ends = zip(alone, lower[:, np.newaxis], upper[:, np.newaxis], strict=True)
    return np.array([_misses(*one) for one in ends])


def nearest_points(fleet: Fleet, lower: Array, upper: Array, *, boxes: bool) -> tuple[Array, Array]:
    """Return the public point nearest to an agent's own set, and that set's nearest to it.

    Projections onto one convex set and the other in turn come to the nearest points of both.

    Args:
        fleet: the agent, a fleet of one with a set of its own.
        lower: public bounds, shape (1, d).
        upper: likewise.
        boxes: whether agents keep to boxes, whatever rows they have, as gradient steps do.
    """
    own = fleet.local
    assert own is not None  # noqa: S101  a public box cannot miss itself
    if boxes or not own.rows:
        middle = np.clip(lower / 2.0 + upper / 2.0, own.lower, own.upper)
        public = np.clip(middle, lower, upper)
        return public, np.clip(public, own.lower, own.upper)
    private = fleet_kernel(replace(fleet, objective=ZERO, sums=()), own.lower, own.upper)
    public = lower / 2.0 + upper / 2.0
    for _ in range(_STEPS):
        point = kernels.Fleet(private, public).states
        before, public = public, np.clip(point, lower, upper)
        if np.array_equal(before, public):
            break
    return public, point


def _misses(fleet: Fleet, lower: Array, upper: Array) -> bool:
    if fleet.local is None:
        return False
    try:
        own_bounds(fleet.group, fleet.local, lower, upper)
    except ProblemError:
        return True
    return False
