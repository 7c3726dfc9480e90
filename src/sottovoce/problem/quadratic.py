"""A quadratic form over several agents as squares of sums, and what is separable besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
import sympy as sp
from scipy.sparse.csgraph import connected_components

from sottovoce.problem.agents import Array

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
    rational = g.xreplace({f: sp.Rational(f) for f in g.atoms(sp.Float)})
    try:
        form = sp.Poly(sp.expand(rational), *states)
    except sp.PolynomialError:
        return None
    if form.total_degree() > 2 or not all(c.is_Rational for c in form.coeffs()):
        return None
    Q = sp.zeros(len(states))
    q = sp.zeros(len(states), 1)
    for powers, c in form.terms():
        at = [i for i, p in enumerate(powers) for _ in range(p)]
        if len(at) == 2:
            Q[at[0], at[1]] += c / 2
            Q[at[1], at[0]] += c / 2
        elif len(at) == 1:
            q[at[0]] += c
    return Form(states=states, quadratic=Q, linear=q, constant=form.coeff_monomial(1))


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
    n, left = Q.shape[0], Q.copy()
    vectors, weights = [], []
    for i in range(n):
        pivot = left[i, i]
        if pivot < 0:
            return None
        if pivot == 0:
            if any(left[i, j] != 0 for j in range(n)):
                return None
            continue
        v = left[:, i] / pivot
        vectors.append(v)
        weights.append(pivot)
        left = left - pivot * v * v.T
    return vectors, weights


def _shares(dense: Array, own: Array) -> Array:
    """How much of its own block each state gives to the rest: all that its partners allow."""
    shares = np.zeros(len(dense))
    _, label = connected_components((dense != 0) | own, directed=False)
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
