"""Charge a fleet of cars with private energy needs and parking times.

A car must have its energy when it leaves: a private equality over its hours, inside a private time
window. Public are the limit of 22 kW per car and the capacity of the network.
"""

import numpy as np

import sottovoce as sv

ROUNDS = 60
PER_CAR = 1.55  # kW of network capacity per car
HOURS = 8  # of the night, from 22:00


def charging(cars: int) -> sv.Problem:
    """Return a problem with the given number of cars and random needs, connectors and windows."""
    rng = np.random.default_rng(0)
    connector = rng.choice([3.7, 7.4, 11.0, 22.0], cars, p=[0.15, 0.45, 0.3, 0.1])
    come, leave = rng.integers(0, 3, cars), rng.integers(6, HOURS + 1, cars)
    hour = np.arange(HOURS)
    parked = (hour >= come[:, np.newaxis]) & (hour < leave[:, np.newaxis])
    need = np.minimum(rng.lognormal(np.log(9.0), 0.5, cars), 0.9 * connector * (leave - come))
    ev = sv.agents(
        cars, dim=HOURS, lower=0.0, upper=22.0, name="ev",
        parameters={"need": need, "window": connector[:, np.newaxis] * parked},
    )  # fmt: skip
    price = [0.10, 0.09, 0.08, 0.074, 0.07, 0.068, 0.07, 0.075]  # euro per kWh
    return sv.Problem(
        objectives=sum(p * x + 0.002 * x**2 for p, x in zip(price, ev.x, strict=True)),
        constraints=[sv.total(ev.x) <= np.full(HOURS, PER_CAR * cars)],
        local=[sum(ev.x) == ev["need"], ev.x <= ev["window"]],
    )


for cars in (200, 2_000, 20_000):
    problem = charging(cars)
    hide = sv.Everything(rounds=ROUNDS)
    try:
        plan = sv.plan(sv.certify(problem.cloud), epsilon=1.0, delta=1e-6, hide=hide, feasible=0.95)
    except sv.errors.PrivacyError as refused:
        print(f"{cars:6,} cars: refused, {str(refused).partition(':')[0]}")
        continue
    result = sv.simulate(problem, plan, rounds=ROUNDS)
    assert plan.feasible is not None
    assert result.confirmed is not None
    power = result.x[0].reshape(cars, HOURS).sum(axis=0) / (PER_CAR * cars)
    print(f"{cars:6,} cars: margin {plan.feasible.margin.max() / (PER_CAR * cars):.1%}, "
          f"confirmed: {result.confirmed[0]}, "
          f"busiest hour {power.max():.1%} of the network")  # fmt: skip
