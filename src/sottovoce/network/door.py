"""Where connections come in: accepted, counted, and let through TLS at a bounded pace."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, final

from aiohttp import web

from sottovoce.errors import NetworkError
from sottovoce.network.allowances import Allowance, Allowances
from sottovoce.network.buckets import Bucket
from sottovoce.network.descriptors import sockets_at_most
from sottovoce.network.errors import BusyError
from sottovoce.network.guard import CLOSE_SECONDS, Guard
from sottovoce.network.lobby import Caller, Lobby
from sottovoce.network.observe.metrics import Metrics
from sottovoce.network.supervisor import Supervisor

HANDSHAKE_SECONDS: Final = 10.0
"""From the first packet to a verified certificate."""

ACCEPTS_PER_ROUND: Final = 1 / 8
ACCEPTS_PER_SECOND: Final = 5
HANDSHAKES_PER_ROUND: Final = 1 / 128
HANDSHAKES_PER_SECOND: Final = 1
AGENTS_PER_HANDSHAKE: Final = 100
"""While rounds go on; for every hundred agents one more handshake per second. A handshake costs
the cloud as much as some rounds with a few agents, so it is rounds that set the pace: whatever the
machine, new connections take a small share of it."""

HANDSHAKES_AT_ONCE: Final = 8
CALLERS_AT_ONCE: Final = 32
"""Beyond one for each agent: all agents may come back at once."""

PAUSE_SECONDS: Final = 0.1
"""After the system refuses to accept."""

_BACKLOG: Final = 1024
_CLIENT_HELLO: Final = b"\x16"
"""How every TLS connection begins."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@final
class Door:
    """The cloud's listening sockets and everybody who came in by them.

    Args:
        context: TLS.
        allowances: what certificates may do.
        agents: agents of the problem; all may come at once, from one address.
        metrics: counts who is turned away.
        idle: whether no rounds go on, so that handshakes slow nobody down.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        allowances: Allowances,
        *,
        agents: int,
        metrics: Metrics,
        idle: Callable[[], bool],
    ) -> None:
        self._context = context
        self._allowances = allowances
        self._metrics = metrics
        self._idle = idle
        crowd = agents + CALLERS_AT_ONCE
        self._lobby = Lobby(total=2 * crowd, per_address=crowd)
        self._accepts = Bucket(2 * crowd, ACCEPTS_PER_SECOND)
        self._handshakes = Bucket(
            agents + HANDSHAKES_AT_ONCE, HANDSHAKES_PER_SECOND + agents / AGENTS_PER_HANDSHAKE
        )
        self._speaking = asyncio.Event()
        self._shaking: set[asyncio.Task[None]] = set()
        self._guards: dict[Any, Guard] = {}
        self._connections: Counter[str] = Counter()
        self._listeners: list[socket.socket] = []
        self._handler: Callable[[], asyncio.Protocol]
        self._most = 0

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._listeners[0].getsockname()[1])

    async def open(
        self,
        listen: tuple[str, int],
        handler: Callable[[], asyncio.Protocol],
        supervisor: Supervisor,
    ) -> None:
        """Listen, and let connections through to ``handler``.

        Raises:
            BusyError: somebody else listens there, or the address is not up yet.
            NetworkError: this user may not listen there.
        """
        self._handler = handler
        self._most = sockets_at_most()
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(
                *listen, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, _, _, _, address in dict.fromkeys(found):
                listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
                listener.setblocking(False)
                self._listeners.append(listener)
        except OSError as error:
            await self.close()
            raise _not_listening(listen, error) from None
        for listener in self._listeners:
            supervisor.start("accept", self._accept(listener))
        supervisor.start("admit", self._admit())

    def round(self) -> None:
        """A round was released: let some more come in."""
        self._accepts.put(ACCEPTS_PER_ROUND)
        self._handshakes.put(HANDSHAKES_PER_ROUND)

    async def close(self) -> None:
        """Listen no more, and end whatever is still open."""
        for listener in self._listeners:
            listener.close()
        for caller in self._lobby.older_than(float("inf")):
            self._drop(caller)
        for guard in list(self._guards.values()):
            guard.transport.abort()
        await asyncio.gather(*self._shaking)

    def guard_of(self, request: web.Request) -> Guard:
        """Return the guard of the connection that a request came by."""
        guard = self._guards.get(request.protocol)
        if guard is None:
            raise web.HTTPServiceUnavailable(text="the connection is gone")
        return guard

    @web.middleware
    async def paced(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer so many pages and no more; whoever is refused one has to connect anew."""
        guard = self.guard_of(request)
        guard.expect()
        try:
            # Agents who come to take part are paced by their handshakes.
            taking_part = request.path == "/" and "Upgrade" in request.headers
            if not taking_part and not guard.allows("pages"):
                self._metrics.turned_away["pages"] += 1
                guard.stop()
                raise web.HTTPTooManyRequests(text="too many requests")
            answer = await handler(request)
            guard.answered = True
            return answer
        except web.HTTPException as refusal:
            refusal.force_close()
            raise

    def enter(self, guard: Guard) -> tuple[Allowance, ...]:
        """Let a certificate in unless it has too many connections already."""
        identity = guard.identity
        if self._connections[guard.serial] >= self._allowances.connections(identity):
            self._metrics.turned_away["certificate"] += 1
            return ()
        return self._allowances.connection(identity), self._allowances.certificate(identity)

    def serve(self, guard: Guard) -> Any:
        """Return the HTTP server's protocol for a connection."""
        handler = self._handler()
        self._guards[handler] = guard
        self._connections[guard.serial] += 1
        return handler

    def flooded(self, guard: Guard) -> None:
        """Refuse a connection that sends more than it may."""
        if guard.refuse is not None:
            guard.refuse()
        else:
            self._metrics.turned_away["flood"] += 1

    def leave(self, guard: Guard) -> None:
        """Forget a connection."""
        if self._guards.pop(guard.handler, None) is not None:
            self._connections[guard.serial] -= 1

    def sweep(self) -> None:
        """Drop whoever takes too long over its handshake or its request."""
        now = asyncio.get_running_loop().time()
        for caller in self._lobby.older_than(now - HANDSHAKE_SECONDS):
            self._metrics.turned_away["handshake"] += 1
            self._drop(caller)
        for guard in [g for g in self._guards.values() if g.due < now]:
            self._metrics.turned_away["request"] += not guard.answered
            guard.transport.abort()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # Never back to back without a pause: with a full backlog accept() does not wait.
            await asyncio.sleep(0 if self._idle() else self._accepts.wait())
            self._accepts.take()
            try:
                sock, address = await loop.sock_accept(listener)
            except OSError:
                # No descriptor left, or the caller has hung up meanwhile.
                self._metrics.turned_away["accept"] += 1
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            self._arrived(sock, address[0])

    def _arrived(self, sock: socket.socket, address: str) -> None:
        if len(self._lobby) + len(self._guards) >= self._most:
            self._metrics.turned_away["descriptors"] += 1
            sock.close()
            return
        loop = asyncio.get_running_loop()
        caller = Caller(address=address, sock=sock, arrived=loop.time())
        gone = self._lobby.enter(caller)
        if gone is not None:
            self._metrics.turned_away["crowd"] += 1
            self._drop(gone)
        if gone is not caller:
            # Whoever says nothing costs no handshake.
            loop.add_reader(sock, self._spoke, caller)

    def _spoke(self, caller: Caller) -> None:
        asyncio.get_running_loop().remove_reader(caller.sock)
        try:
            begun = caller.sock.recv(1, socket.MSG_PEEK) == _CLIENT_HELLO
        except OSError:
            begun = False
        if not begun:  # it has hung up, or does not speak TLS
            self._metrics.turned_away["handshake"] += 1
            self._drop(caller)
            return
        self._lobby.spoke(caller)
        self._speaking.set()

    async def _admit(self) -> None:
        while True:
            await self._speaking.wait()
            await asyncio.sleep(0 if self._idle() else self._handshakes.wait())
            caller = self._lobby.next()
            if caller is None:
                self._speaking.clear()
                continue
            self._handshakes.take()
            caller.handshake = asyncio.create_task(self._shake_hands(caller))
            self._shaking.add(caller.handshake)
            caller.handshake.add_done_callback(self._shaking.discard)

    async def _shake_hands(self, caller: Caller) -> None:
        loop = asyncio.get_running_loop()
        left = caller.arrived + HANDSHAKE_SECONDS - loop.time()
        try:
            await loop.connect_accepted_socket(
                partial(Guard, self),
                caller.sock,
                ssl=self._context,
                ssl_handshake_timeout=max(left, 0.1),
                ssl_shutdown_timeout=CLOSE_SECONDS,
            )
        except OSError:
            self._metrics.turned_away["handshake"] += 1  # TLS errors and timeouts among them
        finally:
            self._lobby.leave(caller)

    def _drop(self, caller: Caller) -> None:
        self._lobby.leave(caller)
        if caller.handshake is not None:
            # The transport owns the socket by now: let its handshake fail by itself.
            with contextlib.suppress(OSError):
                caller.sock.shutdown(socket.SHUT_RDWR)
            return
        asyncio.get_running_loop().remove_reader(caller.sock)
        caller.sock.close()


def _not_listening(listen: tuple[str, int], error: OSError) -> NetworkError:
    address = f"{listen[0]}:{listen[1]}"
    if isinstance(error, PermissionError):
        return NetworkError(f"listen must be an address that this user may use, got {address}")
    reason = error.strerror or type(error).__name__
    return BusyError(f"listen must be a free address, got {address} ({reason}): end who uses it")
