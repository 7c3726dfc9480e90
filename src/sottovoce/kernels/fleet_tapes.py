"""The local problem of a fleet's agents: its structure, its minimiser, and its formulas as tapes.

A problem that is separable but for a row or two, as of a charger, a battery or a generator,

    f(x) + lambda'h(x) = sum_c q_c(x_c) + sum_j k_j (a_j'x - e_j)^2,   least <= a'x <= most

with ``q_c`` of degree two at most and two rows or squares of sums at most, is minimised exactly by
``kernels.core.dual_search``. Others take an interior-point method in epigraph form, or Newton steps
in their box; a scalar state takes a search for the sign change of its slope.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, TypeAlias, final

import numpy as np

from sottovoce.formula.canonical import add, addends, divide, expand, factors, negate, substitute
from sottovoce.formula.derive import derivative, gradient, hessian, is_affine, is_smooth
from sottovoce.formula.expression import ZERO, Expression, Op
from sottovoce.kernels.core.plain import GRADIENT, INTERIOR, NEWTON, SCALAR, SEPARABLE
from sottovoce.kernels.lower import Code, TapeBuilder, TapeCode
from sottovoce.problem.epigraph import EpigraphForm, epigraph_form
from sottovoce.problem.fleets import Fleet

_MIN_SQUARE = 2.0**-400  # a square without weight: its slack stays finite
_SLOPE, _VALUE, _JACOBIAN, _HESSIAN = range(4)  # where the interior-point method puts an output
_MOST_ROWS = 2
_TAPES = ("contributions", "pull", "slope", "step", "problem", "projection", "rows", "objective",
          "measure")  # fmt: skip
_NO_CODE: Final[Code] = np.zeros(0, dtype=np.int32)
_NO_NOISE: Final[Mapping[tuple[int, int], Any]] = MappingProxyType({})


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalRow:
    """``least <= a'x <= most``, or a square ``k (a'x - e)^2`` of the objective."""

    factors: tuple[Expression, ...]  # a, formulas of the parameters
    least: tuple[Expression, ...]  # lower limits, all of which hold; for a square e
    most: tuple[Expression, ...]  # upper limits, likewise
    square: Expression | None = None  # k; None for a row of the agent's set


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

    A scalar state in bounds needs none, non-smooth terms or not; of an objective that is ``coded``
    no structure is known.
    """
    rows = fleet.local.rows > 0
    if coded:
        return _general_form(fleet) if rows else None
    if fleet.group.dim == 1 and not rows:
        return None
    formulas = (fleet.objective, *fleet.terms, *fleet.local.inequalities)
    smooth = all(map(is_smooth, formulas))
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
    return epigraph_form(fleet.group, fleet.objective, fleet.terms, fleet.local)


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
    separable, squares = [], []
    for term in _terms(objective, symbols):
        if len(term.symbols.intersection(symbols)) <= 1:
            separable.append(term)
            continue
        square = _square(term, symbols)
        if square is None:
            return None
        squares.append(square)
    return add(*separable), squares


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
    rows: dict[tuple[Expression, ...], LocalRow] = {}
    stated = [(expr, False) for expr in fleet.local.inequalities]
    stated += [(expr, True) for expr in fleet.local.equalities]
    for expr, equality in stated:
        affine = _affine(expr, fleet.group.symbols)
        if affine is None:
            return None
        direction, constant = affine
        opposite = tuple(map(negate, direction))
        is_opposite = direction not in rows and opposite in rows
        key = opposite if is_opposite else direction
        row = rows.get(key, LocalRow(factors=key, least=(), most=()))
        limit = (constant if is_opposite else negate(constant),)
        least = row.least + limit if equality or is_opposite else row.least
        most = row.most + limit if equality or not is_opposite else row.most
        rows[key] = replace(row, least=least, most=most)
    return list(rows.values())


def _quadratic(expr: Expression, symbols: Sequence[Expression]) -> bool:
    """Whether a formula is a sum of terms of one component each, of degree two at most."""
    moving = frozenset(symbols)
    entries = hessian(expr, list(symbols)).items()
    return all(a is b and not entry.symbols & moving for (a, b), entry in entries)


def fleet_tapes(
    fleet: Fleet,
    parameters: Sequence[Expression],
    form: LocalForm,
    how: int,
    *,
    coded: bool,
    noise: Mapping[tuple[int, int], Expression] = _NO_NOISE,
) -> tuple[dict[str, tuple[Code, Code]], list[TapeCode]]:
    """Return the tapes by the names that ``FleetView`` has for them, and their code.

    ``how`` is the minimiser, or ``GRADIENT`` for Algorithm 1's steps; of an objective that is
    ``coded`` the curvature is not known. ``noise`` has the parameters that steps add to slopes
    ``dh_t/dx_c``, by t and c; these noisy slopes are outputs of a step as well.
    """
    writer = _TapeWriter(fleet, parameters, form)
    objective, states, terms = fleet.objective, fleet.group.symbols, fleet.terms
    writer.finish("contributions", writer.values(terms))
    values = writer.values((*terms, objective))
    writer.finish("measure", values + writer.slopes(objective, states, terms))
    if how == GRADIENT:
        slopes = {(t, c): (derivative(terms[t], states[c]), w) for (t, c), w in noise.items()}
        noisy = {p: writer.builder.operation("add", *writer.values(s)) for p, s in slopes.items()}
        values = writer.values(terms) + writer.slopes(objective, states, terms, noisy)
        writer.finish("step", [*values, *noisy.values()])
    if how == SCALAR:
        pull = writer.slopes(None, states, terms) + writer.slopes(objective, states, terms)
        smooth = not coded and all(map(is_smooth, (objective, *terms)))
        unknown = [writer.builder.number(np.nan)]
        curvature = writer.curvatures(objective, states, terms) if smooth else unknown
        writer.finish("pull", pull + curvature)
    if how in (NEWTON, INTERIOR):
        writer.finish("pull", writer.slopes(None, states, terms))
    if how in (SCALAR, NEWTON):
        writer.finish("slope", writer.slopes(objective, states, terms))
    if isinstance(form, SeparableForm):
        _write_separable(writer, form, states, terms)
    elif isinstance(form, EpigraphForm):
        _write_smooth(writer, form)
    return writer.tapes, writer.codes


@final
class _TapeWriter:
    """Writes a fleet's tapes, one after the other into the same registers.

    Attributes:
        variables: the states, and the further variables of an epigraph form.
        prices: the registers of the terms' prices.
        multipliers: those of the local rows'.
        builder: of the tape that is being written.
    """

    def __init__(self, fleet: Fleet, parameters: Sequence[Expression], form: LocalForm) -> None:
        smooth = form if isinstance(form, EpigraphForm) else None
        rows = len(smooth.inequalities) + len(smooth.equalities) if smooth else 0
        self.variables = (*fleet.group.symbols, *(smooth.extra if smooth else ()))
        first = len(self.variables) + len(parameters)
        self._inputs = first + len(fleet.terms) + rows
        self._symbols = {s: i for i, s in enumerate((*self.variables, *parameters))}
        self.prices = range(first, self._inputs - rows)
        self.multipliers = range(self._inputs - rows, self._inputs)
        self.tapes: dict[str, tuple[Code, Code]] = dict.fromkeys(_TAPES, (_NO_CODE, _NO_CODE))
        self.codes: list[TapeCode] = []
        self.builder = TapeBuilder(self._inputs, self._symbols)

    def finish(
        self, name: str, outputs: Sequence[int], destinations: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Keep the tape and begin another; ``destinations`` are where outputs go, (kind, place)."""
        first = self.codes[-1].registers if self.codes else self._inputs
        code = self.builder.finish(outputs, first=first)
        self.codes.append(code)
        to = code.outputs
        if destinations:
            to = np.column_stack([np.array(destinations, dtype=np.int32), to]).ravel()
        self.tapes[name] = (code.code, to)
        self.builder = TapeBuilder(self._inputs, self._symbols)

    def values(self, formulas: Sequence[Expression]) -> list[int]:
        """The values of formulas."""
        return list(map(self.builder.value, formulas))

    def slopes(
        self,
        objective: Expression | None,
        variables: Sequence[Expression],
        terms: Sequence[Expression],
        noisy: Mapping[tuple[int, int], int] = _NO_NOISE,
    ) -> list[int]:
        """``df/dx_c + sum_t m_t dh_t/dx_c``, where ``noisy`` has some ``dh_t/dx_c`` by t and c."""
        builder = self.builder
        stated_slopes = {} if objective is None else gradient(objective, variables)
        priced = [gradient(h, variables) for h in terms]
        slopes = []
        for c, s in enumerate(variables):
            parts = [] if objective is None else [builder.value(stated_slopes.get(s, ZERO))]
            for t, (m, dh) in enumerate(zip(self.prices, priced, strict=True)):
                if (t, c) in noisy:
                    parts.append(builder.operation("mul", m, noisy[t, c]))
                elif s in dh:
                    parts.append(builder.times(m, dh[s]))
            slopes.append(builder.fold("add", parts) if parts else builder.number(0.0))
        return slopes

    def curvatures(
        self, objective: Expression, states: Sequence[Expression], terms: Sequence[Expression]
    ) -> list[int]:
        """``d2f/dx_c^2 + sum_t m_t d2h_t/dx_c^2``."""
        builder = self.builder
        stated, priced = hessian(objective, states), [hessian(h, states) for h in terms]
        curvatures = []
        for s in states:
            parts = [builder.value(stated.get((s, s), ZERO))]
            pairs = zip(self.prices, priced, strict=True)
            parts += [builder.times(m, second[s, s]) for m, second in pairs if (s, s) in second]
            curvatures.append(builder.fold("add", parts))
        return curvatures


def _write_separable(
    writer: _TapeWriter,
    form: SeparableForm,
    states: Sequence[Expression],
    terms: Sequence[Expression],
) -> None:
    """Gradient, curvature, pull and rows; and the hard rows alone, for projections."""
    outputs = writer.slopes(form.objective, states, terms)
    outputs += writer.curvatures(form.objective, states, terms)
    outputs += writer.slopes(None, states, terms)
    for row in form.rows:
        outputs += _row(writer.builder, row)
    writer.finish("problem", outputs)
    hard = [row for row in form.rows if row.square is None]
    writer.finish("projection", [v for row in hard for v in _row(writer.builder, row)])


def _row(builder: TapeBuilder, row: LocalRow) -> list[int]:
    """Factors, the tightest limits, and the slack ``1/(2 k)`` of a square."""
    outputs = [builder.value(a) for a in row.factors]
    least, most = builder.number(-np.inf), builder.number(np.inf)
    for place, limit in enumerate(map(builder.value, row.least)):
        least = limit if place == 0 else builder.operation("max", limit, least)
    for place, limit in enumerate(map(builder.value, row.most)):
        smaller = builder.operation("sub", most, limit)
        most = limit if place == 0 else builder.operation("where", smaller, limit, most)
    if row.square is None:
        return [*outputs, least, most, builder.number(0.0)]
    k = builder.operation("max", builder.value(row.square), builder.number(_MIN_SQUARE))
    return [*outputs, least, most, builder.operation("div", builder.number(0.5), k)]


def _write_smooth(writer: _TapeWriter, form: EpigraphForm) -> None:
    """Derivatives of the rows and of the objective."""
    variables, n = writer.variables, len(writer.variables)
    column = {s: c for c, s in enumerate(variables)}
    outputs: list[int] = []
    to: list[tuple[int, int]] = []

    def add_hessian(expr: Expression, factor: int | None) -> None:
        """Its lower half, times a factor."""
        for (s, t), entry in hessian(expr, variables).items():
            value = writer.builder.value(entry)
            to.append((_HESSIAN, column[t] * n + column[s]))
            outputs.append(
                value if factor is None else writer.builder.operation("mul", factor, value)
            )

    rows = (*form.inequalities, *form.equalities)
    for j, (expr, multiplier) in enumerate(zip(rows, writer.multipliers, strict=True)):
        to.append((_VALUE, j))
        outputs.append(writer.builder.value(expr))
        for s, slope in gradient(expr, variables).items():
            to.append((_JACOBIAN, j * n + column[s]))
            outputs.append(writer.builder.value(slope))
        add_hessian(expr, multiplier)
    writer.finish("rows", outputs, to)
    outputs = writer.slopes(form.objective, variables, form.terms)
    to = [(_SLOPE, c) for c in range(n)]
    add_hessian(form.objective, None)
    for h, price in zip(form.terms, writer.prices, strict=True):
        add_hessian(h, price)
    writer.finish("objective", outputs, to)
