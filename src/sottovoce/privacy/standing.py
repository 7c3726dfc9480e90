"""How agents stand before a run: what they granted and spent, and how often they can afford it.

The ledger refuses a run by the same figures that it forecasts from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, final

from sottovoce.database import Database
from sottovoce.errors import BudgetError
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
from sottovoce.privacy.periods import (
    Per,
    PeriodBudget,
    free_again,
    period_budget,
    period_rows,
    recent_totals,
    utc_text,
)

AccountRow: TypeAlias = tuple[str, Kind, float | None, float, float, float, str]
"""An account as its table has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One agent's budgets: mu of them, of all runs so far, and what one more run may have.

    ``budget`` is the largest Gaussian-DP parameter that gives (epsilon, delta); ``spent`` is
    rounded up, ``remaining`` down, both in terms of what the account protects. They are of the
    lifetime; ``periods`` has those of an hour, a day, ..., now.
    """

    agent: str
    protected: Protected
    epsilon: float
    delta: float
    budget: float
    spent: float
    remaining: float
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
    """One agent before one charge; sums of squares are exact, in units of 4^-BITS.

    Attributes:
        account: with its budgets.
        charge: of the run.
        asked: the square of what the account is charged for it.
        spent: of the lifetime.
        recent: of the current window of every budget by period.
    """

    account: Account
    charge: Charge
    asked: int
    spent: int
    recent: tuple[int, ...]

    @property
    def total(self) -> int:
        """What the lifetime has spent with this run."""
        return self.spent + self.asked

    def refusal(self, database: Database, now: int) -> str:
        """Return why the run is refused, or nothing."""
        account, asked = self.account, root_up(self.asked)
        words = f"asked {asked!r} (mu={self.charge.mu!r} for {self.charge.protected}), remaining"
        if self.total > square_down(account.budget):
            return (
                f"agent {account.agent!r} would exceed its lifetime budget of mu="
                f"{account.budget!r} for {account.protected}: spent {account.spent!r}, {words} "
                f"{account.remaining!r}"
            )
        for period, recent in zip(account.periods, self.recent, strict=True):
            if recent + self.asked > square_down(period.budget):
                again = self._free(database, period, recent, now)
                when = (
                    "no later run fits either" if again is None else f"again at {utc_text(again)}"
                )
                return (
                    f"agent {account.agent!r} would exceed its budget of mu={period.budget!r} per "
                    f"{period.per} for {account.protected}: spent {period.spent!r}, {words} "
                    f"{period.remaining!r}; {when}"
                )
        return ""

    def forecast(self, database: Database, now: int) -> AgentForecast:
        """Return how many such runs the agent can afford."""
        account = self.account
        in_all = self._runs(account.budget, self.spent)
        per = {str(p.per): self._runs(p.budget, 0) for p in account.periods}
        counts = [in_all]
        for period, recent in zip(account.periods, self.recent, strict=True):
            counts.append(self._runs(period.budget, recent))
        known = [count for count in counts if count is not None]
        return AgentForecast(
            agent=account.agent,
            runs=min(known, default=None),
            in_all=in_all,
            per=per,
            next_at=None if in_all == 0 else self._next_at(database, now),
            refusal=self.refusal(database, now),
        )

    def _next_at(self, database: Database, now: int) -> str | None:
        latest = now
        for period, recent in zip(self.account.periods, self.recent, strict=True):
            again = self._free(database, period, recent, now)
            if again is None:
                return None
            latest = max(latest, again)
        return utc_text(latest)

    def _free(self, database: Database, period: PeriodBudget, recent: int, now: int) -> int | None:
        """When the period's budget covers the run; None if never."""
        budget = square_down(period.budget)
        if self.asked > budget:
            return None
        excess = recent + self.asked - budget
        account = self.account
        return free_again(database, account.agent, account.protected, excess, period.per, now)

    def _runs(self, budget: float, spent: int) -> int | None:
        if self.asked == 0:
            return None
        return max(0, square_down(budget) - spent) // self.asked


def account_of(row: AccountRow, periods: tuple[PeriodBudget, ...] = ()) -> Account:
    """Return an account as its table has it."""
    agent, hide, radius, epsilon, delta, budget, spent = row
    total = int(spent, 16)
    return Account(
        agent=agent,
        protected=Protected(hide, radius),
        epsilon=epsilon,
        delta=delta,
        budget=budget,
        spent=root_up(total),
        remaining=root_down(max(0, square_down(budget) - total)),
        periods=periods,
    )


def account_row(database: Database, agent: str) -> AccountRow | None:
    """Return one agent's account, None if no budget was granted to it."""
    asked = database.execute("SELECT * FROM accounts WHERE agent = ?", (agent,))
    row: AccountRow | None = asked.fetchone()
    return row


def no_budget(agent: str) -> str:
    """Return the words for an agent without an account."""
    return f"agent {agent!r} has no budget granted: grant one first"


def accounts_now(
    database: Database, rows: Mapping[str, AccountRow], now: int
) -> dict[str, tuple[Account, tuple[int, ...]]]:
    """Return accounts with their budgets by period, and the exact sums of the current windows."""
    listed = period_rows(database, rows)
    protected: dict[Per, dict[str, Protected]] = {}
    for agent, per, *_ in listed:
        protected.setdefault(per, {})[agent] = account_of(rows[agent]).protected
    totals = {per: recent_totals(database, of, per, now) for per, of in protected.items()}
    periods: dict[str, list[tuple[PeriodBudget, int]]] = {agent: [] for agent in rows}
    for row in listed:
        spent = totals[row[1]][row[0]]
        periods[row[0]].append((period_budget(row, spent), spent))
    return {
        agent: (account_of(row, tuple(p for p, _ in periods[agent])),
                tuple(s for _, s in periods[agent]))
        for agent, row in rows.items()
    }  # fmt: skip


def standings(
    database: Database, requested: Mapping[str, Charge], now: int
) -> tuple[list[Standing], dict[str, str]]:
    """Return how agents stand, and by name why the run cannot be charged to others at all."""
    rows = {agent: account_row(database, agent) for agent in requested}
    known = accounts_now(database, {a: row for a, row in rows.items() if row is not None}, now)
    listed, wrong = [], {}
    for agent, charge in requested.items():
        row = rows[agent]
        if row is None:
            wrong[agent] = no_budget(agent)
            continue
        account, recent = known[agent]
        try:
            asked = amount(charge, account.protected) ** 2
        except BudgetError as error:
            wrong[agent] = str(error)
            continue
        spent = int(row[-1], 16)
        listed.append(
            Standing(account=account, charge=charge, asked=asked, spent=spent, recent=recent)
        )
    return listed, wrong
