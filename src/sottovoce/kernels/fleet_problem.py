"""What the agents of a fleet minimise: formulas, numbers, structure, and their tapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.formula.derive import gradient, hessian
from sottovoce.formula.expression import ZERO, Expression
from sottovoce.formula.tape import Array
from sottovoce.kernels.core.plain import (
    ADD,
    DIV,
    GRADIENT,
    INTERIOR,
    MAX,
    MUL,
    NEWTON,
    SCALAR,
    SEPARABLE,
    SUB,
    WHERE,
)
from sottovoce.kernels.lower import TapeBuilder, TapeCode

Weights: TypeAlias = Any  # None, a dense array (rows, count), or a SciPy sparse matrix

_MIN_SQUARE = 2.0**-400  # a square without weight: its slack stays finite
_SLOPE, _VALUE, _JACOBIAN, _HESSIAN = range(4)  # where the interior-point method puts an output


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Terms:
    """Rows that a fleet adds to: ``sum_i W[r, i] h_t(x_i)`` to row ``row + r T + t``.

    Attributes:
        row: the first row.
        terms: h_t.
        weights: W; None for 1.
        table: every term has weights of its own: W is sparse with column ``i T + t``, and row
            ``row + r`` is ``sum_it W[r, i T + t] h_t(x_i)``.
    """

    row: int
    terms: tuple[Expression, ...]
    weights: Weights = None
    table: bool = False


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


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpigraphForm:
    """A smooth convex problem in the state and some variables more, for the interior-point method.

    Attributes:
        extra: the variables more, for non-smooth terms; they follow the components of the state.
        objective: f with them.
        terms: every h with them.
        inequalities: ``c(x, t) <= 0``: the local rows, then those of the variables more.
        equalities: ``e(x) = 0``, affine.
        lower: bounds of the variables more, shape (count, extra).
        upper: likewise.
    """

    extra: tuple[Expression, ...]
    objective: Expression
    terms: tuple[Expression, ...]
    inequalities: tuple[Expression, ...]
    equalities: tuple[Expression, ...]
    lower: Array
    upper: Array


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetProblem:
    """What the agents of a fleet minimise; all formulas canonical.

    Attributes:
        states: the symbols of the d components.
        parameters: the parameters that formulas name, with the agents' numbers, shape (count,).
        objective: f.
        sums: what they add to rows.
        lower: bounds, shape (count, d).
        upper: likewise.
        form: the structure of the problem; None where the state is a vector, or a number, in a box.
        local_rows: how many rows their own sets have beside the bounds.
        gradient: of an objective that is Python code, added to that of ``objective``.
    """

    states: tuple[Expression, ...]
    parameters: Mapping[Expression, Array]
    objective: Expression
    sums: tuple[Terms, ...]
    lower: Array
    upper: Array
    form: SeparableForm | EpigraphForm | None = None
    local_rows: int = 0
    gradient: Callable[[Any], Any] | None = None

    @property
    def terms(self) -> tuple[Expression, ...]:
        """Every h_t."""
        return tuple(h for part in self.sums for h in part.terms)


def minimiser(problem: FleetProblem) -> int:
    """How the agents of a fleet minimise."""
    if isinstance(problem.form, SeparableForm):
        return SEPARABLE
    if isinstance(problem.form, EpigraphForm):
        return INTERIOR
    return SCALAR if len(problem.states) == 1 else NEWTON


@final
class _TapeWriter:
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
    problem: FleetProblem, how: int
) -> tuple[dict[str, tuple[NDArray[Any], ...]], list[TapeCode]]:
    """The tapes by the names that ``FleetView`` has for them, and their code."""
    form = problem.form
    smooth = form if isinstance(form, EpigraphForm) else None
    rows = len(smooth.inequalities) + len(smooth.equalities) if smooth else 0
    writer = _TapeWriter(problem, smooth.extra if smooth else (), rows)
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


def _written(writer: _TapeWriter, how: int) -> Iterator[_Written]:
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
    if isinstance(problem.form, EpigraphForm) and how == INTERIOR:
        yield from _smooth(writer, problem.form)


def _separable(writer: _TapeWriter, form: SeparableForm) -> Iterator[_Written]:
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
