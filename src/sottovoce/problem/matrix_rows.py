"""Rows ``W x`` over agents stated by themselves, with the weights W in a table beside the file.

    expression = "matrix <= bound"
    matrix = "lines.csv"

The table has a line per row and a column for every component that some row names, or, where most
weights are 0, a line per weight: columns ``row``, ``agent``, ``weight``, and ``component`` where
states are vectors, all counted from 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sparse

from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import substitute
from sottovoce.formula.derive import derivative
from sottovoce.formula.expression import ZERO, Expression, symbol
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.constraints import Constraint, linear_total
from sottovoce.problem.linear import Linear
from sottovoce.problem.table import AGENT, Table
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
        ProblemError: if the formula names anything else, or the table nobody's state.
    """
    factor, slope = derivative(g, MATRIX), derivative(g, BOUND)
    rest = substitute(g, {MATRIX: ZERO, BOUND: ZERO})
    if factor.is_zero or not all(e.is_number for e in (factor, slope, rest)):
        raise ProblemError(
            f"{where}: a constraint with a matrix must add and compare the matrix, bound and "
            "numbers only, such as 'matrix <= bound': state other terms as constraints of their own"
        )
    symbols, weights = _read(table, groups)
    right: Any = -float(rest)
    if not slope.is_zero:
        right = right - float(slope) * np.asarray(bound, dtype=np.float64)
    try:
        left = linear_total(symbols, weights * float(factor))
        stated: Constraint = left == right if equality else left <= right
    except ProblemError as error:
        raise ProblemError(f"{where}: {error}") from None
    return stated


def _read(table: Table, groups: Sequence[Group]) -> tuple[list[Expression], Any]:
    """The components that a table names, and W."""
    alone = {s.name: s for group in groups if group.count == 1 for s in group.symbols}
    if not {_ROW, AGENT, _WEIGHT} <= set(table.columns):
        for name in table.columns:
            if name not in alone:
                raise ProblemError(
                    f"{table.path}: a column must be called like a component of an agent stated by "
                    f"itself, or the columns be {_ROW}, {AGENT} and {_WEIGHT}, got {name!r:.60}"
                )
        return [alone[name] for name in table.columns], np.stack(list(table.columns.values()), 1)
    columns = {_COMPONENT: np.ones(table.lines), **table.columns}
    row, agent, component = (_counted(table, columns, key) for key in (_ROW, AGENT, _COMPONENT))
    symbols = list(alone.values())
    place = {number: c for c, number in enumerate(_numbers(groups).values())}
    known = np.array([(a, c) in place for a, c in zip(agent, component, strict=True)], dtype=bool)
    if not known.all():
        raise ProblemError(
            f"{table.path}, line {int(np.argmin(known)) + 2}: agent and component must be those of "
            "an agent stated by itself"
        )
    at = [place[a, c] for a, c in zip(agent, component, strict=True)]
    shape = (int(row.max(initial=1)), len(symbols))
    return symbols, sparse.csr_array((columns[_WEIGHT], (row - 1, at)), shape=shape)


def _counted(table: Table, columns: Mapping[str, Array], key: str) -> Any:
    found = columns[key].astype(np.int64)
    fine = (found == columns[key]) & (found >= 1)
    if not fine.all():
        raise ProblemError(
            f"{table.path}, line {int(np.argmin(fine)) + 2}: column {key!r} must have whole "
            "numbers from 1"
        )
    return found


def _numbers(groups: Sequence[Group]) -> dict[Expression, tuple[int, int]]:
    """Agent and component, both from 1, of every component of an agent stated by itself."""
    found: dict[Expression, tuple[int, int]] = {}
    agent = 1
    for group in groups:
        if group.count == 1:
            found |= {s: (agent, c + 1) for c, s in enumerate(group.symbols)}
        agent += group.count
    return found


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
    weights = linear.of(linear.used())
    if weights.weights.nnz >= _FULL * np.prod(weights.weights.shape):
        dense = weights.weights.toarray()
        return {s.name: dense[:, c] for c, s in enumerate(weights.symbols)}
    owner = _numbers(groups)
    entries = weights.weights.tocoo()
    row, column = entries.coords
    named = np.array([owner[s] for s in weights.symbols])[column]
    found = {_ROW: row + 1, AGENT: named[:, 0]}
    if any(group.dim > 1 for group in groups if group.count == 1):
        found[_COMPONENT] = named[:, 1]
    return {**found, _WEIGHT: entries.data}
