"""A quadratic form over several agents as squares of sums, and what is separable besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, reduce
from itertools import product
from typing import TypeAlias

import numpy as np
import sympy as sp

from sottovoce.problem.agents import Array
from sottovoce.problem.connected import connected

Monomial: TypeAlias = tuple[int, ...]
"""Which states are multiplied, in order; x^2 names one twice."""

_MOST = 200  # states of one constraint beyond which its form is left alone
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

    sums: tuple[sp.Expr, ...]
    weights: tuple[sp.Expr, ...]
    centres: tuple[sp.Expr, ...]
    rest: sp.Expr
    constant: sp.Expr


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Form:
    """``x'Qx + q'x + c`` with rational coefficients."""

    states: tuple[sp.Symbol, ...]
    quadratic: sp.Matrix
    linear: sp.Matrix
    constant: sp.Expr


@lru_cache(maxsize=1 << 10)
def quadratic_form(g: sp.Expr) -> Form | None:
    """Read a formula as a form of degree two at most; None if it is none, or large."""
    states = tuple(sorted(g.free_symbols, key=str))
    if not 0 < len(states) <= _MOST:
        return None
    place = {s: i for i, s in enumerate(states)}
    found = _monomials(g, place)
    if found is None or max(map(len, found), default=0) > 2:
        return None
    Q = sp.zeros(len(states))
    q = sp.zeros(len(states), 1)
    for at, c in found.items():
        if len(at) == 2:
            Q[at[0], at[1]] += _rational(c / 2)
            Q[at[1], at[0]] += _rational(c / 2)
        elif len(at) == 1:
            q[at[0]] += _rational(c)
    constant = _rational(found.get((), Fraction(0)))
    return Form(states=states, quadratic=Q, linear=q, constant=constant)


def _monomials(g: sp.Expr, place: Mapping[sp.Symbol, int]) -> dict[Monomial, Fraction] | None:
    """Multiply a formula out; None if it is no polynomial with rational coefficients."""
    if g.is_Symbol:
        return {(place[g],): Fraction(1)}
    if g.is_Rational or g.is_Float:
        value = sp.Rational(g)
        return {(): Fraction(int(value.p), int(value.q))}
    if g.is_Pow and g.exp.is_Integer and g.exp > 0:
        factors = [g.base] * int(g.exp)
    elif g.is_Add or g.is_Mul:
        factors = list(g.args)
    else:
        return None
    parts: list[dict[Monomial, Fraction]] = []
    for factor in factors:
        part = parts[-1] if g.is_Pow and parts else _monomials(factor, place)
        if part is None:
            return None
        parts.append(part)
    return _added(parts) if g.is_Add else reduce(_multiplied, parts)


def _added(parts: Sequence[Mapping[Monomial, Fraction]]) -> dict[Monomial, Fraction]:
    total: dict[Monomial, Fraction] = {}
    for part in parts:
        for at, c in part.items():
            total[at] = total.get(at, Fraction(0)) + c
    return {at: c for at, c in total.items() if c}


def _multiplied(
    left: dict[Monomial, Fraction], right: dict[Monomial, Fraction]
) -> dict[Monomial, Fraction]:
    return _added(
        [{tuple(sorted((*a, *b))): c * d} for a, c in left.items() for b, d in right.items()]
    )


def _rational(value: Fraction) -> sp.Rational:
    return sp.Rational(value.numerator, value.denominator)


def squares(g: sp.Expr, owners: Mapping[sp.Symbol, str]) -> Squares | None:
    """Write ``g = x'Qx + q'x + c`` as few squares of sums and a separable rest.

    Two ways are tried and the one with fewer sums is taken: all of Q as squares, completed so that
    nothing is left; and Q less as much of its agents' own blocks as leaves it semidefinite. The
    first is exact rational arithmetic (``Q = L D L'``); the second is rounded so that the result is
    never below g.

    Returns:
        None if g is not such a form, not convex, or large.
    """
    form = quadratic_form(g)
    if form is None or not any(form.quadratic):
        return None
    states, Q, q, constant = form.states, form.quadratic, form.linear, form.constant
    found = [s for s in (_completed(Q, q, constant, states), _split(Q, q, constant, states, owners))
             if s is not None]  # fmt: skip
    return min(found, key=_size) if found else None


def _size(found: Squares) -> int:
    return len(found.sums) + int(found.rest != 0)


def _completed(
    Q: sp.Matrix, q: sp.Matrix, c: sp.Expr, states: Sequence[sp.Symbol]
) -> Squares | None:
    """``Q = L D L'`` exactly, with the linear part inside the squares as far as it fits."""
    factors = ldl(Q)
    if factors is None:
        return None
    vectors, weights = factors
    sums = [sp.Add(*(v[i] * s for i, s in enumerate(states))) for v in vectors]
    # q = 2 sum_k w_k m_k (-a_k) + left over: the a_k form a triangle, solved from its pivots.
    left, centres = q.copy(), []
    for v, w in zip(vectors, weights, strict=True):
        pivot = next(i for i in range(len(states)) if v[i] != 0)
        m = -left[pivot] / (2 * w * v[pivot])
        left += 2 * w * m * v
        centres.append(m)
    rest = sp.Add(*(left[i] * s for i, s in enumerate(states)))
    if rest != 0:
        # What does not fit is one more sum, which might as well be the whole linear part.
        rest = sp.Add(*(q[i] * s for i, s in enumerate(states)))
        centres = [sp.Integer(0)] * len(vectors)
    constant = c - sp.Add(*(w * m**2 for w, m in zip(weights, centres, strict=True)))
    return Squares(
        sums=tuple(sums),
        weights=tuple(weights),
        centres=tuple(centres),
        rest=rest,
        constant=constant,
    )


def ldl(Q: sp.Matrix) -> tuple[list[sp.Matrix], list[sp.Expr]] | None:
    """``Q = sum_k w_k a_k a_k'`` with w_k > 0, each a_k zero before its pivot; None if not >= 0."""
    n = Q.shape[0]
    left = [[Fraction(int(Q[i, j].p), int(Q[i, j].q)) for j in range(n)] for i in range(n)]
    vectors, weights = [], []
    for i in range(n):
        pivot = left[i][i]
        if pivot < 0 or (pivot == 0 and any(left[i])):
            return None
        if pivot == 0:
            continue
        v = [own / pivot for own in left[i]]
        vectors.append(sp.Matrix([_rational(own) for own in v]))
        weights.append(_rational(pivot))
        row = list(left[i])
        for j in range(i, n):
            if row[j]:
                left[j] = [own - row[j] * share for own, share in zip(left[j], v, strict=True)]
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


def _split(
    Q: sp.Matrix,
    q: sp.Matrix,
    c: sp.Expr,
    states: Sequence[sp.Symbol],
    owners: Mapping[sp.Symbol, str],
) -> Squares | None:
    """Take as much of the agents' own blocks out of Q as leaves it semidefinite."""
    n = len(states)
    own = np.array([[owners[a] == owners[b] for b in states] for a in states])
    dense: Array = np.array(Q.tolist(), dtype=np.float64)
    try:
        shares = _shares(dense, own)
    except np.linalg.LinAlgError:
        return None  # an agent's own block is not definite
    sizes, vectors = np.linalg.eigh(dense - shares[:, np.newaxis] * np.where(own, dense, 0.0))
    kept = sizes > 1e-9 * max(float(np.abs(dense).max()), 0.0)
    factor = np.round(vectors[:, kept] * np.sqrt(sizes[kept]) * _DIGITS)
    A = sp.Matrix(n, int(kept.sum()), lambda i, k: sp.Rational(int(factor[i, k]), _DIGITS))
    # Whatever rounding took away or added across agents is covered by a little more of |x|^2.
    left = Q - A * A.T
    cross = [abs(left[i, j]) if not own[i, j] else 0 for i, j in product(range(n), repeat=2)]
    kept_own = sp.Matrix(n, n, lambda i, j: left[i, j] if own[i, j] else 0)
    rows = [sum(cross[i * n : (i + 1) * n]) for i in range(n)]
    kept_own += sp.diag(*rows)
    if ldl(kept_own) is None:
        return None
    x = sp.Matrix(states)
    rest = sp.expand((x.T * kept_own * x)[0] + (q.T * x)[0])
    sums = [sp.Add(*(A[i, k] * s for i, s in enumerate(states))) for k in range(A.shape[1])]
    return Squares(
        sums=tuple(sums),
        weights=(sp.Integer(1),) * len(sums),
        centres=(sp.Integer(0),) * len(sums),
        rest=rest,
        constant=c,
    )
