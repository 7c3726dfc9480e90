"""The page's static files, and the headers that keep a browser from doing anything else."""

from __future__ import annotations

from importlib.resources import files
from typing import Final, final

from aiohttp import web

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
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

TYPES: Final = {
    INDEX: "text/html",
    "page.css": "text/css",
    "page.js": "text/javascript",
    "chart.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
"""All files there are; nothing else is ever read."""


@final
class PageFiles:
    """The files, read once."""

    def __init__(self) -> None:
        folder = files(__package__)
        self._bytes = {name: (folder / name).read_bytes() for name in TYPES}

    def answer(self, name: str) -> web.Response:
        """Answer with a file, or 404."""
        if name not in TYPES:
            raise web.HTTPNotFound(text="no such page")
        return web.Response(
            body=self._bytes[name], content_type=TYPES[name], charset="utf-8", headers=HEADERS
        )
