"""Constraints with kinks that mix agents, as several rows without them.

c max(a, b) + r <= 0   is   c a + r <= 0  and  c b + r <= 0
c |a| + r <= 0         is   c a + r <= 0  and  -c a + r <= 0      if r names anybody
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy as sp

from sottovoce.errors import ProblemError
from sottovoce.problem import kinks

_MOST = 64


def pieces(g: sp.Expr, owners: Mapping[sp.Symbol, str], where: str) -> list[sp.Expr]:
    """Return rows that hold together where ``g <= 0`` does, no maximum of which mixes agents.

    Raises:
        ProblemError: if that takes many rows.
    """
    found = [g]
    while True:
        split = [part for row in found for part in _halves(row, owners)]
        if len(split) == len(found):
            return found
        if len(split) > _MOST:
            raise ProblemError(
                f"{where} must have few maxima that mix agents, got one that becomes more than "
                f"{_MOST} rows: write one constraint for each piece"
            )
        found = split


def _halves(g: sp.Expr, owners: Mapping[sp.Symbol, str]) -> list[sp.Expr]:
    terms = sp.Add.make_args(g)
    alone = sum(1 for t in terms if t.free_symbols) == 1
    for term in terms:
        factor, rest = term.as_coeff_Mul()
        mixes = len({owners[s] for s in rest.free_symbols}) > 1
        if not (mixes and factor.is_positive):
            continue
        others = g - term
        if isinstance(rest, kinks.maximum):
            return [factor * a + others for a in rest.args]
        if isinstance(rest, kinks.absolute) and not alone:
            return [sign * factor * rest.args[0] + others for sign in (1, -1)]
    return [g]
