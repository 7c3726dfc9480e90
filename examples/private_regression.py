"""Private lasso: estimate an effect in each of many clinics under one shared budget.

Clinic ``i`` regresses its patients' outcomes on their doses, ``f_i(t) = |a_i t - b_i|^2 / (2 m)``.
The budget ``sum_i |t_i| <= budget`` shrinks spurious effects. Its price is the penalty of a lasso
that all clinics share.
"""

import numpy as np

import sottovoce as sv

PATIENTS = 40
ROUNDS = 60
RUNS = 32


def clinics(n: int) -> sv.Problem:
    """Return n clinics, of which one in four has a true effect."""
    rng = np.random.default_rng(0)
    dose = rng.normal(size=(n, PATIENTS))
    effect = rng.choice([0.0, 0.0, 0.0, 1.0], size=n)
    outcome = dose * effect[:, np.newaxis] + 2.0 * rng.normal(size=(n, PATIENTS))
    moments = {"square": (dose**2).mean(axis=1), "product": (dose * outcome).mean(axis=1)}
    clinic = sv.agents(n, lower=-1.5, upper=1.5, name="clinic", parameters=moments)
    t = clinic.x
    return sv.Problem(
        objectives=clinic["square"] * t**2 / 2 - clinic["product"] * t,
        constraints={"budget": sv.total(abs(t)) <= 0.25 * n},
    )


for n in (50, 500, 5_000):
    problem = clinics(n)
    best = sv.reference_optimum(problem)
    hide = sv.Everything(rounds=ROUNDS)
    try:
        plan = sv.plan(problem, epsilon=1.0, delta=1e-5, hide=hide, feasible=0.95)
    except sv.errors.PrivacyError as refused:
        print(f"{n:5,} clinics: refused, {str(refused).partition(':')[0]}")
        continue
    result = sv.simulate(problem, plan, runs=RUNS, saddle=(best.x, best.mu))
    assert result.confirmed is not None
    used = np.abs(result.x).sum(axis=1) / (0.25 * n)
    print(f"{n:5,} clinics: {np.sum(result.confirmed)} of {RUNS} answers confirmed, "
          f"{np.sum(used > 1)} over the budget, of which {np.median(used):.0%} is used; "
          f"penalty {np.median(result.price):.2f} instead of {best.mu[0]:.2f}, "
          f"effects off by {np.abs(result.x - best.x).mean():.3f}")  # fmt: skip
