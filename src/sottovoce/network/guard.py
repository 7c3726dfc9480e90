"""Stands between a connection and the HTTP server: counts what comes in, and stops listening."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final, Protocol, cast, final

from sottovoce.network.allowances import Allowance
from sottovoce.network.buckets import Bucket
from sottovoce.network.frames import is_beat, message_in
from sottovoce.network.identity.roles import Identity, identity_of

CLOSE_SECONDS: Final = 1.0
"""How long a connection that is being closed may take to go."""

REQUEST_SECONDS: Final = 10.0
"""A connection that is no WebSocket must complete a request within this time, then the next."""


class Host(Protocol):
    """Who lets connections in."""

    def enter(self, guard: Guard) -> tuple[Allowance, ...]:
        """The certificate is known: return what it and the connection may send; nothing if full."""

    def serve(self, guard: Guard) -> Any:
        """Return the server's own protocol for a connection that was let in."""

    def flooded(self, guard: Guard) -> None:
        """A connection sends more than it may."""

    def leave(self, guard: Guard) -> None:
        """A connection has gone, let in or not."""


@final
class Guard(asyncio.Protocol):
    """One connection with a verified certificate, in front of the server's own protocol.

    aiohttp reads on while it waits for a peer to say goodbye, so a peer that was refused could go
    on sending; what this protocol does not pass on costs nobody anything. A peer that sends whole
    messages one at a time, as every honest one does, is heard here without aiohttp's queue and
    tasks. Any other byte goes to aiohttp, and everything after it: only whoever has seen all of a
    stream knows where its next frame begins.

    Args:
        host: lets connections in and knows the server.
    """

    def __init__(self, host: Host) -> None:
        self.identity: Identity | None = None
        self.transport: asyncio.Transport
        self.handler: Any = None
        self.due = math.inf
        """When the next request must be complete, on the clock of the loop."""
        self.answered = False
        """Whether a request was answered: a connection that is idle after that did no wrong."""
        self.refuse: Callable[[], None] | None = None
        """Refuses the peer in the words of the protocol, once it speaks that."""
        self.chunks = 0
        """How often something has come in."""
        self.hear: Callable[[bytes], None] | None = None
        """Hears whole messages; None while aiohttp does."""
        self._host = host
        self._buckets: dict[str, tuple[Bucket, ...]] = {}
        self._stopped = False
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def serial(self) -> str:
        """The serial number of the certificate; empty for one without a role here."""
        return "" if self.identity is None else self.identity.serial

    def allows(self, what: str, amount: float = 1.0) -> bool:
        """Take from the allowance of the connection and from that of its certificate."""
        for bucket in self._buckets[what]:  # noqa: SIM110  a generator costs more than the rest
            if not bucket.take(amount):
                return False
        return True

    def expect(self, seconds: float = REQUEST_SECONDS) -> None:
        """Give the peer so much time for its next request."""
        self.due = asyncio.get_running_loop().time() + seconds

    def stop(self) -> None:
        """Hear nothing more; the connection ends when its last words have left, within a second."""
        if not self._stopped:
            self._stopped = True
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(CLOSE_SECONDS, self.transport.abort)

    async def gone(self) -> None:
        """Wait until the connection has ended."""
        await asyncio.shield(self._gone)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """TLS is done: whoever is there has a certificate of the authority."""
        self.transport = cast(asyncio.Transport, transport)
        self.identity = identity_of(transport.get_extra_info("peercert"))
        allowances = self._host.enter(self)
        if not allowances:
            self._stopped = True
            self.transport.abort()
            return
        kinds = Allowance.__slots__
        self._buckets = {kind: tuple(getattr(a, kind) for a in allowances) for kind in kinds}
        self.expect()
        self.handler = self._host.serve(self)
        self.handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass on what may come in."""
        if self._stopped:
            # An honest peer's goodbye, or more of what it was stopped for: over in either case.
            self.transport.close()
        elif not self.allows("data", len(data)):
            self._host.flooded(self)
            self.stop()
        else:
            self.chunks += 1
            self._pass_on(data)

    def _pass_on(self, data: bytes) -> None:
        if self.hear is not None:
            message = message_in(data)
            if message is not None:
                self.hear(message)
                return
            if not is_beat(data):
                self.hear = None
        self.handler.data_received(data)

    def eof_received(self) -> bool | None:
        """The peer says no more."""
        return self.handler.eof_received() if self.handler is not None else None

    def pause_writing(self) -> None:
        """The peer reads slowly."""
        if self.handler is not None:
            self.handler.pause_writing()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        if self.handler is not None:
            self.handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
        self._stopped = True
        if self.handler is not None:
            self.handler.connection_lost(exc)
        self._host.leave(self)
        if not self._gone.done():
            self._gone.set_result(None)
