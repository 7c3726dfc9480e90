"""How much a peer may send: per connection, and per certificate over all its connections."""

from __future__ import annotations

from typing import Final, final

from sottovoce.network.buckets import Bucket
from sottovoce.network.identity.roles import Identity

ROUNDS_PER_SECOND: Final = 5_000
"""More rounds than any disk commits: an honest agent sends one frame in each."""

PINGS: Final = 8
PAGES: Final = 20
FRAMES: Final = 64
CONNECTIONS: Final = 8
"""What a peer may do at once beyond its part in the rounds; connections per certificate are these
and one for each of its agents."""

PINGS_PER_SECOND: Final = 1
PAGES_PER_SECOND: Final = 10

_STATE_HEAD: Final = 64
_HELLO_HEAD: Final = 256
_INTEGER: Final = 9
_DOUBLE: Final = 8
_HTTP: Final = 1 << 11


@final
class Allowance:
    """Token buckets of one connection, or of one certificate.

    Args:
        agents: agents that may speak here, at least 1.
        size: the most numbers that they contribute, or the number of their scalar states.
        voices: connections that may do so side by side.
    """

    __slots__ = ("data", "frames", "pages", "pings")

    def __init__(self, *, agents: int, size: int, voices: int = 1) -> None:
        state = _STATE_HEAD + _DOUBLE * size
        hello = _HELLO_HEAD + _INTEGER * agents + _DOUBLE * size
        # Small to begin with: a few kilobytes already hold hundreds of pings to take apart.
        self.data = Bucket(voices * _HTTP + 4 * hello, ROUNDS_PER_SECOND * state)
        self.frames = Bucket(FRAMES * voices, ROUNDS_PER_SECOND * voices)
        self.pings = Bucket(PINGS * voices, PINGS_PER_SECOND * voices)
        self.pages = Bucket(PAGES, PAGES_PER_SECOND)


@final
class Allowances:
    """The allowances of all certificates.

    Args:
        offsets: agent i's states are the components ``offsets[i]:offsets[i+1]``, i from 0.
        sums: the most numbers in a contribution; None where agents send states.
    """

    def __init__(self, offsets: list[int], *, sums: int | None) -> None:
        self._offsets = offsets
        self._sums = sums
        self._shared: dict[str, Allowance] = {}

    def connections(self, identity: Identity | None) -> int:
        """How many connections a certificate may have at a time."""
        return CONNECTIONS + self._reach(identity)[0]

    def connection(self, identity: Identity | None) -> Allowance:
        """Return the allowance of a new connection."""
        agents, states = self._reach(identity)
        size = states if self._sums is None else self._sums
        return Allowance(agents=max(1, agents), size=size)

    def certificate(self, identity: Identity | None) -> Allowance:
        """Return the allowance that all connections of a certificate share."""
        serial = "" if identity is None else identity.serial
        if serial not in self._shared:
            agents, states = self._reach(identity)
            some = max(1, agents)
            size = states if self._sums is None else some * self._sums
            self._shared[serial] = Allowance(agents=some, size=size, voices=some)
        return self._shared[serial]

    def _reach(self, identity: Identity | None) -> tuple[int, int]:
        """How many agents of this problem a certificate speaks for, and how many states."""
        agents = size = 0
        for part in () if identity is None else identity.agents:
            begin, end = (min(a, len(self._offsets)) for a in (part.start, part.stop))
            agents += end - begin
            size += self._offsets[end - 1] - self._offsets[begin - 1]
        return agents, size
