"""Constraints that mix agents: which gradient entries must be released, and with what noise."""

import sottovoce as sv

x = sv.states(3, lower=-2, upper=2, names=["pump", "valve", "tank"])
pump, valve, tank = x
problem = sv.Problem(
    states=x,
    objectives=[(pump - 1) ** 2, (valve + 1) ** 2, (tank - 2) ** 2],
    constraints={
        "pressure": (pump + 10 * valve) ** 2 <= 30,
        "level": sv.logsumexp(pump, tank) <= 1.5,
    },
)
certificate = sv.certify(problem)
for entry in certificate.gradients:
    print(f"row {entry.row + 1}, component {entry.column + 1}: {entry.kind:<9} {entry.formula}")
plan = sv.plan(certificate, epsilon=1.0, delta=1e-5, radius=0.1)
print("noise on g:", plan.sigma_g.round(3))
print("noise on released gradients:", plan.gradient_sigma.round(3))
print(plan.guarantee(agent=1))
