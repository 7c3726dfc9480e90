"""What every agent has spent of its budgets, across runs, restarts and crashes.

An account protects one adjacency with a radius, and a run is charged in its terms (``charge``).
Gaussian-DP composes exactly: after runs charged with mu_1, ..., mu_k an agent has spent

    mu = sqrt(mu_1^2 + ... + mu_k^2),

also when later runs were chosen after seeing earlier ones, or ran at the same time
(docs/explanation/ledger.md). The ledger holds the sum as an integer: mu_j is rounded up to a
multiple of 2^-100 and squared without error, so sums neither depend on their order nor lose
anything, and an agent may spend its budget to the last bit and no further.

It is a file of SQLite (on a local disk: its write-ahead log needs one) or a schema of PostgreSQL. A
spend is one transaction: a process killed at any instant leaves either all of it or nothing.
`spend` and `begin` return only after the commit is on disk; release afterwards, and the ledger can
be ahead of what was released, never behind.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, final

from sottovoce.database import Database, address_of
from sottovoce.errors import BudgetError, InputError, PrivacyError
from sottovoce.privacy.adjacency import kind_of
from sottovoce.privacy.charge import Charge, Protected, amount, root_up, square_down
from sottovoce.privacy.fence import (
    Digests,
    Fence,
    create_ledger,
    ledger_transaction,
    require_fence,
)
from sottovoce.privacy.gaussian import gdp_mu_of
from sottovoce.privacy.standing import (
    Account,
    AgentForecast,
    account_of,
    account_row,
    accounts_now,
    charge_of,
    ledger_time,
    no_budget,
    per_of,
    standings,
    utc_text,
)

GRANT: Final = """
INSERT INTO accounts VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (agent) DO UPDATE SET
    hide = excluded.hide, radius = excluded.radius, epsilon = excluded.epsilon,
    delta = excluded.delta, budget = excluded.budget, spent = excluded.spent
"""
GRANT_PERIOD: Final = """
INSERT INTO periods VALUES (?, ?, ?, ?, ?) ON CONFLICT (agent, per) DO UPDATE SET
    epsilon = excluded.epsilon, delta = excluded.delta, budget = excluded.budget
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """One agent's part in one run, as recorded."""

    run_id: str
    charge: Charge  # in the run's own terms
    note: str
    at: str  # UTC, ISO 8601


@final
class Ledger:
    """The accounts in one database, created (a file readable by its owner only) if missing.

    Safe to share between threads, processes and forks: every call connects anew.

    Args:
        path: the file, in a directory that exists; or a URL of PostgreSQL.

    Raises:
        PrivacyError: it is damaged, of another version or not a ledger. It is left untouched.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.address = address_of("ledger", path)
        create_ledger(self.address)
        with ledger_transaction(self.address) as database:
            faults = database.faults()
        if faults:
            raise PrivacyError(f"ledger {self.address.name} is damaged: {faults}; restore a backup")

    def grant(
        self,
        agents: str | Iterable[str],
        epsilon: float,
        delta: float,
        *,
        hide: str,
        radius: float | None = None,
    ) -> None:
        """Set the lifetime budget of one agent or of several, and what it protects.

        budget = gdp_mu_of(epsilon, delta)

        Granting again replaces both; what was spent stays spent, and is charged anew from the
        history if another adjacency is to be protected. ``hide`` is "trajectory", "offset" or
        "everything", and ``radius`` how far apart two behaviours may be within a run.

        Raises:
            BudgetError: an agent has already spent more than that, or took part in a run that
                bounds nothing of what is to be protected. Nothing is changed.
        """
        budget = float(gdp_mu_of(epsilon, delta))
        protected, names = Protected(kind_of(hide), radius), _names(agents)
        with ledger_transaction(self.address, write=True) as database:
            totals = _charge_anew(database, names, protected)
            for agent, spent in totals.items():
                if spent > square_down(budget):
                    raise BudgetError(
                        f"the budget of agent {agent!r} must cover what is already spent, "
                        f"got mu={budget!r}, spent mu={root_up(spent)!r} for {protected}: grant "
                        "more"
                    )
            protection = (protected.hide, protected.radius)
            database.executemany(
                GRANT,
                [
                    (agent, *protection, epsilon, delta, budget, f"{totals[agent]:x}")
                    for agent in names
                ],
            )

    def grant_period(
        self, agents: str | Iterable[str], epsilon: float, delta: float, *, per: str
    ) -> None:
        """Set what all runs that begin within any ``per`` may spend together, beside the lifetime.

        ``per`` is "hour", "day", "week" or "30-days", and what is protected is that of the account.
        It holds from the next run on: granted lower than what the window has spent, it refuses
        runs until enough of them are older.

        Raises:
            BudgetError: an agent has no lifetime budget. Nothing is changed.
        """
        budget, names, period = float(gdp_mu_of(epsilon, delta)), _names(agents), per_of(per)
        with ledger_transaction(self.address, write=True) as database:
            for agent in names:
                if account_row(database, agent) is None:
                    raise BudgetError(
                        f"agent {agent!r} must have a lifetime budget beside one per {period}, got "
                        "none: grant one first"
                    )
            rows = [(agent, period, epsilon, delta, budget) for agent in names]
            database.executemany(GRANT_PERIOD, rows)

    def spend(self, run_id: str, charges: Iterable[Charge], note: str = "") -> None:
        """Record what a run will cost each of its agents, or refuse; call it BEFORE the release.

        sum_j mu_j^2 + mu^2 <= budget^2    for every agent, in its account's terms

        over its lifetime, and over the window of each of its budgets by period.

        The same run_id with the same charges is the same run, restarted: it is not charged again.
        So a run_id must never be reused for fresh noise; `begin` sees to that.

        Raises:
            InputError: an agent is charged twice.
            BudgetError: an agent has no budget or too little left, or protects what the run does
                not, or run_id is known with other charges. Nothing is recorded for any agent.
        """
        requested = _charge_by_agent(run_id, charges)
        with ledger_transaction(self.address, write=True) as database:
            _spend(database, run_id, requested, note)

    def begin(
        self,
        run_id: str,
        charges: Iterable[Charge],
        *,
        rounds: int,
        digest: Digests,
        note: str = "",
    ) -> Fence:
        """Spend, check the store of the run against its fence, and return the fence to raise.

        The store holds ``rounds`` rounds, with the digests that ``digest`` returns.

        Raises:
            BudgetError: as `spend`.
            RollbackError: the store is a copy or an old backup. Nothing is recorded.
            PrivacyError: the ledger does not know rounds that were released. Nothing is recorded.
        """
        requested = _charge_by_agent(run_id, charges)
        with ledger_transaction(self.address, write=True) as database:
            if _spend(database, run_id, requested, note) and rounds > 0:
                raise PrivacyError(
                    f"the ledger must know run {run_id!r}, which has released {rounds} rounds "
                    "already: use the ledger that it began with; a run that began without one "
                    "goes on without one, or anew with a new store"
                )
            require_fence(database, run_id, rounds, digest)
        return Fence(self.address, run_id, rounds, digest(rounds) or b"")

    def account(self, agent: str) -> Account:
        """Return one agent's account; refused if no budget was ever granted to it."""
        with ledger_transaction(self.address) as database:
            row = account_row(database, agent)
            if row is None:
                raise BudgetError(no_budget(agent))
            return accounts_now(database, {agent: row}, ledger_time(database))[agent]

    def accounts(self) -> tuple[Account, ...]:
        """Return all accounts, by name."""
        with ledger_transaction(self.address) as database:
            rows = database.execute("SELECT * FROM accounts ORDER BY agent").fetchall()
            by_agent = {row[0]: row for row in rows}
            return tuple(accounts_now(database, by_agent, ledger_time(database)).values())

    def forecast(self, charges: Iterable[Charge]) -> tuple[AgentForecast, ...]:
        """Return how many runs with these charges every agent can afford: who ends first, first."""
        requested = _charge_by_agent("forecast", charges)
        with ledger_transaction(self.address) as database:
            now = ledger_time(database)
            affordable, wrong = standings(database, requested, now)
            forecasts = [standing.forecast(database, now) for standing in affordable]
        none: dict[str, Any] = {"runs": 0, "in_all": 0, "per": {}, "next_at": None}
        forecasts += [AgentForecast(agent=a, refusal=words, **none) for a, words in wrong.items()]
        return tuple(sorted(forecasts, key=_ends))

    def unaffordable(self, charges: Iterable[Charge]) -> dict[str, str]:
        """Return why, by agent, a run with these charges would be refused for it now.

        A run of all others is admitted, unless another run spends from the same accounts first.
        """
        requested = _charge_by_agent("next run", charges)
        with ledger_transaction(self.address) as database:
            return _refusals(database, requested, ledger_time(database))[1]

    def spent(self, agent: str) -> float:
        """Return the Gaussian-DP parameter of all the agent's runs together, rounded up."""
        return self.account(agent).spent

    def remaining(self, agent: str) -> float:
        """Return the largest Gaussian-DP parameter one more run may have, rounded down.

        sqrt(budget^2 - sum_j mu_j^2), over the lifetime or the window with the least
        """
        account = self.account(agent)
        return min(account.remaining, *(p.remaining for p in account.periods), math.inf)

    def history(self) -> tuple[Spend, ...]:
        """Return everything ever recorded, in order."""
        with ledger_transaction(self.address) as database:
            rows = database.execute(
                "SELECT run_id, note, at, agent, hide, radius, mu, allowance "
                "FROM spends JOIN runs USING (number) ORDER BY number, agent"
            ).fetchall()
        return tuple(
            Spend(run_id=run, charge=charge_of(*row), note=note, at=at)
            for run, note, at, *row in rows
        )


def _charge_by_agent(run_id: str, charges: Iterable[Charge]) -> dict[str, Charge]:
    each = list(charges)
    if not run_id or not each:
        raise InputError("a spend must have a run_id and at least one agent")
    requested = {charge.agent: charge for charge in each}
    if len(requested) < len(each):
        agent = Counter(charge.agent for charge in each).most_common(1)[0][0]
        raise InputError(
            f"a run must charge every agent once, got {agent!r} twice: agents of one problem need "
            "different labels"
        )
    return requested


def _spend(database: Database, run_id: str, requested: dict[str, Charge], note: str) -> bool:
    """Record a run unless it is recorded already; return whether it is new."""
    recorded = _recorded_charges(database, run_id)
    if recorded == requested:
        return False
    if recorded is not None:
        raise BudgetError(
            f"run {run_id!r} is already recorded with other agents or amounts: "
            "a different run needs another run_id"
        )
    now = ledger_time(database)
    totals, refusals = _refusals(database, requested, now)
    if refusals:
        first, others = next(iter(refusals.values())), len(refusals) - 1
        more = f" (and {others} more agents)" if others else ""
        raise BudgetError(f"{first}{more}; nothing was recorded")
    (number,) = database.execute("SELECT coalesce(max(number), 0) + 1 FROM runs").fetchone()
    values = (number, run_id, note, utc_text(now), 0, b"")
    database.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?)", values)
    database.executemany(
        "INSERT INTO spends VALUES (?, ?, ?, ?, ?, ?)",
        [
            (number, c.agent, c.protected.hide, c.protected.radius, c.mu, c.allowance)
            for c in requested.values()
        ],
    )
    database.executemany(
        "UPDATE accounts SET spent = ? WHERE agent = ?",
        [(f"{total:x}", agent) for agent, total in totals.items()],
    )
    return True


def _recorded_charges(database: Database, run_id: str) -> dict[str, Charge] | None:
    run = database.execute("SELECT number FROM runs WHERE run_id = ?", (run_id,)).fetchone()
    if run is None:
        return None
    rows = database.execute(
        "SELECT agent, hide, radius, mu, allowance FROM spends WHERE number = ?", run
    )
    return {row[0]: charge_of(*row) for row in rows}


def _refusals(
    database: Database, requested: dict[str, Charge], now: int
) -> tuple[dict[str, int], dict[str, str]]:
    """Return every agent's new exact total, and by agent why the run is refused."""
    standing, words = standings(database, requested, now)
    totals = {s.account.agent: s.account.total + s.asked for s in standing}
    words |= {s.account.agent: s.refusal(database, now) for s in standing}
    return totals, {agent: words[agent] for agent in requested if words[agent]}


def _ends(forecast: AgentForecast) -> tuple[float, float, str]:
    """In which order agents end."""
    in_all, now = (math.inf if n is None else n for n in (forecast.in_all, forecast.runs))
    return in_all, now, forecast.agent


def _names(agents: str | Iterable[str]) -> list[str]:
    names = [agents] if isinstance(agents, str) else list(agents)
    for name in names:
        if not isinstance(name, str) or not name:
            raise InputError(f"an agent's name must be a non-empty string, got {name!r}")
    return names


def _charge_anew(database: Database, agents: list[str], protected: Protected) -> dict[str, int]:
    """Return what agents have spent in terms of what is to be protected from now on."""
    totals = dict.fromkeys(agents, 0)
    accounts = [account_of(row) for a in agents if (row := account_row(database, a)) is not None]
    totals |= {a.agent: a.total for a in accounts if a.protected == protected}
    changed = {account.agent for account in accounts if account.protected != protected}
    if changed:
        for row in database.execute("SELECT agent, hide, radius, mu, allowance FROM spends"):
            if row[0] in changed:
                totals[row[0]] += amount(charge_of(*row), protected) ** 2
    return totals
