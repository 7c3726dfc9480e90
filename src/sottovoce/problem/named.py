"""Numbers from the terms of named agents: all forms in one compiled function, agents together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, final

import numpy as np
import scipy.sparse as sparse
import sympy as sp

from sottovoce.problem import kinks
from sottovoce.problem.agents import Array
from sottovoce.problem.blocks import Target
from sottovoce.problem.derivatives import slopes_of
from sottovoce.problem.terms import Terms


@final
class NamedFormulas:
    """Terms of several forms: values, and first and second derivatives that are not 0.

    Args:
        terms: the terms, form by form.
    """

    def __init__(self, terms: Sequence[Terms]) -> None:
        self.terms = tuple(terms)
        self._names = [
            {s: sp.Symbol(f"a{t}_{c}") for c, s in enumerate((*e.form.symbols, *e.form.parameters))}
            for t, e in enumerate(self.terms)
        ]
        self._exprs = [e.formula.xreplace(n) for e, n in zip(terms, self._names, strict=True)]
        named = [expr.free_symbols for expr in self._exprs]
        self._used = [
            (t, c)
            for t, names in enumerate(self._names)
            for c, symbol in enumerate(names.values())
            if symbol in named[t]
        ]

    def values(self, x: Array) -> list[Array]:
        """``h(x_u; p)`` of every term, one array per form."""
        return self._evaluated(self._value, x, range(len(self.terms)))

    def slopes(self, x: Array) -> list[tuple[int, int, Array]]:
        """``dh/dx_c``: form, component and an array over its terms."""
        places, function = self._first
        found = self._evaluated(function, x, [t for t, _ in places])
        return [(t, c, v) for (t, c), v in zip(places, found, strict=True)]

    def curvatures(self, x: Array) -> list[tuple[int, int, int, Array]]:
        """``d2h/dx_a dx_b`` with a <= b: form, components and an array over its terms."""
        places, function = self._second
        found = self._evaluated(function, x, [t for t, _, _ in places])
        return [(t, a, b, v) for (t, a, b), v in zip(places, found, strict=True)]

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

    @cached_property
    def _value(self) -> Any:
        return self._compile(self._exprs)

    @cached_property
    def _derivatives(self) -> dict[tuple[int, int], sp.Expr]:
        return {
            (t, place[s]): slope
            for t, (expr, place) in enumerate(zip(self._exprs, self._places, strict=True))
            for s, slope in slopes_of(expr, list(place)).items()
        }

    @cached_property
    def _places(self) -> list[dict[sp.Symbol, int]]:
        """Which component each symbol of a state is, form by form."""
        return [
            {names[s]: c for c, s in enumerate(e.form.symbols)}
            for e, names in zip(self.terms, self._names, strict=True)
        ]

    @cached_property
    def _first(self) -> tuple[list[tuple[int, int]], Any]:
        return list(self._derivatives), self._compile(self._derivatives.values())

    @cached_property
    def _second(self) -> tuple[list[tuple[int, int, int]], Any]:
        found = {
            (t, a, self._places[t][s]): bend
            for (t, a), slope in self._derivatives.items()
            for s, bend in slopes_of(slope, list(self._places[t])[a:]).items()
        }
        return list(found), self._compile(found.values())

    def _symbol(self, t: int, c: int) -> sp.Symbol:
        form = self.terms[t].form
        return self._names[t][(*form.symbols, *form.parameters)[c]]

    def _compile(self, exprs: Iterable[sp.Expr]) -> Any:
        arguments = [self._symbol(t, c) for t, c in self._used]
        return sp.lambdify(arguments, list(exprs), modules=[kinks.NUMPY, "numpy"], cse=True)

    def _evaluated(self, function: Any, x: Array, owners: Iterable[int]) -> list[Array]:
        arguments = []
        for t, c in self._used:
            own, dim = self.terms[t], len(self.terms[t].form.symbols)
            arguments.append(x[own.columns[:, c]] if c < dim else own.numbers[:, c - dim])
        with np.errstate(all="ignore"):
            found = function(*arguments)
        sizes = [(len(self.terms[t].rows),) for t in owners]
        return [np.broadcast_to(v, size) for v, size in zip(found, sizes, strict=True)]
