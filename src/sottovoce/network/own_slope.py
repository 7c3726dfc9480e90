"""The slope of one agent's own part of the Lagrangian, compiled for one point at a time.

``df_i/dx_i (x) + sum_j mu_j dg_j/dx_i (x)`` over the entries that the agent works out at home: they
are public formulas in its own state. What the cloud sends instead is added as a constant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import numpy as np
import sympy as sp

from sottovoce.certify.gradients import gradient_entries
from sottovoce.errors import InputError
from sottovoce.network.home import Gradient, Single
from sottovoce.network.scalars import Scalars
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.problem import CloudView


@final
class OwnSlope:
    """``(x, mu) -> slope`` of one agent.

    Args:
        cloud: the public problem.
        single: the agent.
        sent: the entries (row, component) that the cloud sends and the agent uses.

    Raises:
        InputError: an entry that other agents move is not among those sent.
    """

    def __init__(self, cloud: CloudView, single: Single, sent: set[tuple[int, int]]) -> None:
        group = single.group
        priced: dict[int, sp.Symbol] = {}
        slopes = [sp.Integer(0)] * group.dim
        for row, component, formula in _home(cloud, single, sent):
            price = priced.setdefault(row, sp.Dummy(f"mu{row}", real=True))
            slopes[component] += price * formula
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


def _home(
    cloud: CloudView, single: Single, sent: set[tuple[int, int]]
) -> Iterator[tuple[int, int, sp.Expr]]:
    """Row, component and formula of every entry that the agent works out itself."""
    group = single.group
    if group.count > 1:
        yield from _of_fleet(cloud, group, single.place)
        return
    names = [g.name for g in cloud.groups]
    first = sum(g.count * g.dim for g in cloud.groups[: names.index(group.name)])
    for entry in gradient_entries(cloud):
        component = entry.column - first
        if not 0 <= component < group.dim or (entry.row, component) in sent:
            continue
        if entry.kind == "released":
            raise InputError(
                f"constraint {entry.row + 1} couples {group.name} with other agents, but the "
                "cloud does not send its gradient: the run was planned for another problem"
            )
        yield entry.row, component, entry.formula


def _of_fleet(cloud: CloudView, group: Group, place: int) -> Iterator[tuple[int, int, sp.Expr]]:
    known = {s: sp.Float(float(values[place])) for s, values in group.parameters.items()}
    begin = 0
    for family in cloud.constraints:
        for part in family.sums:
            if part.group.name != group.name:
                continue
            column = np.ones(1) if part.weights is None else _column(part.weights, place)
            for r in np.flatnonzero(column):
                for t, h in enumerate(part.terms):
                    for c, symbol in enumerate(group.symbols):
                        formula = sp.Float(float(column[r])) * sp.diff(h, symbol)
                        row = begin + int(r) * len(part.terms) + t
                        yield row, c, formula.xreplace(known)
        begin += family.rows


def _column(weights: Any, place: int) -> Array:
    column = weights[:, [place]]
    dense = column.toarray() if hasattr(column, "toarray") else column
    return np.asarray(dense, dtype=np.float64).ravel()
