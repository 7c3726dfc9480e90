"""Contributions to the round that is being collected, who is missing, and gaps in averages.

A gap is rounds that an agent's average lacks, because other contributions of it were released.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Final, final

import numpy as np

from sottovoce.network.protocol.actions import Part, Party
from sottovoce.network.protocol.codec import Integers
from sottovoce.network.protocol.messages import MOST_GAPS, Gap

NO_SUMS: Final = np.zeros(0, dtype=np.int64)


@final
class Collected:
    """Parts of disjoint parties of n agents, of whom ``awaited`` are waited for.

    A party's first contribution stays. Nothing of a round is used before every agent has
    contributed. So where agents come back in another party, on a gateway or alone, the contribution
    of the old party is dropped: a sum cannot be taken apart.
    """

    def __init__(self, agents: int, awaited: Container[int]) -> None:
        others = [a not in awaited for a in range(1, agents + 1)]
        self._others = np.array(others, dtype=np.bool_)
        self._known = self._others.copy()
        self._awaited = self.lacking = agents - sum(others)
        self._parts: dict[int, Part] = {}  # by a party's first agent: parties are disjoint

    @property
    def parts(self) -> tuple[Part, ...]:
        """All contributions so far."""
        return tuple(self._parts.values())

    @property
    def missing(self) -> frozenset[int]:
        """Who is missing, from 1: ``lacking`` agents."""
        if not self.lacking:
            return frozenset()
        return frozenset((np.flatnonzero(~self._known) + 1).tolist())

    def clear(self) -> None:
        """Begin a new round."""
        self._known[:] = self._others
        self.lacking = self._awaited
        self._parts.clear()

    def put(self, part: Part) -> bool:
        """Take a party's contribution; False if it sent another before."""
        party = part.party
        before = self._parts.get(party.agents[0])
        if before is not None and before.party.agents == party.agents:
            return before.data == part.data
        if np.count_nonzero(self._known[party.places]):
            agents = set(party.agents)
            for other in self.parts:
                if not agents.isdisjoint(other.party.agents):
                    self._forget(other)
        self._parts[party.agents[0]] = part
        self._known[party.places] = True
        self.lacking -= len(party.agents)
        return True

    def _forget(self, part: Part) -> None:
        del self._parts[part.party.agents[0]]
        self._known[part.party.places] = False
        self.lacking += len(part.party.agents)

    def contributed(self, places: slice | Integers) -> bool:
        """Whether one of these agents, from 0, has contributed."""
        return bool(np.count_nonzero(self._known[places]))


@final
class ContributionTotals:
    """Adds up the contributions of all parties: ``parts -> one integer per sum``.

    No overflow: the plan certifies that all agents together stay below 2^51 steps, and what a
    party contributes is kept in its range. ``skip`` bytes come before the numbers of every part.
    """

    def __init__(self, sums: int, *, skip: int = 0) -> None:
        self._sums = sums
        self._skip = skip
        self._parties: list[Party] = []
        self._index: Integers = np.zeros(0, dtype=np.int64)

    def __call__(self, parts: Sequence[Part]) -> Integers:
        """Return the sums, in steps of their grids; 0 for sums without noise."""
        parties = [part.party for part in parts]
        if parties != self._parties:
            self._index = np.concatenate([NO_SUMS, *(party.sums for party in parties)])
            self._parties = parties
        total = np.zeros(self._sums, dtype=np.int64)
        skip = self._skip
        values = np.frombuffer(b"".join([part.data[skip:] for part in parts]), dtype="<i8")
        np.add.at(total, self._index, values)
        return total


def agent_ranges(agents: Iterable[int]) -> list[tuple[int, int]]:
    """Return increasing agents as ranges, both ends included."""
    ranges: list[tuple[int, int]] = []
    for agent in agents:
        if ranges and agent == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], agent)
        else:
            ranges.append((agent, agent))
    return ranges


def merge_gaps(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    """Return the gaps of the same agents without overlaps."""
    merged: list[Gap] = []
    for first, last, begin, end in sorted(set(gaps)):
        if merged and merged[-1][:2] == (first, last) and begin <= merged[-1][3] + 1:
            merged[-1] = (first, last, merged[-1][2], max(end, merged[-1][3]))
        else:
            merged.append((first, last, begin, end))
    return tuple(merged)


def few_gaps(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    """Return at most ``MOST_GAPS`` gaps that cover all of these."""
    merged = merge_gaps(gaps)
    if len(merged) <= MOST_GAPS:
        return merged
    first, last, begin, end = zip(*merged, strict=True)
    return ((min(first), max(last), min(begin), max(end)),)
