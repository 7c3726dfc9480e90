"""Slope bounds ``sup |dh/dx_i|`` of terms, agent by agent, and blocks of weighted values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from sottovoce.certificate.supremum import cached_supremum
from sottovoce.errors import CertificateError
from sottovoce.formula.derive import Indices, gradient, rationalise
from sottovoce.formula.enclosure import IntervalBox, enclose
from sottovoce.formula.expression import ZERO, Expression, exact_arithmetic
from sottovoce.formula.intervals import Interval
from sottovoce.formula.order import in_order
from sottovoce.problem.fleets import Fleet, WeightedTerms
from sottovoce.problem.groups import Array, Group
from sottovoce.problem.linear_rows import Weights, sparse

UP = 1.0 + 2.0**-50  # more than the rounding of the few products it is applied to
_FEW = 1000  # different agents up to which each is bounded by branch and bound

Slopes = Mapping[Expression, Expression]


def agent_box(formula: Expression, group: Group) -> IntervalBox:
    """Return the intervals of what a formula names, for every agent of a group at once.

    Where all agents have one box and it names no parameter, one of them stands for all.
    """
    used = formula.symbols
    rows = slice(1) if _have_one_box(group) and not used & {*group.parameters} else slice(None)
    return {
        s: Interval(lower=group.lower[rows, c], upper=group.upper[rows, c])
        for c, s in enumerate(group.symbols)
        if s in used
    } | {s: Interval(lower=a, upper=a) for s, a in group.parameters.items() if s in used}


def _have_one_box(group: Group) -> bool:
    return bool(group.lower.strides[0] == 0 == group.upper.strides[0])


@exact_arithmetic()
def slope_bounds(
    h: Expression, group: Group, *, convex: bool, tolerance: float
) -> tuple[Array, Array]:
    """Bound ``|dh/dx_i|`` over X_i for every agent i of a fleet; upper bounds and values attained.

    Where h is proven ``convex`` its slope by a component never decreases in it; subdivision stops
    at the relative gap ``tolerance``.
    """
    slopes = gradient(rationalise(h), group.symbols)
    states = {s for d in slopes.values() for s in d.symbols} & set(group.symbols)
    attained = _norm(slopes, replace(group, upper=group.lower))
    if not states:
        return attained, attained
    distinct = _distinct_agents(h, group)
    steepest_at_ends = convex and len(slopes) == len(states) == 1  # a convex function of one state
    if steepest_at_ends or distinct is None:
        attained = np.maximum(attained, _norm(slopes, replace(group, lower=group.upper)))
        return attained if steepest_at_ends else _norm(slopes, group), attained
    first, same = distinct
    bounds = [
        _supremum(
            group.fill(h, i), group.symbols, _box(group, i), convex=convex, tolerance=tolerance
        )
        for i in first.tolist()
    ]
    upper, attained = np.array(bounds).T
    return upper[same], attained[same]


def mixture_bounds(
    fleet: Fleet, owners: Sequence[int], *, convex: bool, tolerance: float
) -> Iterator[tuple[int, float, float]]:
    """Bound the slope of a formula that mixes agents by each of them: agent, bound, value attained.

    ``fleet`` is the formula as one agent with the states of all ``owners``; the rest is as for
    ``slope_bounds``.
    """
    group, formula = fleet.group, fleet.terms[0]
    box = _box(group, 0)
    for agent in dict.fromkeys(owners):
        states = [s for s, owner in zip(group.symbols, owners, strict=True) if owner == agent]
        upper, attained = _supremum(formula, states, box, convex=convex, tolerance=tolerance)
        if upper > 0.0:
            yield agent, upper, attained


def _distinct_agents(h: Expression, group: Group) -> tuple[Indices, Indices] | None:
    """Agents with different boxes and numbers, and which of them each agent is; None if many."""
    used = [values for s, values in group.parameters.items() if s in h.symbols]
    if _have_one_box(group) and not used:
        return np.zeros(1, dtype=np.int64), np.zeros(group.count, dtype=np.int64)
    if group.count > _FEW:
        return None
    facts = np.hstack([group.lower, group.upper, *(a[:, np.newaxis] for a in used)])
    _, first, same = np.unique(facts, axis=0, return_index=True, return_inverse=True)
    return first, same.ravel()


def _box(group: Group, place: int) -> dict[Expression, tuple[float, float]]:
    ends = zip(group.lower[place].tolist(), group.upper[place].tolist(), strict=True)
    return dict(zip(group.symbols, ends, strict=True))


@exact_arithmetic()
def _supremum(
    formula: Expression,
    symbols: Sequence[Expression],
    box: Mapping[Expression, tuple[float, float]],
    *,
    convex: bool,
    tolerance: float,
) -> tuple[float, float]:
    """Branch and bound for ``|dh/dx|`` by some components; 0 if it depends on none."""
    slopes = gradient(rationalise(formula), symbols)
    components = [slopes.get(s, ZERO) for s in symbols]
    used = {s for d in components for s in d.symbols}
    if not slopes:
        return 0.0, 0.0
    bound = cached_supremum(
        [[d] for d in components],
        {s: box[s] for s in in_order(used)},
        nondecreasing=[frozenset({s}) for s in symbols] if convex else None,
        tolerance=tolerance,
    )
    return bound.upper, bound.attained


def _norm(slopes: Slopes, group: Group) -> Array:
    """Bound the length of the gradient of every agent over its box, shape (count,)."""
    sizes = [enclose(slope, agent_box(slope, group)).magnitude for slope in slopes.values()]
    norm = sizes[0] if sizes else np.zeros(1)
    if len(sizes) > 1:
        squares = sum(np.square(size) * UP for size in sizes)
        norm = np.sqrt(squares) * (1.0 + (len(sizes) + 8) * 2.0**-52)
    if not np.all(np.isfinite(norm)):
        slope = group.fill(next(iter(slopes.values())), int(np.argmin(np.isfinite(norm))))
        raise CertificateError(
            f"the slope of {slope} has no finite bound on the agents' boxes: "
            "tighten the bounds so that every formula stays defined and finite"
        )
    return np.asarray(np.broadcast_to(norm, (group.count,)))


TermValues: TypeAlias = Callable[[Fleet], Sequence[tuple[int, Sequence[Array]]]]
Weighting: TypeAlias = Callable[..., Sequence[Array]]
WeightedBlock: TypeAlias = tuple[Indices, Any, Any, Sequence[Any]]


def weighted_blocks(
    fleets: Sequence[Fleet],
    values: TermValues,
    weighted: Weighting,
    more: Iterable[tuple[int, Sequence[Any]]] = (),
) -> Iterator[WeightedBlock]:
    """Yield weighted terms of all agents: rows, first agent, parts, arrays (rows, agents).

    ``values`` gives for each term of a fleet the part of the state that it belongs to, and arrays
    that fit (count,); ``weighted`` multiplies such arrays by weights; ``more`` holds parts with
    rows, agents and weighted values. A dense block, or one as sparse as the weights, comes per sum
    of a stated fleet; for every part of states a sparse block over all agents stated one by one.
    """
    entries: defaultdict[int, list[Sequence[Any]]] = defaultdict(list)
    agents = sum(fleet.group.count for fleet in fleets)
    for fleet in fleets:
        count = fleet.group.count
        terms = [(part, [np.broadcast_to(v, (count,)) for v in of]) for part, of in values(fleet)]
        for sums in fleet.parts():
            if isinstance(fleet.agents, slice):
                parts = np.tile([terms[t][0] for t in sums.terms], len(sums.rows))
                columns = [_of_term(sums.weights, terms[t][1], weighted) for t in sums.terms]
                stacked = [_stacked(sums, of_terms) for of_terms in zip(*columns, strict=True)]
                yield sums.rows.ravel(), fleet.agents.start, parts, stacked
                continue
            for t, row, place, weight in sums.entries(count):
                part, arrays = terms[t]
                ends = weighted(weight, *(v[place] for v in arrays))
                entries[part].append((row, fleet.agents[place], *ends))
    for part, entry in more:
        entries[part].append(entry)
    for part in sorted(entries):
        row, agent, *arrays = (np.concatenate(c) for c in zip(*entries[part], strict=True))
        rows, index = np.unique(row, return_inverse=True)
        shape = (rows.size, agents)
        yield rows, 0, part, [sparse.csr_array((v, (index, agent)), shape=shape) for v in arrays]


def _of_term(weights: Weights, arrays: Sequence[Array], weighted: Weighting) -> list[Any]:
    """The values of one term of a fleet in the shape of its weights."""
    if weights is None:
        return [v[np.newaxis] for v in arrays]
    if not sparse.issparse(weights):
        return list(weighted(weights, *(v[np.newaxis] for v in arrays)))
    ends = weighted(weights.data, *(v[weights.indices] for v in arrays))
    places = (weights.indices, weights.indptr)
    return [sparse.csr_array((v, *places), shape=weights.shape) for v in ends]


def _stacked(sums: WeightedTerms, values: Sequence[Any]) -> Any:
    """Values of several terms as rows ``r * terms + t``; a view where all agents have the same."""
    if sparse.issparse(sums.weights):
        order = np.arange(sums.rows.size).reshape(len(values), -1).T.ravel()
        return sparse.csr_array(sparse.vstack(values, format="csr")[order])
    count = values[0].shape[1]
    same = slice(1 if all(v.strides[1] == 0 for v in values) else count)
    stacked = np.stack([v[:, same] for v in values], axis=1).reshape(sums.rows.size, -1)
    return np.broadcast_to(stacked, (sums.rows.size, count))
