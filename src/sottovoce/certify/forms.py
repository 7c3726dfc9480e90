"""Other ways to write an expression, on which interval arithmetic is less pessimistic.

An interval bound suffers where a variable occurs more than once. A common denominator, and a sum of
exponentials that swallows the exponentials above it, make many repetitions disappear.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import sympy

from sottovoce.certify.interval import Expr

_LARGE = 500  # operations beyond which SymPy's rewriting costs more than subdivision


def exact(expr: Expr) -> Expr:
    """Replace floating-point numbers by the rationals they are, so that rewriting never rounds."""
    expr = sympy.sympify(expr)
    return expr.xreplace({number: sympy.Rational(number) for number in expr.atoms(sympy.Float)})


def simplified(expr: Expr) -> Expr:
    """Bring an expression to a common denominator and like signs, where that is cheap."""
    return oriented(sympy.together(expr)) if sympy.count_ops(expr) <= _LARGE else expr


def oriented(expr: Expr) -> Expr:
    """Write b - a as -(a - b) in products and even powers, so that a difference has one form."""
    if not expr.args:
        return expr
    expr = expr.func(*map(oriented, expr.args))
    if expr.is_Mul:
        turned = [factor for factor in expr.args if _is_turned(factor)]
        sign = (-1) ** len(turned)
        return sympy.Mul(sign, *(-f if f in turned else f for f in expr.args))
    if expr.is_Pow and expr.exp.is_even and _is_turned(expr.base):
        return sympy.Pow(-expr.base, expr.exp)
    return expr


def _is_turned(expr: Expr) -> bool:
    return bool(expr.is_Add and expr.could_extract_minus_sign())


def equivalents(expr: Expr) -> tuple[Expr, ...]:
    """Return an expression together with other ways to write it, without repetition."""
    common = simplified(expr)
    return tuple(dict.fromkeys((expr, common, gathered(expr), gathered(common))))


def squared_norm(components: Sequence[Expr]) -> Expr:
    """Write the sum of the components' squares so that equal factors stand before sums."""
    return collected(simplified(sympy.Add(*(simplified(c) ** 2 for c in components))))


def collected(expr: Expr) -> Expr:
    """Take factors shared by several terms of a sum out of them, the most frequent one first.

    a b + a c + d = a (b + c) + d
    """
    if not expr.args:
        return expr
    expr = expr.func(*map(collected, expr.args))
    if not expr.is_Add:
        return expr
    factors = Counter(f for term in expr.args for f in sympy.Mul.make_args(term) if not f.is_Number)
    shared, times = factors.most_common(1)[0]
    if times < 2:
        return expr
    inside = [term / shared for term in expr.args if shared in sympy.Mul.make_args(term)]
    outside = [term for term in expr.args if shared not in sympy.Mul.make_args(term)]
    return sympy.Mul(shared, collected(sympy.Add(*inside)), evaluate=False) + collected(
        sympy.Add(*outside)
    )


def gathered(expr: Expr) -> Expr:
    """Move exponentials from a numerator into the sum of exponentials below it.

    exp(a) (sum_k c_k exp(b_k))^-q = (sum_k c_k exp(b_k - a / q))^-q, in which softmax and its
    derivatives are monotone term by term.
    """
    if not expr.args or not expr.has(sympy.exp):
        return expr
    expr = expr.func(*map(gathered, expr.args))
    sums = [factor for factor in expr.args if expr.is_Mul and _divides_exponentials(factor)]
    raised = [factor for factor in expr.args if isinstance(factor, sympy.exp)]
    if not (sums and raised):
        return expr
    below = sums[0]
    shift = sum(factor.args[0] for factor in raised) / below.exp
    terms = [_shifted(term, shift) for term in below.base.args]
    rest = [factor for factor in expr.args if factor != below and factor not in raised]
    return sympy.Mul(*rest, sympy.Pow(sympy.Add(*terms), below.exp))


def _divides_exponentials(factor: Expr) -> bool:
    return bool(
        factor.is_Pow and factor.exp.is_negative and factor.base.is_Add and factor.has(sympy.exp)
    )


def _shifted(term: Expr, shift: Expr) -> Expr:
    factors = sympy.Mul.make_args(term)
    raised = [factor for factor in factors if isinstance(factor, sympy.exp)]
    rest = [factor for factor in factors if factor not in raised]
    total = sympy.expand(sum((factor.args[0] for factor in raised), shift))
    return sympy.Mul(*rest, sympy.exp(total))
