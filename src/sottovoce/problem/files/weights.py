"""Weights W in a table beside the file: of a fleet's totals, and of rows over agents by themselves.

    expression = "matrix <= bound"            expression = "total(ev) <= 5"
    matrix = "lines.csv"                      weights = { ev = "feeders.csv" }

Where most weights are 0 a table has a line per weight: columns ``row``, ``agent``, ``weight``, and
``component`` where states are vectors, all counted from 1. Otherwise a matrix has a line per row
and a column for every component that some row names, and a fleet's table a line per agent and a
column per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import substitute
from sottovoce.formula.derive import derivative
from sottovoce.formula.expression import ZERO, Expression, symbol
from sottovoce.problem.agents import Group
from sottovoce.problem.constraints import Constraint, FleetSum, Weights, linear_total
from sottovoce.problem.files.schema import refusal
from sottovoce.problem.files.table import AGENT, Table
from sottovoce.problem.linear_rows import Linear
from sottovoce.problem.totals import BOUND

MATRIX = symbol("matrix")
"""What stands for the rows of the table."""

_ROW, _WEIGHT, _COMPONENT = "row", "weight", "component"
_LONG = 20  # weights that a row may have to be written out as a formula
_FULL = 0.5  # from this share of weights that are not 0 on, a table has a line per row


def matrix_constraint(
    g: Expression, table: Table, groups: Sequence[Group], *, equality: bool, bound: Any, where: str
) -> Constraint:
    """Return the rows ``g <= 0``, or ``= 0``, in which the table and ``bound`` have been named.

    Args:
        g: the formula, affine in what stands for the rows of the table and in ``bound``.
        table: the weights.
        groups: all agents, in the order of their numbers.
        equality: whether the rows must be 0.
        bound: a number per row, if ``g`` names it.
        where: where it stands, for errors.

    Raises:
        ProblemError: if the formula names anything else, or the table a state that no agent has.
    """
    factor, slope = derivative(g, MATRIX), derivative(g, BOUND)
    rest = substitute(g, {MATRIX: ZERO, BOUND: ZERO})
    if factor.is_zero or not all(e.is_number for e in (factor, slope, rest)):
        raise refusal(
            where,
            "a constraint with a matrix must add and compare the matrix, bound and numbers only, "
            "such as 'matrix <= bound': state other terms as constraints of their own",
        )
    symbols, weights = _matrix(table, groups)
    right: Any = -float(rest)
    if not slope.is_zero:
        right = right - float(slope) * np.asarray(bound, dtype=np.float64)
    try:
        left = linear_total(symbols, weights * float(factor))
        stated: Constraint = left == right if equality else left <= right
    except ProblemError as error:
        raise refusal(where, str(error)) from None
    return stated


def fleet_weights(table: Table, numbers: range) -> Weights:
    """Return W for the agents of a fleet."""
    if set(table.columns) == {_ROW, AGENT, _WEIGHT}:
        return _sparse(table, numbers.start, np.ones(len(numbers), dtype=np.int64))
    places = table.numbers(numbers) - numbers.start
    rows = [column for name, column in table.columns.items() if name != AGENT]
    dense = np.zeros((len(rows), len(numbers)))
    dense[:, places] = rows
    return dense


def _matrix(table: Table, groups: Sequence[Group]) -> tuple[list[Expression], Weights]:
    """The components that a table names, and W."""
    alone = {s.name: s for group in groups if group.count == 1 for s in group.symbols}
    if {_ROW, AGENT, _WEIGHT} <= set(table.columns):
        dims = [group.dim if group.count == 1 else 0 for group in groups]
        each = np.repeat(dims, [group.count for group in groups])
        return list(alone.values()), _sparse(table, 1, each)
    for name in table.columns:
        if name not in alone:
            raise ProblemError(
                f"{table.path}: a column must be called like a component of an agent stated by "
                f"itself, or the columns be {_ROW}, {AGENT} and {_WEIGHT}, got {name!r:.60}"
            )
    return [alone[name] for name in table.columns], np.stack(list(table.columns.values()), 1)


def _sparse(table: Table, first: int, dims: NDArray[np.int64]) -> Weights:
    """W over the components of agents ``first``, ``first + 1``, ... of these dimensions."""
    columns = {_COMPONENT: np.ones(table.lines), **table.columns}
    counted = []
    for key in (_ROW, AGENT, _COMPONENT):
        whole = columns[key].astype(np.int64)
        _require(table, (whole == columns[key]) & (whole >= 1),
                 f"column {key!r} must have whole numbers from 1")  # fmt: skip
        counted.append(whole)
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
    """The weights of rows that are better kept as a table than written out one by one."""
    linear = constraint.linear
    if linear is None or constraint.rest or constraint.sums:
        return None
    # A formula of one component would be read as a bound.
    short = constraint.rows == 1 and 1 < int(linear.weights.nnz) <= _LONG
    return None if short else linear


def matrix_columns(linear: Linear, groups: Sequence[Group]) -> dict[str, Any]:
    """The columns of a table that ``matrix_constraint`` reads back to the same weights."""
    named = linear.of(linear.used())
    weights = named.weights
    if weights.nnz >= _FULL * np.prod(weights.shape):
        dense = weights.toarray()
        return {s.name: dense[:, c] for c, s in enumerate(named.symbols)}
    starts = np.cumsum([1, *(group.count for group in groups)])
    owner = {
        s: (int(start), c + 1)
        for start, group in zip(starts, groups, strict=False)
        for c, s in enumerate(group.symbols)
    }
    of_column = np.array([owner[s] for s in named.symbols])
    vectors = any(group.dim > 1 for group in groups if group.count == 1)
    return _triplets(weights, of_column[:, 0], of_column[:, 1] if vectors else None)


def fleet_columns(part: FleetSum, first: int) -> dict[str, Any]:
    """The columns of a table that ``fleet_weights`` reads back to the same weights."""
    if sparse.issparse(part.weights):
        return _triplets(part.weights, first + np.arange(part.group.count), None)
    return {f"row{r + 1}": row for r, row in enumerate(part.weights)}


def _triplets(weights: Any, agents: Any, components: Any) -> dict[str, Any]:
    entries = weights.tocoo()
    row, column = entries.coords
    columns = {_ROW: row + 1, AGENT: agents[column]}
    if components is not None:
        columns[_COMPONENT] = components[column]
    return {**columns, _WEIGHT: entries.data}
