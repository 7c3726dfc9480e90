"""A quadratic form over several agents as squares of sums, and what is separable besides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sottovoce.formula.canonical import add, multiply
from sottovoce.formula.derive import QuadraticForm, connected, definiteness, ldl, quadratic_form
from sottovoce.formula.expression import Expression, number, scalar
from sottovoce.problem.groups import Array

Exact: TypeAlias = NDArray[np.object_]  # an array of fractions

_MARGIN = Fraction(1, 2**32)  # how much more weight squares get whose numbers had to be rounded
_RESOLUTION = (
    2**40
)  # factors are rounded to multiples of one over this, and what is lost is paid for


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Squares:
    """``g(x) <= sum_k w_k (a_k'x - m_k)^2 + rest(x) + c``, an equality up to rounding upwards."""

    sums: tuple[Expression, ...]  # ``a_k'x``
    weights: tuple[Fraction, ...]  # w_k, positive
    centres: tuple[Fraction, ...]  # m_k
    rest: Expression  # a sum of convex terms that name one agent each; 0 if nothing is left
    constant: Fraction  # c

    def __len__(self) -> int:
        return len(self.sums) + (not self.rest.is_zero)


def sum_of_squares(g: Expression, owners: Mapping[Expression, str]) -> Squares | None:
    """Write ``g = x'Qx + q'x + c`` as few squares of sums and a separable rest.

    Two ways are tried and the one with fewer sums is taken: all of Q as squares, completed so that
    nothing is left; and Q less as much of its agents' own blocks as leaves it semidefinite. The
    first is exact rational arithmetic (``Q = L D L'``); the second is rounded so that the result is
    never below g. None if g is not such a form, not convex, or large.
    """
    form = quadratic_form(g)
    if form is None or not any(map(any, form.quadratic)):
        return None
    candidates = [
        s for s in (_complete_squares(form), _split_blocks(form, owners)) if s is not None
    ]
    return min(candidates, key=len) if candidates else None


def weighted_sum(weights: Iterable[Any], symbols: Sequence[Expression]) -> Expression:
    """Return ``sum_i w_i x_i``."""
    return add(*(multiply(number(w), s) for w, s in zip(weights, symbols, strict=True) if w))


def _complete_squares(form: QuadraticForm) -> Squares | None:
    """``Q = L D L'`` exactly, with the linear part inside the squares as far as it fits."""
    linear: Exact = np.array(form.linear, dtype=object)
    factors = ldl(form.quadratic)
    if factors is None:
        return None
    vectors, weights = (np.array(part, dtype=object) for part in factors)
    # q = 2 sum_k w_k m_k (-a_k) + left over: the a_k form a triangle, solved from its pivots.
    left, centres = linear, np.full(len(weights), Fraction(0))
    for k, (v, w) in enumerate(zip(vectors, weights, strict=True)):
        pivot = np.flatnonzero(v)[0]
        centres[k] = -left[pivot] / (2 * w * v[pivot])
        left = left + 2 * w * centres[k] * v
    if left.any():
        # What does not fit is one more sum, which might as well be the whole linear part.
        left, centres = linear, np.full(len(weights), Fraction(0))
    constant = form.constant - weights @ centres**2
    if not _are_exact((*weights, *centres, constant, *vectors.ravel())):
        vectors, centres, weights = map(_rounded, (vectors, centres, weights * (1 + _MARGIN)))
        constant = _rounded(constant + _MARGIN * (abs(constant) + weights @ centres**2))
        if not _above(form, (vectors, weights, centres), left, constant):
            return None
    return Squares(
        sums=tuple(weighted_sum(v, form.symbols) for v in vectors),
        weights=tuple(weights),
        centres=tuple(centres),
        rest=weighted_sum(left, form.symbols),
        constant=constant,
    )


def _are_exact(values: Iterable[Fraction]) -> bool:
    """Whether formulas hold these numbers as they are."""
    return all(scalar(value) == value for value in values)


_rounded = np.frompyfunc(lambda value: Fraction(scalar(value)), 1, 1)
_fraction_of = np.frompyfunc(lambda value: Fraction(float(value)), 1, 1)


def _above(
    form: QuadraticForm, rounded: tuple[Exact, Exact, Exact], rest: Exact, constant: Fraction
) -> bool:
    """Whether rounded squares are nowhere below the form, in exact arithmetic."""
    vectors, weights, centres = rounded
    full = np.column_stack([vectors, -centres])
    left = (full.T * weights) @ full - np.array(form.bordered, dtype=object)
    left[:-1, -1] += rest / 2
    left[-1, :-1] += rest / 2
    left[-1, -1] += constant
    return definiteness(left.tolist()) >= 0


def _shares(dense: Array, same_owner: Array) -> Array:
    """How much of its own block each state gives to the rest: all that its partners allow."""
    shares = np.zeros(len(dense))
    label = connected(len(dense), *np.nonzero((dense != 0) | same_owner))
    for part in range(label.max() + 1):
        indices = np.ix_(label == part, label == part)
        inverse = np.linalg.inv(np.linalg.cholesky(np.where(same_owner, dense, 0.0)[indices]))
        least = np.linalg.eigvalsh(inverse @ dense[indices] @ inverse.T)[0]
        shares[label == part] = np.clip(least, 0.0, 1.0)
    return shares


def _split_blocks(form: QuadraticForm, owners: Mapping[Expression, str]) -> Squares | None:
    """Take as much of the agents' own blocks out of Q as leaves it semidefinite."""
    Q, x = np.array(form.quadratic, dtype=object), form.symbols
    same_owner = np.array([[owners[a] == owners[b] for b in x] for a in x])
    dense: Array = Q.astype(np.float64)
    try:
        shares = _shares(dense, same_owner)
    except np.linalg.LinAlgError:
        return None  # an agent's own block is not definite
    sizes, vectors = np.linalg.eigh(
        dense - shares[:, np.newaxis] * np.where(same_owner, dense, 0.0)
    )
    is_positive = sizes > 1e-9 * max(float(np.abs(dense).max()), 0.0)
    A = (
        _fraction_of(np.round(vectors[:, is_positive] * np.sqrt(sizes[is_positive]) * _RESOLUTION))
        / _RESOLUTION
    )
    rest = _separable_part(Q, A, same_owner)
    if definiteness(rest.tolist()) < 0:
        return None
    entries = zip(*np.nonzero(rest), rest[rest != 0], strict=True)
    products = [multiply(number(entry), x[i], x[j]) for i, j, entry in entries]
    sums = tuple(weighted_sum(column, x) for column in A.T)
    return Squares(
        sums=sums,
        weights=(Fraction(1),) * len(sums),
        centres=(Fraction(0),) * len(sums),
        rest=add(*products, weighted_sum(form.linear, x)),
        constant=form.constant,
    )


def _separable_part(Q: Exact, A: Exact, same_owner: NDArray[np.bool_]) -> Exact:
    """What is left of the agents' own blocks of ``Q - A A'``.

    What rounding took away or added across agents is covered by a little more of |x|^2.
    """
    left = Q - A @ A.T
    rest: Exact = np.where(same_owner, _fraction_of(left), 0)
    diagonal = rest.diagonal() + np.abs(left - rest).sum(axis=1)
    for i, entry in enumerate(diagonal):
        rest[i, i] = (
            entry if _are_exact([entry]) else Fraction(float(np.nextafter(float(entry), np.inf)))
        )
    return rest
