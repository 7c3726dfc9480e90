"""Templates: a named agent's formulas with its numbers as parameters.

``0.5*(x1 - 3)**2`` and ``0.7*(x2 + 1)**2`` are both ``p1*(x + p2)**2``, and a contribution that is
a number times one component is a weight. Exponents, and numbers that float64 does not hold to the
last bit, are part of the template. A template depends on the agent's own formulas alone, so that an
agent by itself computes to the same bits what it would among others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any, final

import numpy as np
import scipy.sparse as sparse

from sottovoce.formula.canonical import multiply, rebuilt, substitute
from sottovoce.formula.expression import NONSMOOTH, ONE, SLOPES, Expression, number, symbol
from sottovoce.problem.agents import Group, read_only
from sottovoce.problem.fleet import Fleet, FleetContribution
from sottovoce.problem.linear_rows import exact_float
from sottovoce.problem.local import LocalSet

_FEW_ROWS = 4  # of a local set, two of which may be the two sides of one
_DENSE = 0.25  # share of weights that are not 0 from which all are kept


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NamedAgent:
    """A named agent, numbers in its formulas.

    Attributes:
        group: the agent.
        index: which of the stated groups it is, from 0.
        objective: f.
        terms: what it adds to rows, by row.
        weights: for every component its weight in rows that it adds nothing else to, by row.
        local: what it keeps to.
    """

    group: Group
    index: int
    objective: Expression
    terms: Mapping[int, Expression]
    weights: Sequence[Mapping[int, float]]
    local: LocalSet | None


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Template:
    """A named agent with the key of its template and its numbers there."""

    agent: NamedAgent
    key: Any
    numbers: list[float]


def template_of(agent: NamedAgent) -> Template:
    """Return the template of a named agent, and its numbers there."""
    place = {s: c for c, s in enumerate(agent.group.symbols)}
    rows = tuple(sorted(agent.terms))
    kept = () if agent.local is None else agent.local.inequalities
    equal = () if agent.local is None else agent.local.equalities
    keys: list[Expression] = []
    numbers: list[float] = []
    first = 0
    for formula in (agent.objective, *(agent.terms[row] for row in rows), *kept, *equal):
        first = len(numbers) if len(keys) == 1 + len(rows) else first
        key, values = key_of(formula, place)
        keys.append(key)
        numbers += values
    counts = (len(kept), len(equal))
    again = _repeated(numbers, first) if 1 < sum(counts) <= _FEW_ROWS else ()
    used = tuple(c for c, weights in enumerate(agent.weights) if weights)
    whole = (agent.group.dim, tuple(keys), rows, used, counts, again)
    return Template(agent=agent, key=whole, numbers=numbers)


def _repeated(numbers: Sequence[float], first: int) -> tuple[tuple[int, int, float], ...]:
    """Numbers of few local rows that are others again, up to their sign: rows may be parallel.

    Each as its place, the place of the number that it repeats (-1: it is 1), and its sign then.
    """
    known, found = {1.0: -1}, []
    for place in range(first, len(numbers)):
        at = known.setdefault(abs(numbers[place]), place)
        if at != place:
            same = numbers[place] == (1.0 if at < 0 else numbers[at])
            found.append((place, at, 1.0 if same else -1.0))
    return tuple(found)


def fleet_of(members: Sequence[Template]) -> Fleet:
    """The fleet of named agents with one template."""
    agents = [member.agent for member in members]
    dim, keys, rows, used, (inequalities, _), again = members[0].key
    form = form_of(keys, dim)
    same = {
        form.parameters[place]: multiply(number(sign), ONE if at < 0 else form.parameters[at])
        for place, at, sign in again
    }
    own = [substitute(row, same) for row in form.formulas[1 + len(rows) :]]
    numbers = np.array([member.numbers for member in members]).reshape(len(members), -1)
    sums = [
        FleetContribution(row=row, terms=(h,))
        for row, h in zip(rows, form.formulas[1 : 1 + len(rows)], strict=True)
    ]
    if used:
        sums.append(_table(used, form.symbols, [agent.weights for agent in agents]))
    local = agents[0].local
    if local is not None:
        sets = [agent.local for agent in agents if agent.local is not None]
        local = replace(
            local,
            inequalities=tuple(own[:inequalities]),
            equalities=tuple(own[inequalities:]),
            lower=read_only(np.concatenate([one.lower for one in sets])),
            upper=read_only(np.concatenate([one.upper for one in sets])),
        )
    return Fleet(
        group=Group(
            name=agents[0].group.name,
            count=len(agents),
            symbols=form.symbols,
            lower=read_only(np.concatenate([agent.group.lower for agent in agents])),
            upper=read_only(np.concatenate([agent.group.upper for agent in agents])),
            parameters=dict(zip(form.parameters, numbers.T.copy(), strict=True)),
        ),
        objective=form.formulas[0],
        sums=tuple(sums),
        local=local,
        places=tuple(agent.index for agent in agents),
    )


def _table(
    used: Sequence[int],
    symbols: Sequence[Expression],
    members: Sequence[Sequence[Mapping[int, float]]],
) -> FleetContribution:
    """What is linear: the weight of component ``used[t]`` of agent i in column ``i T + t``."""
    columns = [weights[c] for weights in members for c in used]
    row = np.fromiter(chain.from_iterable(columns), dtype=np.int64)
    values = np.fromiter(chain.from_iterable(c.values() for c in columns), dtype=np.float64)
    column = np.repeat(np.arange(len(columns)), [len(c) for c in columns])
    shape = (int(row.max()) + 1, len(columns))
    matrix: Any = sparse.csr_array((values, (row, column)), shape=shape)
    if len(used) == 1 and matrix.nnz >= _DENSE * shape[0] * shape[1]:
        matrix = matrix.toarray()
    terms = tuple(symbols[c] for c in used)
    return FleetContribution(row=0, terms=terms, weights=matrix, table=len(used) > 1)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Form:
    """Formulas of a state and of numbers that are told apart by their places.

    Attributes:
        formulas: in ``symbols`` and ``parameters``.
        symbols: the components of a state.
        parameters: what the numbers are called.
    """

    formulas: tuple[Expression, ...]
    symbols: tuple[Expression, ...]
    parameters: tuple[Expression, ...]


def key_of(formula: Expression, place: Mapping[Expression, int]) -> tuple[Expression, list[float]]:
    """Return a formula with parameters in place of its numbers, and these numbers.

    Args:
        formula: in the components of one state.
        place: which component, from 0, each symbol is.
    """
    numbers: list[float] = []

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
        return written(formula), numbers
    # Terms are ordered by names: states get theirs first, so that equal templates agree in order.
    return written(substitute(formula, {s: _state(c) for s, c in place.items()})), numbers


@lru_cache(maxsize=1 << 10)
def form_of(keys: tuple[Expression, ...], dim: int) -> Form:
    """Return the formulas that several keys stand for, their numbers one after the other.

    Args:
        keys: from ``key_of``.
        dim: how many components the state has.
    """
    symbols = tuple(_state(c) for c in range(dim))
    formulas, count = [], 0
    for key in keys:
        own = len(key.symbols.difference(symbols))
        moved = {_parameter(k + 1): _parameter(count + k + 1) for k in range(own if count else 0)}
        formulas.append(substitute(key, moved))
        count += own
    parameters = tuple(_parameter(k + 1) for k in range(count))
    return Form(formulas=tuple(formulas), symbols=symbols, parameters=parameters)


def _state(component: int) -> Expression:
    return symbol(f"x[{component + 1}]")


def _parameter(place: int) -> Expression:
    return symbol(f"p[{place}]")
