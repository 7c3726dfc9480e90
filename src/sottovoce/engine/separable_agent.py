"""One agent's separable problem at home in plain Python, to the bits of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from sottovoce.algorithm.dual_search import box_search, row_search
from sottovoce.algorithm.home_block import FREE
from sottovoce.algorithm.two_rows import two_row_search
from sottovoce.engine.agent_text import function_of, prices_of
from sottovoce.engine.emit import Emitter
from sottovoce.engine.formulas import Fleet
from sottovoce.engine.home_shape import Separable
from sottovoce.engine.separable_text import Task, laid_out, rows_of, space
from sottovoce.engine.slopes import names_in, used_parameters

_SEARCHES = (box_search, row_search, two_row_search)


@final
class SeparableAgent:
    """Minimises one task of a single agent.

    Args:
        fleet: the agent, a fleet of one.
        shape: the structure of what it minimises.
        task: which minimisation.
        lower: its own bounds.
        upper: likewise.
    """

    def __init__(
        self,
        fleet: Fleet,
        shape: Separable,
        task: Task,
        lower: Sequence[float],
        upper: Sequence[float],
    ) -> None:
        self._dim = fleet.group.dim
        sides = [[f"{side}{c}" for c in range(self._dim)] for side in ("lower", "upper")]
        prices = [] if task == "project" else prices_of(fleet)
        page = Emitter(names_in(fleet))
        numbers = list(laid_out(page, fleet, shape, prices, sides, task))
        names = [*names_in(fleet).values(), *(m for part in prices for m in part)]
        names += [*sides[0], *sides[1], "number", "theta", "near"]
        self._places = [to for to, _ in numbers]
        self._numbers = function_of(page, names, [name for _, name in numbers])
        self._parameters = [float(a[0]) for a in used_parameters(fleet).values()]
        self._bounds = [*map(float, lower), *map(float, upper)]
        self._search = _SEARCHES[len(rows_of(shape, task))]
        self._work = [0.0] * space(self._dim)

    def __call__(
        self, x: Sequence[float], prices: Sequence[float] = (), k: int = 1, theta: float = 0.0
    ) -> list[float]:
        """Return the minimiser from x, with the price of every term, in round k."""
        found = self._numbers(*x, *self._parameters, *prices, *self._bounds, k, theta, 0.0)
        for place, value in zip(self._places, found, strict=True):
            self._work[place] = value
        self._search(self._dim, 0, self._work)
        return self._work[FREE * self._dim : (FREE + 1) * self._dim]
