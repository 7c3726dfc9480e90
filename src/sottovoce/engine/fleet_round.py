"""One round of a fleet's agents, compiled: what a gateway takes for hundreds of them at once."""

from __future__ import annotations

from typing import final

import numpy as np

from sottovoce.algorithm.algorithm import PriceRounds
from sottovoce.engine.compile import load_kernel
from sottovoce.engine.fleet_text import FleetText
from sottovoce.engine.formulas import Fleet
from sottovoce.engine.member import member, packed, unpack
from sottovoce.engine.source import head, steps_of
from sottovoce.engine.vectors import WIDTH
from sottovoce.problem.agents import Array

_ARRAYS = ("state", "part", "work", "grid")


@final
class FleetRound:
    """``x(k) -> x(k+1)`` of a fleet's agents and what they add to the sums, as in ``solve``.

    Args:
        fleet: the agents' formulas, parameters and weights.
        algorithm: whose rounds they take part in.
        lower: their bounds, shape (count, d).
        upper: likewise.
        grid: the grid of every sum, shape (p,).
    """

    def __init__(
        self, fleet: Fleet, algorithm: PriceRounds, *, lower: Array, upper: Array, grid: Array
    ) -> None:
        self._member = member(fleet, algorithm, lower, upper, rows=grid.size, gridded=True)
        text = self._member.text
        kernel = load_kernel(_source(text, algorithm), *steps_of(algorithm))
        self._step, self._look = kernel.step, kernel.look
        self._settle = kernel.settle if text.bound_by_rows else None
        self._lower, self._upper = lower, upper
        self._theta = float(algorithm.constants.theta)
        self._grid = np.array(grid)
        self._work = np.empty(WIDTH * text.layout()["end"])
        self._mean = np.zeros(0)

    def __call__(self, k: int, x: Array, price: Array) -> tuple[Array, Array]:
        """Return x(k+1), shape (count, d), and its contributions in grid steps, shape (p,)."""
        own, part = packed(x), np.zeros(self._grid.size)
        if self._mean.size != own.size:
            self._mean = np.zeros(own.size)  # the caller averages: this is only written to
        # A copy: what came from a message cannot be written to, and kernels take no such array.
        arrays = (np.array(price), part, self._work, self._grid)
        self._step(k, self._theta, *arrays, *self._member.given(own, self._mean))
        after = np.empty_like(x)
        unpack(own, after)
        return after, part

    def begin(self, x: Array) -> Array:
        """The points of the agents' own sets nearest to x, shape (count, d)."""
        inside = np.clip(x, self._lower, self._upper)
        if self._settle is None:
            return inside
        own, nothing = packed(inside), np.zeros(self._grid.size)
        arrays = (nothing, nothing, self._work, self._grid)
        self._settle(*arrays, *self._member.given(own, own))
        unpack(own, inside)
        return inside

    def contributions(self, x: Array) -> Array:
        """What states x, shape (count, d), add to the sums, in grid steps."""
        own, part = packed(x), np.zeros(self._grid.size)
        arrays = (np.zeros(self._grid.size), part, self._work, self._grid)
        self._look(*arrays, *self._member.given(own, own))
        return part


def _source(text: FleetText, algorithm: PriceRounds) -> str:
    whole = f"0, {text.blocks}"
    shared: list[tuple[str, str]] = [(name, "float64[::1]") for name in _ARRAYS]
    shared += text.arguments()
    names = ", ".join(name for name, _ in shared)
    kinds = ", ".join(kind for _, kind in shared)
    arrays, own = ", ".join(_ARRAYS), ", ".join(name for name, _ in text.arguments())
    return "\n".join(
        [
            *head(algorithm),
            text.source(),
            f'\n\n@entry("void(int64, float64, {kinds})")',
            f"def step(number, theta, {names}):",
            f"    pass0({whole}, {arrays}, number, theta, 0.0, {own})",
            f'\n\n@entry("void({kinds})")',
            f"def look({names}):",
            f"    look0({whole}, {arrays}, {own})",
            *(
                _settle(kinds, names, f"0, {text.blocks}, {arrays}, {own}")
                if text.bound_by_rows
                else []
            ),
            "",
        ]
    )


def _settle(kinds: str, names: str, given: str) -> list[str]:
    return [
        f'\n\n@entry("void({kinds})")',
        f"def settle({names}):",
        f"    settle0({given})",
    ]
