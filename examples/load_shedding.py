"""Shed load in many buildings for four hours, without asking any of them what it can do without.

The grid's operator needs so many MW in each hour. A building sheds up to 40 kW, at a discomfort
that only it knows, and no more than its own energy in all hours together: a private row.
"""

import numpy as np

import sottovoce as sv

ASKED = np.array([9.0, 12.0, 12.0, 7.0])  # kW per building and hour
ROUNDS = 60


def shedding(buildings: int) -> sv.Problem:
    """Return a problem of so many buildings; discomfort and energy are drawn."""
    rng = np.random.default_rng(0)
    building = sv.fleet(
        buildings, dim=4, lower=0.0, upper=40.0, name="building",
        parameters={
            "discomfort": rng.lognormal(0.0, 0.6, buildings),
            "energy": rng.uniform(30.0, 100.0, buildings),
        },
    )  # fmt: skip
    shed = building.state
    return sv.Problem(
        states=building,
        objectives=building.parameter("discomfort") * sum(0.01 * s**2 for s in shed),
        constraints=[sv.total(building, shed) >= ASKED * buildings],
        local=[sum(shed) <= building.parameter("energy")],
    )


for buildings in (30, 300, 3_000):
    problem = shedding(buildings)
    best = sv.saddle_point(problem)
    hide = sv.Everything(rounds=ROUNDS)
    plan = sv.plan(sv.certify(problem.cloud), epsilon=1.0, delta=1e-5, hide=hide)
    result = sv.solve(problem, plan, rounds=ROUNDS, runs=16, saddle=(best.x, best.mu))
    total = result.x.reshape(16, buildings, 4).sum(axis=1) / (ASKED * buildings)
    noise = max(plan.sigma / (ASKED * buildings)) / np.sqrt(ROUNDS)
    print(f"{buildings:5,} buildings: noise {noise:6.1%}, least shed of what was asked "
          f"{np.median(total.min(axis=1)):.1%}")  # fmt: skip
