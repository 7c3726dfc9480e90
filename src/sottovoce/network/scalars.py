"""Formulas of a few named states, evaluated at one point at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

import numpy as np

from sottovoce.formula.expression import Expression
from sottovoce.formula.tape import tape
from sottovoce.problem.agents import Array


@final
class Scalars:
    """``(a_1, ..., a_n) -> (h_1, ..., h_T)`` with NumPy's rules: NaN and infinity, no exceptions.

    Args:
        exprs: the formulas.
        symbols: their arguments, in order.
    """

    def __init__(self, exprs: Iterable[Expression], symbols: Sequence[Expression]) -> None:
        self._tape = tape(exprs, symbols)

    def __call__(self, *arguments: float) -> Array:
        """Evaluate at real numbers."""
        return np.array(self._tape(*map(np.float64, arguments)), dtype=np.float64)
