"""Rows that are linear in named agents' states, kept as one weight matrix and not as formulas."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.formula.canonical import add, addends, coefficient, multiply
from sottovoce.formula.expression import ONE, Expression, Scalar, number
from sottovoce.formula.tape import Array

Matrix: TypeAlias = Any  # a SciPy sparse array, which has no types
Entries: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64], Array]  # rows, columns, values
Weights: TypeAlias = Any  # None, an array (r, count) or a compressed sparse row array of that shape


@final
class _LazySparse:
    """``scipy.sparse``, loaded when it is used: it is a quarter of an agent's memory."""

    def issparse(self, value: object) -> bool:
        """Whether a value is a sparse array."""
        return hasattr(value, "tocsr")

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("scipy.sparse"), name)


sparse = _LazySparse()


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowWeights:
    """A matrix in compressed sparse rows, without stored zeros, columns in order.

    Attributes:
        shape: rows and columns.
        data: the values.
        indices: their columns.
        indptr: where the values of each row begin, and the end.
    """

    shape: tuple[int, int]
    data: Array
    indices: NDArray[np.int64]
    indptr: NDArray[np.int64]

    @property
    def nnz(self) -> int:
        """How many values there are."""
        return int(self.data.size)

    def toarray(self) -> Array:
        """The matrix as a dense array."""
        dense = np.zeros(self.shape)
        row, column, values = entries_of(self)
        dense[row, column] = values
        return dense


def compressed(
    row: ArrayLike, column: ArrayLike, values: ArrayLike, shape: tuple[int, int]
) -> RowWeights:
    """Return the matrix with these entries, equal places added up."""
    r, c = np.asarray(row, dtype=np.int64), np.asarray(column, dtype=np.int64)
    order = np.lexsort((c, r))
    r, c, data = r[order], c[order], np.asarray(values, dtype=np.float64)[order]
    first = np.flatnonzero(np.diff(r, prepend=-1) | np.diff(c, prepend=-1))
    data = np.add.reduceat(data, first) if data.size else data
    kept = data != 0.0
    r, c = r[first][kept], c[first][kept]
    indptr = np.searchsorted(r, np.arange(shape[0] + 1))
    return RowWeights(shape=shape, data=data[kept], indices=c, indptr=indptr)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Linear:
    """Rows ``sum_c W[r, c] x_c`` over components of states.

    Attributes:
        symbols: the components, one per column.
        weights: W, (rows, components).
    """

    symbols: tuple[Expression, ...]
    weights: RowWeights

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.weights.shape[0]

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
        row, column, values = entries_of(self.weights)
        weights = compressed(row, column, factor * values, self.weights.shape)
        return Linear(symbols=self.symbols, weights=weights)

    def plus(self, other: Linear | None) -> Linear:
        """The sum of both, row by row."""
        if other is None:
            return self
        place = {s: c for c, s in enumerate(dict.fromkeys((*self.symbols, *other.symbols)))}
        both = zip(self.entries(place), other.entries(place), strict=True)
        row, column, values = (np.concatenate(part) for part in both)
        weights = compressed(row, column, values, (self.rows, len(place)))
        return Linear(symbols=tuple(place), weights=weights)

    def of(self, symbols: Collection[Expression]) -> Linear:
        """The part of these components."""
        kept = [s for s in self.symbols if s in symbols]
        entries = self.entries({s: c for c, s in enumerate(kept)})
        return Linear(symbols=tuple(kept), weights=compressed(*entries, (self.rows, len(kept))))

    def over(self, column: Mapping[Expression, int], columns: int) -> Matrix:
        """The same weights with a column for each of ``columns`` numbered components, sparse."""
        row, place, values = self.entries(column)
        return sparse.csr_array((values, (row, place)), shape=(self.rows, columns))

    def entries(self, column: Mapping[Expression, int]) -> Entries:
        """The rows, the columns and the values of the components that ``column`` numbers."""
        place = np.array([column.get(s, -1) for s in self.symbols], dtype=np.int64)
        row, at, values = entries_of(self.weights)
        kept = place[at] >= 0
        return row[kept], place[at][kept], values[kept]


def entries_of(weights: Weights) -> Entries:
    """Return the rows, the columns and the values of all weights that are not 0."""
    if isinstance(weights, np.ndarray):
        row, column = np.nonzero(weights)
        return row, column, weights[row, column]
    rows = np.arange(weights.shape[0])
    return np.repeat(rows, np.diff(weights.indptr)), weights.indices, weights.data


def linear_rows(symbols: Sequence[Expression], weights: Weights) -> Linear:
    """Return rows with these weights, a dense or sparse array (rows, components)."""
    if sparse.issparse(weights):
        found = weights.tocoo()
        entries = (found.row, found.col, found.data)
    else:
        entries = entries_of(np.asarray(weights, dtype=np.float64))
    rows, columns = weights.shape
    weights = compressed(*entries, (int(rows), int(columns)))
    return Linear(symbols=tuple(symbols), weights=weights)


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
    rows = np.repeat(np.arange(len(kept)), [len(weights) for weights, _ in kept])
    matrix = compressed(rows, columns, values, (len(kept), len(place)))
    return Linear(symbols=tuple(place), weights=matrix), [constant for _, constant in kept]


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
