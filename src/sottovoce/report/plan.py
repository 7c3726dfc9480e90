"""A noise plan as data for scripts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from sottovoce.privacy.gaussian import attacker
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.statement import feasibility_data, not_covered
from sottovoce.privacy.trust import WORDS

_AGENTS = 10_000


def plan_data(plan: NoisePlan) -> dict[str, Any]:
    """Return a plan as plain data; of more than 10,000 agents only the worst off is listed."""
    agents = range(1, plan.cloud.agents + 1)
    if plan.cloud.agents > _AGENTS:
        agents = range(int(np.argmax(plan.gdp_mu)) + 1, int(np.argmax(plan.gdp_mu)) + 2)
    guarantees = [plan.guarantee(agent) for agent in agents]
    return {
        "method": plan.method,
        "hide": plan.hide.kind,
        "trust": {
            "kind": plan.trust.kind,
            "words": WORDS[plan.trust.kind],
            "views": {v.name: float(plan.mu_seen_by(v.name).max()) for v in plan.trust.views},
        },
        "rounds": plan.rounds,
        "certified": plan.certified,
        "feasible": None if plan.feasible is None else feasibility_data(plan.feasible),
        "outputs": [
            asdict(output) | {"released_sigma": float(released)}
            for output, released in zip(plan.outputs, plan.released_sigma, strict=True)
        ],
        "agents": [
            {
                "agent": g.agent,
                "name": g.name,
                "radius": plan.radius(g.agent),
                "gdp_mu": g.gdp_mu,
                "epsilon": g.epsilon,
                "delta": g.delta,
                "hidden": g.hidden,
                "attacker_advantage": attacker(g.gdp_mu).advantage,
            }
            for g in guarantees
        ],
        "not_covered": not_covered(plan),
        "fingerprint": plan.fingerprint,
    }
