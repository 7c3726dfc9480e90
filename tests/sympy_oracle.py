"""Formulas in SymPy, which shares no code with ours: an oracle for values and derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import sympy as sp

from sottovoce.formula.expression import Expression, Op, nodes


def sympy_of(expr: Expression) -> Any:
    """The same formula of real symbols; doubles become the fractions that they are."""
    known: dict[Expression, Any] = {}
    for part in nodes((expr,)):
        known[part] = _converted(part, [known[a] for a in part.args])
    return known[expr]


def sympy_symbol(symbol: Expression) -> Any:
    return sp.Symbol(symbol.name, real=True)


def function_of(symbols: Iterable[Expression], exprs: Any) -> Callable[..., Any]:
    """``[x_1, ..., x_n] ->`` the values of formulas, or of lists of formulas, by SymPy."""
    function: Callable[..., Any] = sp.lambdify(
        [[sympy_symbol(s) for s in symbols]], _nested(exprs), modules="numpy"
    )
    return function


def _nested(exprs: Any) -> Any:
    return sympy_of(exprs) if isinstance(exprs, Expression) else [_nested(e) for e in exprs]


def _converted(expr: Expression, args: list[Any]) -> Any:
    if expr.op == Op.NUMBER:
        return sp.Rational(*Fraction(expr.value).as_integer_ratio())
    if expr.op == Op.SYMBOL:
        return sympy_symbol(expr)
    if expr.op == Op.POW:
        c = expr.value
        return args[0] ** (sp.Float(c) if isinstance(c, float) else sp.Rational(c))
    if expr.op == Op.NORM:
        return sp.sqrt(sp.Add(*(a**2 for a in args)))
    if expr.op == Op.WHERE:
        return sp.Piecewise((args[1], args[0] > 0), (args[2], True))
    if expr.op == Op.NORM_SLOPE:
        half = len(args) // 2
        length = sp.sqrt(sp.Add(*(a**2 for a in args[:half])))
        top = sp.Add(*(a * b for a, b in zip(args[:half], args[half:], strict=True)))
        return sp.Piecewise((top / length, length > 0), (0, True))
    if expr.op == Op.HUBER:
        m, size = sp.Rational(Fraction(expr.value)), sp.Abs(args[0])
        return sp.Piecewise((args[0] ** 2, size <= m), (m * (2 * size - m), True))
    plain = {Op.ADD: sp.Add, Op.MUL: sp.Mul, Op.EXP: sp.exp, Op.LOG: sp.log, Op.ABS: sp.Abs,
             Op.SIGN: sp.sign, Op.MAX: sp.Max}  # fmt: skip
    return plain[expr.op](*args)
