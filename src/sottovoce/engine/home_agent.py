"""One agent's minimisation at home, in plain Python: nothing to compile, the bits of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from sottovoce.engine.formulas import Fleet
from sottovoce.engine.home_shape import Separable
from sottovoce.engine.interior_agent import InteriorAgent
from sottovoce.engine.separable_agent import SeparableAgent
from sottovoce.problem.agents import Array
from sottovoce.problem.epigraph import HomeForm


@final
class HomeAgent:
    """Minimises for one agent whose problem a search or an interior-point method serves.

    Args:
        fleet: the agent, a fleet of one.
        shape: how it minimises.
        lower: its own bounds, shape (d,).
        upper: likewise.
    """

    def __init__(
        self, fleet: Fleet, shape: Separable | HomeForm, lower: Array, upper: Array
    ) -> None:
        self._general = self._round = self._nearest = None
        if isinstance(shape, HomeForm):
            self._general = InteriorAgent(fleet, shape, lower, upper)
        else:
            bounds = (lower.tolist(), upper.tolist())
            self._round = SeparableAgent(fleet, shape, "round", *bounds)
            self._nearest = SeparableAgent(fleet, shape, "project", *bounds)

    def round(self, x: Array, prices: Sequence[float], k: int, theta: float) -> Array:
        """Return x(k+1), shape (d,), with the price of every term."""
        if self._general is not None:
            return self._general.round(x, prices, k, theta)
        assert self._round is not None  # noqa: S101  one of both is
        return np.array(self._round(x.tolist(), prices, k, theta))

    def nearest(self, x: Array) -> Array:
        """The point of the agent's own set nearest to x."""
        if self._general is not None:
            return self._general.nearest(x)
        assert self._nearest is not None  # noqa: S101  one of both is
        return np.array(self._nearest(x.tolist()))
