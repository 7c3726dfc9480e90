"""The functions that people build formulas with, and arrays of formulas with NumPy's habits."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import wraps
from typing import Any, ParamSpec, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import canonical
from sottovoce.formula.expression import (
    Expression,
    Op,
    Relation,
    expression,
    number,
    strict_comparison,
)

_P = ParamSpec("_P")


def entrywise(*, least: int = 1) -> Callable[[Callable[_P, Expression]], Callable[_P, Any]]:
    """Let a function of at least so many formulas work on arrays, on states and on ``A @ x``.

    Of one array ``maximum`` is the largest entry: it works entry by entry on two arguments or more.
    """

    def decorate(function: Callable[_P, Expression]) -> Callable[_P, Any]:
        @wraps(function)
        def on_arrays(*arguments: _P.args, **settings: _P.kwargs) -> Any:
            are_arrays = (
                hasattr(a, "__array_ufunc__") and hasattr(a, "__len__") for a in arguments
            )
            if len(arguments) >= least and any(are_arrays):
                entry_by_entry: Any = np.frompyfunc(function, len(arguments), 1)
                return entry_by_entry(*arguments)
            return function(*arguments, **settings)

        return on_arrays

    return decorate


@entrywise()
def exp(argument: object) -> Expression:
    """The exponential e^a, with a -> argument; convex and increasing."""
    return Expression(Op.EXP, (expression(argument),))


@entrywise()
def log(argument: object) -> Expression:
    """The natural logarithm ln a, with a -> argument; concave, defined for a > 0."""
    return Expression(Op.LOG, (expression(argument),))


@entrywise()
def sqrt(argument: object) -> Expression:
    """The square root a^(1/2), with a -> argument; concave, smooth for a > 0."""
    return Expression(Op.POW, (expression(argument),), Fraction(1, 2))


@entrywise()
def absolute(argument: object) -> Expression:
    """The absolute value |a|, with a -> argument; convex. Python's ``abs`` is the same."""
    return Expression(Op.ABS, (expression(argument),))


def logsumexp(*terms: object) -> Expression:
    """The smooth maximum ln(e^(a_1) + ... + e^(a_r)), with a_1, ..., a_r -> terms; convex.

    It lies between max_i a_i and max_i a_i + ln r.
    """
    exponentials = (Expression(Op.EXP, (a,)) for a in _operands("logsumexp", terms))
    return Expression(Op.LOG, (Expression(Op.ADD, tuple(exponentials)),))


@entrywise(least=2)
def maximum(*terms: object) -> Expression:
    """The largest of a_1, ..., a_r, with a_1, ..., a_r -> terms; convex if they are.

    A piecewise-linear cost is the maximum of its pieces. Python's ``max`` cannot be used: it asks
    formulas which one is larger.
    """
    return Expression(Op.MAX, tuple(_operands("maximum", terms)))


@entrywise(least=2)
def minimum(*terms: object) -> Expression:
    """The smallest of a_1, ..., a_r, with a_1, ..., a_r -> terms; concave if they are.

    It is written -max(-a_1, ..., -a_r).
    """
    return -Expression(Op.MAX, tuple(-a for a in _operands("minimum", terms)))


@entrywise()
def pos(argument: object) -> Expression:
    """The positive part max(a, 0), with a -> argument; convex if a is."""
    return Expression(Op.MAX, (expression(argument), number(0)))


def norm(*terms: object) -> Expression:
    """The Euclidean norm sqrt(a_1^2 + ... + a_r^2), with a_1, ..., a_r -> terms or an array."""
    return Expression(Op.NORM, tuple(_operands("norm", terms)))


def sum_squares(*terms: object) -> Expression:
    """The sum of squares a_1^2 + ... + a_r^2, with a_1, ..., a_r -> terms or an array; convex."""
    return Expression(Op.ADD, (number(0), *(a**2 for a in _operands("sum_squares", terms))))


@entrywise()
def huber(argument: object, width: object = 1) -> Expression:
    """Huber's function: a^2 where |a| <= M, M (2 |a| - M) beyond; a -> argument, M -> width."""
    m = canonical(expression(width))
    if not m.is_number or m.value <= 0:
        raise ProblemError(f"the width of huber must be a positive number, got {width}")
    return Expression(Op.HUBER, (expression(argument),), m.value)


def _operands(name: str, terms: Sequence[object]) -> list[Expression]:
    """The operands of a call, given one by one or in an array."""
    first = terms[0] if len(terms) == 1 else None
    flat = np.ravel(np.array(list(first), dtype=object)) if isinstance(first, Iterable) else terms
    if not len(flat):
        raise ProblemError(f"{name} takes at least one argument, got none")
    return [expression(term) for term in flat]


# Arrays -------------------------------------------------------------------------------------------

_UFUNCS: dict[str, Callable[..., object]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "power": operator.pow,
    "float_power": operator.pow,
    "negative": operator.neg,
    "positive": operator.pos,
    "square": lambda a: a**2,
    "reciprocal": lambda a: 1 / a,
    "less_equal": lambda a, b: Relation(expression(a), "<=", expression(b)),
    "greater_equal": lambda a, b: Relation(expression(a), ">=", expression(b)),
    "equal": lambda a, b: Relation(expression(a), "==", expression(b)),
    "exp": exp,
    "log": log,
    "sqrt": sqrt,
    "absolute": absolute,
    "fabs": absolute,
    "maximum": maximum,
    "fmax": maximum,
    "minimum": minimum,
    "fmin": minimum,
    "logaddexp": logsumexp,
    "hypot": norm,
}
_STRICT = {"less": "<=", "greater": ">=", "not_equal": "<=, >= or =="}
_INSTEAD = {
    "log2": "sv.log(x)/sv.log(2)",
    "log10": "sv.log(x)/sv.log(10)",
    "log1p": "sv.log(1 + x)",
    "exp2": "2**x",
    "expm1": "sv.exp(x) - 1",
    "cbrt": "x**(1/3)",
}


@final
class FormulaArray(np.ndarray):
    """Formulas in an array; comparisons give arrays of relations."""

    __array_priority__ = 1.0  # what np.dot makes of numbers and formulas is one too

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
        return apply_ufunc(ufunc, method, inputs, settings)

    # ndarray's own == and != ask every entry for its truth.
    def __eq__(self, other: object) -> Any:
        return apply_ufunc(np.equal, "__call__", (self, other), {})

    def __ne__(self, other: object) -> Any:
        return apply_ufunc(np.not_equal, "__call__", (self, other), {})

    __hash__ = None


def formula_array(entries: Sequence[Expression] | NDArray[np.object_]) -> FormulaArray:
    """Return formulas as a read-only array."""
    array = np.array(entries, dtype=object).view(FormulaArray)
    array.flags.writeable = False
    return array


def bundled(symbols: Sequence[Expression]) -> Any:
    """Return one symbol by itself, and several as a read-only array."""
    return symbols[0] if len(symbols) == 1 else formula_array(symbols)


def apply_ufunc(ufunc: Any, method: str, inputs: Sequence[Any], settings: Any) -> Any:
    """Apply one of NumPy's functions to formulas and arrays of them, or say what to write."""
    name = ufunc.__name__
    if method == "__call__" and name in _STRICT:
        raise strict_comparison(_STRICT[name])
    plain = [_plain(i) for i in inputs]
    if method == "__call__" and name in _UFUNCS:
        return _wrapped(np.frompyfunc(_UFUNCS[name], ufunc.nin, 1)(*plain))
    try:
        return _wrapped(getattr(ufunc, method)(*plain, **settings))
    except TypeError as error:
        if "loop of ufunc" not in str(error):
            raise
        instead = _INSTEAD.get(name, "the functions of sottovoce, such as sv.exp, sv.log, sv.sqrt")
        raise ProblemError(
            f"np.{name} knows numbers only, got a formula: write {instead}"
        ) from None


def _plain(value: Any) -> Any:
    if isinstance(value, Expression):
        scalar = np.empty((), dtype=object)
        scalar[()] = value
        return scalar
    return np.asarray(value) if isinstance(value, np.ndarray) else value


def _wrapped(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    if value.ndim == 0:
        return value.item()
    return value.view(FormulaArray) if value.dtype == object else value
