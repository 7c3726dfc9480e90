"""State the paper's problem in ten lines, certify it, plan the noise, and print the guarantee."""

import math

import sottovoce as sv

x = sv.agents(7, lower=-10, upper=10)
problem = sv.Problem(
    objectives=[(x[0] - 9)**2 + x[0], (x[1] + 4)**4, (x[2] - 1)**8, x[3]**2 + x[3] + 6,
                (x[4] + 3)**6, (x[5] - 7)**2, (x[6] - 5)**2],
    constraints=[x[0] + x[1] + x[2] <= 3, x[4]**2 + x[5]**4/12 + x[6]**4/12 <= 20,
                 x[2]**2 + x[3] + x[5] <= 1, x[5]**2 + x[6]**2 <= 5],
)  # fmt: skip
certificate = sv.certify(problem)
saddle = sv.reference_optimum(problem)
plan = sv.plan(certificate, epsilon=math.log(3), delta=0.05, hide=sv.Trajectory(radius=1.0))

print("every assumption holds:", certificate.holds)
print("x-hat:", saddle.x.round(3), " mu-hat:", saddle.mu.round(4))
print(plan)
