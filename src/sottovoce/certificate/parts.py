"""Parts of expressions that act as one variable.

A part whose variables occur nowhere else, such as the other agents' sum in softmax, moves freely
through its range. Named as a variable of its own, it turns a problem of seven variables into one of
two, and the supremum stays what it was.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from sottovoce.certificate.branch import maximise
from sottovoce.certificate.objective import Component, Signed
from sottovoce.formula.canonical import rebuilt
from sottovoce.formula.enclosure import enclose, enclose_with_gradient
from sottovoce.formula.expression import Expression, Op, symbol
from sottovoce.formula.intervals import FloatArray, Interval, interval

Box = Mapping[Expression, tuple[float, float]]

_SECTIONS, _ROUNDS = 64, 10  # 64**10 steps are finer than the floats between 0 and 1
_EFFORT = 2_000  # boxes spent on finding where a part is least and greatest


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """A named part and two points between which it runs through its range.

    Args:
        expr: The part.
        name: The symbol that stands for it.
        variables: The symbols it depends on.
        least: The point at which it is least.
        greatest: The point at which it is greatest.
    """

    expr: Expression
    name: Expression
    variables: tuple[Expression, ...]
    least: FloatArray
    greatest: FloatArray

    def solve(self, value: float) -> dict[Expression, float]:
        """Return a point at which the part takes a value of its range, up to rounding."""
        start, stop = 0.0, 1.0
        for _ in range(_ROUNDS):
            steps = np.linspace(start, stop, _SECTIONS + 1)
            below = enclose(self.expr, self._points(steps)).lower <= value
            last = int(np.flatnonzero(below).max(initial=0))
            start, stop = steps[last], steps[min(last + 1, _SECTIONS)]
        points = self._points(np.array(start))
        return {symbol: float(side.lower) for symbol, side in points.items()}

    def _points(self, steps: FloatArray) -> dict[Expression, Interval]:
        rows = np.multiply.outer(self.least, 1 - steps) + np.multiply.outer(self.greatest, steps)
        return {s: interval(row, row) for s, row in zip(self.variables, rows, strict=True)}


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Named:
    """Components in fewer variables, with the way back.

    Args:
        components: The components in terms of the remaining variables.
        box: The bounds of every symbol, names of parts included.
        parts: The parts in the order in which they were named.
    """

    components: tuple[Expression, ...]
    box: Box
    parts: tuple[Part, ...]

    def restore(self, at: Mapping[Expression, float]) -> dict[Expression, float]:
        """Return a point in the original variables at which the components are as at `at`."""
        point = dict(at)
        for part in reversed(self.parts):
            if part.name in point:
                point |= part.solve(point.pop(part.name))
        return point


def name_parts(components: Sequence[Expression], box: Box) -> Named:
    """Name every part whose variables occur nowhere else and whose range is known exactly."""
    named = Named(components=tuple(components), box=dict(box), parts=())
    while (extended := _name_one(named)) is not None:
        named = extended
    return named


def _name_one(named: Named) -> Named | None:
    for expr in candidates(named.components):
        ends = _range(expr, named.box)
        if ends is not None:
            part = _part(expr, named.box, slack=1e-12 * (ends[1] - ends[0]))
            return Named(
                components=tuple(replaced(c, expr, part.name) for c in named.components),
                box={**named.box, part.name: ends},
                parts=(*named.parts, part),
            )
    return None


def _range(expr: Expression, box: Box) -> tuple[float, float] | None:
    """Return the range of an expression if interval arithmetic gets it exactly, up to rounding.

    It does if each variable occurs once or the expression is monotone along it: then the variable
    stays at one end of its side for the minimum and at the other for the maximum.
    """
    sides = {s: interval(*box[s]) for s in expr.symbols}
    value, slope = enclose_with_gradient(expr, sides, tuple(sides))
    if not np.isfinite(value.magnitude):
        return None
    occurrences, bottom, top = uses(expr), dict(sides), dict(sides)
    for s, low, high in zip(sides, slope.lower, slope.upper, strict=True):
        start, stop = (interval(end, end) for end in box[s])
        if low >= 0:
            bottom[s], top[s] = start, stop
        elif high <= 0:
            bottom[s], top[s] = stop, start
        elif occurrences[s] > 1:
            return None
    return float(enclose(expr, bottom).lower), float(enclose(expr, top).upper)


def _part(expr: Expression, box: Box, slack: float) -> Part:
    variables = tuple(symbol for symbol in box if symbol in expr.symbols)
    component = Component.of([expr], variables)
    least, greatest = (
        maximise(
            Signed(component=component, sign=sign),
            interval(*np.transpose([box[symbol] for symbol in variables])),
            tolerance=1e-12,
            budget=_EFFORT,
            slack=slack,
        ).at
        for sign in (-1, 1)
    )
    name = symbol(f"({expr})")  # what an error message will call it
    return Part(expr=expr, name=name, variables=variables, least=least, greatest=greatest)


def uses(expr: Expression) -> Counter[Expression]:
    """Count how often each symbol occurs in an expression written out in full."""
    if expr.is_symbol:
        return Counter([expr])
    return sum(map(uses, expr.args), Counter[Expression]())


def candidates(components: Sequence[Expression]) -> list[Expression]:
    """Return the parts of several variables that occur nowhere else, those of most variables first.

    Such a part is a node of the trees, or those terms of a sum (factors of a product) that always
    stand in it together.
    """
    parents: defaultdict[Expression, Counter[Expression | None]] = defaultdict(Counter)
    for component in components:
        _note_parents(component, None, parents)
    total = sum(map(uses, components), Counter[Expression]())
    found: list[Expression] = []
    together: defaultdict[frozenset[Expression | None], list[Expression]] = defaultdict(list)
    for node, above in parents.items():
        inside, times = uses(node), above.total()
        if not inside or any(total[symbol] != times * inside[symbol] for symbol in inside):
            continue
        found.append(node)
        if {None if parent is None else parent.op for parent in above} in ({Op.ADD}, {Op.MUL}):
            together[frozenset(above)].append(node)
    found += [
        rebuilt(parent, nodes)
        for above, nodes in together.items()
        for parent in list(above)[:1]
        if parent is not None
    ]
    several = [part for part in dict.fromkeys(found) if len(part.symbols) > 1]
    return sorted(several, key=lambda part: -len(part.symbols))


def _note_parents(
    node: Expression,
    parent: Expression | None,
    parents: defaultdict[Expression, Counter[Expression | None]],
) -> None:
    parents[node][parent] += 1
    for child in node.args:
        _note_parents(child, node, parents)


def replaced(expr: Expression, part: Expression, name: Expression) -> Expression:
    """Replace a part, as `candidates` returns them, by its name."""
    if expr is part:
        return name
    if not expr.args:
        return expr
    args, inside = list(expr.args), {*part.args}
    if part.op in (Op.ADD, Op.MUL) and expr.op == part.op and inside <= {*args}:
        args = [name, *(a for a in args if a not in inside)]
    return rebuilt(expr, [replaced(a, part, name) for a in args])
