"""Who has connected but not shown a certificate yet: bounded, and fair between addresses."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from dataclasses import dataclass
from typing import final


@dataclass(slots=True, kw_only=True, eq=False)
class Caller:
    """A connection without a certificate.

    Attributes:
        address: where it comes from.
        sock: its socket.
        arrived: when, on the clock of the loop.
        handshake: its TLS handshake, once that has begun.
    """

    address: str
    sock: socket.socket
    arrived: float
    handshake: asyncio.Task[None] | None = None


@final
class Lobby:
    """Callers in the order in which they came, and those among them that wait for a handshake.

    Where a bound is reached, the oldest caller has to go: an honest one is through in an instant,
    so whoever is old is slow or hostile. Above the total it is the oldest of the address that has
    the most callers. Handshakes go round the addresses, so that a crowd from one address delays
    nobody at another.

    Args:
        total: callers at a time.
        per_address: callers at a time from one address.
    """

    def __init__(self, *, total: int, per_address: int) -> None:
        self._total = total
        self._per_address = per_address
        self._count = 0
        self._callers: dict[str, dict[Caller, None]] = {}
        self._speaking: dict[str, deque[Caller]] = {}

    def __len__(self) -> int:
        return self._count

    def enter(self, caller: Caller) -> Caller | None:
        """Let a caller wait; returns the one who has to go for it, if any."""
        same = self._callers.setdefault(caller.address, {})
        same[caller] = None
        self._count += 1
        if len(same) > self._per_address:
            gone = next(iter(same))
        elif self._count > self._total:
            address = max(self._callers, key=lambda a: len(self._callers[a]))
            gone = next(iter(self._callers[address]))
        else:
            return None
        self.leave(gone)
        return gone

    def spoke(self, caller: Caller) -> None:
        """The caller has sent something, so it is worth a handshake."""
        self._speaking.setdefault(caller.address, deque()).append(caller)

    def next(self) -> Caller | None:
        """Take the caller whose handshake is due, each address in its turn."""
        if not self._speaking:
            return None
        address = next(iter(self._speaking))
        queue = self._speaking.pop(address)
        caller = queue.popleft()
        if queue:
            self._speaking[address] = queue
        return caller

    def leave(self, caller: Caller) -> None:
        """Forget a caller, also one that has left already."""
        same = self._callers.get(caller.address, {})
        if caller not in same:
            return
        del same[caller]
        self._count -= 1
        if not same:
            del self._callers[caller.address]
        queue = self._speaking.get(caller.address)
        if queue is not None and caller in queue:
            queue.remove(caller)
            if not queue:
                del self._speaking[caller.address]

    def older_than(self, moment: float) -> list[Caller]:
        """Return the callers who came before a moment."""
        return [c for same in self._callers.values() for c in same if c.arrived < moment]
