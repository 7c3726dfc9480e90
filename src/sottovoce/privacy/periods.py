"""Budgets by period: what all runs that begin within an hour, a day, ... may spend together.

The window rolls: a charge of mu at time t is admitted if, with B the budget,

    sum of mu_j^2 over runs recorded at t - P <= t_j <= t   +   mu^2   <=   B^2.

Of any interval of length P the last run was admitted with all others of the interval in its window:
so every closed interval of length P that holds a run admitted under the budget keeps it, not only
those of a calendar, and n of them, end to end, keep sqrt(n) B.

Times are whole seconds of the ledger's own clock, which never goes backward: the machine's, or
the time of the last run if that is later. A clock that is set back thus frees nothing; runs whose
times are rounded down to the same second count as in one window, and a run leaves a window a second
after P at the earliest, so that rounding frees nothing either.
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, final, get_args

from sottovoce.database import Database
from sottovoce.errors import InputError, PrivacyError
from sottovoce.privacy.adjacency import Kind
from sottovoce.privacy.charge import Charge, Protected, amount, root_down, root_up, square_down

Per: TypeAlias = Literal["hour", "day", "week", "30-days"]
_HOUR: Final = 3600
SECONDS: Final[dict[Per, int]] = {
    "hour": _HOUR,
    "day": 24 * _HOUR,
    "week": 7 * 24 * _HOUR,
    "30-days": 30 * 24 * _HOUR,
}
SPANS: Final[dict[Per, str]] = {
    "hour": "60 minutes",
    "day": "24 hours",
    "week": "7 days",
    "30-days": "30 days",
}
_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What an agent granted, and what runs have spent of it, in terms of what its account protects.

    ``budget`` is the largest Gaussian-DP parameter that gives (epsilon, delta); ``total`` is the
    exact sum of squares, in units of 4^-BITS.
    """

    epsilon: float
    delta: float
    budget: float
    total: int

    @property
    def spent(self) -> float:
        """The Gaussian-DP parameter of all runs so far, rounded up."""
        return root_up(self.total)

    @property
    def left(self) -> int:
        """The square of what one more run may have, in units of 4^-BITS; negative beyond it."""
        return square_down(self.budget) - self.total

    @property
    def remaining(self) -> float:
        """The largest Gaussian-DP parameter that one more run may have, rounded down."""
        return root_down(max(0, self.left))

    def runs(self, asked: int) -> int | None:
        """Return how many more runs with that square it covers; None for any number."""
        return max(0, self.left) // asked if asked else None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodBudget(Budget):
    """What an agent granted for every period; its total is that of the window that ends now."""

    per: Per


def per_of(value: object) -> Per:
    """Return a period's name, or refuse another."""
    for per in get_args(Per):
        if value == per:
            return per  # type: ignore[no-any-return]
    raise InputError(f"per must be {', '.join(get_args(Per))}, got per={value!r:.60}")


def utc_text(seconds: int) -> str:
    """Return seconds since 1970 in UTC, ISO 8601."""
    return time.strftime(_FORMAT, time.gmtime(seconds))


def utc_seconds(text: str) -> int:
    """Undo ``utc_text``."""
    return calendar.timegm(time.strptime(text, _FORMAT))


def ledger_time(database: Database) -> int:
    """Return the ledger's time: the machine's, but never before that of a run in it."""
    (last,) = database.execute("SELECT max(at) FROM runs").fetchone()
    now = int(time.time() // 1)
    return now if last is None else max(now, utc_seconds(last))


def recent_totals(
    database: Database, protected: dict[str, Protected], per: Per, now: int
) -> dict[str, int]:
    """Return what agents spent in the window that ends now: exact sums of squares, by account."""
    totals = dict.fromkeys(protected, 0)
    # Equal charges, of which a series of runs has many, are added up by the database.
    rows = database.execute(
        "SELECT agent, hide, radius, mu, allowance, count(*) FROM spends WHERE number >= ? "
        "GROUP BY agent, hide, radius, mu, allowance",
        (_first_run(database, per, now),),
    )
    for agent, hide, radius, mu, allowance, count in rows:
        if agent in protected:
            charge = charge_of(agent, hide, radius, mu, allowance)
            totals[agent] += count * amount(charge, protected[agent]) ** 2
    return totals


def free_again(
    database: Database, agent: str, protected: Protected, least: int, per: Per, now: int
) -> int:
    """Return when the window of an agent will have spent ``least`` less, if no other run begins."""
    rows = database.execute(
        "SELECT at, hide, radius, mu, allowance FROM spends JOIN runs USING (number) "
        "WHERE number >= ? AND agent = ? ORDER BY number",
        (_first_run(database, per, now), agent),
    )
    leaves = now
    for at, *row in rows:
        if least <= 0:
            break
        least -= amount(charge_of(agent, *row), protected) ** 2
        leaves = max(leaves, utc_seconds(at) + SECONDS[per] + 1)
    return leaves


def period_rows(
    database: Database, agents: Iterable[str] | None = None
) -> list[tuple[str, Per, float, float, float]]:
    """Return the budgets by period of some agents, or of all: the shortest period first."""
    asked = None if agents is None else set(agents)
    rows = database.execute("SELECT agent, per, epsilon, delta, budget FROM periods").fetchall()
    budgets = [row for row in rows if asked is None or row[0] in asked]
    for agent, per, *_ in budgets:
        if per not in SECONDS:
            raise PrivacyError(
                f"budgets of agent {agent!r} must be per {', '.join(SECONDS)}, got one per "
                f"{per!r}: use the release of sottovoce that wrote it"
            )
    return sorted(budgets, key=lambda row: (row[0], SECONDS[row[1]]))


def charge_of(agent: str, hide: Kind, radius: float | None, mu: float, allowance: float) -> Charge:
    """Return a charge as a row of the ledger has it."""
    return Charge(agent=agent, protected=Protected(hide, radius), mu=mu, allowance=allowance)


def _first_run(database: Database, per: Per, now: int) -> int:
    """The first run of the window that ends now; its successors are in it too, as time rises."""
    begin = (utc_text(now - SECONDS[per]),)
    (first,) = database.execute(
        "SELECT coalesce(min(number), 0) FROM runs WHERE at >= ?", begin
    ).fetchone()
    if first:
        return int(first)
    (last,) = database.execute("SELECT coalesce(max(number), 0) FROM runs").fetchone()
    return int(last) + 1
