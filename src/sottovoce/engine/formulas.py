"""A problem's formulas in the two shapes that kernels are written from: named agents and fleets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sottovoce.formula.canonical import add, addends, multiply
from sottovoce.formula.derive import gradient
from sottovoce.formula.expression import ZERO, Expression, number
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.constraints import Constraint, Weights
from sottovoce.problem.local import LocalSet
from sottovoce.problem.problem import Problem
from sottovoce.problem.terms import column_of, filled, named_rows_of, written_out


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
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
        alone: every agent as a fleet of one, with the rows it keeps to.
    """

    symbols: tuple[Expression, ...]
    columns: tuple[int, ...]
    objectives: tuple[Expression, ...]
    constraints: tuple[Expression, ...]
    contributions: tuple[tuple[int, Expression], ...]
    gradient: tuple[Expression, ...]
    jacobian: tuple[Mapping[int, Expression], ...]
    dims: tuple[int, ...]
    alone: tuple[Fleet, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sum:
    """Rows ``row, row + 1, ...`` of g that a fleet adds to, ``sum_i W[r, i] h_t(x_i; p_i)``.

    Row ``row + r T + t`` belongs to weights row r and term t of T. In a table every term has
    weights of its own: W is sparse with column ``i T + t``, row ``row + r`` is ``sum_it W[r, i T +
    t] h_t(x_i)``, and no agent adds to a row by two terms.
    """

    row: int
    terms: tuple[Expression, ...]
    weights: Weights
    table: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fleet:
    """One fleet: its agents, where their states begin, its formula, its sums and its own set.

    Attributes:
        group: the agents.
        column: the first state of the first of them.
        objective: the formula f.
        sums: what they add to rows.
        places: the groups, from 0, that they are; several where they were stated one by one.
        local: what they keep to beside their public boxes.
    """

    group: Group
    column: int
    objective: Expression
    sums: tuple[Sum, ...]
    places: tuple[int, ...] = ()
    local: LocalSet | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Formulas:
    """Everything a kernel computes with; ``offset`` holds the constants of the m rows."""

    named: Named
    fleets: tuple[Fleet, ...]
    offset: Array


def formulas(
    problem: Problem,
    families: Sequence[Constraint],
    together: Callable[[Iterable[Fleet]], Sequence[Fleet]] | None = None,
) -> Formulas:
    """Return the formulas of agents and rows; sums over a fleet of one belong to a named agent.

    Args:
        problem: whose agents.
        families: the rows: the problem's sums, or its constraints as stated.
        together: makes fleets of named agents; without it they stay by themselves.
    """
    begin = np.cumsum([0, *(g.count * g.dim for g in problem.groups)])
    rows, sums = _rows(problem.groups, families, named=together is None)
    columns = (
        int(first) + c
        for first, g in zip(begin[:-1], problem.groups, strict=True)
        if g.count == 1
        for c in range(g.dim)
    )
    fleets = tuple(
        Fleet(
            group=g,
            column=int(begin[i]),
            objective=f,
            sums=tuple(sums[g.name]),
            places=(i,),
            local=problem.local[i],
        )
        for i, (g, f) in enumerate(zip(problem.groups, problem.objectives, strict=True))
        if g.count > 1
    )
    offset = np.concatenate([family.offset for family in families])
    if together is not None:
        own = _alone(problem.groups, families, problem.objectives, problem.local, tables=True)
        return Formulas(named=_named(problem, (), rows, ()), fleets=(*fleets, *together(own)),
                        offset=offset)  # fmt: skip
    alone = tuple(_alone(problem.groups, families, problem.objectives, problem.local, tables=False))
    named = _named(problem, tuple(columns), rows, alone)
    return Formulas(named=named, fleets=fleets, offset=offset)


def _alone(
    groups: Sequence[Group],
    families: Sequence[Constraint],
    objectives: Sequence[Expression],
    local: Sequence[LocalSet | None],
    *,
    tables: bool,
) -> Iterator[Fleet]:
    """Every named agent as a fleet of one, numbers in its formulas.

    Args:
        groups: all agents.
        families: the rows.
        objectives: f_i of every group.
        local: what every group's agents keep to.
        tables: keep what is a number times one component as a weight, without a formula.
    """
    begin = np.cumsum([0, *(g.count * g.dim for g in groups)])
    named = named_rows_of(groups, families)
    straight, bent = named.linear.tocsc(), named.by_column()
    for place, (group, objective) in enumerate(zip(groups, objectives, strict=True)):
        if group.count > 1:
            continue
        first = int(begin[place])
        weights = straight[:, first : first + group.dim]
        shared = np.bincount(weights.indices, minlength=weights.shape[0]) > 1
        added: dict[int, Expression] = dict(bent.get(first, ()))
        for c, symbol in enumerate(group.symbols):
            at = slice(*weights.indptr[c : c + 2])
            for row, w in zip(weights.indices[at].tolist(), weights.data[at], strict=True):
                if shared[row] or not tables:
                    added[row] = add(added.get(row, ZERO), multiply(number(w), symbol))
        sums = [Sum(row=j, terms=(added[j],), weights=None) for j in sorted(added)]
        if tables:
            weights.data[shared[weights.indices]] = 0.0
            weights.eliminate_zeros()
            sums.append(Sum(row=0, terms=group.symbols, weights=weights, table=True))
        yield Fleet(
            group=group,
            column=first,
            objective=filled(objective, group),
            sums=tuple(sums),
            places=(place,),
            local=None if (own := local[place]) is None else own.of_agent(group, 0),
        )


def local_fleet(
    groups: Sequence[Group],
    families: Sequence[Constraint],
    index: int,
    objective: Expression,
    local: LocalSet | None = None,
) -> Fleet:
    """Return the agents of one group with what they add to the rows; a named agent as a fleet of 1.

    Args:
        groups: all groups, with whatever parameters are known here.
        families: the rows.
        index: which group.
        objective: its formula f_i.
        local: what the agents keep to beside their public boxes.
    """
    group = groups[index]
    if group.count == 1:
        mine = [_only(family, group) for family in families]
        (own,) = _alone([group], mine, [objective], [local], tables=False)
        return replace(own, places=(index,))
    sums = tuple(_rows(groups, families, named=False)[1][group.name])
    return Fleet(
        group=group, column=0, objective=objective, sums=sums, places=(index,), local=local
    )


def _only(family: Constraint, group: Group) -> Constraint:
    """What one named agent adds to rows that are sums."""
    own = set(group.symbols)
    return replace(
        family,
        rest=tuple(add(*(t for t in addends(row) if t.symbols & own)) for row in family.rest),
        sums=tuple(part for part in family.sums if part.group.name == group.name),
        linear=None if family.linear is None else family.linear.of(own),
    )


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
        replace(part, weights=None if part.weights is None else part.weights[:, places])
        for part in fleet.sums
    )
    own = fleet.local
    if own is not None:
        own = replace(own, lower=own.lower[places], upper=own.upper[places])
    return replace(fleet, group=chosen, column=0, sums=sums, local=own)


def _rows(
    groups: Sequence[Group], families: Sequence[Constraint], *, named: bool = True
) -> tuple[list[Expression], dict[str, list[Sum]]]:
    """What named agents add to each row, 0 if not asked for, and each fleet's sums by its name."""
    rows: list[Expression] = []
    sums: dict[str, list[Sum]] = {g.name: [] for g in groups}
    for family in families:
        rest = list(family.named if named else ()) or [ZERO] * family.rows
        for part in family.sums:
            if part.group.count > 1:
                sums[part.group.name].append(
                    Sum(row=len(rows), terms=part.terms, weights=part.weights)
                )
            elif named:
                rest = [add(a, b) for a, b in zip(rest, written_out(part), strict=True)]
        rows.extend(rest)
    return rows, sums


def _named(
    problem: Problem, columns: tuple[int, ...], rows: list[Expression], alone: tuple[Fleet, ...]
) -> Named:
    pairs = zip(problem.groups, problem.objectives, strict=True)
    own = [(g, filled(f, g)) for g, f in pairs if g.count == 1 and columns]
    symbols = tuple(s for g, _ in own for s in g.symbols)
    slopes = [gradient(expr, symbols) for expr in rows]
    own_slopes = [gradient(f, g.symbols) for g, f in own]
    return Named(
        symbols=symbols,
        columns=columns,
        objectives=tuple(f for _, f in own),
        constraints=tuple(rows),
        contributions=tuple(pair for g, _ in own for pair in _contributions(rows, g)),
        gradient=tuple(
            df.get(s, ZERO) for (g, _), df in zip(own, own_slopes, strict=True) for s in g.symbols
        ),
        jacobian=tuple({j: dg[s] for j, dg in enumerate(slopes) if s in dg} for s in symbols),
        dims=tuple(g.dim for g, _ in own),
        alone=alone,
    )


def _contributions(rows: Sequence[Expression], group: Group) -> Iterator[tuple[int, Expression]]:
    """The terms of each row that name an agent; of rows that mix agents, whatever names it."""
    for j, row in enumerate(rows):
        terms = [t for t in addends(row) if t.symbols & set(group.symbols)]
        if terms:
            yield j, add(*terms)


def reach_of(fleet: Fleet) -> list[list[tuple[int, float]]]:
    """The rows, with their weights, that every term of a single agent's sums is added to."""
    found = []
    for part in fleet.sums:
        if part.table:
            columns = [column_of(part.weights, t) for t in range(len(part.terms))]
            found += [[(part.row + int(r), float(w[r])) for r in np.flatnonzero(w)]
                      for w in columns]  # fmt: skip
            continue
        weights = np.ones(1) if part.weights is None else column_of(part.weights, 0)
        for t in range(len(part.terms)):
            rows = np.flatnonzero(weights).tolist()
            found.append([(part.row + r * len(part.terms) + t, float(weights[r])) for r in rows])
    return found
