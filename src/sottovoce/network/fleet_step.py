"""One minimisation of every agent behind a connection, on the kernels that ``simulate`` runs."""

from __future__ import annotations

from typing import final

import numpy as np

from sottovoce.kernels.fleet_kernel import FleetKernel, FleetStates, to_lanes
from sottovoce.problem.agents import Array


@final
class FleetStep:
    """``x(k) -> x(k+1)`` of a fleet's agents, and what they add to the sums.

    Args:
        kernel: the agents' formulas, parameters, weights and bounds.
        theta: the weight of the damping.
        grid: the grid of every sum, shape (p,).
    """

    def __init__(self, kernel: FleetKernel, *, theta: float, grid: Array) -> None:
        self._kernel, self._theta, self._grid = kernel, theta, np.array(grid)
        self._fleet = FleetStates(kernel, kernel.problem.lower)

    def __call__(self, k: int, x: Array, price: Array) -> tuple[Array, Array]:
        """Return x(k+1), shape (count, d), and its contributions in grid steps, shape (p,)."""
        self._place(x)
        told = np.array(price)  # what came from a message is read-only
        total = self._fleet.round(k, told, theta=self._theta, share=0.0, grid=self._grid)
        return self._fleet.states, total

    def begin(self, x: Array) -> Array:
        """The points of the agents' own sets nearest to x, shape (count, d)."""
        return FleetStates(self._kernel, x).states

    def contributions(self, x: Array) -> Array:
        """What states x, shape (count, d), add to the sums, in grid steps."""
        self._place(x)
        return self._fleet.contributions(self._grid.size, self._grid)

    def _place(self, x: Array) -> None:
        self._fleet.x[:] = to_lanes(x, self._kernel.width)
