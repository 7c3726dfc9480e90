"""Everybody who is connected to the cloud: lets agents in, hears them out, and writes to them."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Container
from functools import partial
from typing import Any, Final, Protocol, final

from aiohttp import WSCloseCode, WSMsgType, web

from sottovoce.network.connection import Connection
from sottovoce.network.door import Door
from sottovoce.network.frames import framed
from sottovoce.network.heartbeat import Heartbeat
from sottovoce.network.identity.authorization import Gate
from sottovoce.network.observe.logs import note
from sottovoce.network.observe.metrics import Metrics
from sottovoce.network.protocol.actions import Send
from sottovoce.network.protocol.codec import MalformedError, decode_from_agent, encode
from sottovoce.network.protocol.messages import Code, FromAgent

HELLO_SECONDS: Final = 10.0
GOODBYE_SECONDS: Final = 0.1
"""How long aiohttp waits for a goodbye after a broken frame; nothing is read meanwhile."""

_BEATS: Final = frozenset({WSMsgType.PING, WSMsgType.PONG})
_ENDS: Final = frozenset({WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED})


class Machine(Protocol):
    """What answers peers: a cloud's machine, or a relay's."""

    def connect(self, peer: int, allowed: Container[int]) -> None:
        """A peer connected whose certificate speaks for the agents ``allowed``, from 1."""

    def disconnect(self, peer: int) -> None:
        """The connection is gone."""

    def agents_of(self, peer: int) -> tuple[int, ...]:
        """The agents on a connection, from 1; nobody before hello."""

    def receive(self, peer: int, message: FromAgent) -> list[Any]:
        """A message arrived; return the actions to perform."""

    def refuse(self, peer: int, code: Code) -> list[Any]:
        """The connection must end; return the actions to perform."""


@final
class Peers:
    """The connections of a cloud; what is said on them goes to the machine.

    Args:
        gate: tells who a peer is.
        door: knows the connection that a request came by.
        machine: answers what they say.
        metrics: counts who is refused at the gate.
        perform: does what the machine asks for.
        limit: the largest frame that is read.
    """

    def __init__(
        self,
        gate: Gate,
        door: Door,
        machine: Machine,
        metrics: Metrics,
        perform: Callable[[list[Any]], None],
        *,
        limit: int,
    ) -> None:
        self._gate = gate
        self._door = door
        self._machine = machine
        self._metrics = metrics
        self._perform = perform
        self._limit = limit
        self._connections: dict[int, Connection] = {}
        self._count = 0
        self.spoke: tuple[int, ...] = ()
        """The agents on the connection that was answered last."""

    async def talk(self, request: web.Request) -> web.StreamResponse:
        """Serve one connection to its end."""
        try:
            identity = self._gate.identify(request)
        except web.HTTPForbidden:
            self._metrics.refused[Code.REVOKED] += 1
            raise
        except web.HTTPUnauthorized:
            self._metrics.refused[Code.EXPIRED] += 1
            raise
        if not identity.agents:
            raise web.HTTPForbidden(text="only agents may take part in a run")
        guard = self._door.guard_of(request)
        guard.expect(math.inf)  # from here on it is hello that is waited for
        socket = web.WebSocketResponse(
            timeout=GOODBYE_SECONDS, max_msg_size=self._limit, autoping=False, compress=False
        )
        before = guard.chunks
        await socket.prepare(request)
        self._count += 1
        peer = self._count
        connection = Connection(guard, partial(self._refuse, peer, Code.SLOW))
        guard.refuse = partial(self._refuse, peer, Code.FLOOD)
        self._connections[peer] = connection
        self._machine.connect(peer, identity)
        heartbeat = Heartbeat(socket, connection.closed)
        hear = partial(self._hear, peer, connection, heartbeat)
        if guard.chunks == before:
            guard.hear = hear  # nothing of the stream has gone by
        watch = asyncio.create_task(heartbeat.watch())
        hello = asyncio.get_running_loop().call_later(HELLO_SECONDS, self._expect_hello, peer)
        try:
            await self._listen(peer, connection, socket, heartbeat)
        finally:
            guard.hear = None
            hello.cancel()
            watch.cancel()
            self._machine.disconnect(peer)
            self._connections.pop(peer, None)
            await connection.closed()
            note("disconnected", level=logging.DEBUG, peer=peer)
        return socket

    def post(self, action: Send) -> None:
        """Write a message to each of its peers that is still there; never waits."""
        frame = framed(encode(action.message))
        for peer in action.peers:
            connection = self._connections.get(peer)
            if connection is not None and not connection.post(frame):
                self._refuse(peer, Code.SLOW)

    def close(self, peer: int) -> None:
        """Close a connection once everything written to it has left."""
        connection = self._connections.get(peer)
        if connection is not None:
            connection.close()

    def close_all(self) -> None:
        """Close every connection."""
        for connection in self._connections.values():
            connection.close()

    def check(self) -> None:
        """Drop whoever is revoked or has expired."""
        for peer, connection in list(self._connections.items()):
            identity = connection.guard.identity
            code = Code.REVOKED if identity is None else self._gate.objection(identity)
            if code is not None:
                self._perform(self._machine.refuse(peer, code))

    async def _listen(
        self,
        peer: int,
        connection: Connection,
        socket: web.WebSocketResponse,
        heartbeat: Heartbeat,
    ) -> None:
        guard = connection.guard
        while not connection.leaving:
            message = await socket.receive()
            if message.type is WSMsgType.BINARY:
                self._hear(peer, connection, heartbeat, message.data)
                continue
            heartbeat.heard += 1
            if message.type in _ENDS:
                return
            if message.type in _BEATS and not guard.allows("pings"):
                self._refuse(peer, Code.FLOOD)
            elif not await heartbeat.answer(message):
                big = getattr(message.data, "code", None) == WSCloseCode.MESSAGE_TOO_BIG
                self._refuse(peer, Code.OVERSIZE if big else Code.MALFORMED)

    def _hear(self, peer: int, connection: Connection, heartbeat: Heartbeat, data: bytes) -> None:
        """A whole message has come in."""
        heartbeat.heard += 1
        if connection.leaving:
            return
        if not connection.guard.allows("frames"):
            self._refuse(peer, Code.FLOOD)
            return
        if len(data) > self._limit:
            self._refuse(peer, Code.OVERSIZE)
            return
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
        if peer in self._connections and not self._machine.agents_of(peer):
            self._perform(self._machine.refuse(peer, Code.SILENT))
