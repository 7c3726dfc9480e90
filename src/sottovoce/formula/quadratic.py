"""Quadratic formulas in exact arithmetic: their matrices, and whether these are semidefinite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, reduce
from math import lcm
from typing import TypeAlias

import numpy as np

from sottovoce.formula.canonical import in_order, is_integer
from sottovoce.formula.expression import Expression, Op

Monomial: TypeAlias = tuple[int, ...]
"""Which symbols are multiplied, in order; x^2 names one twice."""

Matrix: TypeAlias = list[list[Fraction]]

_MAX_SYMBOLS = 200  # a formula of more is left alone


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QuadraticForm:
    """``x'Qx + q'x + c``.

    Attributes:
        symbols: x.
        quadratic: Q, symmetric.
        linear: q.
        constant: c.
    """

    symbols: tuple[Expression, ...]
    quadratic: Matrix
    linear: list[Fraction]
    constant: Fraction

    @property
    def bordered(self) -> Matrix:
        """M with ``x'Qx + q'x + c = [x; 1]' M [x; 1]``."""
        q = [entry / 2 for entry in self.linear]
        rows = [[*row, entry] for row, entry in zip(self.quadratic, q, strict=True)]
        return [*rows, [*q, self.constant]]


@lru_cache(maxsize=1 << 10)
def quadratic_form(expr: Expression) -> QuadraticForm | None:
    """Read a canonical formula as a polynomial of degree two at most, doubles as they are.

    Returns:
        None if it is none, or has many symbols.
    """
    symbols = tuple(in_order(expr.symbols))
    n = len(symbols)
    if not 0 < n <= _MAX_SYMBOLS:
        return None
    terms = _monomials(expr, {s: i for i, s in enumerate(symbols)})
    if terms is None:
        return None
    Q = [[Fraction(0)] * n for _ in range(n)]
    q = [Fraction(0)] * n
    for at, c in terms.items():
        if len(at) == 2:
            Q[at[0]][at[1]] += c / 2
            Q[at[1]][at[0]] += c / 2
        elif len(at) == 1:
            q[at[0]] += c
    return QuadraticForm(
        symbols=symbols, quadratic=Q, linear=q, constant=terms.get((), Fraction(0))
    )


def _monomials(
    expr: Expression, place: Mapping[Expression, int]
) -> dict[Monomial, Fraction] | None:
    """Multiply a formula out; None if its degree is more than two."""
    if expr.op == Op.SYMBOL:
        return {(place[expr],): Fraction(1)}
    if expr.op == Op.NUMBER:
        return {(): Fraction(expr.value)}
    if expr.op == Op.POW:
        if not is_integer(expr.value) or expr.value < 0:
            return None
        parts = [_monomials(expr.args[0], place)] * int(expr.value)
    elif expr.op in (Op.ADD, Op.MUL):
        parts = [_monomials(a, place) for a in expr.args]
    else:
        return None
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    if expr.op == Op.ADD:
        return _added(known)
    degrees = sum(max(map(len, part), default=0) for part in known)
    return reduce(_multiplied, known) if degrees <= 2 else None


def _added(parts: Sequence[Mapping[Monomial, Fraction]]) -> dict[Monomial, Fraction]:
    total: dict[Monomial, Fraction] = {}
    for part in parts:
        for at, c in part.items():
            total[at] = total.get(at, Fraction(0)) + c
    return {at: c for at, c in total.items() if c}


def _multiplied(
    left: Mapping[Monomial, Fraction], right: Mapping[Monomial, Fraction]
) -> dict[Monomial, Fraction]:
    return _added(
        [{tuple(sorted((*a, *b))): c * d} for a, c in left.items() for b, d in right.items()]
    )


def definiteness(matrix: Sequence[Sequence[Fraction]]) -> int:
    """Return 1 if a symmetric rational matrix is positive definite, 0 if semidefinite, else -1.

    Floats spare the labour where they prove it: by a Cholesky factorisation of the matrix less a
    bound on its rounding errors (Rump 2006), or by a direction v with ``v' matrix v < 0`` exactly.
    Otherwise by elimination without fractions (Bareiss) on the diagonal, in integers: the sign of
    each pivot is the sign of the pivot in ``matrix = L D L'``.
    """
    near = np.array(matrix, dtype=np.float64)
    if np.isfinite(near).all():
        try:
            margin = 8.0 * (len(near) + 2) * np.finfo(np.float64).eps * abs(float(np.trace(near)))
            np.linalg.cholesky(near - (margin + 1e-290) * np.eye(len(near)))
            return 1
        except np.linalg.LinAlgError:
            pass
        lowest = [Fraction(v) for v in np.linalg.eigh(near)[1][:, 0].tolist()]
        if sum(v * _dot(row, lowest) for v, row in zip(lowest, matrix, strict=True)) < 0:
            return -1
    return _eliminated(matrix)


def _dot(row: Sequence[Fraction], v: Sequence[Fraction]) -> Fraction:
    return sum((a * b for a, b in zip(row, v, strict=True)), Fraction(0))


def _eliminated(matrix: Sequence[Sequence[Fraction]]) -> int:
    scale = lcm(*(entry.denominator for row in matrix for entry in row))
    rest = [[int(entry * scale) for entry in row] for row in matrix]
    last = 1
    while rest:
        pivots = [row[k] for k, row in enumerate(rest)]
        if min(pivots) < 0:
            return -1
        at = pivots.index(max(pivots))
        pivot = pivots[at]
        if pivot == 0:
            return 0 if not any(map(any, rest)) else -1
        keep = [k for k in range(len(rest)) if k != at]
        rest = [
            [(pivot * rest[i][j] - rest[i][at] * rest[at][j]) // last for j in keep] for i in keep
        ]
        last = pivot
    return 1
