"""How far each named agent can move each output: ``sup |d output_o / d x_l|`` over its box."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sottovoce.certificate.forms import exact
from sottovoce.certificate.slopes import slope_bounds
from sottovoce.certificate.supremum import Supremum, norm_supremum
from sottovoce.errors import CertificateError
from sottovoce.formula.canonical import in_order
from sottovoce.formula.derive import gradient
from sottovoce.formula.expression import ZERO, Expression, exactly
from sottovoce.problem.agents import Array, Group, lower_bounds, upper_bounds
from sottovoce.problem.connected import Indices, connected
from sottovoce.problem.terms import NamedRows, Terms, Unit, linear_terms

Found = tuple[Indices, Indices, Indices, Array, Array]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Influence:
    """What named agents move, one entry for each output and agent.

    Attributes:
        row: the output, from 0.
        agent: the agent, from 0.
        part: which part of its state moves the output; components that some output mixes share one.
        upper: certified upper bounds.
        found: the largest values actually found.
    """

    row: Indices
    agent: Indices
    part: Indices
    upper: Array
    found: Array


@exactly()
def influences(
    named: NamedRows, domain: Sequence[Group], convex: Mapping[int, bool], tolerance: float
) -> Influence:
    """Certify the influence of every named agent.

    Args:
        named: the outputs.
        domain: the agents with the boxes over which states will be kept.
        convex: for each row, whether it is proven convex; then its slope by x_l never decreases
            in x_l, which saves most of the subdivision.
        tolerance: relative gap at which subdivision stops.
    """
    lower, upper = lower_bounds(domain), upper_bounds(domain)
    straight = linear_terms(named)
    label = _labels([*straight, *named.terms], named)
    found = [_of_linear(terms, named.owners()) for terms in straight]
    for terms in named.terms:
        found += _of_terms(terms, named.units, (lower, upper), convex, tolerance)
    empty: Found = (*(np.zeros(0, dtype=np.int64),) * 3, *(np.zeros(0),) * 2)
    row, agent, column, above, met = (
        np.concatenate(columns) for columns in zip(empty, *found, strict=True)
    )
    return Influence(row=row, agent=agent, part=label[column], upper=above, found=met)


def _of_linear(terms: Terms, owners: Indices) -> Found:
    size = np.abs(terms.numbers[:, 0])
    if terms.numbers.shape[1] > 1:
        count = terms.numbers.shape[1]
        size = np.sqrt(np.square(terms.numbers).sum(axis=1)) * (1.0 + (count + 8) * 2.0**-52)
    first = terms.columns[:, 0]
    return terms.rows, owners[first], first, size, size


def _of_terms(
    terms: Terms,
    units: Sequence[Unit],
    ends: tuple[Array, Array],
    convex: Mapping[int, bool],
    tolerance: float,
) -> Iterator[Found]:
    """Terms of single agents: together where slopes are monotone, one by one elsewhere."""
    used = [c for c, s in enumerate(terms.form.symbols) if s in terms.formula.symbols]
    known = all(convex.get(int(row), False) for row in terms.rows)
    if len(used) > 1 or not known or len(units[terms.units[0]].agents) > 1:
        yield from _one_by_one(terms, units, ends, convex, tolerance)
        return
    agents = np.array([units[u].agents[0] for u in terms.units], dtype=np.int64)
    upper, found = slope_bounds(terms.formula, terms.group(*ends), convex=True)
    yield terms.rows, agents, terms.columns[:, used[0]], upper, found


def _one_by_one(
    terms: Terms,
    units: Sequence[Unit],
    ends: tuple[Array, Array],
    convex: Mapping[int, bool],
    tolerance: float,
) -> Iterator[Found]:
    """Every agent of every term by branch and bound."""
    for row, u, expr in zip(terms.rows.tolist(), terms.units, terms.exprs, strict=True):
        unit, formula = units[u], exact(expr)
        box = {
            s: (float(ends[0][c]), float(ends[1][c]))
            for s, c in zip(unit.symbols, unit.columns, strict=True)
        }
        for agent in unit.agents:
            own = [c for c, owner in enumerate(unit.owners) if owner == agent]
            moving = [c for c in own if unit.symbols[c] in formula.symbols]
            symbols = [unit.symbols[c] for c in own]
            slopes = gradient(formula, symbols)
            if not slopes:
                continue
            components = [slopes.get(s, ZERO) for s in symbols]
            facts = [frozenset({s}) for s in symbols] if convex.get(row, False) else None
            bound = _supremum(components, box, facts, tolerance, (symbols[0], row))
            at = int(unit.columns[moving[0]])
            yield (
                np.array([row]), np.array([agent]), np.array([at]),
                np.array([bound.upper]), np.array([bound.found]),
            )  # fmt: skip


def _supremum(
    components: list[Expression],
    box: Mapping[Expression, tuple[float, float]],
    facts: list[frozenset[Expression]] | None,
    tolerance: float,
    where: tuple[Expression, int],
) -> Supremum:
    used = {s for c in components for s in c.symbols}
    try:
        return norm_supremum(
            components,
            {s: box[s] for s in in_order(used)},
            nondecreasing=facts,
            tolerance=tolerance,
        )
    except CertificateError as error:
        name, output = where[0].name.partition("[")[0], where[1] + 1
        raise CertificateError(
            f"the influence of {name} on output {output} has no finite bound: {error}"
        ) from error


def _labels(every: Sequence[Terms], named: NamedRows) -> Indices:
    """Number the parts of every agent's state: components that some output mixes share a part."""
    size = named.linear.shape[1]
    left: list[Indices] = [np.zeros(0, dtype=np.int64)]
    right: list[Indices] = [np.zeros(0, dtype=np.int64)]
    owners = named.owners()
    for terms in every:
        free = terms.formula.symbols
        used = [c for c, s in enumerate(terms.form.symbols) if s in free]
        for a, b in pairwise(used):
            left.append(terms.columns[:, a])
            right.append(terms.columns[:, b])
    ends = (np.concatenate(left), np.concatenate(right))
    same = owners[ends[0]] == owners[ends[1]]
    whole = connected(size, ends[0][same], ends[1][same])
    label = np.zeros(size, dtype=np.int64)
    for unit in (unit for unit in named.units if unit.columns.size > 1):
        for agent in unit.agents:
            own = unit.columns[unit.owners == agent]
            label[own] = np.unique(whole[own], return_inverse=True)[1]
    return label
