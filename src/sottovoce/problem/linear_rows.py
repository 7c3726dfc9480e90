"""Rows that are linear in named agents' states, kept as one weight matrix and not as formulas."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from sottovoce.formula.canonical import add, addends, coefficient, multiply
from sottovoce.formula.expression import ONE, Expression, Scalar, number
from sottovoce.formula.tape import Array

Matrix: TypeAlias = Any  # a SciPy sparse array, which has no types
Weights: TypeAlias = Any  # None, an array (r, count) or a compressed sparse row array of that shape


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Linear:
    """Rows ``sum_c W[r, c] x_c`` over components of states.

    Attributes:
        symbols: the components, one per column.
        weights: W, a compressed sparse row array (rows, components) without stored zeros.
    """

    symbols: tuple[Expression, ...]
    weights: Matrix

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.weights.shape[0])

    def formula(self, row: int) -> Expression:
        """Row ``row``, from 0, written out."""
        begin, end = self.weights.indptr[row : row + 2]
        columns, values = self.weights.indices[begin:end], self.weights.data[begin:end]
        pairs = zip(columns, values, strict=True)
        return add(*(multiply(number(w), self.symbols[c]) for c, w in pairs))

    def only(self, row: int) -> Linear:
        """Row ``row``, from 0, with the components that it names."""
        begin, end = self.weights.indptr[row : row + 2]
        symbols = [self.symbols[c] for c in self.weights.indices[begin:end]]
        return linear_rows(symbols, self.weights.data[np.newaxis, begin:end])

    def used(self) -> set[Expression]:
        """The components that some row names."""
        return {self.symbols[c] for c in np.unique(self.weights.indices)}

    def times(self, factor: float) -> Linear:
        """The same rows, multiplied by a number."""
        return linear_rows(self.symbols, factor * self.weights)

    def plus(self, other: Linear | None) -> Linear:
        """The sum of both, row by row."""
        if other is None:
            return self
        column = {s: c for c, s in enumerate(dict.fromkeys((*self.symbols, *other.symbols)))}
        both = self.over(column, len(column)) + other.over(column, len(column))
        return linear_rows(list(column), both)

    def of(self, symbols: Collection[Expression]) -> Linear:
        """The part of these components."""
        kept = [c for c, s in enumerate(self.symbols) if s in symbols]
        return linear_rows([self.symbols[c] for c in kept], self.weights[:, kept])

    def over(self, column: Mapping[Expression, int], columns: int) -> Matrix:
        """The same weights with a column for each of ``columns`` numbered components."""
        places: NDArray[np.int64] = np.array([column[s] for s in self.symbols], dtype=np.int64)
        shape = (self.rows, columns)
        moved = (self.weights.data, places[self.weights.indices], self.weights.indptr)
        return sparse.csr_array(moved, shape=shape)


def entries_of(weights: Weights) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
    """Return the rows, the columns and the values of all weights that are not 0."""
    if isinstance(weights, np.ndarray):
        row, column = np.nonzero(weights)
        return row, column, weights[row, column]
    rows = np.arange(weights.shape[0])
    return np.repeat(rows, np.diff(weights.indptr)), weights.indices, weights.data


def linear_rows(symbols: Sequence[Expression], weights: Any) -> Linear:
    """Return rows with these weights, a dense or sparse array (rows, components)."""
    matrix = sparse.csr_array(weights, dtype=np.float64, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return Linear(symbols=tuple(symbols), weights=matrix)


def read_linear(formulas: Sequence[Expression]) -> tuple[Linear, list[float]] | None:
    """Read formulas as linear rows and constants; None if one is not, or has other numbers.

    Only what float64 holds to the last bit is read: a third stays the third it is.
    """
    read = [coefficients(formula) for formula in formulas]
    if not all(found is not None for found in read):
        return None
    kept = [found for found in read if found is not None]
    place: dict[Expression, int] = {}
    for weights, _ in kept:
        for s in weights:
            place.setdefault(s, len(place))
    columns = [place[s] for weights, _ in kept for s in weights]
    values = [w for weights, _ in kept for w in weights.values()]
    ends = np.cumsum([0, *(len(weights) for weights, _ in kept)])
    shape = (len(kept), len(place))
    matrix = sparse.csr_array((values, columns, ends), shape=shape)
    return linear_rows(list(place), matrix), [constant for _, constant in kept]


def coefficients(formula: Expression) -> tuple[dict[Expression, float], float] | None:
    """The weights and the constant of ``sum_c w_c x_c + constant``; None if it is no such sum."""
    weights: dict[Expression, float] = {}
    constant = 0.0
    for term in addends(formula):
        scale, rest = coefficient(term)
        value = exact_float(scale)
        if value is None or not (rest is ONE or rest.is_symbol):
            return None
        if rest is ONE:
            constant = value
        else:
            weights[rest] = value
    return weights, constant


def exact_float(value: Scalar) -> float | None:
    """A number in float64 if that holds it to the last bit."""
    near = float(value)
    return near if near == value else None
