"""A link to the live page for a browser without a certificate, on this machine alone.

A small server on the loopback address holds the operator's certificate and passes the page on. Who
may see it is decided by a token that is printed once and works once: the first browser that comes
with it gets a cookie in exchange, and nobody else gets in.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
from pathlib import Path
from typing import Final, Self, final

import aiohttp
from aiohttp import web

from sottovoce.network.identity.certificates import client_context
from sottovoce.network.observe.page.live import HEADERS
from sottovoce.network.transport.listener import Handler

HOST: Final = "127.0.0.1"

WELCOME: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>sottovoce</title>'
    '<link rel="icon" href="/page/icon.svg"><meta http-equiv="refresh" content="0; url=/">'
    '<p><a href="/">Open the page</a></p></html>'
)
"""No redirect: a browser that was sent here by another site would not show its new cookie yet."""

_PASSED_ON: Final = frozenset({"Content-Type", *HEADERS})


@final
class PageLink:
    """Serves the page of one cloud at a link that works once; an asynchronous context.

    Args:
        keys: the operator's folder of keys.
        port: where the cloud listens on this machine.
    """

    def __init__(self, keys: str | os.PathLike[str], port: int) -> None:
        self.opened = asyncio.Event()
        """Set when a browser has exchanged the token for its cookie."""
        self._keys = Path(keys)
        self._cloud = f"https://{HOST}:{port}"
        self._token = secrets.token_urlsafe(32)
        self._session = ""
        self._client: aiohttp.ClientSession
        self._runner: web.AppRunner
        self._port = 0

    @property
    def url(self) -> str:
        """The link, token included: for the terminal, and for nothing that is kept."""
        return f"http://{HOST}:{self._port}/open/{self._token}"

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._guarded])
        app.router.add_get("/open/{token}", self._open, allow_head=False)
        for path in ("/", "/events", "/page/{name}"):
            app.router.add_get(path, self._pass_on, allow_head=False)
        # No access log: its lines would hold the token.
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, 0)
        await site.start()
        self._port = self._runner.addresses[0][1]
        connector = aiohttp.TCPConnector(ssl=client_context(self._keys))
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
        self._client = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()  # ends what is still passed on
        await self._runner.cleanup()

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse whoever came by another name, as a site that has its name lead here would."""
        if request.host != f"{HOST}:{self._port}":
            raise web.HTTPForbidden(text="open the link as it was printed")
        return await handler(request)

    async def _open(self, request: web.Request) -> web.StreamResponse:
        if not _same(request.match_info["token"], self._token):
            raise web.HTTPForbidden(text="this link has been used, or never was one")
        self._token = ""
        self._session = secrets.token_urlsafe(32)
        answer = web.Response(text=WELCOME, content_type="text/html", headers=HEADERS)
        # The port is in the name: cookies are shared between all ports of an address.
        answer.set_cookie(self._cookie, self._session, httponly=True, samesite="Strict", path="/")
        self.opened.set()
        return answer

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        if not _same(request.cookies.get(self._cookie, ""), self._session):
            raise web.HTTPForbidden(
                text="open the page by the link that was printed; it works once"
            )
        answer = web.StreamResponse()
        try:
            async with self._client.get(self._cloud + request.path) as heard:
                answer.set_status(heard.status)
                answer.headers.update({k: v for k, v in heard.headers.items() if k in _PASSED_ON})
                await answer.prepare(request)
                async for part in heard.content.iter_any():
                    await answer.write(part)
        except (aiohttp.ClientError, OSError):
            if not answer.prepared:
                raise web.HTTPBadGateway(text="the cloud is not there") from None
        return answer

    @property
    def _cookie(self) -> str:
        return f"sottovoce-{self._port}"


def _same(given: str, secret: str) -> bool:
    """Compare in constant time; an empty secret, used up or not made yet, equals nothing."""
    return bool(secret) and hmac.compare_digest(given.encode(), secret.encode())
