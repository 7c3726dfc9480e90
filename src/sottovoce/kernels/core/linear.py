"""Linear algebra in place, on matrices of a few rows: Cholesky, elimination, Jacobi's rotations."""

from . import plain as cython
from .plain import *

SWEEPS = 30  # of Jacobi's rotations; ten end almost always
NEGLIGIBLE = 1e-17  # relative: off-diagonal entries this small are rounding


def cholesky(n, matrix, least, fixes):
    """Replace the lower half by its Cholesky factor.

    A pivot below ``least[i]``, which rounding alone can make, becomes that; or, with ``fixes``, so
    large that the component does not move.
    """
    for i in range(n):
        for j in range(i + 1):
            left = matrix[i * n + j]
            for k in range(j):
                left -= matrix[i * n + k] * matrix[j * n + k]
            if i == j:
                below = 1e100 if fixes else sqrt(least[i])
                matrix[i * n + i] = sqrt(left) if left > least[i] else below
            else:
                matrix[i * n + j] = left / matrix[j * n + j]


def forward(n, factor, b):
    """``b := L^-1 b``."""
    for i in range(n):
        left = b[i]
        for k in range(i):
            left -= factor[i * n + k] * b[k]
        b[i] = left / factor[i * n + i]


def backward(n, factor, b):
    """``b := L'^-1 b``."""
    for i in range(n - 1, -1, -1):
        left = b[i]
        for k in range(i + 1, n):
            left -= factor[k * n + i] * b[k]
        b[i] = left / factor[i * n + i]


def eliminate(p, matrix, right):
    """Solve a linear system in place, exchanging rows for the largest pivot."""
    for i in range(p):
        best = i
        for k in range(i + 1, p):
            if fabs(matrix[k * p + i]) > fabs(matrix[best * p + i]):
                best = k
        if best != i:
            for j in range(i, p):
                swapped = matrix[i * p + j]
                matrix[i * p + j] = matrix[best * p + j]
                matrix[best * p + j] = swapped
            swapped = right[i]
            right[i] = right[best]
            right[best] = swapped
        if matrix[i * p + i] == 0.0:
            continue
        for k in range(i + 1, p):
            share = matrix[k * p + i] / matrix[i * p + i]
            for j in range(i + 1, p):
                matrix[k * p + j] -= share * matrix[i * p + j]
            right[k] -= share * right[i]
    for i in range(p - 1, -1, -1):
        for j in range(i + 1, p):
            right[i] -= matrix[i * p + j] * right[j]
        right[i] = right[i] / matrix[i * p + i] if matrix[i * p + i] != 0.0 else 0.0


def multiply_matrices(p, left, right, product):
    """Fill ``product = left right``."""
    for i in range(p):
        for j in range(p):
            value = 0.0
            for k in range(p):
                value += left[i * p + k] * right[k * p + j]
            product[i * p + j] = value


def add_spectral(p, vectors, values, matrix):
    """Add ``vectors diag(values) vectors'`` to a symmetric matrix."""
    for i in range(p):
        for j in range(i + 1):
            value = matrix[i * p + j]
            for k in range(p):
                value += vectors[i * p + k] * values[k] * vectors[j * p + k]
            matrix[i * p + j] = value
            matrix[j * p + i] = value


def eigen(size, matrix, values, vectors):
    """Fill ``matrix = vectors diag(values) vectors'``; the matrix is used up.

    Cyclic Jacobi rotations until every off-diagonal entry is rounding, small entries relative to
    their own diagonal: tiny eigenvalues of a graded matrix keep their digits.
    """
    for i in range(size):
        for j in range(size):
            vectors[i * size + j] = 1.0 if i == j else 0.0
    for _ in range(SWEEPS):
        rotated: cython.bint = False
        for i in range(size - 1):
            for j in range(i + 1, size):
                off = matrix[i * size + j]
                diagonal = matrix[i * size + i] * matrix[j * size + j]
                if off * off <= NEGLIGIBLE * NEGLIGIBLE * fabs(diagonal):
                    continue
                rotated = True
                rotate(size, matrix, vectors, i, j)
        if not rotated:
            break
    for i in range(size):
        values[i] = matrix[i * size + i]


def rotate(size, matrix, vectors, i, j):
    """The rotation of rows and columns i and j that makes entry (i, j) 0."""
    off = matrix[i * size + j]
    half = 0.5 * (matrix[j * size + j] - matrix[i * size + i])
    tangent = off / (fabs(half) + sqrt(half * half + off * off))
    if half < 0.0:
        tangent = -tangent
    cosine = 1.0 / sqrt(1.0 + tangent * tangent)
    sine = tangent * cosine
    for k in range(size):
        a, b = matrix[k * size + i], matrix[k * size + j]
        matrix[k * size + i] = cosine * a - sine * b
        matrix[k * size + j] = sine * a + cosine * b
    for k in range(size):
        a, b = matrix[i * size + k], matrix[j * size + k]
        matrix[i * size + k] = cosine * a - sine * b
        matrix[j * size + k] = sine * a + cosine * b
        a, b = vectors[k * size + i], vectors[k * size + j]
        vectors[k * size + i] = cosine * a - sine * b
        vectors[k * size + j] = sine * a + cosine * b
    matrix[i * size + j] = 0.0
    matrix[j * size + i] = 0.0
