"""Rows that are linear in named agents' states, kept as one weight matrix and not as formulas."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

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
class Linear:
    """Rows ``sum_c W[r, c] x_c`` over components of states: the weights that are not 0."""

    symbols: tuple[Expression, ...]  # the components, one per column
    rows: int  # how many rows there are
    row: NDArray[np.int64]  # the row of each weight, increasing
    column: NDArray[np.int64]  # its column, increasing within a row
    values: Array  # the weights

    @property
    def indptr(self) -> NDArray[np.int64]:
        """Where the weights of each row begin, and the end."""
        return np.searchsorted(self.row, np.arange(self.rows + 1))

    def formula(self, row: int) -> Expression:
        """Row ``row``, from 0, written out."""
        span = self._span(row)
        pairs = zip(self.values[span], self.column[span], strict=True)
        return add(*(multiply(number(w), self.symbols[c]) for w, c in pairs))

    def only(self, row: int) -> Linear:
        """Row ``row``, from 0, with the components that it names."""
        span = self._span(row)
        symbols = [self.symbols[c] for c in self.column[span]]
        return linear_rows(symbols, self.values[np.newaxis, span])

    def _span(self, row: int) -> slice:
        return slice(*np.searchsorted(self.row, (row, row + 1)))

    def used(self) -> set[Expression]:
        """The components that some row names."""
        return {self.symbols[c] for c in np.unique(self.column)}

    def times(self, factor: float) -> Linear:
        """The same rows, multiplied by a number."""
        return linear_of(self.symbols, self.rows, (self.row, self.column, factor * self.values))

    def plus(self, other: Linear | None) -> Linear:
        """The sum of both, row by row."""
        if other is None:
            return self
        place = {s: c for c, s in enumerate(dict.fromkeys((*self.symbols, *other.symbols)))}
        both = zip(self.entries(place), other.entries(place), strict=True)
        row, column, values = (np.concatenate(part) for part in both)
        return linear_of(place, self.rows, (row, column, values))

    def select(self, symbols: Collection[Expression], *, by_name: bool = False) -> Linear:
        """The part of these components, in this order or in that of their names."""
        selected = [s for s in self.symbols if s in symbols]
        selected = sorted(selected, key=lambda s: s.name) if by_name else selected
        return linear_of(selected, self.rows, self.entries({s: c for c, s in enumerate(selected)}))

    def matrix(self, column: Mapping[Expression, int], columns: int) -> Matrix:
        """The same weights with a column for each of ``columns`` numbered components, sparse."""
        row, place, values = self.entries(column)
        return sparse.csr_array((values, (row, place)), shape=(self.rows, columns))

    def entries(self, column: Mapping[Expression, int]) -> Entries:
        """The rows, the columns and the values of the components that ``column`` numbers."""
        place = np.array([column.get(s, -1) for s in self.symbols], dtype=np.int64)[self.column]
        selected = place >= 0
        return self.row[selected], place[selected], self.values[selected]


def linear_of(symbols: Iterable[Expression], rows: int, entries: Entries) -> Linear:
    """Return rows with these weights in any order; equal places are added up."""
    row, column, values = (np.asarray(part) for part in entries)
    order = np.lexsort((column, row))
    row, column, values = row[order], column[order], values[order]
    first = np.flatnonzero(np.diff(row, prepend=-1) | np.diff(column, prepend=-1))
    values = np.add.reduceat(values, first) if values.size else values
    selected = values != 0.0
    return Linear(
        symbols=tuple(symbols),
        rows=rows,
        row=row[first][selected],
        column=column[first][selected],
        values=values[selected],
    )


def entries_of(weights: Weights) -> Entries:
    """Return the rows, the columns and the values of all weights that are not 0."""
    if isinstance(weights, np.ndarray):
        row, column = np.nonzero(weights)
        return row, column, weights[row, column]
    rows = np.arange(weights.shape[0])
    return np.repeat(rows, np.diff(weights.indptr)), weights.indices, weights.data


def linear_rows(symbols: Sequence[Expression], weights: Weights) -> Linear:
    """Return rows with these weights, a dense or compressed sparse array (rows, components)."""
    return linear_of(symbols, int(weights.shape[0]), entries_of(weights))


def read_linear(formulas: Sequence[Expression]) -> tuple[Linear, list[float]] | None:
    """Read formulas as linear rows and constants; None if one is not, or has other numbers.

    Only what float64 holds to the last bit is read: a third stays the third it is.
    """
    place: dict[Expression, int] = {}
    row, column, values, constants = [], [], [], []
    for r, formula in enumerate(formulas):
        read = coefficients(formula)
        if read is None:
            return None
        for s, weight in read[0].items():
            row.append(r)
            column.append(place.setdefault(s, len(place)))
            values.append(weight)
        constants.append(read[1])
    entries = np.array(row, dtype=np.int64), np.array(column, dtype=np.int64), np.array(values)
    return linear_of(place, len(constants), entries), constants


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
    rounded = float(value)
    return rounded if rounded == value else None
