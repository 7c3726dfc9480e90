"""Equivalent forms of a formula, on which interval arithmetic is tighter.

An interval bound suffers where a variable occurs more than once. A common denominator makes many
repetitions disappear.

Formulas must be exact, and rewriting must happen inside ``exact_arithmetic()``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import (
    add,
    addends,
    base_exponent,
    coefficient,
    divide,
    exp_of,
    factors,
    is_integer,
    multiply,
    power,
    rebuild,
)
from sottovoce.formula.enclosure import enclose, enclose_with_gradient
from sottovoce.formula.expression import Expression, Op, Scalar, nodes, number, symbol
from sottovoce.formula.intervals import interval

Box = Mapping[Expression, tuple[float, float]]

_LARGE = 500  # operations beyond which rewriting costs more than subdivision


def simplified(expr: Expression) -> Expression:
    """Bring a formula to a common denominator and like signs, where that is cheap."""
    operations = sum(max(len(node.args) - 1, 1) for node in nodes((expr,)) if node.args)
    try:
        return oriented(_over_one(oriented(expr))) if operations <= _LARGE else expr
    except ProblemError:  # exponents beyond what formulas may have
        return expr


def _over_one(expr: Expression) -> Expression:
    """Write sums as products of what all their terms share and what is left of them.

    a/b + c/d = (a d + c b)/(b d): a power that a term has not counts as exponent 0.
    """
    if expr.op not in (Op.ADD, Op.MUL, Op.POW):
        return expr
    expr = rebuild(expr, [_over_one(a) for a in expr.args])
    if expr.op != Op.ADD:
        return expr
    terms = [(coefficient(term)[0], _powers(term)) for term in expr.args]
    bases = dict.fromkeys(base for _, powers in terms for base in powers)
    shared = {base: min(powers.get(base, 0) for _, powers in terms) for base in bases}
    if not any(shared.values()):
        return expr
    left = [
        multiply(number(c), *(_raised(b, powers.get(b, 0) - least) for b, least in shared.items()))
        for c, powers in terms
    ]
    return multiply(add(*left), *(_raised(b, least) for b, least in shared.items()))


def _raised(base: Expression, c: Scalar) -> Expression:
    return exp_of(multiply(number(c), base.args[0])) if base.op == Op.EXP else power(base, c)


def _powers(term: Expression) -> dict[Expression, Scalar]:
    """The bases of a term without its number and their exponents; exp(2 x) is exp(x)**2."""
    powers: dict[Expression, Scalar] = {}
    for factor in factors(coefficient(term)[1]):
        if factor.op == Op.EXP:
            for addend in addends(factor.args[0]):
                c, rest = coefficient(addend)
                powers[exp_of(rest)] = c
        elif not factor.is_number:
            base, exponent = base_exponent(factor)
            powers[base] = exponent
    return powers


def oriented(expr: Expression) -> Expression:
    """Take numbers out of sums in products and powers: 2 b - 2 a becomes -2 (a - b) there."""
    if not expr.args:
        return expr
    expr = rebuild(expr, [oriented(a) for a in expr.args])
    if expr.op == Op.POW and is_integer(expr.value):
        content, rest = _content(expr.args[0])
        return multiply(power(number(content), expr.value), power(rest, expr.value))
    if expr.op != Op.MUL:
        return expr
    parts = [_content(f) if f.op == Op.ADD else (1, f) for f in expr.args]
    return multiply(*(number(c) for c, _ in parts), *(rest for _, rest in parts))


def _content(expr: Expression) -> tuple[Scalar, Expression]:
    """Split a sum into what divides the numbers of all terms, with the sign of the first."""
    numbers = [Fraction(coefficient(term)[0]) for term in addends(expr)]
    divisor = Fraction(gcd(*(c.numerator for c in numbers)), lcm(*(c.denominator for c in numbers)))
    if expr.op != Op.ADD or not divisor:
        return 1, expr
    content = divisor if numbers[0] > 0 else -divisor
    return content, multiply(number(1 / content), expr)


def equivalents(expr: Expression) -> tuple[Expression, ...]:
    """Return a formula, and in its simplified form if that is another."""
    return tuple(dict.fromkeys((expr, simplified(expr))))


def squared_norm(components: Sequence[Expression]) -> Expression:
    """Write the sum of the components' squares so that equal factors stand before sums."""
    return _collected(simplified(add(*(power(simplified(c), 2) for c in components))))


def _collected(expr: Expression) -> Expression:
    """Take factors shared by several terms of a sum out of them, the most frequent one first.

    a b + a c + d = a (b + c) + d
    """
    if not expr.args:
        return expr
    expr = rebuild(expr, [_collected(a) for a in expr.args])
    if expr.op != Op.ADD:
        return expr
    counts = Counter(f for term in expr.args for f in factors(term) if not f.is_number)
    shared, times = counts.most_common(1)[0]
    if times < 2:
        return expr
    having = {term for term in expr.args if any(f is shared for f in factors(term))}
    inside = add(*(divide(term, shared) for term in expr.args if term in having))
    outside = add(*(term for term in expr.args if term not in having))
    return add(multiply(shared, _collected(inside)), _collected(outside))


def name_parts(
    components: Sequence[Expression], box: Box
) -> tuple[tuple[Expression, ...], dict[Expression, tuple[float, float]]]:
    """Name every part whose variables occur nowhere else and whose range is known exactly.

    A part such as the other agents' sum in softmax moves freely through its range. As a variable of
    its own it turns a problem of seven variables into one of two with the same supremum. Returns
    the components in the remaining variables, and the bounds of every symbol.
    """
    exprs, bounds = tuple(components), dict(box)

    def nameable() -> Iterator[tuple[Expression, tuple[float, float]]]:
        ranges = ((part, _range(part, bounds)) for part in _candidates(exprs))
        return ((part, ends) for part, ends in ranges if ends is not None)

    while (first := next(nameable(), None)) is not None:
        part, ends = first
        name = symbol(f"({part})")  # what an error message will call it
        bounds[name] = ends
        exprs = tuple(_replaced(c, part, name) for c in exprs)
    return exprs, bounds


def _range(expr: Expression, box: Box) -> tuple[float, float] | None:
    """Return the range of an expression if interval arithmetic gets it exactly, up to rounding.

    It does if each variable occurs once or the expression is monotone along it, so that extremes
    lie at its ends.
    """
    sides = {s: interval(*box[s]) for s in expr.symbols}
    value, slope = enclose_with_gradient(expr, sides, tuple(sides))
    if not np.isfinite(value.magnitude):
        return None
    occurrences, bottom, top = uses(expr), dict(sides), dict(sides)
    for s, low, high in zip(sides, slope.lower, slope.upper, strict=True):
        start, stop = (interval(end, end) for end in box[s])
        if low >= 0:
            bottom[s], top[s] = start, stop
        elif high <= 0:
            bottom[s], top[s] = stop, start
        elif occurrences[s] > 1:
            return None
    return float(enclose(expr, bottom).lower), float(enclose(expr, top).upper)


def uses(expr: Expression) -> Counter[Expression]:
    """Count how often each symbol occurs in an expression written out in full."""
    if expr.is_symbol:
        return Counter([expr])
    return sum(map(uses, expr.args), Counter[Expression]())


def _candidates(components: Sequence[Expression]) -> list[Expression]:
    """Return the parts of several variables that occur nowhere else, those of most variables first.

    A part is a node, or those terms of a sum (factors of a product) that only occur together.
    """
    parents: defaultdict[Expression, Counter[Expression | None]] = defaultdict(Counter)
    for component in components:
        _note_parents(component, None, parents)
    total = sum(map(uses, components), Counter[Expression]())
    parts: list[Expression] = []
    siblings: defaultdict[frozenset[Expression | None], list[Expression]] = defaultdict(list)
    for node, above in parents.items():
        inside, times = uses(node), above.total()
        if not inside or any(total[symbol] != times * inside[symbol] for symbol in inside):
            continue
        parts.append(node)
        if {None if parent is None else parent.op for parent in above} in ({Op.ADD}, {Op.MUL}):
            siblings[frozenset(above)].append(node)
    parts += [
        rebuild(parent, nodes)
        for above, nodes in siblings.items()
        for parent in list(above)[:1]
        if parent is not None
    ]
    several = [part for part in dict.fromkeys(parts) if len(part.symbols) > 1]
    return sorted(several, key=lambda part: -len(part.symbols))


def _note_parents(
    node: Expression,
    parent: Expression | None,
    parents: defaultdict[Expression, Counter[Expression | None]],
) -> None:
    parents[node][parent] += 1
    for child in node.args:
        _note_parents(child, node, parents)


def _replaced(expr: Expression, part: Expression, name: Expression) -> Expression:
    """Replace a part, as `_candidates` returns them, by its name."""
    if expr is part:
        return name
    if not expr.args:
        return expr
    args, inside = list(expr.args), {*part.args}
    if part.op in (Op.ADD, Op.MUL) and expr.op == part.op and inside <= {*args}:
        args = [name, *(a for a in args if a not in inside)]
    return rebuild(expr, [_replaced(a, part, name) for a in args])
