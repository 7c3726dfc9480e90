"""What an agent goes on with where its own code fails: it never falls silent.

An agent that stopped there would stop the run, and tell everybody that its state is one at which
its code fails. What it takes for its state instead, and contributes or sends as such, is part of
its behaviour, of which the plan says what is hidden:

    offset, everything    the state before: in rounds that fail under two behaviours that must look
                          alike it differs no more than then
    trajectory            the middle of its bounds, which is public: a repeated difference would
                          count again, this one is none
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.network.protocol.codec import middle
from sottovoce.privacy.adjacency import Everything, Offset
from sottovoce.problem.agents import Array

REPEATING: Final = frozenset({Offset.kind, Everything.kind})
"""What is hidden where a state may count in more than one round."""


@final
class Substitute:
    """Replaces the state of every agent whose step gave no numbers, and of no other.

    Args:
        sizes: how many numbers each agent's state has.
        lower: bounds from the cloud, one after the other.
        upper: likewise.
        promise: of the run's configuration; where it does not say what is hidden, nothing is
            repeated.
    """

    def __init__(
        self, sizes: Sequence[int], lower: Array, upper: Array, promise: Mapping[str, Any]
    ) -> None:
        self._owner = np.repeat(np.arange(len(sizes)), sizes)
        self._middle = middle(lower, upper)
        self._repeats = promise.get("hide") in REPEATING

    def failed(self, x: Array) -> NDArray[np.int64]:
        """The places, from 0, of the agents whose step is not finite."""
        return np.unique(self._owner[~np.isfinite(x)])

    def state(self, x: Array, before: Array) -> Array:
        """x, and for agents that failed what they take for their state instead.

        Args:
            x: x(k+1) as the round gave it.
            before: x(k).
        """
        return self.kept(x, x, before if self._repeats else self._middle)

    def kept(self, x: Array, values: Array, instead: Array) -> Array:
        """``values``, and ``instead`` where they belong to an agent whose step x is not finite."""
        return np.where(self.of(x), instead, values)

    def of(self, x: Array) -> NDArray[np.bool_]:
        """Which numbers of a state belong to an agent whose step x is not finite."""
        return np.isin(self._owner, self.failed(x))
