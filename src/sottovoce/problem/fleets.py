"""A problem's agents as fleets: stated ones, named agents by template, terms that mix agents.

A template is a named agent's formulas with its numbers as parameters: ``0.5*(x1 - 3)**2`` and
``0.7*(x2 + 1)**2`` are both ``p1*(x + p2)**2``, and a contribution that is a number times one
component is a weight. Exponents, and numbers that float64 does not hold to the last bit, are part
of the template. A template depends on the agent's own formulas alone, so that an agent by itself
computes to the same bits what it would among others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple, TypeAlias, final

import numpy as np

from sottovoce.formula.canonical import add, addends, in_order, multiply, rebuilt, substitute
from sottovoce.formula.connected import Indices, connected
from sottovoce.formula.expression import NONSMOOTH, ONE, SLOPES, ZERO, Expression, number, symbol
from sottovoce.problem.agents import Array, Group, lower_bounds, read_only, upper_bounds
from sottovoce.problem.constraints import Constraint
from sottovoce.problem.fleet import Fleet, FleetContribution
from sottovoce.problem.linear_rows import (
    Weights,
    exact_float,
    sparse,
)
from sottovoce.problem.local import LocalSet

_FEW_ROWS = 4  # of a local set, two of which may be the two sides of one
_DENSE = 0.25  # share of weights that are not 0 from which all are kept
_SMALL = 1 << 12  # weights up to which all are kept: SciPy is large to load


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
        alone: groups that share a fleet with no other, because their objectives are code.
    """
    objectives = [ZERO] * len(groups) if objectives is None else objectives
    # Where the states and the numbers of every group's agents begin.
    sizes = [(group.count * group.dim, group.count) for group in groups]
    begins = np.cumsum([(0, 0), *sizes], axis=0)
    named, mixing = _named_agents(groups, families, range(len(groups)))
    fleets: list[Fleet] = []
    members: defaultdict[tuple[int, _Template], list[_Member]] = defaultdict(list)
    for index, (group, objective) in enumerate(zip(groups, objectives, strict=True)):
        own = None if local is None else local[index]
        if group.count == 1:
            agent = replace(named[index], objective=objective, local=own)
            template, member = _by_template(agent)
            members[index if index in alone else -1, template].append(member)
        else:
            fleet = _stated(group, index, objective, own, families)
            columns, agents = (slice(*ends) for ends in begins[index : index + 2].T.tolist())
            fleets.append(replace(fleet, columns=columns, agents=agents))
    for key in sorted(members, key=lambda key: key[0]):  # those that are alone come last
        fleet = _joined(key[1], members[key])
        first = begins[list(fleet.places)]
        states = first[:, :1] + np.arange(fleet.group.dim)
        fleets.append(replace(fleet, columns=states.ravel(), agents=first[:, 1]))
    return [*fleets, *_mixtures(groups, begins[:, 0], mixing)]


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
    agent = _named_agents(groups, families, [index])[0][index]
    sums = _contributions(agent.terms, group.symbols, [agent.weights])
    return Fleet(group=group, objective=objective, sums=sums, local=local, places=(index,))


def in_template(fleet: Fleet) -> Fleet:
    """Return a named agent, as ``agent_fleet`` gives it, by its template."""
    agent = _NamedAgent(
        group=fleet.group,
        index=fleet.places[0],
        terms={part.row: part.terms[0] for part in fleet.sums if part.weights is None},
        weights=(),
        objective=fleet.objective,
        local=fleet.local,
    )
    template, member = _by_template(agent)
    joined = _joined(template, [member])
    state = dict(zip(fleet.group.symbols, joined.group.symbols, strict=True))
    tables = (
        replace(part, terms=tuple(state[s] for s in part.terms))
        for part in fleet.sums
        if part.weights is not None
    )
    return replace(joined, sums=(*joined.sums, *tables))


def row_constants(families: Sequence[Constraint]) -> Array:
    """Return the constant of every row, that of its formula and that which is kept apart."""
    found = [np.zeros(0)]
    for family in families:
        constants = [sum(float(t) for t in addends(f) if t.is_number) for f in family.rest]
        found.append(family.offset + np.array(constants or np.zeros(family.rows)))
    return np.concatenate(found)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _NamedAgent:
    """A named agent, numbers in its formulas.

    Attributes:
        group: the agent.
        index: which of the stated groups it is, from 0.
        terms: what it adds to rows, by row.
        weights: for every component its weight in rows that it adds nothing else to, by row.
        objective: f.
        local: what it keeps to.
    """

    group: Group
    index: int
    terms: dict[int, Expression]
    weights: Sequence[dict[int, float]]
    objective: Expression = ZERO
    local: LocalSet | None = None


def _named_agents(
    groups: Sequence[Group], families: Sequence[Constraint], chosen: Iterable[int]
) -> tuple[dict[int, _NamedAgent], list[tuple[int, Expression]]]:
    """Take the rows of some named agents apart: what each adds, and what mixes several, by row."""
    agents = {
        i: _NamedAgent(group=groups[i], index=i, terms={}, weights=[{} for _ in groups[i].symbols])
        for i in chosen
        if groups[i].count == 1
    }
    places = [(i, c) for i, agent in agents.items() for c in range(agent.group.dim)]
    column = {agents[i].group.symbols[c]: k for k, (i, c) in enumerate(places)}
    mixing: list[tuple[int, Expression]] = []
    row = 0
    for family in families:
        for r, formula in enumerate(family.rest):
            owned = ((t, {places[column[s]][0] for s in t.symbols if s in column})
                     for t in addends(formula))  # fmt: skip
            for who, part in _apart([(t, owners) for t, owners in owned if owners]):
                if len(who) == 1:
                    agents[who.pop()].terms[row + r] = part
                else:
                    mixing.append((row + r, part))
        if family.linear is not None:
            entries = (part.tolist() for part in family.linear.entries(column))
            for r, k, w in zip(*entries, strict=True):
                i, c = places[k]
                agents[i].weights[c][row + r] = w
        row += family.rows
    for agent in agents.values():
        # A row that mixes components, or has other terms of the agent, is a formula.
        uses = Counter(chain(agent.terms, *agent.weights))
        for state, weights in zip(agent.group.symbols, agent.weights, strict=True):
            for r in [r for r in weights if uses[r] > 1]:
                linear = multiply(number(weights.pop(r)), state)
                agent.terms[r] = add(agent.terms.get(r, ZERO), linear)
    return agents, mixing


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


def _mixtures(
    groups: Sequence[Group],
    begins: Indices,
    terms: Sequence[tuple[int, Expression]],
) -> Iterator[Fleet]:
    """Formulas that mix named agents, each as one agent with the states that it names."""
    if not terms:
        return
    lower, upper = lower_bounds(groups), upper_bounds(groups)
    column = {
        s: begin + c
        for group, begin in zip(groups, begins, strict=False)
        for c, s in enumerate(group.symbols)
    }
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


class _Template(NamedTuple):
    """What named agents of one fleet share.

    Attributes:
        dim: the number of components.
        formulas: objective, terms, local inequalities and equalities, parameters for numbers.
        rows: the rows of the terms.
        used: the components that have weights.
        local: how many inequalities and equalities each keeps.
        repeated: which numbers are others again, see ``_repeated``.
    """

    dim: int
    formulas: tuple[Expression, ...]
    rows: tuple[int, ...]
    used: tuple[int, ...]
    local: tuple[int, int]
    repeated: tuple[tuple[int, int, float], ...]


_Member: TypeAlias = tuple[_NamedAgent, list[float]]
"""A named agent and its numbers in its template."""


def _by_template(agent: _NamedAgent) -> tuple[_Template, _Member]:
    place = {s: c for c, s in enumerate(agent.group.symbols)}
    rows = tuple(sorted(agent.terms))
    kept = () if agent.local is None else agent.local.inequalities
    equal = () if agent.local is None else agent.local.equalities
    formulas: list[Expression] = []
    numbers: list[float] = []
    first = 0
    for formula in (agent.objective, *(agent.terms[row] for row in rows), *kept, *equal):
        first = len(numbers) if len(formulas) == 1 + len(rows) else first
        formulas.append(parametrised(formula, place, numbers))
    template = _Template(
        dim=agent.group.dim,
        formulas=tuple(formulas),
        rows=rows,
        used=tuple(c for c, weights in enumerate(agent.weights) if weights),
        local=(len(kept), len(equal)),
        repeated=_repeated(numbers, first) if 1 < len(kept) + len(equal) <= _FEW_ROWS else (),
    )
    return template, (agent, numbers)


def _repeated(numbers: Sequence[float], first: int) -> tuple[tuple[int, int, float], ...]:
    """Numbers of few local rows that are others again, up to their sign: rows may be parallel.

    Each as its place, the place of the number that it repeats (-1: it is 1), and its sign then.
    """
    known, repeats = {1.0: -1}, []
    for place in range(first, len(numbers)):
        at = known.setdefault(abs(numbers[place]), place)
        if at != place:
            same = numbers[place] == (1.0 if at < 0 else numbers[at])
            repeats.append((place, at, 1.0 if same else -1.0))
    return tuple(repeats)


def _joined(template: _Template, members: Sequence[_Member]) -> Fleet:
    """The fleet of named agents with one template."""
    agents = [agent for agent, _ in members]
    rows, inequalities = template.rows, template.local[0]
    formulas, symbols = template.formulas, tuple(_state(c) for c in range(template.dim))
    parameters = [_parameter(k + 1) for k in range(len(members[0][1]))]
    same = {
        parameters[place]: multiply(number(sign), ONE if at < 0 else parameters[at])
        for place, at, sign in template.repeated
    }
    own = [substitute(row, same) for row in formulas[1 + len(rows) :]]
    numbers = np.array([values for _, values in members]).reshape(len(members), -1)
    terms = dict(zip(rows, formulas[1 : 1 + len(rows)], strict=True))
    sets = [agent.local for agent in agents if agent.local is not None]
    local = None
    if sets:
        local = replace(
            sets[0],
            inequalities=tuple(own[:inequalities]),
            equalities=tuple(own[inequalities:]),
            lower=read_only(np.concatenate([one.lower for one in sets])),
            upper=read_only(np.concatenate([one.upper for one in sets])),
        )
    return Fleet(
        group=Group(
            name=agents[0].group.name,
            count=len(agents),
            symbols=symbols,
            lower=read_only(np.concatenate([agent.group.lower for agent in agents])),
            upper=read_only(np.concatenate([agent.group.upper for agent in agents])),
            parameters=dict(zip(parameters, numbers.T.copy(), strict=True)),
        ),
        objective=formulas[0],
        sums=_contributions(terms, symbols, [agent.weights for agent in agents]),
        local=local,
        places=tuple(agent.index for agent in agents),
    )


def _contributions(
    terms: Mapping[int, Expression],
    symbols: Sequence[Expression],
    members: Sequence[Sequence[Mapping[int, float]]],
) -> tuple[FleetContribution, ...]:
    """Terms by row, and as one table what is linear: agents' weights by component and row.

    The weight of the t-th of T components that have some is in column ``i T + t`` for agent i.
    """
    sums = tuple(FleetContribution(row=row, terms=(terms[row],)) for row in sorted(terms))
    used = [c for c, weights in enumerate(members[0]) if weights]
    if not used:
        return sums
    columns = [weights[c] for weights in members for c in used]
    row = np.fromiter(chain.from_iterable(columns), dtype=np.int64)
    values = np.fromiter(chain.from_iterable(c.values() for c in columns), dtype=np.float64)
    column = np.repeat(np.arange(len(columns)), [len(c) for c in columns])
    shape = (int(row.max()) + 1, len(columns))
    full = len(used) == 1 and values.size >= _DENSE * shape[0] * shape[1]
    if full or shape[0] * shape[1] <= _SMALL:
        matrix: Weights = np.zeros(shape)
        matrix[row, column] = values
    else:
        matrix = sparse.csr_array((values, (row, column)), shape=shape)
    states = tuple(symbols[c] for c in used)
    return (*sums, FleetContribution(row=0, terms=states, weights=matrix, table=not full))


def parametrised(
    formula: Expression, place: Mapping[Expression, int], numbers: list[float]
) -> Expression:
    """Return a formula with parameters in place of its numbers, which join ``numbers``.

    Args:
        formula: in the components of one state.
        place: which component, from 0, each symbol is.
        numbers: those of the parameters ``p[1]``, ``p[2]``, ... so far.
    """

    def written(part: Expression) -> Expression:
        value = exact_float(part.value) if part.is_number else None
        if value is not None:
            numbers.append(value)
            return _parameter(len(numbers))
        # Non-smooth functions depend on the signs of numbers, which therefore stay.
        if part.op in NONSMOOTH | SLOPES or not part.args:
            return part
        return rebuilt(part, [written(a) for a in part.args])

    if not formula.symbols:
        return written(formula)
    # Terms are ordered by names: states get theirs first, so that equal templates agree in order.
    return written(substitute(formula, {s: _state(c) for s, c in place.items()}))


def _state(component: int) -> Expression:
    return symbol(f"x[{component + 1}]")


def _parameter(place: int) -> Expression:
    return symbol(f"p[{place}]")
