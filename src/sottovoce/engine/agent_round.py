"""One agent's round at home, in plain Python: nothing to compile, and the bits of a kernel.

An agent by itself on the network takes it, and one whose objective is code wherever it is.
"""

from __future__ import annotations

from math import isfinite
from typing import Any, final

import numpy as np

from sottovoce.algorithm.algorithm import PriceRounds
from sottovoce.algorithm.round import agent_round, vector_round
from sottovoce.engine.agent_text import slope_of, values_of
from sottovoce.engine.formulas import Fleet, reach_of
from sottovoce.engine.home_agent import HomeAgent
from sottovoce.engine.home_shape import general_form, shape_of
from sottovoce.engine.interior_agent import InteriorAgent
from sottovoce.engine.slopes import used_parameters
from sottovoce.problem.agents import Array
from sottovoce.problem.code import Watched


@final
class AgentRound:
    """``x(k) -> x(k+1)`` of one agent by itself, and what it adds to the sums.

    Args:
        fleet: the agent, a fleet of one.
        gradient: of its objective, if that is code; None: its formula tells.
        algorithm: whose rounds it takes part in.
        lower: its bounds, shape (1, d).
        upper: likewise.
        grid: the grid of every sum, shape (p,).
    """

    def __init__(
        self,
        fleet: Fleet,
        gradient: Watched | None,
        algorithm: PriceRounds,
        *,
        lower: Array,
        upper: Array,
        grid: Array,
    ) -> None:
        self._slopes = OwnSlopes(fleet, gradient)
        self._terms = values_of(fleet, [h for part in fleet.sums for h in part.terms])
        self._theta = float(algorithm.constants.theta)
        self._lower, self._upper = lower[0], upper[0]
        self._rows = fleet.local is not None and fleet.local.rows > 0
        self._home = self._at_home(fleet, gradient)
        if gradient is not None and not self._rows:
            gradient.look(self._lower, self._upper)  # rows: the method at home looks around itself
        reach = enumerate(reach_of(fleet))
        self._sums = grid.size
        self._adds = tuple(
            (term, row, weight, float(grid[row])) for term, pairs in reach for row, weight in pairs
        )

    def __call__(self, k: int, x: Array, price: Array) -> tuple[Array, Array]:
        """Return x(k+1), shape (1, d), and its contributions in grid steps, shape (p,)."""
        context = self._slopes.multipliers(price)
        if self._home is not None:
            after = self._home.round(x[0], context, k, self._theta)[np.newaxis]
        else:
            after = self._vector(k, x[0], context) if x.size > 1 else self._scalar(k, x[0], context)
        return after, self.contributions(after)

    def _at_home(self, fleet: Fleet, gradient: Watched | None) -> HomeAgent | InteriorAgent | None:
        """What minimises where the scalar search and Newton's steps do not: rows, kinks."""
        bounds = (self._lower, self._upper)
        if gradient is not None:
            form = general_form(fleet) if self._rows else None
            return None if form is None else InteriorAgent(fleet, form, *bounds, gradient)
        shape = shape_of(fleet)
        return None if shape is None else HomeAgent(fleet, shape, *bounds)

    def begin(self, x: Array) -> Array:
        """The point of the agent's own set nearest to x, shape (1, d)."""
        inside = np.clip(x, self._lower, self._upper)
        if self._home is None or not self._rows:
            return inside
        return self._home.nearest(inside[0])[np.newaxis]

    def contributions(self, x: Array) -> Array:
        """What the state x, shape (1, d), adds to the sums, in grid steps."""
        # A few numbers one by one cost less than one call of NumPy; Python rounds half to even too.
        values = self._terms(*x[0].tolist(), *self._slopes.parameters)
        total = [0.0] * self._sums
        for term, row, weight, grid in self._adds:
            steps = values[term] * weight / grid
            total[row] += round(steps) if isfinite(steps) else steps
        return np.array(total)

    def _scalar(self, k: int, x: Array, context: tuple[float, ...]) -> Array:
        bounds = (self._lower.item(), self._upper.item())
        functions = (self._slopes.slope, self._slopes.pull, context)
        try:
            after = agent_round(*functions, x.item(), *bounds, k, self._theta)
        except ArithmeticError:
            # Python refuses to divide by 0 or to overflow where compiled code goes on.
            with np.errstate(all="ignore"):
                after = agent_round(*functions, np.float64(x.item()), *bounds, k, self._theta)
        return np.array([[after]], dtype=np.float64)

    def _vector(self, k: int, x: Array, context: tuple[float, ...]) -> Array:
        functions = (self._slopes.slopes, self._slopes.pulls, context)
        with np.errstate(all="ignore"):
            after = vector_round(*functions, x, self._lower, self._upper, k, self._theta)
        return np.asarray(after)[np.newaxis]


@final
class OwnSlopes:
    """The slope of one agent's own part of the Lagrangian, and of what prices add to it.

    Args:
        fleet: the agent, a fleet of one.
        gradient: of its objective, if that is code; None: its formula tells.
    """

    def __init__(self, fleet: Fleet, gradient: Watched | None) -> None:
        self.parameters = [float(a[0]) for a in used_parameters(fleet).values()]
        self._gradient = gradient
        self._whole = slope_of(fleet, objective=gradient is None)
        self._pull = slope_of(fleet, objective=False)
        self._reach = reach_of(fleet)

    def multipliers(self, price: Array) -> tuple[float, ...]:
        """``m_t = sum_r lambda[r, t] W[r, i]`` of every term, added up in the engine's order."""
        known = price.tolist()
        found = []
        for pairs in self._reach:
            total = 0.0
            for row, weight in pairs:
                total += known[row] * weight
            found.append(total)
        return tuple(found)

    def slope(self, context: tuple[float, ...], x: float) -> Any:
        """The slope of a scalar state; context holds the price of every term."""
        value = self._whole(float(x), *self.parameters, *context)[0]
        return value if self._gradient is None else value + self._gradient(np.array([x]))[0]

    def pull(self, context: tuple[float, ...], x: float) -> float:
        """What prices add to it."""
        return self._pull(float(x), *self.parameters, *context)[0]

    def slopes(self, context: tuple[float, ...], x: Array) -> Array:
        """The slope of a vector state."""
        value = np.array(self._whole(*x.tolist(), *self.parameters, *context))
        return value if self._gradient is None else value + self._gradient(x)

    def pulls(self, context: tuple[float, ...], x: Array) -> Array:
        """What prices add to it."""
        return np.array(self._pull(*x.tolist(), *self.parameters, *context))
