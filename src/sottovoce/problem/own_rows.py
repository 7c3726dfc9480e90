"""Public rows that name one agent: they belong to its set, as a bound or as a row.

Such a row couples no agents, so it needs no multiplier and no release. On one component it shrinks
the box of its agent: ``{t : g(t) <= 0}`` of a convex g is an interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import final

import numpy as np

from sottovoce.errors import ConvexityError, ProblemError
from sottovoce.formula.canonical import add, expand, multiply, substitute
from sottovoce.formula.curvature import BoxSigns, Calculus
from sottovoce.formula.derive import derivative
from sottovoce.formula.enclosure import demands
from sottovoce.formula.expression import ZERO, Expression, number
from sottovoce.formula.tape import tape
from sottovoce.problem.agents import Array, Group, read_only
from sottovoce.problem.constraints import Constraint
from sottovoce.problem.linear_rows import read_linear
from sottovoce.problem.stating import Row

MET = 1e-9
"""How far a row may be off, relative to the numbers that it adds up."""


@final
class SplitConstraints:
    """Constraints by who has to keep them: rows that name one agent, and those that couple agents.

    The former belong to the set of the agent, or of every agent of the fleet: as a bound if they
    are on one component. A row of a named agent that the rules do not show to be convex stays a
    constraint with a price, which a certificate may prove convex.

    Args:
        stated: the agents, with their boxes as stated.
        families: the constraints.

    Attributes:
        coupling: the constraints that couple agents: weights where a family is linear, formulas
            elsewhere.
        own: those that name one agent, or the agents of one fleet one by one, a row each.

    Raises:
        ProblemError: if no point of an agent's box meets one of them.
        ConvexityError: if a row of a fleet is not shown to be convex: no sum could state it.
    """

    def __init__(self, stated: Sequence[Group], families: Sequence[Constraint]) -> None:
        self._boxes = {group.name: group for group in stated}
        self._owner = {s: g.name for g in stated for s in (*g.symbols, *g.parameters)}
        self._kept: dict[str, list[Row]] = {group.name: [] for group in stated}
        self.coupling: list[Constraint] = []
        self.own: list[Constraint] = []
        single = (group for group in stated if group.count == 1)
        numbers = {s: number(float(a[0])) for g in single for s, a in g.parameters.items()}
        for family in families:
            rest = tuple(substitute(e, numbers) for e in family.rest)
            for part in _kept_form(replace(family, rest=rest)):
                self._split(part)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The agents with their smaller boxes; a fleet of one has numbers for parameters."""
        return tuple(replace(g, parameters={}) if g.count == 1 else g for g in self._boxes.values())

    @property
    def kept(self) -> tuple[tuple[Row, ...], ...]:
        """Of ``own``, per group, the rows that are no bounds: its agents' sets have them."""
        return tuple(map(tuple, self._kept.values()))

    def _split(self, part: Constraint) -> None:
        if part.sums:
            self.coupling += _without_single(part)
            return
        owners = self._owners(part)
        if all(len(names) > 1 for names in owners):
            self.coupling.append(part)
            return
        for r, names in enumerate(owners):
            row = part if part.rows == 1 else part.only(r)
            if not names:
                raise ProblemError(
                    f"constraint {row.name} must name a state, got one whose coefficients are all "
                    "0: remove it"
                )
            if len(names) > 1 or not self._absorb(row, *names):
                self.coupling.append(row)

    def _owners(self, family: Constraint) -> list[set[str]]:
        """Whose states each row names."""
        if family.linear is None:
            return [{self._owner[s] for s in g.symbols} for g in family.rest]
        weights = family.linear.weights
        names = [self._owner[s] for s in family.linear.symbols]
        return [{names[c] for c in weights.indices[a:b]} for a, b in pairwise(weights.indptr)]

    def _absorb(self, stated: Constraint, name: str) -> bool:
        """Give a row to the set of the one agent, or fleet, that it names; False if it stays."""
        group, where = self._boxes[name], f"constraint {stated.name}"
        (g,) = stated.formulas
        row = Row(g=g, equality=stated.equality, written=stated.name)
        if stated.linear is None:
            rules = rules_of(group)
            if not (rules.affine(g) if row.equality else rules.of(g).is_convex):
                if group.count == 1:
                    return False
                require_convex_row(row, group, where)
        self.own.append(replace(stated, rest=stated.named, linear=None))
        ends = component_bounds(group, row, (group.lower, group.upper), where)
        if ends is None:
            self._kept[name].append(row)
        else:
            lower, upper = map(read_only, ends)
            self._boxes[name] = replace(group, lower=lower, upper=upper)
        return True


def _kept_form(family: Constraint) -> list[Constraint]:
    """Rows as they are kept: weights where all are linear, formulas one by one elsewhere."""
    if family.sums:
        return [replace(family, rest=family.named, linear=None)]
    if not family.rest:
        return [family]
    whole = replace(family, rest=family.named, linear=None)
    read = read_linear(whole.rest)
    if read is not None:
        linear, constants = read
        offset = read_only(family.offset + constants)
        return [replace(whole, rest=(), linear=linear, offset=offset)]
    if family.rows == 1:
        return [whole]
    return [part for r in range(family.rows) for part in _kept_form(whole.only(r))]


def _without_single(family: Constraint) -> list[Constraint]:
    """A family with sums over fleets of one as formulas of these agents."""
    single = [part for part in family.sums if part.group.count == 1]
    if not single:
        return [family]
    rows = [family.rest] if family.rest else []
    for part in single:
        terms = [part.group.fill(h) for h in part.terms]
        weights = np.ones((1, 1)) if part.weights is None else part.weights
        column = weights if isinstance(weights, np.ndarray) else weights.toarray()
        rows.append(tuple(multiply(number(w), h) for w in column[:, 0].tolist() for h in terms))
    rest = tuple(add(*terms) for terms in zip(*rows, strict=True))
    sums = tuple(part for part in family.sums if part.group.count > 1)
    return _kept_form(replace(family, sums=sums, rest=rest))


def rules_of(group: Group) -> Calculus:
    """Return the rules of convexity on the box that holds all agents of a group."""
    box = {
        s: (float(group.lower[:, c].min()), float(group.upper[:, c].max()))
        for c, s in enumerate(group.symbols)
    }
    box |= {s: (float(a.min()), float(a.max())) for s, a in group.parameters.items()}
    return Calculus(group.symbols, BoxSigns(box, group.parameters))


def require_convex_row(row: Row, group: Group, where: str) -> None:
    """Refuse a row whose solutions the rules do not show to be a convex set.

    Raises:
        ConvexityError: naming the row and the rule that failed.
    """
    rules = rules_of(group)
    if row.equality:
        if not rules.affine(row.g):
            raise ConvexityError(
                f"{where} must be affine to be an equality: only then are its solutions a convex "
                "set; write <= or >="
            )
        return
    found = rules.of(row.g)
    if not found.is_convex:
        c = str(row.g)
        why = found.why or f"{c} is concave"
        raise ConvexityError(
            f"{where} must be convex, c(x) <= 0 with c convex, got c = {c}: {why}; restate it with "
            "convex terms on the smaller side"
        )


def component_bounds(
    group: Group, row: Row, box: tuple[Array, Array], where: str
) -> tuple[Array, Array] | None:
    """Return the bounds that a convex row on one component leaves; None if it is no such row.

    An affine row is a bound of every agent of a fleet; one that bends is a bound of a single agent,
    the last float at which it holds.

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
    if symbol not in slope.symbols:
        low, high = _affine_ends(row, symbol, slope, group)
    elif group.count > 1:
        return None
    else:
        low, high = _sublevel(row.g, symbol, float(lower[0, c]), float(upper[0, c]))
    lower[:, c], upper[:, c] = np.maximum(lower[:, c], low), np.minimum(upper[:, c], high)
    if np.any(lower[:, c] > upper[:, c]):
        place = int(np.argmax(lower[:, c] > upper[:, c]))
        least, most = float(box[0][place, c]), float(box[1][place, c])
        who = f" of {group.label(place)}" if group.count > 1 else ""
        raise ProblemError(
            f"{where} must hold somewhere between the bounds of {symbol}{who}, {least:g} and "
            f"{most:g}, got none: relax it or widen them"
        )
    return lower, upper


def _affine_ends(
    row: Row, symbol: Expression, slope: Expression, group: Group
) -> tuple[Array, Array]:
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


def _sublevel(g: Expression, symbol: Expression, low: float, high: float) -> tuple[Array, Array]:
    """The ends of the floats with ``g <= 0`` between low and high, an interval: g is convex.

    Where no float holds it, one at which g is 0 to rounding counts: ``(3*y - 0.9)**2 <= 0``.
    """
    value = _value_of(g, symbol)

    def holds(t: float) -> bool:
        return value(t) <= 0.0  # NaN, outside the domain of a logarithm, does not hold

    lowest = _lowest(g, symbol, low, high)
    inside = next((t for t in (low, high, *lowest) if holds(t)), None)
    if inside is not None:
        return np.array(_edge(holds, low, inside)), np.array(_edge(holds, high, inside))
    slope = _value_of(derivative(g, symbol), symbol)
    met = [t for t in lowest if value(t) <= MET * (1.0 + abs(slope(t) * t))]
    return (np.array(met[0]), np.array(met[0])) if met else (np.array(np.inf), np.array(-np.inf))


def _value_of(formula: Expression, symbol: Expression) -> Callable[[float], float]:
    values = tape([formula], [symbol])
    return lambda t: float(values(np.float64(t))[0])


def _edge(holds: Callable[[float], bool], outside: float, inside: float) -> float:
    """The float nearest to ``outside`` that still holds."""
    if holds(outside):
        return outside
    while (middle := outside / 2.0 + inside / 2.0) not in (outside, inside):
        if holds(middle):
            inside = middle
        else:
            outside = middle
    return inside


def _lowest(g: Expression, symbol: Expression, low: float, high: float) -> list[float]:
    """The floats between low and high around the minimum of a convex g, by bisection of its slope.

    Where g is not defined, the operand that is outside its domain says which way to go.
    """
    first = [(_value_of(base, symbol), relation, _value_of(derivative(base, symbol), symbol))
             for base, relation, _ in demands(g)]  # fmt: skip
    slope = _value_of(derivative(g, symbol), symbol)

    def uphill(t: float) -> float:
        for base, relation, rise in first:
            level = base(t)
            if not (level >= 0.0 if relation == ">=" else level > 0.0 or relation == "!="):
                return -rise(t)
        return slope(t)

    middle = low / 2.0 + high / 2.0
    while middle not in (low, high) and (up := uphill(middle)) != 0.0:
        low, high = (low, middle) if up > 0.0 else (middle, high)
        middle = low / 2.0 + high / 2.0
    return [middle, low, high]
