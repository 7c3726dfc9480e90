"""Sums over fleets as text: ``total(ev) + x1 <= bound``, read into families of constraints."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, final

import numpy as np
import sympy as sp

from sottovoce.errors import ProblemError
from sottovoce.problem.agents import Group
from sottovoce.problem.constraints import Constraint, Total, Weights, equal, total

BOUND = sp.Symbol("bound")
"""What stands for a number per row, given beside the text."""


@final
class Totals:
    """The totals that a text names, each under a symbol of its own while the text is read.

    Args:
        fleets: what may be summed over.
        public: the names of the parameters that terms may use, which everybody knows.
    """

    def __init__(self, fleets: Sequence[Group], public: Collection[str]) -> None:
        self._owner = {
            s: group
            for group in fleets
            for s in (*group.symbols, *group.parameters)
            if s in group.symbols or s.name.partition("[")[0] in public
        }
        self._found: dict[sp.Symbol, tuple[Group, tuple[sp.Expr, ...]]] = {}

    @property
    def inside(self) -> dict[str, sp.Symbol]:
        """What a term may name."""
        return {symbol.name: symbol for symbol in self._owner}

    @property
    def symbols(self) -> set[sp.Symbol]:
        """What stands for the totals that were read."""
        return set(self._found)

    def add(self, terms: Sequence[sp.Expr]) -> sp.Symbol:
        """Return what stands for ``total(terms)``.

        Raises:
            ProblemError: if the terms are not of one fleet.
        """
        named = {self._owner[s].name: self._owner[s] for h in terms for s in h.free_symbols}
        if len(named) != 1:
            got = " and ".join(named) or "none"
            raise ProblemError(f"total must be over one fleet, got {got}: write one total for each")
        symbol = sp.Symbol(f"total {len(self._found) + 1}")
        (group,) = named.values()
        self._found[symbol] = (group, tuple(terms))
        return symbol

    def family(
        self,
        g: sp.Expr,
        *,
        equality: bool,
        bound: Any,
        weights: Mapping[str, Weights],
        where: str,
    ) -> Constraint:
        """Return the rows ``g <= 0``, or ``= 0``, in which totals and ``bound`` have been named.

        Args:
            g: the formula, affine in the totals and in ``bound``.
            equality: whether the rows must be 0.
            bound: a number per row, if ``g`` names it.
            weights: W by the fleet's name.
            where: where it stands, for errors.
        """
        stand_ins = [*self._found, BOUND]
        rest, slopes = g, {}
        for symbol in stand_ins:
            slopes[symbol] = sp.diff(g, symbol)
            rest = rest.subs(symbol, 0)
        if any(slope.free_symbols for slope in slopes.values()):
            raise ProblemError(
                f"{where}: a total and bound may be added and multiplied by numbers only, got {g}"
            )
        sums = []
        for symbol, (group, terms) in self._found.items():
            factor = slopes[symbol]
            scaled = terms if factor == 1 else [factor * h for h in terms]
            sums.append(total(group, scaled, weights=weights.get(group.name)))
        constant, named = _split(rest)
        right: Any = -float(constant)
        if slopes[BOUND] != 0:
            right = right - float(slopes[BOUND]) * np.asarray(bound, dtype=float)
        try:
            return _compared(sums, named, right, equality=equality)
        except ProblemError as error:
            raise ProblemError(f"{where}: {error}") from None


def _split(rest: sp.Expr) -> tuple[sp.Expr, sp.Expr]:
    terms = sp.Add.make_args(rest)
    constant = sp.Add(*(t for t in terms if not t.free_symbols))
    return constant, sp.Add(*(t for t in terms if t.free_symbols))


def _compared(sums: Sequence[Total], named: sp.Expr, right: Any, *, equality: bool) -> Constraint:
    left = sums[0]
    for more in sums[1:]:
        left = left + more
    if named.free_symbols:
        left = left + named
    found: Constraint = equal(left, right) if equality else left <= right
    return found
