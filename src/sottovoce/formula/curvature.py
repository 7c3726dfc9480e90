"""Curvature, affine, convex or concave: disciplined convex programming over signs.

The rules are those of disciplined convex programming and some more: quadratics by their matrices in
exact arithmetic, norms, soft maxima, products of powers, entropies. They ask an oracle for signs
(``formula.signs``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Literal, TypeAlias, final

from sottovoce.formula.canonical import (
    add,
    addends,
    base_exponent,
    coefficient,
    divide,
    expand,
    factors,
    is_even,
    is_integer,
    log_of,
    multiply,
    negate,
    power,
)
from sottovoce.formula.derive import (
    QuadraticForm,
    connected_blocks,
    definiteness,
    derivative,
    hessian,
    is_affine,
    is_smooth,
    quadratic_form,
)
from sottovoce.formula.expression import NONSMOOTH, Expression, Op, Scalar, number
from sottovoce.formula.order import in_order
from sottovoce.formula.signs import Signs, brief

Variables: TypeAlias = frozenset[Expression]
Kind: TypeAlias = Literal["affine", "convex", "concave"]
Powers: TypeAlias = Sequence[tuple[Expression, Scalar]]

NONE: Variables = frozenset()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Curvature:
    """What the rules prove of a formula: the variables in which it is strictly convex or concave.

    Strictly in a set V of variables: the midpoint inequality is strict for points that differ
    somewhere in V. The set may be empty; it is None if convexity, or concavity, is not proven.
    """

    convex: Variables | None = None
    concave: Variables | None = None
    why: str = ""  # the rule that failed, if neither is proven

    def __neg__(self) -> Curvature:
        return Curvature(convex=self.concave, concave=self.convex, why=self.why)

    @property
    def is_convex(self) -> bool:
        """Whether it is affine or convex."""
        return self.convex is not None

    @property
    def is_concave(self) -> bool:
        """Whether it is affine or concave."""
        return self.concave is not None

    @property
    def is_affine(self) -> bool:
        """Whether it is affine."""
        return self.convex is not None and self.concave is not None

    @property
    def kind(self) -> Kind | None:
        """Affine, convex or concave; None if no rule proves one."""
        if self.is_affine:
            return "affine"
        if self.is_convex:
            return "convex"
        return "concave" if self.is_concave else None


_AFFINE = Curvature(convex=NONE, concave=NONE)
_CONVEX = Curvature(convex=NONE)
_CONCAVE = Curvature(concave=NONE)


@lru_cache(maxsize=1 << 14)
def curvature(expr: Expression) -> Curvature:
    """Return what the form of a canonical formula proves of it, in all of its symbols."""
    return ConvexityRules(expr.symbols, Signs()).curvature(expr)


@final
class ConvexityRules:
    """The rules for convexity in some variables; all other symbols are parameters."""

    def __init__(self, variables: Collection[Expression], signs: Signs) -> None:
        self._variables, self.signs = frozenset(variables), signs
        self._known: dict[Expression, Curvature] = {}
        self._positive: dict[tuple[Expression, bool], bool] = {}

    def curvature(self, expr: Expression) -> Curvature:
        """Return what the rules prove of a canonical formula."""
        if expr not in self._known:
            self._known[expr] = self._judge(expr)
        return self._known[expr]

    def affine(self, expr: Expression) -> bool:
        """Whether a formula is affine once it is multiplied out."""
        return self.curvature(expr).is_affine or is_affine(expand(expr), self._variables)

    def positive(self, expr: Expression, *, strict: bool = True) -> bool:
        """Whether a formula is positive, or at least 0."""
        key = (expr, strict)
        if key not in self._positive:
            source = Signs() if expr.is_number else self.signs
            self._positive[key] = source.positive(expr, strict=strict)
        return self._positive[key]

    def is_quadratic(self, expr: Expression) -> bool:
        """Whether a formula is a polynomial of degree two at most, without parameters."""
        return expr.symbols <= self._variables and (
            expr.is_number or quadratic_form(expr) is not None
        )

    def _moving(self, expr: Expression) -> Variables:
        return expr.symbols & self._variables

    def _judge(self, expr: Expression) -> Curvature:
        if not self._moving(expr) or expr.is_symbol:
            return _AFFINE
        rules = {Op.ADD: self._sum, Op.MUL: self._product, Op.POW: self._power, Op.EXP: self._exp,
                 Op.LOG: self._log} | dict.fromkeys(NONSMOOTH, self._nonsmooth)  # fmt: skip
        if expr.op not in rules:
            return Curvature(why=f"no rule is for slopes that jump, got {brief(expr)}")
        return rules[expr.op](expr)

    # Functions of one formula ---------------------------------------------------------------------

    def _exp(self, expr: Expression) -> Curvature:
        (inner,) = expr.args
        if not self.curvature(inner).is_convex:
            return self._fails(expr, "exp takes an affine or convex formula")
        return Curvature(
            convex=_union([self.curvature(inner).convex, self._strict_variable(inner)])
        )

    def _log(self, expr: Expression) -> Curvature:
        (inner,) = expr.args
        parts = [base_exponent(f) for f in factors(inner)]
        if inner.op == Op.MUL and all(self.positive(base) for base, _ in parts):
            return self.curvature(add(*(multiply(number(p), log_of(base)) for base, p in parts)))
        if self.signs.defined or self.positive(inner):
            concave = _union([self.curvature(inner).concave, self._strict_variable(inner)])
            convex = self._log_convex(inner)
            if concave is not None or convex is not None:
                return Curvature(concave=concave, convex=convex)
        return self._fails(expr, "log takes an affine or concave formula")

    def _nonsmooth(self, expr: Expression) -> Curvature:
        """Maxima of convex formulas; sizes of affine ones, or of convex ones at least 0."""
        is_maximum = expr.op == Op.MAX
        for inner in expr.args:
            if not (
                self.curvature(inner).is_convex if is_maximum else self._allowed_in_norm(inner)
            ):
                kind = "convex" if is_maximum else "affine"
                return self._fails(expr, f"{expr.op} takes {kind} formulas", inner)
        sets = [self.curvature(a).convex or NONE for a in expr.args]
        return Curvature(convex=frozenset.intersection(*sets) if is_maximum else NONE)

    def _allowed_in_norm(self, a: Expression) -> bool:
        inner = self.curvature(a)
        if inner.is_affine or (inner.is_convex and self.positive(a, strict=False)):
            return True
        return inner.is_concave and self.positive(negate(a), strict=False)

    def _fails(self, expr: Expression, rule: str, inner: Expression | None = None) -> Curvature:
        inside = expr.args[0] if inner is None else inner
        proven = self.curvature(inside)
        if proven.why:
            return Curvature(why=proven.why)
        got = f"got {brief(inside)}, which is {proven.kind}, in {brief(expr)}"
        return Curvature(why=f"{rule}, {got}")

    def _strict_variable(self, expr: Expression) -> Variables:
        """The variable of an affine formula of one variable that it certainly depends on."""
        variables = self._moving(expr)
        if len(variables) != 1 or not self.curvature(expr).is_affine:
            return NONE
        (variable,) = variables
        slope = derivative(expr, variable)
        moves = self.positive(slope) or self.positive(negate(slope))
        return variables if moves else NONE

    # Sums -----------------------------------------------------------------------------------------

    def _sum(self, expr: Expression) -> Curvature:
        """A sum of convex formulas is convex; its quadratic part is judged as a whole."""
        quadratic, others = self._split(expr.args)
        parts = [(quadratic, self._quadratic(quadratic)), *((t, self.curvature(t)) for t in others)]
        convex = _union(proven.convex for _, proven in parts)
        concave = _union(proven.concave for _, proven in parts)
        if convex is not None or concave is not None:
            return Curvature(convex=convex, concave=concave)
        together = self._with_parameters(expr)
        if together is not None:
            return together
        why = next((proven.why for _, proven in parts if proven.kind is None), "")
        if not why:
            bad = next(term for term, proven in parts if proven.kind == "concave")
            why = f"a sum must add convex terms only, got {brief(bad)}, which is concave"
        return Curvature(why=why)

    def _split(self, terms: Sequence[Expression]) -> tuple[Expression, list[Expression]]:
        quadratic = [t for t in terms if self.is_quadratic(t)]
        return add(*quadratic), [t for t in terms if not self.is_quadratic(t)]

    def _quadratic(self, q: Expression) -> Curvature:
        """A polynomial of degree two by its matrix, block by block."""
        form = None if q.is_number else quadratic_form(q)
        if form is None:
            return _AFFINE if q.is_number else Curvature(why=f"{brief(q)} has many symbols")
        proven = Curvature(convex=_definite(form, 1), concave=_definite(form, -1))
        return proven if proven.kind is not None else _not_semidefinite(q)

    def _with_parameters(self, expr: Expression) -> Curvature | None:
        """A formula whose second derivatives depend on parameters alone, by their matrix."""
        variables = in_order(self._moving(expr))
        if not is_smooth(expr) or expr.symbols <= self._variables:
            return None  # second derivatives do not see non-smooth points
        entries = hessian(expand(expr), variables)
        if any(self._moving(entry) for entry in entries.values()):
            return None
        kind = self.signs.semidefinite(entries, variables) if entries else 0
        if kind:
            return _CONVEX if kind > 0 else _CONCAVE
        return _AFFINE if not entries else _not_semidefinite(expr)

    # Products and powers --------------------------------------------------------------------------

    def _product(self, expr: Expression) -> Curvature:
        fixed = [f for f in expr.args if not self._moving(f)]
        moving = [f for f in expr.args if self._moving(f)]
        if fixed:
            return self._multiple(multiply(*fixed), self.curvature(multiply(*moving)), expr)
        if self.is_quadratic(expr):
            return self._quadratic(expr)
        proven = self._monomial([base_exponent(f) for f in moving])
        if proven.kind is None and self._entropy(moving):
            proven = _CONVEX
        sums = [f for f in moving if f.op == Op.ADD]
        if proven.kind is None and len(sums) == 1:
            others = multiply(*(f for f in moving if f is not sums[0]))
            spread = add(*(multiply(others, term) for term in sums[0].args))
            proven = self.curvature(spread) if spread.op == Op.ADD else proven
        if proven.kind is None:
            why = f"got {len(moving)} in {brief(expr)}"
            return Curvature(why=f"a product must have one factor that names the state, {why}")
        return proven

    def _multiple(self, factor: Expression, inner: Curvature, expr: Expression) -> Curvature:
        if inner.is_affine or inner.kind is None:
            return _AFFINE if inner.is_affine else inner
        weak = Curvature(
            convex=_drop_strictness(inner.convex), concave=_drop_strictness(inner.concave)
        )
        for proven, strict in ((inner, True), (weak, False)):
            if self.positive(factor, strict=strict):
                return proven
            if self.positive(negate(factor), strict=strict):
                return -proven
        why = f"got two for agents in {brief(expr)}"
        return Curvature(why=f"a coefficient of a curved term must have one sign, {why}")

    def _power(self, expr: Expression) -> Curvature:
        base, p = base_exponent(expr)
        proven = self._of_power(base, p)
        if proven.kind is not None:
            return proven
        inner = self.curvature(base)
        rule = "a power must bend one way over the box"
        return Curvature(why=inner.why or f"{rule}, got {brief(expr)}{self.signs.range_text(base)}")

    def _of_power(self, base: Expression, p: Scalar) -> Curvature:
        if base.op == Op.POW and not is_integer(base.value):
            root, total = base.args[0], base.value * p  # the domain is that of the root
            if self.signs.defined or self.positive(root, strict=False):
                return self._of_rising(root, total)
        inner, strict = self.curvature(base), self._strict_variable(base)
        if is_even(p) and p > 0 and inner.is_affine:
            return Curvature(convex=strict)
        if base.op == Op.MUL and not is_integer(p):
            proven = self._root_of_product(base, p)
            if proven.kind is not None:
                return proven
        norm = self._norm(base, p) if 0 < p < 1 else None
        if self._base_nonnegative(base, p):
            rising = self._of_rising(base, p)
            return replace(rising, convex=norm) if 0 < p < 1 else rising
        if is_integer(p) and self.positive(negate(base), strict=p < 0):
            mirrored = self._of_power(negate(base), p)
            return mirrored if is_even(p) else -mirrored
        return Curvature(convex=norm)

    def _of_rising(self, base: Expression, p: Scalar) -> Curvature:
        """A power of what is not negative; that is no affine formula, for it has a domain."""
        inner, strict = self.curvature(base), self._strict_variable(base)
        if p > 1:
            return Curvature(convex=_union([inner.convex, strict]))
        if p == 1:
            return replace(inner, concave=None if inner.is_convex else inner.concave)
        concave = _union([inner.concave, strict])
        return Curvature(convex=concave) if p < 0 else Curvature(concave=concave)

    def _base_nonnegative(self, base: Expression, p: Scalar) -> bool:
        """Whether the base of a power is not negative: shown, or where the power is defined."""
        if not is_integer(p) and self.signs.defined and (p < 1 or self.curvature(base).is_affine):
            return True
        return self.positive(base, strict=p < 0)

    def _root_of_product(self, base: Expression, p: Scalar) -> Curvature:
        fixed = multiply(*(f for f in base.args if not self._moving(f)))
        powers = [base_exponent(f) for f in base.args if self._moving(f)]
        fine = self.positive(fixed) and all(self.positive(b, strict=False) for b, _ in powers)
        return self._monomial([(b, q * p) for b, q in powers]) if fine else Curvature()

    def _monomial(self, powers: Powers) -> Curvature:
        """Products of powers: log-convex ones, ``y^p / z^q`` with p >= 1 + q, and means."""
        convex = _union(self._log_convex(power(base, p)) for base, p in powers)
        above = [(base, p) for base, p in powers if p > 0]
        below = [base for base, p in powers if p < 0]
        degree = sum(p for _, p in powers)
        if convex is None and len(above) == 1 and degree >= 1:
            (top, p), inner = above[0], self.curvature(above[0][0])
            rises = inner.is_convex and self.positive(top, strict=False)
            if ((inner.is_affine and is_even(p)) or rises) and all(
                self.curvature(b).is_concave and self.positive(b) for b in below
            ):
                convex = NONE
        mean = not below and degree <= 1
        if mean and all(
            self.curvature(b).is_concave and self.positive(b, strict=False) for b, _ in above
        ):
            return Curvature(convex=convex, concave=NONE)
        return Curvature(convex=convex)

    def _entropy(self, moving: Sequence[Expression]) -> bool:
        """``u log(c u)`` and ``u log(u/w)`` of affine formulas that are positive."""
        logs = [f for f in moving if f.op == Op.LOG]
        if len(moving) != 2 or len(logs) != 1:
            return False
        (u,) = (f for f in moving if f is not logs[0])
        inside = logs[0].args[0]
        parts = [base_exponent(f) for f in factors(inside)]
        below = divide(_normalise(u), multiply(*(power(_normalise(b), p) for b, p in parts)))
        affine = self.curvature(u).is_affine and self.curvature(below).is_affine
        return affine and self.positive(u) and self.positive(inside)

    # Norms and logarithms of sums -----------------------------------------------------------------

    def _norm(self, base: Expression, p: Scalar) -> Variables | None:
        """Convexity of ``(sum_k a_k)^p``, 0 < p < 1: the 1/p-norm of nonnegative convex a_k^p."""
        quadratic, others = self._split(addends(base))
        parts = [self._root(term, p) for term in others]
        if quadratic.is_number:
            parts.append(NONE if quadratic.value >= 0 else None)
            return _union(parts)
        form = quadratic_form(quadratic)
        # q^(1/2) is the length of A [x; 1] with A'A = M.
        kind = definiteness(form.bordered) if form is not None and 2 * p >= 1 else -1
        if kind < 0:
            parts += [self._root(term, p) for term in addends(quadratic)]
        else:
            parts.append(self._moving(quadratic) if kind > 0 else NONE)
        return _union(parts)

    def _root(self, term: Expression, p: Scalar) -> Variables | None:
        """Convexity of ``term^p`` where it is the p-th power of something nonnegative."""
        logarithmic = self._log_convex(term)
        if logarithmic is not None:
            return logarithmic
        factor = multiply(*(f for f in factors(term) if not self._moving(f)))
        if not self.positive(factor, strict=False):
            return None
        if not self._moving(term):
            return NONE
        base, q = base_exponent(multiply(*(f for f in factors(term) if self._moving(f))))
        if q * p < 1:
            return None
        inner = self.curvature(base)
        strict = self._strict_variable(base) if q * p > 1 and self.positive(factor) else NONE
        free = inner.is_affine and is_even(q)
        rises = inner.is_convex and self.positive(base, strict=False)
        return strict if free or rises else None

    def _log_convex(self, expr: Expression) -> Variables | None:
        """Where the logarithm of a positive formula is convex, and strictly in which variables."""
        if not self._moving(expr):
            return NONE if self.positive(expr) else None
        if expr.op in (Op.ADD, Op.MUL):
            return _union(self._log_convex(part) for part in expr.args)
        if expr.op == Op.EXP:
            return self.curvature(expr.args[0]).convex
        if expr.op == Op.POW:
            (base,) = expr.args
            if expr.value > 0:
                return self._log_convex(base)
            if self._base_nonnegative(base, expr.value):
                return _union([self.curvature(base).concave, self._strict_variable(base)])
        return None


def _definite(form: QuadraticForm, sign: int) -> Variables | None:
    """In which variables a quadratic form, or its negative, is strictly convex."""
    sets: list[Variables | None] = []
    for block in connected_blocks(form.quadratic):
        kind = definiteness([[sign * form.quadratic[i][j] for j in block] for i in block])
        names = frozenset(form.symbols[k] for k in block) if kind > 0 else NONE
        sets.append(None if kind < 0 else names)
    return _union(sets)


def _union(sets: Iterable[Variables | None]) -> Variables | None:
    proven = list(sets)
    return None if None in proven else NONE.union(*(v for v in proven if v is not None))


def _drop_strictness(strict: Variables | None) -> Variables | None:
    return None if strict is None else NONE


def _normalise(expr: Expression) -> Expression:
    """A formula divided by the number of its first term."""
    first = coefficient(addends(expr)[0])[0]
    return multiply(number(1 / Fraction(first)), expr)


def _not_semidefinite(expr: Expression) -> Curvature:
    rule = "a quadratic must have a positive semidefinite matrix"
    return Curvature(why=f"{rule}, got {brief(expr)} without one")
