"""Where states lie: in blocks of agents whose second derivatives do not meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.formula.expression import Expression
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.connected import Indices
from sottovoce.problem.terms import Terms, Unit

Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """States whose second derivatives mix: those of each agent, or of several that a row mixes.

    Attributes:
        index: where the states lie in the flat vector, a slice for a fleet.
        count: how many agents.
        symbols: the states of one agent.
        parameters: an array of ``count`` numbers for each parameter symbol.
        named: whether they are agents stated one by one.
    """

    index: Any
    count: int
    symbols: tuple[Expression, ...]
    parameters: Mapping[Expression, Array]
    named: bool = False

    @property
    def dim(self) -> int:
        """The number of states of one agent."""
        return len(self.symbols)

    def of(self, x: NDArray[Scalar]) -> NDArray[Scalar]:
        """The block's part of the flat vector ``x``, shape (count, dim)."""
        return np.reshape(x[self.index], (self.count, self.dim))


class Target(NamedTuple):
    """Where terms of one form go: the array of a block, which of them, and their places there."""

    array: Array
    terms: Indices
    places: Indices


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """Where states lie.

    Attributes:
        blocks: all blocks, those of named agents first.
        fleets: the blocks of fleets by their names.
        units: for each unit of named agents its block and its place there.
    """

    blocks: tuple[Block, ...]
    fleets: Mapping[str, Block]
    units: Sequence[tuple[int, int]]

    def zeros(self) -> tuple[Array, ...]:
        """An array (count, dim, dim) of zeros for every block."""
        return tuple(np.zeros((b.count, b.dim, b.dim)) for b in self.blocks)

    def targets(self, terms: Sequence[Terms], arrays: Sequence[Array]) -> list[list[Target]]:
        """Per form of terms where they go: agents of one form may lie in several blocks."""
        units = np.array(self.units, dtype=np.int64).reshape(-1, 2)
        return [_by_block(units[t.units], arrays) for t in terms]


def _by_block(places: Indices, arrays: Sequence[Array]) -> list[Target]:
    """Split terms, given as rows (block, place), by their blocks."""
    members = ((b, np.flatnonzero(places[:, 0] == b)) for b in np.unique(places[:, 0]))
    return [Target(arrays[b], mine, places[mine, 1]) for b, mine in members]


def layout_of(groups: Sequence[Group], units: Sequence[Unit], local: Mapping[str, int]) -> Layout:
    """Lay out states: named agents of one dimension together, units of several by themselves.

    Args:
        groups: all agents.
        units: the named ones.
        local: how many local rows each group keeps; agents of a block have the same number.
    """
    kept = {g.symbols[0]: local.get(g.name, 0) for g in groups if g.count == 1}
    kinds: dict[tuple[int, int, int], list[int]] = {}
    for u, unit in enumerate(units):
        alone = len(unit.agents) == 1
        key = (len(unit.symbols), -1 if alone else u, kept[unit.symbols[0]] if alone else 0)
        kinds.setdefault(key, []).append(u)
    blocks = [
        Block(
            index=np.concatenate([units[u].columns for u in members]),
            count=len(members),
            symbols=units[members[0]].symbols,
            parameters={},
            named=True,
        )
        for members in kinds.values()
    ]
    place = {u: (b, i) for b, members in enumerate(kinds.values()) for i, u in enumerate(members)}
    fleets: dict[str, Block] = {}
    begin = 0
    for g in groups:
        end = begin + g.count * g.dim
        if g.count > 1:
            fleets[g.name] = Block(
                index=slice(begin, end), count=g.count, symbols=g.symbols, parameters=g.parameters
            )
        begin = end
    return Layout(
        blocks=(*blocks, *fleets.values()),
        fleets=fleets,
        units=[place[u] for u in range(len(units))],
    )
