"""What an agent minimises at home, read off its formulas: is it separable but for a row or two?

    f(x) + lambda'h(x) = sum_c q_c(x_c) + sum_j k_j (a_j'x - e_j)^2,   least <= a'x <= most

with ``q_c`` of degree two at most and two rows or squares of sums at most: what a charger, a
battery or a generator is. ``algorithm.dual_search`` minimises that exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, final

import sympy as sp

from sottovoce.engine.formulas import Fleet
from sottovoce.problem.epigraph import HomeForm, home_form
from sottovoce.problem.kinks import bent
from sottovoce.problem.local import box_of

_MOST_ROWS = 2


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinearRow:
    """``least <= a'x <= most``, or a square ``k (a'x - e)^2`` of the objective, in parameters.

    Attributes:
        factors: a, one per component.
        least: lower limits, all of which hold; for a square e.
        most: upper limits, likewise.
        square: k; None for a row of the agent's set.
    """

    factors: tuple[sp.Expr, ...]
    least: tuple[sp.Expr, ...]
    most: tuple[sp.Expr, ...]
    square: sp.Expr | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Separable:
    """An agent's problem at home with its structure.

    Attributes:
        objective: the separable part of f.
        rows: what mixes components, two at most.
    """

    objective: sp.Expr
    rows: tuple[LinearRow, ...]


Shape: TypeAlias = Separable | HomeForm | None
"""How an agent minimises: by a search, by an interior-point method, or by steps in its box."""


def shape_of(fleet: Fleet) -> Shape:
    """Return the structure of what a fleet's agents minimise at home.

    A scalar state that only bounds hold needs none: its minimiser is where a slope changes its
    sign, kinks included.
    """
    rows = fleet.local is not None and fleet.local.rows > 0
    if fleet.group.dim == 1 and not rows:
        return None
    terms = [h for part in fleet.sums for h in part.terms]
    kinks = any(bent(expr) for expr in (fleet.objective, *terms, *_inequalities(fleet)))
    found = None if kinks else separable(fleet)
    if found is not None or not (rows or kinks):
        return found
    return general_form(fleet)


def general_form(fleet: Fleet) -> HomeForm:
    """Return what agents minimise as an interior-point method takes it."""
    terms = [h for part in fleet.sums for h in part.terms]
    local = box_of(fleet.group) if fleet.local is None else fleet.local
    return home_form(fleet.group, fleet.objective, terms, local)


def _inequalities(fleet: Fleet) -> tuple[sp.Expr, ...]:
    return () if fleet.local is None else fleet.local.inequalities


def separable(fleet: Fleet) -> Separable | None:
    """Return the structure of what a fleet's agents minimise; None if it is another one."""
    symbols = fleet.group.symbols
    split = _split(fleet.objective, symbols)
    if split is None:
        return None
    objective, squares = split
    limits = _limits(fleet)
    if limits is None or len(limits) + len(squares) > _MOST_ROWS:
        return None
    terms = [h for part in fleet.sums for h in part.terms]
    if not all(_quadratic(expr, symbols) for expr in (objective, *terms)):
        return None
    return Separable(objective=objective, rows=(*limits, *squares))


def _split(
    objective: sp.Expr, symbols: Sequence[sp.Symbol]
) -> tuple[sp.Expr, list[LinearRow]] | None:
    """The separable part of an objective, and its squares of sums."""
    kept, squares = [], []
    for term in _terms(objective, symbols):
        if len(term.free_symbols.intersection(symbols)) <= 1:
            kept.append(term)
            continue
        square = _square(term, symbols)
        if square is None:
            return None
        squares.append(square)
    return sp.Add(*kept), squares


def _terms(expr: sp.Expr, symbols: Sequence[sp.Symbol]) -> Iterator[sp.Expr]:
    """The terms of a sum, multiplied out where that takes them apart."""
    for term in sp.Add.make_args(expr):
        mixes = len(term.free_symbols.intersection(symbols)) > 1
        if not mixes or _square(term, symbols) is not None:
            yield term
            continue
        yield from sp.Add.make_args(sp.expand(term))


def _square(term: sp.Expr, symbols: Sequence[sp.Symbol]) -> LinearRow | None:
    """``k (a'x - e)^2`` with k and a free of states."""
    own = [f for f in sp.Mul.make_args(term) if f.free_symbols.intersection(symbols)]
    if len(own) != 1 or not isinstance(own[0], sp.Pow) or own[0].exp != 2:
        return None
    row = _affine(own[0].base, symbols)
    if row is None:
        return None
    factors, constant = row
    goal = (-constant,)
    return LinearRow(factors=factors, least=goal, most=goal, square=term / own[0])


def _affine(
    expr: sp.Expr, symbols: Sequence[sp.Symbol]
) -> tuple[tuple[sp.Expr, ...], sp.Expr] | None:
    """``a`` and ``b`` of ``a'x + b``."""
    factors = tuple(expr.diff(s) for s in symbols)
    if any(a.free_symbols.intersection(symbols) for a in factors):
        return None
    return factors, expr.xreplace(dict.fromkeys(symbols, sp.S.Zero))


def _limits(fleet: Fleet) -> list[LinearRow] | None:
    """The rows of the agents' own set, if all are linear; parallel ones become an interval."""
    if fleet.local is None:
        return []
    found: list[LinearRow] = []
    rows = [(expr, False) for expr in fleet.local.inequalities]
    rows += [(expr, True) for expr in fleet.local.equalities]
    for expr, equality in rows:
        read = _affine(expr, fleet.group.symbols)
        if read is None:
            return None
        _join(found, *read, equality=equality)
    return found


def _join(
    found: list[LinearRow], factors: tuple[sp.Expr, ...], constant: sp.Expr, *, equality: bool
) -> None:
    """Add ``a'x + b <= 0``, or ``= 0``, to rows of which one may have the same factors."""
    turned = tuple(-a for a in factors)
    for place, row in enumerate(found):
        if row.factors in (factors, turned):
            ahead = row.factors == factors
            goal = -constant if ahead else constant
            least = (*row.least, goal) if equality or not ahead else row.least
            most = (*row.most, goal) if equality or ahead else row.most
            found[place] = replace(row, least=least, most=most)
            return
    goal = -constant
    found.append(LinearRow(factors=factors, least=(goal,) if equality else (), most=(goal,)))


def _quadratic(expr: sp.Expr, symbols: Sequence[sp.Symbol]) -> bool:
    """Whether a formula is a sum of terms of one component each, of degree two at most."""
    for symbol in symbols:
        curvature = expr.diff(symbol, 2)
        if curvature.free_symbols.intersection(symbols):
            return False
        slope = expr.diff(symbol)
        if slope.free_symbols.intersection(symbols) - {symbol}:
            slope = sp.expand(slope)
            if slope.free_symbols.intersection(symbols) - {symbol}:
                return False
    return True
