"""How agents stand before a run: what they granted and spent, and how often they can afford it.

The ledger refuses a run by the same figures that it forecasts from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias, final

from sottovoce.database import Database
from sottovoce.errors import BudgetError
from sottovoce.privacy.adjacency import Kind
from sottovoce.privacy.charge import (
    Charge,
    Protected,
    amount,
    ratio_up,
    root_up,
    square_down,
)
from sottovoce.privacy.periods import (
    Budget,
    Per,
    PeriodBudget,
    free_again,
    period_rows,
    recent_totals,
    utc_text,
)

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
        which, when = f"lifetime budget of mu={budget.budget!r}", ""
        if isinstance(budget, PeriodBudget):
            again = self._free(database, budget, now)
            which = f"budget of mu={budget.budget!r} per {budget.per}"
            when = "no later run fits either" if again is None else f"again at {utc_text(again)}"
        return (
            f"agent {account.agent!r} would exceed its {which} for {account.protected}: spent "
            f"{budget.spent!r}, asked {root_up(self.asked)!r} (mu={run.mu!r} for {run.protected}), "
            f"remaining {budget.remaining!r}{when and '; '}{when}"
        )

    def forecast(self, database: Database, now: int) -> AgentForecast:
        """Return how many such runs the agent can afford."""
        account, asked = self.account, self.asked
        counts = [budget.runs(asked) for budget in (account, *account.periods)]
        free = [self._free(database, period, now) for period in account.periods]
        never = counts[0] == 0 or None in free
        return AgentForecast(
            agent=account.agent,
            runs=min((count for count in counts if count is not None), default=None),
            in_all=counts[0],
            per={p.per: replace(p, total=0).runs(asked) for p in account.periods},
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
    asked = database.execute("SELECT * FROM accounts WHERE agent = ?", (agent,))
    row: AccountRow | None = asked.fetchone()
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
            asked = amount(requested[agent], account.protected) ** 2
        except BudgetError as error:
            wrong[agent] = str(error)
        else:
            standing.append(Standing(account=account, charge=requested[agent], asked=asked))
    return standing, wrong
