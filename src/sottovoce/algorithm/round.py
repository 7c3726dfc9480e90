"""One round at an agent's home, written once for engine, network and audit.

The cloud's half of the round is ``dual_averaging.cloud_round``. Both are plain functions that run
in Python as they stand and compile to the same arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sottovoce.algorithm.dual_averaging import damping
from sottovoce.algorithm.home_block import select
from sottovoce.algorithm.newton import minimise_vector
from sottovoce.algorithm.search import minimise


def agent_round(
    slope: Any, pull: Any, context: Any, x: Any, lower: Any, upper: Any, k: Any, theta: Any
) -> Any:
    """Return ``x(k+1) = argmin over X_i of f_i + lambda'h_i + eps (x - x(k))^2 / 2``.

    ``eps = theta k^-1/2 |d(lambda'h_i)/dx| / width`` keeps an agent from jumping across its whole
    set when a price moves by little, and fades.

    Args:
        slope: ``d(f_i + lambda'h_i)/dx``, a function of ``context`` and x that does not decrease.
        pull: ``d(lambda'h_i)/dx``, likewise a function.
        context: whatever these want besides.
        x: x_i(k).
        lower: lower bound of X_i.
        upper: upper bound of X_i.
        k: the round.
        theta: the weight of the damping.
    """
    if not lower < upper:
        return x
    weight = damping(k, pull(context, x), upper - lower, theta)
    return minimise(slope, context, x, lower, upper, weight)


def vector_round(
    slope: Any, pull: Any, context: Any, x: Any, lower: Any, upper: Any, k: Any, theta: Any
) -> Any:
    """Return the same minimiser for an agent whose state is a vector; all are arrays of size d."""
    weight = dampings(pull, context, x, lower, upper, k, theta)
    return minimise_vector(slope, context, x, lower, upper, weight)


def dampings(pull: Any, context: Any, x: Any, lower: Any, upper: Any, k: Any, theta: Any) -> Any:
    """``eps`` of every component; 0 for variables that follow those of the state."""
    force = pull(context, x)
    weight = np.zeros(x.size)
    for c in range(force.size):
        weight[c] = home_damping(k, force[c], upper[c] - lower[c], theta)
    return weight


def home_damping(k: Any, force: Any, width: Any, theta: Any) -> Any:
    """``eps`` of one component; 0 where the box leaves it no room."""
    room = width > 0.0
    return select(room, damping(k, force, select(room, width, 1.0), theta), 0.0)
