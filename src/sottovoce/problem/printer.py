"""Expressions to text that people read and that `sottovoce.problem.text` reads back unchanged."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import sympy

from sottovoce.arguments import without_deep_recursion
from sottovoce.errors import ProblemError
from sottovoce.problem import kinks
from sottovoce.problem.expressions import check_expression
from sottovoce.problem.text import parse_constraint, parse_expression

# How tightly a text binds: in a place that asks for more it gets brackets.
_SUM, _PRODUCT, _POWER, _ATOM = range(4)


_KINKS: dict[Any, str] = {
    kinks.absolute: "abs",
    kinks.maximum: "max",
    kinks.norm: "norm",
    kinks.huber: "huber",
}


@without_deep_recursion
def write_expression(expr: sympy.Expr) -> str:
    """Write a checked expression, such as `x5**2 + x6**4/12`.

    Reading is the inverse of writing: parse_expression(write_expression(e)) == e, node by node.
    Symbols are written by their names.

    Raises:
        ProblemError: If the text would not read back as the same expression: it is too long, or
            the expression is not one that `check_expression` returns.
    """
    check_expression(expr, expr.free_symbols, "")
    return _read_back(expr, _text(expr, _SUM), parse_expression)


@without_deep_recursion
def write_constraint(g: sympy.Expr, *, equality: bool = False) -> str:
    """Write g <= 0, or g == 0, with its constant on the right, such as `x1 + x2 + x3 <= 3`.

    Reading is the inverse of writing: parse_constraint(write_constraint(g)) == (g, False), node by
    node. Errors are those of `write_expression`.
    """
    check_expression(g, g.free_symbols, "")
    terms = sympy.Add.make_args(g)
    left = sympy.Add(*[term for term in terms if term.free_symbols])
    right = -sympy.Add(*[term for term in terms if not term.free_symbols])
    sign = "==" if equality else "<="
    text = f"{_text(left, _SUM)} {sign} {_text(right, _SUM)}"
    return _read_back((g, equality), text, parse_constraint)


def readable(expr: sympy.Expr) -> str:
    """Write any expression as people read it, for messages; it need not read back."""
    known = {sympy.exp, sympy.log, *_KINKS}
    if {f.func for f in expr.atoms(sympy.Function)} - known or not isinstance(expr, sympy.Expr):
        return str(expr)  # a function that expressions do not have
    return _text(expr, _SUM)


def _read_back(written: Any, text: str, parse: Callable[..., Any]) -> str:
    expr = written[0] if isinstance(written, tuple) else written
    symbols = {symbol.name: symbol for symbol in expr.free_symbols}
    if parse(text, symbols, where="text written for a file") != written:
        raise ProblemError(
            f"an expression must read back unchanged, but {text!r:.60} does not; "
            "pass it through check_expression first"
        )
    return text


def _text(expr: sympy.Expr, place: int) -> str:
    text, binding = _bound(expr)
    return f"({text})" if binding < place else text


def _bound(expr: sympy.Expr) -> tuple[str, int]:
    """The text of an expression and how tightly it binds."""
    if isinstance(expr, sympy.Symbol):
        return expr.name, _ATOM
    if isinstance(expr, sympy.Add):
        return _sum(expr), _SUM
    if _is_negative(expr):
        return f"-{_text(-expr, _PRODUCT)}", _SUM
    if isinstance(expr, sympy.Integer):
        return str(expr), _ATOM
    if isinstance(expr, sympy.Float):
        return repr(float(expr)), _ATOM
    if expr is sympy.pi or expr is sympy.E:
        return ("pi" if expr is sympy.pi else "exp(1)"), _ATOM
    if isinstance(expr, sympy.exp | sympy.log):
        return _function(expr), _ATOM
    if isinstance(expr, sympy.Function) and expr.func in _KINKS:
        inside = (_text(a, _SUM) for a in _arguments(expr))
        return f"{_KINKS[expr.func]}({', '.join(inside)})", _ATOM
    if isinstance(expr, sympy.Pow) and not _divides(expr):
        return _power(expr.base, expr.exp)
    return _product(expr), _PRODUCT


def _sum(expr: sympy.Add) -> str:
    """Constants last, x2 before x10, higher powers first."""
    pieces = []
    for term in expr.args:
        names, negative = _names(term), _is_negative(term)
        text = _text(-term if negative else term, _PRODUCT)
        pieces.append((not names, names, -_degree(term), text, "-" if negative else "+"))
    text = "".join(f" {sign} {text}" for *_, text, sign in sorted(pieces))
    return text[3:] if text.startswith(" + ") else f"-{text[3:]}"


def _product(expr: sympy.Expr) -> str:
    """Constants first, x2 before x10, names before functions; every divisor has its own slash.

    Behind one slash SymPy would multiply divisors out: 1/(2*(x + 1)) is 1/(2*x + 2).
    """
    number, rest = expr.as_coeff_Mul()
    top, bottom = number.as_numer_denom()
    pieces = []
    for factor in sympy.Mul.make_args(rest):
        divides = _divides(factor)
        text = _text(1 / factor if divides else factor, _POWER)
        pieces.append((_names(factor), not isinstance(factor, sympy.Symbol), text, divides))
    pieces.sort()
    above = [_text(top, _ATOM), *(text for *_, text, divides in pieces if not divides)]
    below = [_text(bottom, _ATOM), *(text for *_, text, divides in pieces if divides)]
    numerator = "*".join(text for text in above if text != "1") or "1"
    return "/".join([numerator, *(text for text in below if text != "1")])


def _power(base: sympy.Expr, exponent: sympy.Expr) -> tuple[str, int]:
    if exponent == sympy.Rational(1, 2):
        return f"sqrt({_text(base, _SUM)})", _ATOM
    return f"{_text(base, _ATOM)}**{_text(exponent, _ATOM)}", _POWER


def _function(expr: sympy.Expr) -> str:
    (argument,) = expr.args
    terms = sympy.Add.make_args(argument)
    if isinstance(expr, sympy.log) and all(isinstance(term, sympy.exp) for term in terms):
        pieces = sorted((_names(term), _text(term.args[0], _SUM)) for term in terms)
        return f"logsumexp({', '.join(text for _, text in pieces)})"
    return f"{expr.func.__name__}({_text(argument, _SUM)})"


def _arguments(expr: sympy.Expr) -> list[sympy.Expr]:
    return kinks.pieces_of(expr) if isinstance(expr, kinks.maximum) else list(expr.args)


def _is_negative(expr: sympy.Expr) -> bool:
    return bool(expr.as_coeff_Mul()[0] < 0)


def _divides(factor: sympy.Expr) -> bool:
    return isinstance(factor, sympy.Pow) and factor.exp.is_Number and _is_negative(factor.exp)


def _degree(term: sympy.Expr) -> float:
    powers = [factor.exp for factor in sympy.Mul.make_args(term) if factor.is_Pow]
    return sum(float(power) for power in powers if power.is_Number)


def _names(expr: sympy.Expr) -> list[list[str | int]]:
    """The names in an expression, cut so that their numbers compare as numbers."""
    return sorted(
        [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", symbol.name)]
        for symbol in expr.free_symbols
    )
