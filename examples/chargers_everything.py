"""Hide everything about each of 100,000 chargers cheaply: noise does not grow with the fleet.

Under ``sv.Everything`` ANY two behaviours of a charger within its box are adjacent, so its plan,
its start, its owner's objective and the data behind it are hidden. The noise is proportional to the
range of one charger, so it matters less the larger the fleet.
"""

import numpy as np

import sottovoce as sv
from sottovoce.privacy.noise_plan import NoisePlan

ROUNDS = 100
FLEET = 100_000


def planned(n: int) -> tuple[sv.Problem, NoisePlan]:
    """Return n chargers that share a network, and a plan that hides everything about each."""
    problem = sv.gallery.chargers(n)
    certificate = sv.certify(problem.cloud)
    hide = sv.Everything(rounds=ROUNDS)
    return problem, sv.plan(certificate, epsilon=1.0, delta=1e-6, hide=hide)


problem, plan = planned(FLEET)
print(plan)

print(f"\nNoise against capacity, {FLEET:,} chargers, hour by hour from 17:00:")
capacity = -problem.constraints[0].offset
for hour, (kilowatt, sigma) in enumerate(zip(capacity, plan.sigma, strict=True)):
    one, all_ = sigma / kilowatt, sigma / kilowatt / np.sqrt(ROUNDS)
    print(f"  {(17 + hour) % 24:02d}:00  capacity {kilowatt / 1e3:5.0f} MW   noise of one round "
          f"{one:5.1%}   of the mean of {ROUNDS} rounds {all_:5.2%}")  # fmt: skip

print(f"\nWhat {ROUNDS} rounds allow at best (statistical limit), by size of the fleet:")
sizes = (50, 100, 200)
errors = []
for n in sizes:
    small, noise = planned(n)
    saddle = sv.reference_optimum(small)
    limit = sv.accuracy_limit(small, noise, ROUNDS, saddle=saddle)
    price, power = limit.price, limit.x / np.sqrt(n)
    errors.append((price * n, power * n))
    print(f"  {n:7,} chargers: prices of up to {saddle.mu.max():.4f} euro/kWh off by {price:.2g}, "
          f"each charger's plan by {power:.2g} kW: too few to hide among")  # fmt: skip
price, power = np.mean(errors, axis=0) / FLEET
print(f"  {FLEET:7,} chargers: prices off by {price:.2g}, each charger's plan by {power:.2g} kW, "
      "because the error falls as one over the size")  # fmt: skip
