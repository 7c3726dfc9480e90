"""Serves peers: admits them by their certificates, and connects their WebSockets to a machine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container
from functools import partial
from typing import Any, Final, Protocol, final

from aiohttp import web

from sottovoce.network.identity.certificates import Authorization
from sottovoce.network.observe.logs import note
from sottovoce.network.observe.metrics import Metrics
from sottovoce.network.protocol.actions import Action, Send
from sottovoce.network.protocol.codec import MalformedError, decode_from_agent, encode
from sottovoce.network.protocol.messages import Code
from sottovoce.network.runner import Runner
from sottovoce.network.transport.limits import Limits
from sottovoce.network.transport.listener import (
    Connection,
    Handler,
    Listener,
    connection_of,
    require_role,
)

HELLO_SECONDS: Final = 10.0

IDLE_SECONDS: Final = 1.0
"""After a second without a round there is none that a handshake could delay."""


class Machine(Protocol):
    """What answers peers: the machine of a cloud, a relay or a helper."""

    def connect(self, peer: int, allowed: Container[int]) -> list[Action]:
        """A peer connected whose certificate speaks for the agents ``allowed``, from 1."""

    def disconnect(self, peer: int) -> None:
        """The connection is gone."""

    def receive(self, peer: int, message: Any) -> list[Action]:
        """A message arrived."""

    def refuse(self, peer: int, code: Code) -> list[Action]:
        """The connection must end; one that is silent only if nothing came before."""


@final
class Server:
    """The listening side of a cloud, a relay or a helper.

    Args:
        authorization: its certificate, and who may talk to it.
        machine: answers what they say.
        runner: does what the machine asks for.
        limits: how much honest peers send.
        frame: the largest message of an honest peer, in bytes.
        metrics: counts.
        decode: reads a message, or raises ``MalformedError``.
        role: that a certificate must have; without one it must speak for agents.
    """

    def __init__(
        self,
        authorization: Authorization,
        machine: Machine,
        runner: Runner,
        limits: Limits,
        *,
        frame: int,
        metrics: Metrics,
        decode: Callable[[bytes], Any] = decode_from_agent,
        role: str = "",
    ) -> None:
        self.listener = Listener(
            authorization,
            limits,
            metrics=metrics,
            idle=lambda: metrics.waited > IDLE_SECONDS,
        )
        self.listener.app.router.add_get("/", self._root)
        self.index: Handler | None = None
        """Answers browsers, which come to the same address as agents."""
        self._machine, self._runner = machine, runner
        self._frame, self._decode, self._role = frame, decode, role
        self._channels: dict[int, Connection] = {}
        self._count = 0

    def post(self, action: Send) -> None:
        """Send a message to each of its peers that is still there; never waits."""
        data = encode(action.message)
        for peer in action.peers:
            channel = self._channels.get(peer)
            if channel is not None and not channel.post(data):
                self._refuse(peer, Code.SLOW)

    def disconnect(self, peer: int) -> None:
        """Close a channel once everything sent on it has left."""
        channel = self._channels.get(peer)
        if channel is not None:
            channel.leave()

    def check(self) -> None:
        """Drop peers that are revoked, have expired, do not read, or do not complete a request."""
        self.listener.sweep()
        for peer, channel in list(self._channels.items()):
            if channel.overdue:
                self._refuse(peer, Code.SLOW)
                channel.abort()

    async def close(self) -> None:
        """Close every channel and listen no more."""
        for channel in self._channels.values():
            channel.leave()
        await self.listener.close()

    async def _root(self, request: web.Request) -> web.StreamResponse:
        if self.index is None or "Upgrade" in request.headers:
            return await self._talk(request)
        return await self.index(request)

    async def _talk(self, request: web.Request) -> web.StreamResponse:
        """Serve one channel to its end."""
        channel = connection_of(request)
        identity = channel.identity
        if self._role:
            require_role(request, self._role)
        elif identity is None or not identity.agents:
            raise web.HTTPForbidden(text="only agents may take part in a run")
        await channel.upgrade(request, limit=self._frame)
        self._count += 1
        peer = self._count
        self._channels[peer] = channel
        self._runner.on(self._machine.connect, peer, identity)
        loop = asyncio.get_running_loop()
        hello = loop.call_later(HELLO_SECONDS, self._refuse, peer, Code.SILENT)
        try:
            return await channel.serve(partial(self._hear, peer), partial(self._refuse, peer))
        finally:
            hello.cancel()
            self._machine.disconnect(peer)
            self._channels.pop(peer, None)
            note("disconnected", level=logging.DEBUG, peer=peer)

    def _hear(self, peer: int, data: bytes) -> None:
        try:
            message = self._decode(data)
        except MalformedError:
            self._refuse(peer, Code.MALFORMED)
        else:
            self._runner.on(self._machine.receive, peer, message)

    def _refuse(self, peer: int, code: Code) -> None:
        self._runner.on(self._machine.refuse, peer, code)
