"""How far agents can move what they add to outputs: ``sup |dh/dx_i|`` over their boxes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from sottovoce.certificate.forms import exact
from sottovoce.certificate.supremum import norm_supremum
from sottovoce.errors import CertificateError
from sottovoce.formula.canonical import in_order
from sottovoce.formula.derive import gradient
from sottovoce.formula.enclosure import enclose
from sottovoce.formula.expression import ZERO, Expression, exactly
from sottovoce.formula.intervals import Interval
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.connected import Indices
from sottovoce.problem.fleet import Fleet

UP = 1.0 + 2.0**-50  # more than the rounding of the few products it is applied to
_FEW = 1000  # different agents up to which each is bounded by branch and bound

Slopes = Mapping[Expression, Expression]


@exactly()
def slope_bounds(
    h: Expression, group: Group, *, convex: bool, tolerance: float
) -> tuple[Array, Array]:
    """Bound ``|dh/dx_i|`` over X_i for every agent i of a fleet; upper bounds and values met.

    Args:
        h: the formula of the agents' contribution.
        group: the agents with their boxes.
        convex: whether it is proven convex; then its slope by a component never decreases in it.
        tolerance: relative gap at which subdivision stops.
    """
    slopes = gradient(exact(h), group.symbols)
    states = {s for d in slopes.values() for s in d.symbols} & set(group.symbols)
    met = _norm(slopes, group, group.lower, group.lower)
    if not states:
        return met, met
    if convex and len(slopes) == len(states) == 1:
        # A convex function of one variable has its steepest slopes at the ends of its interval.
        met = np.maximum(met, _norm(slopes, group, group.upper, group.upper))
        return met, met
    different = _different(h, group)
    if different is None:
        met = np.maximum(met, _norm(slopes, group, group.upper, group.upper))
        return _norm(slopes, group, group.lower, group.upper), met
    first, same = different
    bounds = [_of_agent(h, group, int(i), convex=convex, tolerance=tolerance) for i in first]
    upper, found = np.array(bounds).T
    return upper[same], found[same]


def mixture_bounds(
    fleet: Fleet, owners: Sequence[int], *, convex: bool, tolerance: float
) -> Iterator[tuple[int, float, float]]:
    """Bound the slope of a formula that mixes agents by each of them: agent, bound, value met.

    Args:
        fleet: the formula, as one agent with the states of all of them.
        owners: the agent that each of these belongs to.
        convex: whether the formula is proven convex.
        tolerance: relative gap at which subdivision stops.
    """
    group, formula = fleet.group, fleet.terms[0]
    box = _box(group, 0)
    for agent in dict.fromkeys(owners):
        own = [s for s, owner in zip(group.symbols, owners, strict=True) if owner == agent]
        upper, met = _supremum(formula, own, box, convex=convex, tolerance=tolerance)
        if upper > 0.0:
            yield agent, upper, met


def _different(h: Expression, group: Group) -> tuple[Indices, Indices] | None:
    """Agents with different boxes and numbers, and which of them each agent is; None if many."""
    used = [values for s, values in group.parameters.items() if s in h.symbols]
    one_box = group.lower.strides[0] == 0 == group.upper.strides[0]
    if one_box and not used:
        return np.zeros(1, dtype=np.int64), np.zeros(group.count, dtype=np.int64)
    if group.count > _FEW:
        return None
    facts = np.hstack([group.lower, group.upper, *(a[:, np.newaxis] for a in used)])
    _, first, same = np.unique(facts, axis=0, return_index=True, return_inverse=True)
    return first, same.ravel()


def _box(group: Group, place: int) -> dict[Expression, tuple[float, float]]:
    ends = zip(group.lower[place].tolist(), group.upper[place].tolist(), strict=True)
    return dict(zip(group.symbols, ends, strict=True))


def _of_agent(
    h: Expression, group: Group, place: int, *, convex: bool, tolerance: float
) -> tuple[float, float]:
    own, box = group.fill(h, place), _box(group, place)
    return _supremum(own, group.symbols, box, convex=convex, tolerance=tolerance)


@exactly()
def _supremum(
    formula: Expression,
    symbols: Sequence[Expression],
    box: Mapping[Expression, tuple[float, float]],
    *,
    convex: bool,
    tolerance: float,
) -> tuple[float, float]:
    """Branch and bound for ``|dh/dx|`` by some components; 0 if it depends on none."""
    slopes = gradient(exact(formula), symbols)
    components = [slopes.get(s, ZERO) for s in symbols]
    used = {s for d in components for s in d.symbols}
    if not slopes:
        return 0.0, 0.0
    bound = norm_supremum(
        components,
        {s: box[s] for s in in_order(used)},
        nondecreasing=[frozenset({s}) for s in symbols] if convex else None,
        tolerance=tolerance,
    )
    return bound.upper, bound.found


def _norm(slopes: Slopes, group: Group, lower: Array, upper: Array) -> Array:
    """Bound the length of the gradient of every agent over boxes, shape (count,)."""
    box = {s: Interval(lower=a, upper=a) for s, a in group.parameters.items()}
    box |= {s: Interval(lower=lower[:, c], upper=upper[:, c]) for c, s in enumerate(group.symbols)}
    sizes = []
    for slope in slopes.values():
        bound = enclose(slope, {s: box[s] for s in slope.symbols})
        sizes.append(np.maximum(np.abs(bound.lower), np.abs(bound.upper)))
    norm = sizes[0] if sizes else np.zeros(1)
    if len(sizes) > 1:
        squares = sum(np.square(size) * UP for size in sizes)
        norm = np.sqrt(squares) * (1.0 + (len(sizes) + 8) * 2.0**-52)
    if not np.all(np.isfinite(norm)):
        raise CertificateError(
            f"the slope of {next(iter(slopes.values()))} has no finite bound on the agents' boxes: "
            "tighten the bounds so that every formula stays defined and finite"
        )
    return np.asarray(np.broadcast_to(norm, (group.count,)))
