"""One WebSocket of a server, which sends without waiting."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from typing import Final, final

import aiohttp
from aiohttp import WSCloseCode, WSMsgType, web

from sottovoce.network.protocol.messages import Code
from sottovoce.network.transport.limits import HEARTBEAT_SECONDS
from sottovoce.network.transport.listener import CLOSE_SECONDS, Connection, connection_of

SEND_SECONDS: Final = 10.0
"""How long a peer may leave what was sent unread."""

UNREAD: Final = 16
"""Messages that may wait for a peer."""

_NEVER_DRAIN: Final = 1 << 62
"""Bytes after which aiohttp waits for the peer to read; here ``UNREAD`` and time are the limits."""

_BEATS: Final = frozenset({WSMsgType.PING, WSMsgType.PONG})
_ENDS: Final = frozenset({WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED})


@final
class Channel:
    """A WebSocket with one peer: never waits for a slow reader, and hears whole messages.

    Args:
        connection: below it.
        socket: the WebSocket.
    """

    def __init__(self, connection: Connection, socket: web.WebSocketResponse) -> None:
        self.identity = connection.identity
        self.leaving = False
        """Whether the channel is being closed: nothing on it counts any more."""
        self._connection = connection
        self._socket = socket
        self._closing: asyncio.Task[bool] | None = None
        self._unread = 0
        self._unread_since = math.inf

    @staticmethod
    async def accept(request: web.Request, *, limit: int) -> Channel:
        """Upgrade a request to a WebSocket whose messages have ``limit`` bytes at most."""
        connection = connection_of(request)
        connection.due = math.inf
        socket = web.WebSocketResponse(
            timeout=CLOSE_SECONDS,
            heartbeat=HEARTBEAT_SECONDS,
            max_msg_size=limit,
            autoping=False,
            compress=False,
            writer_limit=_NEVER_DRAIN,
        )
        await socket.prepare(request)
        return Channel(connection, socket)

    async def serve(
        self, hear: Callable[[bytes], None], refuse: Callable[[Code], None]
    ) -> web.WebSocketResponse:
        """Pass messages on until the channel ends.

        Args:
            hear: takes a whole message.
            refuse: called where the peer breaks a rule of the transport; ends the channel.
        """
        self._connection.flooded = lambda: refuse(Code.FLOOD)
        try:
            while not self.leaving:
                message = await self._socket.receive()
                if message.type is WSMsgType.BINARY:
                    if not self.leaving:
                        hear(message.data)
                elif message.type in _ENDS:
                    break
                elif message.type in _BEATS:
                    await self._beat(message, refuse)
                else:
                    big = getattr(message.data, "code", None) == WSCloseCode.MESSAGE_TOO_BIG
                    refuse(Code.OVERSIZE if big else Code.MALFORMED)
        finally:
            self.close()
            if self._closing is not None:
                await self._closing
        return self._socket

    def post(self, data: bytes) -> bool:
        """Send a message; False if too many are unread."""
        if self.leaving:
            return True
        if self._backlog == 0:
            self._unread, self._unread_since = 0, math.inf
        elif self._unread >= UNREAD:
            return False
        self._write(data)
        if self._backlog:
            self._unread += 1
            now = asyncio.get_running_loop().time()
            self._unread_since = min(self._unread_since, now)
        return True

    @property
    def overdue(self) -> bool:
        """Whether the peer has left something unread for too long."""
        waited = asyncio.get_running_loop().time() - self._unread_since
        return waited > SEND_SECONDS and self._backlog > 0

    def close(self) -> None:
        """Hear nothing more, and close once everything sent so far has left, within a second."""
        if not self.leaving:
            self.leaving = self._connection.stopped = True
            self._closing = asyncio.create_task(self._socket.close(drain=False))

    def abort(self) -> None:
        """End the connection at once."""
        self.leaving = True
        self._connection.abort()

    @property
    def _backlog(self) -> int:
        transport = self._connection.transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def _write(self, data: bytes) -> None:
        """Run aiohttp's coroutine in one step: without a drain it has nothing to wait for."""
        with contextlib.suppress(StopIteration, ConnectionError):  # gone: the reader notices
            self._socket.send_bytes(data).send(None)

    async def _beat(self, message: aiohttp.WSMessage, refuse: Callable[[Code], None]) -> None:
        if not self._connection.quota.pings.take():
            refuse(Code.FLOOD)
        elif message.type is WSMsgType.PING:
            await self._socket.pong(message.data)
