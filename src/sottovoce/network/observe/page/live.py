"""The live page of a cloud: its files, and events for whoever has it open."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final, final

import msgspec
from aiohttp import web

from sottovoce.network.identity.authorization import Authorization
from sottovoce.network.observe.metrics import Metrics
from sottovoce.network.observe.operator_pages import Facts
from sottovoce.network.observe.page.files import HEADERS, INDEX, PageFiles
from sottovoce.network.observe.page.samples import TICK_SECONDS, Point, Sample
from sottovoce.network.observe.page.show import Show
from sottovoce.network.observe.page.viewers import Viewer, Viewers
from sottovoce.network.transport.listener import connection_of
from sottovoce.network.transport.server import Server

STATUS_TICKS: Final = 4
"""Who is there, and whether viewers still may look, once a second: a fleet takes time to count."""

BUDGET_TICKS: Final = 240
"""Once a minute, as often as the ledger is read."""

RETRY: Final = b"retry: 2000\n\n"
"""How soon a browser comes back after the connection is lost, milliseconds."""


@final
class Live:
    """Samples a run by the clock, and tells all viewers, with one text for all of them.

    Args:
        authorization: says who asks; the page is the operator's.
        metrics: the process's counters.
        show: what is shown of the run.
        sample: the last round as everybody may know it, None before the first.
        facts: who is there, and what is wrong.
    """

    def __init__(
        self,
        authorization: Authorization,
        metrics: Metrics,
        show: Show,
        *,
        sample: Callable[[], Sample | None],
        facts: Callable[[], Facts],
    ) -> None:
        self._authorization = authorization
        self._metrics = metrics
        self._sample = sample
        self._facts = facts
        self._samples = show.samples
        self._budget = show.budget
        self._about = event("run", show.about)
        self._files = PageFiles()
        self._viewers = Viewers(authorization, metrics)

    @property
    def viewers(self) -> int:
        """How many pages are open."""
        return self._viewers.count

    def add_to(self, server: Server) -> None:
        """Add the page to a server."""
        server.index = self._index
        server.listener.app.router.add_get("/page/{name}", self._file)
        server.listener.app.router.add_get("/events", self._events)

    async def run(self) -> None:
        """Take samples for as long as the cloud runs."""
        tick = 0
        while True:
            await asyncio.sleep(TICK_SECONDS)
            tick += 1
            point = self._samples.add(self._sample())
            if not self._viewers.count:
                continue
            words = self._rounds(point)
            if tick % STATUS_TICKS == 0:
                self._viewers.check()
                words += self._status()
            if tick % BUDGET_TICKS == 0:
                words += event("budget", await self._budget.lines())
            self._viewers.tell(words)

    async def close(self) -> None:
        """Tell the viewers how it ended, and let them go."""
        if self._viewers.count:
            point = self._samples.add(self._sample())
            self._viewers.tell(self._rounds(point) + self._status() + event("end", {}))
        await self._viewers.close()

    async def _index(self, request: web.Request) -> web.StreamResponse:
        self._authorization.require_operator(request)
        return self._files.answer(INDEX)

    async def _file(self, request: web.Request) -> web.StreamResponse:
        self._authorization.require_operator(request)
        return self._files.answer(request.match_info["name"])

    async def _events(self, request: web.Request) -> web.StreamResponse:
        identity = self._authorization.require_operator(request)
        connection = connection_of(request)
        budget = event("budget", await self._budget.lines())
        viewer = Viewer(connection, identity)
        self._viewers.enter(viewer)
        try:
            answer = web.StreamResponse(headers=HEADERS | {"Content-Type": "text/event-stream"})
            await answer.prepare(request)
            connection.due = math.inf  # nothing more is asked for on this connection
            await answer.write(self._opening() + budget)
            await viewer.serve(answer)
        finally:
            self._viewers.leave(viewer)
        return answer

    def _opening(self) -> bytes:
        """What a page that was just opened has missed."""
        points = [point.flat() for point in self._samples.points]
        return RETRY + self._about + event("points", points) + self._rounds(None) + self._status()

    def _rounds(self, point: Point | None) -> bytes:
        samples = self._samples
        return event(
            "rounds",
            {
                "round": samples.round,
                "rate": round(samples.rate, 1),
                "averaged": samples.averaged,
                "point": None if point is None else point.flat(),
            },
        )

    def _status(self) -> bytes:
        facts = self._facts()
        return event(
            "status",
            {
                "phase": facts.phase,
                "connected": facts.connected,
                "waited": facts.seconds_since_round,
                "troubles": [asdict(trouble) for trouble in facts.troubles],
                "missing": facts.missing,
                "absent": [asdict(one) for one in facts.absent],
                "last_to_answer": [asdict(one) for one in facts.last_to_answer],
                "held": self._metrics.held,
                "refused": {str(code): n for code, n in self._metrics.refused.items() if n},
                "turned_away": {why: n for why, n in self._metrics.turned_away.items() if n},
            },
        )


def event(name: str, data: Any) -> bytes:
    """Return a server-sent event; JSON has no line breaks of its own."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))
