"""Do the messages tell anything besides the releases?

The promise covers whatever is computed from releases. So a run is played again with the very same
releases and other states: every byte that the cloud sends must be the same, receipts and the final
answer included. What differs was computed from a state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.network.protocol.codec import decode_from_cloud
from sottovoce.privacy.sampler import Integers, Released, Sampler
from sottovoce.problem.agents import Array
from sottovoce.study.loopback import Loopback, Played


@final
class Replayed(Sampler):
    """Releases what was released before, whatever the values."""

    def __init__(self, releases: Iterable[Released]) -> None:
        self._releases = iter(releases)

    def release(self, values: ArrayLike) -> Released:
        """Return the next release of the run that is played again."""
        return next(self._releases)

    def release_multiples(self, multiples: Integers) -> Released:
        """Likewise."""
        return next(self._releases)

    def release_residues(self, residues: Integers) -> Released:
        """Likewise."""
        return next(self._releases)


def tells_more(loop: Loopback, played: Played, lower: Array, upper: Array) -> str:
    """Return what the messages of a run tell besides its releases, "" for nothing.

    Args:
        loop: where it was played.
        played: the run.
        lower: lower bounds of all states.
        upper: upper bounds of all states.
    """
    generator = np.random.default_rng(len(played.states))
    elsewhere = generator.uniform(lower, upper, (len(played.states) + 1, lower.size))
    other = loop.with_sampler(Replayed(played.releases)).play(lambda k: elsewhere[k - 1])
    if len(other.frames) != len(played.frames):
        return "how many messages there are"
    for (to, frame), (too, second) in zip(played.frames, other.frames, strict=True):
        if (to, frame) != (too, second):
            return _difference(decode_from_cloud(frame), decode_from_cloud(second))
    return ""


def _difference(first: Any, second: Any) -> str:
    if type(first) is not type(second):
        return "which messages there are"
    fields = [f for f in first.__struct_fields__ if getattr(first, f) != getattr(second, f)]
    return f"{', '.join(fields)} of a {type(first).__name__.lower()} message"
