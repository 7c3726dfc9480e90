"""Random expressions, boxes and points, with their values to 50 digits (mpmath) and in arb."""

from __future__ import annotations

from typing import Any

import mpmath
import sympy
from flint import arb, fmpq
from hypothesis import reject, settings
from hypothesis import strategies as st

patiently = settings(deadline=None)  # the machine may be busy

SYMBOLS = sympy.symbols("x y z")
EXPONENTS = [2, 3, 4, -1, -2, -3] + [
    sympy.Rational(*pair) for pair in [(1, 2), (-1, 2), (3, 2), (-3, 2), (1, 3), (-2, 3), (7, 5)]
]

numbers = st.one_of(
    st.integers(-4, 4).map(sympy.Integer),
    st.fractions(-3, 3, max_denominator=9).map(sympy.Rational),
    st.floats(-3, 3, allow_subnormal=False).map(sympy.Float),
    st.sampled_from([sympy.pi, sympy.E]),
)
leaves = st.one_of(st.sampled_from(SYMBOLS), st.sampled_from(SYMBOLS), numbers)


def _grow(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    moving = children.filter(lambda expr: expr.free_symbols)  # SymPy works out powers of numbers
    return st.one_of(
        st.lists(children, min_size=2, max_size=3).map(lambda terms: sympy.Add(*terms)),
        st.lists(children, min_size=2, max_size=3).map(lambda terms: sympy.Mul(*terms)),
        st.tuples(moving, st.sampled_from(EXPONENTS)).map(lambda pair: sympy.Pow(*pair)),
        moving.map(lambda u: sympy.exp(u / 3)),
        moving.map(sympy.log),
    )


expressions = st.recursive(leaves, _grow, max_leaves=8).filter(
    lambda expr: not expr.has(sympy.I, sympy.zoo, sympy.nan, sympy.oo)
)
ends = st.one_of(
    st.integers(-3, 3).map(float), st.floats(-3, 3, allow_nan=False, allow_subnormal=False)
)
sides = st.tuples(ends, ends).map(lambda pair: (min(pair), max(pair)))
boxes = st.fixed_dictionaries(dict.fromkeys(SYMBOLS, sides))
fractions = st.lists(st.floats(0, 1), min_size=3, max_size=3)


def inside(box: dict[Any, tuple[float, float]], shares: list[float]) -> dict[Any, float]:
    """Return the point of a box that lies at the given shares of its sides."""
    pairs = zip(box.items(), shares, strict=True)
    return {s: min(max(low + t * (high - low), low), high) for (s, (low, high)), t in pairs}


def precise(expr: Any, point: dict[Any, float]) -> Any:
    """Return the real value of an expression to 50 digits, or None where it has none."""
    if expr.is_Symbol:
        return mpmath.mpf(point[expr])
    if expr.is_Rational or expr.is_Float:
        exact = sympy.Rational(expr)
        return mpmath.mpf(exact.p) / exact.q
    if expr.is_NumberSymbol:
        return +getattr(mpmath, {"Pi": "pi", "Exp1": "e"}[type(expr).__name__])
    args = [precise(child, point) for child in expr.args]
    if any(value is None for value in args):
        return None
    if expr.is_Add:
        return mpmath.fsum(args)
    if expr.is_Mul:
        return mpmath.fprod(args)
    if isinstance(expr, sympy.exp):
        if abs(args[0]) > 10_000:
            reject()  # mpmath would be busy with millions of digits
        return mpmath.exp(args[0])
    if isinstance(expr, sympy.log):
        return mpmath.log(args[0]) if args[0] > 0 else None
    base, exponent = args
    if (base == 0 and exponent < 0) or (base < 0 and not mpmath.isint(exponent)):
        return None
    return base ** int(exponent) if mpmath.isint(exponent) else mpmath.power(base, exponent)


def as_arb(expr: Any, point: dict[Any, Any]) -> Any:
    """Evaluate an expression in arb ball arithmetic; not finite where it is undefined."""
    if expr.is_Symbol:
        return arb(point[expr])
    if expr.is_Rational or expr.is_Float:
        exact = sympy.Rational(expr)
        return arb(fmpq(int(exact.p), int(exact.q)))
    if expr.is_NumberSymbol:
        return arb.pi() if expr is sympy.pi else arb(1).exp()
    args = [as_arb(child, point) for child in expr.args]
    if expr.is_Add:
        return sum(args, arb(0))
    if expr.is_Pow:
        return _arb_power(args[0], expr.exp, args[1])
    if isinstance(expr, sympy.exp):
        return args[0].exp()
    if isinstance(expr, sympy.log):
        return args[0].log()
    product = arb(1)
    for factor in args:
        product *= factor
    return product


def _arb_power(base: Any, exponent: Any, value: Any) -> Any:
    if not exponent.is_Integer:
        return base**value
    product = arb(1)
    for _ in range(abs(int(exponent))):
        product *= base
    return product if exponent > 0 else 1 / product
