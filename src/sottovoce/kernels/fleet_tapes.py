"""The local problem of a fleet's agents: its structure, its minimiser, and its formulas as tapes.

A problem that is separable but for a row or two, as of a charger, a battery or a generator,

    f(x) + lambda'h(x) = sum_c q_c(x_c) + sum_j k_j (a_j'x - e_j)^2,   least <= a'x <= most

with ``q_c`` of degree two at most and two rows or squares of sums at most, is minimised exactly by
``kernels.core.dual_search``. Others take an interior-point method in epigraph form, or Newton steps
in their box; a scalar state takes a search for the sign change of its slope.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

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
from sottovoce.kernels.core.plain import GRADIENT, INTERIOR, NEWTON, SCALAR, SEPARABLE
from sottovoce.kernels.lower import TapeBuilder, TapeCode
from sottovoce.problem.epigraph import EpigraphForm, epigraph_form
from sottovoce.problem.fleets import Fleet
from sottovoce.problem.local import box_of

_MIN_SQUARE = 2.0**-400  # a square without weight: its slack stays finite
_SLOPE, _VALUE, _JACOBIAN, _HESSIAN = range(4)  # where the interior-point method puts an output
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


@final
class _TapeWriter:
    """Writes a fleet's tapes, one after the other into the same registers."""

    def __init__(self, fleet: Fleet, parameters: Sequence[Expression], form: LocalForm) -> None:
        self.states, self.objective, self.terms = fleet.group.symbols, fleet.objective, fleet.terms
        smooth = form if isinstance(form, EpigraphForm) else None
        local_rows = len(smooth.inequalities) + len(smooth.equalities) if smooth else 0
        self.variables = (*self.states, *(smooth.extra if smooth else ()))
        n, q = len(self.variables), len(parameters)
        self.symbols = {s: i for i, s in enumerate((*self.variables, *parameters))}
        self.prices = [n + q + t for t in range(len(self.terms))]
        self.multipliers = [n + q + len(self.prices) + j for j in range(local_rows)]
        self.inputs = n + q + len(self.prices) + local_rows
        self.codes: list[TapeCode] = []

    def builder(self) -> TapeBuilder:
        """A tape to be written."""
        return TapeBuilder(self.inputs, self.symbols)

    def finish(self, builder: TapeBuilder, outputs: Sequence[int]) -> TapeCode:
        """Keep a tape that was written."""
        first = self.codes[-1].registers if self.codes else self.inputs
        self.codes.append(builder.finish(outputs, first=first))
        return self.codes[-1]

    def slopes(
        self,
        builder: TapeBuilder,
        objective: Expression | None,
        variables: Sequence[Expression],
        terms: Sequence[Expression],
    ) -> list[int]:
        """``df/dx_c + sum_t m_t dh_t/dx_c``."""
        own = {} if objective is None else gradient(objective, variables)
        priced = [gradient(h, variables) for h in terms]
        found = []
        for s in variables:
            first = [] if objective is None else [builder.value(own.get(s, ZERO))]
            pairs = zip(self.prices, priced, strict=True)
            parts = [*first, *(builder.times(m, dh[s]) for m, dh in pairs if s in dh)]
            found.append(builder.fold("add", parts) if parts else builder.number(0.0))
        return found


def fleet_tapes(
    fleet: Fleet, parameters: Sequence[Expression], form: LocalForm, how: int
) -> tuple[dict[str, tuple[NDArray[Any], ...]], list[TapeCode]]:
    """Return the tapes by the names that ``FleetView`` has for them, and their code.

    Args:
        fleet: the formulas.
        parameters: those that formulas name.
        form: the structure of the local problem.
        how: the minimiser, or ``GRADIENT`` for Algorithm 1's steps.
    """
    writer = _TapeWriter(fleet, parameters, form)
    nothing = np.zeros(0, dtype=np.int32)
    names = ("contributions", "pull", "slope", "step", "problem", "projection", "rows",
             "objective", "measure")  # fmt: skip
    tapes: dict[str, tuple[NDArray[Any], ...]] = dict.fromkeys(names, (nothing,) * 2)
    for name, builder, outputs, scattered in _written(writer, form, how):
        code = writer.finish(builder, outputs)
        to = code.outputs
        if scattered is not None:
            to = np.column_stack([np.array(scattered, dtype=np.int32).reshape(-1, 2), to]).ravel()
        tapes[name] = (code.code, np.ascontiguousarray(to, dtype=np.int32))
    return tapes, writer.codes


_Written: TypeAlias = tuple[str, TapeBuilder, list[int], list[tuple[int, int]] | None]


def _written(writer: _TapeWriter, form: LocalForm, how: int) -> Iterator[_Written]:
    objective, states, terms = writer.objective, writer.states, writer.terms
    builder = writer.builder()
    yield "contributions", builder, [builder.value(h) for h in terms], None
    builder = writer.builder()
    values = [builder.value(h) for h in (*terms, objective)]
    yield "measure", builder, [*values, *writer.slopes(builder, objective, states, terms)], None
    if how == GRADIENT:
        builder = writer.builder()
        values = [builder.value(h) for h in terms]
        yield "step", builder, [*values, *writer.slopes(builder, objective, states, terms)], None
    if how in (SCALAR, NEWTON, INTERIOR):
        builder = writer.builder()
        yield "pull", builder, writer.slopes(builder, None, states, terms), None
    if how in (SCALAR, NEWTON):
        builder = writer.builder()
        yield "slope", builder, writer.slopes(builder, objective, states, terms), None
    if isinstance(form, SeparableForm):
        yield from _separable(writer, form)
    elif isinstance(form, EpigraphForm):
        yield from _smooth(writer, form)


def _separable(writer: _TapeWriter, form: SeparableForm) -> Iterator[_Written]:
    """Gradient, curvature, pull and rows; and the hard rows alone, for projections."""
    states, terms = writer.states, writer.terms
    builder = writer.builder()
    outputs = writer.slopes(builder, form.objective, states, terms)
    own = hessian(form.objective, states)
    priced = [hessian(h, states) for h in terms]
    for s in states:
        parts = [builder.value(own.get((s, s), ZERO))]
        pairs = zip(writer.prices, priced, strict=True)
        parts += [builder.times(m, second[s, s]) for m, second in pairs if (s, s) in second]
        outputs.append(builder.fold("add", parts))
    outputs += writer.slopes(builder, None, states, terms)
    for line in form.rows:
        outputs += _row(builder, line)
    yield "problem", builder, outputs, None
    builder = writer.builder()
    hard = [line for line in form.rows if line.square is None]
    yield "projection", builder, [v for line in hard for v in _row(builder, line)], None


def _row(builder: TapeBuilder, line: LocalRow) -> list[int]:
    """Factors, the tightest limits, and the slack ``1/(2 k)`` of a square."""
    outputs = [builder.value(a) for a in line.factors]
    least, most = builder.number(-np.inf), builder.number(np.inf)
    for place, limit in enumerate(map(builder.value, line.least)):
        least = limit if place == 0 else builder.operation("max", limit, least)
    for place, limit in enumerate(map(builder.value, line.most)):
        smaller = builder.operation("sub", most, limit)
        most = limit if place == 0 else builder.operation("where", smaller, limit, most)
    if line.square is None:
        return [*outputs, least, most, builder.number(0.0)]
    k = builder.operation("max", builder.value(line.square), builder.number(_MIN_SQUARE))
    return [*outputs, least, most, builder.operation("div", builder.number(0.5), k)]


def _smooth(writer: _TapeWriter, form: EpigraphForm) -> Iterator[_Written]:
    """Derivatives of the rows and of the objective, with where they go: (kind, place)."""
    variables = writer.variables
    n, place = len(variables), {s: c for c, s in enumerate(variables)}
    builder, to, outputs = writer.builder(), list[tuple[int, int]](), list[int]()
    for j, expr in enumerate((*form.inequalities, *form.equalities)):
        to.append((_VALUE, j))
        outputs.append(builder.value(expr))
        for s, slope in gradient(expr, variables).items():
            to.append((_JACOBIAN, j * n + place[s]))
            outputs.append(builder.value(slope))
        _curvature(builder, expr, writer.multipliers[j], variables, to, outputs)
    yield "rows", builder, outputs, to
    builder = writer.builder()
    outputs = writer.slopes(builder, form.objective, variables, form.terms)
    to = [(_SLOPE, c) for c in range(n)]
    _curvature(builder, form.objective, None, variables, to, outputs)
    for h, m in zip(form.terms, writer.prices, strict=True):
        _curvature(builder, h, m, variables, to, outputs)
    yield "objective", builder, outputs, to


def _curvature(
    builder: TapeBuilder,
    expr: Expression,
    factor: int | None,
    variables: Sequence[Expression],
    to: list[tuple[int, int]],
    outputs: list[int],
) -> None:
    """The lower half of a Hessian, times a factor."""
    n, place = len(variables), {s: c for c, s in enumerate(variables)}
    for (s, t), entry in hessian(expr, variables).items():
        value = builder.value(entry)
        to.append((_HESSIAN, place[t] * n + place[s]))
        outputs.append(value if factor is None else builder.operation("mul", factor, value))
