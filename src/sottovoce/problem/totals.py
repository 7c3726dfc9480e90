"""Sums over fleets as text: ``total(ev) + x1 <= bound``, read into families of constraints."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, final

import numpy as np

from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import multiply, split_constant, substitute
from sottovoce.formula.derive import gradient
from sottovoce.formula.expression import ZERO, Expression, symbol
from sottovoce.problem.agents import Group
from sottovoce.problem.constraints import Constraint, Total, Weights, total_over

BOUND = symbol("bound")
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
            if s not in group.parameters or s.name.partition("[")[0] in public
        }
        self._found: dict[Expression, tuple[Group, tuple[Expression, ...]]] = {}

    @property
    def inside(self) -> dict[str, Expression]:
        """What a term may name."""
        return {symbol.name: symbol for symbol in self._owner}

    @property
    def symbols(self) -> set[Expression]:
        """What stands for the totals that were read."""
        return set(self._found)

    def add(self, terms: Sequence[Expression]) -> Expression:
        """Return what stands for ``total(terms)``.

        Raises:
            ProblemError: if the terms are not of one fleet.
        """
        named = {self._owner[s].name: self._owner[s] for h in terms for s in h.symbols}
        if len(named) != 1:
            got = " and ".join(named) or "none"
            raise ProblemError(f"total must be over one fleet, got {got}: write one total for each")
        stand_in = symbol(f"total {len(self._found) + 1}")
        (group,) = named.values()
        self._found[stand_in] = (group, tuple(terms))
        return stand_in

    def family(
        self,
        g: Expression,
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
        slopes = gradient(g, stand_ins)
        rest = substitute(g, dict.fromkeys(stand_ins, ZERO))
        if any(not slope.is_number for slope in slopes.values()):
            raise ProblemError(
                f"{where}: a total and bound may be added and multiplied by numbers only, got {g}"
            )
        sums = []
        for stand_in, (group, terms) in self._found.items():
            scaled = [multiply(slopes.get(stand_in, ZERO), h) for h in terms]
            sums.append(total_over(group, scaled, weights.get(group.name)))
        constant, named = split_constant(rest)
        right: Any = -float(constant)
        if BOUND in slopes:
            right = right - float(slopes[BOUND]) * np.asarray(bound, dtype=float)
        try:
            return _compared(sums, named, right, equality=equality)
        except ProblemError as error:
            raise ProblemError(f"{where}: {error}") from None


def _compared(
    sums: Sequence[Total], named: Expression, right: Any, *, equality: bool
) -> Constraint:
    left = sums[0]
    for more in sums[1:]:
        left = left + more
    if named.symbols:
        left = left + named
    stated: Constraint = left == right if equality else left <= right
    return stated
