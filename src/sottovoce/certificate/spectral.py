"""Norms rounded up: of vectors, of matrices of numbers and of matrices of expressions.

A computed singular value can lie below the true one (NumPy returns 1.9999999999999998 for 2). Here
a computed decomposition is a guess M ~ U S V', and what the guess misses is bounded.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from sottovoce.certificate.branch import Objective
from sottovoce.certificate.forms import exact
from sottovoce.certificate.objective import Component
from sottovoce.certificate.supremum import (
    Box,
    Point,
    Supremum,
    Task,
    absolute_sum,
    as_stated,
    bound_each,
    mean_upper,
    rewritten,
    settle,
    supremum,
)
from sottovoce.errors import InputError
from sottovoce.formula.expression import ZERO, Expression, exactly
from sottovoce.formula.intervals import BoolArray, FloatArray, Interval, interval, root

_ROUNDING = 2.0**-53
_UNDERFLOW = 2.0**-1000  # more than all that numbers below 1 can lose by underflow


def euclidean_norm_upper(vector: npt.ArrayLike) -> float:
    """Return an upper bound of sqrt(sum_i v_i^2), at most a few units in the last place above it.

    Args:
        vector: The numbers v_i, in an array of any shape.
    """
    numbers = _finite(vector, "vector").ravel()
    scale = _scale(numbers)
    squares = (interval(numbers, numbers) * interval(1 / scale, 1 / scale)).power(2)
    terms = squares.upper.tolist()
    total = math.fsum(terms)
    if math.fsum([*terms, -total]) > 0:
        total = math.nextafter(total, math.inf)
    return float((root(interval(0.0, total)) * interval(scale, scale)).upper)


def spectral_norm_upper(matrix: npt.ArrayLike) -> float:
    """Return an upper bound of the largest singular value, tight to about 1e-12 relatively.

    |M|_2 <= s_max |U|_2 |V|_2 + |M - U S V'|_F  and  |U|_2^2 <= 1 + |U'U - I|_F

    for whatever U, S, V were computed.

    Args:
        matrix: M, of shape (m, n).
    """
    numbers = _finite(matrix, "matrix")
    if numbers.ndim != 2:
        raise InputError(f"matrix must have two dimensions, got shape {numbers.shape}")
    return float(singular_bounds(numbers)[1]) if numbers.size else 0.0


def singular_bounds(matrices: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Enclose the largest singular value of each matrix of a stack (..., m, n)."""
    scale = _scale(matrices, axis=(-2, -1))
    scaled = matrices / scale[..., None, None]
    u, s, vt = np.linalg.svd(scaled, full_matrices=False)
    rank = s.shape[-1]
    guess = (u * s[..., None, :]) @ vt
    # A product of sums of k terms errs by at most k + 1 roundings of the product of the moduli.
    doubt = 2 * (rank + 2) * _ROUNDING * ((np.abs(u) * s[..., None, :]) @ np.abs(vt))
    missed = _frobenius(np.abs(scaled - guess) * (1 + 2 * _ROUNDING) + doubt)
    missed = np.where(s[..., 0] > 0, missed, 0.0)  # exactly 0 for a matrix of zeros
    skew = [_skewness(basis) for basis in (u, np.swapaxes(vt, -1, -2))]
    grown, shrunk = ((1 + sign * skew[0]) * (1 + sign * skew[1]) for sign in (1, -1))
    upper = (s[..., 0] * np.sqrt(grown) + missed) * (1 + 16 * _ROUNDING)
    lower = (s[..., 0] * np.sqrt(np.maximum(shrunk, 0)) - missed) * (1 - 16 * _ROUNDING)
    return (
        np.maximum(np.nextafter(lower * scale, -np.inf), 0),
        np.where(upper > 0, np.nextafter(upper * scale, np.inf), 0.0),
    )


def _skewness(basis: FloatArray) -> FloatArray:
    """Bound |B'B - I|_F for the columns of B."""
    length, count = basis.shape[-2:]
    gram = np.swapaxes(basis, -1, -2) @ basis
    size = np.swapaxes(np.abs(basis), -1, -2) @ np.abs(basis)
    doubt = 2 * (length + 2) * _ROUNDING * size
    return _frobenius(np.abs(gram - np.eye(count)) * (1 + 2 * _ROUNDING) + doubt) + _UNDERFLOW


def _frobenius(matrices: FloatArray) -> FloatArray:
    """Bound the Frobenius norm of nonnegative matrices from above."""
    terms = matrices.shape[-1] * matrices.shape[-2]
    total = np.sqrt(np.sum(np.square(matrices), axis=(-2, -1)))
    return np.asarray(total * (1 + (terms + 4) * _ROUNDING * 2) + _UNDERFLOW)


def _finite(numbers: npt.ArrayLike, name: str) -> FloatArray:
    array = np.asarray(numbers, dtype=np.float64)
    if not np.all(np.isfinite(array)):
        raise InputError(f"{name} must hold finite numbers, got {array[~np.isfinite(array)][0]}")
    return array


def _scale(numbers: FloatArray, axis: tuple[int, int] | None = None) -> FloatArray:
    """Return powers of two by which to divide so that squares neither overflow nor vanish."""
    _, exponent = np.frexp(np.max(np.abs(numbers), axis=axis, initial=0.0))
    return np.asarray(np.ldexp(1.0, np.clip(exponent, -1000, 1000)))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SpectralNorm:
    """The objective |J|_2 of a matrix J of components, given row by row."""

    components: tuple[Component, ...]
    columns: int

    @property
    def convex(self) -> BoolArray:
        """A norm of affine functions is convex."""
        affine: BoolArray = np.all([component.affine for component in self.components], axis=0)
        return affine

    def bound(self, box: Interval) -> tuple[FloatArray, Interval]:
        """Return upper bounds, and slopes that tell only how strongly each variable moves J."""
        values, slopes = zip(*(component.over(box) for component in self.components), strict=True)
        _, upper = enclosed_norm(values, self.columns)
        steepness = np.sum([slope.magnitude for slope in slopes], axis=0)
        return upper, interval(-steepness, steepness)

    def value(self, points: FloatArray) -> FloatArray:
        """Return lower bounds of values, as `Objective` asks."""
        return enclosed_norm([c.at(points) for c in self.components], self.columns)[0]


def enclosed_norm(values: Sequence[Interval], columns: int) -> tuple[FloatArray, FloatArray]:
    """Bound the spectral norm of matrices known by intervals, given row by row.

    | |C|_2 - |J|_2 | <= |D|_2 where J lies within D of its centre C; also |J|_2 <= | |J| |_2.
    """
    lower, upper = (
        np.stack([getattr(value, end) for value in values], axis=-1).reshape(
            -1, len(values) // columns, columns
        )
        for end in ("lower", "upper")
    )
    size = np.maximum(-lower, upper)
    known = np.all(np.isfinite(size), axis=(-2, -1))
    lower, upper, size = (np.where(known[:, None, None], m, 0.0) for m in (lower, upper, size))
    centre = lower / 2 + upper / 2
    radius = np.nextafter(np.maximum(upper - centre, centre - lower), np.inf)
    least, most = singular_bounds(centre)
    _, spread = singular_bounds(np.where(lower == upper, 0.0, radius))
    _, modulus = singular_bounds(size)
    most = np.minimum(np.nextafter(most + spread, np.inf), modulus)
    least = np.nextafter(least - spread, -np.inf)
    return np.where(known, np.maximum(least, 0.0), 0.0), np.where(known, most, np.inf)


@exactly()
def spectral_supremum(
    jacobian: Sequence[Sequence[Expression]],
    box: Box,
    *,
    tolerance: float = 0.005,
    budget: int | None = None,
) -> Supremum:
    """Bound the supremum over a box of the spectral norm of a matrix of expressions.

    sup_{x in box} |J(x)|_2 <= upper

    Args:
        jacobian: The rows of J.
        box: Finite bounds for each symbol.
        tolerance: The search ends when upper <= (1 + tolerance) * found.
        budget: The number of boxes a search may bound; by default what takes a few seconds.

    Raises:
        CertificateError: J is undefined somewhere, or no finite bound was found.
    """
    rows = [[exact(entry) for entry in row] for row in jacobian]
    if len({len(row) for row in rows}) != 1 or not rows[0]:
        raise InputError(f"jacobian must be a matrix, got rows of {[len(row) for row in rows]}")
    filled = [row for row in rows if not _zeros(row)] or rows[:1]
    columns = [c for c in zip(*filled, strict=True) if not _zeros(c)] or [(ZERO,)]
    exprs = [entry for row in zip(*columns, strict=True) for entry in row]
    if len(columns) in (1, len(exprs)):
        return supremum(exprs, box, tolerance=tolerance, budget=budget)

    def row_by_row(task: Task, _: float) -> tuple[float, list[Point]]:
        return _row_by_row(task, columns)

    def one_by_one(task: Task, _: float) -> tuple[float, list[Point]]:
        return _one_by_one(task, columns)

    def objectives(components: Sequence[Component], _: Interval) -> list[Objective]:
        return [SpectralNorm(components=tuple(components), columns=len(columns))]

    def norm_at(values: Sequence[Interval]) -> float:
        return float(enclosed_norm(values, len(columns))[0][0])

    facts = (frozenset[Expression](),) * len(exprs)
    task = Task(tuple(exprs), facts, box, tolerance, budget, objectives)
    return settle(task, (as_stated, row_by_row, one_by_one, rewritten), norm_at)


def _zeros(entries: Sequence[Expression]) -> bool:
    return all(entry.is_zero for entry in entries)


def _row_by_row(task: Task, columns: Sequence[Sequence[Expression]]) -> tuple[float, list[Point]]:
    """Bound the rows of each set of variables by themselves: |(A; B)|_2^2 <= |A|_2^2 + |B|_2^2."""
    groups: defaultdict[frozenset[Expression], list[Sequence[Expression]]] = defaultdict(list)
    for row in zip(*columns, strict=True):
        groups[frozenset[Expression]().union(*(entry.symbols for entry in row))].append(row)
    if len(groups) == 1:
        return np.inf, []
    bounds = [
        spectral_supremum(rows, task.box, tolerance=task.tolerance, budget=task.budget)
        for rows in groups.values()
    ]
    return euclidean_norm_upper([bound.upper for bound in bounds]), [bound.at for bound in bounds]


def _one_by_one(task: Task, columns: Sequence[Sequence[Expression]]) -> tuple[float, list[Point]]:
    """Bound each entry by itself, and the absolute sums of rows and columns where signs are known.

    |J|_2 <= | sup |J| |_2  and  |J|_2^2 <= |J|_1 |J|_inf, the largest column sum times row sum.
    """
    bounds = bound_each(task, task.exprs)
    upper = spectral_norm_upper([[bounds[entry].upper for entry in line] for line in columns])
    lines = (columns, [*zip(*columns, strict=True)])
    sums = [
        [total for line in group if (total := absolute_sum(line, task.box)) is not None]
        for group in lines
    ]
    if all(len(totals) == len(group) for totals, group in zip(sums, lines, strict=True)):
        bounds |= bound_each(task, [total for totals in sums for total in totals])
        upper = min(upper, mean_upper(*(max(bounds[t].upper for t in totals) for totals in sums)))
    return upper, [bound.at for bound in bounds.values()]
