"""Norms rounded outwards: of vectors and of matrices, of numbers and of intervals.

A computed singular value can lie below the true one (NumPy returns 1.9999999999999998 for 2). Here
a computed decomposition is a guess M ~ U S V', and what the guess misses is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add

import numpy as np
import numpy.typing as npt

from sottovoce.errors import InputError
from sottovoce.formula.intervals import FloatArray, Interval, interval, root

_ROUNDING = 2.0**-53
_UNDERFLOW = 2.0**-1000  # more than all that numbers below 1 can lose by underflow


def norm_of(values: Sequence[Interval], columns: int = 1) -> tuple[FloatArray, FloatArray]:
    """Bound the spectral norm of matrices known by intervals, row by row; of a vector its length.

    | |C|_2 - |J|_2 | <= |D|_2 where J lies within D of its centre C; also |J|_2 <= | |J| |_2.
    """
    if columns == 1:
        length = euclidean(values)
        return length.lower, length.upper
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


def euclidean(values: Sequence[Interval]) -> Interval:
    """Enclose sqrt(sum_i v_i^2), scaled by a power of two so that no square overflows."""
    largest = reduce(np.maximum, (value.magnitude for value in values))
    exponent = np.clip(np.frexp(largest)[1], -1000, 1000)
    shrink, grow = (np.ldexp(1.0, sign * exponent) for sign in (-1, 1))
    squares = ((value * interval(shrink, shrink)).power(2) for value in values)
    return root(reduce(add, squares)) * interval(grow, grow)


def spectral_norm_upper(matrix: npt.ArrayLike) -> float:
    """Return an upper bound of the largest singular value, tight to about 1e-12 relatively.

    |M|_2 <= s_max |U|_2 |V|_2 + |M - U S V'|_F  and  |U|_2^2 <= 1 + |U'U - I|_F

    for whatever U, S, V were computed.

    Args:
        matrix: M, of shape (m, n).
    """
    numbers = np.asarray(matrix, dtype=np.float64)
    if numbers.ndim != 2 or not np.all(np.isfinite(numbers)):
        raise InputError(f"matrix must hold finite numbers in two dimensions, got {matrix!r:.60}")
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


def _scale(numbers: FloatArray, axis: tuple[int, int] | None = None) -> FloatArray:
    """Return powers of two by which to divide so that squares neither overflow nor vanish."""
    _, exponent = np.frexp(np.max(np.abs(numbers), axis=axis, initial=0.0))
    return np.asarray(np.ldexp(1.0, np.clip(exponent, -1000, 1000)))
