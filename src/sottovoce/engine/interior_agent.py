"""One agent's general problem at home in plain Python, to the bits of a kernel.

An objective that is code tells gradients alone: its second derivatives are differences of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from sottovoce.algorithm.interior import interior_minimum
from sottovoce.algorithm.round import home_damping
from sottovoce.engine.agent_text import AgentFunction, function_of, prices_of, slope_of
from sottovoce.engine.emit import Emitter
from sottovoce.engine.formulas import Fleet
from sottovoce.engine.interior_text import Entry, names_with, objective_entries, row_entries
from sottovoce.engine.slopes import used_parameters
from sottovoce.problem.agents import Array
from sottovoce.problem.code import Watched
from sottovoce.problem.epigraph import HomeForm

_NUDGE = 2.0**-20  # the distance at which curvature is measured, relative to the box
_TO = re.compile(r"(\w+)\[(\d+)(?:, (\d+))?\]")


@final
class InteriorAgent:
    """Minimises over one agent's own set, whatever its convex formulas.

    Args:
        fleet: the agent, a fleet of one.
        form: what it minimises, without kinks.
        lower: its own bounds, shape (d,).
        upper: likewise.
        gradient: of its objective, if that is code; ``form`` then has none.
    """

    def __init__(
        self,
        fleet: Fleet,
        form: HomeForm,
        lower: Array,
        upper: Array,
        gradient: Watched | None = None,
    ) -> None:
        prices = prices_of(fleet)
        known = names_with(fleet, form)
        names = [*known.values(), *(m for part in prices for m in part)]
        rows = len(form.inequalities) + len(form.equalities)
        page = Emitter(known)
        kept = list(row_entries(page, fleet, form))
        # In the kernel multipliers are an array's entries; here they are arguments.
        page.lines = [re.sub(r"price\[(\d+)\]", r"r\1", line) for line in page.lines]
        self._rows = _Part(page, [*known.values(), *(f"r{j}" for j in range(rows))], kept)
        page = Emitter(known)
        sloped = list(objective_entries(page, fleet, form, prices))
        self._objective = _Part(page, names, sloped)
        self._pull = slope_of(fleet, objective=False)
        self._dim, self._size = fleet.group.dim, fleet.group.dim + len(form.extra)
        self._counts = (len(form.inequalities), len(form.equalities))
        self._parameters = [float(a[0]) for a in used_parameters(fleet).values()]
        self._lower = np.concatenate([lower, form.lower[0]])
        self._upper = np.concatenate([upper, form.upper[0]])
        self._gradient = gradient

    def round(self, x: Array, prices: Sequence[float], k: int, theta: float) -> Array:
        """Return x(k+1), shape (d,), with the price of every term."""
        force = self._pull(*x.tolist(), *self._parameters, *prices)
        weight = np.zeros(self._size)
        for c in range(self._dim):
            width = self._upper[c] - self._lower[c]
            weight[c] = home_damping(k, force[c], width, theta)
        return self._minimum(x, weight, prices)

    def nearest(self, x: Array) -> Array:
        """The point of the agent's set nearest to x."""
        weight = np.zeros(self._size)
        weight[: self._dim] = 1.0
        return self._minimum(x, weight, None)

    def _minimum(self, x: Array, weight: Array, prices: Sequence[float] | None) -> Array:
        anchor = 0.5 * (self._lower + self._upper)
        anchor[: self._dim] = x
        given = (anchor, weight, self._lower, self._upper, self._counts)
        with np.errstate(all="ignore"):
            found = interior_minimum(self._derive, prices, *given)
        return np.asarray(found)[: self._dim]

    def _derive(
        self, prices: Any, x: Array, price: Array, gradient: Array, values: Array, *matrices: Array
    ) -> None:
        arrays = {"gradient": gradient, "values": values}
        arrays |= {"jacobian": matrices[0], "hessian": matrices[1]}
        own = [*x[: self._dim].tolist(), *self._parameters, *x[self._dim :].tolist()]
        self._rows.fill(arrays, [*own, *price.tolist()])
        if prices is None:
            gradient[:] = 0.0
        else:
            self._objective.fill(arrays, [*own, *prices])
            if self._gradient is not None:
                self._add_code(x[: self._dim], gradient, matrices[1])

    def _add_code(self, x: Array, gradient: Array, hessian: Array) -> None:
        """Add the gradient of the code, and its curvature from differences inside the box."""
        assert self._gradient is not None  # noqa: S101  the caller has asked
        lower, upper = self._lower[: self._dim], self._upper[: self._dim]
        gradient[: self._dim] += self._gradient(x)
        bent = np.zeros((self._dim, self._dim))
        for c in np.flatnonzero(upper > lower):
            there, back = x.copy(), x.copy()
            nudge = _NUDGE * (upper[c] - lower[c])
            there[c], back[c] = min(x[c] + nudge, upper[c]), max(x[c] - nudge, lower[c])
            bent[c] = (self._gradient(there) - self._gradient(back)) / (there[c] - back[c])
        # What is convex has no negative curvature: differences may, by rounding and at kinks.
        sizes, vectors = np.linalg.eigh(0.5 * (bent + bent.T))
        hessian[: self._dim, : self._dim] += vectors * np.maximum(sizes, 0.0) @ vectors.T


@final
class _Part:
    """A function that fills arrays."""

    def __init__(self, page: Emitter, names: Sequence[str], entries: Sequence[Entry]) -> None:
        self._function: AgentFunction = function_of(page, names, [name for _, _, name in entries])
        self._to = []
        for to, sign, _ in entries:
            found = _TO.fullmatch(to)
            assert found is not None  # noqa: S101  text of our own making
            array, first, second = found.groups()
            place = (int(first),) if second is None else (int(first), int(second))
            self._to.append((array, place, sign == "+="))

    def fill(self, arrays: dict[str, Array], numbers: Sequence[float]) -> None:
        for (array, place, added), value in zip(self._to, self._function(*numbers), strict=True):
            if added:
                arrays[array][place] += value
            else:
                arrays[array][place] = value
