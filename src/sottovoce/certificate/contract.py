"""What a constraint implies for its variables: forward-backward interval propagation (HC4).

The tree of g is enclosed from the leaves to the root, the root is cut down to g <= upper, and the
cut is carried back to the leaves: each operation is solved for each of its operands. No point of
the box that satisfies the constraint is ever lost; points that do not may remain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import accumulate
from operator import add, mul
from typing import final

import numpy as np
import numpy.typing as npt

from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import is_even, is_integer
from sottovoce.formula.enclosure import IntervalBox, evaluate
from sottovoce.formula.expression import Expression, Op, Scalar
from sottovoce.formula.intervals import BoolArray, Interval, interval

_LINE = interval(-np.inf, np.inf)
_ZERO = interval(0.0, 0.0)
_ONE = interval(1.0, 1.0)


@final
class EmptyDomainError(ProblemError):
    """A constraint is proven to hold at no point of the box."""

    def __init__(self, constraint: object) -> None:
        super().__init__(
            f"the constraint {constraint} <= 0 must hold somewhere within the bounds and the other "
            "constraints, got a proof that it holds nowhere; widen the bounds or relax it"
        )
        self.constraint = constraint


def contract(
    expr: Expression, box: IntervalBox, upper: npt.ArrayLike = 0.0
) -> dict[Expression, Interval]:
    """Shrink a box to what expr(x) <= upper leaves of it.

    {x in box : expr(x) <= upper} is contained in the result, box by box. Points at which expr is
    undefined do not satisfy the constraint.

    Args:
        expr: The constraint's left-hand side, canonical.
        box: An interval for each symbol; for a fleet, arrays over agents.
        upper: The right-hand side; for a fleet, an array over agents.

    Raises:
        EmptyDomainError: No point of some box satisfies the constraint: a proof, not a guess.
    """
    image = evaluate(expr, box)
    meet = partial(_meet, constraint=expr)
    image[expr] = meet(image[expr], interval(-np.inf, upper))
    for node in reversed(list(image)):
        for child, allowed in _solved(node, image):
            image[child] = meet(image[child], allowed)
    return {symbol: image.get(symbol, side) for symbol, side in box.items()}


def _meet(value: Interval, allowed: Interval, constraint: object) -> Interval:
    lower = np.maximum(value.lower, allowed.lower)
    upper = np.minimum(value.upper, allowed.upper)
    if np.any(lower > upper):
        raise EmptyDomainError(constraint)
    return Interval(lower=lower, upper=upper)


def _solved(
    node: Expression, image: Mapping[Expression, Interval]
) -> Iterator[tuple[Expression, Interval]]:
    """Solve node = image[node] for each operand, given the images of the other operands."""
    result, children = image[node], node.args
    if node.op == Op.ADD:
        for child, rest in zip(children, _all_but_one(children, image, add, _ZERO), strict=True):
            yield child, result - rest
    elif node.op == Op.MUL:
        for child, rest in zip(children, _all_but_one(children, image, mul, _ONE), strict=True):
            yield child, _quotient(result, rest)
    elif node.op == Op.POW:
        yield children[0], _base(result, node.value, image[children[0]])
    elif node.op == Op.EXP:
        yield children[0], result.log()
    elif node.op == Op.LOG:
        yield children[0], result.exp()
    elif node.op == Op.MAX:
        for child in children:
            yield child, interval(-np.inf, result.upper)
    elif node.op in (Op.ABS, Op.NORM):
        for child in children:
            yield child, interval(-result.upper, result.upper)


def _all_but_one(
    children: Sequence[Expression],
    image: Mapping[Expression, Interval],
    operation: Callable[[Interval, Interval], Interval],
    unit: Interval,
) -> Iterator[Interval]:
    """Combine, for each child in turn, all the other ones."""
    values = [image[child] for child in children]
    before = accumulate(values[:-1], operation, initial=unit)
    after = list(accumulate(values[:0:-1], operation, initial=unit))
    return map(operation, before, reversed(after))


def _quotient(result: Interval, divisor: Interval) -> Interval:
    """Enclose the x with x * d in `result` for some d in `divisor`."""
    quotient = result * divisor.reciprocal()
    free = _holds_zero(result) & _holds_zero(divisor)
    return interval(np.where(free, -np.inf, quotient.lower), np.where(free, np.inf, quotient.upper))


def _holds_zero(value: Interval) -> BoolArray:
    holds: BoolArray = (value.lower <= 0) & (value.upper >= 0)
    return holds


def _base(result: Interval, exponent: Scalar, base: Interval) -> Interval:
    """Enclose the x in `base` with x**exponent in `result`."""
    if exponent < 0:
        return _base(result.reciprocal(), -exponent, base)
    inverse = 1 / Fraction(exponent)
    root = result.clip().power(inverse)
    if not is_integer(exponent):
        return root
    if not is_even(exponent):
        return root - (-result).clip().power(inverse)
    # x lies in [-b, -a] or in [a, b]; the box may rule one of the two out.
    only_positive = base.lower > -root.lower
    only_negative = (base.upper < root.lower) & ~only_positive
    return interval(
        np.where(only_positive, root.lower, -root.upper),
        np.where(only_negative, -root.lower, root.upper),
    )
