"""A WebSocket client that connects again after whatever happens."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar, final

import aiohttp
from aiohttp import WSMsgType

from sottovoce.errors import NetworkError
from sottovoce.network.failures import RefusedError
from sottovoce.network.identity.tls import CLOUD, client_context, require_current
from sottovoce.network.observe.logs import note
from sottovoce.network.protocol.codec import MalformedError
from sottovoce.network.protocol.messages import PROTOCOLS, Code
from sottovoce.network.transport.limits import HEARTBEAT_SECONDS

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 30.0
GROWTH: Final = 1.3  # of pauses: with 2 half of all fleets follow a standby after two leases only
CONNECT_SECONDS: Final = 10.0
UPGRADE_REQUIRED: Final = 426  # the HTTP status where the version is another

Message = TypeVar("Message")


@final
@dataclass(eq=False, repr=False)
class Client(Generic[Message]):
    """One peer's way to a cloud, a relay or a helper."""

    url: str  # ``wss://host:port``
    keys: Path  # folder with ca.pem, cert.pem and key.pem
    decode: Callable[[bytes], Message]  # reads a message, or raises ``MalformedError``
    _: KW_ONLY
    limit: int  # the largest message that is read, bytes
    longest_pause: float = LONGEST_PAUSE  # between attempts, seconds
    role: str = ""  # that the certificate of the other side must have, such as ``HELPER``
    protocol: str = PROTOCOLS[0]

    def __post_init__(self) -> None:
        self._context = client_context(self.keys)
        self._failures = 0
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    def post(self, data: bytes) -> None:
        """Send on the connection there is; what it loses is sent again on the next."""
        if self._socket is not None:
            # One step writes all; the next would wait for a slow reader. The reading side notices
            # where the connection is lost.
            with suppress(StopIteration, aiohttp.ClientError, OSError):
                self._socket.send_bytes(data).send(None)

    async def serve(
        self,
        hear: Callable[[Message | None], Awaitable[bool]],
        *,
        lost: Callable[[], None],
        progress: Callable[[], int],
        done: Callable[[], bool],
    ) -> None:
        """Connect, pass messages on, and connect again after whatever happens, until done.

        Args:
            hear: called with None when a connection is open, then with every message; returns
                False to end the connection.
            lost: called when a connection has ended.
            progress: the last round that has come; where it rises, the next attempt comes soon.
            done: whether to stop.
        """
        pause = FIRST_PAUSE
        connector = aiohttp.TCPConnector(limit=1)
        async with aiohttp.ClientSession(connector=connector) as session:
            while True:
                before = progress()
                await self._connect(session)
                if self._socket is not None:
                    try:
                        # A task of its own, which a message wakes without all that waits for it.
                        await asyncio.create_task(self._converse(self._socket, hear))
                    finally:  # also of a task that is cancelled before it begins
                        await self._socket.close()
                    self._socket = None
                lost()
                if done():
                    return
                # Jitter: a thousand agents must not all come back in the same instant.
                longer = min(GROWTH * pause, self.longest_pause)
                pause = FIRST_PAUSE if progress() > before else longer
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311

    async def _converse(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        hear: Callable[[Message | None], Awaitable[bool]],
    ) -> None:
        try:
            self._require_role(socket)
            conversing = await hear(None)
            while conversing:
                message = await socket.receive()
                if message.type is not WSMsgType.BINARY:
                    return
                conversing = await hear(self.decode(message.data))
        except MalformedError:
            note("message-malformed", level=logging.WARNING)
        except (aiohttp.ClientError, OSError) as error:
            note("connection-lost", level=logging.WARNING, error=type(error).__name__)

    def _require_role(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        if self.role:  # only of a split cloud: this import is large
            from sottovoce.network.identity.certificates import peer_identity

            identity = peer_identity(socket)
            if identity is None or self.role not in identity.roles:
                side = "a split cloud" if self.role == CLOUD else "a split cloud's helper"
                words = f"the other side must be {side} by its certificate"
                raise RefusedError(Code.NOT_YOURS, words)

    async def _connect(self, session: aiohttp.ClientSession) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                self._socket = await session.ws_connect(
                    self.url,
                    protocols=(self.protocol,),
                    ssl=self._renewed(),
                    heartbeat=HEARTBEAT_SECONDS,
                    max_msg_size=self.limit,
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status == 403:
                raise RefusedError(Code.REVOKED, "the cloud refuses this certificate") from None
            if error.status == UPGRADE_REQUIRED:
                raise self._other_version() from None
            self._unreachable(f"status {error.status}")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._unreachable(type(error).__name__)
        else:
            self._failures = 0
            if self._socket.protocol is None:
                await self._socket.close()
                raise self._other_version()

    def _other_version(self) -> RefusedError:
        return RefusedError(
            Code.VERSION,
            f"the other side must speak {self.protocol}, and speaks another version of the "
            "protocol: install the same version of sottovoce on both sides",
        )

    def _renewed(self) -> ssl.SSLContext:
        """The keys as they are now, or as they last could be read."""
        with suppress(NetworkError):
            self._context = client_context(self.keys)
        return self._context

    def _unreachable(self, reason: str) -> None:
        require_current(self.keys / "cert.pem")  # a server ends the handshake silently
        self._failures += 1
        level = logging.WARNING if self._failures == 1 else logging.DEBUG
        note("connect-failed", level=level, error=reason, attempt=self._failures)
