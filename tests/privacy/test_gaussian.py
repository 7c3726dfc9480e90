"""Gaussian-DP accounting against 50 digits and against dp-accounting."""

from __future__ import annotations

import math
from itertools import product

import mpmath
import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian, get_sigma_gaussian
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import erfcx, ndtri

from plans import exact_delta
from sottovoce.errors import InputError
from sottovoce.privacy import gaussian
from sottovoce.privacy.gaussian import Attacker, delta_of, epsilon_of, exact_sigma, gdp_mu_of, kappa

DIGITS = 60
WASTE = 1e-9


def exceeds(a: float | mpmath.mpf, b: float | mpmath.mpf) -> float:
    """Return a/b - 1, formed with all digits."""
    with mpmath.workdps(DIGITS):
        return float(mpmath.mpf(a) / mpmath.mpf(b) - 1)


def logarithmic(low: float, high: float) -> st.SearchStrategy[float]:
    exponents = st.floats(math.log(low), math.log(high))
    return exponents.map(lambda x: min(max(math.exp(x), low), high))


epsilons = logarithmic(1e-4, 50.0)
deltas = st.one_of(logarithmic(1e-300, 0.5), logarithmic(1e-12, 0.5))


def test_golden_values_of_the_paper_at_ln_3_and_5_percent() -> None:
    # recomputed to 50 digits; the paper prints kappa = 1.7565 from a rounded K
    assert exact_sigma(math.log(3), 0.05) == pytest.approx(1.2559236655, abs=5e-11)
    assert kappa(math.log(3), 0.05) == pytest.approx(1.7563398731, abs=5e-11)


def test_accounting_rounds_towards_the_worse_at_a_few_points() -> None:
    mus, orders, rests = (0.05, 0.5, 1.163, 3.0), (0.1, 1.0986, 5.0), (1e-9, 1e-3, 0.05)
    with mpmath.workdps(DIGITS):
        for mu, epsilon in product(mus, orders):
            assert delta_of(mu, epsilon) >= exact_delta(mu, epsilon)
        for mu, delta in product(mus, rests):
            epsilon = epsilon_of(mu, delta)
            assert epsilon == 0.0 or exact_delta(mu, epsilon) <= delta
        for epsilon, delta in product(orders, rests):
            assert exact_delta(gdp_mu_of(epsilon, delta), epsilon) <= delta
            tail = -mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(delta) - 1)
            root = mpmath.sqrt(tail**2 + 2 * epsilon)
            assert kappa(epsilon, delta) >= (tail + root) / (2 * epsilon)


@settings(max_examples=300, deadline=None)
@given(epsilon=epsilons, delta=deltas)
def test_mu_never_exceeds_the_asked_delta_and_wastes_none(epsilon: float, delta: float) -> None:
    mu = gdp_mu_of(epsilon, delta)
    assert exact_delta(mu, epsilon) <= mpmath.mpf(delta)
    assert exact_delta(mu * (1 + WASTE), epsilon) > mpmath.mpf(delta)


@settings(max_examples=200, deadline=None)
@given(mu=logarithmic(1e-6, 30.0), epsilon=st.one_of(st.just(0.0), logarithmic(1e-6, 500.0)))
def test_delta_is_an_upper_bound_for_any_mu(mu: float, epsilon: float) -> None:
    exact = exact_delta(mu, epsilon)
    assume(exact > 1e-300)
    assert 0 <= exceeds(delta_of(mu, epsilon), exact) <= WASTE


@settings(max_examples=200, deadline=None)
@given(epsilon=epsilons, delta=deltas)
def test_epsilon_is_an_upper_bound_within_the_stated_waste(epsilon: float, delta: float) -> None:
    mu = gdp_mu_of(epsilon, delta)
    bound = epsilon_of(mu, delta)
    assert exact_delta(mu, bound) <= mpmath.mpf(delta)
    assert bound <= epsilon * (1 + WASTE)


@settings(max_examples=200, deadline=None)
@given(epsilon=epsilons, delta=deltas)
def test_kappa_and_exact_sigma_are_rounded_up_and_ordered(epsilon: float, delta: float) -> None:
    sigma, paper = exact_sigma(epsilon, delta), kappa(epsilon, delta)
    assert sigma <= paper * (1 + 1e-12)
    with mpmath.workdps(DIGITS):
        assert exact_delta(1 / mpmath.mpf(sigma), epsilon) <= mpmath.mpf(delta)
        # kappa solves Q(epsilon kappa - 1/(2 kappa)) = delta
        k = mpmath.mpf(paper)
        assert mpmath.ncdf(1 / (2 * k) - epsilon * k) <= mpmath.mpf(delta)
        k *= 1 - mpmath.mpf(1e-11)
        assert mpmath.ncdf(1 / (2 * k) - epsilon * k) > mpmath.mpf(delta)


def test_special_functions_stay_within_the_errors_the_margins_assume() -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate(
        [rng.uniform(-5, 0, 300), rng.uniform(0, 30, 500), 10 ** rng.uniform(0, 8, 99)]
    )
    p = np.concatenate([10 ** rng.uniform(-300, 0, 500), rng.uniform(0, 1, 200)])
    with mpmath.workdps(DIGITS):
        for a, value in zip(x.tolist(), erfcx(x).tolist(), strict=True):
            exact = mpmath.exp(mpmath.mpf(a) ** 2) * mpmath.erfc(a)
            assert abs(exceeds(value, exact)) <= 17 * gaussian.UNIT
        for a, k in zip(p.tolist(), ndtri(p).tolist(), strict=True):
            correction = (mpmath.ncdf(k) - mpmath.mpf(a)) / mpmath.npdf(k)  # one Newton step
            assert abs(correction) <= 5 * gaussian.UNIT * abs(k)


@pytest.mark.parametrize("epsilon", [0.01, 0.1, math.log(3), 5.0, 30.0])
@pytest.mark.parametrize("delta", [1e-30, 1e-10, 1e-5, 0.05, 0.4])
def test_dp_accounting_agrees(epsilon: float, delta: float) -> None:
    assert exact_sigma(epsilon, delta) == pytest.approx(
        get_sigma_gaussian(epsilon, delta), rel=1e-9
    )
    mu = gdp_mu_of(epsilon, delta)
    assert epsilon_of(mu, delta) == pytest.approx(get_epsilon_gaussian(1 / mu, delta), rel=1e-8)


def test_a_hundred_thousand_agents_are_bounded_like_single_ones() -> None:
    mu = np.random.default_rng(2).permutation(np.geomspace(1e-5, 20.0, 100_000))
    delta, epsilon = delta_of(mu, 1.0), epsilon_of(mu, 1e-6)
    for i in range(0, mu.size, 1997):
        assert exact_delta(mu[i], 1.0) <= mpmath.mpf(delta[i])
        assert exact_delta(mu[i], float(epsilon[i])) <= mpmath.mpf("1e-6")
        assert epsilon[i] == pytest.approx(epsilon_of(float(mu[i]), 1e-6), rel=1e-9, abs=1e-12)


def test_arguments_broadcast_and_numbers_give_a_number() -> None:
    budgets = gdp_mu_of(np.array([0.5, 1.0]), np.array([[1e-6], [1e-3]]))
    assert budgets.shape == (2, 2)
    assert budgets[1, 0] == pytest.approx(gdp_mu_of(0.5, 1e-3), rel=1e-12)
    assert type(gdp_mu_of(0.5, 1e-3)) is float
    assert type(delta_of(1.0, 1.0)) is float
    assert type(epsilon_of(1.0, 0.1)) is float


def test_nothing_revealed_costs_nothing() -> None:
    assert delta_of(0.0, 0.0) == 0.0
    assert epsilon_of(0.0, 1e-9) == 0.0
    assert (Attacker(0.0).advantage, Attacker(0.0).miss_rate(1.0)) == (0.0, 0.0)


def test_epsilon_is_zero_once_delta_covers_the_total_variation() -> None:
    assert epsilon_of(0.1, 0.04) == 0.0
    assert epsilon_of(0.1, 0.039) > 0.0


@settings(max_examples=200, deadline=None)
@given(mu=logarithmic(1e-6, 30.0), alpha=logarithmic(1e-200, 0.999))
def test_the_attacker_is_never_underrated(mu: float, alpha: float) -> None:
    best = Attacker(mu)
    with mpmath.workdps(DIGITS):
        advantage = mpmath.erf(mpmath.mpf(mu) / mpmath.sqrt(8))
        assert advantage <= best.advantage <= advantage * (1 + 1e-12)
        error = mpmath.ncdf(-mpmath.mpf(mu) / 2)
        assert error * (1 - 1e-10) <= best.equal_error_rate <= error
        miss = best.miss_rate(alpha)
        # miss <= Phi(Q^-1(alpha) - mu)  <=>  Q(Phi^-1(miss) + mu) >= alpha
        x = -mpmath.mpf(float(ndtri(alpha)))
        for _ in range(4):  # Newton, from double to 60 digits
            x += (mpmath.ncdf(-x) - mpmath.mpf(alpha)) / mpmath.npdf(x)
        beta = mpmath.ncdf(x - mu)
        assert miss <= beta
        assert beta < 1e-280 or miss >= beta * (1 - 1e-9)


def test_a_delta_beyond_double_precision_is_refused() -> None:
    with pytest.raises(InputError, match="delta must be at least 1e-300, got delta=1e-310"):
        gdp_mu_of(1.0, 1e-310)


@pytest.mark.parametrize("bad", [-1e-9, math.nan, math.inf])
def test_bad_mu_is_refused(bad: float) -> None:
    with pytest.raises(InputError, match=r"mu must lie in \[0, 1e\+100\], got mu="):
        epsilon_of(np.array([0.1, bad]), 0.1)
    with pytest.raises(InputError, match=r"false_alarm must lie in \[0, 1\], got false_alarm=1.5"):
        Attacker(1.0).miss_rate(1.5)
