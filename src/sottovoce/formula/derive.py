"""Derivatives of canonical formulas, by all symbols at once, and quadratic forms in fractions.

Forward accumulation over the distinct nodes; entries that are 0 are left out. A formula is affine
in some symbols where its gradient does not read them and no non-smooth operation holds one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import lcm
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.formula.canonical import (
    absolute_of,
    add,
    euclidean_of,
    has_domain,
    is_integer,
    maximum_of,
    multiply,
    norm_slope,
    power,
    rebuild,
    rebuild_by,
    sign_of,
    substitute,
    subtract,
    where_of,
)
from sottovoce.formula.expression import (
    NONSMOOTH,
    ONE,
    SLOPES,
    ZERO,
    Expression,
    Op,
    exact_arithmetic,
    nodes,
    number,
)
from sottovoce.formula.order import in_order

Indices: TypeAlias = NDArray[np.int64]

Gradient: TypeAlias = Mapping[Expression, Expression]
"""The derivative by every symbol for which it is not 0."""

_MAX_DIGITS = 9  # of a number in a message


@exact_arithmetic()
def rationalise(expr: Expression) -> Expression:
    """Replace doubles by the fractions they are, so that nothing derived from them is rounded."""

    def fraction(part: Expression, args: Sequence[Expression]) -> Expression:
        if part.is_number:
            return number(Fraction(part.value))
        return rebuild(part, args, Fraction(part.value) if part.op in (Op.POW, Op.HUBER) else None)

    return rebuild_by(expr, fraction)


def round_numbers(expr: Expression) -> Expression:
    """Round numbers of many digits, such as the fractions of doubles, to six, for messages."""
    long = [n for n in nodes((expr,)) if n.is_number and len(str(n.value)) > _MAX_DIGITS]
    return substitute(expr, {n: number(float(f"{float(n.value):.6g}")) for n in long})


def gradient(expr: Expression, symbols: Iterable[Expression]) -> dict[Expression, Expression]:
    """Return ``df/ds`` for every symbol s that f depends on, in the order of ``symbols``."""
    order = list(symbols)
    variables = expr.symbols.intersection(order)
    if not variables:
        return {}
    gradients: dict[Expression, Gradient] = {s: {s: ONE} for s in variables}
    for part in nodes((expr,)):
        if part not in gradients:
            moves = not part.symbols.isdisjoint(variables)
            slopes = _slopes(part, [gradients[a] for a in part.args]) if moves else {}
            gradients[part] = {s: slope for s, slope in slopes.items() if not slope.is_zero}
    return {s: gradients[expr][s] for s in order if s in gradients[expr]}


def derivative(expr: Expression, symbol: Expression) -> Expression:
    """Return ``df/ds``."""
    return gradient(expr, (symbol,)).get(symbol, ZERO)


def hessian(
    expr: Expression, symbols: Sequence[Expression]
) -> dict[tuple[Expression, Expression], Expression]:
    """Return ``d2f/ds dt`` for s at or before t in ``symbols``, zeros left out."""
    first = gradient(expr, symbols)
    return {
        (s, t): entry
        for k, s in enumerate(symbols)
        if s in first
        for t, entry in gradient(first[s], symbols[k:]).items()
    }


def is_affine(expr: Expression, symbols: Collection[Expression] | None = None) -> bool:
    """Whether a formula is affine in some symbols, all of its own by default.

    ``sqrt(x)**2`` is not: it has no value below 0.
    """
    variables = expr.symbols if symbols is None else expr.symbols.intersection(symbols)
    nonlinear = (p for p in nodes((expr,)) if p.op in NONSMOOTH | SLOPES or has_domain(p))
    if any(part.symbols & variables for part in nonlinear):
        return False
    return not any(slope.symbols & variables for slope in gradient(expr, variables).values())


def is_smooth(expr: Expression) -> bool:
    """Whether a formula has no operation whose slope jumps."""
    return not expr.has(NONSMOOTH | SLOPES)


def _slopes(expr: Expression, inner: Sequence[Gradient]) -> dict[Expression, Expression]:
    """The derivatives of an operation from those of its operands."""
    if expr.op == Op.MAX:
        return _of_maximum(expr.args, inner)
    if expr.op == Op.WHERE:
        return _both(expr.args[0], inner[1], inner[2])
    if expr.op in (Op.NORM, Op.NORM_SLOPE):
        moving = dict.fromkeys(s for slopes in inner for s in slopes)
        turned = {s: [slopes.get(s, ZERO) for slopes in inner] for s in moving}
        if expr.op == Op.NORM:
            return {s: norm_slope(*expr.args, *da) for s, da in turned.items()}
        return {s: _of_along(expr, slopes) for s, slopes in turned.items()}
    terms: dict[Expression, list[Expression]] = {}
    for k, slopes in enumerate(inner):
        outer = _outer(expr, k) if slopes else ZERO
        for s, slope in slopes.items():
            terms.setdefault(s, []).append(slope if outer is ONE else multiply(outer, slope))
    return {s: t[0] if len(t) == 1 else add(*t) for s, t in terms.items()}


def _outer(expr: Expression, k: int) -> Expression:
    """The derivative of a smooth operation, a size, a sign or Huber's function by an operand."""
    a = expr.args[k]
    if expr.op == Op.ADD:
        return ONE
    if expr.op == Op.MUL:
        return multiply(*expr.args[:k], *expr.args[k + 1 :])
    if expr.op == Op.POW:
        return multiply(number(expr.value), power(a, expr.value - 1))
    if expr.op == Op.EXP:
        return expr
    if expr.op == Op.LOG:
        return power(a, -1)
    if expr.op == Op.ABS:
        return sign_of(a)
    if expr.op == Op.HUBER:
        m = number(expr.value)
        return subtract(absolute_of(add(a, m)), absolute_of(subtract(a, m)))
    return ZERO  # a sign


def _of_maximum(
    pieces: Sequence[Expression], inner: Sequence[Gradient]
) -> dict[Expression, Expression]:
    """``max(m, a)' = where(m - a, m', a')``, piece by piece."""
    largest, value = dict(inner[0]), pieces[0]
    for piece, slopes in zip(pieces[1:], inner[1:], strict=True):
        largest = _both(subtract(value, piece), largest, slopes)
        value = maximum_of(value, piece)
    return largest


def _both(condition: Expression, yes: Gradient, no: Gradient) -> dict[Expression, Expression]:
    moving = dict.fromkeys((*yes, *no))
    return {s: where_of(condition, yes.get(s, ZERO), no.get(s, ZERO)) for s in moving}


def _of_along(expr: Expression, slopes: Sequence[Expression]) -> Expression:
    """``(a'b/|a|)' = a'b'/|a| + (a''b - (a'b/|a|) (a'a''/|a|)) / |a|`` with a'' = da, b' = db."""
    half = len(slopes) // 2
    a, b, da, db = expr.args[:half], expr.args[half:], slopes[:half], slopes[half:]
    turning = add(*(multiply(x, y) for x, y in zip(da, b, strict=True)))
    turning = subtract(turning, multiply(expr, norm_slope(*a, *da)))
    return add(norm_slope(*a, *db), multiply(turning, power(euclidean_of(*a), -1)))


# Quadratic forms in exact arithmetic --------------------------------------------------------------

Monomial: TypeAlias = tuple[int, ...]  # which symbols are multiplied, in order; x^2 names one twice

Matrix: TypeAlias = list[list[Fraction]]

_MAX_SYMBOLS = 200  # more are left alone: exact elimination of 100 dense rows takes 4 s already


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QuadraticForm:
    """``x'Qx + q'x + c`` with a symmetric Q."""

    symbols: tuple[Expression, ...]  # x
    quadratic: Matrix  # Q
    linear: list[Fraction]  # q
    constant: Fraction  # c

    @property
    def bordered(self) -> Matrix:
        """M with ``x'Qx + q'x + c = [x; 1]' M [x; 1]``."""
        q = [entry / 2 for entry in self.linear]
        rows = [[*row, entry] for row, entry in zip(self.quadratic, q, strict=True)]
        return [*rows, [*q, self.constant]]


@lru_cache(maxsize=1 << 10)
def quadratic_form(expr: Expression) -> QuadraticForm | None:
    """Read a canonical formula as a polynomial of degree two at most, doubles as they are.

    None if it is of another kind, or has many symbols.
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
    for monomial, c in terms.items():
        if len(monomial) == 2:
            i, j = monomial
            Q[i][j] += c / 2
            Q[j][i] += c / 2
        elif len(monomial) == 1:
            q[monomial[0]] += c
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
    polynomials = [part for part in parts if part is not None]
    degree = sum(max(map(len, part), default=0) for part in polynomials)
    if len(polynomials) < len(parts) or (degree > 2 and expr.op != Op.ADD):
        return None
    if expr.op == Op.ADD:
        terms = [term for part in polynomials for term in part.items()]
    else:
        terms = [((), Fraction(1))]
        for part in polynomials:
            pairs = product(terms, part.items())
            terms = [(tuple(sorted((*a, *b))), c * d) for (a, c), (b, d) in pairs]
    total: dict[Monomial, Fraction] = {}
    for monomial, c in terms:
        total[monomial] = total.get(monomial, Fraction(0)) + c
    return {monomial: c for monomial, c in total.items() if c}


def definiteness(matrix: Sequence[Sequence[Fraction]]) -> int:
    """Return 1 if a symmetric rational matrix is positive definite, 0 if semidefinite, else -1.

    Floating point decides where it proves the sign: a Cholesky factorisation of the matrix less a
    bound on its rounding errors (Rump 2006), or a direction v with ``v' matrix v < 0`` exactly.
    Otherwise exact elimination does.
    """
    near = np.array(matrix, dtype=np.float64)
    if np.isfinite(near).all():
        try:
            margin = 8.0 * (len(near) + 2) * np.finfo(np.float64).eps * abs(float(np.trace(near)))
            np.linalg.cholesky(near - (margin + 1e-290) * np.eye(len(near)))
            return 1
        except np.linalg.LinAlgError:
            pass
        lowest = np.array(list(map(Fraction, np.linalg.eigh(near)[1][:, 0].tolist())))
        if lowest @ np.array(matrix, dtype=object) @ lowest < 0:
            return -1
    factors = ldl(matrix)
    return -1 if factors is None else int(len(factors[1]) == len(matrix))


def connected(count: int, left: ArrayLike, right: ArrayLike) -> Indices:
    """Return the connected component of every node of a graph with edges ``left - right``.

    They are numbered from 0 in the order of their first nodes.
    """
    from scipy.sparse import coo_array  # 16 MB that an agent can do without
    from scipy.sparse.csgraph import connected_components

    ends = np.array([left, right], dtype=np.int64).reshape(2, -1)
    graph = coo_array((np.ones(ends.shape[1]), ends), shape=(count, count))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


def connected_blocks(matrix: Sequence[Sequence[object]]) -> list[list[int]]:
    """Split indices into the sets that a symmetric matrix connects."""
    edges = [(i, j) for i, row in enumerate(matrix) for j in range(i) if row[j]]
    label = connected(len(matrix), [i for i, _ in edges], [j for _, j in edges])
    return [np.flatnonzero(label == part).tolist() for part in np.unique(label)]


def ldl(matrix: Sequence[Sequence[Fraction]]) -> tuple[Matrix, list[Fraction]] | None:
    """``M = sum_k w_k a_k a_k'`` with w_k > 0, each a_k zero before its pivot; None if not >= 0.

    By elimination without fractions, in integers (Bareiss): all divisions leave no remainder.
    """
    scale = lcm(*(entry.denominator for row in matrix for entry in row))
    left = [[int(entry * scale) for entry in row] for row in matrix]
    vectors, weights, last = [], [], 1
    for i, row in enumerate(left):
        pivot = row[i]
        if pivot < 0 or (pivot == 0 and any(row)):
            return None
        if pivot == 0:
            continue
        vectors.append([Fraction(entry, pivot) for entry in row])
        weights.append(Fraction(pivot, last * scale))
        for j in range(i + 1, len(left)):
            pairs = zip(left[j], row, strict=True)
            left[j] = [(pivot * a - row[j] * b) // last for a, b in pairs]
        last = pivot
    return vectors, weights
