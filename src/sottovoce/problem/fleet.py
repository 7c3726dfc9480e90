"""A fleet: agents whose formulas differ in numbers only. Whatever reads agents reads fleets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.formula.connected import Indices
from sottovoce.formula.expression import ZERO, Expression
from sottovoce.problem.agents import Array, Group, read_only
from sottovoce.problem.linear_rows import Weights, entries_of, sparse
from sottovoce.problem.local import LocalSet

Index: TypeAlias = Any  # a slice, or an array of indices
Scalar = TypeVar("Scalar", bound=np.generic)


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
        """The same without tables and without rows whose weights are all 0.

        Args:
            first: the number of the first term among those of the fleet.
        """
        every, count = self.weights, len(self.terms)
        tables = [(first + t, 1, every[:, t::count]) for t in range(count)] if self.table else []
        for begin, terms, weights in tables or [(first, count, every)]:
            rows = 1 if weights is None else int(weights.shape[0])
            at = self.row + np.arange(rows * terms).reshape(rows, terms)
            if weights is not None and not (isinstance(weights, np.ndarray) and weights.all()):
                weights = sparse.csr_array(weights)
                used = np.flatnonzero(np.diff(weights.indptr))
                at, weights = at[used], weights[used]
            yield WeightedTerms(rows=at, terms=range(begin, begin + terms), weights=weights)


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
    """Agents with one template.

    Attributes:
        group: count, state and parameters of the template, and the agents' public boxes.
        objective: f.
        sums: what the agents add to rows.
        local: what they keep to beside their public boxes; None: nothing.
        places: the stated groups, from 0, that they are; none for a term that mixes agents.
        columns: where their states lie among all states, one agent after the other.
        agents: their numbers, from 0.
    """

    group: Group
    objective: Expression = ZERO
    sums: tuple[FleetContribution, ...] = ()
    local: LocalSet | None = None
    places: tuple[int, ...] = ()
    columns: Index = field(default_factory=lambda: slice(None))
    agents: Index = field(default_factory=lambda: slice(None))

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

    def of(self, x: NDArray[Scalar]) -> NDArray[Scalar]:
        """The agents' part of a vector of all states, shape (count, d)."""
        return np.reshape(x[self.columns], (self.group.count, self.group.dim))

    def within(self, domain: Sequence[Group]) -> Group:
        """The template with the boxes of ``domain``, the stated groups with other bounds."""
        own = [domain[place] for place in self.places]
        if len(own) == 1:
            return replace(self.group, lower=own[0].lower, upper=own[0].upper)
        lower, upper = (
            np.concatenate([getattr(g, side).ravel() for g in own]).reshape(-1, self.group.dim)
            for side in ("lower", "upper")
        )
        return replace(self.group, lower=read_only(lower), upper=read_only(upper))

    def some(self, places: Indices) -> Fleet:
        """The agents ``places`` (from 0) as a fleet of their own."""
        sums = tuple(part.some(places) for part in self.sums)
        local = None if self.local is None else self.local.some(places)
        return replace(self, group=self.group.some(places), sums=sums, local=local)
