"""The live page of a cloud: its static files, their data as JSON, and a local link."""

from __future__ import annotations

import asyncio
import hmac
import math
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Self, final

import aiohttp
import msgspec
import numpy as np
from aiohttp import web

from sottovoce.errors import SottovoceError
from sottovoce.network.config import RunConfig
from sottovoce.network.identity.tls import OPERATOR, client_context
from sottovoce.network.observe.charts import TICK_SECONDS, Samples, ShownConstraints, about
from sottovoce.network.observe.operator_pages import Facts
from sottovoce.network.protocol.actions import Record
from sottovoce.network.transport.server import Handler, Server, require_role
from sottovoce.privacy.ledger import Ledger
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.standing import Account
from sottovoce.privacy.statement import down, up

STATUS_SECONDS: Final = 0.5  # how old a status may be: a fleet takes time to count

LEDGER_SECONDS: Final = 60.0
"""The ledger is read again after this time: another run may spend from it too."""

LISTED: Final = 100  # agents listed: those that have the least left, or spend the most
DIGITS: Final = 5

CLOSE_SECONDS: Final = 1.5
"""How long the end waits for open pages, which ask once a second, to learn of it."""

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Own files alone, nothing inline, nothing framed, and no way to make code or markup of text."""

HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

INDEX: Final = "page.html"
_FILES: Final = files(__package__) / "page"

TYPES: Final = {
    INDEX: "text/html",
    "page.css": "text/css",
    "page.js": "text/javascript",
    "chart.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
"""All files there are; nothing else is ever read."""


@final
@dataclass(eq=False, repr=False)
class Live:
    """Samples a run by the clock, and answers every page that asks what is new to it."""

    ledger: Ledger | None
    facts: Callable[[], Facts]  # who is there, and what is wrong

    def __post_init__(self) -> None:
        self._about: dict[str, Any] = {}  # nothing before the first run
        self._plan: NoisePlan
        self._samples: Samples
        self._sample: Callable[[], Record | None]
        self._status: dict[str, Any] = {}
        self._budget: dict[str, Any] = {}
        self._status_due = self._budget_due = 0.0
        self._asked = -math.inf  # when a page did last
        self._over = False
        self._files = {name: (_FILES / name).read_bytes() for name in TYPES}

    def begin(
        self, plan: NoisePlan, config: RunConfig, sample: Callable[[], Record | None]
    ) -> None:
        """Follow a run; ``sample`` returns its last round that was sent, None before the first."""
        constraints = ShownConstraints.of(plan)
        self._plan, self._samples, self._sample = plan, Samples(constraints), sample
        self._about, self._budget_due = about(plan, config, constraints), 0.0

    def add_to(self, server: Server) -> None:
        """Add the page to a server."""
        server.index = self._file
        server.app.router.add_get("/page/{name}", self._file)
        server.app.router.add_get("/data", self._data)

    async def run(self) -> None:
        """Take samples for as long as the cloud runs."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self._about:
                self._samples.add(self._sample())

    async def close(self) -> None:
        """Let open pages ask how it ended."""
        if self._about:
            self._samples.add(self._sample())
        self._over, self._status_due = True, 0.0
        if time.monotonic() < self._asked + CLOSE_SECONDS:
            await asyncio.sleep(CLOSE_SECONDS)

    async def _file(self, request: web.Request) -> web.StreamResponse:
        require_role(request, OPERATOR)
        name = request.match_info.get("name", INDEX)
        if name not in TYPES:
            raise web.HTTPNotFound(text="no such page")
        return web.Response(
            body=self._files[name], content_type=TYPES[name], charset="utf-8", headers=HEADERS
        )

    async def _data(self, request: web.Request) -> web.StreamResponse:
        """Answer with what is new to a page that knows a run up to the round ``seen``."""
        require_role(request, OPERATOR)
        self._asked = now = time.monotonic()
        if now >= self._status_due:
            self._status_due = now + STATUS_SECONDS
            self._status = self.facts().listed()
            del self._status["price"]  # there may be thousands; charts show the first
        page: dict[str, Any] = {"status": self._status, "over": self._over}
        if self._about:
            if now >= self._budget_due:
                self._budget_due = now + LEDGER_SECONDS
                self._budget = await asyncio.to_thread(budget_rows, self._plan, self.ledger)
            run, seen = request.query.get("run"), request.query.get("seen", "")
            same = run == self._about["run"] and seen.isdecimal()
            page |= {
                "run": None if same else self._about,
                "rounds": self._samples.after(int(seen) if same else 0),
                "budget": self._budget,
            }
        body = msgspec.json.encode(page)
        return web.Response(body=body, content_type="application/json", headers=HEADERS)


def budget_rows(plan: NoisePlan, ledger: Ledger | None) -> dict[str, Any]:
    """Return what agents spend and have left: figures as text, spent rounded up, the rest down."""
    cloud, mu = plan.cloud, plan.gdp_mu
    table = {"ledger": ledger is not None, "trouble": "", "agents": cloud.agents}
    accounts: dict[str, Account] = {}
    if ledger is not None:
        try:
            accounts = {account.agent: account for account in ledger.accounts()}
        except SottovoceError as error:
            table["trouble"] = str(error)
    left = np.ones(cloud.agents)
    for place, name in enumerate(cloud.agent_labels() if accounts else ()):
        if name in accounts:
            left[place] = accounts[name].remaining / accounts[name].budget
    rows = []
    for place in np.lexsort((-mu, left))[:LISTED].tolist():
        group, row = cloud.locate(place)
        name = cloud.groups[group].label(row)
        rows.append(
            {"agent": name, "run": up(float(mu[place]), DIGITS), **_account(accounts.get(name))}
        )
    return table | {"rows": rows}


def _account(account: Account | None) -> dict[str, Any]:
    if account is None:
        return {}
    return {
        "protects": str(account.protected),
        "granted": up(account.budget, DIGITS),
        "spent": up(account.spent, DIGITS),
        "remaining": down(account.remaining, DIGITS),
        "share": min(1.0, account.spent / account.budget),
    }


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
    """A link to the page for a browser without a certificate, on this machine alone.

    A small server on the loopback address holds the operator's certificate and passes the page on.
    Who may see it is decided by a token that is printed once and works once: the first browser that
    comes with it gets a cookie in exchange, and no other is let in. An asynchronous context.
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
        for path in ("/", "/data", "/page/{name}"):
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
        """Refuse other host names: DNS rebinding would come with one."""
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
        try:
            async with self._client.get(self._cloud + request.path_qs) as page:
                headers = {k: v for k, v in page.headers.items() if k in _PASSED_ON}
                return web.Response(status=page.status, body=await page.read(), headers=headers)
        except (aiohttp.ClientError, OSError):
            raise web.HTTPBadGateway(text="the cloud is not there") from None

    @property
    def _cookie(self) -> str:
        return f"sottovoce-{self._port}"


def _same(text: str, secret: str) -> bool:
    """Compare in constant time; an empty secret, used up or not made yet, equals nothing."""
    return bool(secret) and hmac.compare_digest(text.encode(), secret.encode())
