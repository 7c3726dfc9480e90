"""Accepts peers within limits, by their certificates, and connects them to a state machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast, final

from aiohttp import WSCloseCode, WSMsgType, web

from sottovoce.network.failures import not_listening
from sottovoce.network.identity.certificates import Authorization, Identity, peer_identity
from sottovoce.network.observe.logs import note
from sottovoce.network.process import Supervisor
from sottovoce.network.protocol.actions import Send
from sottovoce.network.protocol.cloud_machine import CloudMachine
from sottovoce.network.protocol.codec import MalformedError, decode_from_agent, encode
from sottovoce.network.protocol.helper_machine import HelperMachine
from sottovoce.network.protocol.messages import PROTOCOLS, Code
from sottovoce.network.protocol.series_machine import SeriesMachine
from sottovoce.network.runner import Runner
from sottovoce.network.transport.limits import HEARTBEAT_SECONDS, Limits, Quota, most_sockets

if TYPE_CHECKING:
    from sottovoce.network.observe.operator_pages import Metrics

HELLO_SECONDS: Final = 10.0

IDLE_SECONDS: Final = 1.0
"""After a second without a round there is none that a handshake could delay."""

HANDSHAKE_SECONDS: Final = 10.0  # from the first packet to a verified certificate

REFUSAL_SECONDS: Final = 0.005
"""Pause after a connection that is refused at once: at most 200 a second are looked at, which takes
3% of a processor; the others wait in the kernel's backlog, of which that empties all in 5 s."""

RETRY_SECONDS: Final = 0.1  # pause after the system refuses to accept
_BACKLOG: Final = 1024

REQUEST_SECONDS: Final = 10.0
"""A connection that is not a WebSocket must complete a request within this time, then the next."""

CLOSE_SECONDS: Final = 1.0  # how long a connection that is being closed may take to flush
SEND_SECONDS: Final = 10.0  # how long a peer may leave what was sent unread
UNREAD: Final = 16  # messages that may wait for a peer

_NEVER_DRAIN: Final = 1 << 62
"""Bytes after which aiohttp waits for the peer to read; here ``UNREAD`` and time are the limits."""

_BEATS: Final = frozenset({WSMsgType.PING, WSMsgType.PONG})
_ENDS: Final = frozenset({WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED})

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@final
class Connection(web.RequestHandler):
    """A TLS connection with a verified certificate: aiohttp's protocol within a quota.

    As a WebSocket it never waits for a slow reader, and hears whole messages.
    """

    __slots__ = ("_closing", "_heard", "_pinged", "_server", "_socket", "_unread",
                 "_unread_since", "answered", "due", "identity", "leaving", "quota", "refuse",
                 "stopped")  # fmt: skip

    def __init__(self, server: Server, http: web.Server) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(http, loop=loop, access_log=None, lingering_time=0)  # type: ignore[arg-type]
        self.identity: Identity | None = None  # what the certificate says
        self.quota: Quota
        self.due = loop.time() + REQUEST_SECONDS  # when the next request must be complete
        self.answered = False  # whether a request was
        # aiohttp reads on while it waits for the peer's close frame; a connection that is stopped
        # ends with the next byte, and nothing on a WebSocket that is leaving counts any more.
        self.stopped = self.leaving = False
        # Called when the peer breaks a rule, or its certificate no longer counts.
        self.refuse: Callable[[Code], None] = self._refuse
        self._server = server
        self._socket: web.WebSocketResponse
        self._closing: asyncio.Task[bool] | None = None
        self._heard, self._pinged = time.monotonic(), 0.0
        self._unread = 0
        self._unread_since = math.inf

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """TLS is done: the peer has a certificate of the authority."""
        super().connection_made(transport)
        self.identity = peer_identity(transport, self._server.authorization.names)
        self.quota = self._server.limits.quota(self.identity)
        self.quota.open += 1
        self._server.connections.add(self)
        if self.quota.open > self.quota.connections:
            self._server.turn_away("certificate")
            self.abort()

    def data_received(self, data: bytes) -> None:
        """Pass on what the quota allows."""
        self._heard = time.monotonic()
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

    async def upgrade(self, request: web.Request, *, limit: int, protocols: Sequence[str]) -> None:
        """Become a WebSocket whose messages have ``limit`` bytes at most."""
        self.due = math.inf
        self._socket = web.WebSocketResponse(
            timeout=CLOSE_SECONDS,
            max_msg_size=limit,
            protocols=protocols,
            autoping=False,
            compress=False,
            writer_limit=_NEVER_DRAIN,
        )
        await self._socket.prepare(request)

    async def serve(
        self, hear: Callable[[bytes], None], refuse: Callable[[Code], None]
    ) -> web.WebSocketResponse:
        """Pass the WebSocket's whole messages on until it ends; ``refuse`` closes it."""
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
        if self._unread and self.backlog == 0:
            self._unread, self._unread_since = 0, math.inf
        if self._unread >= UNREAD:
            return False
        sending = self._socket.send_bytes(data)
        try:
            sending.send(None)  # one step: without a drain limit there is nothing to wait for
        except (StopIteration, ConnectionError):  # sent, or the peer is gone
            if self.backlog:
                self._unread += 1
                now = asyncio.get_running_loop().time()
                self._unread_since = min(self._unread_since, now)
            return True
        raise RuntimeError("aiohttp must send without waiting")

    def ping(self) -> None:
        """Ping a peer that was silent, or end the connection of one that stayed silent.

        aiohttp's own heartbeat would set a timer with every message.
        """
        now = time.monotonic()
        if self._pinged > self._heard:
            if now - self._pinged > HEARTBEAT_SECONDS / 2:
                self.abort()
        elif now - self._heard > HEARTBEAT_SECONDS and not self.leaving:
            self._pinged = now
            with contextlib.suppress(StopIteration, ConnectionError):
                self._socket.ping().send(None)  # as in ``post``

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


@final
@dataclass(eq=False, repr=False)
class Server:
    """The listening side of a cloud, a relay or a helper."""

    authorization: Authorization
    machine: CloudMachine | HelperMachine | SeriesMachine
    runner: Runner
    limits: Limits
    _: KW_ONLY
    metrics: Metrics
    decode: Callable[[bytes], Any] = decode_from_agent  # reads a message, or ``MalformedError``
    role: str = ""  # that a certificate must have; without one it must speak for agents
    protocols: tuple[str, ...] = PROTOCOLS  # a peer must ask for one of them
    index: Handler | None = None  # answers browsers, which come to the same address as agents

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
        self.runner.server = self

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._sockets[0].getsockname()[1])

    async def open(self, listen: tuple[str, int], supervisor: Supervisor) -> None:
        """Listen, and serve ``app``."""
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
            raise not_listening("listen", listen, error) from None
        for sock in self._sockets:
            supervisor.start("accept", self._accept(sock))

    async def close(self) -> None:
        """Close every channel, listen no more, and end whatever is still open."""
        self.runner.stop()
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
        self.authorization.renew()
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
            channel.ping()

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
            code = self.authorization.objection(connection.identity)
            if code is not None:
                self.metrics.refused[code.value] += 1
                if code is Code.EXPIRED:
                    raise web.HTTPUnauthorized(text="this certificate has ended")
                raise web.HTTPForbidden(text="this certificate has no role here, or no longer")
            answer = await handler(request)
            connection.answered = True
            return answer
        except web.HTTPException as refusal:
            refusal.force_close()
            raise

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
        self._require_version(request)
        await channel.upgrade(request, limit=self.limits.frame, protocols=self.protocols)
        self._count += 1
        peer = self._count
        self._channels[peer] = channel
        self.runner.on(self.machine.connect, peer, identity)
        loop = asyncio.get_running_loop()
        hello = loop.call_later(HELLO_SECONDS, self._refuse, peer, Code.SILENT)
        try:
            # As a task of its own, which a message wakes without all that waits for its end.
            serving = channel.serve(partial(self._hear, peer), partial(self._refuse, peer))
            return await asyncio.create_task(serving)
        finally:
            hello.cancel()
            self.machine.disconnect(peer)
            self._channels.pop(peer, None)
            note("disconnected", level=logging.DEBUG, peer=peer)

    def _require_version(self, request: web.Request) -> None:
        """Refuse a handshake for no version that is spoken here: 426, with those that are."""
        asked = ",".join(request.headers.getall("Sec-WebSocket-Protocol", ()))
        if set(self.protocols).isdisjoint(word.strip() for word in asked.split(",")):
            self.metrics.refused[Code.VERSION.value] += 1
            spoken = " or ".join(self.protocols)
            raise web.HTTPUpgradeRequired(
                text=f"{Code.VERSION}: the WebSocket subprotocol must be {spoken}",
                headers={"Upgrade": "websocket"},
            )

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
