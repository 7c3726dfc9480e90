"""What the run costs every agent, and what is left of its lifetime budget, for the page."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, final

import numpy as np

from sottovoce.errors import SottovoceError
from sottovoce.privacy.figures import down, up
from sottovoce.privacy.ledger import Account, Ledger
from sottovoce.privacy.plan import NoisePlan

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
        self._ledger = ledger
        self._cost = dict(zip(plan.cloud.agent_labels(), plan.gdp_mu.tolist(), strict=True))
        self._lines: dict[str, Any] = {}
        self._read = -np.inf

    async def lines(self) -> dict[str, Any]:
        """Return the table: figures as text, spent rounded up and remaining down."""
        if time.monotonic() - self._read > SECONDS:
            self._read = time.monotonic()
            self._lines = await asyncio.to_thread(self._made)
        return self._lines

    def _made(self) -> dict[str, Any]:
        found = {"ledger": self._ledger is not None, "trouble": "", "agents": len(self._cost)}
        try:
            accounts = () if self._ledger is None else self._ledger.accounts()
        except SottovoceError as error:
            accounts, found["trouble"] = (), str(error)
        by_name = {account.agent: account for account in accounts}
        lines = [(name, mu, by_name.get(name)) for name, mu in self._cost.items()]
        lines.sort(key=lambda line: (_left(line[2]), -line[1]))
        return found | {"rows": [_line(*line) for line in lines[:LISTED]]}


def _left(account: Account | None) -> float:
    return 1.0 if account is None else account.remaining / account.budget


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
