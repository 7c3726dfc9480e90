"""What an agent sends in a round in which its own code fails: never nothing.

An agent that stopped there would stop the run, and tell everybody that its state is one at which
its code fails. What it sends instead is part of its behaviour, to which adjacency refers:

    per-round, everything    what it sent before: in rounds that fail under two adjacent behaviours
                             it differs no more than then
    trajectory               the middle of its bounds, which is public: a repeated difference would
                             count again, this one is none
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.network.protocol.box import middle
from sottovoce.problem.agents import Array

REPEATING: Final = frozenset({"per-round", "everything"})
"""Adjacencies under which a state may count in more than one round."""


@final
class Fallback:
    """Replaces the state of every agent whose step gave no numbers, and of no other.

    Args:
        sizes: how many numbers each agent's state has.
        lower: bounds from the cloud, one after the other.
        upper: likewise.
        promise: of the run's configuration; where it names no adjacency, nothing is repeated.
    """

    def __init__(
        self, sizes: Sequence[int], lower: Array, upper: Array, promise: Mapping[str, Any]
    ) -> None:
        self._owner = np.repeat(np.arange(len(sizes)), sizes)
        self._middle = middle(lower, upper)
        self._repeats = promise.get("adjacency") in REPEATING

    def failed(self, x: Array) -> NDArray[np.int64]:
        """The places, from 0, of the agents whose step is not finite."""
        return np.unique(self._owner[~np.isfinite(x)])

    def state(self, x: Array, before: Array) -> Array:
        """The state to send: x, and for agents that failed what they send instead.

        Args:
            x: x(k+1) as the step gave it.
            before: x(k), what was sent last.
        """
        return self.kept(x, x, before if self._repeats else self._middle)

    def kept(self, x: Array, values: Array, instead: Array) -> Array:
        """``values``, and ``instead`` where they belong to an agent whose step x is not finite."""
        return np.where(np.isin(self._owner, self.failed(x)), instead, values)
