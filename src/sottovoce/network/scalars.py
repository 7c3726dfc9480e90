"""Formulas of a few named states, compiled for one point at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

import numpy as np
import sympy as sp

from sottovoce.problem.agents import Array
from sottovoce.problem.blocks import Block
from sottovoce.problem.kinks import NUMPY
from sottovoce.problem.numeric import Formulas


@final
class Scalars:
    """``(a_1, ..., a_n) -> (h_1, ..., h_T)`` with NumPy's rules: NaN and infinity, no exceptions.

    Arrays of one element cost ten times as much as scalars, and NumPy's scalars twice as much as
    Python's numbers; a round is full of them.

    Args:
        exprs: the formulas.
        symbols: their arguments, in order.
    """

    def __init__(self, exprs: Iterable[sp.Expr], symbols: Sequence[sp.Symbol]) -> None:
        block = Block(index=slice(0), count=1, symbols=tuple(symbols), parameters={})
        exact = list(Formulas(exprs, block).exprs)
        self._safe: Any = sp.lambdify(list(symbols), exact, modules=[NUMPY, "numpy"], cse=True)
        self._fast: Any = None
        if all(_is_plain(e) for e in exact):
            self._fast = sp.lambdify(list(symbols), exact, modules="math", cse=True)

    def __call__(self, *arguments: Any) -> Array:
        """Evaluate at real numbers."""
        return np.array(self.values(*map(float, arguments)), dtype=np.float64)

    def values(self, *arguments: float) -> Sequence[Any]:
        """Evaluate at Python's numbers, without an array for the result."""
        if self._fast is not None:
            try:
                return self._fast(*arguments)  # type: ignore[no-any-return]
            except (ArithmeticError, ValueError):
                pass  # Python refuses a division by zero; NumPy knows what it gives
        with np.errstate(all="ignore"):
            return self._safe(*map(np.float64, arguments))  # type: ignore[no-any-return]


def _is_plain(expr: sp.Expr) -> bool:
    """Whether Python's numbers give what NumPy's would, or an exception.

    A power that is neither whole nor a square root would give a complex number instead of NaN.
    """
    if expr.is_Pow and not (expr.exp.is_Integer or abs(expr.exp) == sp.S.Half):
        return False
    known = isinstance(expr, sp.exp | sp.log) or expr.is_Add or expr.is_Mul or expr.is_Pow
    return (known or expr.is_Symbol or expr.is_Number) and all(map(_is_plain, expr.args))
