"""Constraints that mix agents: the sums that they become, and the noise on each sum."""

import sottovoce as sv

x = sv.agents(["pump", "valve", "tank"], lower=-2, upper=2)
pump, valve, tank = x
problem = sv.Problem(
    objectives=[(pump - 1) ** 2, (valve + 1) ** 2, (tank - 2) ** 2],
    constraints={
        "pressure": (pump + 10 * valve) ** 2 + tank**2 <= 30,
        "level": sv.logsumexp(pump, tank) <= 1.5,
        "balance": pump + valve + tank == 0.5,
    },
)
for origin in problem.cloud.sums.origins:
    print(f"{origin.name}: {origin.how}")
plan = sv.plan(problem, epsilon=1.0, delta=1e-5, hide=sv.Trajectory(radius=0.1, rounds=2_000))
for output in plan.outputs:
    print(f"noise on the {output.kind} {output.name}: {output.sigma:.3g}")
print("optimum:", sv.reference_optimum(problem).x.round(3))
print("accuracy that 2,000 rounds allow:", round(sv.accuracy_limit(problem, plan).x, 4))
print(plan.guarantee(agent=0))
