"""Connects to whoever is above, again and again, until what there is to say has been said."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeAlias, final

import aiohttp
from aiohttp import WSMsgType

from sottovoce.network.errors import RefusedError
from sottovoce.network.heartbeat import Heartbeat
from sottovoce.network.identity.roles import require_current
from sottovoce.network.identity.tls import client_context
from sottovoce.network.observe.logs import note
from sottovoce.network.protocol.codec import MalformedError, decode_from_cloud
from sottovoce.network.protocol.messages import Code, FromCloud

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 30.0
CONNECT_SECONDS: Final = 10.0

Socket: TypeAlias = aiohttp.ClientWebSocketResponse
Hear: TypeAlias = Callable[[Socket, FromCloud | None], Awaitable[bool]]
"""Told None when a connection is open, then every message; False ends the connection."""


@final
class Dial:
    """One peer's way to a cloud or a relay.

    Args:
        url: its address, ``wss://host:port``.
        keys: folder with ca.pem, cert.pem and key.pem.
        limit: the largest frame that is read.
        longest_pause: seconds between attempts, at most.
    """

    def __init__(
        self, url: str, keys: Path, *, limit: int, longest_pause: float = LONGEST_PAUSE
    ) -> None:
        self._url = url
        self._keys = keys
        self._context = client_context(keys)
        self._limit = limit
        self._longest_pause = longest_pause
        self._failures = 0

    async def serve(
        self,
        hear: Hear,
        *,
        lost: Callable[[], None],
        heard: Callable[[], int],
        done: Callable[[], bool],
    ) -> None:
        """Connect, pass on what is said, and come back after whatever happens, until all is said.

        Args:
            hear: takes part in the conversation.
            lost: told when a connection has ended.
            heard: the last round that has come; if it rises, the way is good.
            done: whether all is said.

        Raises:
            RefusedError: the certificate is refused.
            ExpiredError: the certificate has ended.
        """
        pause = FIRST_PAUSE
        connector = aiohttp.TCPConnector(ssl=self._context, limit=1)
        async with aiohttp.ClientSession(connector=connector) as session:
            while True:
                before = heard()
                socket = await self._connected(session)
                if socket is not None:
                    await self._use(socket, hear)
                    lost()
                if done():
                    return
                # Jitter: a thousand agents must not all come back in the same instant.
                pause = FIRST_PAUSE if heard() > before else min(2 * pause, self._longest_pause)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311

    async def _use(self, socket: Socket, hear: Hear) -> None:
        heartbeat = Heartbeat(socket, socket.close)
        watch = asyncio.create_task(heartbeat.watch())
        try:
            going = await hear(socket, None)
            while going:
                message = await socket.receive()
                heartbeat.heard += 1
                if message.type is WSMsgType.BINARY:
                    going = await hear(socket, decode_from_cloud(message.data))
                else:
                    going = await heartbeat.answer(message)
        except MalformedError:
            note("the cloud sent nonsense", level=logging.WARNING)
        except (aiohttp.ClientError, OSError) as error:
            note("connection lost", level=logging.WARNING, error=type(error).__name__)
        finally:
            watch.cancel()
            await socket.close()

    async def _connected(self, session: aiohttp.ClientSession) -> Socket | None:
        require_current(self._keys / "cert.pem")  # the cloud would end the handshake wordlessly
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                socket = await session.ws_connect(
                    self._url, autoping=False, max_msg_size=self._limit
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status == 403:
                raise RefusedError(Code.REVOKED, "the cloud refuses this certificate") from None
            self._unreachable(f"status {error.status}")
            return None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._unreachable(type(error).__name__)
            return None
        self._failures = 0
        return socket

    def _unreachable(self, reason: str) -> None:
        self._failures += 1
        level = logging.WARNING if self._failures == 1 else logging.DEBUG
        note("cannot connect", level=level, error=reason, attempt=self._failures)
