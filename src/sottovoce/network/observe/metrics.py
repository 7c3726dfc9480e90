"""Figures for Prometheus in its text format, version 0.0.4.

None depends on a state, but for the count of clipped contributions, which honest agents leave at 0.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, final

from sottovoce.network.attendance import Absence, Laggard
from sottovoce.network.protocol.messages import Code

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper ends of the round latency histogram, seconds."""

AWAY: Final = (
    "accept",
    "certificate",
    "crowd",
    "descriptors",
    "flood",
    "handshake",
    "pages",
    "request",
    "viewer",
)
"""Why a connection may be turned away at the door."""


@final
class Metrics:
    """Counters of one cloud process."""

    def __init__(self) -> None:
        self.refused: Counter[Code] = Counter()
        self.turned_away: Counter[str] = Counter()
        self.held = 0
        self._rounds = 0
        self._seconds = 0.0
        self._buckets = [0] * (len(BUCKETS) + 1)
        self.start()

    @property
    def waited(self) -> float:
        """Seconds since the last round, or since the start."""
        return time.perf_counter() - self._marked

    def start(self) -> None:
        """The cloud listens from now on."""
        self._marked = time.perf_counter()

    def round(self, *, held: int) -> None:
        """Count a round and how long it took from the one before."""
        now = time.perf_counter()
        seconds, self._marked = now - self._marked, now
        self._rounds += 1
        self._seconds += seconds
        self.held += held
        self._buckets[bisect_left(BUCKETS, seconds)] += 1

    def text(
        self, *, round_: int, rounds: int, connected: int, agents: int, mu: float, unreadable: int
    ) -> str:
        """Return the page.

        Args:
            round_: rounds released so far in the run.
            rounds: rounds of the whole run.
            connected: agents connected now.
            agents: agents of the problem.
            mu: Gaussian-DP parameter of the run for its worst agent.
            unreadable: how often the revocation list could not be read.
        """
        lines = [
            *_gauge("round", "Rounds released so far in this run.", round_),
            *_gauge("rounds", "Rounds of the whole run.", rounds),
            *_gauge("agents_connected", "Agents connected now.", connected),
            *_gauge("agents", "Agents of the problem.", agents),
            *_gauge("budget_gdp_mu", "Gaussian-DP parameter spent by this run.", mu),
            *_counter("held_total", "Agent-rounds held at the last state.", self.held),
            *_counter(
                "revocations_unreadable_total",
                "Attempts to read the revocation list that failed; the last good list counts.",
                unreadable,
            ),
            "# HELP sottovoce_refused_total What was refused, or clipped, by reason.",
            "# TYPE sottovoce_refused_total counter",
            *(f'sottovoce_refused_total{{code="{c}"}} {self.refused[c]}' for c in Code),
            "# HELP sottovoce_turned_away_total Connections ended before they said anything worth "
            "an answer, by reason.",
            "# TYPE sottovoce_turned_away_total counter",
            *(f'sottovoce_turned_away_total{{reason="{r}"}} {self.turned_away[r]}' for r in AWAY),
            "# HELP sottovoce_round_seconds Time from one round to the next.",
            "# TYPE sottovoce_round_seconds histogram",
        ]
        for end, count in zip(BUCKETS, accumulate(self._buckets), strict=False):
            lines.append(f'sottovoce_round_seconds_bucket{{le="{end}"}} {count}')
        lines += [
            f'sottovoce_round_seconds_bucket{{le="+Inf"}} {self._rounds}',
            f"sottovoce_round_seconds_sum {self._seconds:.6f}",
            f"sottovoce_round_seconds_count {self._rounds}",
        ]
        return "\n".join(lines) + "\n"


def who_is_missing(
    missing: int, absent: Sequence[Absence], laggards: Sequence[Laggard], waited: float
) -> str:
    """Return the part of the page that names agents.

    Args:
        missing: how many agents are absent.
        absent: those of them that are named.
        laggards: who completed the last rounds.
        waited: seconds since the last round.
    """
    lines = [
        *_gauge("seconds_since_round", "Seconds since the last round or the start.", waited),
        *_gauge("agents_absent", "Agents that are not connected.", missing),
        "# HELP sottovoce_absent_seconds How long an agent has been absent.",
        "# TYPE sottovoce_absent_seconds gauge",
        *(f'sottovoce_absent_seconds{{agent="{a.agent}"}} {a.seconds}' for a in absent),
        "# HELP sottovoce_last_to_answer Rounds of the last 100 that these agents completed.",
        "# TYPE sottovoce_last_to_answer gauge",
        *(f'sottovoce_last_to_answer{{agents="{one.agents}"}} {one.rounds}' for one in laggards),
    ]
    return "\n".join(lines) + "\n"


def _gauge(name: str, text: str, value: float) -> list[str]:
    return _figure(name, text, "gauge", value)


def _counter(name: str, text: str, value: float) -> list[str]:
    return _figure(name, text, "counter", value)


def _figure(name: str, text: str, kind: str, value: float) -> list[str]:
    full = f"sottovoce_{name}"
    return [f"# HELP {full} {text}", f"# TYPE {full} {kind}", f"{full} {value}"]
