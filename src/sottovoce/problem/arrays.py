"""Vectors of symbols that NumPy's operators and comparisons work on, entry by entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import sympy as sp

from sottovoce.problem.foreign import entrywise, teach

teach()

_BITS = 53  # of float64


@final
class SymbolArray(np.ndarray):
    """Formulas in an array: NumPy by itself would ask a comparison of formulas for its truth."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
        out = entrywise(ufunc, method, inputs, settings)
        symbolic = isinstance(out, np.ndarray) and out.dtype == object
        return out.view(SymbolArray) if symbolic else out


def bundled(symbols: Sequence[sp.Symbol]) -> Any:
    """Return one symbol by itself, and several as a read-only array."""
    if len(symbols) == 1:
        return symbols[0]
    array = np.array(symbols, dtype=object).view(SymbolArray)
    array.flags.writeable = False
    return array


def plain_float(value: Any) -> float | None:
    """A SymPy number as the float64 that equals it; None where there is none."""
    if value.is_Float:
        return float(value) if value._prec <= _BITS else None
    if value.is_Rational:
        near = float(value)
        return near if np.isfinite(near) and sp.Rational(near) == value else None
    return None
