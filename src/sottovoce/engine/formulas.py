"""A problem's formulas in the two shapes that kernels are written from: named agents and fleets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import sympy as sp
from numpy.typing import NDArray

from sottovoce.problem.agents import Array, Group
from sottovoce.problem.constraints import Constraint, FleetSum, Weights
from sottovoce.problem.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Named:
    """All agents stated one by one, as one long vector.

    Attributes:
        symbols: their states.
        columns: where these lie in the flat state vector.
        objectives: f_i, one per agent.
        constraints: what they contribute to each of the m rows of g, constants apart.
        contributions: what each agent adds to each row that it takes part in, agent by agent.
        gradient: ``df_i/dx_i``, one per state.
        jacobian: ``dg_j/dx_i`` per state, by the rows j in which it is not zero.
        dims: how many states each agent has.
    """

    symbols: tuple[sp.Symbol, ...]
    columns: tuple[int, ...]
    objectives: tuple[sp.Expr, ...]
    constraints: tuple[sp.Expr, ...]
    contributions: tuple[tuple[int, sp.Expr], ...]
    gradient: tuple[sp.Expr, ...]
    jacobian: tuple[Mapping[int, sp.Expr], ...]
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sum:
    """Rows ``row, row + 1, ...`` of g that a fleet adds to, ``sum_i W[r, i] h_t(x_i; p_i)``."""

    row: int
    terms: tuple[sp.Expr, ...]
    weights: Weights


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fleet:
    """One fleet: its agents, where their states begin, its formula and its sums."""

    group: Group
    column: int
    objective: sp.Expr
    sums: tuple[Sum, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Formulas:
    """Everything a kernel computes with; ``offset`` holds the constants of the m rows."""

    named: Named
    fleets: tuple[Fleet, ...]
    offset: Array


def formulas(problem: Problem, families: Sequence[Constraint]) -> Formulas:
    """Return the formulas of agents and rows; sums over a fleet of one belong to a named agent.

    Args:
        problem: whose agents.
        families: the rows: the problem's sums, or its constraints as stated.
    """
    begin = np.cumsum([0, *(g.count * g.dim for g in problem.groups)])
    rows, sums = _rows(problem.groups, families)
    columns = (
        int(first) + c
        for first, g in zip(begin[:-1], problem.groups, strict=True)
        if g.count == 1
        for c in range(g.dim)
    )
    fleets = tuple(
        Fleet(group=g, column=int(first), objective=f, sums=tuple(sums[g.name]))
        for first, g, f in zip(begin[:-1], problem.groups, problem.objectives, strict=True)
        if g.count > 1
    )
    offset = np.concatenate([family.offset for family in families])
    return Formulas(named=_named(problem, tuple(columns), rows), fleets=fleets, offset=offset)


def local_fleet(
    groups: Sequence[Group], families: Sequence[Constraint], index: int, objective: sp.Expr
) -> Fleet:
    """Return the agents of one group with what they add to the rows; a named agent as a fleet of 1.

    Args:
        groups: all groups, with whatever parameters are known here.
        families: the rows.
        index: which group.
        objective: its formula f_i.
    """
    rows, sums = _rows(groups, families)
    group = groups[index]
    own = sums[group.name]
    if group.count == 1:
        objective = _filled(objective, group)
        own = [Sum(row=j, terms=(h,), weights=None) for j, h in _contributions(rows, group)]
    return Fleet(group=group, column=0, objective=objective, sums=tuple(own))


def part_of(fleet: Fleet, places: NDArray[np.int64]) -> Fleet:
    """Return the fleet's agents ``places`` (from 0) as a fleet of their own."""
    group = fleet.group
    chosen = Group(
        name=group.name,
        count=len(places),
        symbols=group.symbols,
        lower=group.lower[places],
        upper=group.upper[places],
        parameters={s: values[places] for s, values in group.parameters.items()},
    )
    sums = tuple(
        Sum(
            row=part.row,
            terms=part.terms,
            weights=None if part.weights is None else part.weights[:, places],
        )
        for part in fleet.sums
    )
    return Fleet(group=chosen, column=0, objective=fleet.objective, sums=sums)


def _rows(
    groups: Sequence[Group], families: Sequence[Constraint]
) -> tuple[list[sp.Expr], dict[str, list[Sum]]]:
    """What named agents add to each row, and the sums of every fleet by its name."""
    single = {g.name for g in groups if g.count == 1}
    rows: list[sp.Expr] = []
    sums: dict[str, list[Sum]] = {g.name: [] for g in groups}
    for family in families:
        rest = list(family.named) or [sp.S.Zero] * family.rows
        for part in family.sums:
            if part.group.name in single:
                rest = [a + b for a, b in zip(rest, _written_out(part), strict=True)]
            else:
                sums[part.group.name].append(
                    Sum(row=len(rows), terms=part.terms, weights=part.weights)
                )
        rows.extend(rest)
    return rows, sums


def _named(problem: Problem, columns: tuple[int, ...], rows: list[sp.Expr]) -> Named:
    pairs = zip(problem.groups, problem.objectives, strict=True)
    own = [(g, _filled(f, g)) for g, f in pairs if g.count == 1]
    symbols = tuple(s for g, _ in own for s in g.symbols)
    free = [expr.free_symbols for expr in rows]
    return Named(
        symbols=symbols,
        columns=columns,
        objectives=tuple(f for _, f in own),
        constraints=tuple(rows),
        contributions=tuple(pair for g, _ in own for pair in _contributions(rows, g)),
        gradient=tuple(f.diff(s) for g, f in own for s in g.symbols),
        jacobian=tuple(
            {j: y for j, expr in enumerate(rows) if s in free[j] and (y := expr.diff(s)) != 0}
            for s in symbols
        ),
        dims=tuple(g.dim for g, _ in own),
    )


def _contributions(rows: Sequence[sp.Expr], group: Group) -> Iterator[tuple[int, sp.Expr]]:
    """The terms of each row that name an agent; of rows that mix agents, whatever names it."""
    for j, row in enumerate(rows):
        terms = [t for t in sp.Add.make_args(row) if t.free_symbols & set(group.symbols)]
        if terms:
            yield j, sp.Add(*terms)


def _written_out(part: FleetSum) -> list[sp.Expr]:
    weights = np.ones(1) if part.weights is None else column_of(part.weights, 0)
    terms = [_filled(h, part.group) for h in part.terms]
    return [sp.Float(float(w)) * h for w in weights for h in terms]


def column_of(weights: Weights, place: int) -> Array:
    """Return the weights of agent ``place`` (from 0), dense."""
    column = weights[:, [place]]
    dense = column.toarray() if hasattr(column, "toarray") else column
    return np.asarray(dense, dtype=np.float64).ravel()


def _filled(expr: sp.Expr, group: Group) -> sp.Expr:
    return expr.xreplace({s: sp.Float(float(a[0])) for s, a in group.parameters.items()})
