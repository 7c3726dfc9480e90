"""What the page shows of a run: what it is, what is drawn of it, and what it costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from sottovoce.network.config import RunConfig
from sottovoce.network.observe.page.budget import Budget
from sottovoce.network.observe.page.limits import SHOWN, Limits
from sottovoce.network.observe.page.samples import POINTS, TICK_SECONDS, WINDOW, Samples
from sottovoce.privacy.ledger import Ledger
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.statement import down, promise

NAMED: Final = 200
"""Agents that the page calls by their names, one by one; a larger fleet goes by numbers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Show:
    """One run, as the page shows it.

    Attributes:
        about: what does not change: names, limits, the promise in words.
        samples: what is drawn.
        budget: what agents spend.
    """

    about: dict[str, Any]
    samples: Samples
    budget: Budget

    @classmethod
    def of(cls, plan: NoisePlan, config: RunConfig, ledger: Ledger | None) -> Show:
        """Return the page of a plan that is carried out."""
        limits = Limits(plan)
        return cls(
            about=_about(plan, config, limits),
            samples=Samples(limits),
            budget=Budget(plan, ledger),
        )


def _about(plan: NoisePlan, config: RunConfig, limits: Limits) -> dict[str, Any]:
    few = plan.cloud.agents <= NAMED
    return {
        "run": config.run_id,
        "rounds": config.rounds,
        "algorithm": config.algorithm["name"],
        "method": plan.method,
        "private": config.noise == "secure",
        "agents": plan.cloud.agents,
        "names": plan.cloud.agent_labels() if few else [],
        "prices": limits.prices[:SHOWN],
        "prices_in_all": len(limits.prices),
        "constraints": [
            asdict(row) | {"noise": None if row.sigma is None else down(row.sigma, 4)}
            for row in limits.shown
        ],
        "constraints_in_all": len(limits.all),
        "promise": promise(plan),
        "tick": TICK_SECONDS,
        "window": WINDOW,
        "points": POINTS,
    }
