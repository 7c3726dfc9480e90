"""The pages beside the WebSocket: /healthz for any certificate, the rest for the operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import final

from aiohttp import web

from sottovoce.network.attendance import Absence, Laggard
from sottovoce.network.identity.authorization import Gate
from sottovoce.network.observe.certificate_days import certificate_days, certificate_ends
from sottovoce.network.observe.health import Trouble
from sottovoce.network.observe.metrics import Metrics, who_is_missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What an operator may see of a run: nothing here depends on a state except through noise.

    Attributes:
        run: its name.
        phase: of the state machine.
        round: rounds released so far.
        rounds: rounds of the whole run.
        connected: agents connected now.
        agents: agents of the problem.
        price: the answer so far, averaged prices or the latest, which every agent gets.
        gdp_mu: Gaussian-DP parameter of the run for its worst agent.
        troubles: what is wrong; nothing if the cloud is healthy.
        unreadable: how often the revocation list could not be read.
        seconds_since_round: since the last round, or since the start; 0 once the run is over.
        missing: how many agents are absent.
        absent: who is, the longest first.
        last_to_answer: who completed the last 100 rounds, the most frequent first.
    """

    run: str
    phase: str
    round: int
    rounds: int
    connected: int
    agents: int
    price: tuple[float, ...]
    gdp_mu: float
    troubles: tuple[Trouble, ...]
    unreadable: int
    seconds_since_round: float
    missing: int
    absent: tuple[Absence, ...]
    last_to_answer: tuple[Laggard, ...]


@final
class Pages:
    """Answers to GET.

    Args:
        gate: says who asks.
        metrics: the process's counters.
        facts: the run as it is now.
    """

    def __init__(self, gate: Gate, metrics: Metrics, facts: Callable[[], Facts]) -> None:
        self._gate = gate
        self._metrics = metrics
        self._facts = facts
        self._ends = certificate_ends(gate.keys)

    def add_to(self, app: web.Application) -> None:
        """Add the pages to a server."""
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/metrics", self._metrics_page)
        app.router.add_get("/status", self._status)

    async def _healthz(self, request: web.Request) -> web.Response:
        self._gate.identify(request)
        found = self._facts().troubles
        page = {"healthy": not found, "troubles": [asdict(trouble) for trouble in found]}
        return web.json_response(page, status=503 if found else 200)

    async def _metrics_page(self, request: web.Request) -> web.Response:
        self._gate.require_operator(request)
        facts = self._facts()
        text = self._metrics.text(
            round_=facts.round,
            rounds=facts.rounds,
            connected=facts.connected,
            agents=facts.agents,
            mu=facts.gdp_mu,
            unreadable=facts.unreadable,
        )
        text += certificate_days(self._ends)
        text += who_is_missing(
            facts.missing, facts.absent, facts.last_to_answer, facts.seconds_since_round
        )
        return web.Response(text=text, content_type="text/plain", charset="utf-8")

    async def _status(self, request: web.Request) -> web.Response:
        self._gate.require_operator(request)
        return web.json_response(asdict(self._facts()))
