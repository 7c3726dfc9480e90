"""Formulas to text that people read and ``sottovoce.formula.parse`` reads back unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import TypeVar

from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import (
    addends,
    base_exponent,
    canonical,
    coefficient,
    factors,
    name_keys,
    negate,
    power,
    split_constant,
)
from sottovoce.formula.expression import Expression, Op, Scalar, nodes, number
from sottovoce.formula.parse import parse_constraint, parse_expression

# How tightly a text binds: in a place that asks for more it gets brackets.
_SUM, _PRODUCT, _POWER, _ATOM = range(4)
_HALF = Fraction(1, 2)
_Read = TypeVar("_Read")
_MAX_OPERATIONS = 1_000_000


def write_expression(expr: Expression) -> str:
    """Write a formula, such as `x5**2 + x6**4/12`.

    Reading is the inverse of writing: ``parse_expression(write_expression(e)) is canonical(e)``.

    Raises:
        ProblemError: If the text does not read back as the same formula: it is too long, a name is
            not one, or the formula is the derivative of one with kinks.
    """
    form = _sized(canonical(expr))
    return _read_back(form, _text(form, _SUM), parse_expression, form)


def write_constraint(g: Expression, *, equality: bool = False) -> str:
    """Write g <= 0, or g == 0, with its constant on the right, such as `x1 + x2 + x3 <= 3`.

    Reading is the inverse of writing, and errors are those of `write_expression`.
    """
    form = _sized(canonical(g))
    constant, left = split_constant(form)
    right = number(-constant)
    text = f"{_text(left, _SUM)} {'==' if equality else '<='} {_text(right, _SUM)}"
    return _read_back(form, text, parse_constraint, (form, equality))


def readable(expr: Expression) -> str:
    """Write any formula as people read it, for messages; it need not read back."""
    try:
        return _text(_sized(canonical(expr)), _SUM)
    except ProblemError as error:
        return f"<formula without a text: {error}>"


def _read_back(form: Expression, text: str, parse: Callable[..., _Read], written: _Read) -> str:
    symbols = {symbol.name: symbol for symbol in form.symbols}
    read = parse(text, symbols, where="text written for a file")
    pairs = ((v if isinstance(v, tuple) else (v,)) for v in (written, read))
    if not all(a is b for a, b in zip(*pairs, strict=True)):
        raise ProblemError(f"an expression must read back unchanged, but {text!r:.60} does not")
    return text


def _sized(form: Expression) -> Expression:
    """A formula as it is, unless the parts that it shares would make its text too long."""
    sizes: dict[Expression, int] = {}
    for part in nodes((form,)):
        sizes[part] = 1 + sum(sizes[a] for a in part.args)
    if sizes[form] > _MAX_OPERATIONS:
        raise ProblemError(
            f"a text must have at most {_MAX_OPERATIONS} operations, got {sizes[form]}"
        )
    return form


def _text(expr: Expression, place: int) -> str:
    text, binding = _bound(expr)
    return f"({text})" if binding < place else text


def _bound(expr: Expression) -> tuple[str, int]:
    """The text of a canonical formula and how tightly it binds."""
    if expr.op == Op.SYMBOL:
        return expr.name, _ATOM
    if expr.op == Op.ADD:
        return _sum(expr), _SUM
    if _is_negative(expr):
        return f"-{_text(negate(expr), _PRODUCT)}", _SUM
    if expr.op == Op.NUMBER:
        return str(expr.value), _PRODUCT if isinstance(expr.value, Fraction) else _ATOM
    if expr.op == Op.POW and expr.value > 0:
        return _power(expr.args[0], expr.value)
    if expr.op in (Op.MUL, Op.POW):
        return _product(expr)
    return _call(expr), _ATOM


def _sum(expr: Expression) -> str:
    """Constants last, x2 before x10, higher powers first."""
    pieces = []
    for term in expr.args:
        negative = _is_negative(term)
        text = _text(negate(term) if negative else term, _PRODUCT)
        pieces.append((*_rank(term), text, "-" if negative else "+"))
    text = "".join(f" {sign} {text}" for *_, text, sign in sorted(pieces))
    return text[3:] if text.startswith(" + ") else f"-{text[3:]}"


def _product(expr: Expression) -> tuple[str, int]:
    """The number first, x2 before x10, names before functions; every divisor has its own slash."""
    scale, above, below = _fraction(expr)
    if _is_minimum(expr):
        scale, above_texts = -scale, [_listed("min", map(negate, above[0].args))]
    else:
        above_texts = _factor_texts(above)
    top, bottom = (scale, 1) if isinstance(scale, float) else scale.as_integer_ratio()
    numerator = "*".join(([] if top == 1 and above else [str(top)]) + above_texts)
    divisors = ([] if bottom == 1 else [str(bottom)]) + _factor_texts(below)
    alone = scale == 1 and len(above) == 1 and not divisors
    return "/".join([numerator, *divisors]), _ATOM if alone else _PRODUCT


def _factor_texts(parts: Iterable[Expression]) -> list[str]:
    pieces = sorted((name_keys(f), not f.is_symbol, _text(f, _POWER)) for f in parts)
    return [text for *_, text in pieces]


def _power(base: Expression, exponent: Scalar) -> tuple[str, int]:
    if exponent == _HALF:
        return f"sqrt({_text(base, _SUM)})", _ATOM
    return f"{_text(base, _ATOM)}**{_text(number(exponent), _ATOM)}", _POWER


def _call(expr: Expression) -> str:
    if _is_logsumexp(expr):
        terms = sorted((name_keys(t), _text(t.args[0], _SUM)) for t in addends(expr.args[0]))
        return f"logsumexp({', '.join(text for _, text in terms)})"
    width = () if expr.value is None else (number(expr.value),)
    return _listed(expr.op, (*expr.args, *width))


def _listed(name: str, arguments: Iterable[Expression]) -> str:
    return f"{name}({', '.join(_text(a, _SUM) for a in arguments)})"


# What both writers ask of a formula ---------------------------------------------------------------


def _is_negative(expr: Expression) -> bool:
    return coefficient(expr)[0] < 0 and not _is_minimum(expr)


def _is_minimum(expr: Expression) -> bool:
    """Whether a formula is ``-c max(-a, -b)``, which people write ``c min(a, b)``."""
    scale, rest = coefficient(expr)
    if scale >= 0 or rest.op != Op.MAX:
        return False
    return all(coefficient(addends(p)[0])[0] < 0 for p in rest.args if not p.is_number)


def _is_logsumexp(expr: Expression) -> bool:
    return expr.op == Op.LOG and all(term.op == Op.EXP for term in addends(expr.args[0]))


def _rank(term: Expression) -> tuple[bool, tuple[str, ...], float]:
    """What orders the terms of a sum."""
    exponents = (float(f.value) for f in factors(term) if f.op == Op.POW)
    return not name_keys(term), name_keys(term), -sum(exponents)


def _fraction(expr: Expression) -> tuple[Scalar, list[Expression], list[Expression]]:
    """The number of a product, its factors, and what divides it."""
    scale, rest = coefficient(expr)
    above, below = [], []
    for factor in factors(rest):
        base, exponent = base_exponent(factor)
        if exponent < 0:
            below.append(power(base, -exponent))
        else:
            above.append(factor)
    return scale, above, below


# LaTeX --------------------------------------------------------------------------------------------


def latex(expr: Expression) -> str:
    """Write any formula in LaTeX's mathematics."""
    try:
        return _tex(_sized(canonical(expr)), _SUM)
    except ProblemError as error:
        return rf"\text{{formula without a text: {error}}}"


def _tex(expr: Expression, place: int) -> str:
    text, binding = _tex_bound(expr)
    return _in_brackets(text) if binding < place else text


def _in_brackets(text: str) -> str:
    return rf"\left({text}\right)"


def _tex_bound(expr: Expression) -> tuple[str, int]:
    if expr.op == Op.SYMBOL:
        return _tex_name(expr.name), _ATOM
    if expr.op == Op.ADD:
        terms = sorted((*_rank(term), _tex(term, _SUM)) for term in expr.args)
        return " + ".join(text for *_, text in terms).replace("+ -", "- "), _SUM
    if _is_negative(expr):
        return f"-{_tex(negate(expr), _PRODUCT)}", _SUM
    if expr.op == Op.NUMBER:
        return _tex_number(expr.value)
    if expr.op == Op.POW and expr.value > 0:
        base, exponent = base_exponent(expr)
        if exponent == _HALF:
            return rf"\sqrt{{{_tex(base, _SUM)}}}", _ATOM
        return f"{_tex(base, _ATOM)}^{{{_tex(number(exponent), _SUM)}}}", _POWER
    if expr.op in (Op.MUL, Op.POW):
        return _tex_product(expr)
    return _tex_call(expr)


def _tex_number(value: Scalar) -> tuple[str, int]:
    if isinstance(value, Fraction):
        return rf"\frac{{{value.numerator}}}{{{value.denominator}}}", _PRODUCT
    digits, _, exponent = str(value).partition("e")
    if exponent:
        return rf"{digits} \cdot 10^{{{int(exponent)}}}", _PRODUCT
    return digits, _ATOM


def _tex_product(expr: Expression) -> tuple[str, int]:
    scale, above, below = _fraction(expr)
    if _is_minimum(expr):
        scale, above_texts = -scale, [_tex_listed(r"\min", map(negate, above[0].args))]
    else:
        above_texts = [_tex(f, _POWER) for f in above]
    top, bottom = (scale, 1) if isinstance(scale, float) else scale.as_integer_ratio()
    numerator = " ".join(([] if top == 1 and above else [_tex_number(top)[0]]) + above_texts)
    divisors = ([] if bottom == 1 else [str(bottom)]) + [_tex(f, _POWER) for f in below]
    if not divisors:
        return numerator, _PRODUCT
    return rf"\frac{{{numerator}}}{{{' '.join(divisors)}}}", _PRODUCT


def _tex_call(expr: Expression) -> tuple[str, int]:
    if expr.op == Op.EXP:
        return f"e^{{{_tex(expr.args[0], _SUM)}}}", _POWER
    if expr.op == Op.ABS:
        return rf"\left|{_tex(expr.args[0], _SUM)}\right|", _ATOM
    if expr.op == Op.NORM:
        return rf"\left\|{_tex_listed('', expr.args)}\right\|", _ATOM
    name = {Op.LOG: r"\log", Op.MAX: r"\max"}.get(expr.op, rf"\mathrm{{{expr.op}}}")
    if expr.op == Op.HUBER:
        name = f"{name}_{{{_tex(number(expr.value), _SUM)}}}"
    return _tex_listed(name, expr.args), _ATOM


def _tex_listed(name: str, arguments: Iterable[Expression]) -> str:
    return name + _in_brackets(", ".join(_tex(a, _SUM) for a in arguments))


def _tex_name(name: str) -> str:
    """``x3[2]`` as x_{3,2}; words upright."""
    head, _, index = name.partition("[")
    word = head.rstrip("0123456789")
    below = ",".join(part for part in (head[len(word) :], index.rstrip("]")) if part)
    word = word.rstrip("_").replace("_", r"\_")
    base = word if len(word) == 1 else rf"\mathrm{{{word}}}"
    return f"{base}_{{{below}}}" if below else base
