"""Lines of a pass that weigh: prices times weights for every agent, and contributions into sums.

A sum ``sum_i W[r, i] h_t(x_i)`` has a row per r and a term per t. Its weights are kept in the way
that suits them: not at all where they are 1, row by row, or by agent with the rows that are not 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import scipy.sparse as sparse

from sottovoce.engine.formulas import Sum
from sottovoce.engine.vectors import WIDTH

Kind = Literal["plain", "dense", "sparse", "table"]


def kind_of(part: Sum) -> Kind:
    """How the weights of a sum are kept."""
    if part.weights is None:
        return "plain"
    if part.table:
        return "table"
    return "sparse" if sparse.issparse(part.weights) else "dense"


def weight_rows(part: Sum) -> int:
    """How many rows a sum has."""
    return 1 if part.weights is None else int(part.weights.shape[0])


def weight_arrays(s: int, part: Sum) -> list[tuple[str, str]]:
    """The arrays that keep the weights of sum s, and what they hold."""
    by_agent = [(f"ptr{s}", "int64"), (f"row{s}", "int32")]
    before = {
        "dense": [], "sparse": by_agent, "table": [*by_agent, (f"term{s}", "int32")],
    }  # fmt: skip
    kind = kind_of(part)
    return [] if kind == "plain" else [*before[kind], (f"w{s}", "float64")]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeightText:
    """Writes what weights do in a pass over the blocks of a fleet, ``b`` being the block.

    Attributes:
        part: the sum.
        names: what the names of its arrays end with.
        prices: where its prices begin in ``state``.
        multiplier: where in ``work`` the agents' multipliers are put, term by term.
        contribution: where their contributions are found.
        total: where sums are added up lane by lane.
    """

    part: Sum
    names: str
    prices: int
    multiplier: int
    contribution: int
    total: int

    def _entries(self) -> list[str]:
        """Where the weights of the agent in a lane begin and end."""
        first = f"ptr{self.names}[b * {WIDTH} + lane"
        return [f"    begin = {first}]", f"    end = {first} + 1]"]

    def multipliers(self) -> list[str]:
        """``m_t = sum_r mu[r, t] W[r, i]`` of every agent of the block."""
        part, own, mu, m = self.part, self.names, self.prices, self.multiplier
        terms = len(part.terms)
        if kind_of(part) == "dense":
            rows = weight_rows(part)
            return [
                f"for q in range({m}, {m + terms * WIDTH}):",
                "    work[q] = 0.0",
                f"for r in range({rows}):",
                f"    at = (b * {rows} + r) * {WIDTH}",
                f"    for t in range({terms}):",
                f"        price = state[{mu} + r * {terms} + t]",
                "        for lane in range(width):",
                f"            to = {m} + t * {WIDTH} + lane",
                f"            work[to] += price * w{own}[at + lane]",
            ]
        if kind_of(part) == "sparse":
            return [
                "for lane in range(width):",
                *self._entries(),
                f"    for t in range({terms}):",
                "        price = 0.0",
                "        for e in range(begin, end):",
                f"            mu = state[{mu} + row{own}[e] * {terms} + t]",
                f"            price += mu * w{own}[e]",
                f"        work[{m} + t * {WIDTH} + lane] = price",
            ]
        if kind_of(part) == "table":
            return [
                "for lane in range(width):",
                f"    for t in range({terms}):",
                f"        work[{m} + t * {WIDTH} + lane] = 0.0",
                *self._entries(),
                "    for e in range(begin, end):",
                f"        to = {m} + term{own}[e] * {WIDTH} + lane",
                f"        mu = state[{mu} + row{own}[e]]",
                f"        work[to] += mu * w{own}[e]",
            ]
        return []

    def scatter(self, *, rounded: bool) -> list[str]:
        """Add ``W[r, i] h_t`` of the block's agents to the sums; rounded to the grid if asked."""
        part, own, h, total = self.part, self.names, self.contribution, self.total
        terms = len(part.terms)
        if kind_of(part) == "dense":
            rows = weight_rows(part)
            return [
                f"for r in range({rows}):",
                f"    at = (b * {rows} + r) * {WIDTH}",
                f"    for t in range({terms}):",
                "        for lane in range(width):",
                f"            to = {total} + (r * {terms} + t) * {WIDTH} + lane",
                f"            value = work[{h} + t * {WIDTH} + lane]",
                f"            value *= w{own}[at + lane]",
                *(
                    [f"            value = np.rint(value / grid[{part.row} + r * {terms} + t])"]
                    if rounded
                    else []
                ),
                "            work[to] += value",
            ]
        if kind_of(part) == "sparse":
            return [
                "for lane in range(width):",
                *self._entries(),
                f"    for t in range({terms}):",
                f"        value = work[{h} + t * {WIDTH} + lane]",
                "        for e in range(begin, end):",
                f"            to = {part.row} + row{own}[e] * {terms} + t",
                f"            add = value * w{own}[e]",
                *(["            add = np.rint(add / grid[to])"] if rounded else []),
                "            part[to] += add",
            ]
        if kind_of(part) == "table":
            return [
                "for lane in range(width):",
                *self._entries(),
                "    for e in range(begin, end):",
                f"        to = {part.row} + row{own}[e]",
                f"        add = work[{h} + term{own}[e] * {WIDTH} + lane]",
                f"        add *= w{own}[e]",
                *(["        add = np.rint(add / grid[to])"] if rounded else []),
                "        part[to] += add",
            ]
        return []

    def gather(self) -> list[str]:
        """Add up the lanes of the sums, in order."""
        part, total = self.part, self.total
        rows = {"plain": 1, "dense": weight_rows(part), "sparse": 0, "table": 0}[kind_of(part)]
        if rows == 0:
            return []
        return [
            f"for r in range({rows * len(part.terms)}):",
            f"    for lane in range({WIDTH}):",
            f"        part[{part.row} + r] += work[{total} + r * {WIDTH} + lane]",
        ]
