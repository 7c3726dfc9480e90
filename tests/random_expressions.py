"""Random formulas, boxes and points, with their values to 50 digits (mpmath)."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import mpmath
from hypothesis import reject, settings
from hypothesis import strategies as st

from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import canonical
from sottovoce.formula.expression import Expression, Op, number, symbol
from sottovoce.formula.functions import exp, log

patiently = settings(deadline=None)  # the machine may be busy

SYMBOLS = tuple(map(symbol, "xyz"))
EXPONENTS = [2, 3, 4, -1, -2, -3] + [
    Fraction(*pair) for pair in [(1, 2), (-1, 2), (3, 2), (-3, 2), (1, 3), (-2, 3), (7, 5)]
]

numbers = st.one_of(
    st.integers(-4, 4).map(number),
    st.fractions(-3, 3, max_denominator=9).map(number),
    st.floats(-3, 3, allow_subnormal=False).map(number),
)
leaves = st.one_of(st.sampled_from(SYMBOLS), st.sampled_from(SYMBOLS), numbers)


def symbols(letter: str, count: int) -> tuple[Expression, ...]:
    """``x1, x2, ...`` for the letter x."""
    return tuple(symbol(f"{letter}{k}") for k in range(1, count + 1))


def total(terms: Any) -> Expression:
    """The canonical sum of some formulas."""
    return canonical(Expression(Op.ADD, tuple(terms)))


def _grow(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    moving = children.filter(_moves)
    return st.one_of(
        st.lists(children, min_size=2, max_size=3).map(lambda a: Expression(Op.ADD, tuple(a))),
        st.lists(children, min_size=2, max_size=3).map(lambda a: Expression(Op.MUL, tuple(a))),
        st.tuples(moving, st.sampled_from(EXPONENTS)).map(lambda pair: pair[0] ** pair[1]),
        moving.map(lambda u: exp(u / 3)),
        moving.map(log),
    )


def _moves(expr: Expression) -> bool:
    try:
        return bool(expr.symbols)
    except ProblemError:
        return False


def _form(expr: Expression) -> Expression | None:
    try:
        return canonical(expr)
    except ProblemError:  # a constant that is not a real number
        return None


expressions = (
    st.recursive(leaves, _grow, max_leaves=8).map(_form).filter(lambda expr: expr is not None)
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
    """Return the real value of a formula to 50 digits, or None where it has none."""
    if expr.is_symbol:
        return mpmath.mpf(point[expr])
    if expr.is_number:
        exact = Fraction(expr.value)
        return mpmath.mpf(exact.numerator) / exact.denominator
    args = [precise(child, point) for child in expr.args]
    if any(value is None for value in args):
        return None
    if expr.op == Op.ADD:
        return mpmath.fsum(args)
    if expr.op == Op.MUL:
        return mpmath.fprod(args)
    if expr.op == Op.EXP:
        if abs(args[0]) > 10_000:
            reject()  # mpmath would be busy with millions of digits
        return mpmath.exp(args[0])
    if expr.op == Op.LOG:
        return mpmath.log(args[0]) if args[0] > 0 else None
    base, exponent = args[0], Fraction(expr.value)
    if (base == 0 and exponent < 0) or (base < 0 and exponent.denominator > 1):
        return None
    if exponent.denominator == 1:
        return base ** int(exponent)
    return mpmath.power(base, mpmath.mpf(exponent.numerator) / exponent.denominator)
