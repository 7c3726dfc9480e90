"""Fleets: stated ones, named agents by template, terms that mix agents.

A fleet's agents have formulas that differ in numbers only. A template is a named agent's formulas
with its numbers as parameters: ``0.5*(x1 - 3)**2`` and ``0.7*(x2 + 1)**2`` are both
``p1*(x + p2)**2``, and a contribution that is a number times one component is a weight. Exponents,
and numbers that float64 does not hold to the last bit, are part of the template. A template depends
on the agent's own formulas alone, so that an agent by itself computes to the same bits what it
would among others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.formula.canonical import add, addends, multiply, rebuild, substitute
from sottovoce.formula.derive import Indices, connected
from sottovoce.formula.expression import NONSMOOTH, ONE, SLOPES, ZERO, Expression, number, symbol
from sottovoce.formula.order import in_order
from sottovoce.problem.constraints import Constraint, numbered
from sottovoce.problem.groups import Array, Group, lower_bounds, read_only, upper_bounds
from sottovoce.problem.linear_rows import Weights, entries_of, exact_float, sparse
from sottovoce.problem.local import LocalSet, box_of

Index: TypeAlias = Any  # a slice, or an array of indices
Scalar = TypeVar("Scalar", bound=np.generic)

_FEW_ROWS = 4  # of a local set, two of which may be the two sides of one
_DENSE = 0.25  # share of weights that are not 0 from which all are kept
_SMALL = 1 << 12  # weights up to which all are kept: SciPy is large to load


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetContribution:
    """Rows ``row, row + 1, ...`` that a fleet adds to, ``sum_i W[r, i] h_t(x_i; p_i)``.

    Row ``row + r T + t`` belongs to weights row r and term t of T. In a table every term has
    weights of its own: W is sparse with column ``i T + t``, row ``row + r`` is ``sum_it W[r, i T +
    t] h_t(x_i)``, and no agent adds to a row by two terms.
    """

    row: int
    terms: tuple[Expression, ...]
    weights: Weights = None
    table: bool = False

    def some(self, agents: Indices) -> FleetContribution:
        """What some of the agents add."""
        if self.weights is None:
            return self
        terms = len(self.terms) if self.table else 1
        columns = (agents[:, np.newaxis] * terms + np.arange(terms)).ravel()
        return replace(self, weights=self.weights[:, columns])

    def parts(self, first: int) -> Iterator[WeightedTerms]:
        """The same without tables and rows without weights; its terms count from ``first``."""
        every, count = self.weights, len(self.terms)
        tables = [(first + t, 1, every[:, t::count]) for t in range(count)] if self.table else []
        for begin, terms, weights in tables or [(first, count, every)]:
            rows = 1 if weights is None else int(weights.shape[0])
            numbers = self.row + np.arange(rows * terms).reshape(rows, terms)
            if isinstance(weights, np.ndarray):
                used = np.flatnonzero(weights.any(axis=1))
                numbers, weights = numbers[used], weights[used]
            if weights is not None and not (isinstance(weights, np.ndarray) and weights.all()):
                weights = sparse.csr_array(weights)
                used = np.flatnonzero(np.diff(weights.indptr))
                numbers, weights = numbers[used], weights[used]
            yield WeightedTerms(rows=numbers, terms=range(begin, begin + terms), weights=weights)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeightedTerms:
    """What a fleet adds to some rows: ``g[rows[r, k]] += sum_i W[r, i] h_terms[k](x_i; p_i)``."""

    rows: Indices
    terms: range
    weights: Weights

    def entries(self, count: int) -> Iterator[tuple[int, Indices, Indices, Array]]:
        """Per term its number, and the row, the agent and the weight of everything it adds."""
        one = np.ones((1, count)) if self.weights is None else self.weights
        row, agent, weight = entries_of(one)
        for column, t in enumerate(self.terms):
            yield t, self.rows[row, column], agent, weight

    def nonnegative(self) -> bool:
        """Whether no weight is negative."""
        if self.weights is None:
            return True
        dense = isinstance(self.weights, np.ndarray)
        return bool(np.all((self.weights if dense else self.weights.data) >= 0.0))

    def gather(self, values: Array) -> Array:
        """``sum_i W[r, i] values[k, i]``, shape (r, terms)."""
        if self.weights is None:
            return np.asarray(values.sum(axis=1))[np.newaxis]
        return np.asarray(self.weights @ values.T)

    def spread(self, mu: Array) -> Array:
        """``sum_r W[r, i] mu[rows[r, k]]``, shape (count, terms), or (1, terms) without weights."""
        local = mu[self.rows]
        return local if self.weights is None else np.asarray(self.weights.T @ local)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fleet:
    """Agents with one template."""

    group: Group  # count, state and parameters of the template, and the agents' public boxes
    objective: Expression = ZERO  # f
    sums: tuple[FleetContribution, ...] = ()  # what the agents add to rows
    local: LocalSet  # what they keep to
    places: tuple[int, ...] = ()  # the stated groups, from 0; none of a term that mixes agents
    columns: Index = field(default_factory=lambda: slice(None))  # where all their states lie
    agents: Index = field(default_factory=lambda: slice(None))  # their numbers, from 0

    @property
    def terms(self) -> tuple[Expression, ...]:
        """Every h_t."""
        return tuple(h for part in self.sums for h in part.terms)

    def parts(self) -> Iterator[WeightedTerms]:
        """What it adds to rows, in terms of ``terms``."""
        first = 0
        for contribution in self.sums:
            yield from contribution.parts(first)
            first += len(contribution.terms)

    def select(self, x: NDArray[Scalar]) -> NDArray[Scalar]:
        """The agents' part of a vector of all states, shape (count, d)."""
        return np.reshape(x[self.columns], (self.group.count, self.group.dim))

    def within(self, domain: Sequence[Group]) -> Group:
        """The template with the boxes of ``domain``, the stated groups with other bounds."""
        boxes = [domain[place] for place in self.places]
        if len(boxes) == 1:
            return replace(self.group, lower=boxes[0].lower, upper=boxes[0].upper)
        lower, upper = (
            np.concatenate([getattr(g, side).ravel() for g in boxes]).reshape(-1, self.group.dim)
            for side in ("lower", "upper")
        )
        return replace(self.group, lower=read_only(lower), upper=read_only(upper))

    def some(self, places: Indices) -> Fleet:
        """The agents ``places`` (from 0) as a fleet of their own."""
        sums = tuple(part.some(places) for part in self.sums)
        return replace(
            self, group=self.group.some(places), sums=sums, local=self.local.some(places)
        )


def fleets_of(
    groups: Sequence[Group],
    families: Sequence[Constraint],
    objectives: Sequence[Expression] | None = None,
    local: Sequence[LocalSet] = (),
    *,
    alone: Collection[int] = (),
) -> list[Fleet]:
    """Return the fleets of a problem: stated ones, named agents by template, terms that mix agents.

    Agents add to the rows of ``families``. Groups ``alone`` share a fleet with no other, because
    their objectives are code.
    """
    objectives = objectives or [ZERO] * len(groups)
    # Where the states and the numbers of every group's agents begin.
    sizes = [(group.count * group.dim, group.count) for group in groups]
    begins = np.cumsum([(0, 0), *sizes], axis=0)
    named, mixing = _named_agents(groups, families, range(len(groups)))
    fleets: list[Fleet] = []
    members: defaultdict[tuple[int, _Template], list[tuple[_NamedAgent, list[float]]]]
    members = defaultdict(list)
    for index, (group, objective) in enumerate(zip(groups, objectives, strict=True)):
        agent_set = local[index] if local else box_of(group)
        if group.count == 1:
            agent = replace(named[index], objective=objective, local=agent_set)
            template, numbers = _by_template(agent)
            members[index if index in alone else -1, template].append((agent, numbers))
        else:
            fleet = _stated(group, index, objective, agent_set, families)
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
    """Return the agents of group ``index`` as a fleet, a named agent by its template.

    The rows of ``families`` are sums of terms that name one agent each.
    """
    group = groups[index]
    local = box_of(group) if local is None else local
    if group.count > 1:
        return _stated(group, index, objective, local, families)
    agent = _named_agents(groups, families, [index])[0][index]
    agent = replace(agent, objective=objective, local=local)
    template, numbers = _by_template(agent)
    return _joined(template, [(agent, numbers)])


def row_constants(families: Sequence[Constraint]) -> Array:
    """Return the constant of every row, that of its formula and that which is kept apart."""
    parts = [np.zeros(0)]
    for family in families:
        constants = [sum(float(t) for t in addends(f) if t.is_number) for f in family.rest]
        parts.append(family.offset + np.array(constants or np.zeros(family.rows)))
    return np.concatenate(parts)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _NamedAgent:
    """A named agent, numbers in its formulas."""

    group: Group  # the agent
    index: int  # which of the stated groups it is, from 0
    terms: dict[int, Expression]  # what it adds to rows, by row
    weights: Sequence[dict[int, float]]  # by row, of components that add nothing else to it
    objective: Expression = ZERO  # f
    local: LocalSet  # what it keeps to


def _named_agents(
    groups: Sequence[Group], families: Sequence[Constraint], chosen: Iterable[int]
) -> tuple[dict[int, _NamedAgent], list[tuple[int, Expression]]]:
    """Take the rows of some named agents apart: what each adds, and what mixes several, by row."""
    agents = {
        i: _NamedAgent(group=g, index=i, terms={}, weights=[{} for _ in g.symbols], local=box_of(g))
        for i in chosen
        if (g := groups[i]).count == 1
    }
    owner = {s: i for i, agent in agents.items() for s in agent.group.symbols}
    column = {s: k for k, s in enumerate(owner)}
    by_column = [weights for agent in agents.values() for weights in agent.weights]
    mixing: list[tuple[int, Expression]] = []
    for row, family in numbered(families):
        for r, formula in enumerate(family.rest, row):
            for names, terms in _separated(formula, owner):
                if len(names) == 1:
                    agents[names.pop()].terms[r] = terms
                else:
                    mixing.append((r, terms))
        if family.linear is not None:
            entries = (part.tolist() for part in family.linear.entries(column))
            for r, k, w in zip(*entries, strict=True):
                by_column[k][row + r] = w
    for agent in agents.values():
        # A row that mixes components, or has other terms of the agent, is a formula.
        uses = Counter(chain(agent.terms, *agent.weights))
        for state, weights in zip(agent.group.symbols, agent.weights, strict=True):
            for r in [r for r in weights if uses[r] > 1]:
                linear = multiply(number(weights.pop(r)), state)
                agent.terms[r] = add(agent.terms.get(r, ZERO), linear)
    return agents, mixing


def _separated(
    formula: Expression, owner: Mapping[Expression, int]
) -> Iterator[tuple[set[int], Expression]]:
    """The terms of a formula by owner, or by several owners whose states some term mixes."""
    terms = [(t, {owner[s] for s in t.symbols if s in owner}) for t in addends(formula)]
    label = {agent: agent for _, owners in terms for agent in owners}
    if any(len(owners) > 1 for _, owners in terms):
        agents = {agent: k for k, agent in enumerate(label)}
        pairs = [(agents[min(owners)], agents[a]) for _, owners in terms for a in owners]
        parts = connected(len(agents), *np.array(pairs).T).tolist()
        label = dict(zip(agents, parts, strict=True))
    members: defaultdict[int, list[tuple[Expression, set[int]]]] = defaultdict(list)
    for term, owners in terms:
        if owners:
            members[label[min(owners)]].append((term, owners))
    for group in members.values():
        yield set().union(*(owners for _, owners in group)), add(*(term for term, _ in group))


def _stated(
    group: Group,
    index: int,
    objective: Expression,
    local: LocalSet,
    families: Sequence[Constraint],
) -> Fleet:
    """A fleet that was stated as such."""
    sums = tuple(
        FleetContribution(row=row, terms=part.terms, weights=part.weights)
        for row, family in numbered(families)
        for part in family.sums
        if part.group.name == group.name
    )
    return Fleet(group=group, objective=objective, sums=sums, local=local, places=(index,))


def _mixtures(
    groups: Sequence[Group], begins: Indices, terms: Sequence[tuple[int, Expression]]
) -> Iterator[Fleet]:
    """Formulas that mix named agents, each as one agent with the states that it names."""
    if not terms:
        return
    lower, upper = lower_bounds(groups), upper_bounds(groups)
    firsts = zip(groups, begins, strict=False)
    column = {s: first + c for group, first in firsts for c, s in enumerate(group.symbols)}
    for row, formula in terms:
        symbols = tuple(in_order(formula.symbols))
        columns = np.array([column[s] for s in symbols])
        group = Group(
            name="mixture",
            symbols=symbols,
            lower=read_only(lower[columns][np.newaxis]),
            upper=read_only(upper[columns][np.newaxis]),
        )
        sums = (FleetContribution(row=row, terms=(formula,)),)
        yield Fleet(group=group, sums=sums, local=box_of(group), columns=columns)


class _Template(NamedTuple):
    """What named agents of one fleet share."""

    dim: int  # the number of components
    formulas: tuple[Expression, ...]  # objective, terms, local inequalities and equalities
    rows: tuple[int, ...]  # the rows of the terms
    used: tuple[int, ...]  # the components that have weights
    local: tuple[int, int]  # how many inequalities and equalities each keeps
    repeated: tuple[tuple[int, int, float], ...]  # numbers that are others again, see ``_repeated``


def _by_template(agent: _NamedAgent) -> tuple[_Template, list[float]]:
    """The template of an agent, and its numbers in it."""
    place = {s: c for c, s in enumerate(agent.group.symbols)}
    rows = tuple(sorted(agent.terms))
    inequalities, equalities = agent.local.inequalities, agent.local.equalities
    formulas: list[Expression] = []
    numbers: list[float] = []
    first = 0
    for formula in (
        agent.objective,
        *(agent.terms[row] for row in rows),
        *inequalities,
        *equalities,
    ):
        first = len(numbers) if len(formulas) == 1 + len(rows) else first
        formulas.append(parametrised(formula, place, numbers))
    template = _Template(
        dim=agent.group.dim,
        formulas=tuple(formulas),
        rows=rows,
        used=tuple(c for c, weights in enumerate(agent.weights) if weights),
        local=(len(inequalities), len(equalities)),
        repeated=_repeated(numbers, first)
        if 1 < len(inequalities) + len(equalities) <= _FEW_ROWS
        else (),
    )
    return template, numbers


def _repeated(numbers: Sequence[float], first: int) -> tuple[tuple[int, int, float], ...]:
    """Numbers of few local rows that are others again, up to their sign: rows may be parallel.

    Each as its place, the place of the number that it repeats (-1: it is 1), and its sign then.
    """
    first_uses, repeats = {1.0: -1}, []
    for place in range(first, len(numbers)):
        first_use = first_uses.setdefault(abs(numbers[place]), place)
        if first_use != place:
            same = numbers[place] == (1.0 if first_use < 0 else numbers[first_use])
            repeats.append((place, first_use, 1.0 if same else -1.0))
    return tuple(repeats)


def _joined(template: _Template, members: Sequence[tuple[_NamedAgent, list[float]]]) -> Fleet:
    """The fleet of named agents with one template."""
    agents = [agent for agent, _ in members]
    rows, inequalities = template.rows, template.local[0]
    formulas, symbols = template.formulas, tuple(_state(c) for c in range(template.dim))
    parameters = [_parameter(k + 1) for k in range(len(members[0][1]))]
    repeated = {
        parameters[place]: multiply(number(sign), ONE if first_use < 0 else parameters[first_use])
        for place, first_use, sign in template.repeated
    }
    local_rows = [substitute(row, repeated) for row in formulas[1 + len(rows) :]]
    numbers = np.array([values for _, values in members]).reshape(len(members), -1)
    terms = dict(zip(rows, formulas[1 : 1 + len(rows)], strict=True))
    local = replace(
        agents[0].local,
        inequalities=tuple(local_rows[:inequalities]),
        equalities=tuple(local_rows[inequalities:]),
        lower=read_only(np.concatenate([agent.local.lower for agent in agents])),
        upper=read_only(np.concatenate([agent.local.upper for agent in agents])),
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

    ``place`` has the component, from 0, of every symbol.
    """

    def written(part: Expression) -> Expression:
        value = exact_float(part.value) if part.is_number else None
        if value is not None:
            numbers.append(value)
            return _parameter(len(numbers))
        # Non-smooth functions depend on the signs of numbers, which therefore stay.
        if part.op in NONSMOOTH | SLOPES or not part.args:
            return part
        return rebuild(part, [written(a) for a in part.args])

    if not formula.symbols:
        return written(formula)
    # Terms are ordered by names: states get theirs first, so that equal templates agree in order.
    return written(substitute(formula, {s: _state(c) for s, c in place.items()}))


def _state(component: int) -> Expression:
    return symbol(f"x[{component + 1}]")


def _parameter(place: int) -> Expression:
    return symbol(f"p[{place}]")
