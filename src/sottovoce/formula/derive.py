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

from sottovoce.formula.canonical import (
    absolute_of,
    add,
    along,
    euclidean_of,
    huber_of,
    in_order,
    is_integer,
    maximum_of,
    multiply,
    power,
    rebuilt,
    sign_of,
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
    exactly,
    nodes,
    number,
)

Gradient: TypeAlias = Mapping[Expression, Expression]
"""The derivative by every symbol for which it is not 0."""


@exactly()
def exact(expr: Expression) -> Expression:
    """Replace doubles by the fractions they are, so that nothing derived from them is rounded."""
    done: dict[Expression, Expression] = {}
    for node in nodes((expr,)):
        args = [done[a] for a in node.args]
        if node.op == Op.NUMBER:
            done[node] = number(Fraction(node.value))
        elif node.op == Op.POW:
            done[node] = power(args[0], Fraction(node.value))
        elif node.op == Op.HUBER:
            done[node] = huber_of(args[0], Fraction(node.value))
        else:
            done[node] = rebuilt(node, args) if args else node
    return done[expr]


def gradient(expr: Expression, symbols: Iterable[Expression]) -> dict[Expression, Expression]:
    """Return ``df/ds`` for every symbol s that f depends on, in the order of ``symbols``."""
    wanted = list(symbols)
    chosen = frozenset(wanted)
    if not expr.symbols & chosen:
        return {}
    known: dict[Expression, Gradient] = {}
    for part in nodes((expr,)):
        known[part] = _slopes(part, known, chosen) if part.symbols & chosen else {}
    slopes = known[expr]
    return {s: slopes[s] for s in wanted if s in slopes}


def derivative(expr: Expression, symbol: Expression) -> Expression:
    """Return ``df/ds``."""
    return gradient(expr, (symbol,)).get(symbol, ZERO)


def hessian(
    expr: Expression, symbols: Sequence[Expression]
) -> dict[tuple[Expression, Expression], Expression]:
    """Return ``d2f/ds dt`` for s at or before t in ``symbols``, zeros left out."""
    first = gradient(expr, symbols)
    place = {s: k for k, s in enumerate(symbols)}
    return {
        (s, t): entry
        for s, slope in first.items()
        for t, entry in gradient(slope, symbols[place[s] :]).items()
    }


def is_affine(expr: Expression, symbols: Collection[Expression] | None = None) -> bool:
    """Whether a formula is affine in some symbols, all of its own by default."""
    moving = expr.symbols if symbols is None else expr.symbols & frozenset(symbols)
    breaks = NONSMOOTH | SLOPES
    if any(part.op in breaks and part.symbols & moving for part in nodes((expr,))):
        return False
    return not any(slope.symbols & moving for slope in gradient(expr, moving).values())


def is_smooth(expr: Expression) -> bool:
    """Whether a formula has no operation whose slope jumps."""
    return not expr.has(NONSMOOTH | SLOPES)


def _slopes(
    expr: Expression, known: Mapping[Expression, Gradient], chosen: frozenset[Expression]
) -> Gradient:
    if expr.op == Op.SYMBOL:
        return {expr: ONE} if expr in chosen else {}
    inner = [known[a] for a in expr.args]
    if expr.op in (Op.ADD, Op.MUL):
        return _of_terms(expr, inner)
    if expr.op == Op.MAX:
        return _of_maximum(expr.args, inner)
    if expr.op == Op.WHERE:
        return _both(expr.args[0], inner[1], inner[2])
    moving = list(dict.fromkeys(s for slopes in inner for s in slopes))
    if expr.op == Op.NORM:
        return _kept({s: along(expr.args, _column(inner, s)) for s in moving})
    if expr.op == Op.ALONG:
        return _kept({s: _of_along(expr, inner, s) for s in moving})
    outer = _outer(expr)
    return _kept({s: multiply(outer, slope) for s, slope in inner[0].items()})


def _outer(expr: Expression) -> Expression:
    """The derivative of an operation of one operand by that operand."""
    a = expr.args[0]
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


def _of_terms(expr: Expression, inner: Sequence[Gradient]) -> Gradient:
    """Sums and products: each operand's slope times the other factors."""
    parts: dict[Expression, list[Expression]] = {}
    for k, slopes in enumerate(inner):
        if not slopes:
            continue
        others = ONE
        if expr.op == Op.MUL:
            others = multiply(*expr.args[:k], *expr.args[k + 1 :])
        for s, slope in slopes.items():
            parts.setdefault(s, []).append(slope if others is ONE else multiply(others, slope))
    return _kept({s: t[0] if len(t) == 1 else add(*t) for s, t in parts.items()})


def _of_maximum(pieces: Sequence[Expression], inner: Sequence[Gradient]) -> Gradient:
    """``max(m, a)' = where(m - a, m', a')``, piece by piece."""
    largest, value = inner[0], pieces[0]
    for piece, slopes in zip(pieces[1:], inner[1:], strict=True):
        largest = _both(subtract(value, piece), largest, slopes)
        value = maximum_of(value, piece)
    return largest


def _both(condition: Expression, yes: Gradient, no: Gradient) -> Gradient:
    moving = dict.fromkeys((*yes, *no))
    return _kept({s: where_of(condition, yes.get(s, ZERO), no.get(s, ZERO)) for s in moving})


def _of_along(expr: Expression, inner: Sequence[Gradient], s: Expression) -> Expression:
    """``(a'b/|a|)' = a'b'/|a| + (a''b - (a'b/|a|) (a'a''/|a|)) / |a|`` with a'' = da, b' = db."""
    half = len(expr.args) // 2
    a, b = expr.args[:half], expr.args[half:]
    da, db = _column(inner[:half], s), _column(inner[half:], s)
    turning = add(*(multiply(x, y) for x, y in zip(da, b, strict=True)))
    turning = subtract(turning, multiply(expr, along(a, da)))
    return add(along(a, db), multiply(turning, power(euclidean_of(*a), -1)))


def _column(inner: Sequence[Gradient], s: Expression) -> list[Expression]:
    return [slopes.get(s, ZERO) for slopes in inner]


def _kept(slopes: dict[Expression, Expression]) -> dict[Expression, Expression]:
    return {s: slope for s, slope in slopes.items() if not slope.is_zero}


# Quadratic forms in exact arithmetic --------------------------------------------------------------

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
    degree = sum(max(map(len, part), default=0) for part in known)
    if len(known) < len(parts) or (degree > 2 and expr.op != Op.ADD):
        return None
    if expr.op == Op.ADD:
        terms = [term for part in known for term in part.items()]
    else:
        terms = [((), Fraction(1))]
        for part in known:
            pairs = product(terms, part.items())
            terms = [(tuple(sorted((*a, *b))), c * d) for (a, c), (b, d) in pairs]
    total: dict[Monomial, Fraction] = {}
    for at, c in terms:
        total[at] = total.get(at, Fraction(0)) + c
    return {at: c for at, c in total.items() if c}


def definiteness(matrix: Sequence[Sequence[Fraction]]) -> int:
    """Return 1 if a symmetric rational matrix is positive definite, 0 if semidefinite, else -1.

    Floats spare the labour where they prove it: by a Cholesky factorisation of the matrix less a
    bound on its rounding errors (Rump 2006), or by a direction v with ``v' matrix v < 0`` exactly.
    Otherwise by elimination, exactly.
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
    factors = ldl(matrix)
    return -1 if factors is None else int(len(factors[1]) == len(matrix))


def _dot(row: Sequence[Fraction], v: Sequence[Fraction]) -> Fraction:
    return sum((a * b for a, b in zip(row, v, strict=True)), Fraction(0))


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
