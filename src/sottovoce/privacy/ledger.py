"""What every agent has spent of its lifetime budget, across runs, restarts and crashes.

Gaussian-DP composes exactly: after runs with parameters mu_1, ..., mu_k an agent has spent

    mu = sqrt(mu_1^2 + ... + mu_k^2),

also when later runs were chosen after seeing earlier ones. The ledger holds the sum as an integer:
mu_j is rounded up to a multiple of 2^-100 (which every double above 1e-14 already is) and squared
without error, so sums neither depend on their order nor lose anything, and an agent may spend its
budget to the last bit and no further.

The file is SQLite in WAL mode with synchronous=FULL. A spend is one IMMEDIATE transaction: two
processes are served one after the other, and a process killed at any instant leaves either all of a
spend or nothing. `spend` returns only after the commit is on disk; release afterwards, and the
ledger can be ahead of what was released, never behind. It must lie on a local disk (WAL needs one).
"""

from __future__ import annotations

import math
import os
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from sottovoce.errors import BudgetError, InputError, PrivacyError
from sottovoce.privacy.gaussian import LARGEST, mu_of

BITS: Final = 100
"""Binary places of mu in the exact sums."""

PATIENCE: Final = 60.0
"""Seconds to wait while another process writes."""

APPLICATION: Final = int.from_bytes(b"svlg")
SCHEMA: Final = 1

# spent: the exact sum of the squares in units of 4^-BITS, hexadecimal
TABLES: Final = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {SCHEMA};
CREATE TABLE accounts (
    agent TEXT PRIMARY KEY,
    epsilon REAL NOT NULL,
    delta REAL NOT NULL,
    budget REAL NOT NULL,
    spent TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE runs (
    number INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    note TEXT NOT NULL,
    at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now'))
);
CREATE TABLE spends (
    number INTEGER NOT NULL REFERENCES runs,
    agent TEXT NOT NULL REFERENCES accounts,
    mu REAL NOT NULL,
    PRIMARY KEY (number, agent)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One agent's lifetime budget; spent is rounded up and remaining down.

    Attributes:
        agent: its name.
        epsilon: of the lifetime budget.
        delta: of the lifetime budget.
        budget: the largest Gaussian-DP parameter that gives (epsilon, delta).
        spent: Gaussian-DP parameter of all runs so far together.
        remaining: the largest Gaussian-DP parameter that one more run may have.
    """

    agent: str
    epsilon: float
    delta: float
    budget: float
    spent: float
    remaining: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """One agent's part in one run, as recorded.

    Attributes:
        run_id: the run's name.
        agent: the agent's name.
        mu: Gaussian-DP parameter of the run for this agent.
        note: what the caller wrote down.
        at: when it was recorded, UTC, ISO 8601.
    """

    run_id: str
    agent: str
    mu: float
    note: str
    at: str


@final
class Ledger:
    """The accounts in one file, which is created (readable by its owner only) if missing.

    Safe to share between threads, processes and forks: every call opens the file anew.

    Args:
        path: the file, in a directory that exists.

    Raises:
        PrivacyError: the file is damaged, of another version or not a ledger. It is left untouched.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.exists():
            _create(self.path)
        with self._transaction("DEFERRED") as database:
            faults = database.execute("PRAGMA quick_check(1)").fetchone()[0]
            if faults != "ok":
                raise PrivacyError(f"ledger {self.path} is damaged: {faults}; restore a backup")

    def grant(self, agents: str | Iterable[str], epsilon: float, delta: float) -> None:
        """Set the lifetime budget of one agent or of several.

        budget = mu_of(epsilon, delta)

        Granting again replaces the budget; what was spent stays spent.

        Raises:
            BudgetError: an agent has already spent more than that. Nothing is changed.
        """
        budget = float(mu_of(epsilon, delta))
        names = [_named(agent) for agent in ([agents] if isinstance(agents, str) else agents)]
        with self._transaction("IMMEDIATE") as database:
            for agent in names:
                spent = _spent(database, agent)
                if spent is not None and spent > _square_down(budget):
                    raise BudgetError(
                        f"the budget of agent {agent!r} must cover what is already spent, "
                        f"got mu={budget!r}, spent mu={_root_up(spent)!r}: grant more"
                    )
            database.executemany(
                "INSERT INTO accounts VALUES (?, ?, ?, ?, '0') ON CONFLICT (agent) DO UPDATE SET "
                "epsilon = excluded.epsilon, delta = excluded.delta, budget = excluded.budget",
                [(agent, epsilon, delta, budget) for agent in names],
            )

    def spend(self, run_id: str, amounts: Mapping[str, float], note: str = "") -> None:
        """Record what a run will cost each of its agents, or refuse; call it BEFORE the release.

        sum_j mu_j^2 + mu^2 <= budget^2    for every agent

        The same run_id with the same amounts is the same run, restarted: it is not charged again.
        So a run_id must never be reused for fresh noise.

        Args:
            run_id: names the run, for ever.
            amounts: Gaussian-DP parameter mu of the whole run, by agent.
            note: kept in the history.

        Raises:
            BudgetError: an agent has no budget or too little left, or run_id is known with other
                amounts. Nothing is recorded for any agent.
        """
        asked = {_named(agent): _amount(agent, mu) for agent, mu in amounts.items()}
        if not run_id or not asked:
            raise InputError("a spend must have a run_id and at least one agent")
        with self._transaction("IMMEDIATE") as database:
            recorded = _recorded(database, run_id)
            if recorded == asked:
                return
            if recorded is not None:
                raise BudgetError(
                    f"run {run_id!r} is already recorded with other agents or amounts: "
                    "a different run needs another run_id"
                )
            totals = _totals(database, asked)
            number = database.execute(
                "INSERT INTO runs (run_id, note) VALUES (?, ?)", (run_id, note)
            ).lastrowid
            database.executemany(
                "INSERT INTO spends VALUES (?, ?, ?)",
                [(number, agent, mu) for agent, mu in asked.items()],
            )
            database.executemany(
                "UPDATE accounts SET spent = ? WHERE agent = ?",
                [(f"{total:x}", agent) for agent, total in totals.items()],
            )

    def account(self, agent: str) -> Account:
        """Return one agent's account.

        Raises:
            BudgetError: no budget was ever granted to it.
        """
        with self._transaction("DEFERRED") as database:
            row = database.execute("SELECT * FROM accounts WHERE agent = ?", (agent,)).fetchone()
        if row is None:
            raise BudgetError(_no_budget(agent))
        return _account(row)

    def accounts(self) -> tuple[Account, ...]:
        """Return all accounts, by name."""
        with self._transaction("DEFERRED") as database:
            return tuple(map(_account, database.execute("SELECT * FROM accounts ORDER BY agent")))

    def spent(self, agent: str) -> float:
        """Return the Gaussian-DP parameter of all the agent's runs together, rounded up."""
        return self.account(agent).spent

    def remaining(self, agent: str) -> float:
        """Return the largest Gaussian-DP parameter one more run may have, rounded down.

        sqrt(budget^2 - sum_j mu_j^2)
        """
        return self.account(agent).remaining

    def history(self) -> tuple[Spend, ...]:
        """Return everything ever recorded, in order."""
        with self._transaction("DEFERRED") as database:
            rows = database.execute(
                "SELECT run_id, agent, mu, note, at FROM spends JOIN runs USING (number) "
                "ORDER BY number, agent"
            ).fetchall()
        return tuple(Spend(run_id=r, agent=a, mu=m, note=n, at=t) for r, a, m, n, t in rows)

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[sqlite3.Connection]:
        """Commit what the body did; if it raises, closing the file undoes all of it."""
        try:
            # mode=rw: a ledger that vanished must not come back empty
            address = f"{self.path.absolute().as_uri()}?mode=rw"
            with closing(_connect(address)) as database:
                database.execute(f"BEGIN {kind}")
                _check_version(database, self.path)
                yield database
                database.execute("COMMIT")
        except sqlite3.Error as error:
            raise PrivacyError(
                f"ledger {self.path} cannot be used ({error}); nothing may be released without it"
            ) from error


def _connect(address: str) -> sqlite3.Connection:
    database = sqlite3.connect(address, uri=True, timeout=PATIENCE, isolation_level=None)
    database.execute("PRAGMA synchronous = FULL")
    database.execute("PRAGMA foreign_keys = ON")
    return database


def _create(path: Path) -> None:
    """Make an empty ledger beside path and link it into place whole, or not at all."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    except OSError as error:
        raise InputError(f"ledger {path} cannot be created: {error.strerror}") from error
    os.close(handle)
    try:
        with closing(_connect(Path(name).absolute().as_uri())) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.executescript(f"BEGIN; {TABLES} COMMIT;")
        try:
            os.link(name, path)
        except FileExistsError:
            return  # another process was faster
        directory = os.open(path.parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
    finally:
        Path(name).unlink()


def _check_version(database: sqlite3.Connection, path: Path) -> None:
    application = database.execute("PRAGMA application_id").fetchone()[0]
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION:
        raise PrivacyError(f"{path} is not a ledger: restore it or choose another file")
    if version != SCHEMA:
        raise PrivacyError(
            f"ledger {path} must have schema version {SCHEMA}, got {version}: "
            "use the release of sottovoce that wrote it"
        )


def _spent(database: sqlite3.Connection, agent: str) -> int | None:
    row = database.execute("SELECT spent FROM accounts WHERE agent = ?", (agent,)).fetchone()
    return None if row is None else int(row[0], 16)


def _recorded(database: sqlite3.Connection, run_id: str) -> dict[str, float] | None:
    run = database.execute("SELECT number FROM runs WHERE run_id = ?", (run_id,)).fetchone()
    if run is None:
        return None
    return dict(database.execute("SELECT agent, mu FROM spends WHERE number = ?", run).fetchall())


def _totals(database: sqlite3.Connection, asked: Mapping[str, float]) -> dict[str, int]:
    """Return every agent's new exact total, or refuse, naming the first agent in the way."""
    totals, refusals = {}, []
    for agent, mu in asked.items():
        row = database.execute("SELECT * FROM accounts WHERE agent = ?", (agent,)).fetchone()
        if row is None:
            refusals.append(_no_budget(agent))
            continue
        *_, budget, spent = row
        totals[agent] = int(spent, 16) + _square_up(mu)
        if totals[agent] > _square_down(budget):
            account = _account(row)
            refusals.append(
                f"agent {agent!r} would exceed its lifetime budget of mu={account.budget!r}: "
                f"spent {account.spent!r}, asked {mu!r}, remaining {account.remaining!r}"
            )
    if refusals:
        others = f" (and {len(refusals) - 1} more agents)" if len(refusals) > 1 else ""
        raise BudgetError(f"{refusals[0]}{others}; nothing was recorded")
    return totals


def _account(row: tuple[str, float, float, float, str]) -> Account:
    agent, epsilon, delta, budget, spent = row
    total = int(spent, 16)
    return Account(
        agent=agent,
        epsilon=epsilon,
        delta=delta,
        budget=budget,
        spent=_root_up(total),
        remaining=_root_down(_square_down(budget) - total),
    )


def _no_budget(agent: str) -> str:
    return f"agent {agent!r} has no budget granted: grant one first"


def _named(agent: str) -> str:
    if not isinstance(agent, str) or not agent:
        raise InputError(f"an agent's name must be a non-empty string, got {agent!r}")
    return agent


def _amount(agent: str, mu: float) -> float:
    if not 0 <= mu <= LARGEST:  # refuses NaN too
        raise InputError(f"mu of agent {agent!r} must lie in [0, {LARGEST:g}], got mu={mu!r}")
    return float(mu)


def _square_up(mu: float) -> int:
    """Return mu^2 in units of 4^-BITS, mu being rounded up to a multiple of 2^-BITS."""
    return math.ceil(math.ldexp(mu, BITS)) ** 2


def _square_down(mu: float) -> int:
    return math.floor(math.ldexp(mu, BITS)) ** 2


def _root_up(total: int) -> float:
    """Return the least double whose square is at least total."""
    root = math.isqrt(total)
    root += root * root < total
    value = math.ldexp(root, -BITS)
    return value if math.ldexp(value, BITS) >= root else math.nextafter(value, math.inf)


def _root_down(total: int) -> float:
    root = math.isqrt(total)
    value = math.ldexp(root, -BITS)
    return value if math.ldexp(value, BITS) <= root else math.nextafter(value, 0.0)
