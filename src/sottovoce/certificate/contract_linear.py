"""What linear rows imply for the states in them: each gets what the others leave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from sottovoce.certificate.contract import EmptyDomainError
from sottovoce.problem.agents import Array


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Box:
    """The box of named agents' states, which shrinks in place.

    Attributes:
        lower: least values, shape (N,).
        upper: largest values.
    """

    lower: Array
    upper: Array

    def sides(self, column: int) -> tuple[Array, Array]:
        """Both ends of one component, as views that follow what rows imply."""
        return self.lower[column : column + 1], self.upper[column : column + 1]

    def propagate(self, weights: Any, row: int, offset: float) -> float:
        """Shrink the box to where ``W[row] x + offset <= 0`` can hold, rounded outwards.

        Returns:
            The largest relative shrinkage of a side.

        Raises:
            EmptyDomainError: if it holds nowhere.
        """
        begin, end = weights.indptr[row : row + 2]
        at, w = weights.indices[begin:end], weights.data[begin:end]
        low, high = self.lower[at], self.upper[at]
        ends = np.where(w > 0, low, high) * w
        least_each = np.nextafter(ends, -np.inf)
        sizes = float(np.sum(np.abs(least_each))) + abs(offset)
        least = offset + float(np.sum(least_each)) - (w.size + 4) * 2.0**-52 * sizes
        # However small the others are, this one may reach no more than the room they leave.
        room = least_each - (least - 4.0 * np.spacing(abs(least)))
        room = room + 2.0 * np.spacing(np.maximum(np.abs(room), np.abs(least_each)))
        edge = room / w
        edge = np.where(w > 0, np.nextafter(edge, np.inf), np.nextafter(edge, -np.inf))
        upper = np.where(w > 0, np.minimum(high, edge), high)
        lower = np.where(w > 0, low, np.maximum(low, edge))
        if np.any(lower > upper):
            raise EmptyDomainError(f"row {row + 1}")
        moved, width = np.maximum(lower - low, high - upper), high - low
        self.lower[at], self.upper[at] = lower, upper
        return float(np.max(moved[width > 0] / width[width > 0], initial=0.0))
