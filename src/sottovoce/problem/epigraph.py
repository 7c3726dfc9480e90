"""Epigraph form of non-smooth terms: one auxiliary local variable each, never sent.

In a convex formula every non-smooth term may be replaced by a variable t that is at least as large,
because the formula does not fall as it rises (that is what the rules of convexity ask); at the
minimum t is the term itself. Nothing is smoothed:

    |a|           t with  a - t <= 0  and  -a - t <= 0
    max(a, b)     t with  a - t <= 0  and  b - t <= 0
    ||a||         t with  sum_k a_k^2 / t - t <= 0,  smooth and convex for t > 0; t has a least
                  value, 1e-7 of its largest, so that a minimum at a = 0 is found that closely;
                  or, without a row, (sum_k a_k^2 / t + t) / 2, least at t = ||a||
    huber(a; M)   (a - s)^2 + 2 M t  with  s - t <= 0  and  -s - t <= 0, minimised over s:
                  s = max(a - M, 0) + min(a + M, 0)

Contributions that are sent are the formulas as stated, never t.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

import numpy as np

from sottovoce.formula.canonical import (
    add,
    canonical,
    divide,
    multiply,
    negate,
    pieces_of,
    power,
    rebuild,
    subtract,
)
from sottovoce.formula.derive import is_smooth
from sottovoce.formula.enclosure import value_range
from sottovoce.formula.expression import Expression, Op, number, symbol
from sottovoce.formula.functions import maximum, minimum
from sottovoce.problem.groups import Array, Group, read_only
from sottovoce.problem.local import LocalSet

_POSITIVE = 1e-7  # the least t of a norm, relative to the largest: a minimum at a = 0 is so near


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpigraphForm:
    """A smooth convex problem in the state and auxiliary variables, for interior-point methods."""

    extra: tuple[Expression, ...]  # auxiliary variables, behind the components of the state
    objective: Expression  # f in smooth form
    terms: tuple[Expression, ...]  # every h, likewise
    inequalities: tuple[Expression, ...]  # ``c(x, t) <= 0``: local rows, then auxiliary ones
    equalities: tuple[Expression, ...]  # ``e(x) = 0``, affine
    lower: Array  # bounds of the auxiliary variables, shape (count, extra)
    upper: Array  # likewise


def epigraph_form(
    group: Group, objective: Expression, terms: Sequence[Expression], local: LocalSet
) -> EpigraphForm:
    """Return what the agents of a group minimise in epigraph form."""
    writer = EpigraphWriter(group.name)
    smooth_objective = writer.smooth(objective)
    flat = tuple(writer.smooth(h) for h in terms)
    rows = tuple(writer.smooth(c) for c in local.inequalities)
    lower, upper = writer.bounds(group, local)
    return EpigraphForm(
        extra=tuple(writer.extra),
        objective=smooth_objective,
        terms=flat,
        inequalities=(*rows, *writer.rows),
        equalities=local.equalities,
        lower=lower,
        upper=upper,
    )


@final
class EpigraphWriter:
    """Writes smooth formulas; equal non-smooth terms share their variable, called after ``name``.

    A norm gets a row, or a quotient in its place if ``norm_rows`` is False.
    """

    def __init__(self, name: str, *, norm_rows: bool = True) -> None:
        self._name, self._norm_rows = name, norm_rows
        self._known: dict[Expression, Expression] = {}
        self.extra: dict[Expression, Expression] = {}  # what each variable stands for, as stated
        self.rows: list[Expression] = []

    def smooth(self, expr: Expression) -> Expression:
        """The formula with variables in place of its non-smooth terms."""
        if is_smooth(expr):
            return expr
        if expr not in self._known:
            self._known[expr] = self._written(expr)
        return self._known[expr]

    def _written(self, expr: Expression) -> Expression:
        if expr.op == Op.MAX:
            t = self._variable(expr)
            self.rows += [subtract(self.smooth(a), t) for a in pieces_of(expr)]
            return t
        inner = [self.smooth(a) for a in expr.args]
        if expr.op == Op.ABS:
            return self._size(expr, inner[0])
        if expr.op == Op.NORM:
            t = self._variable(expr)
            quotient = divide(add(*(power(a, 2) for a in inner)), t)
            if not self._norm_rows:
                return multiply(number(Fraction(1, 2)), add(quotient, t))
            self.rows.append(subtract(quotient, t))
            return t
        if expr.op == Op.HUBER:
            a, most = expr.args[0], number(expr.value)
            # At the minimum s is a with its size less M, or 0: its bounds are not those of a.
            above, below = maximum(a - most, 0), minimum(a + most, 0)
            s = self._variable(canonical(above + below))
            t = self._size(canonical(above - below), s)
            tail = multiply(number(2 * expr.value), t)
            return add(power(subtract(inner[0], s), 2), tail)
        return rebuild(expr, inner)

    def _size(self, stated: Expression, a: Expression) -> Expression:
        t = self._variable(stated)
        self.rows += [subtract(a, t), subtract(negate(a), t)]
        return t

    def _variable(self, stated: Expression) -> Expression:
        variable = symbol(f"{self._name} epigraph {len(self.extra) + 1}")
        self.extra[variable] = stated
        return variable

    def bounds(self, group: Group, local: LocalSet) -> tuple[Array, Array]:
        """Bounds of the variables for every agent, wide enough for what they stand for."""
        box: dict[Expression, Any] = {s: (a, a) for s, a in group.parameters.items()}
        for c, s in enumerate(group.symbols):
            box[s] = (local.lower[:, c], local.upper[:, c])
        low, high = (np.zeros((group.count, len(self.extra))) for _ in range(2))
        for column, stated in enumerate(self.extra.values()):
            low[:, column], high[:, column] = value_range(stated, box)
        size = np.maximum(np.abs(low), np.abs(high))
        # What cannot move, such as max(x, 20) below 20, gets room to move in float64.
        room = 1e-3 * np.where(high - low > 1e-6 * size, high - low, 1e-3 * size)
        least = low - room
        for column, stated in enumerate(self.extra.values()):
            if stated.op == Op.NORM:
                least[:, column] = _POSITIVE * np.maximum(high[:, column], 1e-300)
        return read_only(least), read_only(high + room)
