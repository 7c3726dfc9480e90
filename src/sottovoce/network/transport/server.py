"""Serves agents: admits them by their certificates, and connects their WebSockets to a machine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container
from functools import partial
from typing import Any, Final, Protocol, final

from aiohttp import web

from sottovoce.network.identity.authorization import Authorization
from sottovoce.network.observe.logs import note
from sottovoce.network.observe.metrics import Metrics
from sottovoce.network.process import Supervisor
from sottovoce.network.protocol.actions import Send, Setup
from sottovoce.network.protocol.codec import (
    MalformedError,
    decode_from_agent,
    encode,
    frame_limit,
)
from sottovoce.network.protocol.messages import Code, FromAgent
from sottovoce.network.setup import Parties
from sottovoce.network.transport.limits import Limits
from sottovoce.network.transport.listener import Connection, Handler, Listener, connection_of

HELLO_SECONDS: Final = 10.0

IDLE_SECONDS: Final = 1.0
"""After a second without a round there is none that a handshake could delay."""


class Machine(Protocol):
    """What answers peers: a cloud's machine, or a relay's."""

    def connect(self, peer: int, allowed: Container[int]) -> None:
        """A peer connected whose certificate speaks for the agents ``allowed``, from 1."""

    def disconnect(self, peer: int) -> None:
        """The connection is gone."""

    def agents_of(self, peer: int) -> tuple[int, ...]:
        """The agents on a connection, from 1; none before hello."""

    def receive(self, peer: int, message: FromAgent) -> list[Any]:
        """A message arrived; return the actions to perform."""

    def refuse(self, peer: int, code: Code) -> list[Any]:
        """The connection must end; return the actions to perform."""


@final
class Server:
    """The listening side of a cloud, or of a relay.

    Args:
        authorization: its certificate, and who may talk to it.
        machine: answers what they say.
        setup: says how much an honest peer sends.
        parties: likewise.
        metrics: counts.
        perform: does what the machine asks for.
    """

    def __init__(
        self,
        authorization: Authorization,
        machine: Machine,
        setup: Setup,
        parties: Parties,
        *,
        metrics: Metrics,
        perform: Callable[[list[Any]], None],
    ) -> None:
        offsets: list[int] = parties.offsets.tolist()
        most = offsets[-1] if setup.states else setup.prices
        self.listener = Listener(
            authorization,
            Limits(agents=setup.agents, numbers=most),
            metrics=metrics,
            idle=lambda: metrics.waited > IDLE_SECONDS,
        )
        self.listener.app.router.add_get("/", self._root)
        self.index: Handler | None = None
        """Answers browsers, which come to the same address as agents."""
        self.spoke: tuple[int, ...] = ()
        """The agents on the channel that was answered last."""
        self._machine = machine
        self._perform = perform
        self._limit = frame_limit(agents=setup.agents, size=most)
        self._channels: dict[int, Connection] = {}
        self._count = 0

    async def open(self, listen: tuple[str, int], supervisor: Supervisor) -> None:
        """Listen.

        Raises:
            BusyError: the address is in use, or not up yet.
            NetworkError: this user may not listen there.
        """
        await self.listener.open(listen, supervisor)

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
        if identity is None or not identity.agents:
            raise web.HTTPForbidden(text="only agents may take part in a run")
        await channel.upgrade(request, limit=self._limit)
        self._count += 1
        peer = self._count
        self._channels[peer] = channel
        self._machine.connect(peer, identity)
        hello = asyncio.get_running_loop().call_later(HELLO_SECONDS, self._expect_hello, peer)
        try:
            return await channel.serve(partial(self._hear, peer), partial(self._refuse, peer))
        finally:
            hello.cancel()
            self._machine.disconnect(peer)
            self._channels.pop(peer, None)
            note("disconnected", level=logging.DEBUG, peer=peer)

    def _hear(self, peer: int, data: bytes) -> None:
        try:
            message = decode_from_agent(data)
        except MalformedError:
            self._refuse(peer, Code.MALFORMED)
            return
        actions = self._machine.receive(peer, message)
        if actions:  # as for the last contribution of a round
            self.spoke = self._machine.agents_of(peer)
            self._perform(actions)

    def _refuse(self, peer: int, code: Code) -> None:
        self._perform(self._machine.refuse(peer, code))

    def _expect_hello(self, peer: int) -> None:
        if peer in self._channels and not self._machine.agents_of(peer):
            self._refuse(peer, Code.SILENT)
