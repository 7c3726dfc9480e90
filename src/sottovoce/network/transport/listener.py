"""Accepts TLS connections within limits, and hands them to aiohttp's HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final, cast, final

from aiohttp import web

from sottovoce.errors import NetworkError
from sottovoce.network.failures import BusyError
from sottovoce.network.identity.roles import Identity, identity_of
from sottovoce.network.observe.metrics import Metrics
from sottovoce.network.process import Supervisor
from sottovoce.network.transport.limits import Limits, Quota, most_sockets

HANDSHAKE_SECONDS: Final = 10.0
"""From the first packet to a verified certificate."""

REQUEST_SECONDS: Final = 10.0
"""A connection that is not a WebSocket must complete a request within this time, then the next."""

CLOSE_SECONDS: Final = 1.0
"""How long a connection that is being closed may take to flush."""

REFUSAL_SECONDS: Final = 0.005
"""Pause after a connection that is refused at once: at most 200 a second are looked at, which takes
3% of a processor; the others wait in the kernel's backlog, of which that empties all in 5 s."""

RETRY_SECONDS: Final = 0.1
"""Pause after the system refuses to accept."""

_BACKLOG: Final = 1024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@final
class Connection(web.RequestHandler):
    """A TLS connection with a verified certificate: aiohttp's protocol within a quota.

    aiohttp reads on while it waits for the peer's close frame; a connection that is ``stopped``
    ends with the next byte.
    """

    __slots__ = ("_listener", "answered", "due", "flooded", "identity", "quota", "stopped")

    def __init__(self, listener: Listener, server: web.Server) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(server, loop=loop, access_log=None, lingering_time=0)  # type: ignore[arg-type]
        self.identity: Identity | None = None
        self.quota: Quota
        self.due = loop.time() + REQUEST_SECONDS
        """When the next request must be complete, on the clock of the loop."""
        self.answered = False
        self.flooded: Callable[[], None] = self._flooded
        """Called when the peer exceeds the quota of bytes."""
        self.stopped = False
        self._listener = listener

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """TLS is done: whoever is there has a certificate of the authority."""
        super().connection_made(transport)
        self.identity = identity_of(transport.get_extra_info("peercert"))
        self.quota = self._listener.limits.quota(self.identity)
        self.quota.open += 1
        self._listener.connections.add(self)
        if self.quota.open > self.quota.connections:
            self._listener.turn_away("certificate")
            self.abort()

    def data_received(self, data: bytes) -> None:
        """Pass on what the quota allows."""
        if self.stopped:
            self.force_close()
        elif self.quota.bytes.take(len(data)):
            super().data_received(data)
        else:
            self.stopped = True
            self.flooded()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection has ended."""
        self._listener.connections.discard(self)
        self.quota.open -= 1
        super().connection_lost(exc)

    def abort(self) -> None:
        """End the connection at once."""
        self.stopped = True
        if self.transport is not None:
            self.transport.abort()

    def _flooded(self) -> None:
        self._listener.turn_away("flood")
        self.abort()


def connection_of(request: web.Request) -> Connection:
    """Return the connection that a request came by."""
    return cast(Connection, request.protocol)


@final
class Listener:
    """Listening sockets and the connections that came in by them.

    Args:
        context: TLS.
        limits: what addresses and certificates may do.
        metrics: counts connections turned away.
        idle: whether no rounds go on, so that handshakes delay none.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        limits: Limits,
        *,
        metrics: Metrics,
        idle: Callable[[], bool],
    ) -> None:
        self.limits = limits
        self.app = web.Application(middlewares=[self._paced])
        self.connections: set[Connection] = set()
        self._context = context
        self._metrics = metrics
        self._idle = idle
        self._handshakes: dict[asyncio.Task[None], socket.socket] = {}
        self._sockets: list[socket.socket] = []
        self._runner = web.AppRunner(self.app, handle_signals=False)
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
        await self._runner.setup()
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
        """Listen no more, and end whatever is still open."""
        for sock in self._sockets:
            sock.close()
        await self._runner.cleanup()
        for half_open in self._handshakes.values():
            _shut_down(half_open)
        for connection in list(self.connections):
            connection.abort()
        await asyncio.gather(*self._handshakes)

    def turn_away(self, reason: str) -> None:
        """Count a connection that is turned away."""
        self._metrics.turned_away[reason] += 1

    def sweep(self) -> None:
        """Drop connections whose request is overdue."""
        now = asyncio.get_running_loop().time()
        for connection in [one for one in self.connections if one.due < now]:
            if not connection.answered:  # one that had its answer and is idle did no wrong
                self.turn_away("request")
            connection.abort()

    @web.middleware
    async def _paced(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a certificate's requests at a bounded rate; a refusal ends the connection."""
        connection = connection_of(request)
        connection.due = asyncio.get_running_loop().time() + REQUEST_SECONDS
        try:
            # WebSockets are limited by their handshakes; only this path has them.
            upgrade = request.path == "/" and "Upgrade" in request.headers
            if not upgrade and not connection.quota.pages.take():
                self.turn_away("pages")
                raise web.HTTPTooManyRequests(text="too many requests")
            answer = await handler(request)
            connection.answered = True
            return answer
        except web.HTTPException as refusal:
            refusal.force_close()
            raise

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
        return "" if self._idle() or self.limits.handshake(address) else "address"

    async def _shake_hands(self, sock: socket.socket) -> None:
        server = self._runner.server
        assert server is not None  # noqa: S101  it is set up
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: Connection(self, server),
                sock,
                ssl=self._context,
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
