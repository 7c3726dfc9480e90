"""Public costs of 5,000 cars over 24 hours: what a round takes and what privacy costs.

Private needs; epsilon 1, delta 1e-5, an offset of 1 kW hidden; 500 rounds, 4 runs. Times are CPU
seconds, the ratio to constraints alone is the least of three turns. A bar: within 1% of the cost.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import sottovoce as sv
from sottovoce.problem.gallery import NETWORKS

CARS, ROUNDS, RUNS, TURNS = 5_000, 500, 4, 3
HIDE = sv.Offset(radius=1.0, rounds=ROUNDS)


def run() -> list[dict[str, Any]]:
    """A row per kind of network."""
    problems = {k: sv.gallery.smart_charging(CARS, network=k) for k in NETWORKS}
    plans = {k: sv.plan(p, epsilon=1, delta=1e-5, hide=HIDE) for k, p in problems.items()}
    for problem in problems.values():
        sv.reference_optimum(problem)  # known, it takes no time of a simulation
    times: dict[str, list[float]] = {k: [] for k in problems}
    for _ in range(TURNS):
        for k, problem in problems.items():
            began = time.process_time()
            sv.simulate(problem, plans[k], record=[], runs=RUNS, progress=False)
            times[k].append(time.process_time() - began)
    return [_row(k, problems[k], plans[k], times) for k in problems]


def _row(
    name: str, problem: sv.Problem, plan: Any, times: dict[str, list[float]]
) -> dict[str, Any]:
    best = sv.reference_optimum(problem)
    answers = sv.simulate(problem, plan, record=[], runs=RUNS, progress=False).x
    cost = np.mean([problem.evaluate(x).objective for x in answers]) - best.objective
    start = problem.evaluate(np.zeros(problem.size)).objective  # of the homes alone
    ratios = np.array(times[name]) / np.array(times["capacity"])
    return {
        "network": name,
        "ms a round": 1e3 * min(times[name]) / (RUNS * ROUNDS),
        "over constraints": float(ratios.min()),
        "least cost": f"{best.objective:,.1f}",
        "cost above it": f"{100 * cost / best.objective:.1g}%",
        "as a share of what cars add": f"{100 * cost / (best.objective - start):.1g}%",
    }
