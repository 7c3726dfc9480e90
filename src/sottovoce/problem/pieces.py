"""Constraints with kinks that mix agents, as several rows without them.

c max(a, b) + r <= 0   is   c a + r <= 0  and  c b + r <= 0
c |a| + r <= 0         is   c a + r <= 0  and  -c a + r <= 0      if r names anybody
"""

from __future__ import annotations

from collections.abc import Mapping

from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import add, addends, coefficient, multiply, pieces_of, subtract
from sottovoce.formula.expression import Expression, Op, number

_MOST = 64


def pieces(g: Expression, owners: Mapping[Expression, str], where: str) -> list[Expression]:
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


def _halves(g: Expression, owners: Mapping[Expression, str]) -> list[Expression]:
    terms = addends(g)
    alone = sum(1 for t in terms if t.symbols) == 1
    for term in terms:
        factor, rest = coefficient(term)
        mixes = len({owners[s] for s in rest.symbols}) > 1
        if not (mixes and factor > 0):
            continue
        others = subtract(g, term)
        if rest.op == Op.MAX:
            return [add(multiply(number(factor), a), others) for a in pieces_of(rest)]
        if rest.op == Op.ABS and not alone:
            signed = (multiply(number(sign * factor), rest.args[0]) for sign in (1, -1))
            return [add(one, others) for one in signed]
    return [g]
