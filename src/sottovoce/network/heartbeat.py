"""Whether the other end of a WebSocket is still there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, final

import aiohttp
from aiohttp import WSMsgType, web

SECONDS: Final = 20.0
"""A peer that was silent this long is sent a ping."""

_TICKS: Final = 4
"""How often it is looked at meanwhile."""


@final
class Heartbeat:
    """Pings a silent peer, and hangs up if it stays silent for half as long again.

    aiohttp's own heartbeat sets its timer anew with every message, which costs more than to decode
    it; here a message is counted, and somebody looks at the count every few seconds. The socket
    must be opened with ``autoping=False``, so that pings and pongs come through ``answer``.

    Args:
        socket: the WebSocket.
        hang_up: ends the connection.
    """

    def __init__(
        self,
        socket: web.WebSocketResponse | aiohttp.ClientWebSocketResponse,
        hang_up: Callable[[], Awaitable[object]],
    ) -> None:
        self.heard = 0
        """Messages of any kind so far: whoever receives one adds it here."""
        self._socket = socket
        self._hang_up = hang_up

    async def answer(self, message: aiohttp.WSMessage) -> bool:
        """Answer a ping; False for a message that is neither ping nor pong."""
        if message.type is WSMsgType.PING:
            await self._socket.pong(message.data)
            return True
        return message.type is WSMsgType.PONG

    async def watch(self) -> None:
        """Watch over the peer until it is gone; to be cancelled with the connection."""
        silent = 0
        while silent < _TICKS + _TICKS // 2:
            before = self.heard
            await asyncio.sleep(SECONDS / _TICKS)
            silent = silent + 1 if self.heard == before else 0
            if silent == _TICKS:
                try:
                    await self._socket.ping()
                except ConnectionError:
                    return  # gone meanwhile; the reading side notices
        await self._hang_up()
