"""The tapes of a fleet: contributions, slopes, local problems and measures as register code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.formula.derive import gradient, hessian
from sottovoce.formula.expression import ZERO, Expression
from sottovoce.kernels.core.plain import (
    ADD,
    DIV,
    GRADIENT,
    INTERIOR,
    MAX,
    MUL,
    NEWTON,
    SCALAR,
    SUB,
    WHERE,
)
from sottovoce.kernels.fleet_form import LocalForm, LocalRow, SeparableForm
from sottovoce.kernels.lower import TapeBuilder, TapeCode
from sottovoce.problem.epigraph import EpigraphForm
from sottovoce.problem.fleet import Fleet

_MIN_SQUARE = 2.0**-400  # a square without weight: its slack stays finite
_SLOPE, _VALUE, _JACOBIAN, _HESSIAN = range(4)  # where the interior-point method puts an output


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
            found.append(builder.fold(ADD, parts) if parts else builder.number(0.0))
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
    tapes: dict[str, tuple[NDArray[Any], ...]] = dict.fromkeys(names, (nothing,) * 3)
    for name, builder, outputs, scattered in _written(writer, form, how):
        code = writer.finish(builder, outputs)
        to = code.outputs
        if scattered is not None:
            to = np.column_stack([np.array(scattered, dtype=np.int32).reshape(-1, 2), to]).ravel()
        tapes[name] = (code.one, code.lanes, np.ascontiguousarray(to, dtype=np.int32))
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
    outputs += [
        builder.priced(
            builder.value(own.get((s, s), ZERO)),
            [(m, second[s, s]) for m, second in zip(writer.prices, priced, strict=True)
             if (s, s) in second],
        )
        for s in states
    ]  # fmt: skip
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
        least = limit if place == 0 else builder.emit(MAX, limit, least)
    for place, limit in enumerate(map(builder.value, line.most)):
        smaller = builder.emit(SUB, most, limit)
        most = limit if place == 0 else builder.emit(WHERE, smaller, limit, most)
    if line.square is None:
        return [*outputs, least, most, builder.number(0.0)]
    k = builder.emit(MAX, builder.value(line.square), builder.number(_MIN_SQUARE))
    return [*outputs, least, most, builder.emit(DIV, builder.number(0.5), k)]


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
        outputs.append(value if factor is None else builder.emit(MUL, factor, value))
