"""The example of the README."""

import math

import sottovoce as sv

x = sv.agents(["mill", "hill", "dam"], lower=-10, upper=10)
problem = sv.Problem(
    objectives=[(x[0] - 9) ** 2, (x[1] + 4) ** 4, (x[2] - 1) ** 2],
    constraints=[sv.total(x) <= 3, x[1] ** 2 + x[2] ** 2 <= 20],
)
plan = sv.plan(
    problem, epsilon=math.log(3), delta=0.05, hide=sv.Trajectory(radius=1.0, rounds=2_000)
)
print("noise on each sum, at least:", [math.floor(100 * s) / 100 for s in plan.sigma])
print("optimum:", sv.reference_optimum(problem).x.round(3))
print("after 2,000 rounds:", sv.simulate(problem, plan).x[0].round(3))
print("asymptotic error of 2,000 releases:", round(sv.accuracy_limit(problem, plan).x, 2))
print(plan.guarantee(agent="hill"))
