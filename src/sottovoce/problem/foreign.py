"""What NumPy and Python do with SymPy's formulas, made to work or to say what to write.

``np.log(x)`` asks a formula for a method ``log``, ``array <= x`` and ``max(x, 0)`` ask a comparison
for its truth, and so does ``1 <= x <= 5``, which Python turns into ``1 <= x and x <= 5``. SymPy has
no answer to any of these. Formulas are SymPy's own, so the answers are taught to its classes, when
states are first made: NumPy's functions give formulas, and comparisons of arrays give arrays of
rows. What Python itself decides cannot be changed; the error says what to write instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import sympy as sp
from sympy.core.relational import Relational

from sottovoce.errors import ProblemError
from sottovoce.problem import expressions

_NUMBER = sp.Expr.__float__

ENTRYWISE: dict[str, Callable[..., Any]] = {
    "less_equal": lambda a, b: sp.sympify(a) <= sp.sympify(b),
    "greater_equal": lambda a, b: sp.sympify(a) >= sp.sympify(b),
    "exp": expressions.exp,
    "log": expressions.log,
    "sqrt": expressions.sqrt,
    "absolute": expressions.absolute,
    "fabs": expressions.absolute,
    "maximum": expressions.maximum,
    "fmax": expressions.maximum,
    "minimum": expressions.minimum,
    "fmin": expressions.minimum,
    "logaddexp": expressions.logsumexp,
    "hypot": expressions.norm,
}
"""NumPy's functions that formulas have, entry by entry."""

_STRICT = {"less": "<=", "greater": ">="}
_INSTEAD = {
    "log2": "sv.log(x)/sv.log(2)",
    "log10": "sv.log(x)/sv.log(10)",
    "log1p": "sv.log(1 + x)",
    "exp2": "2**x",
    "expm1": "sv.exp(x) - 1",
    "cbrt": "x**(1/3) written as x**sympy.Rational(1, 3)",
}


def entrywise(ufunc: Any, method: str, inputs: Any, settings: Any) -> Any:
    """Apply one of NumPy's functions to formulas and arrays of them.

    Raises:
        ProblemError: for a function that formulas do not have, saying what to write.
    """
    name = ufunc.__name__
    if method == "__call__" and name in _STRICT:
        raise ProblemError(
            f"a row must include its border, got a strict comparison: write {_STRICT[name]}"
        )
    plain = [_plain(i) for i in inputs]
    if method == "__call__" and name in ENTRYWISE:
        found = np.frompyfunc(ENTRYWISE[name], ufunc.nin, 1)(*plain)
        return found if isinstance(found, np.ndarray) and found.ndim else _item(found)
    try:
        return _item(getattr(ufunc, method)(*plain, **settings))
    except TypeError as error:
        if "loop of ufunc" not in str(error):
            raise
        instead = _INSTEAD.get(name, "the functions of sottovoce, such as sv.exp, sv.log, sv.sqrt")
        raise ProblemError(
            f"np.{name} knows numbers only, got a formula: write {instead}"
        ) from None


def _plain(value: Any) -> Any:
    if isinstance(value, sp.Basic):
        return np.array(value, dtype=object)
    return np.asarray(value) if isinstance(value, np.ndarray) else value


def _item(value: Any) -> Any:
    return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _array_ufunc(self: Any, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
    return entrywise(ufunc, method, inputs, settings)


def _no_truth(self: Any) -> bool:
    raise TypeError(
        f"cannot determine truth value of Relational: {self}; write a chain 1 <= x <= 5 as two "
        "rows 1 <= x and x <= 5, Python's max(x, y) as sv.maximum(x, y), min(x, y) as "
        "sv.minimum(x, y), A.dot(x) <= b as A @ x <= b, and an array of formulas of your own "
        "compared with b as [row <= bound for row, bound in zip(array, b)]"
    )


def _no_number(self: Any) -> float:
    try:
        return float(_NUMBER(self))
    except TypeError as error:
        if not self.free_symbols:
            raise
        raise TypeError(
            f"{error}: {self!s:.60} has no value before it is solved; write sv.log(x) instead "
            "of math.log(x), and likewise sv.exp, sv.sqrt"
        ) from None


def teach() -> None:
    """Teach SymPy's formulas and comparisons what to answer to NumPy and Python."""
    sp.Expr.__array_ufunc__ = _array_ufunc
    Relational.__bool__ = _no_truth
    sp.Expr.__float__ = _no_number
