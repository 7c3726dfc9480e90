"""Accepts peers within limits, by their certificates, and connects them to a state machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Container
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Final, Protocol, final

from aiohttp import web

from sottovoce.errors import NetworkError
from sottovoce.network.failures import BusyError
from sottovoce.network.identity.certificates import Authorization, Identity
from sottovoce.network.observe.logs import note
from sottovoce.network.observe.metrics import Metrics
from sottovoce.network.process import Supervisor
from sottovoce.network.protocol.actions import Action, Send
from sottovoce.network.protocol.codec import MalformedError, decode_from_agent, encode
from sottovoce.network.protocol.messages import Code
from sottovoce.network.runner import Runner
from sottovoce.network.transport.connection import (
    CLOSE_SECONDS,
    REQUEST_SECONDS,
    Connection,
    connection_of,
    require_role,
)
from sottovoce.network.transport.limits import Limits, most_sockets

HELLO_SECONDS: Final = 10.0

IDLE_SECONDS: Final = 1.0
"""After a second without a round there is none that a handshake could delay."""

HANDSHAKE_SECONDS: Final = 10.0
"""From the first packet to a verified certificate."""

REFUSAL_SECONDS: Final = 0.005
"""Pause after a connection that is refused at once: at most 200 a second are looked at, which takes
3% of a processor; the others wait in the kernel's backlog, of which that empties all in 5 s."""

RETRY_SECONDS: Final = 0.1
"""Pause after the system refuses to accept."""

_BACKLOG: Final = 1024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


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
@dataclass(eq=False, repr=False)
class Server:
    """The listening side of a cloud, a relay or a helper.

    Args:
        authorization: its certificate, and who may talk to it.
        machine: answers what they say.
        runner: does what the machine asks for.
        limits: what addresses and certificates may do.
        frame: the largest message of an honest peer, in bytes.
        metrics: counts.
        decode: reads a message, or raises ``MalformedError``.
        role: that a certificate must have; without one it must speak for agents.
        index: answers browsers, which come to the same address as agents.
    """

    authorization: Authorization
    machine: Machine
    runner: Runner
    limits: Limits
    _: KW_ONLY
    frame: int
    metrics: Metrics
    decode: Callable[[bytes], Any] = decode_from_agent
    role: str = ""
    index: Handler | None = None

    def __post_init__(self) -> None:
        self.app = web.Application(middlewares=[self._paced])
        self.app.router.add_get("/", self._root)
        self.connections: set[Connection] = set()
        self._channels: dict[int, Connection] = {}
        self._count = 0
        self._handshakes: dict[asyncio.Task[None], socket.socket] = {}
        self._sockets: list[socket.socket] = []
        self._http = web.AppRunner(self.app, handle_signals=False)
        self._most = 0

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._sockets[0].getsockname()[1])

    async def open(self, listen: tuple[str, int], supervisor: Supervisor) -> None:
        """Listen, and serve ``app``.

        Raises:
            BusyError: the address is in use, or not up yet.
            NetworkError: this user may not listen there.
        """
        await self._http.setup()
        self._most = most_sockets()
        loop = asyncio.get_running_loop()
        try:
            addresses = await loop.getaddrinfo(
                *listen, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, _, _, _, address in dict.fromkeys(addresses):
                sock = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
                sock.setblocking(False)
                self._sockets.append(sock)
        except OSError as error:
            await self.close()
            raise _not_listening(listen, error) from None
        for sock in self._sockets:
            supervisor.start("accept", self._accept(sock))

    async def close(self) -> None:
        """Close every channel, listen no more, and end whatever is still open."""
        for channel in self._channels.values():
            channel.leave()
        for sock in self._sockets:
            sock.close()
        await self._http.cleanup()
        for half_open in self._handshakes.values():
            _shut_down(half_open)
        for connection in list(self.connections):
            connection.abort()
        await asyncio.gather(*self._handshakes)

    def turn_away(self, reason: str) -> None:
        """Count a connection that is turned away."""
        self.metrics.turned_away[reason] += 1

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
        self.authorization.reload()
        now = asyncio.get_running_loop().time()
        for connection in [one for one in self.connections if not one.stopped]:
            code = self.authorization.objection(connection.identity)
            if code is not None:
                connection.refuse(code)
            elif connection.due < now:
                if not connection.answered:  # one that had its answer and is idle did no wrong
                    self.turn_away("request")
                connection.abort()
        for peer, channel in list(self._channels.items()):
            if channel.overdue:
                self._refuse(peer, Code.SLOW)
                channel.abort()

    @web.middleware
    async def _paced(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer certificates that count, at a bounded rate; a refusal ends the connection."""
        connection = connection_of(request)
        connection.due = asyncio.get_running_loop().time() + REQUEST_SECONDS
        try:
            # WebSockets are limited by their handshakes; only this path has them.
            upgrade = request.path == "/" and "Upgrade" in request.headers
            if not upgrade and not connection.quota.pages.take():
                self.turn_away("pages")
                raise web.HTTPTooManyRequests(text="too many requests")
            self._require_current(connection.identity)
            answer = await handler(request)
            connection.answered = True
            return answer
        except web.HTTPException as refusal:
            refusal.force_close()
            raise

    def _require_current(self, identity: Identity | None) -> None:
        code = self.authorization.objection(identity)
        if code is not None:
            self.metrics.refused[code] += 1
        if code is Code.EXPIRED:
            raise web.HTTPUnauthorized(text="this certificate has ended")
        if code is not None:
            raise web.HTTPForbidden(text="this certificate has no role here, or no longer")

    async def _root(self, request: web.Request) -> web.StreamResponse:
        if self.index is None or "Upgrade" in request.headers:
            return await self._talk(request)
        return await self.index(request)

    async def _talk(self, request: web.Request) -> web.StreamResponse:
        """Serve one channel to its end."""
        channel = connection_of(request)
        identity = channel.identity
        if self.role:
            require_role(request, self.role)
        elif identity is None or not identity.agents:
            raise web.HTTPForbidden(text="only agents may take part in a run")
        await channel.upgrade(request, limit=self.frame)
        self._count += 1
        peer = self._count
        self._channels[peer] = channel
        self.runner.on(self.machine.connect, peer, identity)
        loop = asyncio.get_running_loop()
        hello = loop.call_later(HELLO_SECONDS, self._refuse, peer, Code.SILENT)
        try:
            return await channel.serve(partial(self._hear, peer), partial(self._refuse, peer))
        finally:
            hello.cancel()
            self.machine.disconnect(peer)
            self._channels.pop(peer, None)
            note("disconnected", level=logging.DEBUG, peer=peer)

    def _hear(self, peer: int, data: bytes) -> None:
        try:
            message = self.decode(data)
        except MalformedError:
            self._refuse(peer, Code.MALFORMED)
        else:
            self.runner.on(self.machine.receive, peer, message)

    def _refuse(self, peer: int, code: Code) -> None:
        self.runner.on(self.machine.refuse, peer, code)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(listening)
            except OSError:
                self.turn_away("accept")  # no descriptor left, or the peer has hung up meanwhile
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if reason := self._objection(address[0]):
                self.turn_away(reason)
                sock.close()
                await asyncio.sleep(REFUSAL_SECONDS)
                continue
            if len(self._handshakes) >= self.limits.unauthenticated:
                # An honest peer is through in an instant: the oldest is slow or hostile.
                self.turn_away("crowd")
                task, oldest = next(iter(self._handshakes.items()))
                del self._handshakes[task]
                _shut_down(oldest)
            task = asyncio.create_task(self._shake_hands(sock))
            self._handshakes[task] = sock
            task.add_done_callback(lambda task: self._handshakes.pop(task, None))
            await asyncio.sleep(0)  # with a full backlog sock_accept does not yield

    def _objection(self, address: str) -> str:
        if len(self._handshakes) + len(self.connections) >= self._most:
            return "descriptors"
        idle = self.metrics.waited > IDLE_SECONDS
        return "" if idle or self.limits.handshake(address) else "address"

    async def _shake_hands(self, sock: socket.socket) -> None:
        http = self._http.server
        assert http is not None  # noqa: S101  it is set up
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: Connection(self, http),
                sock,
                ssl=self.authorization.context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=CLOSE_SECONDS,
            )
        except OSError:
            self.turn_away("handshake")  # TLS errors and timeouts among them


def _shut_down(sock: socket.socket) -> None:
    """Let a handshake fail: its transport owns the socket, and closes it then."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _not_listening(listen: tuple[str, int], error: OSError) -> NetworkError:
    address = f"{listen[0]}:{listen[1]}"
    if isinstance(error, PermissionError):
        return NetworkError(f"listen must be an address that this user may use, got {address}")
    reason = error.strerror or type(error).__name__
    return BusyError(f"listen must be a free address, got {address} ({reason}): end who uses it")
