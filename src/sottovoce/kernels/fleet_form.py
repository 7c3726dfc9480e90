"""The local problem of a fleet's agents, and which minimiser solves it.

A problem that is separable but for a row or two, as of a charger, a battery or a generator,

    f(x) + lambda'h(x) = sum_c q_c(x_c) + sum_j k_j (a_j'x - e_j)^2,   least <= a'x <= most

with ``q_c`` of degree two at most and two rows or squares of sums at most, is minimised exactly by
``kernels.core.dual_search``. Others take an interior-point method in epigraph form, or Newton steps
in their box; a scalar state takes a search for the sign change of its slope.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, final

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
from sottovoce.kernels.core.plain import INTERIOR, NEWTON, SCALAR, SEPARABLE
from sottovoce.problem.epigraph import EpigraphForm, epigraph_form
from sottovoce.problem.fleet import Fleet
from sottovoce.problem.local import box_of

_MOST_ROWS = 2


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalRow:
    """``least <= a'x <= most``, or a square ``k (a'x - e)^2`` of the objective.

    Attributes:
        factors: a, formulas of the parameters.
        least: lower limits, all of which hold; for a square e.
        most: upper limits, likewise.
        square: k; None for a row of the agent's set.
    """

    factors: tuple[Expression, ...]
    least: tuple[Expression, ...]
    most: tuple[Expression, ...]
    square: Expression | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeparableForm:
    """``sum_c q_c(x_c) + squares`` with q_c of degree two at most, over two rows at most."""

    objective: Expression
    rows: tuple[LocalRow, ...]


LocalForm: TypeAlias = SeparableForm | EpigraphForm | None
"""None where the state is a vector, or a number, in a box."""


def local_form(fleet: Fleet, *, coded: bool = False) -> LocalForm:
    """Return the structure of what a fleet's agents minimise.

    A scalar state in bounds needs none, non-smooth terms or not.

    Args:
        fleet: the agents.
        coded: whether their objective is code, of which no structure is known.
    """
    rows = fleet.local is not None and fleet.local.rows > 0
    if coded:
        return _general_form(fleet) if rows else None
    if fleet.group.dim == 1 and not rows:
        return None
    inequalities = () if fleet.local is None else fleet.local.inequalities
    smooth = all(is_smooth(expr) for expr in (fleet.objective, *fleet.terms, *inequalities))
    form = separable_form(fleet) if smooth else None
    return form if form is not None or (smooth and not rows) else _general_form(fleet)


def minimiser(fleet: Fleet, form: LocalForm) -> int:
    """Return which of the kernels' minimisers solves the local problem."""
    if isinstance(form, SeparableForm):
        return SEPARABLE
    if isinstance(form, EpigraphForm):
        return INTERIOR
    return SCALAR if fleet.group.dim == 1 else NEWTON


def _general_form(fleet: Fleet) -> EpigraphForm:
    local = box_of(fleet.group) if fleet.local is None else fleet.local
    return epigraph_form(fleet.group, fleet.objective, fleet.terms, local)


def separable_form(fleet: Fleet) -> SeparableForm | None:
    """Return the separable structure of the local problem; None if it has another one."""
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
