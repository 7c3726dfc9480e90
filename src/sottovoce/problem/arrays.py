"""Vectors of symbols that NumPy's operators and comparisons work on, entry by entry."""

from __future__ import annotations

from abc import ABC, abstractmethod
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

    __array_priority__ = 1.0  # what np.dot makes of numbers and formulas is one too

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
        out = entrywise(ufunc, method, inputs, settings)
        symbolic = isinstance(out, np.ndarray) and out.dtype == object
        return out.view(SymbolArray) if symbolic else out


class Entrywise(ABC):
    """Operators for what stands for an array of formulas: they work on it entry by entry."""

    __slots__ = ()

    @abstractmethod
    def _array(self) -> Any:
        """The formulas."""

    def __add__(self, other: Any) -> Any:
        return self._array() + other

    def __radd__(self, other: Any) -> Any:
        return other + self._array()

    def __sub__(self, other: Any) -> Any:
        return self._array() - other

    def __rsub__(self, other: Any) -> Any:
        return other - self._array()

    def __mul__(self, other: Any) -> Any:
        return self._array() * other

    def __rmul__(self, other: Any) -> Any:
        return other * self._array()

    def __truediv__(self, other: Any) -> Any:
        return self._array() / other

    def __pow__(self, other: Any) -> Any:
        return self._array() ** other

    def __neg__(self) -> Any:
        return -self._array()

    def __abs__(self) -> Any:
        return abs(self._array())

    def __le__(self, other: Any) -> Any:
        return self._array() <= other

    def __ge__(self, other: Any) -> Any:
        return self._array() >= other

    def __lt__(self, other: Any) -> Any:
        return self._array() < other

    def __gt__(self, other: Any) -> Any:
        return self._array() > other


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
