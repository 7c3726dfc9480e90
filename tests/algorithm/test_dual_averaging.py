"""The cloud's kernel over agents that answer prices in closed form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.algorithm.public_sum import PublicSum
from sottovoce.kernels.cloud_kernel import CloudKernel
from sottovoce.problem.groups import Array

GAINS = DualAveraging()


def cloud_of(
    bounds: tuple[Any, Any],
    unit: Any,
    noisy: float = 1.0,
    gains: DualAveraging = GAINS,
    *,
    planned: bool = True,
) -> CloudKernel:
    """The cloud of sums between bounds."""
    noise = np.full(np.size(unit), noisy)
    public = PublicSum(lower=bounds[0], upper=bounds[1], unit=unit, noise=noise)
    return CloudKernel(public, gains, planned=planned)


class Quadratics:
    """Agents ``q/2 (x - t)^2`` on a box with affine sums."""

    def __init__(self, q: Any, t: Any, rows: Any, lower: Any, upper: Any) -> None:
        self.q, self.t, self.rows = np.asarray(q), np.asarray(t), np.asarray(rows)
        self.lower, self.upper = np.asarray(lower), np.asarray(upper)

    def best(self, force: Array, eps: Array | float, x: Array) -> Array:
        """The minimiser on the line of ``f + force x + eps/2 (. - x)^2``."""
        return np.asarray((self.q * self.t - force + eps * x) / (self.q + eps))

    def run(
        self,
        public: tuple[Any, Any],
        sigma: Array,
        rounds: int,
        *,
        noise: float = 1.0,
        seed: Any = 0,
        gains: DualAveraging = GAINS,
        trace: list[Array] | None = None,
    ) -> tuple[Array, Array, int]:
        rng = np.random.default_rng(seed)
        p = sigma.size
        x, answer = np.clip(0.0 * self.t, self.lower, self.upper), np.zeros(self.t.size)
        center, worth, width = x.copy(), np.zeros(x.size), self.upper - self.lower
        cloud = cloud_of(public, sigma, noise, gains, planned=noise > 0)
        for k in range(1, rounds + 1):
            y = self.rows @ x + noise * sigma * rng.standard_normal(p)
            share = float(DualAveraging().share(k, rounds, noisy=noise > 0)[0])
            if noise > 0:  # what was released is averaged
                answer = answer + share * (x - answer)
            if not cloud.round(k, y, share=share):
                return answer, cloud.answer, k
            force = self.rows.T @ cloud.price
            center, now = center + (x - center) / 2, np.abs(force) * width
            worth = np.maximum(now, worth * np.where(now > 0, k / (k + 1), 0.5))
            best = self.best(force, gains.theta * worth / width**2, center)
            x = np.clip(best, self.lower, self.upper)
            if not noise > 0:
                answer = x
            if trace is not None:
                trace.append(x)
        return answer, cloud.answer, 0


def residual(agents: Quadratics, x: Array, price: Array) -> float:
    """How far x is from every agent's own minimiser at these prices."""
    best = agents.best(agents.rows.T @ price, 0.0, x)
    return float(np.max(np.abs(x - np.clip(best, agents.lower, agents.upper))))


def fleet(n: int = 50, f: float = 1.0, x: float = 1.0) -> Quadratics:
    rng = np.random.default_rng(5)
    q, t = 10 ** rng.uniform(-0.3, 0.3, n), rng.uniform(0.2, 0.9, n)
    return Quadratics(f * q / x**2, x * t, np.ones((1, n)) / x, np.zeros(n), x * np.ones(n))


def dispatch(n: int = 10) -> Quadratics:
    q = 10 ** np.linspace(-3, 3, n)
    return Quadratics(q, np.linspace(0, 2, n), np.ones((1, n)), np.zeros(n), 10 * np.ones(n))


def split(p: int, n: int) -> Quadratics:
    rng = np.random.default_rng(6)
    rows = rng.uniform(0.2, 1.0, (p, n)) * (rng.random((p, n)) < 0.5)
    return Quadratics(rng.uniform(0.5, 2, n), rng.uniform(0.5, 1, n), rows, np.zeros(n), np.ones(n))


def test_a_fleet_without_noise_is_within_1e_6_after_100_rounds() -> None:
    agents = fleet()
    x, price, _ = agents.run(([-np.inf], [17.0]), np.array([50.0]), 100, noise=0.0)
    assert abs(x.sum() - 17.0) < 1e-6
    assert residual(agents, x, price) < 1e-6


def test_badly_conditioned_dispatch_without_noise_balances_within_300_rounds() -> None:
    agents = dispatch()
    x, price, _ = agents.run(([25.0], [25.0]), np.array([10.0]), 300, noise=0.0)
    assert abs(x.sum() - 25.0) < 1e-6
    assert residual(agents, x, price) < 1e-6


@pytest.mark.parametrize("agents", [fleet(), dispatch(), split(1, 12)])
def test_what_has_converged_without_noise_stays_there(agents: Quadratics) -> None:
    """Slopes learnt from rounding once threw prices away again hundreds of rounds later."""
    trace: list[np.ndarray] = []
    most = np.array([0.4 * agents.rows.sum() * agents.upper[0]])
    lower = most if agents.upper[0] == 10.0 else np.array([-np.inf])
    agents.run((lower, most), most, 1200, noise=0.0, trace=trace)
    away = np.max(np.abs(np.array(trace) - trace[-1]) / agents.upper, axis=1) > 1e-9
    assert np.flatnonzero(away)[-1] < 100


def test_prices_grow_while_all_agents_stand_at_their_bounds() -> None:
    """Sums that do not move teach that no price so far was felt; prices once stood still then."""
    hours, n = 4, 6
    rng = np.random.default_rng(7)
    wanted, rows = np.full(hours * n, -200.0), np.kron(np.eye(hours), np.ones(n))
    agents = Quadratics(
        rng.uniform(0.02, 0.2, hours * n), wanted, rows, 0 * wanted, np.full(hours * n, 100.0)
    )
    demand = np.array([250.0, 290.0, 330.0, 270.0])
    x, price, failed = agents.run((demand, demand), np.full(hours, 600.0), 200, noise=0.0)
    assert not failed
    np.testing.assert_allclose(rows @ x, demand, atol=1e-4)
    assert residual(agents, x, price) < 1e-4


def test_several_rows_without_noise_meet_the_optimality_conditions() -> None:
    agents = split(4, 12)
    most = 0.5 * agents.rows.sum(1)
    x, price, _ = agents.run((np.full(4, -np.inf), most), np.ones(4), 200, noise=0.0)
    assert np.all(agents.rows @ x <= most + 1e-6)
    assert residual(agents, x, price) < 1e-6
    assert np.all((price >= 0) & ((price < 1e-9) | (np.abs(agents.rows @ x - most) < 1e-6)))


def test_units_of_states_and_sums_cancel() -> None:
    here = fleet().run(([-np.inf], [17.0]), np.array([0.5]), 200)
    there = fleet(x=1e4).run(([-np.inf], [17.0]), np.array([0.5]), 200)
    assert np.allclose(here[0], there[0] / 1e4, rtol=1e-7)
    agents = fleet()
    agents.rows = agents.rows * 2.0**20
    big = agents.run(([-np.inf], [17.0 * 2.0**20]), np.array([0.5 * 2.0**20]), 200)
    assert np.allclose(here[0], big[0], rtol=1e-7)
    assert np.allclose(here[1], big[1] * 2.0**20, rtol=1e-7)


def test_the_unit_of_the_objective_and_start_cancel_exactly() -> None:
    """Prices scale with f if start does; nothing else carries its unit."""
    rng = np.random.default_rng(7)
    unit, public = np.array([0.5, 2.0]), (np.full(2, -np.inf), np.zeros(2))
    ours = cloud_of(public, unit)
    theirs = cloud_of(public, unit, gains=replace(GAINS, start=GAINS.start * 2.0**30))
    for k in range(1, 60):
        response = np.array([[1.0, 0.2], [0.2, 0.5]]) @ ours.price
        y = 3.0 - response + unit * rng.standard_normal(2)
        ours.round(k, y, share=1.0)
        theirs.round(k, y, share=1.0)
        assert np.allclose(theirs.price, ours.price * 2.0**30, rtol=1e-6)


@pytest.mark.parametrize("f", [1e-5, 1.0, 1e5])
def test_ten_decades_of_objectives_reach_the_same_accuracy(f: float) -> None:
    sigma, rounds, runs = np.array([0.5]), 400, 4
    public = ([-np.inf], [17.0])
    exact = fleet(f=f).run(public, sigma, 300, noise=0.0)[0]
    errors = [
        np.sum((fleet(f=f).run(public, sigma, rounds, seed=s)[0] - exact) ** 2) for s in range(runs)
    ]
    q = fleet().q
    limit = 0.5 / np.sqrt(rounds) * np.sqrt(np.sum(1 / q**2)) / np.sum(1 / q)
    # The mean of four squared errors is chi-squared: above 4 limits once in 1e12 if efficient.
    assert np.sqrt(np.mean(errors)) < 4 * limit


def highest_price(noise: float) -> float:
    """The highest last price of a sum that does not answer, over 8 runs of 1,000 rounds."""
    public = PublicSum(lower=[-np.inf], upper=[0.0], unit=[1.0], noise=[noise])
    highest = 0.0
    for seed in range(8):
        rng, cloud = np.random.default_rng(seed), CloudKernel(public, GAINS, planned=True)
        for k in range(1, 1001):
            assert cloud.round(k, rng.normal(size=1) + 0.01, share=1.0)
        highest = max(highest, float(cloud.price[0]))
    return highest


def test_noise_does_not_multiply_prices_of_a_sum_of_a_narrower_range() -> None:
    assert highest_price(50.0) < 1.0
    assert highest_price(1e-9) > 1.0  # as it did where the range was not known


def test_an_infeasible_constraint_is_bounded_or_flagged() -> None:
    agents = fleet()
    *_, failed = agents.run(([-np.inf], [-1.0]), np.array([0.5]), 600)
    assert failed > 0


def test_a_row_with_slack_has_no_price() -> None:
    agents = fleet()
    x, price, _ = agents.run(([-np.inf], [100.0]), np.array([0.5]), 100)
    assert price[0] == 0.0
    assert np.allclose(x, agents.t)


def test_shares() -> None:
    shares = DualAveraging().share
    assert shares(50, 100, noisy=False) == 1.0
    assert shares([20, 21, 23], 100, noisy=True).tolist() == [1.0, 1.0, 1.25 / 3.25]
