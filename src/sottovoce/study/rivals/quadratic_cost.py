"""A public cost that is quadratic in the sums: what a rival without constraints minimises."""

from __future__ import annotations

from typing import final

import numpy as np

from sottovoce.errors import InputError
from sottovoce.formula.derive import gradient, hessian
from sottovoce.formula.expression import ZERO
from sottovoce.formula.tape import tape
from sottovoce.problem.agents import Array
from sottovoce.problem.problem import Problem


@final
class QuadraticCost:
    """U of a problem without constraints.

    Attributes:
        hessian: of U in the sums, constant.
    """

    def __init__(self, problem: Problem) -> None:
        sums, rows = problem.cloud.sums, problem.rows
        if rows or not sums.costs:
            known = "constraints too" if sums.costs else "constraints alone"
            raise InputError(f"it minimises a public cost of the sums and no more, got {known}")
        self.hessian = np.zeros((sums.count, sums.count))
        self._tapes = []
        for term in sums.costs:
            second = hessian(term.formula, term.symbols)
            if term.peak or term.center or any(entry.symbols for entry in second.values()):
                raise InputError(f"it needs a quadratic public cost, got {term.formula!s:.60}")
            place = dict(zip(term.symbols, term.rows, strict=True))
            for (s, t), entry in second.items():
                self.hessian[place[s], place[t]] = self.hessian[place[t], place[s]] = entry.value
            slopes = gradient(term.formula, term.symbols)
            formulas = [slopes.get(s, ZERO) for s in term.symbols]
            self._tapes.append((list(term.rows), tape(formulas, term.symbols)))

    def gradient(self, s: Array) -> Array:
        """dU/ds."""
        out = np.zeros(s.size)
        for rows, formulas in self._tapes:
            out[rows] = formulas(*s[rows].tolist())
        return out
