"""Health checks and metrics over plain HTTP, for orchestrators that have no client certificate.

/livez says whether a restart could help, /readyz whether the process serves; both name codes alone.
The port is meant for the loopback interface or a network of the operator's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from aiohttp import web

from sottovoce.network.failures import not_listening

FATAL: Final = "failed"
"""The code of a run that has ended with an error: a restart may help; it does not end a stall."""


async def serve_health(
    listen: tuple[str, int], troubles: Callable[[], Sequence[str]], metrics: Callable[[], bytes]
) -> web.AppRunner:
    """Answer GET on /livez, /readyz and /metrics until the runner's cleanup.

    Args:
        listen: address and port.
        troubles: codes of what is wrong now.
        metrics: the page for Prometheus.

    Raises:
        BusyError: if the address is taken.
    """

    async def live(_: web.Request) -> web.Response:
        return _page([code for code in troubles() if code == FATAL])

    async def ready(_: web.Request) -> web.Response:
        return _page(troubles())

    async def figures(_: web.Request) -> web.Response:
        return web.Response(body=metrics(), content_type="text/plain", charset="utf-8")

    app = web.Application()
    for path, page in (("/livez", live), ("/readyz", ready), ("/metrics", figures)):
        app.router.add_get(path, page)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, *listen).start()
    except OSError as error:
        await runner.cleanup()
        raise not_listening("health_listen", listen, error) from None
    return runner


def _page(codes: Sequence[str]) -> web.Response:
    text = "\n".join(codes or ["ok"])
    return web.Response(text=f"{text}\n", status=503 if codes else 200)
