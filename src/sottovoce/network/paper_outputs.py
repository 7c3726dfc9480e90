"""What the cloud computes from all states for the paper's release: g(x) and entries of dg/dx."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np

from sottovoce.certificate.gradients import gradient_entries
from sottovoce.errors import InputError
from sottovoce.formula.expression import ZERO, Expression
from sottovoce.network.scalars import Scalars
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.agents import Array
from sottovoce.problem.blocks import Block
from sottovoce.problem.constraints import FleetSum
from sottovoce.problem.numeric import Formulas, Part
from sottovoce.problem.problem import CloudView


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a group's states lie in the flat vector."""

    begin: int
    end: int


@final
class PaperOutputs:
    """``x -> (g(x), the released entries of dg/dx)`` for one plan, from public formulas alone."""

    def __init__(self, plan: NoisePlan) -> None:
        cloud = plan.cloud
        self._rows = cloud.rows
        self._offset = np.concatenate([c.offset for c in cloud.constraints])
        self._named, named_symbols = _named_columns(cloud)
        rows, exprs = _named_rows(cloud)
        self._named_rows = np.array(rows, dtype=np.int64)
        formulas = [*exprs, *_released_formulas(plan)]
        self._scalars = Scalars(formulas, named_symbols) if formulas else None
        self._parts = tuple(_fleet_parts(cloud))

    def __call__(self, x: Array) -> tuple[Array, Array]:
        """Return g, shape (m,), and the entries in the plan's order."""
        g = self._offset.copy()
        entries = np.zeros(0)
        if self._scalars is not None:
            values = self._scalars(*x[self._named].tolist())
            split = self._named_rows.size
            g[self._named_rows] += values[:split]
            entries = values[split:]
        for part in self._parts:
            g[part.rows] += part.gather(part.formulas.values(part.formulas.block.of(x)))
        return g, entries


def _places(cloud: CloudView) -> dict[str, _Place]:
    places, begin = {}, 0
    for group in cloud.groups:
        end = begin + group.count * group.dim
        places[group.name] = _Place(begin=begin, end=end)
        begin = end
    return places


def _named_columns(cloud: CloudView) -> tuple[np.ndarray, tuple[Expression, ...]]:
    places = _places(cloud)
    named = [group for group in cloud.groups if group.count == 1]
    columns = [np.arange(places[g.name].begin, places[g.name].end) for g in named]
    symbols = tuple(s for group in named for s in group.symbols)
    return np.concatenate([np.zeros(0, dtype=np.int64), *columns]), symbols


def _named_rows(cloud: CloudView) -> tuple[list[int], list[Expression]]:
    rows: list[int] = []
    exprs: list[Expression] = []
    begin = 0
    for family in cloud.constraints:
        rows += [begin + r for r in range(len(family.named))]
        exprs += family.named
        begin += family.rows
    return rows, exprs


def _released_formulas(plan: NoisePlan) -> list[Expression]:
    """Return the released derivatives; the paper lists also those that are zero everywhere."""
    formulas = {(e.row, e.column): e.formula for e in gradient_entries(plan.cloud)}
    places = _places(plan.cloud)
    fleets = [places[g.name] for g in plan.cloud.groups if g.count > 1]
    pairs = [(o.row, o.column) for o in plan.outputs if o.column is not None]
    for _, column in pairs:
        if any(place.begin <= column < place.end for place in fleets):
            raise InputError(
                "gradients of sums over a fleet are worked out by its agents, got a plan that "
                "releases them: plan with method='joint' for the default algorithm"
            )
    return [formulas.get(pair, ZERO) for pair in pairs]


def _fleet_parts(cloud: CloudView) -> Iterator[Part]:
    places = _places(cloud)
    begin = 0
    for family in cloud.constraints:
        for term in family.sums:
            place = places[term.group.name]
            yield _fleet_part(term, begin, slice(place.begin, place.end))
        begin += family.rows


def _fleet_part(term: FleetSum, begin: int, index: slice) -> Part:
    group = term.group
    block = Block(
        index=index, count=group.count, symbols=group.symbols, parameters=group.parameters
    )
    rows = begin + np.arange(term.rows).reshape(-1, len(term.terms))
    return Part(rows=rows, weights=term.weights, formulas=Formulas(term.terms, block))
