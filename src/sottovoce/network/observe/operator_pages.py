"""A process's counters, and its pages: /healthz, /metrics and /status beside its WebSocket.

/livez, /readyz and /metrics are also served over plain HTTP, for orchestrators that have no client
certificate; that port is meant for the loopback interface or a network of the operator's. No
counter depends on a state, but for that of clipped contributions: honest agents leave it at 0.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, final

from aiohttp import web
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sottovoce.network.failures import not_listening
from sottovoce.network.identity.certificates import read_identity
from sottovoce.network.identity.tls import OPERATOR
from sottovoce.network.protocol.messages import Code
from sottovoce.network.transport.server import require_role

FATAL: Final = "failed"
"""The code of a run that has ended with an error: a restart may help; it does not end a stall."""

ENDED_WRONG: Final = "the run has ended with an error: see the log"

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper ends of the round latency histogram, seconds."""

TURNED_AWAY: Final = ("accept", "address", "certificate", "crowd", "descriptors", "flood",
                      "handshake", "pages", "request")  # fmt: skip
"""Why a connection may be turned away."""

STALE_SECONDS: Final = 10.0
"""A revocation list that could not be read for this long is stale; it is tried every second."""

SERIES_GAUGES: Final = {
    "run": "Number of the current or last run of the series.",
    "answered": "Runs of the series that had an answer.",
    "next_seconds": "Until the next run is due.",
    "sat_out_count": "Agents that sat out the current or last run.",
}

_SECONDS_PER_DAY: Final = 86_400
_FAMILIES: Final = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}


@final
class Metrics:
    """Counts rounds, refusals and connections turned away."""

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        self.turned_away: Counter[str] = Counter()
        self.held = 0
        self.registry = CollectorRegistry()
        self.round_seconds = Histogram(
            "sottovoce_round_seconds", "Time from one round to the next.", buckets=BUCKETS,
            registry=self.registry,
        )  # fmt: skip
        self.start()

    @property
    def waited(self) -> float:
        """Seconds since the last round, or since the start."""
        return time.perf_counter() - self._marked

    def page(self) -> bytes:
        """Return all figures as Prometheus reads them."""
        return generate_latest(self.registry)

    def start(self) -> None:
        """The cloud listens from now on."""
        self._marked = time.perf_counter()

    def round(self, *, held: int) -> None:
        """Count a round and how long it took from the one before."""
        now = time.perf_counter()
        self.round_seconds.observe(now - self._marked)
        self._marked = now
        self.held += held


def _metric(kind: str, name: str, text: str) -> Any:
    """A fact that /metrics shows too, as ``sottovoce_NAME``."""
    return field(metadata={"metric": (_FAMILIES[kind], f"sottovoce_{name}", text)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What an operator may see of a run: nothing here depends on a state except through noise."""

    run: str
    phase: str  # of the state machine
    round: int = _metric("gauge", "round", "Rounds released so far in this run.")
    rounds: int = _metric("gauge", "rounds", "Rounds of the whole run.")
    connected: int = _metric("gauge", "agents_connected", "Agents connected now.")
    agents: int = _metric("gauge", "agents", "Agents of the problem.")
    missing: int = _metric("gauge", "agents_absent", "Agents that are not connected.")
    price: tuple[float, ...]  # the answer so far, averaged or the latest: every agent gets it
    gdp_mu: float = _metric("gauge", "run_gdp_mu", "Gaussian-DP parameter spent by this run.")
    failed: bool  # the run has ended with an error
    unreadable: int = _metric(
        "counter", "revocations_unreadable",
        "Attempts to read the revocation list that failed; the last good list counts.",
    )  # fmt: skip
    unread_seconds: float  # since the revocation list was known to be current
    seconds_since_round: float = _metric(
        "gauge", "seconds_since_round", "Since the last round or the start."
    )
    stall: float  # seconds without a round after which the run is stalled
    absent: list[dict[str, Any]]  # the longest first
    last_to_answer: list[dict[str, Any]]  # who completed the last 100 rounds, most frequent first
    held: int = _metric("counter", "held", "Agent-rounds that went on without the agent.")
    refused: dict[str, int]  # by code, by this process; contributions clipped as well
    turned_away: dict[str, int]  # connections, by reason
    series: dict[str, Any] | None = None  # its runs, where there is one

    @property
    def troubles(self) -> dict[str, str]:
        """What is wrong: the reason of every code; nothing if the cloud is healthy."""
        unread, waited = self.unread_seconds, self.seconds_since_round
        checks = (
            (FATAL, self.failed, ENDED_WRONG),
            (
                "stale-revocations",
                unread > STALE_SECONDS,
                f"revoked.txt must be readable, but could not be read for {unread:.0f} s: "
                "the last good list counts meanwhile",
            ),
            (
                "stalled",
                waited > self.stall,
                f"a round must come within {self.stall:g} s, but none came for {waited:.0f} s; "
                f"{self.missing} agents are absent: see /status",
            ),
        )
        return {code: reason for code, wrong, reason in checks if wrong}

    def listed(self) -> dict[str, Any]:
        """Return everything, for a page."""
        troubles = [{"code": code, "reason": text} for code, text in self.troubles.items()]
        return asdict(self) | {"troubles": troubles}


@final
class Pages(Collector):
    """Answers to GET from the run as it is now; also a collector of Prometheus."""

    def __init__(self, keys: Path, metrics: Metrics, facts: Callable[[], Facts]) -> None:
        self._facts, self._keys, self._metrics = facts, keys, metrics

    def add_to(self, app: web.Application) -> None:
        """Add the pages to a server."""
        app.router.add_get("/metrics", self._metrics_page)
        app.router.add_get("/status", self._status)

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance: a run has facts once it has begun."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the run's figures."""
        facts = self._facts()
        for fact in fields(facts):
            if fact.metadata:
                family, name, text = fact.metadata["metric"]
                yield family(name, text, value=getattr(facts, fact.name))
        files = {"server": self._keys / "server.pem", "authority": self._keys / "ca.pem"}
        days = {
            of: (read_identity(file).expires - time.time()) / _SECONDS_PER_DAY
            for of, file in files.items()
        }
        refused = dict.fromkeys(map(str, Code), 0) | facts.refused
        away = dict.fromkeys(TURNED_AWAY, 0) | facts.turned_away
        absent = {str(one["agent"]): one["seconds"] for one in facts.absent}
        last = {one["agents"]: one["rounds"] for one in facts.last_to_answer}
        for kind, name, label, text, values in (
            ("counter", "refused", "code", "What was refused, or clipped.", refused),
            ("counter", "turned_away", "reason", "Connections turned away.", away),
            ("gauge", "certificate_days", "of", "Until a certificate ends.", days),
            ("gauge", "absent_seconds", "agent", "How long it is absent.", absent),
            ("gauge", "last_to_answer", "agents", "Of the last 100 rounds.", last),
        ):
            family = _FAMILIES[kind](f"sottovoce_{name}", text, labels=[label])
            for key, value in values.items():
                family.add_metric([key], value)
            yield family
        series = facts.series or {}
        for name, text in SERIES_GAUGES.items():
            if (value := series.get(name)) is not None:
                yield GaugeMetricFamily(f"sottovoce_series_{name}", text, value=value)

    async def _metrics_page(self, request: web.Request) -> web.Response:
        require_role(request, OPERATOR)
        return _figures(self._metrics.page())

    async def _status(self, request: web.Request) -> web.Response:
        require_role(request, OPERATOR)
        return web.json_response(self._facts().listed())


async def serve_health(
    listen: tuple[str, int], troubles: Callable[[], Iterable[str]], metrics: Callable[[], bytes]
) -> web.AppRunner:
    """Answer GET on /livez, /readyz and /metrics until the runner's cleanup; or raise BusyError."""

    async def live(_: web.Request) -> web.Response:
        return _codes([code for code in troubles() if code == FATAL])

    async def ready(_: web.Request) -> web.Response:
        return _codes(list(troubles()))

    async def figures(_: web.Request) -> web.Response:
        return _figures(metrics())

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


def _codes(codes: Sequence[str]) -> web.Response:
    text = "\n".join(codes or ["ok"])
    return web.Response(text=f"{text}\n", status=503 if codes else 200)


def _figures(page: bytes) -> web.Response:
    return web.Response(body=page, content_type="text/plain", charset="utf-8")
