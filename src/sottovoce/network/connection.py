"""One agent's connection as the cloud writes to it: never waits for a slow reader."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, final

from aiohttp import web

from sottovoce.network.identity import Identity

SEND_SECONDS: Final = 10.0
"""How long a frame may take to leave before the connection is given up."""

WAITING: Final = 16
"""Frames that may wait for a connection."""


@final
class Connection:
    """An outbox and the task that empties it, so that one slow reader delays nobody else."""

    def __init__(self, socket: web.WebSocketResponse, identity: Identity) -> None:
        self.identity = identity
        self._socket = socket
        self._outbox: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._closing = False

    def post(self, frame: bytes) -> bool:
        """Queue a frame; False if too many are waiting already."""
        if self._closing:
            return True
        if len(self._outbox) >= WAITING:
            return False
        self._outbox.append(frame)
        self._wake.set()
        return True

    def close(self) -> None:
        """Close once everything queued so far has left."""
        self._closing = True
        self._wake.set()

    async def pump(self) -> bool:
        """Send what is queued until closed; False if the peer does not read."""
        try:
            while True:
                while self._outbox:
                    async with asyncio.timeout(SEND_SECONDS):
                        await self._socket.send_bytes(self._outbox.popleft())
                if self._closing:
                    async with asyncio.timeout(SEND_SECONDS):
                        await self._socket.close()
                    return True
                await self._wake.wait()
                self._wake.clear()
        except TimeoutError:
            return False
        except (ConnectionError, RuntimeError):
            return True  # gone meanwhile; the reading side notices
