"""Public constraints on one agent: bounds in another guise, or rows that it keeps at home.

Such a constraint couples nobody, so it needs no multiplier and no release. On one component it
shrinks the box of its agent: ``{t : g(t) <= 0}`` of a convex g is an interval, found to the last
float inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import add, expand, substitute
from sottovoce.formula.curvature import BoxSigns, Calculus
from sottovoce.formula.derive import derivative
from sottovoce.formula.expression import ZERO, Expression, number
from sottovoce.formula.tape import tape
from sottovoce.problem.agents import Array, Group, read_only
from sottovoce.problem.constraints import Constraint
from sottovoce.problem.relations import Row

_SHRINK = 200  # a bracket is cut by a third so often: below the spacing of floats
_GOLDEN = (3.0 - 5.0**0.5) / 2.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitConstraints:
    """Constraints by who has to keep them.

    Attributes:
        groups: the agents with their smaller boxes.
        coupling: the constraints that couple agents.
        own: those that name one agent, or the agents of one fleet one by one.
        kept: of these, per group, the rows that are no bounds: agents keep them at home.
    """

    groups: tuple[Group, ...]
    coupling: tuple[Constraint, ...]
    own: tuple[Constraint, ...]
    kept: tuple[tuple[Row, ...], ...]


def split_constraints(
    groups: tuple[Group, ...], constraints: Sequence[Constraint]
) -> SplitConstraints:
    """Take constraints on one agent from those that couple agents.

    A row on one component becomes a bound. A row on several components of a fleet's agents, which
    no sum could state, is kept by each of them at home; one of an agent stated by itself stays a
    constraint with a price.

    Raises:
        ProblemError: if no point of an agent's box meets one of them.
    """
    boxes = {group.name: group for group in groups}
    owner = {s: g.name for g in groups for s in (*g.symbols, *g.parameters)}
    kept: dict[str, list[Row]] = {group.name: [] for group in groups}
    coupling: list[Constraint] = []
    own: list[Constraint] = []
    for constraint in constraints:
        names = {owner[s] for e in constraint.rest for s in e.symbols}
        if constraint.sums or len(constraint.rest) != 1 or len(names) != 1:
            coupling.append(constraint)
            continue
        group = boxes[names.pop()]
        g = add(constraint.rest[0], number(constraint.offset[0]))
        row = Row(g=g, equality=constraint.equality, label=constraint.name)
        rules = rules_of(group)
        convex = rules.affine(g) if row.equality else rules.of(g).is_convex
        alone = group.count == 1 and not group.parameters
        if alone and not (convex and len(g.symbols) == 1):
            coupling.append(constraint)
            continue
        own.append(constraint)
        where = f"constraint {constraint.name}"
        ends = component_bounds(group, row, (group.lower, group.upper), where) if convex else None
        if ends is None:
            kept[group.name].append(row)
        else:
            boxes[group.name] = replace(group, lower=read_only(ends[0]), upper=read_only(ends[1]))
    return SplitConstraints(
        groups=tuple(boxes.values()),
        coupling=tuple(coupling),
        own=tuple(own),
        kept=tuple(tuple(rows) for rows in kept.values()),
    )


def rules_of(group: Group) -> Calculus:
    """Return the rules of convexity on the box that holds all agents of a group."""
    box = {
        s: (float(group.lower[:, c].min()), float(group.upper[:, c].max()))
        for c, s in enumerate(group.symbols)
    }
    box |= {s: (float(a.min()), float(a.max())) for s, a in group.parameters.items()}
    return Calculus(group.symbols, BoxSigns(box, group.parameters))


def component_bounds(
    group: Group, row: Row, box: tuple[Array, Array], where: str
) -> tuple[Array, Array] | None:
    """Return the bounds that a convex row on one component leaves; None if it is no such row.

    A row that is affine with parameters is a bound of every agent of a fleet; one that bends is a
    bound of a single agent.

    Args:
        group: the agents.
        row: ``g(x; p) <= 0`` with g convex, or ``= 0`` with g affine.
        box: the bounds so far, shape (count, d).
        where: what the row is, for errors.

    Raises:
        ProblemError: if no point between an agent's bounds meets it.
    """
    moving = row.g.symbols & set(group.symbols)
    if len(moving) != 1:
        return None
    (symbol,) = moving
    c = next(c for c, s in enumerate(group.symbols) if s is symbol)
    lower, upper = np.array(box[0]), np.array(box[1])
    slope = expand(derivative(row.g, symbol))
    if symbol not in slope.symbols and (group.count > 1 or row.equality):
        found = _affine_ends(row, symbol, slope, group)
        lower[:, c], upper[:, c] = (
            np.maximum(lower[:, c], found[0]),
            np.minimum(upper[:, c], found[1]),
        )
    elif group.count > 1:
        return None
    else:
        g = tape([group.fill(row.g)], [symbol])

        def value(t: float) -> float:
            return float(g(np.float64(t))[0])

        ends = _sublevel(value, float(lower[0, c]), float(upper[0, c]))
        lower[0, c], upper[0, c] = (np.inf, -np.inf) if ends is None else ends
    if np.any(lower[:, c] > upper[:, c]):
        place = int(np.argmax(lower[:, c] > upper[:, c]))
        low, high = float(box[0][place, c]), float(box[1][place, c])
        who = f" of {group.label(place)}" if group.count > 1 else ""
        raise ProblemError(
            f"{where} must hold somewhere between the bounds of {symbol}{who}, {low:g} and "
            f"{high:g}, got none: relax it or widen them"
        )
    return lower, upper


def _affine_ends(row: Row, symbol: Expression, slope: Expression, group: Group) -> tuple[Any, Any]:
    """Ends per agent of ``{t : a t + b <= 0}``, or ``= 0``, without what the box says."""
    parts = tape((slope, substitute(row.g, {symbol: ZERO})), group.parameters)
    a, b = parts.arrays(list(group.parameters.values()), (group.count,))
    with np.errstate(all="ignore"):
        at = -b / a
    none = np.where(b > 0.0, np.inf, -np.inf)  # a = 0: everything, or nothing
    low = np.where(a < 0.0, at, np.where(a > 0.0, -np.inf, none))
    high = np.where(a > 0.0, at, np.where(a < 0.0, np.inf, -none))
    if not row.equality:
        return low, high
    never = np.where(b == 0.0, -np.inf, np.inf)
    return np.where(a == 0.0, never, at), np.where(a == 0.0, -never, at)


def _sublevel(
    value: Callable[[float], float], low: float, high: float
) -> tuple[float, float] | None:
    """The floats with ``value <= 0`` between low and high, an interval because value is convex."""

    def holds(t: float) -> bool:
        return value(t) <= 0.0  # NaN, outside the domain of a logarithm, does not hold

    inside = next((t for t in (low, high, _lowest(value, low, high)) if holds(t)), None)
    if inside is None:
        return None
    return _edge(holds, low, inside), _edge(holds, high, inside)


def _edge(holds: Callable[[float], bool], outside: float, inside: float) -> float:
    """The float nearest to ``outside`` that still holds."""
    if holds(outside):
        return outside
    while True:
        middle = outside / 2.0 + inside / 2.0
        if middle in (outside, inside):
            return inside
        if holds(middle):
            inside = middle
        else:
            outside = middle


def _lowest(value: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(_SHRINK):
        a, b = low + _GOLDEN * (high - low), high - _GOLDEN * (high - low)
        left, right = value(a), value(b)
        if left <= right or np.isnan(right):
            high = b
        else:
            low = a
    return low / 2.0 + high / 2.0
