"""A quadratic form over several agents as squares of sums, and what is separable besides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from sottovoce.formula.canonical import add, multiply
from sottovoce.formula.connected import connected
from sottovoce.formula.derive import Matrix, QuadraticForm, definiteness, quadratic_form
from sottovoce.formula.expression import Expression, number, scalar
from sottovoce.problem.agents import Array

_ROOM = Fraction(1, 2**32)  # how much more weight squares get whose numbers had to be rounded
_DIGITS = 2**40  # factors are rounded to multiples of one over this, and what is lost is paid for


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Squares:
    """``g(x) <= sum_k w_k (a_k'x - m_k)^2 + rest(x) + c``, an equality up to rounding upwards.

    Attributes:
        sums: ``a_k'x``.
        weights: w_k, positive.
        centres: m_k.
        rest: a sum of convex terms that name one agent each; 0 if nothing is left.
        constant: c.
    """

    sums: tuple[Expression, ...]
    weights: tuple[Fraction, ...]
    centres: tuple[Fraction, ...]
    rest: Expression
    constant: Fraction

    def __len__(self) -> int:
        return len(self.sums) + (not self.rest.is_zero)


def squares(g: Expression, owners: Mapping[Expression, str]) -> Squares | None:
    """Write ``g = x'Qx + q'x + c`` as few squares of sums and a separable rest.

    Two ways are tried and the one with fewer sums is taken: all of Q as squares, completed so that
    nothing is left; and Q less as much of its agents' own blocks as leaves it semidefinite. The
    first is exact rational arithmetic (``Q = L D L'``); the second is rounded so that the result is
    never below g.

    Returns:
        None if g is not such a form, not convex, or large.
    """
    form = quadratic_form(g)
    if form is None or not any(map(any, form.quadratic)):
        return None
    found = [s for s in (_completed(form), _split(form, owners)) if s is not None]
    return min(found, key=len) if found else None


def weighted_sum(weights: Sequence[Any], symbols: Sequence[Expression]) -> Expression:
    """Return ``sum_i w_i x_i``."""
    return add(*(multiply(number(w), s) for w, s in zip(weights, symbols, strict=True) if w))


def _completed(form: QuadraticForm) -> Squares | None:
    """``Q = L D L'`` exactly, with the linear part inside the squares as far as it fits."""
    factors = ldl(form.quadratic)
    if factors is None:
        return None
    vectors, weights = factors
    # q = 2 sum_k w_k m_k (-a_k) + left over: the a_k form a triangle, solved from its pivots.
    left, centres = list(form.linear), []
    for v, w in zip(vectors, weights, strict=True):
        pivot = next(i for i, entry in enumerate(v) if entry)
        m = -left[pivot] / (2 * w * v[pivot])
        left = [a + 2 * w * m * b for a, b in zip(left, v, strict=True)]
        centres.append(m)
    if any(left):
        # What does not fit is one more sum, which might as well be the whole linear part.
        left, centres = form.linear, [Fraction(0)] * len(vectors)
    constant = form.constant - sum(w * m**2 for w, m in zip(weights, centres, strict=True))
    if not _exact((*weights, *centres, constant, *(entry for v in vectors for entry in v))):
        vectors = [[_rounded(entry) for entry in v] for v in vectors]
        centres = [_rounded(m) for m in centres]
        weights = [_rounded(w * (1 + _ROOM)) for w in weights]
        shifts = sum(w * m**2 for w, m in zip(weights, centres, strict=True))
        constant = _rounded(constant + _ROOM * (abs(constant) + shifts))
        if not _above(form, vectors, weights, centres, constant, left):
            return None
    return Squares(
        sums=tuple(weighted_sum(v, form.symbols) for v in vectors),
        weights=tuple(weights),
        centres=tuple(centres),
        rest=weighted_sum(left, form.symbols),
        constant=constant,
    )


def _exact(values: Iterable[Fraction]) -> bool:
    """Whether formulas hold these numbers as they are."""
    return all(scalar(value) == value for value in values)


def _rounded(value: Fraction) -> Fraction:
    return Fraction(scalar(value))


def _above(
    form: QuadraticForm,
    vectors: Matrix,
    weights: Sequence[Fraction],
    centres: Sequence[Fraction],
    constant: Fraction,
    rest: Sequence[Fraction],
) -> bool:
    """Whether rounded squares are nowhere below the form, in exact arithmetic."""
    left = [[-entry for entry in row] for row in form.bordered]
    for v, w, m in zip(vectors, weights, centres, strict=True):
        full = [*v, -m]
        for row, a in zip(left, full, strict=True):
            row[:] = [entry + w * a * b for entry, b in zip(row, full, strict=True)]
    for i, entry in enumerate(rest):
        left[i][-1] += entry / 2
        left[-1][i] += entry / 2
    left[-1][-1] += constant
    return definiteness(left) >= 0


def ldl(Q: Matrix) -> tuple[Matrix, list[Fraction]] | None:
    """``Q = sum_k w_k a_k a_k'`` with w_k > 0, each a_k zero before its pivot; None if not >= 0."""
    left = [list(row) for row in Q]
    vectors, weights = [], []
    for i, row in enumerate(left):
        pivot = row[i]
        if pivot < 0 or (pivot == 0 and any(row)):
            return None
        if pivot == 0:
            continue
        v = [entry / pivot for entry in row]
        vectors.append(v)
        weights.append(pivot)
        for j in range(i + 1, len(left)):
            if row[j]:
                left[j] = [a - row[j] * share for a, share in zip(left[j], v, strict=True)]
    return vectors, weights


def _shares(dense: Array, own: Array) -> Array:
    """How much of its own block each state gives to the rest: all that its partners allow."""
    shares = np.zeros(len(dense))
    label = connected(len(dense), *np.nonzero((dense != 0) | own))
    for part in range(label.max() + 1):
        at = np.ix_(label == part, label == part)
        inverse = np.linalg.inv(np.linalg.cholesky(np.where(own, dense, 0.0)[at]))
        least = np.linalg.eigvalsh(inverse @ dense[at] @ inverse.T)[0]
        shares[label == part] = np.clip(least, 0.0, 1.0)
    return shares


def _split(form: QuadraticForm, owners: Mapping[Expression, str]) -> Squares | None:
    """Take as much of the agents' own blocks out of Q as leaves it semidefinite."""
    Q, x = form.quadratic, form.symbols
    own = np.array([[owners[a] == owners[b] for b in x] for a in x])
    dense: Array = np.array(Q, dtype=np.float64)
    try:
        shares = _shares(dense, own)
    except np.linalg.LinAlgError:
        return None  # an agent's own block is not definite
    sizes, vectors = np.linalg.eigh(dense - shares[:, np.newaxis] * np.where(own, dense, 0.0))
    kept = sizes > 1e-9 * max(float(np.abs(dense).max()), 0.0)
    factor = np.round(vectors[:, kept] * np.sqrt(sizes[kept]) * _DIGITS)
    A = [[Fraction(int(entry), _DIGITS) for entry in row] for row in factor.tolist()]
    rest = _own_part(Q, A, own)
    if definiteness(rest) < 0:
        return None
    products = [
        multiply(number(entry), x[i], x[j])
        for i, row in enumerate(rest)
        for j, entry in enumerate(row)
        if entry
    ]
    sums = tuple(weighted_sum(column, x) for column in zip(*A, strict=True))
    return Squares(
        sums=sums,
        weights=(Fraction(1),) * len(sums),
        centres=(Fraction(0),) * len(sums),
        rest=add(*products, weighted_sum(form.linear, x)),
        constant=form.constant,
    )


def _own_part(Q: Matrix, A: Matrix, own: Array) -> Matrix:
    """What is left of the agents' own blocks of ``Q - A A'``.

    What rounding took away or added across agents is covered by a little more of |x|^2.
    """
    rest = [[Fraction(0)] * len(Q) for _ in Q]
    for i, row in enumerate(Q):
        for j, entry in enumerate(row):
            left = entry - sum(a * b for a, b in zip(A[i], A[j], strict=True))
            near = Fraction(float(left)) if own[i, j] else Fraction(0)
            rest[i][j] += near
            rest[i][i] += abs(left - near)
    for i, row in enumerate(rest):
        if not _exact([row[i]]):
            row[i] = Fraction(float(np.nextafter(float(row[i]), np.inf)))
    return rest
