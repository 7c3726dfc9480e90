"""Arrays of formulas: NumPy's operators, functions and comparisons, entry by entry."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from sottovoce.errors import ProblemError
from sottovoce.formula import functions
from sottovoce.formula.expression import Expression, Relation, expression, strict

_UFUNCS: dict[str, Callable[..., Any]] = {
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
    "exp": functions.exp,
    "log": functions.log,
    "sqrt": functions.sqrt,
    "absolute": functions.absolute,
    "fabs": functions.absolute,
    "maximum": functions.maximum,
    "fmax": functions.maximum,
    "minimum": functions.minimum,
    "fmin": functions.minimum,
    "logaddexp": functions.logsumexp,
    "hypot": functions.norm,
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
    def __eq__(self, other: Any) -> Any:
        return apply_ufunc(np.equal, "__call__", (self, other), {})

    def __ne__(self, other: Any) -> Any:
        return apply_ufunc(np.not_equal, "__call__", (self, other), {})

    __hash__ = None


def formula_array(entries: Sequence[Expression] | Any) -> Any:
    """Return formulas as a read-only array."""
    made = np.array(entries, dtype=object).view(FormulaArray)
    made.flags.writeable = False
    return made


def bundled(symbols: Sequence[Expression]) -> Any:
    """Return one symbol by itself, and several as a read-only array."""
    return symbols[0] if len(symbols) == 1 else formula_array(symbols)


def apply_ufunc(ufunc: Any, method: str, inputs: Sequence[Any], settings: Any) -> Any:
    """Apply one of NumPy's functions to formulas and arrays of them.

    Raises:
        ProblemError: for a function that formulas do not have, saying what to write.
    """
    name = ufunc.__name__
    if method == "__call__" and name in _STRICT:
        raise strict(_STRICT[name])
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
        held = np.empty((), dtype=object)
        held[()] = value
        return held
    return np.asarray(value) if isinstance(value, np.ndarray) else value


def _wrapped(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    if value.ndim == 0:
        return value.item()
    return value.view(FormulaArray) if value.dtype == object else value
