"""A WebSocket client that connects again after whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar, final

import aiohttp
from aiohttp import WSMsgType

from sottovoce.network.failures import RefusedError
from sottovoce.network.identity.tls import client_context
from sottovoce.network.observe.logs import note
from sottovoce.network.protocol.codec import MalformedError
from sottovoce.network.protocol.messages import Code
from sottovoce.network.transport.limits import HEARTBEAT_SECONDS

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 30.0
CONNECT_SECONDS: Final = 10.0

Message = TypeVar("Message")


@final
@dataclass(eq=False, repr=False)
class Client(Generic[Message]):
    """One peer's way to a cloud, a relay or a helper.

    Args:
        url: its address, ``wss://host:port``.
        keys: folder with ca.pem, cert.pem and key.pem.
        decode: reads a message, or raises ``MalformedError``.
        limit: the largest message that is read.
        longest_pause: seconds between attempts, at most.
    """

    url: str
    keys: Path
    decode: Callable[[bytes], Message]
    _: KW_ONLY
    limit: int
    longest_pause: float = LONGEST_PAUSE

    def __post_init__(self) -> None:
        self._context = client_context(self.keys)
        self._failures = 0
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._sending: set[asyncio.Task[None]] = set()

    def has_role(self, role: str) -> bool:
        """Whether the certificate on the other side has a role, such as ``HELPER``."""
        from sottovoce.network.identity.certificates import peer_identity  # split clouds only

        identity = None if self._socket is None else peer_identity(self._socket)
        return identity is not None and role in identity.roles

    async def send(self, data: bytes) -> None:
        """Send on the connection there is; what a lost connection swallows is said on the next."""
        if self._socket is not None:
            with contextlib.suppress(aiohttp.ClientError, OSError):  # the reading side notices
                await self._socket.send_bytes(data)

    def post(self, data: bytes) -> None:
        """Send without waiting, in the order of the calls."""
        task = asyncio.create_task(self.send(data))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def serve(
        self,
        hear: Callable[[Message | None], Awaitable[bool]],
        *,
        lost: Callable[[], None],
        progress: Callable[[], int],
        done: Callable[[], bool],
    ) -> None:
        """Connect, pass on what is said, and come back after whatever happens, until done.

        Args:
            hear: called with None when a connection is open, then with every message; returns
                False to end the connection.
            lost: called when a connection has ended.
            progress: the last round that has come; where it rises, the next attempt comes soon.
            done: whether to stop.

        Raises:
            RefusedError: the certificate is refused.
            ExpiredError: the certificate has ended.
        """
        pause = FIRST_PAUSE
        connector = aiohttp.TCPConnector(ssl=self._context, limit=1)
        async with aiohttp.ClientSession(connector=connector) as session:
            while True:
                before = progress()
                await self._connect(session)
                if self._socket is not None:
                    await self._converse(self._socket, hear)
                    self._socket = None
                lost()
                if done():
                    return
                # Jitter: a thousand agents must not all come back in the same instant.
                pause = FIRST_PAUSE if progress() > before else min(2 * pause, self.longest_pause)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311

    async def _converse(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        hear: Callable[[Message | None], Awaitable[bool]],
    ) -> None:
        try:
            going = await hear(None)
            while going:
                message = await socket.receive()
                if message.type is not WSMsgType.BINARY:
                    return
                going = await hear(self.decode(message.data))
        except MalformedError:
            note("malformed message", level=logging.WARNING)
        except (aiohttp.ClientError, OSError) as error:
            note("connection lost", level=logging.WARNING, error=type(error).__name__)
        finally:
            await socket.close()

    async def _connect(self, session: aiohttp.ClientSession) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                self._socket = await session.ws_connect(
                    self.url, heartbeat=HEARTBEAT_SECONDS, max_msg_size=self.limit
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status == 403:
                raise RefusedError(Code.REVOKED, "the cloud refuses this certificate") from None
            self._unreachable(f"status {error.status}")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._unreachable(type(error).__name__)
        else:
            self._failures = 0

    def _unreachable(self, reason: str) -> None:
        from sottovoce.network.identity.certificates import require_current  # large, rarely needed

        require_current(self.keys / "cert.pem")  # a server ends the handshake silently
        self._failures += 1
        level = logging.WARNING if self._failures == 1 else logging.DEBUG
        note("cannot connect", level=level, error=reason, attempt=self._failures)
