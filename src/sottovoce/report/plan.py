"""A noise plan as data for scripts."""

from __future__ import annotations

from typing import Any

import numpy as np

from sottovoce.privacy.gaussian import attacker
from sottovoce.privacy.plan import NoisePlan
from sottovoce.privacy.statement import NOT_COVERED, readings

_AGENTS = 10_000


def plan_data(plan: NoisePlan) -> dict[str, Any]:
    """Return a plan as plain data.

    ``sigma_gradient[i][j][c]`` is the noise on ``d g_j / d x_i[c]``, 0 where nothing is sent. For
    fleets of more than 10,000 agents only the worst-off agent is listed.
    """
    agents = range(1, plan.cloud.agents + 1)
    if plan.cloud.agents > _AGENTS:
        agents = range(int(np.argmax(plan.gdp_mu)) + 1, int(np.argmax(plan.gdp_mu)) + 2)
    guarantees = [plan.guarantee(agent) for agent in agents]
    return {
        "method": plan.method,
        "adjacency": plan.adjacency,
        "rounds": plan.rounds,
        "certified": plan.certified,
        "radius": plan.radius if plan.cloud.agents <= _AGENTS else float(plan.radius.max()),
        "sigma_g": plan.sigma_g,
        "sigma_gradient": _gradient(plan),
        "agents": [
            {
                "agent": g.agent,
                "name": g.name,
                "gdp_mu": g.gdp_mu,
                "epsilon": g.epsilon,
                "delta": g.delta,
                "hidden": g.hidden,
                "attacker_advantage": attacker(g.gdp_mu).advantage,
            }
            for g in guarantees
        ],
        "readings": readings(plan),
        "not_covered": NOT_COVERED,
        "fingerprint": plan.fingerprint,
    }


def _gradient(plan: NoisePlan) -> list[Any]:
    if plan.gradient_sigma.size == 0 and plan.cloud.agents > _AGENTS:
        return []
    matrix = np.zeros((plan.cloud.rows, plan.cloud.size))
    matrix[plan.gradient_rows, plan.gradient_columns] = plan.gradient_sigma
    dims = [group.dim for group in plan.cloud.groups for _ in range(group.count)]
    return np.split(matrix, np.cumsum(dims)[:-1], axis=1)
