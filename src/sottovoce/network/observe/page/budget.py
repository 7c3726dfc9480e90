"""What the run costs every agent, and what is left of its lifetime budget, for the page."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, final

import numpy as np

from sottovoce.errors import SottovoceError
from sottovoce.privacy.ledger import Account, Ledger
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.statement import down, up

SECONDS: Final = 60.0
"""The ledger is read again after this time: another run may spend from it too."""

LISTED: Final = 100
"""Agents listed: those that have the least left, or spend the most."""

DIGITS: Final = 5


@final
class Budget:
    """The figures of a plan and of a ledger, the latter read in a thread and not too often.

    Args:
        plan: what the run costs.
        ledger: the accounts, if there are any.
    """

    def __init__(self, plan: NoisePlan, ledger: Ledger | None) -> None:
        self._plan = plan
        self._ledger = ledger
        self._lines: dict[str, Any] = {}
        self._read = -np.inf

    async def lines(self) -> dict[str, Any]:
        """Return the table: figures as text, spent rounded up and remaining down."""
        if time.monotonic() - self._read > SECONDS:
            self._read = time.monotonic()
            self._lines = await asyncio.to_thread(self._made)
        return self._lines

    def _made(self) -> dict[str, Any]:
        cloud, mu = self._plan.cloud, self._plan.gdp_mu
        found = {"ledger": self._ledger is not None, "trouble": "", "agents": cloud.agents}
        accounts: dict[str, Account] = {}
        if self._ledger is not None:
            try:
                accounts = {account.agent: account for account in self._ledger.accounts()}
            except SottovoceError as error:
                found["trouble"] = str(error)
        left = np.ones(cloud.agents)
        for place, name in enumerate(cloud.agent_labels() if accounts else ()):
            if name in accounts:
                left[place] = accounts[name].remaining / accounts[name].budget
        listed = np.lexsort((-mu, left))[:LISTED].tolist()
        found_at = [cloud.locate(place + 1) for place in listed]
        names = [cloud.groups[index].label(own) for index, own in found_at]
        rows = [
            _line(name, float(mu[place]), accounts.get(name))
            for place, name in zip(listed, names, strict=True)
        ]
        return found | {"rows": rows}


def _line(name: str, mu: float, account: Account | None) -> dict[str, Any]:
    line: dict[str, Any] = {"agent": name, "run": up(mu, DIGITS)}
    if account is None:
        return line
    return line | {
        "protects": str(account.protected),
        "granted": up(account.budget, DIGITS),
        "spent": up(account.spent, DIGITS),
        "remaining": down(account.remaining, DIGITS),
        "share": min(1.0, account.spent / account.budget),
    }
