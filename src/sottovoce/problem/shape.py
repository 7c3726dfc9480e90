"""Whether a formula is affine, convex or concave wherever it is defined, told by its form alone.

The rules are those of disciplined convex programming, with three more that constraints often need:
quadratic forms by an exact factorisation, norms, and soft maxima. What no rule knows has no shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import sympy as sp

from sottovoce.problem.kinks import CONVEX, absolute, huber, maximum, norm
from sottovoce.problem.quadratic import Form, ldl, quadratic_form

Shape = Literal["affine", "convex", "concave"]


@lru_cache(maxsize=1 << 14)
def shape(expr: sp.Expr) -> Shape | None:
    """Return the shape of a formula in all of its symbols, or None if its form does not tell."""
    if not expr.free_symbols or expr.is_Symbol:
        return "affine"
    if expr.is_Add:
        return _joined([shape(a) for a in expr.args]) or _of_sum(expr.args)
    if expr.is_Mul:
        factor, rest = expr.as_independent(*expr.free_symbols, as_Add=False)
        if factor == 1:
            return None
        return _turned(shape(rest)) if factor.is_negative else shape(rest)
    if isinstance(expr, sp.Function) and expr.func in CONVEX:
        return _of_kink(expr)
    inner = shape(expr.args[0])
    if isinstance(expr, sp.exp):
        return "convex" if inner in ("affine", "convex") else None
    if isinstance(expr, sp.log):
        if inner in ("affine", "concave"):
            return "concave"
        return "convex" if _soft(expr.args[0]) else None
    return _of_power(expr.base, whole(expr.exp), inner) if expr.is_Pow else None


def bends_up(expr: sp.Expr) -> bool:
    """Whether the form shows that a formula is affine or convex."""
    return shape(expr) in ("affine", "convex")


def never_negative(expr: sp.Expr) -> bool:
    """Whether the form shows that a formula is at least 0 wherever it is defined."""
    if not expr.free_symbols:
        return bool(expr.is_nonnegative)
    if expr.is_Add or expr.is_Mul:
        return all(never_negative(a) for a in expr.args)
    if expr.is_Pow:
        power = whole(expr.exp)
        return bool(power.is_even or power.is_integer is False) or never_negative(expr.base)
    if isinstance(expr, maximum):
        return any(never_negative(a) for a in expr.args)
    return isinstance(expr, sp.exp | absolute | norm | huber)


def whole(power: sp.Expr) -> sp.Expr:
    """The power itself, 3.0 as 3: a float exponent that is whole takes negative bases too."""
    if power.is_Float:
        return sp.Integer(int(power)) if float(power).is_integer() else sp.Rational(power)
    return power


def _of_kink(expr: sp.Expr) -> Shape | None:
    if isinstance(expr, maximum):
        return "convex" if all(bends_up(a) for a in expr.args) else None
    inner = expr.args[:1] if isinstance(expr, huber) else expr.args
    # |a| rises with a where a is never negative, and so does a norm with each of its parts.
    fine = all(shape(a) == "affine" or (bends_up(a) and never_negative(a)) for a in inner)
    return "convex" if fine else None


def _of_power(base: sp.Expr, power: sp.Expr, inner: Shape | None) -> Shape | None:
    if inner == "affine":
        if power.is_even and power.is_positive:
            return "convex"
        if power.is_integer is False:  # defined where the base is not negative
            return "concave" if 0 < power < 1 else "convex"
    if inner == "convex" and power >= 1 and never_negative(base):
        return "convex"
    return "convex" if power == sp.Rational(1, 2) and _norm(base) else None


def _norm(square: sp.Expr) -> bool:
    """Whether a formula is ``|A x + b|^2``: then its root is convex."""
    form = quadratic_form(square)
    if form is None:
        return False
    q, last = form.linear / 2, sp.Matrix([[form.constant]])
    return ldl(sp.Matrix(sp.BlockMatrix([[form.quadratic, q], [q.T, last]]))) is not None


def _soft(inside: sp.Expr) -> bool:
    """Whether a formula is a sum of exponentials of convex ones: then its logarithm is convex."""
    for term in sp.Add.make_args(inside):
        factor, rest = term.as_independent(*term.free_symbols, as_Add=False)
        if not factor.is_positive:
            return False
        if rest != 1 and not (isinstance(rest, sp.exp) and bends_up(rest.args[0])):
            return False
    return True


def _of_sum(terms: Sequence[sp.Expr]) -> Shape | None:
    """The shape of a sum whose terms of degree two have one only together."""
    found = [(t, quadratic_form(t)) for t in terms]
    form = quadratic_form(sp.Add(*(t for t, own in found if own is not None)))
    if form is None:
        return None
    return _joined([_of_form(form), *(shape(t) for t, own in found if own is None)])


def _of_form(form: Form) -> Shape | None:
    if ldl(form.quadratic) is not None:
        return "convex"
    return "concave" if ldl(-form.quadratic) is not None else None


def _joined(shapes: Sequence[Shape | None]) -> Shape | None:
    bent = {s for s in shapes if s != "affine"}
    if not bent:
        return "affine"
    return next(iter(bent)) if len(bent) == 1 else None


def _turned(inner: Shape | None) -> Shape | None:
    if inner == "convex":
        return "concave"
    return "convex" if inner == "concave" else inner
