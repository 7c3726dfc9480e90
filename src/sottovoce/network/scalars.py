"""Formulas of a few named states, compiled for one point at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

import numpy as np
import sympy as sp

from sottovoce.problem.agents import Array
from sottovoce.problem.numeric import Block, Formulas


@final
class Scalars:
    """``(a_1, ..., a_n) -> (h_1, ..., h_T)`` with NumPy's rules: NaN and infinity, no exceptions.

    Arrays of one element cost ten times as much as scalars, and a round is full of them.

    Args:
        exprs: the formulas.
        symbols: their arguments, in order.
    """

    def __init__(self, exprs: Iterable[sp.Expr], symbols: Sequence[sp.Symbol]) -> None:
        block = Block(index=slice(0), count=1, symbols=tuple(symbols), parameters={})
        exact = Formulas(exprs, block).exprs
        self._function = sp.lambdify(list(symbols), list(exact), modules="numpy", cse=True)

    def __call__(self, *arguments: Any) -> Array:
        """Evaluate at NumPy scalars."""
        with np.errstate(all="ignore"):
            return np.array(self._function(*arguments), dtype=np.float64)
