"""Bounds that must round towards the worse, against exact arithmetic at a few points."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import mpmath
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.certificate.certificate import Certificate
from sottovoce.formula.intervals import interval
from sottovoce.privacy.gaussian import delta_of, epsilon_of, kappa, mu_of

MU, EPSILON, DELTA = (0.05, 0.5, 1.163, 3.0), (0.1, 1.0986, 5.0), (1e-9, 1e-3, 0.05)


def exact_delta(mu: float, epsilon: float) -> mpmath.mpf:
    m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
    return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


def test_accounting_rounds_towards_the_worse() -> None:
    with mpmath.workdps(60):
        for mu, epsilon in product(MU, EPSILON):
            assert delta_of(mu, epsilon) >= exact_delta(mu, epsilon)
        for mu, delta in product(MU, DELTA):
            epsilon = epsilon_of(mu, delta)
            assert epsilon == 0.0 or exact_delta(mu, epsilon) <= delta
        for epsilon, delta in product(EPSILON, DELTA):
            assert exact_delta(mu_of(epsilon, delta), epsilon) <= delta
            tail = -mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(delta) - 1)
            assert kappa(epsilon, delta) >= (tail + mpmath.sqrt(tail**2 + 2 * epsilon)) / (
                2 * epsilon
            )


def test_a_sum_of_intervals_holds_the_exact_sum() -> None:
    for a, b in product((0.1, -0.3, 1e16, 1.0), (0.2, 0.7, -1e-20, 3.14)):
        total = interval(a, a) + interval(b, b)
        exact = Fraction(a) + Fraction(b)
        assert Fraction(float(total.lower)) <= exact <= Fraction(float(total.upper))


def two_sums() -> Certificate:
    x = sv.agents(3, lower=-1, upper=1)
    constraints = [x[0] + 2 * x[1] <= 1, x[1] - 3 * x[2] <= 1, x[0] + x[2] <= 1]
    problem = sv.Problem(agents=x, objectives=[s**2 for s in x], constraints=constraints)
    return sv.certify(problem.cloud)


def test_sensitivities_are_never_below_what_is_seen_in_the_domain() -> None:
    x = sv.agents(2, lower=-1, upper=3)
    problem = sv.Problem(
        agents=x,
        objectives=[x[0] ** 2, x[1] ** 2],
        constraints=[x[0] ** 2 + 2 * x[1] <= 4, sv.exp(x[0]) + 5 * x[1] ** 2 <= 20],
    )
    certificate = sv.certify(problem.cloud)
    low, high = (
        np.concatenate([getattr(group, end).ravel() for group in certificate.domain])
        for end in ("lower", "upper")
    )
    assert np.all(high < 3.0)  # what the constraints leave of the boxes
    seen = np.abs([[2 * at[0], 2.0] for at in (low, high)]).max(axis=0)
    seen = np.stack([seen, [np.exp(high[0]), 10 * np.abs([low[1], high[1]]).max()]])
    bound = certificate.sensitivity.dense()
    assert np.all(bound >= seen)
    assert np.all(bound <= 1.02 * seen)


def test_noise_grows_with_rounds_radii_and_promises_of_agents() -> None:
    certificate = two_sums()

    def sigma(hide: Any) -> Any:
        return sv.plan(certificate, epsilon=1.0, delta=1e-3, hide=hide).sigma

    one, many = (sigma(sv.Offset(radius=1.0, rounds=rounds)) for rounds in (1, 100))
    assert many == pytest.approx(10 * one, rel=1e-4)
    one, many = (sigma(sv.Everything(rounds=rounds)) for rounds in (1, 100))
    assert many == pytest.approx(10 * one, rel=1e-4)
    far = sv.plan(certificate, epsilon=1.0, delta=1e-3, hide=sv.Trajectory(radius=[1.0, 5.0, 1.0]))
    near = sv.plan(certificate, epsilon=1.0, delta=1e-3, hide=sv.Trajectory(radius=1.0))
    assert far.sigma[0] > 2 * near.sigma[0]  # what agent 2 moves
    strict = sv.plan(
        certificate, epsilon=[1.0, 0.1, 1.0], delta=1e-3, hide=sv.Trajectory(radius=1.0)
    )
    assert strict.gdp_mu[1] < 0.2 * near.gdp_mu[1]
