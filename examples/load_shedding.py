"""Demand response: many buildings with private discomfort shed load for four hours.

The grid's operator needs a given reduction in each hour. A building sheds up to 40 kW, at a private
discomfort, and at most its private energy over all hours: a local constraint.
"""

import numpy as np

import sottovoce as sv

REQUEST = np.array([9.0, 12.0, 12.0, 7.0])  # kW per building and hour
ROUNDS = 60
RUNS = 16


def shedding(buildings: int) -> sv.Problem:
    """Return a problem with the given number of buildings and random discomfort and energy."""
    rng = np.random.default_rng(0)
    building = sv.agents(
        buildings, dim=4, lower=0.0, upper=40.0, name="building",
        parameters={
            "discomfort": rng.lognormal(0.0, 0.6, buildings),
            "energy": rng.uniform(30.0, 100.0, buildings),
        },
    )  # fmt: skip
    shed = building.x
    return sv.Problem(
        objectives=building["discomfort"] * sum(0.01 * s**2 for s in shed),
        constraints=[sv.total(shed) >= REQUEST * buildings],
        local=[sum(shed) <= building["energy"]],
    )


for buildings in (30, 300, 3_000):
    problem = shedding(buildings)
    best = sv.reference_optimum(problem)
    hide = sv.Everything(rounds=ROUNDS)
    try:
        plan = sv.plan(problem, epsilon=1.0, delta=1e-5, hide=hide, feasible=0.95)
    except sv.errors.PrivacyError as refused:
        print(f"{buildings:5,} buildings: refused, {str(refused).partition(':')[0]}")
        continue
    result = sv.simulate(problem, plan, runs=RUNS, saddle=(best.x, best.mu))
    assert result.confirmed is not None
    shed = result.x.reshape(RUNS, buildings, 4).sum(axis=1) / (REQUEST * buildings)
    increase = np.median(result.trace.objective[:, -1]) / best.objective - 1
    print(f"{buildings:5,} buildings: {np.sum(result.confirmed)} of {RUNS} answers confirmed, "
          f"{np.sum(shed.min(axis=1) < 1)} below the request; "
          f"least shed {np.median(shed.min(axis=1)):.1%}, discomfort {increase:+.1%}")  # fmt: skip
