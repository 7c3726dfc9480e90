"""Everybody who has the page open: few, never waited for, and dropped when they fall behind."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, final

from aiohttp import web

from sottovoce.network.identity.authorization import Authorization
from sottovoce.network.identity.roles import Identity
from sottovoce.network.observe.metrics import Metrics
from sottovoce.network.transport.listener import Connection

VIEWERS: Final = 6
"""At a time; a certificate has eight connections, and each page needs another for its files."""

WAITING: Final = 40
"""Events that may wait for a viewer: those of ten seconds."""

CLOSE_SECONDS: Final = 1.0
"""How long the last words may take to leave."""


@final
class Viewer:
    """One open page.

    Args:
        connection: its connection.
        identity: whose certificate it has.
    """

    def __init__(self, connection: Connection, identity: Identity) -> None:
        self.identity = identity
        self._connection = connection
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue(WAITING)

    def tell(self, words: bytes | None) -> bool:
        """Queue some events, or the end; False if the viewer is too far behind."""
        try:
            self._waiting.put_nowait(words)
        except asyncio.QueueFull:
            return False
        return True

    def drop(self) -> None:
        """End the connection at once, whatever has not left yet."""
        self._connection.abort()
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self._waiting.put_nowait(None)

    async def serve(self, answer: web.StreamResponse) -> None:
        """Write what is queued until the end, or until the viewer has gone."""
        with contextlib.suppress(ConnectionError):
            while (words := await self._waiting.get()) is not None:
                await answer.write(words)


@final
class Viewers:
    """The open pages of one cloud.

    Args:
        authorization: knows which certificates still count.
        metrics: counts who is turned away.
    """

    def __init__(self, authorization: Authorization, metrics: Metrics) -> None:
        self._authorization = authorization
        self._metrics = metrics
        self._viewers: set[Viewer] = set()
        self._nobody = asyncio.Event()
        self._nobody.set()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._viewers)

    def enter(self, viewer: Viewer) -> None:
        """Let a viewer in, or answer 503 where there are too many."""
        if len(self._viewers) >= VIEWERS:
            self._metrics.turned_away["viewer"] += 1
            raise web.HTTPServiceUnavailable(text=f"{VIEWERS} pages are open already: close one")
        self._viewers.add(viewer)
        self._nobody.clear()

    def leave(self, viewer: Viewer) -> None:
        """Forget a viewer."""
        self._viewers.discard(viewer)
        if not self._viewers:
            self._nobody.set()

    def tell(self, words: bytes) -> None:
        """Send some events to everybody; never waits."""
        for viewer in list(self._viewers):
            if not viewer.tell(words):
                self._turn_away(viewer)

    def check(self) -> None:
        """Drop whoever is revoked or has expired."""
        for viewer in list(self._viewers):
            if not self._authorization.valid(viewer.identity):
                self._turn_away(viewer)

    async def close(self) -> None:
        """Let everybody hear what is queued, for a second at most."""
        for viewer in self._viewers:
            viewer.tell(None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._nobody.wait()
        for viewer in self._viewers:
            viewer.drop()

    def _turn_away(self, viewer: Viewer) -> None:
        self._metrics.turned_away["viewer"] += 1
        viewer.drop()
