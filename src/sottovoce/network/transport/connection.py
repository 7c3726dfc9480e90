"""A TLS connection with a verified certificate, on which aiohttp speaks HTTP or a WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast, final

from aiohttp import WSCloseCode, WSMsgType, web

from sottovoce.network.identity.certificates import Identity, peer_identity
from sottovoce.network.protocol.messages import Code
from sottovoce.network.transport.limits import HEARTBEAT_SECONDS, Quota

if TYPE_CHECKING:
    from sottovoce.network.transport.server import Server

REQUEST_SECONDS: Final = 10.0
"""A connection that is not a WebSocket must complete a request within this time, then the next."""

CLOSE_SECONDS: Final = 1.0
"""How long a connection that is being closed may take to flush."""

SEND_SECONDS: Final = 10.0
"""How long a peer may leave what was sent unread."""

UNREAD: Final = 16
"""Messages that may wait for a peer."""

_NEVER_DRAIN: Final = 1 << 62
"""Bytes after which aiohttp waits for the peer to read; here ``UNREAD`` and time are the limits."""

_BEATS: Final = frozenset({WSMsgType.PING, WSMsgType.PONG})
_ENDS: Final = frozenset({WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED})


@final
class Connection(web.RequestHandler):
    """A TLS connection with a verified certificate: aiohttp's protocol within a quota.

    As a WebSocket it never waits for a slow reader, and hears whole messages.

    Attributes:
        identity: what the certificate says.
        quota: what it may do.
        due: when the next request must be complete, on the clock of the loop.
        answered: whether a request was.
        refuse: called when the peer breaks a rule, or its certificate no longer counts.
        stopped: aiohttp reads on while it waits for the peer's close frame; a connection that is
            stopped ends with the next byte.
        leaving: whether its WebSocket is being closed: nothing on it counts any more.
    """

    __slots__ = ("_closing", "_server", "_socket", "_unread", "_unread_since", "answered", "due",
                 "identity", "leaving", "quota", "refuse", "stopped")  # fmt: skip

    def __init__(self, server: Server, http: web.Server) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(http, loop=loop, access_log=None, lingering_time=0)  # type: ignore[arg-type]
        self.identity: Identity | None = None
        self.quota: Quota
        self.due = loop.time() + REQUEST_SECONDS
        self.answered = self.stopped = self.leaving = False
        self.refuse: Callable[[Code], None] = self._refuse
        self._server = server
        self._socket: web.WebSocketResponse
        self._closing: asyncio.Task[bool] | None = None
        self._unread = 0
        self._unread_since = math.inf

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """TLS is done: the peer has a certificate of the authority."""
        super().connection_made(transport)
        self.identity = peer_identity(transport)
        self.quota = self._server.limits.quota(self.identity)
        self.quota.open += 1
        self._server.connections.add(self)
        if self.quota.open > self.quota.connections:
            self._server.turn_away("certificate")
            self.abort()

    def data_received(self, data: bytes) -> None:
        """Pass on what the quota allows."""
        if self.stopped:
            self.force_close()
        elif self.quota.bytes.take(len(data)):
            super().data_received(data)
        else:
            self.stopped = True
            self.refuse(Code.FLOOD)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection has ended."""
        self._server.connections.discard(self)
        self.quota.open -= 1
        super().connection_lost(exc)

    def abort(self) -> None:
        """End the connection at once."""
        self.leaving = self.stopped = True
        if self.transport is not None:
            self.transport.abort()

    async def upgrade(self, request: web.Request, *, limit: int) -> None:
        """Become a WebSocket whose messages have ``limit`` bytes at most."""
        self.due = math.inf
        self._socket = web.WebSocketResponse(
            timeout=CLOSE_SECONDS,
            heartbeat=HEARTBEAT_SECONDS,
            max_msg_size=limit,
            autoping=False,
            compress=False,
            writer_limit=_NEVER_DRAIN,
        )
        await self._socket.prepare(request)

    async def serve(
        self, hear: Callable[[bytes], None], refuse: Callable[[Code], None]
    ) -> web.WebSocketResponse:
        """Pass the WebSocket's messages on until it ends.

        Args:
            hear: takes a whole message.
            refuse: becomes ``refuse``; it closes the connection.
        """
        self.refuse = refuse
        try:
            while not self.leaving:
                message = await self._socket.receive()
                if message.type is WSMsgType.BINARY:
                    if not self.leaving:
                        hear(message.data)
                elif message.type in _ENDS:
                    break
                elif message.type in _BEATS:
                    if not self.quota.pings.take():
                        refuse(Code.FLOOD)
                    elif message.type is WSMsgType.PING:
                        await self._socket.pong(message.data)
                else:
                    big = getattr(message.data, "code", None) == WSCloseCode.MESSAGE_TOO_BIG
                    refuse(Code.OVERSIZE if big else Code.MALFORMED)
        finally:
            self.leave()
            if self._closing is not None:
                await self._closing
        return self._socket

    def post(self, data: bytes) -> bool:
        """Send a message on the WebSocket without waiting; False if too many are unread."""
        if self.leaving:
            return True
        if self.backlog == 0:
            self._unread, self._unread_since = 0, math.inf
        elif self._unread >= UNREAD:
            return False
        sending = self._socket.send_bytes(data)
        with contextlib.suppress(StopIteration, ConnectionError):  # sent, or gone
            sending.send(None)  # one step: without a drain limit there is nothing to wait for
            raise RuntimeError("aiohttp must send without waiting")
        if self.backlog:
            self._unread += 1
            now = asyncio.get_running_loop().time()
            self._unread_since = min(self._unread_since, now)
        return True

    @property
    def overdue(self) -> bool:
        """Whether the peer has left something unread for too long."""
        waited = asyncio.get_running_loop().time() - self._unread_since
        return waited > SEND_SECONDS and self.backlog > 0

    def leave(self) -> None:
        """Hear nothing more, and close once everything sent so far has left, within a second."""
        if not self.leaving:
            self.leaving = self.stopped = True
            self._closing = asyncio.create_task(self._socket.close(drain=False))

    @property
    def backlog(self) -> int:
        """Bytes that wait for the peer to read."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def _refuse(self, code: Code) -> None:
        if code is Code.FLOOD:
            self._server.turn_away("flood")
        self.abort()


def connection_of(request: web.Request) -> Connection:
    """Return the connection that a request came by."""
    return cast(Connection, request.protocol)


def require_role(request: web.Request, role: str) -> None:
    """Answer 403 unless the certificate has a role, such as ``OPERATOR``."""
    identity = connection_of(request).identity
    if identity is None or role not in identity.roles:
        raise web.HTTPForbidden(text=f"the {role.rpartition(':')[2]}'s certificate is needed")
