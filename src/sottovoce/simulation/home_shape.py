"""What an agent minimises at home, read off its formulas: is it separable but for a row or two?

    f(x) + lambda'h(x) = sum_c q_c(x_c) + sum_j k_j (a_j'x - e_j)^2,   least <= a'x <= most

with ``q_c`` of degree two at most and two rows or squares of sums at most: what a charger, a
battery or a generator is. ``kernels.core.dual_search`` minimises that exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from sottovoce.formula.canonical import (
    add,
    addends,
    divide,
    expand,
    factors,
    negate,
    substitute,
)
from sottovoce.formula.derive import gradient, hessian, is_affine, is_smooth
from sottovoce.formula.expression import ZERO, Expression, Op
from sottovoce.kernels.fleet_problem import EpigraphForm, LocalRow, SeparableForm
from sottovoce.problem.epigraph import epigraph_form
from sottovoce.problem.fleet import Fleet
from sottovoce.problem.local import box_of

_MOST_ROWS = 2


Shape: TypeAlias = SeparableForm | EpigraphForm | None
"""How an agent minimises: by a search, by an interior-point method, or by steps in its box."""


def shape_of(fleet: Fleet) -> Shape:
    """Return the structure of what a fleet's agents minimise at home.

    A scalar state that only bounds hold needs none: its minimiser is where a slope changes its
    sign, kinks included.
    """
    rows = fleet.local is not None and fleet.local.rows > 0
    if fleet.group.dim == 1 and not rows:
        return None
    kinks = not all(
        is_smooth(expr) for expr in (fleet.objective, *fleet.terms, *_inequalities(fleet))
    )
    found = None if kinks else separable(fleet)
    if found is not None or not (rows or kinks):
        return found
    return general_form(fleet)


def general_form(fleet: Fleet) -> EpigraphForm:
    """Return what agents minimise as an interior-point method takes it."""
    local = box_of(fleet.group) if fleet.local is None else fleet.local
    return epigraph_form(fleet.group, fleet.objective, fleet.terms, local)


def _inequalities(fleet: Fleet) -> tuple[Expression, ...]:
    return () if fleet.local is None else fleet.local.inequalities


def separable(fleet: Fleet) -> SeparableForm | None:
    """Return the structure of what a fleet's agents minimise; None if it is another one."""
    symbols = fleet.group.symbols
    split = _split(fleet.objective, symbols)
    if split is None:
        return None
    objective, squares = split
    limits = _limits(fleet)
    if limits is None or len(limits) + len(squares) > _MOST_ROWS:
        return None
    if not all(_quadratic(expr, symbols) for expr in (objective, *fleet.terms)):
        return None
    return SeparableForm(objective=objective, rows=(*limits, *squares))


def _split(
    objective: Expression, symbols: Sequence[Expression]
) -> tuple[Expression, list[LocalRow]] | None:
    """The separable part of an objective, and its squares of sums."""
    kept, squares = [], []
    for term in _terms(objective, symbols):
        if len(term.symbols.intersection(symbols)) <= 1:
            kept.append(term)
            continue
        square = _square(term, symbols)
        if square is None:
            return None
        squares.append(square)
    return add(*kept), squares


def _terms(expr: Expression, symbols: Sequence[Expression]) -> Iterator[Expression]:
    """The terms of a sum, multiplied out where that takes them apart."""
    for term in addends(expr):
        mixes = len(term.symbols.intersection(symbols)) > 1
        if not mixes or _square(term, symbols) is not None:
            yield term
            continue
        yield from addends(expand(term))


def _square(term: Expression, symbols: Sequence[Expression]) -> LocalRow | None:
    """``k (a'x - e)^2`` with k and a free of states."""
    moving = [f for f in factors(term) if f.symbols.intersection(symbols)]
    if len(moving) != 1 or moving[0].op != Op.POW or moving[0].value != 2:
        return None
    row = _affine(moving[0].args[0], symbols)
    if row is None:
        return None
    coefficients, constant = row
    goal = (negate(constant),)
    return LocalRow(factors=coefficients, least=goal, most=goal, square=divide(term, moving[0]))


def _affine(
    expr: Expression, symbols: Sequence[Expression]
) -> tuple[tuple[Expression, ...], Expression] | None:
    """``a`` and ``b`` of ``a'x + b``."""
    if not is_affine(expr, symbols):
        return None
    at_zero: dict[Expression, Expression] = dict.fromkeys(symbols, ZERO)
    slopes = gradient(expr, symbols)
    coefficients = tuple(substitute(slopes.get(s, ZERO), at_zero) for s in symbols)
    return coefficients, substitute(expr, at_zero)


def _limits(fleet: Fleet) -> list[LocalRow] | None:
    """The rows of the agents' own set, if all are linear; parallel ones become an interval."""
    if fleet.local is None:
        return []
    found: list[LocalRow] = []
    rows = [(expr, False) for expr in fleet.local.inequalities]
    rows += [(expr, True) for expr in fleet.local.equalities]
    for expr, equality in rows:
        read = _affine(expr, fleet.group.symbols)
        if read is None:
            return None
        _join(found, *read, equality=equality)
    return found


def _join(
    found: list[LocalRow],
    row_factors: tuple[Expression, ...],
    constant: Expression,
    *,
    equality: bool,
) -> None:
    """Add ``a'x + b <= 0``, or ``= 0``, to rows of which one may have the same factors."""
    turned = tuple(negate(a) for a in row_factors)
    for place, row in enumerate(found):
        ahead = _same(row.factors, row_factors)
        if ahead or _same(row.factors, turned):
            goal = negate(constant) if ahead else constant
            least = (*row.least, goal) if equality or not ahead else row.least
            most = (*row.most, goal) if equality or ahead else row.most
            found[place] = replace(row, least=least, most=most)
            return
    goal = negate(constant)
    found.append(LocalRow(factors=row_factors, least=(goal,) if equality else (), most=(goal,)))


def _same(left: tuple[Expression, ...], right: tuple[Expression, ...]) -> bool:
    return all(a is b for a, b in zip(left, right, strict=True))


def _quadratic(expr: Expression, symbols: Sequence[Expression]) -> bool:
    """Whether a formula is a sum of terms of one component each, of degree two at most."""
    moving = frozenset(symbols)
    entries = hessian(expr, list(symbols)).items()
    return all(a is b and not entry.symbols & moving for (a, b), entry in entries)
