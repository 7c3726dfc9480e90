"""Numbers from the terms of named agents, those of one form together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import scipy.sparse as sparse

from sottovoce.formula.derive import Derivatives
from sottovoce.formula.tape import Tape
from sottovoce.problem.agents import Array
from sottovoce.problem.blocks import Target
from sottovoce.problem.terms import Terms


@final
class NamedFormulas:
    """Terms of several forms: values, and first and second derivatives that are not 0.

    Args:
        terms: the terms, form by form.
    """

    def __init__(self, terms: Sequence[Terms]) -> None:
        self.terms = tuple(terms)
        forms = [own.form for own in self.terms]
        self._formulas = [Derivatives(f.formulas, f.symbols, f.parameters) for f in forms]

    def values(self, x: Array) -> list[Array]:
        """``h(x_u; p)`` of every term, one array per form."""
        return [v for (v,) in self._evaluated([f.values for f in self._formulas], x)]

    def slopes(self, x: Array) -> list[tuple[int, int, Array]]:
        """``dh/dx_c``: form, component and an array over its terms."""
        found = self._evaluated([f.first[1] for f in self._formulas], x)
        return [
            (t, c, v)
            for t, (own, values) in enumerate(zip(self._formulas, found, strict=True))
            for (_, c), v in zip(own.first[0], values, strict=True)
        ]

    def curvatures(self, x: Array) -> list[tuple[int, int, int, Array]]:
        """``d2h/dx_a dx_b`` with a <= b: form, components and an array over its terms."""
        found = self._evaluated([f.second[1] for f in self._formulas], x)
        return [
            (t, a, b, v)
            for t, (own, values) in enumerate(zip(self._formulas, found, strict=True))
            for (_, a, b), v in zip(own.second[0], values, strict=True)
        ]

    def add_pullback(self, x: Array, weights: Sequence[Array], out: Array) -> None:
        """Add ``sum weight dh/dx`` to ``out``, shape (N,); one array of weights per form."""
        with np.errstate(all="ignore"):
            for t, c, slope in self.slopes(x):
                np.add.at(out, self.terms[t].columns[:, c], weights[t] * slope)

    def add_hessian(
        self, x: Array, weights: Sequence[Array], into: Sequence[Sequence[Target]]
    ) -> None:
        """Add ``sum weight d2h/dx2``; per form the arrays (count, dim, dim) of its blocks."""
        with np.errstate(all="ignore"):
            for t, a, b, value in self.curvatures(x):
                weighted = weights[t] * value
                for total, mine, places in into[t]:
                    np.add.at(total[:, a, b], places, weighted[mine])
                    if a != b:
                        np.add.at(total[:, b, a], places, weighted[mine])

    def jacobian(self, x: Array, rows: int) -> Any:
        """``dh/dx`` with each term in its row, a sparse array (rows, N)."""
        parts = self.slopes(x)
        data = np.concatenate([np.zeros(0), *(slope for _, _, slope in parts)])
        at = [
            np.concatenate([np.zeros(0, dtype=np.int64), *places])
            for places in (
                [self.terms[t].rows for t, _, _ in parts],
                [self.terms[t].columns[:, c] for t, c, _ in parts],
            )
        ]
        return sparse.csr_array((data, tuple(at)), shape=(rows, x.size))

    def _evaluated(self, tapes: Sequence[Tape], x: Array) -> list[list[Array]]:
        found = []
        for own, formulas in zip(self.terms, tapes, strict=True):
            values = formulas(*x[own.columns.T], *own.numbers.T)
            found.append([np.broadcast_to(v, own.rows.shape) for v in values])
        return found
