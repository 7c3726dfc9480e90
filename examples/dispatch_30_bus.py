"""Economic dispatch of six generators with private costs on a 30-bus grid.

Buses, lines and costs are those of MATPOWER's case30: the network of Alsac and Stott (IEEE
Transactions on Power Apparatus and Systems 93, 1974), the generators of Ferrero, Shahidehpour and
Ramesh (IEEE Transactions on Power Systems 12, 1997). Flows are linear in the injections (DC power
flow): row ``l`` of the power transfer distribution factors (PTDF) belongs to line ``l``.
"""

import numpy as np

import sottovoce as sv

PEAK = 1.3  # an evening: load relative to the published one
LOAD = {  # bus: MW
    2: 21.7, 3: 2.4, 4: 7.6, 7: 22.8, 8: 30.0, 10: 5.8, 12: 11.2, 14: 6.2, 15: 8.2, 16: 3.5,
    17: 9.0, 18: 3.2, 19: 9.5, 20: 2.2, 21: 17.5, 23: 3.2, 24: 8.7, 26: 3.5, 29: 2.4, 30: 10.6,
}  # fmt: skip
GENERATORS = {  # bus: largest MW, and cost a p^2 + b p in $/h
    1: (80, 0.02, 2.0), 2: (80, 0.0175, 1.75), 22: (50, 0.0625, 1.0),
    27: (55, 0.00834, 3.25), 23: (30, 0.025, 3.0), 13: (40, 0.025, 3.0),
}  # fmt: skip
LINES = [  # from, to, reactance, rating in MW
    (1, 2, 0.06, 130), (1, 3, 0.19, 130), (2, 4, 0.17, 65), (3, 4, 0.04, 130), (2, 5, 0.2, 130),
    (2, 6, 0.18, 65), (4, 6, 0.04, 90), (5, 7, 0.12, 70), (6, 7, 0.08, 130), (6, 8, 0.04, 32),
    (6, 9, 0.21, 65), (6, 10, 0.56, 32), (9, 11, 0.21, 65), (9, 10, 0.11, 65),
    (4, 12, 0.26, 65), (12, 13, 0.14, 65), (12, 14, 0.26, 32), (12, 15, 0.13, 32),
    (12, 16, 0.2, 32), (14, 15, 0.2, 16), (16, 17, 0.19, 16), (15, 18, 0.22, 16),
    (18, 19, 0.13, 16), (19, 20, 0.07, 32), (10, 20, 0.21, 32), (10, 17, 0.08, 32),
    (10, 21, 0.07, 32), (10, 22, 0.15, 32), (21, 22, 0.02, 32), (15, 23, 0.2, 16),
    (22, 24, 0.18, 16), (23, 24, 0.27, 16), (24, 25, 0.33, 16), (25, 26, 0.38, 16),
    (25, 27, 0.21, 16), (28, 27, 0.4, 65), (27, 29, 0.42, 16), (27, 30, 0.6, 16),
    (29, 30, 0.45, 16), (8, 28, 0.2, 32), (6, 28, 0.06, 32),
]  # fmt: skip
ROUNDS = 2_000
RUNS = 64


def distribution_factors() -> np.ndarray:
    """Return ``H``: the flow over every line per MW fed in at every bus, taken out at bus 1."""
    ends = np.zeros((len(LINES), 30))
    for line, (a, b, _, _) in enumerate(LINES):
        ends[line, a - 1], ends[line, b - 1] = 1.0, -1.0
    flow = ends / np.array([reactance for _, _, reactance, _ in LINES])[:, np.newaxis]
    factors = np.zeros((len(LINES), 30))
    factors[:, 1:] = flow[:, 1:] @ np.linalg.inv((ends.T @ flow)[1:, 1:])
    return factors


factors = distribution_factors()
ptdf = factors[:, [bus - 1 for bus in GENERATORS]]
load_flow = factors[:, [bus - 1 for bus in LOAD]] @ (PEAK * np.array(list(LOAD.values())))
rating = np.array([line[3] for line in LINES], dtype=float)
capacity = np.array([mw for mw, _, _ in GENERATORS.values()], dtype=float)
demand = PEAK * sum(LOAD.values())

# A line that no output of the generators can overload needs no row, and no noise.
highest = np.maximum(ptdf, 0) @ capacity - load_flow
lowest = np.minimum(ptdf, 0) @ capacity - load_flow
critical = np.flatnonzero((highest > rating) | (lowest < -rating))

p = sv.agents([f"g{bus}" for bus in GENERATORS], lower=0, upper=capacity)
problem = sv.Problem(
    objectives=[a * s**2 + b * s for s, (_, a, b) in zip(p, GENERATORS.values(), strict=True)],
    constraints=[
        sum(p) == demand,
        *(abs(sum(ptdf[line] * p) - load_flow[line]) <= rating[line] for line in critical),
    ],
)
best = sv.reference_optimum(problem)
certificate = sv.certify(problem)
print(
    f"{demand:.1f} MW, {len(critical)} of {len(LINES)} lines can be overloaded, "
    f"{len(best.active) - 1} is full"
)
print("optimum:", best.x.round(2), f"MW for {best.objective:.2f} $/h")

choices: dict[str, sv.Trajectory | sv.Offset | sv.Everything] = {
    "a trajectory of 2 MW": sv.Trajectory(radius=2.0, rounds=ROUNDS),
    "an offset of 0.2 MW": sv.Offset(radius=0.2, rounds=ROUNDS),
    "everything": sv.Everything(rounds=ROUNDS),
}
for name, hide in choices.items():
    try:
        plan = sv.plan(certificate, epsilon=1.0, delta=1e-3, hide=hide, feasible=0.95)
    except sv.errors.PrivacyError as refused:
        print(f"{name}: refused, {str(refused).partition(':')[0]}")
        continue
    result = sv.simulate(problem, plan, rounds=ROUNDS, runs=RUNS)
    assert plan.feasible is not None
    assert result.confirmed is not None
    band = plan.feasible.band[0]
    imbalance = np.abs(result.x.sum(axis=1) - demand)
    loading = (np.abs(result.x @ ptdf.T - load_flow) / rating).max(axis=1)
    print(f"{name}: balance kept within {band:.1f} MW ({band / demand:.1%}), "
          f"{np.sum(result.confirmed)} of {RUNS} answers confirmed, "
          f"{np.sum((imbalance > band) | (loading > 1))} outside; "
          f"outputs off by {np.abs(result.x - best.x).mean():.2f} MW")  # fmt: skip
