"""A problem's agents as fleets: stated ones, named agents by template, terms that mix agents."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, final

import numpy as np
import scipy.sparse as sparse

from sottovoce.formula.canonical import add, addends, in_order, multiply
from sottovoce.formula.expression import ZERO, Expression, number
from sottovoce.problem.agents import Array, Group, lower_bounds, read_only, upper_bounds
from sottovoce.problem.connected import connected
from sottovoce.problem.constraints import Constraint, FleetSum
from sottovoce.problem.fleet import Fleet, FleetContribution
from sottovoce.problem.linear_rows import coefficients
from sottovoce.problem.local import LocalSet
from sottovoce.problem.templates import NamedAgent, Template, fleet_of, template_of


def fleets_of(
    groups: Sequence[Group],
    families: Sequence[Constraint],
    objectives: Sequence[Expression] | None = None,
    local: Sequence[LocalSet] | None = None,
    *,
    alone: Collection[int] = (),
) -> list[Fleet]:
    """Return the fleets of a problem: stated ones, named agents by template, terms that mix agents.

    Args:
        groups: all agents, as stated.
        families: the rows that they add to.
        objectives: f_i of every group, if known here.
        local: what every group's agents keep to, if known here.
        alone: groups that share a fleet with nobody, because their objectives are code.
    """
    objectives = [ZERO] * len(groups) if objectives is None else objectives
    spans = _spans(groups)
    rows = _read(groups, families, range(len(groups)))
    stated: list[Fleet] = []
    members: defaultdict[Any, list[Template]] = defaultdict(list)
    for index, (group, objective) in enumerate(zip(groups, objectives, strict=True)):
        own = None if local is None else local[index]
        if group.count == 1:
            named = template_of(_named(group, index, objective, own, rows))
            members[(len(alone), index) if index in alone else (0, 0), named.key].append(named)
        else:
            columns, agents = spans[index]
            found = _stated(group, index, objective, own, families)
            stated.append(replace(found, columns=columns, agents=agents))
    # Those that are alone come last.
    merged = [fleet_of(members[key]) for key in sorted(members, key=lambda key: key[0])]
    return [*stated, *(_placed(one, spans) for one in merged), *_mixing(groups, rows.mixing)]


def agent_fleet(
    groups: Sequence[Group],
    families: Sequence[Constraint],
    index: int,
    objective: Expression,
    local: LocalSet | None = None,
) -> Fleet:
    """Return one group's agents with what they add to the rows, formulas as stated.

    Args:
        groups: all groups, with whatever parameters are known here.
        families: the rows, sums of terms that name one agent each.
        index: which group.
        objective: its formula f_i.
        local: what the agents keep to beside their public boxes.
    """
    group = groups[index]
    if group.count > 1:
        return _stated(group, index, objective, local, families)
    own = _named(group, index, objective, local, _read(groups, families, [index]))
    terms = dict(own.terms)
    for state, weights in zip(group.symbols, own.weights, strict=True):
        for row, w in weights.items():
            terms[row] = multiply(number(w), state)
    return Fleet(
        group=group,
        objective=own.objective,
        sums=tuple(FleetContribution(row=row, terms=(terms[row],)) for row in sorted(terms)),
        local=own.local,
        places=(index,),
    )


def in_template(fleet: Fleet) -> Fleet:
    """Return a named agent, as ``agent_fleet`` gives it, by its template."""
    place = {s: c for c, s in enumerate(fleet.group.symbols)}
    terms: dict[int, Expression] = {}
    weights: list[dict[int, float]] = [{} for _ in place]
    for part in fleet.sums:
        read = coefficients(part.terms[0])
        if read is not None and len(read[0]) == 1 and read[1] == 0.0:
            ((state, weight),) = read[0].items()
            weights[place[state]][part.row] = weight
        else:
            terms[part.row] = part.terms[0]
    own = NamedAgent(
        group=fleet.group,
        objective=fleet.objective,
        terms=terms,
        weights=weights,
        local=fleet.local,
        index=fleet.places[0],
    )
    return fleet_of([template_of(own)])


def row_constants(families: Sequence[Constraint]) -> Array:
    """Return the constant of every row, that of its formula and that which is kept apart."""
    found = [np.zeros(0)]
    for family in families:
        constants = [sum(float(t) for t in addends(f) if t.is_number) for f in family.rest]
        found.append(family.offset + np.array(constants or np.zeros(family.rows)))
    return np.concatenate(found)


def written_out(part: FleetSum) -> list[Expression]:
    """The rows of a sum over a fleet of one, as formulas."""
    weights = np.ones(1)
    if part.weights is not None:
        column = part.weights[:, [0]]
        weights = np.ravel(column.toarray() if sparse.issparse(column) else column)
    terms = [part.group.fill(h) for h in part.terms]
    return [multiply(number(w), h) if w else ZERO for w in weights for h in terms]


def named_rows(families: Sequence[Constraint]) -> list[Expression]:
    """Return what named agents add to every row, as formulas; 0 where none does."""
    rows: list[Expression] = []
    for family in families:
        rest = list(family.named) or [ZERO] * family.rows
        for part in (part for part in family.sums if part.group.count == 1):
            rest = [add(a, b) for a, b in zip(rest, written_out(part), strict=True)]
        rows += rest
    return rows


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _NamedRows:
    """Rows over named agents: terms by group and row, weights of components, and the rest.

    Attributes:
        terms: per group, per row, what the agent adds that is not in ``weights``.
        weights: a compressed sparse column array (rows, components).
        column: the first column of every group in ``weights``.
        mixing: formulas that mix agents, with their rows; all that these agents add there.
    """

    terms: Mapping[int, Mapping[int, Expression]]
    weights: Any
    column: Mapping[int, int]
    mixing: Sequence[tuple[int, Expression]]


def _read(
    groups: Sequence[Group], families: Sequence[Constraint], chosen: Iterable[int]
) -> _NamedRows:
    """Take the rows of some named agents apart."""
    owner: dict[Expression, int] = {}
    first: dict[int, int] = {}
    for index in chosen:
        if groups[index].count == 1:
            first[index] = len(owner)
            owner |= dict.fromkeys(groups[index].symbols, index)
    column = {s: c for c, s in enumerate(owner)}
    terms: defaultdict[int, dict[int, Expression]] = defaultdict(dict)
    mixing: list[tuple[int, Expression]] = []
    weights, row = [sparse.csr_array((0, len(owner)))], 0
    for family in families:
        by_row: defaultdict[int, list[tuple[Expression, set[int]]]] = defaultdict(list)
        for r, term in _terms(family):
            owners = {owner[s] for s in term.symbols if s in owner}
            if owners:
                by_row[row + r].append((term, owners))
        for r, listed in by_row.items():
            for agents, formula in _apart(listed):
                if len(agents) == 1:
                    terms[agents.pop()][r] = formula
                else:
                    mixing.append((r, formula))
        if family.linear is None:
            weights.append(sparse.csr_array((family.rows, len(owner))))
        else:
            weights.append(family.linear.of(column).over(column, len(owner)))
        row += family.rows
    stacked = sparse.vstack(weights, format="csc")
    return _NamedRows(terms=terms, weights=stacked, column=first, mixing=mixing)


def _apart(terms: Sequence[tuple[Expression, set[int]]]) -> Iterator[tuple[set[int], Expression]]:
    """A row's terms added up agent by agent, or for agents together that some term mixes."""
    label = {agent: agent for _, owners in terms for agent in owners}
    if any(len(owners) > 1 for _, owners in terms):
        agents = {agent: k for k, agent in enumerate(label)}
        pairs = [(agents[min(o)], agents[a]) for _, o in terms for a in o]
        parts = connected(len(agents), *np.array(pairs).T).tolist()
        label = dict(zip(agents, parts, strict=True))
    members: defaultdict[int, list[tuple[Expression, set[int]]]] = defaultdict(list)
    for term, owners in terms:
        members[label[next(iter(owners))]].append((term, owners))
    for own in members.values():
        yield set().union(*(owners for _, owners in own)), add(*(term for term, _ in own))


def _terms(family: Constraint) -> Iterator[tuple[int, Expression]]:
    """The terms over named agents with their rows; a fleet of one is a named agent."""
    alone = [written_out(part) for part in family.sums if part.group.count == 1]
    for formulas in (family.rest, *alone):
        for row, formula in enumerate(formulas):
            yield from ((row, term) for term in addends(formula) if not term.is_number)


def _spans(groups: Sequence[Group]) -> list[tuple[slice, slice]]:
    """Where the states and the numbers of every group's agents lie."""
    found, column, agent = [], 0, 0
    for group in groups:
        size = group.count * group.dim
        found.append((slice(column, column + size), slice(agent, agent + group.count)))
        column, agent = column + size, agent + group.count
    return found


def _placed(fleet: Fleet, spans: Sequence[tuple[slice, slice]]) -> Fleet:
    own = [spans[place] for place in fleet.places]
    columns = np.concatenate([np.arange(c.start, c.stop) for c, _ in own])
    return replace(fleet, columns=columns, agents=np.array([a.start for _, a in own]))


def _stated(
    group: Group,
    index: int,
    objective: Expression,
    local: LocalSet | None,
    families: Sequence[Constraint],
) -> Fleet:
    """A fleet that was stated as such."""
    sums, row = [], 0
    for family in families:
        for part in family.sums:
            if part.group.name == group.name:
                sums.append(FleetContribution(row=row, terms=part.terms, weights=part.weights))
        row += family.rows
    return Fleet(group=group, objective=objective, sums=tuple(sums), local=local, places=(index,))


def _named(
    group: Group, index: int, objective: Expression, local: LocalSet | None, rows: _NamedRows
) -> NamedAgent:
    own = dict(rows.terms.get(index, {}))
    found: list[dict[int, float]] = []
    matrix, first = rows.weights, rows.column[index]
    for c in range(first, first + group.dim):
        at = slice(*matrix.indptr[c : c + 2])
        found.append(dict(zip(matrix.indices[at].tolist(), matrix.data[at].tolist(), strict=True)))
    # A row that mixes components, or has other terms of the agent, is a formula.
    uses = Counter(chain(own, *found))
    for state, weights in zip(group.symbols, found, strict=True):
        for row in [row for row in weights if uses[row] > 1]:
            own[row] = add(own.get(row, ZERO), multiply(number(weights.pop(row)), state))
    return NamedAgent(
        group=group,
        index=index,
        objective=group.fill(objective),
        terms=own,
        weights=found,
        local=None if local is None else local.of_agent(group, 0),
    )


def _mixing(groups: Sequence[Group], terms: Sequence[tuple[int, Expression]]) -> Iterator[Fleet]:
    """Formulas that mix named agents, each as one agent with the states that it names."""
    if not terms:
        return
    lower, upper = lower_bounds(groups), upper_bounds(groups)
    column: dict[Expression, int] = {}
    for group, (columns, _) in zip(groups, _spans(groups), strict=True):
        if group.count == 1:
            column |= {s: columns.start + c for c, s in enumerate(group.symbols)}
    for row, formula in terms:
        symbols = in_order(formula.symbols)
        at = np.array([column[s] for s in symbols])
        group = Group(
            name="mixture",
            count=1,
            symbols=tuple(symbols),
            lower=read_only(lower[at][np.newaxis]),
            upper=read_only(upper[at][np.newaxis]),
            parameters={},
        )
        yield Fleet(group=group, sums=(FleetContribution(row=row, terms=(formula,)),), columns=at)
