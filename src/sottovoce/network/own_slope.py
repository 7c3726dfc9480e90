"""The slope of one agent's own part of the Lagrangian, compiled for one point at a time.

``df_i/dx_i (x) + sum_j mu_j dg_j/dx_i (x)`` over the entries that the agent works out at home: they
are public formulas in its own state. What the cloud sends instead is added as a constant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, final

import numpy as np
import sympy as sp

from sottovoce.certify.gradients import gradient_entries
from sottovoce.engine.formulas import column_of
from sottovoce.errors import InputError
from sottovoce.network.home import Gradient, Single
from sottovoce.network.scalars import Scalars
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.problem import CloudView


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnEntry:
    """One entry ``dg_row/dx_component`` of an agent; released if other agents move it."""

    row: int
    component: int
    formula: sp.Expr
    released: bool


@final
class OwnSlope:
    """``(x, mu) -> slope`` of one agent.

    Args:
        single: the agent.
        entries: from ``entries_of``.
        sent: the entries (row, component) that the cloud sends and the agent uses.

    Raises:
        InputError: an entry that other agents move is not among those sent.
    """

    def __init__(
        self, single: Single, entries: Iterable[OwnEntry], sent: set[tuple[int, int]]
    ) -> None:
        group = single.group
        priced: dict[int, sp.Symbol] = {}
        slopes = [sp.Integer(0)] * group.dim
        for entry in entries:
            if (entry.row, entry.component) in sent:
                continue
            if entry.released:
                raise InputError(
                    f"constraint {entry.row + 1} couples {group.name} with other agents, but the "
                    "cloud does not send its gradient: the run was planned for another problem"
                )
            price = priced.setdefault(entry.row, sp.Dummy(f"mu{entry.row}", real=True))
            slopes[entry.component] += price * entry.formula
        self._gradient: Gradient | None = None
        if isinstance(single.gradient, tuple):
            slopes = [f + g for f, g in zip(single.gradient, slopes, strict=True)]
        else:
            self._gradient = single.gradient
        self._dim = group.dim
        self._rows = list(priced)
        self._formulas = Scalars(slopes, [*group.symbols, *priced.values()])

    def prices(self, mu: Array) -> list[float]:
        """The multipliers that the agent's slope depends on."""
        return [float(mu[row]) for row in self._rows]

    def slope(self, context: tuple[list[float], float], x: float) -> Any:
        """The slope of a scalar state; context holds the prices and what the cloud sent."""
        prices, sent = context
        value = self._formulas.values(x, *prices)[0] + sent
        if self._gradient is None:
            return value
        return value + self._checked(np.array([x]))[0]

    def gradient(self, context: tuple[list[float], Array], x: Array) -> Array:
        """The slope of a vector state; context holds the prices and what the cloud sent."""
        prices, sent = context
        value = self._formulas(*x.tolist(), *prices) + sent
        return value if self._gradient is None else value + self._checked(x)

    def _checked(self, x: Array) -> Array:
        assert self._gradient is not None  # noqa: S101  the callers have asked
        value = np.asarray(self._gradient(x), dtype=np.float64).reshape(-1)
        if value.shape != (self._dim,) or not np.isfinite(value).all():
            raise InputError(f"gradient must return {self._dim} finite numbers")
        return value


def entries_of(cloud: CloudView, single: Single) -> Iterator[OwnEntry]:
    """Yield the entries of dg/dx_i that are not zero everywhere."""
    group = single.group
    if group.count > 1:
        yield from _of_fleet(cloud, group, single.place)
        return
    names = [g.name for g in cloud.groups]
    first = sum(g.count * g.dim for g in cloud.groups[: names.index(group.name)])
    for entry in gradient_entries(cloud):
        if first <= entry.column < first + group.dim:
            yield OwnEntry(
                row=entry.row,
                component=entry.column - first,
                formula=entry.formula,
                released=entry.kind == "released",
            )


def _of_fleet(cloud: CloudView, group: Group, place: int) -> Iterator[OwnEntry]:
    known = {s: sp.Float(float(values[place])) for s, values in group.parameters.items()}
    begin = 0
    for family in cloud.constraints:
        for part in family.sums:
            if part.group.name != group.name:
                continue
            column = np.ones(1) if part.weights is None else column_of(part.weights, place)
            for r, t in product(np.flatnonzero(column).tolist(), range(len(part.terms))):
                h = sp.Float(float(column[r])) * part.terms[t].xreplace(known)
                for c, symbol in enumerate(group.symbols):
                    row = begin + r * len(part.terms) + t
                    formula = sp.diff(h, symbol)
                    yield OwnEntry(row=row, component=c, formula=formula, released=False)
        begin += family.rows
