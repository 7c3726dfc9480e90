"""Kinks of vector states written smoothly: one more variable each, which stays at home.

In a convex formula every kink may be replaced by a variable t that is at least as large, because
the formula does not fall as it rises (that is what the rules of convexity ask); at the minimum t is
the kink itself. Nothing is smoothed:

    |a|           t with  a - t <= 0  and  -a - t <= 0
    max(a, b)     t with  a - t <= 0  and  b - t <= 0
    ||a||         t with  sum_k a_k^2 / t - t <= 0,  smooth and convex for t > 0; t has a least
                  value, 1e-7 of its largest, so that a minimum at a = 0 is found that closely
    huber(a; M)   (a - s)^2 + 2 M t  with  s - t <= 0  and  -s - t <= 0, minimised over s

Contributions that are sent are the formulas as stated, never t.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import sympy as sp

from sottovoce.problem import kinks
from sottovoce.problem.agents import Array, Group, read_only
from sottovoce.problem.local import LocalSet

_POSITIVE = 1e-7  # the least t of a norm, relative to the largest: a state at its kink is so near


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HomeForm:
    """What an agent minimises at home, smooth in its state and some variables more.

    Attributes:
        extra: the variables more, which follow the components of the state.
        objective: f with them.
        terms: every h with them.
        inequalities: ``c(x, t; p) <= 0``: the local rows, then those of the kinks.
        equalities: ``e(x; p) = 0``.
        stands_for: what each variable is at the minimum, a formula of the state as stated.
        lower: lower bounds of the variables more, shape (count, extra).
        upper: upper bounds, likewise.
    """

    extra: tuple[sp.Symbol, ...]
    objective: sp.Expr
    terms: tuple[sp.Expr, ...]
    inequalities: tuple[sp.Expr, ...]
    equalities: tuple[sp.Expr, ...]
    stands_for: tuple[sp.Expr, ...]
    lower: Array
    upper: Array


def home_form(
    group: Group, objective: sp.Expr, terms: Sequence[sp.Expr], local: LocalSet
) -> HomeForm:
    """Write what the agents of a group minimise without kinks.

    Args:
        group: the agents.
        objective: f, convex.
        terms: every h, convex or affine.
        local: what they keep to.
    """
    writer = Smooth(group.name)
    smooth = writer.of(objective)
    flat = tuple(writer.of(h) for h in terms)
    rows = tuple(writer.of(c) for c in local.inequalities)
    lower, upper = writer.bounds(group, local)
    return HomeForm(
        extra=tuple(writer.extra),
        objective=smooth,
        terms=flat,
        inequalities=(*rows, *writer.rows),
        equalities=local.equalities,
        stands_for=tuple(writer.extra.values()),
        lower=lower,
        upper=upper,
    )


@final
class Smooth:
    """Writes formulas without kinks; equal kinks share their variable.

    Args:
        name: whose formulas; variables are called after it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._known: dict[sp.Expr, sp.Expr] = {}
        self.extra: dict[sp.Symbol, sp.Expr] = {}  # what each variable stands for, as stated
        self.rows: list[sp.Expr] = []

    def of(self, expr: sp.Expr) -> sp.Expr:
        """The formula with variables in place of its kinks."""
        if not expr.args or not kinks.bent(expr):
            return expr
        if expr not in self._known:
            self._known[expr] = self._written(expr)
        return self._known[expr]

    def _written(self, expr: sp.Expr) -> sp.Expr:
        if isinstance(expr, kinks.maximum):
            t = self._variable(expr)
            self.rows += [self.of(a) - t for a in kinks.pieces_of(expr)]
            return t
        inner = [self.of(a) for a in expr.args]
        if isinstance(expr, kinks.absolute):
            return self._size(expr, inner[0])
        if isinstance(expr, kinks.norm):
            t = self._variable(expr)
            self.rows.append(sp.Add(*(a**2 for a in inner)) / t - t)
            return t
        if isinstance(expr, kinks.huber):
            a, m = inner
            s = self._variable(expr.args[0])
            return (a - s) ** 2 + 2 * m * self._size(kinks.absolute(expr.args[0]), s)
        return expr.func(*inner)

    def _size(self, stated: sp.Expr, a: sp.Expr) -> sp.Expr:
        t = self._variable(stated)
        self.rows += [a - t, -a - t]
        return t

    def _variable(self, stated: sp.Expr) -> sp.Symbol:
        symbol = sp.Symbol(f"{self._name} kink {len(self.extra) + 1}")
        self.extra[symbol] = stated
        return symbol

    def bounds(self, group: Group, local: LocalSet) -> tuple[Array, Array]:
        """Bounds of the variables for every agent, wide enough for what they stand for."""
        pairs = [_range(stated, group, local) for stated in self.extra.values()]
        if not pairs:
            none = np.zeros((group.count, 0))
            return read_only(none), read_only(none)
        low, high = (np.stack([p[k] for p in pairs], axis=1) for k in (0, 1))
        room = 1e-3 * np.maximum(high - low, 1e-6 * np.maximum(np.abs(low), np.abs(high)))
        least = low - room
        for column, stated in enumerate(self.extra.values()):
            if isinstance(stated, kinks.norm):
                least[:, column] = _POSITIVE * np.maximum(high[:, column], 1e-300)
        return read_only(least), read_only(high + room)


def _range(expr: sp.Expr, group: Group, local: LocalSet) -> tuple[Array, Array]:
    """Least and largest values over every agent's box: plain interval arithmetic."""
    if not expr.args:
        if expr in group.symbols:
            c = group.symbols.index(expr)
            return local.lower[:, c], local.upper[:, c]
        known = group.parameters.get(expr)
        value = np.full(group.count, float(expr)) if known is None else known
        return value, value
    inner = [_range(a, group, local) for a in expr.args]
    with np.errstate(all="ignore"):
        low, high = _reach(expr, inner)
    return np.asarray(low), np.asarray(high)


def _reach(expr: sp.Expr, inner: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    lows, highs = [low for low, _ in inner], [high for _, high in inner]
    if expr.is_Add:
        return np.sum(lows, axis=0), np.sum(highs, axis=0)
    if expr.is_Mul:
        low, high = lows[0], highs[0]
        for a, b in inner[1:]:
            ends = np.stack([low * a, low * b, high * a, high * b])
            low, high = ends.min(axis=0), ends.max(axis=0)
        return low, high
    if isinstance(expr, kinks.maximum):
        return np.maximum(*lows), np.maximum(*highs)
    turns = (lows[0] <= 0.0) & (highs[0] >= 0.0)
    if expr.is_Pow:
        ends = np.stack([lows[0] ** float(expr.exp), highs[0] ** float(expr.exp)])
        floor = np.where(turns & (float(expr.exp) > 0.0), 0.0, np.inf)
        return np.fmin(ends.min(axis=0), floor), ends.max(axis=0)
    if isinstance(expr, sp.exp | sp.log):
        function = np.exp if isinstance(expr, sp.exp) else np.log
        return function(lows[0]), function(highs[0])
    least = [np.where((a <= 0) & (b >= 0), 0.0, np.fmin(np.abs(a), np.abs(b))) for a, b in inner]
    most = [np.fmax(np.abs(a), np.abs(b)) for a, b in inner]
    value = kinks.NUMPY[expr.func.__name__]
    return value(*least), value(*most)
