"""One agent at home in plain Python: ``x(k) -> x(k+1)`` from gradients, which any code may tell."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from sottovoce.algorithm.algorithm import PriceRounds
from sottovoce.algorithm.round import agent_round, vector_round
from sottovoce.engine.agent_text import slope_of, values_of
from sottovoce.engine.formulas import Fleet, reach_of
from sottovoce.engine.slopes import used_parameters
from sottovoce.problem.agents import Array
from sottovoce.problem.code import Watched


@final
class CodeAgent:
    """The round of one agent, and what it adds to the sums.

    Args:
        fleet: the agent, a fleet of one.
        gradient: of its objective, if that is code; otherwise its formula tells.
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
        self._gradient, self._theta = gradient, float(algorithm.constants.theta)
        self._lower, self._upper, self._grid = lower[0], upper[0], grid
        self._pull = slope_of(fleet, objective=False)
        self._whole = self._pull if gradient is not None else slope_of(fleet, objective=True)
        self._terms = values_of(fleet, [h for part in fleet.sums for h in part.terms])
        self._adds = reach_of(fleet)
        self._parameters = [float(values[0]) for values in used_parameters(fleet).values()]

    def __call__(self, k: int, x: Array, price: Array) -> tuple[Array, Array]:
        """Return x(k+1), shape (1, d), and its contributions in grid steps, shape (p,)."""
        context = tuple(sum(float(price[row]) * w for row, w in pairs) for pairs in self._adds)
        with np.errstate(all="ignore"):
            if x.size == 1:
                bounds = (self._lower.item(), self._upper.item())
                scalar = (self._slope, self._scalar_pull, context, x.item())
                after = np.array([[agent_round(*scalar, *bounds, k, self._theta)]])
            else:
                vector = (self._slopes, self._pulls, context, x[0], self._lower, self._upper)
                after = np.asarray(vector_round(*vector, k, self._theta))[np.newaxis]
        return after, self.contributions(after)

    def begin(self, x: Array) -> Array:
        """The point of the agent's bounds nearest to x, shape (1, d)."""
        return np.clip(x, self._lower, self._upper)

    def contributions(self, x: Array) -> Array:
        """What the state x, shape (1, d), adds to the sums, in grid steps."""
        total = np.zeros(self._grid.size)
        for value, pairs in zip(
            self._terms(*x[0].tolist(), *self._parameters), self._adds, strict=True
        ):
            for row, weight in pairs:
                total[row] += np.rint(value * weight / self._grid[row])
        return total

    def _scalar_pull(self, context: tuple[float, ...], x: float) -> float:
        return self._pull(float(x), *self._parameters, *context)[0]

    def _slope(self, context: tuple[float, ...], x: float) -> Any:
        value = self._whole(float(x), *self._parameters, *context)[0]
        return value if self._gradient is None else value + self._gradient(np.array([x]))[0]

    def _pulls(self, context: tuple[float, ...], x: Array) -> Array:
        return np.array(self._pull(*x.tolist(), *self._parameters, *context))

    def _slopes(self, context: tuple[float, ...], x: Array) -> Array:
        value = np.array(self._whole(*x.tolist(), *self._parameters, *context))
        return value if self._gradient is None else value + self._gradient(x)
