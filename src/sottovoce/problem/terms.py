"""What agents stated one by one add to rows, by the form of what they add.

Rows over named agents are taken apart, agent by agent: what is linear is one weight matrix, and
terms that differ in numbers only are evaluated and certified together, as a fleet's are. Agents
that a formula mixes count as one unit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np
import scipy.sparse as sparse

from sottovoce.formula.canonical import add, addends, multiply, substitute
from sottovoce.formula.expression import ZERO, Expression, number
from sottovoce.problem.agents import Array, Group, read_only
from sottovoce.problem.connected import Indices, connected
from sottovoce.problem.constraints import Constraint, FleetSum, Weights
from sottovoce.problem.form import Form, form_of, key_of, linear_form


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unit:
    """Named agents that some row mixes, or one by itself.

    Attributes:
        agents: their numbers, from 0, among all agents.
        symbols: the components of their states.
        columns: where these lie in the vector of all states.
        owners: the agent that each belongs to.
    """

    agents: tuple[int, ...]
    symbols: tuple[Expression, ...]
    columns: Indices
    owners: Indices


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Terms:
    """Formulas of one form: ``h(x_u; p)`` for several units u, each added to a row.

    Attributes:
        form: the formula.
        rows: the row of each, shape (count,).
        units: the unit of each, shape (count,); -1 for what ``linear_terms`` makes.
        columns: where its state lies, shape (count, dim).
        numbers: its parameters, shape (count, parameters).
        exprs: the formulas as they were written.
    """

    form: Form
    rows: Indices
    units: Indices
    columns: Indices
    numbers: Array
    exprs: tuple[Expression, ...]

    @property
    def formula(self) -> Expression:
        """The formula h."""
        return self.form.formulas[0]

    @property
    def parameters(self) -> dict[Expression, Array]:
        """An array of numbers for each parameter."""
        return dict(zip(self.form.parameters, self.numbers.T, strict=True))

    def group(self, lower: Array, upper: Array) -> Group:
        """The terms as the agents of a fleet, in boxes given as vectors of all states."""
        return Group(
            name="terms",
            count=len(self.rows),
            symbols=self.form.symbols,
            lower=read_only(lower[self.columns]),
            upper=read_only(upper[self.columns]),
            parameters=self.parameters,
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NamedRows:
    """Rows over named agents: ``linear x + terms + constants``.

    Attributes:
        units: the agents, those together that a row mixes.
        linear: what is linear, a sparse array (rows, states).
        terms: what is not.
        constants: one per row, those of formulas and those that families keep apart.
    """

    units: tuple[Unit, ...]
    linear: Any
    terms: tuple[Terms, ...]
    constants: Array

    def unit_of(self) -> dict[Expression, int]:
        """The unit that each component belongs to."""
        return {s: u for u, unit in enumerate(self.units) for s in unit.symbols}

    def by_column(self) -> dict[int, list[tuple[int, Expression]]]:
        """The terms of every agent with their rows, by the first column of its state."""
        found: defaultdict[int, list[tuple[int, Expression]]] = defaultdict(list)
        for terms in self.terms:
            for row, first, expr in zip(terms.rows, terms.columns[:, 0], terms.exprs, strict=True):
                found[int(first)].append((int(row), expr))
        return found

    def owners(self) -> Indices:
        """The agent, from 0, whose each column of ``linear`` is; -1 for those of fleets."""
        agent = np.full(self.linear.shape[1], -1, dtype=np.int64)
        for unit in self.units:
            agent[unit.columns] = unit.owners
        return agent


def named_rows_of(groups: Sequence[Group], families: Sequence[Constraint]) -> NamedRows:
    """Take rows apart.

    Args:
        groups: all agents.
        families: the rows; sums over fleets are passed over.
    """
    places = _places(groups)
    pieces: list[tuple[int, Expression]] = []
    constants = np.concatenate([np.zeros(0), *(family.offset for family in families)])
    for row, formula in _formulas(families):
        for term in addends(formula):
            if term.is_number:
                constants[row] += float(term)
            else:
                pieces.append((row, term))
    found = [term.symbols for _, term in pieces]
    units = _units(places, found)
    unit_of = {s: u for u, unit in enumerate(units) for s in unit.symbols}
    parts: defaultdict[tuple[int, int], list[Expression]] = defaultdict(list)
    for (row, term), symbols in zip(pieces, found, strict=True):
        parts[row, unit_of[next(iter(symbols))]].append(term)
    whole = [(row, u, add(*terms)) for (row, u), terms in parts.items()]
    size = sum(group.count * group.dim for group in groups)
    return NamedRows(
        units=units,
        linear=_stacked(families, places, size),
        terms=tuple(grouped(whole, units)),
        constants=constants,
    )


def linear_terms(named: NamedRows) -> list[Terms]:
    """What is linear as terms ``sum_c p_c x_c``, one per row and agent, by how many c there are."""
    entries = named.linear.tocoo()
    agent = named.owners()
    order = np.lexsort((entries.col, agent[entries.col], entries.row))
    rows, columns, values = entries.row[order], entries.col[order], entries.data[order]
    agents = agent[columns]
    fresh = np.flatnonzero(np.diff(rows, prepend=-1) | np.diff(agents, prepend=-1))
    sizes = np.diff(np.append(fresh, rows.size))
    found = []
    for size in np.unique(sizes):
        at = fresh[sizes == size]
        every = at[:, np.newaxis] + np.arange(size)
        found.append(
            Terms(
                form=linear_form(int(size)),
                rows=rows[at].astype(np.int64),
                units=np.full(at.size, -1, dtype=np.int64),
                columns=columns[every].astype(np.int64),
                numbers=values[every],
                exprs=(),
            )
        )
    return found


def grouped(formulas: Iterable[tuple[int, int, Expression]], units: Sequence[Unit]) -> list[Terms]:
    """Put formulas ``(row, unit, formula)`` of one form together."""
    alike: defaultdict[tuple[Expression, int, int], list[tuple[int, int, list[float], Expression]]]
    alike = defaultdict(list)
    places = [{s: c for c, s in enumerate(unit.symbols)} for unit in units]
    for row, u, formula in formulas:
        key, numbers = key_of(formula, places[u])
        # Units of several agents are blocks of their own in linear algebra.
        apart = -1 if len(units[u].agents) == 1 else u
        alike[key, len(places[u]), apart].append((row, u, numbers, formula))
    return [_terms(key, dim, found, units) for (key, dim, _), found in alike.items()]


def _terms(
    key: Expression,
    dim: int,
    found: Sequence[tuple[int, int, list[float], Expression]],
    units: Sequence[Unit],
) -> Terms:
    return Terms(
        form=form_of((key,), dim),
        rows=np.array([row for row, _, _, _ in found], dtype=np.int64),
        units=np.array([u for _, u, _, _ in found], dtype=np.int64),
        columns=np.array([units[u].columns for _, u, _, _ in found], dtype=np.int64),
        numbers=np.array([numbers for _, _, numbers, _ in found]).reshape(len(found), -1),
        exprs=tuple(expr for _, _, _, expr in found),
    )


def filled(formula: Expression, group: Group) -> Expression:
    """A formula with the parameters of a named agent filled in."""
    return substitute(formula, {s: number(a[0]) for s, a in group.parameters.items()})


def written_out(part: FleetSum) -> list[Expression]:
    """The rows of a sum over a fleet of one, as formulas."""
    weights = np.ones(1) if part.weights is None else column_of(part.weights, 0)
    terms = [filled(h, part.group) for h in part.terms]
    return [multiply(number(w), h) if w else ZERO for w in weights for h in terms]


def column_of(weights: Weights, place: int) -> Array:
    """Return the weights of agent ``place`` (from 0), dense."""
    column = weights[:, [place]]
    dense = column.toarray() if hasattr(column, "toarray") else column
    return np.asarray(dense, dtype=np.float64).ravel()


def _formulas(families: Sequence[Constraint]) -> Iterator[tuple[int, Expression]]:
    """The formulas over named agents with their rows; a fleet of one is a named agent."""
    first = 0
    for family in families:
        yield from ((first + row, formula) for row, formula in enumerate(family.rest))
        for part in family.sums:
            if part.group.count == 1:
                yield from ((first + row, h) for row, h in enumerate(written_out(part)))
        first += family.rows


def _places(groups: Sequence[Group]) -> dict[Expression, tuple[int, int]]:
    """The column and the agent, both from 0, of every component of a named agent's state."""
    found: dict[Expression, tuple[int, int]] = {}
    column = agent = 0
    for group in groups:
        if group.count == 1:
            found |= {s: (column + c, agent) for c, s in enumerate(group.symbols)}
        column += group.count * group.dim
        agent += group.count
    return found


def _units(
    places: Mapping[Expression, tuple[int, int]], mixed: Iterable[Set[Expression]]
) -> tuple[Unit, ...]:
    named = list(dict.fromkeys(agent for _, agent in places.values()))
    number = {agent: i for i, agent in enumerate(named)}
    links: set[tuple[int, int]] = set()
    for symbols in mixed:
        first, *others = {number[places[s][1]] for s in symbols}
        links |= {(first, other) for other in others}
    label = connected(len(named), *np.array(sorted(links)).reshape(-1, 2).T).tolist()
    members: defaultdict[int, list[Expression]] = defaultdict(list)
    for s, (_, agent) in places.items():
        members[label[number[agent]]].append(s)
    order = np.array([places[s] for symbols in members.values() for s in symbols], dtype=np.int64)
    columns, owners = order.reshape(-1, 2).T.copy()
    ends = np.cumsum([0, *map(len, members.values())]).tolist()
    return tuple(
        Unit(
            agents=tuple(dict.fromkeys(places[s][1] for s in symbols)),
            symbols=tuple(symbols),
            columns=columns[begin:end],
            owners=owners[begin:end],
        )
        for symbols, (begin, end) in zip(members.values(), pairwise(ends), strict=True)
    )


def _stacked(
    families: Sequence[Constraint], places: Mapping[Expression, tuple[int, int]], size: int
) -> Any:
    column = {s: c for s, (c, _) in places.items()}
    parts = [
        sparse.csr_array((family.rows, size))
        if family.linear is None
        else family.linear.over(column, size)
        for family in families
    ]
    return sparse.vstack([sparse.csr_array((0, size)), *parts], format="csr")
