"""Eigenvalues of a small symmetric matrix by Jacobi's rotations: the same bits everywhere."""

from __future__ import annotations

from math import sqrt

from sottovoce.problem.agents import Array

_SWEEPS = 30
_NEGLIGIBLE = 1e-17


def eigen(matrix: Array, values: Array, vectors: Array) -> None:
    """Fill ``matrix = vectors diag(values) vectors'``, row by row; the matrix is used up.

    Cyclic Jacobi rotations until every off-diagonal entry is rounding, small entries relative to
    their own diagonal: tiny eigenvalues of a graded matrix keep their digits.
    """
    size = values.size
    for i in range(size):
        for j in range(size):
            vectors[i * size + j] = 1.0 if i == j else 0.0
    for _ in range(_SWEEPS):
        turned = False
        for i in range(size - 1):
            for j in range(i + 1, size):
                off = matrix[i * size + j]
                if off * off <= _NEGLIGIBLE * _NEGLIGIBLE * abs(
                    matrix[i * size + i] * matrix[j * size + j]
                ):
                    continue
                turned = True
                half = 0.5 * (matrix[j * size + j] - matrix[i * size + i])
                tangent = off / (abs(half) + sqrt(half * half + off * off))
                if half < 0.0:
                    tangent = -tangent
                cosine = 1.0 / sqrt(1.0 + tangent * tangent)
                sine = tangent * cosine
                for k in range(size):
                    a, b = matrix[k * size + i], matrix[k * size + j]
                    matrix[k * size + i], matrix[k * size + j] = (
                        cosine * a - sine * b,
                        sine * a + cosine * b,
                    )
                for k in range(size):
                    a, b = matrix[i * size + k], matrix[j * size + k]
                    matrix[i * size + k], matrix[j * size + k] = (
                        cosine * a - sine * b,
                        sine * a + cosine * b,
                    )
                    a, b = vectors[k * size + i], vectors[k * size + j]
                    vectors[k * size + i], vectors[k * size + j] = (
                        cosine * a - sine * b,
                        sine * a + cosine * b,
                    )
                matrix[i * size + j] = 0.0
                matrix[j * size + i] = 0.0
        if not turned:
            break
    for i in range(size):
        values[i] = matrix[i * size + i]
