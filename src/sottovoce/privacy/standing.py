"""How agents stand before a run: what they granted and spent, and how often they can afford it.

The ledger refuses a run by the same figures that it forecasts from. Beside the lifetime's there are
budgets by period: what all runs that begin within an hour, a day, ... may spend together.

The window rolls: a charge of mu at time t is admitted if, with B the budget,

    sum of mu_j^2 over runs recorded at t - P <= t_j <= t   +   mu^2   <=   B^2.

Every closed interval of length P that holds a run admitted under the budget keeps it, not only
those of a calendar (docs/explanation/ledger.md).

Times are whole seconds of the ledger's own clock, which never goes backward: the machine's, or
the time of the last run if that is later. A clock that is set back thus frees nothing; runs whose
times are rounded down to the same second count as in one window, and a run leaves a window a second
after P at the earliest, so that rounding frees nothing either.
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, final, get_args

from sottovoce.database import Database
from sottovoce.errors import BudgetError, InputError, PrivacyError
from sottovoce.privacy.adjacency import Kind
from sottovoce.privacy.charge import (
    Charge,
    Protected,
    amount,
    ratio_up,
    root_down,
    root_up,
    square_down,
)

Per: TypeAlias = Literal["hour", "day", "week", "30-days"]
SECONDS: Final[dict[Per, int]] = {"hour": 3600, "day": 86400, "week": 604800, "30-days": 2592000}
SPANS: Final[dict[Per, str]] = {
    "hour": "60 minutes", "day": "24 hours", "week": "7 days", "30-days": "30 days",
}  # fmt: skip
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

    def runs(self, square: int) -> int | None:
        """Return how many more runs with that square it covers; None for any number."""
        return max(0, self.left) // square if square else None


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
    chosen = None if agents is None else set(agents)
    rows = database.execute("SELECT agent, per, epsilon, delta, budget FROM periods").fetchall()
    budgets = [row for row in rows if chosen is None or row[0] in chosen]
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


AccountRow: TypeAlias = tuple[str, Kind, float | None, float, float, float, str]
"""An account as its table has it."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Account(Budget):
    """One agent's budget of its lifetime; ``periods`` has those of an hour, a day, ..., now."""

    agent: str
    protected: Protected
    periods: tuple[PeriodBudget, ...] = ()

    @property
    def spent_per_radius(self) -> float | None:
        """``spent / radius``, rounded up; None for "everything".

        Lifetimes that are ``d >= radius`` apart within every run have spent at most ``d`` times
        this.
        """
        radius = self.protected.radius
        return None if radius is None else ratio_up(self.spent, radius)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentForecast:
    """How many more runs of one plan an agent can afford, all else staying as it is.

    Attributes:
        agent: its label.
        runs: that may begin at once, one after the other; None for any number, at a charge of 0.
        in_all: that its lifetime budget allows; None likewise.
        per: that may begin within any period, by its name.
        next_at: when the next run may begin, UTC; None if never.
        refusal: why none may begin now, in words; empty if one may.
    """

    agent: str
    runs: int | None
    in_all: int | None
    per: Mapping[str, int | None]
    next_at: str | None
    refusal: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One agent before one charge; ``asked`` is its square in the account's terms."""

    account: Account
    charge: Charge
    asked: int

    def refusal(self, database: Database, now: int) -> str:
        """Return why the run is refused, or nothing."""
        account, run = self.account, self.charge
        exceeded = (b for b in (account, *account.periods) if self.asked > b.left)
        budget = next(exceeded, None)
        if budget is None:
            return ""
        which, when = f"lifetime budget of mu={budget.budget!r}", "grant more, or plan with less"
        if isinstance(budget, PeriodBudget):
            again = self._free(database, budget, now)
            which = f"budget of mu={budget.budget!r} per {budget.per}"
            when = "no later run fits either" if again is None else f"again at {utc_text(again)}"
        return (
            f"agent {account.agent!r} would exceed its {which} for {account.protected}: spent "
            f"{budget.spent!r}, asked {root_up(self.asked)!r} (mu={run.mu!r} for {run.protected}), "
            f"remaining {budget.remaining!r}; {when}"
        )

    def forecast(self, database: Database, now: int) -> AgentForecast:
        """Return how many such runs the agent can afford."""
        account, square = self.account, self.asked
        counts = [budget.runs(square) for budget in (account, *account.periods)]
        free = [self._free(database, period, now) for period in account.periods]
        never = counts[0] == 0 or None in free
        return AgentForecast(
            agent=account.agent,
            runs=min((count for count in counts if count is not None), default=None),
            in_all=counts[0],
            per={p.per: replace(p, total=0).runs(square) for p in account.periods},
            next_at=None if never else utc_text(max([now, *(t for t in free if t is not None)])),
            refusal=self.refusal(database, now),
        )

    def _free(self, database: Database, period: PeriodBudget, now: int) -> int | None:
        """When the period's budget covers the run; None if never."""
        if self.asked > square_down(period.budget):
            return None
        excess, account = self.asked - period.left, self.account
        return free_again(database, account.agent, account.protected, excess, period.per, now)


def account_of(row: AccountRow, periods: tuple[PeriodBudget, ...] = ()) -> Account:
    """Return an account as its table has it."""
    agent, hide, radius, epsilon, delta, budget, spent = row
    return Account(
        agent=agent, protected=Protected(hide, radius), epsilon=epsilon, delta=delta,
        budget=budget, total=int(spent, 16), periods=periods,
    )  # fmt: skip


def account_row(database: Database, agent: str) -> AccountRow | None:
    """Return one agent's account, None if no budget was granted to it."""
    rows = database.execute("SELECT * FROM accounts WHERE agent = ?", (agent,))
    row: AccountRow | None = rows.fetchone()
    return row


def no_budget(agent: str) -> str:
    """Return the words for an agent without an account."""
    return f"agent {agent!r} has no budget granted: grant one first"


def accounts_now(
    database: Database, rows: Mapping[str, AccountRow], now: int
) -> dict[str, Account]:
    """Return accounts with their budgets by period, and what the current windows have spent."""
    granted = period_rows(database, rows)
    protected: dict[Per, dict[str, Protected]] = {}
    for agent, per, *_ in granted:
        protected.setdefault(per, {})[agent] = account_of(rows[agent]).protected
    totals = {per: recent_totals(database, of, per, now) for per, of in protected.items()}
    periods: dict[str, list[PeriodBudget]] = {agent: [] for agent in rows}
    for agent, per, epsilon, delta, budget in granted:
        total = totals[per][agent]
        periods[agent].append(
            PeriodBudget(per=per, epsilon=epsilon, delta=delta, budget=budget, total=total)
        )
    return {agent: account_of(row, tuple(periods[agent])) for agent, row in rows.items()}


def standings(
    database: Database, requested: Mapping[str, Charge], now: int
) -> tuple[list[Standing], dict[str, str]]:
    """Return how agents stand, and by name why the run cannot be charged to others at all."""
    rows = {agent: account_row(database, agent) for agent in requested}
    accounts = accounts_now(database, {a: row for a, row in rows.items() if row is not None}, now)
    standing, wrong = [], {a: no_budget(a) for a in requested if a not in accounts}
    for agent, account in accounts.items():
        try:
            square = amount(requested[agent], account.protected) ** 2
        except BudgetError as error:
            wrong[agent] = str(error)
        else:
            standing.append(Standing(account=account, charge=requested[agent], asked=square))
    return standing, wrong
