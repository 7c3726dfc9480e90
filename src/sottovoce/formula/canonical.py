"""The canonical form of a formula, and the constructors that keep it.

    sums are flat, like terms are collected, a number times a sum is multiplied out;
    products are flat, powers of one base and exponentials are joined, the number comes first;
    operands of sums, products and maxima have one order, which does not depend on coefficients;
    constants are evaluated; sign and factor come out of absolute values;
    a root stays inside an integer power where it alone says that its operand is not negative.

Constructors take canonical operands and return a canonical node; ``canonical`` brings any formula
into this form. Formulas nest at most ``MAX_DEPTH`` levels in it, whatever the length of their sums
and products, so that readers of a canonical formula may recurse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from operator import is_not
from typing import TypeAlias, cast

from sottovoce.errors import ProblemError
from sottovoce.formula.expression import (
    NONSMOOTH,
    ONE,
    ZERO,
    Content,
    Expression,
    Op,
    Scalar,
    constant_power,
    exact_product,
    exact_sum,
    in_exact_arithmetic,
    interned,
    nodes,
    number,
    scalar,
)
from sottovoce.formula.order import in_order

MAX_DEPTH = 50  # readers recurse, within the 1,000 frames that Python allows
MAX_EXPONENT = 1000

_Counts: TypeAlias = tuple[Expression, ...] | dict[Expression, int]
"""Operands, and how often each occurs if more than once is possible."""


def canonical(expr: Expression) -> Expression:
    """Return the canonical form of a formula.

    Raises:
        ProblemError: for a constant that is not finite, a large exponent, or too deep nesting.
    """
    counts: dict[Expression, _Counts] = {}

    def missing(part: Expression) -> list[Expression]:
        counts[part] = operands = _operands(part)
        return [a for a in operands if a._depth < 0 and a._canonical is None]

    if expr._depth < 0 and expr._canonical is None:
        for part in nodes((expr,), missing):
            part._canonical = _combine(part, counts.pop(part))
    return expr if expr._canonical is None else expr._canonical


def _operands(expr: Expression) -> _Counts:
    """The operands of a node; of a chain of sums or products, those of all its links, counted.

    The chain is read as it was written, whether the form of a link is known or not: the form of a
    formula must not depend on what has been asked before.
    """
    op = expr.op
    if op not in (Op.ADD, Op.MUL) or not [a for a in expr.args if a.op == op and a._depth < 0]:
        return expr.args
    links: list[Expression] = []
    seen = {expr}
    todo: list[Expression | None] = [expr]
    while todo:
        link = todo.pop()
        if link is None:  # all links below the one before it are listed
            links.append(cast(Expression, todo.pop()))
            continue
        todo += (link, None)
        for a in link.args:
            if a.op == op and a._depth < 0 and a not in seen:
                seen.add(a)
                todo.append(a)
    counts = {expr: 1}
    for link in reversed(links):
        times = counts.pop(link)
        for a in link.args:
            counts[a] = counts.get(a, 0) + times
    return counts


def _combine(expr: Expression, counts: _Counts) -> Expression:
    """The canonical node of an operation whose operands have their forms."""
    forms = [a if a._canonical is None else a._canonical for a in counts]
    if isinstance(counts, dict):
        repeated: Callable[..., Expression] = power if expr.op == Op.MUL else _multiple
        pairs = zip(forms, counts.values(), strict=True)
        forms = [form if k == 1 else repeated(form, k) for form, k in pairs]
    return rebuild(expr, forms)


def rebuild(expr: Expression, args: Sequence[Expression], value: Content = None) -> Expression:
    """The operation of a node on other canonical operands, with its own value or another."""
    if not expr.args:
        return expr
    content = expr.value if value is None else value
    return _CONSTRUCTORS[expr.op](*args, *(() if content is None else (content,)))


def _canonical_node(op: str, args: tuple[Expression, ...], value: Content = None) -> Expression:
    """The node whose content is canonical."""
    node = interned(op, args, value)
    if node._depth < 0:
        depth = 1 + max([a._depth for a in args])
        if depth > MAX_DEPTH:
            raise ProblemError(
                f"an expression must be nested at most {MAX_DEPTH} levels deep, got more: split it"
            )
        node._depth = depth
    return node


def _join(op: str, args: Sequence[Expression]) -> Expression:
    """A canonical sum, product, maximum or norm; of one operand, itself."""
    return args[0] if len(args) == 1 else _canonical_node(op, tuple(args))


# Parts of sums and products -----------------------------------------------------------------------


def addends(expr: Expression) -> tuple[Expression, ...]:
    """The terms of a sum; of anything else, itself."""
    return expr.args if expr.op == Op.ADD else (expr,)


def factors(expr: Expression) -> tuple[Expression, ...]:
    """The factors of a product; of anything else, itself."""
    return expr.args if expr.op == Op.MUL else (expr,)


def coefficient(expr: Expression) -> tuple[Scalar, Expression]:
    """Split a term into its number and the rest, 1 for a number itself."""
    if expr.op == Op.NUMBER:
        return expr.value, ONE
    if expr.op == Op.MUL and expr.args[0].op == Op.NUMBER:
        return expr.args[0].value, _join(Op.MUL, expr.args[1:])
    return 1, expr


def split_constant(expr: Expression) -> tuple[Scalar, Expression]:
    """Split a sum into its number and the rest."""
    if expr.op == Op.NUMBER:
        return expr.value, ZERO
    if expr.op == Op.ADD and expr.args[-1].op == Op.NUMBER:
        return expr.args[-1].value, _join(Op.ADD, expr.args[:-1])
    return 0, expr


def base_exponent(expr: Expression) -> tuple[Expression, Scalar]:
    """Split a power into base and exponent; the exponent of anything else is 1."""
    return (expr.args[0], expr.value) if expr.op == Op.POW else (expr, 1)


def _root_exponent(expr: Expression) -> tuple[Expression, Scalar, bool]:
    """Base and exponent, those of a root inside a power joined; whether there is a root."""
    base, c = base_exponent(expr)
    if base.op == Op.POW and is_integer(c) and not is_integer(base.value):
        base, c = base.args[0], scalar(base.value * c)
        return base, c, True
    return base, c, not is_integer(c)


def is_integer(value: Scalar) -> bool:
    """Whether a constant is an integer."""
    return isinstance(value, int)


def is_even(value: Scalar) -> bool:
    """Whether a constant is an even integer."""
    return isinstance(value, int) and value % 2 == 0


def has_domain(expr: Expression) -> bool:
    """Whether an operation is undefined where its operand is negative."""
    return expr.op == Op.LOG or (expr.op == Op.POW and not is_integer(expr.value))


def positive_by_form(expr: Expression, *, strict: bool) -> bool:
    """Whether the form shows that a formula is at least 0, or positive, wherever it is defined."""
    op, args = expr.op, expr.args
    if op == Op.NUMBER:
        return bool(expr.value > 0 if strict else expr.value >= 0)
    if op == Op.ADD:
        least = all(positive_by_form(a, strict=False) for a in args)
        return least and (not strict or any(positive_by_form(a, strict=True) for a in args))
    if op == Op.MUL:
        return all(positive_by_form(a, strict=strict) for a in args)
    if op == Op.MAX:
        return any(positive_by_form(a, strict=strict) for a in args)
    if op == Op.POW:
        square = is_even(expr.value) or not is_integer(expr.value)
        nonzero = not strict or expr.value < 0
        return (square and nonzero) or positive_by_form(args[0], strict=strict)
    return op == Op.EXP or (not strict and op in NONSMOOTH)


# Constructors -------------------------------------------------------------------------------------


def add(*terms: Expression) -> Expression:
    """The sum of canonical terms: like terms are collected, the number comes last."""
    constants: list[Scalar] = []
    first: dict[Expression, Expression] = {}  # by what is left without its coefficient
    like: dict[Expression, list[Scalar]] = {}
    for term in terms:
        for part in term.args if term.op == Op.ADD else (term,):
            if part.op == Op.NUMBER:
                constants.append(part.value)
                continue
            c, rest = coefficient(part)
            if rest in first:
                like.setdefault(rest, [coefficient(first[rest])[0]]).append(c)
            else:
                first[rest] = part
    args = []
    for rest in in_order(first):
        if rest not in like:
            args.append(first[rest])
        elif scale := exact_sum(like[rest]):
            args.append(_multiple(rest, scale))
    constant = exact_sum(constants)
    if constant or not args:
        args.append(number(constant))
    return _join(Op.ADD, args)


def multiply(*operands: Expression) -> Expression:
    """The product of canonical factors: powers of one base are joined, the number comes first."""
    if len(operands) == 2:
        constant, rest = operands if operands[0].op == Op.NUMBER else reversed(operands)
        if constant.op == Op.NUMBER:
            if rest.op == Op.SYMBOL and constant.value not in (0, 1):  # by far the most
                return _canonical_node(Op.MUL, (constant, rest))
            return _multiple(rest, constant.value)
    numbers: list[Scalar] = []
    exponents: dict[Expression, list[Scalar]] = {}
    roots: set[Expression] = set()  # bases with powers that are undefined below 0
    inside: list[Expression] = []  # of exponentials
    for factor in (f for g in operands for f in factors(g)):
        if factor.op == Op.NUMBER:
            numbers.append(factor.value)
        elif factor.op == Op.EXP:
            inside.append(factor.args[0])
        else:
            base, c, is_root = _root_exponent(factor)
            exponents.setdefault(base, []).append(c)
            roots.update((base,) if is_root else ())
    scale = exact_product(numbers)
    if not scale:
        return ZERO
    joined = [
        (_of_root if base in roots else power)(base, exact_sum(c)) for base, c in exponents.items()
    ]
    pairs = zip(exponents, joined, strict=True)
    flat = all(p.is_one or (p.op != Op.MUL and _root_exponent(p)[0] is b) for b, p in pairs)
    if inside:
        joined.append(exp_of(add(*inside)))
    if not flat:  # (x y)^(1/2) twice is x y, whose factors may have other powers here
        return multiply(number(scale), *joined)
    scale = exact_product([scale, *(p.value for p in joined if p.op == Op.NUMBER)])
    moving = in_order(p for p in joined if p.op != Op.NUMBER)
    if not moving:
        return number(scale)
    return _multiple(_join(Op.MUL, moving), scale)


def negate(expr: Expression) -> Expression:
    """``-a``."""
    return _multiple(expr, -1)


def subtract(left: Expression, right: Expression) -> Expression:
    """``a - b``."""
    return add(left, negate(right))


def divide(above: Expression, below: Expression) -> Expression:
    """``a / b``."""
    return multiply(above, power(below, -1))


def power(base: Expression, exponent: Scalar) -> Expression:
    """``a**c`` with a constant c."""
    c = _exponent(scalar(exponent))
    if not c:
        return ONE
    if c == 1:
        return base
    if isinstance(c, float) and (2 * c).is_integer():
        c = Fraction(c)  # x**0.5 is sqrt(x)
    if base.op == Op.NUMBER and (is_integer(c) or base.value <= 0 or not in_exact_arithmetic()):
        return number(constant_power(base.value, c))
    if base.op == Op.EXP:
        return exp_of(multiply(number(c), base.args[0]))
    if is_integer(c) and base.op == Op.POW:
        total = scalar(base.value * c)
        is_root = is_integer(total) and not is_integer(base.value)
        return _of_root(base.args[0], total) if is_root else power(base.args[0], total)
    if is_integer(c) and base.op == Op.MUL:
        return multiply(*(power(f, c) for f in base.args))
    scale, rest = coefficient(base)
    if base.op == Op.MUL and scale > 0 and scale != 1:
        return multiply(power(number(scale), c), power(rest, c))
    return _canonical_node(Op.POW, (base,), c)


def _of_root(base: Expression, c: Scalar) -> Expression:
    """``a**c`` where a is not negative alone: ``(a**(1/2))**(2 c)`` keeps that domain."""
    if not c or not is_integer(c) or positive_by_form(base, strict=False):
        return power(base, c)
    return _canonical_node(Op.POW, (power(base, Fraction(1, 2)),), _exponent(2 * c))


def _exponent(c: Scalar) -> Scalar:
    """An exponent that formulas may have."""
    if not -MAX_EXPONENT <= c <= MAX_EXPONENT:
        raise ProblemError(
            f"exponents must lie in [-{MAX_EXPONENT}, {MAX_EXPONENT}], got {float(c):g}"
        )
    return scalar(c)


def exp_of(argument: Expression) -> Expression:
    """``e^a``; logarithms inside come out as factors."""
    if argument.is_zero:
        return ONE
    if argument.op == Op.NUMBER and not in_exact_arithmetic():
        return number(_finite(math.exp, argument))
    outside, inside = [], []
    for term in addends(argument):
        c, rest = coefficient(term)
        if rest.op == Op.LOG:
            outside.append(_of_root(rest.args[0], c))
        else:
            inside.append(term)
    if outside:
        return multiply(*outside, exp_of(add(*inside)))
    return _canonical_node(Op.EXP, (argument,))


def log_of(argument: Expression) -> Expression:
    """``ln a``."""
    if argument.op == Op.NUMBER:
        if argument.value <= 0:
            raise ProblemError(f"a logarithm must be of a positive number, got {argument}")
        if argument.is_one or not in_exact_arithmetic():
            return number(_finite(math.log, argument))
    return argument.args[0] if argument.op == Op.EXP else _canonical_node(Op.LOG, (argument,))


def absolute_of(argument: Expression) -> Expression:
    """``|a|``."""
    scale, rest = coefficient(argument)
    if rest is ONE:
        return number(max(scale, -scale))
    if rest.op in (Op.ABS, Op.NORM, Op.EXP):
        inside = rest
    else:
        inside = _canonical_node(Op.ABS, (_leading_positive(rest)[1],))
    return multiply(number(max(scale, -scale)), inside)


def sign_of(argument: Expression) -> Expression:
    """The sign of a, 0 at 0."""
    scale, rest = coefficient(argument)
    outer = (scale > 0) - (scale < 0)
    if rest is ONE or not outer:
        return number(outer)
    flip, inside = _leading_positive(rest)
    return multiply(number(outer * flip), _canonical_node(Op.SIGN, (inside,)))


def maximum_of(*pieces: Expression) -> Expression:
    """The largest of several; of pieces that differ by a constant one stays."""
    largest: dict[Expression, Scalar] = {}
    for piece in (p for several in pieces for p in pieces_of(several)):
        constant, rest = split_constant(piece)
        rivals = (constant, largest.get(rest, constant))
        largest[rest] = max(rivals, key=lambda c: (c, not isinstance(c, float)))  # 1/2, then 0.5
    return _join(Op.MAX, in_order([add(rest, number(c)) for rest, c in largest.items()]))


def where_of(condition: Expression, yes: Expression, no: Expression) -> Expression:
    """``yes`` where the condition is positive, ``no`` elsewhere."""
    if yes is no:
        return yes
    if condition.op == Op.NUMBER:
        return yes if condition.value > 0 else no
    return _canonical_node(Op.WHERE, (condition, yes, no))


def euclidean_of(*parts: Expression) -> Expression:
    """``sqrt(a_1^2 + ... + a_n^2)``; signs do not matter."""
    moving = in_order(_leading_positive(p)[1] for p in parts if not p.is_zero)
    if not moving or (all(p.op == Op.NUMBER for p in moving) and not in_exact_arithmetic()):
        return number(math.hypot(*(float(p.value) for p in moving)))
    return absolute_of(moving[0]) if len(moving) == 1 else _join(Op.NORM, moving)


def norm_slope(*operands: Expression) -> Expression:
    """``sum_k a_k b_k / ||a||``, 0 at a = 0, of a_1, ..., a_n, b_1, ..., b_n."""
    if all(b.is_zero for b in operands[len(operands) // 2 :]):
        return ZERO
    return _canonical_node(Op.NORM_SLOPE, operands)


def huber_of(argument: Expression, width: Scalar) -> Expression:
    """``a^2`` where ``|a| <= M``, ``M (2 |a| - M)`` beyond."""
    m = scalar(width)
    if argument.op == Op.NUMBER:
        size = abs(argument.value)
        return number(size * size if size <= m else m * (2 * size - m))
    return _canonical_node(Op.HUBER, (_leading_positive(argument)[1],), m)


def pieces_of(expr: Expression) -> tuple[Expression, ...]:
    """The pieces of a maximum; of anything else, itself."""
    return expr.args if expr.op == Op.MAX else (expr,)


_CONSTRUCTORS: dict[str, Callable[..., Expression]] = {
    Op.ADD: add,
    Op.MUL: multiply,
    Op.POW: power,
    Op.EXP: exp_of,
    Op.LOG: log_of,
    Op.ABS: absolute_of,
    Op.SIGN: sign_of,
    Op.MAX: maximum_of,
    Op.WHERE: where_of,
    Op.NORM: euclidean_of,
    Op.NORM_SLOPE: norm_slope,
    Op.HUBER: huber_of,
}


# Rewriting ----------------------------------------------------------------------------------------


def rebuild_by(
    expr: Expression, rule: Callable[[Expression, Sequence[Expression]], Expression]
) -> Expression:
    """Apply ``rule(node, rewritten operands)`` to every distinct node."""
    results: dict[Expression, Expression] = {}
    for part in nodes((expr,)):
        results[part] = rule(part, [results[a] for a in part.args])
    return results[expr]


def substitute(expr: Expression, values: Mapping[Expression, Expression]) -> Expression:
    """Put formulas in place of symbols or of other parts of a canonical formula."""
    results: dict[Expression, Expression] = dict(values)

    def replaced(part: Expression) -> Expression:
        if part not in results:
            args = [replaced(a) for a in part.args]
            results[part] = rebuild(part, args) if any(map(is_not, args, part.args)) else part
        return results[part]

    return replaced(expr) if values else expr


_MAX_TERMS = 20_000  # products whose expansion has more terms stay as they are


def expand(expr: Expression) -> Expression:
    """Multiply out products and integer powers of sums, at every level."""

    def expanded(part: Expression, args: Sequence[Expression]) -> Expression:
        if part.op == Op.MUL:
            return _distribute(args)
        if part.op == Op.POW and is_integer(part.value) and part.value > 1:
            return _distribute([*args] * int(part.value))
        return rebuild(part, args)

    return rebuild_by(expr, expanded)


def _distribute(args: Sequence[Expression]) -> Expression:
    result: Expression = ONE
    terms = 0
    for factor in args:
        left, right = addends(result), addends(factor)
        terms += len(left) * len(right)
        if terms > _MAX_TERMS:
            return multiply(*args)
        result = add(*(multiply(a, b) for a in left for b in right))
    return result


# Constants ------------------------------------------------------------------------------


def _multiple(expr: Expression, scale: Scalar) -> Expression:
    """A number times a canonical formula; the order of a sum does not depend on coefficients."""
    if expr.op == Op.NUMBER:
        return number(exact_product((scale, expr.value)))
    if scale == 1 or not scale:
        return expr if scale else ZERO
    if expr.op == Op.ADD:
        return _canonical_node(Op.ADD, tuple(_multiple(term, scale) for term in expr.args))
    if expr.op == Op.MUL and expr.args[0].op == Op.NUMBER:
        value, rest = exact_product((scale, expr.args[0].value)), expr.args[1:]
    else:
        value, rest = scale, factors(expr)
    return _join(Op.MUL, rest if value == 1 else (number(value), *rest))


def _finite(function: Callable[[float], float], argument: Expression) -> float:
    name = f"{function.__name__}({argument})"
    try:
        result = float(function(float(argument.value)))
    except OverflowError:
        raise ProblemError(
            f"{name} is too large for double precision: scale its argument"
        ) from None
    if not result and not argument.is_one:
        raise ProblemError(f"{name} is too close to zero for double precision: scale its argument")
    return result


def _leading_positive(expr: Expression) -> tuple[int, Expression]:
    """Choose one of a and -a: the one whose first term has a positive number."""
    lead = coefficient(addends(expr)[0])[0]
    return (-1, negate(expr)) if lead < 0 else (1, expr)
