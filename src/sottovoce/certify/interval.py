"""Enclosures of expressions: interval arithmetic over SymPy trees, for many boxes at once.

An `Interval` holds arrays, so that one walk over a tree bounds an expression on every box of a
subdivision, or for every agent of a fleet. Each distinct node is evaluated once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add, mul
from typing import Any

import numpy as np
import sympy

from sottovoce.certify.arithmetic import (
    BoolArray,
    Expr,
    FloatArray,
    Interval,
    constant,
    interval,
    point,
    wrap,
)
from sottovoce.certify.kink_intervals import is_kink, kink_slope, kink_value
from sottovoce.errors import CertificateError

__all__ = [
    "BoolArray",
    "Expr",
    "FloatArray",
    "Interval",
    "Symbol",
    "constant",
    "doubtful",
    "enclose",
    "enclose_with_gradient",
    "evaluate",
    "exponent_of",
    "interval",
    "operands",
    "raised",
    "remedy",
]

Symbol = Any


def evaluate(expr: Expr, box: Mapping[Symbol, Interval]) -> dict[Expr, Interval]:
    """Enclose every node of a tree, each distinct node once, children before parents.

    Points at which a node is undefined are passed over; `enclose` is the function that minds them.

    Args:
        expr: A SymPy tree of sums, products, constant powers, exp, log, numbers and symbols.
        box: An interval for each symbol.
    """
    values: dict[Expr, Interval] = {}

    def visit(node: Expr) -> Interval:
        if node not in values:
            values[node] = _value(node, [visit(child) for child in operands(node)], box)
        return values[node]

    visit(expr)
    return values


def operands(node: Expr) -> tuple[Expr, ...]:
    """Return the children of a node that carry values: not the exponent of a power."""
    return (node.base,) if node.is_Pow else tuple(node.args)


def exponent_of(power: Expr) -> Expr:
    """Return the exponent of a power, a Float as the Rational it is exactly."""
    exponent = power.exp
    if exponent.free_symbols or not (exponent.is_real and exponent.is_finite):
        raise CertificateError(f"an exponent must be a real constant, got {power}")
    return sympy.Rational(exponent) if exponent.is_Number else exponent


def raised(base: Interval, exponent: Expr) -> Interval:
    """Enclose base**exponent for an exponent as `exponent_of` returns it."""
    if exponent.is_Rational:
        return base.power(exponent)
    ends = _constant(exponent)
    if not (ends.lower > 0 or ends.upper < 0):
        raise CertificateError(f"the sign of an exponent must be known, got {exponent}")
    return base.real_power(ends) if ends.lower > 0 else base.real_power(-ends).reciprocal()


def _constant(expr: Expr) -> Interval:
    return constant(expr) if expr.is_Number else enclose(expr, {})


def _value(node: Expr, inner: list[Interval], box: Mapping[Symbol, Interval]) -> Interval:
    if node.is_Symbol:
        if node not in box:
            raise CertificateError(f"every symbol must be bounded, got no bounds for {node}")
        return box[node]
    if node.is_Number or node.is_NumberSymbol:
        return constant(node)
    if node.is_Add or node.is_Mul:
        return reduce(add if node.is_Add else mul, inner)
    if node.is_Pow:
        return raised(inner[0], exponent_of(node))
    if isinstance(node, sympy.exp):
        return inner[0].exp()
    if isinstance(node, sympy.log):
        return inner[0].log()
    if is_kink(node):
        return kink_value(node, inner)
    raise CertificateError(
        "an expression must consist of sums, products, constant powers, exp, log and kinks, "
        f"got {type(node).__name__} in {node}; rewrite it with these"
    )


def doubtful(values: Mapping[Expr, Interval]) -> tuple[BoolArray, Expr | None]:
    """Tell where an evaluated tree may be undefined, and the first subexpression to blame.

    log needs a positive argument, a negative power a nonzero base, a broken power a nonnegative
    one. Where the need is certainly unmet on a whole box, nothing can be certified: an error.
    """
    doubt: BoolArray = np.zeros((), dtype=np.bool_)
    blamed: Expr | None = None
    for node in values:
        if not (node.is_Pow or isinstance(node, sympy.log)):
            continue
        base = node.args[0]
        unmet, hopeless = _needs(node, values[base])
        if np.any(hopeless):
            raise CertificateError(
                f"{node} must be defined on the bounds, got {base} in "
                f"[{values[base].lower[hopeless][0]:.6g}, {values[base].upper[hopeless][0]:.6g}]; "
                f"{remedy(base)}"
            )
        blamed = base if blamed is None and np.any(unmet) else blamed
        doubt = doubt | unmet
    return doubt, blamed


def remedy(base: Expr) -> str:
    """Say what makes a logarithm or a power of `base` defined."""
    return f"tighten the bounds so that {base} stays positive"


def _needs(node: Expr, base: Interval) -> tuple[BoolArray, BoolArray]:
    """Return where the node's argument may, and where it must, lie outside the node's domain."""
    if not node.is_Pow:
        return base.lower <= 0, base.upper <= 0
    exponent = exponent_of(node)
    if exponent.is_Integer and exponent.is_positive:
        never = np.zeros((), dtype=np.bool_)
        return never, never
    if exponent.is_Integer:
        return (base.lower <= 0) & (base.upper >= 0), (base.lower == 0) & (base.upper == 0)
    if exponent.is_positive:
        return base.lower < 0, base.upper < 0
    return base.lower <= 0, base.upper <= 0


def enclose(expr: Expr, box: Mapping[Symbol, Interval]) -> Interval:
    """Enclose the range of an expression on every box.

    {expr(x) : x in box} is contained in [lower, upper], box by box. Where a box may hold a point at
    which the expression is undefined, the enclosure is the whole line.

    Args:
        expr: A SymPy tree of sums, products, constant powers, exp, log, numbers and symbols.
        box: An interval for each symbol; their shapes broadcast to the shape of the result.

    Raises:
        CertificateError: The tree holds another kind of node, or is undefined on a whole box.
    """
    values = evaluate(expr, box)
    return _spread(values[expr], doubtful(values)[0], _shape(box))


def enclose_with_gradient(
    expr: Expr, box: Mapping[Symbol, Interval], variables: Sequence[Symbol]
) -> tuple[Interval, Interval]:
    """Enclose an expression and its partial derivatives on every box (forward differentiation).

    Args:
        expr: As for `enclose`.
        box: As for `enclose`.
        variables: The n symbols to differentiate by.

    Returns:
        The enclosure of expr, of the box's shape, and that of d expr / d variables[i] at index i of
        an array of shape (n, *shape).
    """
    values = evaluate(expr, box)
    doubt, shape = doubtful(values)[0], _shape(box)
    gradient = _gradient(expr, values, variables, len(shape))
    return _spread(values[expr], doubt, shape), _spread(gradient, doubt, (len(variables), *shape))


def _shape(box: Mapping[Symbol, Interval]) -> tuple[int, ...]:
    return np.broadcast_shapes(*(side.shape for side in box.values()))


def _spread(value: Interval, doubt: BoolArray, shape: tuple[int, ...]) -> Interval:
    lower, upper = value.lower, value.upper
    if np.any(doubt):
        lower, upper = np.where(doubt, -np.inf, lower), np.where(doubt, np.inf, upper)
    return wrap(np.broadcast_to(lower, shape), np.broadcast_to(upper, shape))


def _gradient(
    expr: Expr, values: dict[Expr, Interval], variables: Sequence[Symbol], dims: int
) -> Interval:
    """Propagate derivatives through evaluated nodes; variables run along a new first axis."""
    count = len(variables)
    slopes: dict[Expr, Interval] = {}
    for index, symbol in enumerate(variables):
        slopes[symbol] = point(np.eye(count)[index].reshape(count, *(1,) * dims))
    for node in values:
        moving = [child for child in operands(node) if child in slopes]
        if not moving:
            continue
        if node.is_Add:
            slopes[node] = reduce(add, (slopes[child] for child in moving))
        elif node.is_Mul:
            slopes[node] = _product_slope(node, values, slopes)
        elif node.is_Pow:
            exponent = exponent_of(node)
            steepness = _constant(exponent) * raised(values[node.base], exponent - 1)
            slopes[node] = steepness * slopes[node.base]
        elif isinstance(node, sympy.exp):
            slopes[node] = values[node] * slopes[moving[0]]
        elif is_kink(node):
            still = point(np.zeros((count, *(1,) * dims)))
            inner = [slopes.get(child, still) for child in node.args]
            slopes[node] = kink_slope(node, [values[child] for child in node.args], inner)
        else:
            slopes[node] = values[moving[0]].reciprocal() * slopes[moving[0]]
    return slopes.get(expr, point(np.zeros((count, *(1,) * dims))))


def _product_slope(
    node: Expr, values: dict[Expr, Interval], slopes: dict[Expr, Interval]
) -> Interval:
    first, *rest = (factor for factor in node.args if factor in slopes)
    product, slope = values[first], slopes[first]
    for factor in rest:
        slope = slope * values[factor] + product * slopes[factor]
        product = product * values[factor]
    fixed = (values[factor] for factor in node.args if factor not in slopes)
    return reduce(mul, fixed, slope)
