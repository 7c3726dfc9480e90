"""Rules of convex calculus over formulas, with signs from interval arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import sympy as sp

from sottovoce.certify.hessian import (
    Region,
    bounded_below,
    definiteness,
    independent_blocks,
)
from sottovoce.problem import kinks

Variables = frozenset[sp.Symbol]

NONE: Variables = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bend:
    """What is proven of a formula: the variables in which it is strictly convex, or concave.

    The set may be empty; None means that not even plain convexity, or concavity, is proven.
    Strictly in a set V: the midpoint inequality is strict for points that differ somewhere in V.
    """

    convex: Variables | None = None
    concave: Variables | None = None

    def __neg__(self) -> Bend:
        return Bend(convex=self.concave, concave=self.convex)

    @property
    def flat(self) -> bool:
        """Whether it is affine."""
        return self.convex is not None and self.concave is not None


_FLAT = Bend(convex=NONE, concave=NONE)


def _union(sets: Iterable[Variables | None]) -> Variables | None:
    held = list(sets)
    return None if None in held else NONE.union(*(v for v in held if v is not None))


class Rules:
    """Convex calculus: what the parts of a formula and their signs say about the whole."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self._bends: dict[sp.Expr, Bend] = {}
        self._signs: dict[tuple[sp.Expr, bool], bool] = {}

    def bend(self, expr: sp.Expr) -> Bend:
        """Return what the rules prove of ``expr``."""
        if expr not in self._bends:
            self._bends[expr] = self._bend(expr)
        return self._bends[expr]

    def _bend(self, expr: sp.Expr) -> Bend:
        if not self.region.of(expr) or expr.is_Symbol:
            return _FLAT
        if expr.is_Add:
            return self._sum(expr)
        if expr.is_Mul:
            return self._product(expr)
        if expr.is_Pow and expr.exp.is_Rational:
            return self._power(expr.base, expr.exp)
        if isinstance(expr, sp.exp):
            inner = self.bend(expr.args[0])
            return Bend(convex=_union([inner.convex, self._line(expr.args[0])]))
        if isinstance(expr, sp.log):
            return self._log(expr.args[0])
        if expr.func in kinks.CONVEX:
            return self._kink(expr)
        return Bend()

    def _kink(self, expr: sp.Expr) -> Bend:
        """Maxima of convex formulas; sizes of affine ones, or of convex ones at least 0."""
        if isinstance(expr, kinks.maximum):
            first, second = (self.bend(a).convex for a in expr.args)
            return Bend(convex=None if first is None or second is None else first & second)
        inner = expr.args[:1] if isinstance(expr, kinks.huber) else expr.args
        return Bend(convex=NONE if all(self._sizeable(a) for a in inner) else None)

    def _sizeable(self, a: sp.Expr) -> bool:
        bend = self.bend(a)
        if bend.flat:
            return True
        if bend.convex is not None and self.positive(a, strict=False):
            return True
        return bend.concave is not None and self.positive(-a, strict=False)

    def positive(self, expr: sp.Expr, *, strict: bool = True) -> bool:
        """Whether ``expr > 0`` (or >= 0) is proven for every agent."""
        key = (expr, strict)
        if key not in self._signs:
            self._signs[key] = bounded_below(expr, self.region, strict=strict)
        return self._signs[key]

    def _line(self, expr: sp.Expr) -> Variables:
        """The variable of an affine formula of one variable that it certainly depends on."""
        variables = self.region.of(expr)
        if len(variables) != 1 or not self.bend(expr).flat:
            return NONE
        slope = sp.diff(expr, variables[0])
        moves = self.positive(slope) or self.positive(-slope)
        return frozenset(variables) if moves else NONE

    def _sum(self, expr: sp.Expr) -> Bend:
        """A sum of convex formulas is convex; its quadratic part is judged as a whole."""
        quadratic, others = self._split(expr.args)
        parts = [self.bend(term) for term in others]
        parts.append(self._quadratic(quadratic))
        return Bend(
            convex=_union(part.convex for part in parts),
            concave=_union(part.concave for part in parts),
        )

    def _split(self, terms: Sequence[sp.Expr]) -> tuple[sp.Expr, list[sp.Expr]]:
        is_quadratic = [self.degree(term) <= 2 for term in terms]
        quadratic = [t for t, yes in zip(terms, is_quadratic, strict=True) if yes]
        return sp.Add(*quadratic), [
            t for t, yes in zip(terms, is_quadratic, strict=True) if not yes
        ]

    def degree(self, expr: sp.Expr) -> float:
        """The degree of a polynomial with rational coefficients, infinite for anything else."""
        if expr.is_Rational:
            return 0
        if expr.is_Symbol:
            return 1 if expr in self.region.variables else np.inf
        if expr.is_Add:
            return max(self.degree(term) for term in expr.args)
        if expr.is_Mul:
            return sum(self.degree(factor) for factor in expr.args)
        if expr.is_Pow and expr.exp.is_Integer and expr.exp > 0:
            return float(expr.exp) * self.degree(expr.base)
        return np.inf

    def _gram(self, q: sp.Expr) -> list[list[Fraction]]:
        """The matrix M of a quadratic ``q(x) = [x; 1]' M [x; 1]`` in the variables of q."""
        place = {s: k for k, s in enumerate(self.region.of(q))}
        n = len(place)
        matrix = [[Fraction(0)] * (n + 1) for _ in range(n + 1)]
        for monomial, coefficient in sp.expand(q).as_coefficients_dict().items():
            powers = monomial.as_powers_dict().items()
            places = [place[s] for s, power in powers for _ in range(power) if s in place]
            i, j = (*places, n, n)[:2]
            value = Fraction(int(coefficient.p), int(coefficient.q))
            matrix[i][j] += value / 2
            matrix[j][i] += value / 2
        return matrix

    def _quadratic(self, q: sp.Expr) -> Bend:
        variables = self.region.of(q)
        if not variables:
            return _FLAT
        matrix = [row[:-1] for row in self._gram(q)[:-1]]
        coupled = np.array([[entry != 0 for entry in row] for row in matrix])
        found: list[Variables | None] = []
        for sign in (1, -1):
            strict: list[Variables | None] = []
            for block in independent_blocks(coupled):
                kind = definiteness([[sign * matrix[i][j] for j in block] for i in block])
                names = frozenset(variables[k] for k in block) if kind > 0 else NONE
                strict.append(None if kind < 0 else names)
            found.append(_union(strict))
        return Bend(convex=found[0], concave=found[1])

    def _power(self, base: sp.Expr, p: sp.Rational) -> Bend:
        inner, line = self.bend(base), self._line(base)
        if p.is_even and p > 0 and inner.flat:
            return Bend(convex=line)
        if base.is_Mul and not p.is_Integer:
            factor, rest = base.as_independent(*self.region.variables, as_Add=False)
            powers = [part.as_base_exp() for part in sp.Mul.make_args(rest)]
            if self.positive(factor) and all(self.positive(b, strict=False) for b, _ in powers):
                return self._monomial([(b, q * p) for b, q in powers])
        if self.positive(base, strict=bool(p < 0)):
            if p > 1:
                return Bend(convex=_union([inner.convex, line]))
            if p < 0:
                return Bend(convex=_union([inner.concave, line]))
            return Bend(concave=_union([inner.concave, line]), convex=self._norm(base, p))
        if p.is_Integer and self.positive(-base, strict=bool(p < 0)):
            mirrored = self._power(-base, p)
            return mirrored if p.is_even else -mirrored
        return Bend(convex=self._norm(base, p) if 0 < p < 1 else None)

    def _norm(self, base: sp.Expr, p: sp.Rational) -> Variables | None:
        """Convexity of ``(sum_k a_k)**p``, 0 < p < 1: the 1/p-norm of nonnegative convex a_k**p."""
        quadratic, others = self._split(sp.Add.make_args(base))
        parts = [self._root(term, p) for term in others]
        if quadratic != 0:
            # q**(1/2) is the length of A [x; 1] with A'A = M.
            kind = definiteness(self._gram(quadratic)) if 2 * p >= 1 else -1
            if not self.region.of(quadratic) and quadratic > 0:
                parts.append(NONE)
            elif kind < 0:
                parts += [self._root(term, p) for term in sp.Add.make_args(quadratic)]
            else:
                parts.append(frozenset(self.region.of(quadratic)) if kind > 0 else NONE)
        return _union(parts)

    def _root(self, term: sp.Expr, p: sp.Rational) -> Variables | None:
        """Convexity of ``term**p`` where it is the p-th power of something nonnegative."""
        logarithmic = self._log_convex(term)
        if logarithmic is not None:
            return logarithmic
        factor, rest = term.as_independent(*self.region.variables, as_Add=False)
        if not self.positive(factor, strict=False):
            return None
        if not self.region.of(term):
            return NONE
        base, exponent = rest.as_base_exp()
        if not exponent.is_Rational or exponent * p < 1:
            return None
        inner = self.bend(base)
        line = self._line(base) if exponent * p > 1 and self.positive(factor) else NONE
        if exponent.is_even and inner.flat:
            return line
        if inner.convex is not None and self.positive(base, strict=False):
            return line
        return None

    def _log(self, inner: sp.Expr) -> Bend:
        if not self.positive(inner):
            return Bend()
        powers = [part.as_base_exp() for part in sp.Mul.make_args(inner)]
        if inner.is_Mul and all(p.is_Rational and self.positive(b) for b, p in powers):
            return self.bend(sp.Add(*(p * sp.log(b) for b, p in powers)))
        concave = _union([self.bend(inner).concave, self._line(inner)])
        return Bend(concave=concave, convex=self._log_convex(inner))

    def _log_convex(self, expr: sp.Expr) -> Variables | None:
        """Where the logarithm of a positive formula is proven convex, and strictly in which."""
        if not self.region.of(expr):
            return NONE if self.positive(expr) else None
        if expr.is_Add or expr.is_Mul:
            return _union(self._log_convex(part) for part in expr.args)
        if isinstance(expr, sp.exp):
            return self.bend(expr.args[0]).convex
        if expr.is_Pow and expr.exp.is_Rational:
            if expr.exp > 0:
                return self._log_convex(expr.base)
            if self.positive(expr.base):
                return _union([self.bend(expr.base).concave, self._line(expr.base)])
        return None

    def _product(self, expr: sp.Expr) -> Bend:
        factor, rest = expr.as_independent(*self.region.variables, as_Add=False)
        if factor != 1:
            return self._multiple(factor, self.bend(rest))
        if self.degree(expr) <= 2:
            return self._quadratic(expr)
        found = self._monomial([part.as_base_exp() for part in expr.args])
        sums = [part for part in expr.args if part.is_Add]
        if found == Bend() and len(sums) == 1:
            expanded = sp.expand_mul(expr, deep=False)
            return self.bend(expanded) if expanded.is_Add else found
        return found

    def _multiple(self, factor: sp.Expr, inner: Bend) -> Bend:
        if self.positive(factor):
            return inner
        if self.positive(-factor):
            return -inner
        if inner.flat:
            return _FLAT
        weak = Bend(convex=_weak(inner.convex), concave=_weak(inner.concave))
        if self.positive(factor, strict=False):
            return weak
        return -weak if self.positive(-factor, strict=False) else Bend()

    def _monomial(self, powers: Sequence[tuple[sp.Expr, sp.Expr]]) -> Bend:
        """Products of powers: log-convex ones, ``y**p / z**q`` with p >= 1 + q, and means."""
        convex = _union(self._log_convex(base**p) for base, p in powers)
        if not all(p.is_Rational for _, p in powers):
            return Bend(convex=convex)
        above = [(base, p) for base, p in powers if p > 0]
        below = [(base, p) for base, p in powers if p < 0]
        if convex is None and len(above) == 1 and sum(p for _, p in powers) >= 1:
            (base, p), inner = above[0], self.bend(above[0][0])
            free = inner.flat and p.is_even
            if (free or (inner.convex is not None and self.positive(base, strict=False))) and all(
                self.bend(b).concave is not None and self.positive(b) for b, _ in below
            ):
                convex = NONE
        mean = not below and sum(p for _, p in above) <= 1
        if mean and all(
            self.bend(b).concave is not None and self.positive(b, strict=False) for b, _ in above
        ):
            return Bend(convex=convex, concave=NONE)
        return Bend(convex=convex)


def _weak(strict: Variables | None) -> Variables | None:
    return None if strict is None else NONE
