"""What peers may do: token buckets by address and by certificate, and caps on connections."""

from __future__ import annotations

import time
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from sottovoce.network.protocol.codec import DOUBLE, INTEGER

if TYPE_CHECKING:
    from sottovoce.network.identity.certificates import Identity

HANDSHAKES_PER_SECOND: Final = 8
HANDSHAKES_PER_ADDRESS: Final = 2
AGENTS_PER_HANDSHAKE: Final = 100
"""While rounds go on; for every hundred agents one more handshake per second. With
these rates floods from one address took 3.0 to 4.5% of the cloud's processor (docs, security);
floods from many addresses were not measured."""

SPARE: Final = 8  # handshakes at once beyond one per agent: all agents may come back at once
ADDRESSES: Final = 4_096  # addresses remembered; the least recent one is forgotten

ROUNDS_PER_SECOND: Final = 5_000
"""More rounds than a disk commits: an honest agent sends one message in each."""

PINGS: Final = 8
PAGES: Final = 20
PAGES_PER_SECOND: Final = 10
CONNECTIONS: Final = 8
"""What a certificate may do beyond its part in the rounds; it may hold these connections and one
for each of its agents."""

HEARTBEAT_SECONDS: Final = 20.0
"""A peer that was silent this long is sent a ping, and dropped if it stays silent half as long."""

RESERVED_FILES: Final = 64
"""File descriptors kept back from connections: for the store, its log and the revocation list."""

CONFIG_BYTES: Final = 1 << 16
"""Of a message that describes a run, at most: its configuration, and all but its vectors."""

_FRAME_HEAD: Final = 1024
_MESSAGE_HEAD: Final = 64
_HELLO_HEAD: Final = 256
_HTTP: Final = 1 << 11
_OPEN_FILES: Final = Path("/proc/self/fd")


@final
class TokenBucket:
    """Holds up to ``capacity`` tokens, and gains ``rate`` of them per second.

    The clock is read only when there are too few. So tokens taken long ago come back all at once,
    and twice the capacity may be taken within an instant, never more.
    """

    __slots__ = ("_capacity", "_level", "_rate", "_refilled")

    def __init__(self, capacity: float, rate: float) -> None:
        self._capacity = self._level = float(capacity)
        self._rate = float(rate)
        self._refilled = time.monotonic()

    def take(self, amount: float = 1.0) -> bool:
        """Take tokens; False, and nothing is taken, if there are too few."""
        if self._level < amount:
            now = time.monotonic()
            self._level = min(self._capacity, self._level + (now - self._refilled) * self._rate)
            self._refilled = now
            if self._level < amount:
                return False
        self._level -= amount
        return True


@final
class Quota:
    """What all connections of a certificate for so many agents may do together."""

    __slots__ = ("bytes", "connections", "open", "pages", "pings")

    def __init__(self, agents: int, numbers: int) -> None:
        parties = max(1, agents)
        hello = _HELLO_HEAD + (INTEGER + DOUBLE * numbers) * parties
        message = _MESSAGE_HEAD + DOUBLE * numbers
        # Small to begin with: a few kilobytes already hold hundreds of pings to parse.
        self.bytes = TokenBucket(parties * _HTTP + 4 * hello, ROUNDS_PER_SECOND * message * parties)
        self.pings = TokenBucket(PINGS * parties, parties)
        self.pages = TokenBucket(PAGES, PAGES_PER_SECOND)
        self.connections = CONNECTIONS + agents
        self.open = 0


@final
class Limits:
    """The limits of one listener for ``agents``, who may all come at once, from one address.

    ``numbers`` is the most numbers in a message of one agent, ``head`` the bytes besides.
    """

    def __init__(self, *, agents: int, numbers: int, head: int = _FRAME_HEAD) -> None:
        crowd = agents + SPARE
        self.frame = head + max(INTEGER * agents, DOUBLE * numbers)
        """Bytes of the largest message of an honest peer: it names all agents, or the numbers."""
        self.unauthenticated = 4 * crowd
        """Connections without a certificate at a time; beyond it the oldest one is closed."""
        self._agents, self._numbers = agents, numbers
        self._crowd, self._extra = crowd, agents / AGENTS_PER_HANDSHAKE
        self._handshakes = TokenBucket(2 * crowd, HANDSHAKES_PER_SECOND + self._extra)
        self._addresses: OrderedDict[str, TokenBucket] = OrderedDict()
        self._quotas: dict[str, Quota] = {}

    def handshake(self, address: str) -> bool:
        """Whether an address may begin a TLS handshake now."""
        bucket = self._addresses.pop(address, None)
        if bucket is None:
            bucket = TokenBucket(self._crowd, HANDSHAKES_PER_ADDRESS + self._extra)
            if len(self._addresses) >= ADDRESSES:
                self._addresses.popitem(last=False)
        self._addresses[address] = bucket
        return bucket.take() and self._handshakes.take()

    def quota(self, identity: Identity | None) -> Quota:
        """Return the quota of a certificate; those without a role share one."""
        serial = "" if identity is None else identity.serial
        if serial not in self._quotas:
            parts = () if identity is None else identity.agents
            agents = sum(len(range(part.start, min(part.stop, self._agents + 1))) for part in parts)
            self._quotas[serial] = Quota(agents, self._numbers)
        return self._quotas[serial]


def most_sockets() -> int:
    """Raise the soft limit of files to the hard one; return how many sockets may be opened."""
    try:
        import resource
    except ImportError:
        return 1 << 10  # Windows has no such limit
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    used = len(list(_OPEN_FILES.iterdir())) if _OPEN_FILES.exists() else RESERVED_FILES
    return int(max(1, hard - RESERVED_FILES - used))
