"""Constraints as text: totals over fleets, matrices of weights, a bound for every row.

    expression = "total(ev) + x1 <= bound"    expression = "matrix <= bound"
    bound = [12, 10]                          bound = [12, 10]
    weights = { ev = "feeders.csv" }          matrix = "lines.csv"

Where most weights are 0 a table has a line per weight: columns ``row``, ``agent``, ``weight``, and
``component`` where states are vectors, all counted from 1. Otherwise a matrix has a line per row
and a column for every component that some row names, and a fleet's table a line per agent and a
column per row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import multiply, split_constant, substitute, subtract
from sottovoce.formula.derive import gradient
from sottovoce.formula.expression import ZERO, Expression, Relation, number, symbol
from sottovoce.formula.parse import parse_constraint
from sottovoce.problem.constraints import Constraint, FleetSum, Total, linear_total, total_over
from sottovoce.problem.files.schema import ConstraintTable, SumTable, refusal
from sottovoce.problem.files.table import AGENT, Table
from sottovoce.problem.groups import Array, Group, agent_numbers
from sottovoce.problem.linear_rows import Entries, Linear, Weights, entries_of, sparse

BOUND, MATRIX = symbol("bound"), symbol("matrix")
"""Stand-ins for a number per row, and for the rows of a table, while a text is read."""

_ROW, _WEIGHT, _COMPONENT = "row", "weight", "component"
_LONG = 20  # weights that a row may have to be written out as a formula
_FULL = 0.5  # from this share of weights that are not 0 on, a table has a line per row


@final
class ConstraintReader:
    """Reads constraints over agents, fleets and tables of weights.

    While a text is read a symbol stands for every total and for the matrix, and ``_scaled`` has for
    each its rows times a number. ``public`` has the public parameters of every fleet.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        public: Mapping[str, Mapping[str, Array]],
        tables: Mapping[str, Table],
        numbers: Mapping[str, float | list[float]],
    ) -> None:
        self._groups, self._tables, self._bounds = groups, tables, numbers
        pairs = zip(groups, agent_numbers(groups), strict=True)
        self._numbers = {g.name: numbers for g, numbers in pairs if g.name in public}
        self.alone = {s.name: s for g in groups if g.count == 1 for s in g.symbols}
        self.constants = {  # ``base`` for a number, ``base[2]`` for one of a list
            f"{name}[{k + 1}]" if isinstance(value, list) else name: number(one)
            for name, value in numbers.items()
            for k, one in enumerate(value if isinstance(value, list) else [value])
        }
        symbols = {s.name for g in groups for s in (*g.symbols, *g.parameters)}
        if taken := symbols & self.constants.keys():
            raise ProblemError(f"names must differ, got {min(taken)} in [public] too: rename one")
        self._owner = {
            s: g
            for g in groups
            if g.name in public
            for s in (*g.symbols, *g.parameters)
            if s not in g.parameters or s.name.partition("[")[0] in public[g.name]
        }

        self._weights: dict[str, Weights] = {}
        self._scaled: dict[Expression, Callable[[Expression], Total]] = {}

    @property
    def inside(self) -> dict[str, Expression]:
        """What a term of a total may name."""
        return {symbol.name: symbol for symbol in self._owner}

    def read(self, table: ConstraintTable, where: str) -> Constraint | Relation:
        """Return the constraint of a table ``[[constraints]]``, which stands at ``where``."""
        for name in table.weights:
            if name not in self._numbers:
                raise refusal(where, f"weights must be for a fleet, got {name!r:.60}")
        self._weights = {
            name: _fleet_weights(self._tables[file], self._numbers[name])
            for name, file in table.weights.items()
        }
        self._scaled.clear()
        bound = self._bounds.get(table.bound) if isinstance(table.bound, str) else table.bound
        if bound is None and table.bound is not None:
            raise refusal(where, f"bound must name a number of [public], got {table.bound!r:.60}")
        names = self.alone | self.inside | self.constants
        if bound is not None:
            names[BOUND.name] = BOUND
        if table.matrix is not None:
            symbols, weights = self._matrix(self._tables[table.matrix])
            names[MATRIX.name] = MATRIX
            self._scaled[MATRIX] = lambda slope: linear_total(symbols, weights * float(slope))
        total = self.add if self._numbers else None
        g, equality = parse_constraint(
            table.expression, names, where=where, total=total, inside=self.inside
        )
        if self._scaled:
            return self._family(g, equality=equality, bound=bound, where=where)
        for key, value in (("bound", table.bound), ("weights", table.weights or None)):
            if value is not None:
                raise refusal(
                    where,
                    f"a constraint must have {key} for a total over a fleet or a matrix only, got "
                    "neither: remove it",
                )
        return Relation(g, "==" if equality else "<=", ZERO)

    def rows(self, table: SumTable, where: str) -> dict[str, Expression]:
        """Return the rows of a table ``[[sums]]`` by their names, ``load`` or ``load[2]``."""
        constraint = ConstraintTable(
            expression=f"{table.expression} <= 0", weights=table.weights, matrix=table.matrix
        )
        stated = self.read(constraint, where)
        if isinstance(stated, Relation):
            return {table.name: subtract(stated.left, stated.right)}
        rows = Total(sums=stated.sums, rest=stated.rest, offset=stated.offset, linear=stated.linear)
        if len(rows) == 1:
            return {table.name: rows[0]}
        return {f"{table.name}[{r + 1}]": row for r, row in enumerate(rows)}

    def add(self, terms: Sequence[Expression]) -> Expression:
        """Return what stands for ``total(terms)``."""
        named = {self._owner[s].name: self._owner[s] for h in terms for s in h.symbols}
        if len(named) != 1:
            got = " and ".join(named) or "none"
            raise ProblemError(f"total must be over one fleet, got {got}: write one total for each")
        stand_in = symbol(f"total {len(self._scaled) + 1}")
        (group,) = named.values()
        weights = self._weights.get(group.name)
        self._scaled[stand_in] = lambda slope: total_over(
            group, [multiply(slope, h) for h in terms], weights
        )
        return stand_in

    def _matrix(self, table: Table) -> tuple[list[Expression], Weights]:
        """The components that a table names, and W."""
        if {_ROW, AGENT, _WEIGHT} <= set(table.columns):
            dims = [group.dim if group.count == 1 else 0 for group in self._groups]
            each = np.repeat(dims, [group.count for group in self._groups])
            return list(self.alone.values()), _sparse(table, 1, each)
        for name in table.columns:
            if name not in self.alone:
                raise ProblemError(
                    f"{table.path}: a column must be called like a component of an agent stated by "
                    f"itself, or the columns be {_ROW}, {AGENT} and {_WEIGHT}, got {name!r:.60}"
                )
        symbols = [self.alone[name] for name in table.columns]
        return symbols, np.stack(list(table.columns.values()), 1)

    def _family(
        self, g: Expression, *, equality: bool, bound: ArrayLike | None, where: str
    ) -> Constraint:
        """Return the rows ``g <= 0``, or ``= 0``, with g affine in stand-ins and ``bound``."""
        stand_ins = [*self._scaled, BOUND]
        slopes = gradient(g, stand_ins)
        constant, named = split_constant(substitute(g, dict.fromkeys(stand_ins, ZERO)))
        affine = all(slope.is_number for slope in slopes.values())
        alone = set(self._scaled) == {MATRIX} <= set(slopes) and not named.symbols
        if MATRIX in self._scaled and not (affine and alone):
            raise refusal(
                where,
                "a constraint with a matrix must add and compare the matrix, bound and numbers "
                "only, such as 'matrix <= bound': state other terms as constraints of their own",
            )
        if not affine:
            raise refusal(
                where, f"a total and bound may be added and multiplied by numbers only, got {g}"
            )
        right: float | Array = -float(constant)
        if BOUND in slopes:
            right = right - float(slopes[BOUND]) * np.asarray(bound, dtype=np.float64)
        try:
            left, *more = (rows(slopes.get(s, ZERO)) for s, rows in self._scaled.items())
            for other in (*more, *([named] if named.symbols else [])):
                left = left + other
            stated: Constraint = left == right if equality else left <= right
        except ProblemError as error:
            raise refusal(where, str(error)) from None
        return stated


def _fleet_weights(table: Table, numbers: range) -> Weights:
    """W for the agents of a fleet."""
    if set(table.columns) == {_ROW, AGENT, _WEIGHT}:
        return _sparse(table, numbers.start, np.ones(len(numbers), dtype=np.int64))
    places = table.numbers(numbers) - numbers.start
    rows = [column for name, column in table.columns.items() if name != AGENT]
    dense = np.zeros((len(rows), len(numbers)))
    dense[:, places] = rows
    return dense


def _sparse(table: Table, first: int, dims: NDArray[np.int64]) -> Weights:
    """W over the components of agents ``first``, ``first + 1``, ... of these dimensions."""
    columns = {_COMPONENT: np.ones(table.lines), **table.columns}
    counted = []
    for key in (_ROW, AGENT, _COMPONENT):
        integers = columns[key].astype(np.int64)
        _require(table, (integers == columns[key]) & (integers >= 1),
                 f"column {key!r} must have integers from 1")  # fmt: skip
        counted.append(integers)
    row, agent, component = counted
    place = np.clip(agent - first, 0, dims.size - 1)
    _require(
        table,
        (place == agent - first) & (component <= dims[place]),
        f"agent and component must be those of an agent stated here, and agent lie in {first} to "
        f"{first + dims.size - 1}",
    )
    column = np.cumsum(dims)[place] - dims[place] + component - 1
    shape = (int(row.max(initial=1)), int(dims.sum()))
    return sparse.csr_array((columns[_WEIGHT], (row - 1, column)), shape=shape)


def _require(table: Table, fine: NDArray[np.bool_], rule: str) -> None:
    if not fine.all():
        raise ProblemError(f"{table.path}, line {int(np.argmin(fine)) + 2}: {rule}, got others")


def as_matrix(constraint: Constraint) -> Linear | None:
    """Return the weights of rows that are better kept as a table than written out one by one."""
    linear = constraint.linear
    if linear is None or constraint.rest or constraint.sums:
        return None
    # A formula of one component would be read as a bound.
    short = constraint.rows == 1 and 1 < linear.values.size <= _LONG
    return None if short else linear


def matrix_columns(linear: Linear, groups: Sequence[Group]) -> dict[str, ArrayLike]:
    """Return the columns of a table that reads back to the same matrix."""
    named = linear.select(linear.used())
    entries = named.row, named.column, named.values
    dense = np.zeros((named.rows, len(named.symbols)))
    if named.values.size >= _FULL * dense.size:
        dense[entries[:2]] = named.values
        return {s.name: dense[:, c] for c, s in enumerate(named.symbols)}
    owner = {
        s: (numbers.start, c + 1)
        for numbers, group in zip(agent_numbers(groups), groups, strict=True)
        for c, s in enumerate(group.symbols)
    }
    of_column = np.array([owner[s] for s in named.symbols])
    vectors = any(group.dim > 1 for group in groups if group.count == 1)
    return _triplets(entries, of_column[:, 0], of_column[:, 1] if vectors else None)


def fleet_columns(part: FleetSum, first: int) -> dict[str, ArrayLike]:
    """Return the columns of a table that reads back to the same weights of a fleet."""
    if sparse.issparse(part.weights):
        return _triplets(entries_of(part.weights), first + np.arange(part.group.count), None)
    return {f"row{r + 1}": row for r, row in enumerate(part.weights)}


def _triplets(
    entries: Entries, agents: NDArray[np.int64], components: NDArray[np.int64] | None
) -> dict[str, ArrayLike]:
    row, column, values = entries
    columns = {_ROW: row + 1, AGENT: agents[column]}
    if components is not None:
        columns[_COMPONENT] = components[column]
    return {**columns, _WEIGHT: values}
