"""A problem's formulas in the two shapes that kernels are written from: named agents and fleets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sottovoce.formula.canonical import add, addends, multiply
from sottovoce.formula.expression import ZERO, Expression, number
from sottovoce.problem.agents import Group
from sottovoce.problem.constraints import Constraint, Weights
from sottovoce.problem.local import LocalSet
from sottovoce.problem.problem import Problem
from sottovoce.problem.terms import filled, named_rows_of, written_out


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Named:
    """All agents stated one by one, as one long vector: what gradient steps need.

    Attributes:
        symbols: their states.
        places: the groups, from 0, that they are.
        objective: ``sum_i f_i``.
        rows: what they add to each of the m rows of g, constants apart.
    """

    symbols: tuple[Expression, ...]
    places: tuple[int, ...]
    objective: Expression
    rows: tuple[Expression, ...]


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


def fleets_of(problem: Problem, families: Sequence[Constraint]) -> list[Fleet]:
    """Return the groups of several agents with what they add to the rows."""
    begin = np.cumsum([0, *(g.count * g.dim for g in problem.groups)])
    sums = _rows(problem.groups, families, named=False)[1]
    return [
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
    ]


def named_fleets(problem: Problem, families: Sequence[Constraint]) -> Iterator[Fleet]:
    """Every named agent as a fleet of one, numbers in its formulas and in weights."""
    return _alone(problem.groups, families, problem.objectives, problem.local, tables=True)


def named_agents(problem: Problem, families: Sequence[Constraint]) -> Named:
    """Return all named agents; sums over a fleet of one belong to them."""
    places = [i for i, g in enumerate(problem.groups) if g.count == 1]
    own = [filled(problem.objectives[i], problem.groups[i]) for i in places]
    return Named(
        symbols=tuple(s for i in places for s in problem.groups[i].symbols),
        places=tuple(places),
        objective=add(*own),
        rows=tuple(_rows(problem.groups, families)[0]),
    )


def as_fleet(named: Named, groups: Sequence[Group]) -> Fleet:
    """Return all named agents as one agent with a long state: gradient steps know no difference."""
    own = [groups[i] for i in named.places]
    group = Group(
        name="named",
        count=1,
        symbols=named.symbols,
        lower=np.concatenate([g.lower for g in own], axis=1),
        upper=np.concatenate([g.upper for g in own], axis=1),
        parameters={},
    )
    sums = tuple(
        Sum(row=j, terms=(h,), weights=None) for j, h in enumerate(named.rows) if not h.is_zero
    )
    return Fleet(group=group, column=0, objective=named.objective, sums=sums, places=named.places)


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
