"""The tapes of a fleet, by the names that ``FleetView`` has for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.formula.derive import gradient, hessian
from sottovoce.formula.expression import ZERO, Expression
from sottovoce.kernels.fleet_problem import FleetProblem, LocalRow, SeparableForm, SmoothForm
from sottovoce.kernels.lower import DIV, MAX, MUL, SUB, WHERE, TapeBuilder, TapeCode

GRADIENT, SCALAR, SEPARABLE, NEWTON, INTERIOR = range(5)
"""How agents move: Algorithm 1's step, a search, or a method."""

_MIN_SQUARE = 2.0**-400  # a square without weight: its slack stays finite
_KINDS: Final = {"gradient": 0, "values": 1, "jacobian": 2, "hessian": 3}


def minimiser(problem: FleetProblem) -> int:
    """How the agents of a fleet minimise."""
    if isinstance(problem.form, SeparableForm):
        return SEPARABLE
    if isinstance(problem.form, SmoothForm):
        return INTERIOR
    return SCALAR if len(problem.states) == 1 else NEWTON


@final
class _Writer:
    """Writes a fleet's tapes, one after the other into the same registers."""

    def __init__(self, problem: FleetProblem, extra: Sequence[Expression], local_rows: int) -> None:
        self.problem = problem
        variables = (*problem.states, *extra)
        n, q = len(variables), len(problem.parameters)
        self.symbols = {s: i for i, s in enumerate((*variables, *problem.parameters))}
        self.variables = variables
        self.prices = [n + q + t for t in range(len(problem.terms))]
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
        """``df/dx_c + sum_t m_t dh_t/dx_c``; without f it starts from 0."""
        own = {} if objective is None else gradient(objective, variables)
        priced = [gradient(h, variables) for h in terms]
        return [
            builder.priced(
                builder.value(own.get(s, ZERO)),
                [(m, dh[s]) for m, dh in zip(self.prices, priced, strict=True) if s in dh],
            )
            for s in variables
        ]


def fleet_tapes(
    problem: FleetProblem, how: int
) -> tuple[dict[str, tuple[NDArray[Any], ...]], list[TapeCode]]:
    """The tapes by the names that ``FleetView`` has for them, and their code."""
    form = problem.form
    smooth = form if isinstance(form, SmoothForm) else None
    rows = len(smooth.inequalities) + len(smooth.equalities) if smooth else 0
    writer = _Writer(problem, smooth.extra if smooth else (), rows)
    nothing = np.zeros(0, dtype=np.int32)
    names = ("contributions", "pull", "slope", "step", "problem", "projection", "rows",
             "objective", "measure")  # fmt: skip
    tapes: dict[str, tuple[NDArray[Any], ...]] = dict.fromkeys(names, (nothing,) * 3)
    for name, builder, outputs, scattered in _written(writer, how):
        code = writer.finish(builder, outputs)
        to = code.outputs
        if scattered is not None:
            to = np.column_stack([np.array(scattered, dtype=np.int32).reshape(-1, 2), to]).ravel()
        tapes[name] = (code.one, code.lanes, np.ascontiguousarray(to, dtype=np.int32))
    return tapes, writer.codes


_Written: TypeAlias = tuple[str, TapeBuilder, list[int], list[tuple[int, int]] | None]


def _written(writer: _Writer, how: int) -> Iterator[_Written]:
    problem, states = writer.problem, writer.problem.states
    builder = writer.builder()
    yield "contributions", builder, [builder.value(h) for h in problem.terms], None
    builder = writer.builder()
    values = [builder.value(h) for h in (*problem.terms, problem.objective)]
    slopes = writer.slopes(builder, problem.objective, states, problem.terms)
    yield "measure", builder, [*values, *slopes], None
    if how == GRADIENT:
        builder = writer.builder()
        values = [builder.value(h) for h in problem.terms]
        slopes = writer.slopes(builder, problem.objective, states, problem.terms)
        yield "step", builder, [*values, *slopes], None
    if how in (SCALAR, NEWTON, INTERIOR):
        builder = writer.builder()
        yield "pull", builder, writer.slopes(builder, None, states, problem.terms), None
    if how in (SCALAR, NEWTON):
        builder = writer.builder()
        objective = problem.objective
        yield "slope", builder, writer.slopes(builder, objective, states, problem.terms), None
    if isinstance(problem.form, SeparableForm) and how == SEPARABLE:
        yield from _separable(writer, problem.form)
    if isinstance(problem.form, SmoothForm) and how == INTERIOR:
        yield from _smooth(writer, problem.form)


def _separable(writer: _Writer, form: SeparableForm) -> Iterator[_Written]:
    """Gradient, curvature, pull and rows; and the hard rows alone, for projections."""
    problem, states = writer.problem, writer.problem.states
    builder = writer.builder()
    outputs = writer.slopes(builder, form.objective, states, problem.terms)
    own = hessian(form.objective, states)
    priced = [hessian(h, states) for h in problem.terms]
    outputs += [
        builder.priced(
            builder.value(own.get((s, s), ZERO)),
            [(m, second[s, s]) for m, second in zip(writer.prices, priced, strict=True)
             if (s, s) in second],
        )
        for s in states
    ]  # fmt: skip
    outputs += writer.slopes(builder, None, states, problem.terms)
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


def _smooth(writer: _Writer, form: SmoothForm) -> Iterator[_Written]:
    """Derivatives of the rows and of the objective, with where they go: (kind, place)."""
    variables = writer.variables
    n, place = len(variables), {s: c for c, s in enumerate(variables)}
    kinds = _KINDS
    builder, to, outputs = writer.builder(), list[tuple[int, int]](), list[int]()
    for j, expr in enumerate((*form.inequalities, *form.equalities)):
        to.append((kinds["values"], j))
        outputs.append(builder.value(expr))
        for s, slope in gradient(expr, variables).items():
            to.append((kinds["jacobian"], j * n + place[s]))
            outputs.append(builder.value(slope))
        _curvature(builder, expr, writer.multipliers[j], variables, to, outputs)
    yield "rows", builder, outputs, to
    builder = writer.builder()
    outputs = writer.slopes(builder, form.objective, variables, form.terms)
    to = [(kinds["gradient"], c) for c in range(n)]
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
        to.append((_KINDS["hessian"], place[t] * n + place[s]))
        outputs.append(value if factor is None else builder.emit(MUL, factor, value))
