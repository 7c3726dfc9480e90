"""Gaps: rounds that an agent's average lacks, because something else of its own was released."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sottovoce.network.protocol.messages import Gap

MOST: Final = 16
"""Gaps in a message at most: a frame stays short, and more become one that covers all of them."""


def merged(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    """Return the gaps of the same agents without overlaps."""
    found: list[Gap] = []
    for first, last, begin, end in sorted(set(gaps)):
        if found and found[-1][:2] == (first, last) and begin <= found[-1][3] + 1:
            found[-1] = (first, last, found[-1][2], max(end, found[-1][3]))
        else:
            found.append((first, last, begin, end))
    return tuple(found)


def few(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    """Return at most 16 gaps that cover all of these."""
    found = merged(gaps)
    if len(found) <= MOST:
        return found
    first, last, begin, end = zip(*found, strict=True)
    return ((min(first), max(last), min(begin), max(end)),)
