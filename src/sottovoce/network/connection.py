"""One agent's connection as the cloud writes to it: never waits for a slow reader."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Final, final

from aiohttp import web

from sottovoce.network.identity import Identity

SEND_SECONDS: Final = 10.0
"""How long a frame may take to leave before the connection is given up."""

WAITING: Final = 16
"""Frames that may wait for a connection."""

_BINARY: Final = 0x82
"""First byte of a WebSocket frame that is a whole binary message."""


def framed(payload: bytes) -> bytes:
    """Return a message as the WebSocket frame that a server writes (RFC 6455, section 5.2)."""
    size = len(payload)
    if size < 126:
        return struct.pack("!BB", _BINARY, size) + payload
    if size < 1 << 16:
        return struct.pack("!BBH", _BINARY, 126, size) + payload
    return struct.pack("!BBQ", _BINARY, 127, size) + payload


@final
class Connection:
    """Writes whole frames at once, so that one slow reader delays nobody else.

    aiohttp would frame a message anew for each connection, in a coroutine that needs a task and a
    timer. A round goes to all agents in one frame; where it cannot leave at once, it waits in the
    transport, and only then is there a timer.

    Args:
        socket: the WebSocket.
        transport: below it.
        identity: who is at the other end.
        slow: called when the peer has not read for too long, before the connection is cut.
    """

    def __init__(
        self,
        socket: web.WebSocketResponse,
        transport: asyncio.Transport,
        identity: Identity,
        slow: Callable[[], None],
    ) -> None:
        self.identity = identity
        self._socket = socket
        self._transport = transport
        self._slow = slow
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        self._leaving: asyncio.Task[None] | None = None

    def post(self, frame: bytes) -> bool:
        """Write a frame; False if too many are waiting already."""
        if self._leaving is not None or self._socket.closed:
            return True
        if self._waiting and not self._transport.get_write_buffer_size():
            self._stop_waiting()
        if self._waiting >= WAITING:
            return False
        self._transport.write(frame)
        if self._transport.get_write_buffer_size():
            self._wait()
        return True

    def close(self) -> None:
        """Close once everything written so far has left."""
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._leave())

    async def closed(self) -> None:
        """Close, and wait until that is done."""
        self.close()
        assert self._leaving is not None  # noqa: S101  close() has just set it
        await self._leaving

    def _wait(self) -> None:
        self._waiting += 1
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(SEND_SECONDS, self._overdue)

    def _stop_waiting(self) -> None:
        self._waiting = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _overdue(self) -> None:
        late = self._transport.get_write_buffer_size() > 0
        self._stop_waiting()
        if late:
            self._slow()
            self._transport.abort()

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self._socket.close()
        except (TimeoutError, ConnectionError, RuntimeError):
            self._transport.abort()  # it does not read, or is gone meanwhile
        finally:
            self._stop_waiting()
