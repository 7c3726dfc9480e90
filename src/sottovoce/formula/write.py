"""Printer: formulas to text that ``sottovoce.formula.parse`` reads back unchanged, and to LaTeX."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import TypeAlias

from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import (
    addends,
    base_exponent,
    canonical,
    coefficient,
    factors,
    negate,
    power,
    split_constant,
)
from sottovoce.formula.expression import Expression, Op, Scalar, nodes, number
from sottovoce.formula.order import name_keys
from sottovoce.formula.parse import parse_constraint, parse_expression

# How tightly a text binds: in a place that asks for more it gets brackets.
_SUM, _PRODUCT, _POWER, _ATOM = range(4)
_HALF = Fraction(1, 2)
_MAX_OPERATIONS = 1_000_000
_FILE = "text written for a file"


def write_expression(expr: Expression) -> str:
    """Write a formula, such as `x5**2 + x6**4/12`.

    Reading is the inverse of writing: ``parse_expression(write_expression(e)) is canonical(e)``.

    Raises:
        ProblemError: If the text does not read back as the same formula: it is too long, a name is
            not one, or the formula is the derivative of a non-smooth one.
    """
    form = _form_of(expr)
    text = _write(form, _SUM, _PlainText)
    return _unchanged(text, parse_expression(text, _names(form), where=_FILE) is form)


def write_constraint(g: Expression, *, equality: bool = False) -> str:
    """Write g <= 0, or g == 0, with its constant on the right, such as `x1 + x2 + x3 <= 3`.

    Reading is the inverse of writing, and errors are those of `write_expression`.
    """
    form = _form_of(g)
    constant, left = split_constant(form)
    sides = (_write(side, _SUM, _PlainText) for side in (left, number(-constant)))
    text = (" == " if equality else " <= ").join(sides)
    read, sign = parse_constraint(text, _names(form), where=_FILE)
    return _unchanged(text, read is form and sign == equality)


def readable(expr: Expression) -> str:
    """Write any formula for messages; the text need not parse."""
    try:
        return _write(_form_of(expr), _SUM, _PlainText)
    except ProblemError as error:
        return f"<formula without a text: {error}>"


def latex(expr: Expression) -> str:
    """Write any formula in LaTeX's mathematics."""
    try:
        return _write(_form_of(expr), _SUM, _Tex)
    except ProblemError as error:
        return rf"\text{{formula without a text: {error}}}"


def _names(form: Expression) -> dict[str, Expression]:
    return {symbol.name: symbol for symbol in form.symbols}


def _unchanged(text: str, is_same: bool) -> str:
    if not is_same:
        raise ProblemError(f"an expression must read back unchanged, but {text!r:.60} does not")
    return text


def _form_of(expr: Expression) -> Expression:
    """The canonical form, unless the parts that it shares would make its text too long."""
    sizes: dict[Expression, int] = {}
    for part in nodes((form := canonical(expr),)):
        sizes[part] = 1 + sum(sizes[a] for a in part.args)
    if sizes[form] > _MAX_OPERATIONS:
        raise ProblemError(
            f"a text must have at most {_MAX_OPERATIONS} operations, got {sizes[form]}"
        )
    return form


# Structure, in either notation --------------------------------------------------------------------


def _write(expr: Expression, place: int, style: _Notation) -> str:
    text, binding = _write_bound(expr, style)
    return style.brackets(text) if binding < place else text


def _write_bound(expr: Expression, style: _Notation) -> tuple[str, int]:
    """The text of a canonical formula and how tightly it binds."""
    if expr.op == Op.SYMBOL:
        return style.name(expr.name), _ATOM
    if expr.op == Op.ADD:
        return _sum(expr, style), _SUM
    if _is_negative(expr):
        return f"-{_write(negate(expr), _PRODUCT, style)}", _SUM
    if expr.op == Op.NUMBER:
        return style.number(expr.value)
    if expr.op == Op.POW and expr.value == _HALF:
        return style.root(_write(expr.args[0], _SUM, style)), _ATOM
    if expr.op == Op.POW and expr.value > 0:
        exponent = _write(number(expr.value), style.exponent, style)
        return style.power(_write(expr.args[0], _ATOM, style), exponent), _POWER
    if expr.op in (Op.MUL, Op.POW):
        return _product(expr, style)
    is_log = style is _PlainText and expr.op == Op.LOG
    if is_log and all(term.op == Op.EXP for term in addends(expr.args[0])):
        terms = sorted(
            (name_keys(t), _join_arguments(t.args, style)) for t in addends(expr.args[0])
        )
        return style.call("logsumexp", ", ".join(text for _, text in terms), "")
    width = "" if expr.value is None else _write(number(expr.value), _SUM, style)
    return style.call(expr.op, _join_arguments(expr.args, style), width)


def _sum(expr: Expression, style: _Notation) -> str:
    """Constants last, x2 before x10, higher powers first."""
    pieces = []
    for term in expr.args:
        negative = _is_negative(term)
        text = _write(negate(term) if negative else term, _PRODUCT, style)
        degree = sum(float(f.value) for f in factors(term) if f.op == Op.POW)
        rank = not name_keys(term), name_keys(term), -degree
        pieces.append((*rank, text, "-" if negative else "+"))
    text = "".join(f" {sign} {text}" for *_, text, sign in sorted(pieces))
    return text[3:] if text.startswith(" + ") else f"-{text[3:]}"


def _product(expr: Expression, style: _Notation) -> tuple[str, int]:
    """The number first, x2 before x10, names before functions."""
    scale, rest = coefficient(expr)
    above = [f for f in factors(rest) if base_exponent(f)[1] >= 0]
    below = [power(f, -1) for f in factors(rest) if base_exponent(f)[1] < 0]
    if _is_minimum(expr):
        scale = -scale
        texts = [style.call("min", _join_arguments(map(negate, above[0].args), style), "")[0]]
    else:
        texts = _factors(above, style)
    top, bottom = (scale, 1) if isinstance(scale, float) else scale.as_integer_ratio()
    numerator = ([] if top == 1 and above else [style.number(top)[0]]) + texts
    divisors = ([] if bottom == 1 else [str(bottom)]) + _factors(below, style)
    is_factor = scale == 1 and len(above) == 1 and not divisors
    return style.quotient(numerator, divisors), _ATOM if is_factor else _PRODUCT


def _factors(parts: Iterable[Expression], style: _Notation) -> list[str]:
    pieces = sorted((name_keys(f), not f.is_symbol, _write(f, _POWER, style)) for f in parts)
    return [text for *_, text in pieces]


def _join_arguments(arguments: Iterable[Expression], style: _Notation) -> str:
    return ", ".join(_write(a, _SUM, style) for a in arguments)


def _is_negative(expr: Expression) -> bool:
    return coefficient(expr)[0] < 0 and not _is_minimum(expr)


def _is_minimum(expr: Expression) -> bool:
    """Whether a formula is ``-c max(-a, -b)``, which people write ``c min(a, b)``."""
    scale, rest = coefficient(expr)
    if scale >= 0 or rest.op != Op.MAX:
        return False
    return all(coefficient(addends(p)[0])[0] < 0 for p in rest.args if not p.is_number)


# Notations ----------------------------------------------------------------------------------------


class _PlainText:
    """What ``sottovoce.formula.parse`` reads; every divisor has its own slash."""

    exponent = _ATOM  # how tightly an exponent must bind to stand without brackets
    name = staticmethod(str)
    brackets = staticmethod("({})".format)
    root = staticmethod("sqrt({})".format)
    power = staticmethod("{}**{}".format)

    @staticmethod
    def number(value: Scalar) -> tuple[str, int]:
        return str(value), _PRODUCT if isinstance(value, Fraction) else _ATOM

    @staticmethod
    def quotient(numerator: list[str], divisors: list[str]) -> str:
        return "/".join(["*".join(numerator), *divisors])

    @staticmethod
    def call(name: str, arguments: str, width: str) -> tuple[str, int]:
        return f"{name}({arguments}{', ' if width else ''}{width})", _ATOM


class _Tex:
    exponent = _SUM
    brackets = staticmethod(r"\left({}\right)".format)
    root = staticmethod(r"\sqrt{{{}}}".format)
    power = staticmethod("{}^{{{}}}".format)

    @staticmethod
    def name(name: str) -> str:
        """``x3[2]`` as x_{3,2}; words upright."""
        head, _, index = name.partition("[")
        word = head.rstrip("0123456789")
        below = ",".join(part for part in (head[len(word) :], index.rstrip("]")) if part)
        word = word.rstrip("_").replace("_", r"\_")
        base = word if len(word) == 1 else rf"\mathrm{{{word}}}"
        return f"{base}_{{{below}}}" if below else base

    @staticmethod
    def number(value: Scalar) -> tuple[str, int]:
        if isinstance(value, Fraction):
            return rf"\frac{{{value.numerator}}}{{{value.denominator}}}", _PRODUCT
        digits, _, exponent = str(value).partition("e")
        return (
            (rf"{digits} \cdot 10^{{{int(exponent)}}}", _PRODUCT) if exponent else (digits, _ATOM)
        )

    @staticmethod
    def quotient(numerator: list[str], divisors: list[str]) -> str:
        above = " ".join(numerator)
        return rf"\frac{{{above}}}{{{' '.join(divisors)}}}" if divisors else above

    @staticmethod
    def call(name: str, arguments: str, width: str) -> tuple[str, int]:
        if name == Op.EXP:
            return f"e^{{{arguments}}}", _POWER
        if name == Op.ABS:
            return rf"\left|{arguments}\right|", _ATOM
        inside = _Tex.brackets(arguments)
        if name == Op.NORM:
            return rf"\left\|{inside}\right\|", _ATOM
        word = rf"\{name}" if name in ("log", "max", "min") else rf"\mathrm{{{name}}}"
        return f"{word}_{{{width}}}{inside}" if width else f"{word}{inside}", _ATOM


_Notation: TypeAlias = type[_PlainText] | type[_Tex]
