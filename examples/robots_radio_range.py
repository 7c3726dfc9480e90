"""Robots with private target positions stay in radio range of each other.

Five robots form a chain. Neighbours must stay within 40 m: a disc for the difference of two
positions, so two sums for each pair.
"""

from itertools import pairwise

import numpy as np

import sottovoce as sv

RANGE = 40.0  # metres
WISHES = np.array([[-90.0, 20.0], [-30.0, -35.0], [10.0, 40.0], [55.0, -20.0], [95.0, 30.0]])
ROUNDS = 2_000
RUNS = 64

robots = sv.agents(["ant", "bee", "cat", "dog", "elk"], dim=2, lower=-100, upper=100)
problem = sv.Problem(
    objectives=[
        0.01 * ((r[0] - a) ** 2 + (r[1] - b) ** 2) for r, (a, b) in zip(robots, WISHES, strict=True)
    ],
    constraints=[(p[0] - q[0]) ** 2 + (p[1] - q[1]) ** 2 <= RANGE**2 for p, q in pairwise(robots)],
)
best = sv.reference_optimum(problem)
certificate = sv.certify(problem)
print("sums:", problem.cloud.sums.count)

choices: dict[str, sv.Trajectory | sv.Offset | sv.Everything] = {
    "a trajectory of 20 m": sv.Trajectory(radius=20.0, rounds=ROUNDS),
    "an offset of 1 m": sv.Offset(radius=1.0, rounds=ROUNDS),
    "an offset of 10 m": sv.Offset(radius=10.0, rounds=ROUNDS),
}
for name, hide in choices.items():
    try:
        plan = sv.plan(certificate, epsilon=1.0, delta=1e-3, hide=hide, feasible=0.95)
    except sv.errors.PrivacyError as refused:
        print(f"{name}: refused, {str(refused).partition(':')[0]}")
        continue
    result = sv.simulate(problem, plan, rounds=ROUNDS, runs=RUNS)
    assert result.confirmed is not None
    position = result.x.reshape(-1, 5, 2)
    distance = np.linalg.norm(np.diff(position, axis=1), axis=2).max(axis=1)
    error = np.linalg.norm(position - best.x.reshape(5, 2), axis=2)
    print(f"{name}: {np.sum(result.confirmed)} of {RUNS} answers confirmed, "
          f"{np.sum(distance > RANGE)} out of range; largest distance {np.median(distance):.1f} m, "
          f"robots {error.mean():.1f} m from the optimum")  # fmt: skip
