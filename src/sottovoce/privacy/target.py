"""What of the public set C the cloud aims at: all of C, or C with its edges moved in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sottovoce.problem.agents import Array
from sottovoce.problem.sums import Sums


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Target:
    """A smaller C.

    Attributes:
        lower: least value of every sum, shape (p,).
        upper: largest value, likewise; an equality has both alike, and is not moved.
        moved: per region how much its edge is moved in: a ball's radius is so much smaller, any
            other region is ``{phi(u) <= -moved}``.
    """

    lower: Array
    upper: Array
    moved: tuple[float, ...]

    @staticmethod
    def whole(sums: Sums) -> Target:
        """Return C as it was stated."""
        return Target(lower=sums.lower, upper=sums.upper, moved=(0.0,) * len(sums.regions))

    @property
    def nonempty(self) -> bool:
        """Whether no interval is empty; whether regions are is not looked at."""
        return bool(np.all(self.lower <= self.upper))
