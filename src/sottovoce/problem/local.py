"""Local sets: the convex set of every agent inside its public box.

    X_i = {x in B_i : c(x; p_i) <= 0, e(x; p_i) = 0, lower_i <= x <= upper_i}

Rows of ``local=[...]`` are private: they are in no ``CloudView``, and nothing that reaches the
cloud depends on them but through the noisy sums. Public rows that name one agent belong to its set
as well. Rows on one component become bounds: ``{t : g(t) <= 0}`` of a convex g is an interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sottovoce.arguments import entries
from sottovoce.errors import ConvexityError, InputError, ProblemError
from sottovoce.formula.canonical import expand, substitute
from sottovoce.formula.curvature import ConvexityRules
from sottovoce.formula.derive import derivative
from sottovoce.formula.enclosure import domain_conditions
from sottovoce.formula.expression import ZERO, Expression
from sottovoce.formula.order import in_order
from sottovoce.formula.signs import BoxSigns
from sottovoce.formula.tape import tape
from sottovoce.problem.constraints import Constraint, Total
from sottovoce.problem.groups import Array, Group, read_only, read_states
from sottovoce.problem.stating import Row, read_row, stated_rows

ROW_TOLERANCE = 1e-9  # how far a row may be off, relative to the numbers that it adds up


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalSet:
    """The set that each agent of one group stays in, beside its public box."""

    inequalities: tuple[Expression, ...]  # convex ``c(x; p) <= 0``
    equalities: tuple[Expression, ...]  # affine ``e(x; p) = 0``
    labels: tuple[str, ...]  # the rows as they were written, inequalities first
    lower: Array  # private bounds inside the public box, shape (count, d)
    upper: Array  # likewise
    stated: tuple[Row, ...] = ()  # all private rows as written, those that became bounds too

    @property
    def rows(self) -> int:
        """How many rows each agent keeps beside its bounds."""
        return len(self.inequalities) + len(self.equalities)

    def plain(self, group: Group) -> bool:
        """Whether it is the public box of the group and nothing else."""
        ends = ((self.lower, group.lower), (self.upper, group.upper))
        return not self.rows and all(a is b or np.array_equal(a, b) for a, b in ends)

    def some(self, places: NDArray[np.int64]) -> LocalSet:
        """The sets of the agents ``places`` (from 0)."""
        return replace(self, lower=self.lower[places], upper=self.upper[places])

    def of_agent(self, group: Group, place: int) -> LocalSet:
        """The set of agent ``place`` (from 0) of the group, parameters filled in."""
        if group.count == 1 and not group.parameters:
            return self
        return replace(
            self.some(np.array([place])),
            inequalities=tuple(group.fill(c, place) for c in self.inequalities),
            equalities=tuple(group.fill(e, place) for e in self.equalities),
            stated=tuple(replace(r, g=group.fill(r.g, place)) for r in self.stated),
        )


def box_of(group: Group) -> LocalSet:
    """Return the set of agents that have their box and nothing else."""
    return LocalSet(inequalities=(), equalities=(), labels=(), lower=group.lower, upper=group.upper)


def local_rows(statements: object, groups: Sequence[Group]) -> dict[str, list[Row]]:
    """Return the rows of ``local=[...]`` by the group that each names."""
    owner = {s: g for g in groups for s in (*g.symbols, *g.parameters)}
    symbols = {s.name: s for s in owner}
    rows: dict[str, list[Row]] = {group.name: [] for group in groups}
    for written in stated_rows([] if statements is None else statements):
        where = f"local row {written.name}" if written.name else "a local row"
        if isinstance(written.row, Constraint | Total):
            raise ProblemError(
                f"{where} must name one agent, got a total over a fleet, which couples its "
                "agents: write the row for one agent, such as ev.x.sum() >= "
                'ev["need"], or put it into constraints'
            )
        row = read_row(written.row, symbols, where)
        named = {owner[s].name: owner[s] for s in in_order(row.g.symbols)}
        if len(named) != 1:
            raise ProblemError(
                f"{where} must name one agent, got {' and '.join(named)} in {row.label:.80}: what "
                "couples agents is a constraint, move it to constraints=[...]"
            )
        (group,) = named.values()
        if not row.g.symbols.intersection(group.symbols):
            raise ProblemError(
                f"{where} must name the state of {group.name}, got {row.label}, which names its "
                "parameters alone: remove it"
            )
        g = group.fill(row.g) if group.count == 1 else row.g
        rows[group.name].append(replace(row, g=g, written=written.name or row.written))
    return rows


def local_set(group: Group, public: Sequence[Row], private: Sequence[Row]) -> LocalSet:
    """Return what each agent of a group must keep."""
    agent_set = box_of(group)
    if not (public or private):
        return agent_set
    agent_set = replace(agent_set, stated=tuple(private))
    rest = list(public)
    # Bounds first: a private formula need be convex only where the agent can be.
    for row in sorted(private, key=lambda row: len(row.g.symbols & set(group.symbols))):
        where = f"local row {row.label}"
        require_convex_row(row, replace(group, lower=agent_set.lower, upper=agent_set.upper), where)
        ends = component_bounds(group, row, (agent_set.lower, agent_set.upper), where)
        if ends is None:
            rest.append(row)
        else:
            agent_set = replace(agent_set, lower=read_only(ends[0]), upper=read_only(ends[1]))
    rows = [row for row in (*public, *private) if row in rest]
    inequalities, equalities = [r for r in rows if not r.equality], [r for r in rows if r.equality]
    return replace(
        agent_set,
        inequalities=tuple(r.g for r in inequalities),
        equalities=tuple(expand(r.g) for r in equalities),
        labels=tuple(r.label for r in (*inequalities, *equalities)),
    )


def require_no_rows(local: Sequence[LocalSet]) -> None:
    """Refuse sets with rows: a gradient step ends in a box."""
    for agent_set in local:
        if agent_set.rows:
            raise InputError(
                "gradient steps keep agents in boxes, got the local row "
                f"{agent_set.labels[0]:.80}: use the default algorithm"
            )


def per_group(what: str, values: object, groups: Sequence[Group]) -> list[object]:
    """Return what is stated per agent or fleet, None for each where it is not stated."""
    stated: list[object] = [None] * len(groups)
    if values is not None:
        stated = entries(what, values, "a list with one entry per agent or fleet")
    if len(stated) != len(groups):
        raise ProblemError(
            f"{what} must have one entry per agent or fleet ({len(groups)}), got {len(stated)}"
        )
    return stated


def read_start(start: object, group: Group, what: str = "start") -> Array:
    """Return where the agents of a group start, shape (count, d): by default nearest to 0."""
    if start is None:
        same = not (group.lower.strides[0] or group.upper.strides[0])
        some = slice(1) if same else slice(None)
        return read_states(what, np.clip(0.0, group.lower[some], group.upper[some]), group)
    states = read_states(what, start, group)
    inside = np.all((states >= group.lower) & (states <= group.upper), axis=1)
    if not inside.all():
        who = group.label(int(np.argmin(inside)))
        raise ProblemError(f"{what} of {who} must lie in its box: move it inside the bounds")
    return states


def rules_of(group: Group) -> ConvexityRules:
    """Return the rules of convexity on the box that holds all agents of a group."""
    box = {
        s: (float(group.lower[:, c].min()), float(group.upper[:, c].max()))
        for c, s in enumerate(group.symbols)
    }
    box |= {s: (float(a.min()), float(a.max())) for s, a in group.parameters.items()}
    return ConvexityRules(group.symbols, BoxSigns(box, group.parameters))


def require_convex_row(row: Row, group: Group, where: str) -> None:
    """Refuse a row whose solutions the rules do not show to be a convex set."""
    rules = rules_of(group)
    if row.equality:
        if not rules.affine(row.g):
            raise ConvexityError(
                f"{where} must be affine to be an equality: only then are its solutions a convex "
                "set; write <= or >="
            )
        return
    verdict = rules.curvature(row.g)
    if not verdict.is_convex:
        c = str(row.g)
        why = verdict.why or f"{c} is concave"
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
    """
    moving = row.g.symbols & set(group.symbols)
    if len(moving) != 1:
        return None
    (symbol,) = moving
    c = next(c for c, s in enumerate(group.symbols) if s is symbol)
    lower, upper = np.array(box[0]), np.array(box[1])
    slope = expand(derivative(row.g, symbol))
    if symbol not in slope.symbols and not domain_conditions(row.g):
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
        zero = -b / a
    none = np.where(b > 0.0, np.inf, -np.inf)  # a = 0: everything, or nothing
    low = np.where(a < 0.0, zero, np.where(a > 0.0, -np.inf, none))
    high = np.where(a > 0.0, zero, np.where(a < 0.0, np.inf, -none))
    if not row.equality:
        return low, high
    empty = np.where(b == 0.0, -np.inf, np.inf)
    return np.where(a == 0.0, empty, zero), np.where(a == 0.0, -empty, zero)


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
    roots = [t for t in lowest if value(t) <= ROW_TOLERANCE * (1.0 + abs(slope(t) * t))]
    return (
        (np.array(roots[0]), np.array(roots[0])) if roots else (np.array(np.inf), np.array(-np.inf))
    )


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
    conditions = [(_value_of(base, symbol), relation, _value_of(derivative(base, symbol), symbol))
             for base, relation, _ in domain_conditions(g)]  # fmt: skip
    slope = _value_of(derivative(g, symbol), symbol)

    def uphill(t: float) -> float:
        for base, relation, rise in conditions:
            level = base(t)
            if not (level >= 0.0 if relation == ">=" else level > 0.0 or relation == "!="):
                return -rise(t)
        return slope(t)

    middle = low / 2.0 + high / 2.0
    while middle not in (low, high) and (up := uphill(middle)) != 0.0:
        low, high = (low, middle) if up > 0.0 else (middle, high)
        middle = low / 2.0 + high / 2.0
    return [middle, low, high]
