"""The functions that people build formulas with; they work on arrays of formulas, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import wraps
from typing import Any, ParamSpec

import numpy as np

from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import canonical
from sottovoce.formula.expression import Expression, Op, expression, node, number

_P = ParamSpec("_P")


def entrywise(*, least: int = 1) -> Callable[[Callable[_P, Expression]], Callable[_P, Any]]:
    """Let a function of formulas work on arrays of them, on states and on ``A @ x``.

    Args:
        least: how many arguments it takes for that; of one array ``maximum`` is the largest.
    """

    def decorate(function: Callable[_P, Expression]) -> Callable[_P, Any]:
        @wraps(function)
        def either(*arguments: _P.args, **settings: _P.kwargs) -> Any:
            if len(arguments) >= least and any(map(_is_array, arguments)):
                each: Any = np.frompyfunc(function, len(arguments), 1)
                return each(*arguments)
            return function(*arguments, **settings)

        return either

    return decorate


def _is_array(value: object) -> bool:
    return hasattr(value, "__array_ufunc__") and hasattr(value, "__len__")


@entrywise()
def exp(argument: Any) -> Expression:
    """The exponential e^a, with a -> argument; convex and increasing."""
    return node(Op.EXP, (expression(argument),))


@entrywise()
def log(argument: Any) -> Expression:
    """The natural logarithm ln a, with a -> argument; concave, defined for a > 0."""
    return node(Op.LOG, (expression(argument),))


@entrywise()
def sqrt(argument: Any) -> Expression:
    """The square root a^(1/2), with a -> argument; concave, smooth for a > 0."""
    return node(Op.POW, (expression(argument),), Fraction(1, 2))


@entrywise()
def absolute(argument: Any) -> Expression:
    """The absolute value |a|, with a -> argument; convex. Python's ``abs`` is the same."""
    return node(Op.ABS, (expression(argument),))


def logsumexp(*terms: Any) -> Expression:
    """The smooth maximum ln(e^(a_1) + ... + e^(a_r)), with a_1, ..., a_r -> terms; convex.

    It lies between max_i a_i and max_i a_i + ln r.
    """
    exponentials = (node(Op.EXP, (a,)) for a in _listed("logsumexp", terms))
    return node(Op.LOG, (node(Op.ADD, tuple(exponentials)),))


@entrywise(least=2)
def maximum(*terms: Any) -> Expression:
    """The largest of a_1, ..., a_r, with a_1, ..., a_r -> terms; convex if they are.

    A piecewise-linear cost is the maximum of its pieces. Python's ``max`` cannot be used: it asks
    formulas which one is larger.
    """
    return node(Op.MAX, tuple(_listed("maximum", terms)))


@entrywise(least=2)
def minimum(*terms: Any) -> Expression:
    """The smallest of a_1, ..., a_r, with a_1, ..., a_r -> terms; concave if they are.

    It is written -max(-a_1, ..., -a_r).
    """
    return -node(Op.MAX, tuple(-a for a in _listed("minimum", terms)))


@entrywise()
def pos(argument: Any) -> Expression:
    """The positive part max(a, 0), with a -> argument; convex if a is."""
    return node(Op.MAX, (expression(argument), number(0)))


def norm(*terms: Any) -> Expression:
    """The Euclidean norm sqrt(a_1^2 + ... + a_r^2), with a_1, ..., a_r -> terms or an array."""
    return node(Op.NORM, tuple(_listed("norm", terms)))


def sum_squares(*terms: Any) -> Expression:
    """The sum of squares a_1^2 + ... + a_r^2, with a_1, ..., a_r -> terms or an array; convex."""
    return node(Op.ADD, (number(0), *(a**2 for a in _listed("sum_squares", terms))))


@entrywise()
def huber(argument: Any, width: Any = 1) -> Expression:
    """Huber's function: a^2 where |a| <= M, M (2 |a| - M) beyond; a -> argument, M -> width."""
    m = canonical(expression(width))
    if not m.is_number or m.value <= 0:
        raise ProblemError(f"the width of huber must be a positive number, got {width}")
    return node(Op.HUBER, (expression(argument),), m.value)


def _listed(name: str, terms: Sequence[Any]) -> list[Expression]:
    """The operands of a call, given one by one or in an array."""
    alone = len(terms) == 1 and isinstance(terms[0], Iterable)
    flat = np.ravel(np.array(list(terms[0]), dtype=object)) if alone else terms
    if not len(flat):
        raise ProblemError(f"{name} takes at least one argument, got none")
    return [expression(term) for term in flat]
