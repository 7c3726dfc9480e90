"""Vectors of symbols that NumPy's operators and comparisons work on, entry by entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import sympy as sp

from sottovoce.errors import ProblemError

_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "less_equal": lambda a, b: sp.sympify(a) <= sp.sympify(b),
    "greater_equal": lambda a, b: sp.sympify(a) >= sp.sympify(b),
}
_STRICT = {"less": "<=", "greater": ">="}


@final
class SymbolArray(np.ndarray):
    """Formulas in an array: NumPy by itself would ask a comparison of formulas for its truth."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
        plain = [np.asarray(i) if isinstance(i, SymbolArray) else i for i in inputs]
        if method == "__call__" and ufunc.__name__ in _STRICT:
            raise ProblemError(
                "a row must include its border, got a strict comparison: write "
                f"{_STRICT[ufunc.__name__]}"
            )
        if method == "__call__" and ufunc.__name__ in _COMPARED:
            rows = np.frompyfunc(_COMPARED[ufunc.__name__], 2, 1)(*plain)
            return np.asarray(rows, dtype=object)
        out = getattr(ufunc, method)(*plain, **settings)
        return out.view(SymbolArray) if _symbolic(out) else out


def bundled(symbols: Sequence[sp.Symbol]) -> Any:
    """Return one symbol by itself, and several as a read-only array."""
    if len(symbols) == 1:
        return symbols[0]
    array = np.array(symbols, dtype=object).view(SymbolArray)
    array.flags.writeable = False
    return array


def _symbolic(out: Any) -> bool:
    return isinstance(out, np.ndarray) and out.dtype == object
