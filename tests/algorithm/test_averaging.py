"""The default algorithm's settings, schedule and steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.algorithm.algorithm import by_name
from sottovoce.algorithm.averaging import Averaging, agent_step, vector_step
from sottovoce.errors import InputError

ALGORITHM = Averaging()


def rounds_of(y: Any, sigma: Any, algorithm: Averaging = ALGORITHM) -> tuple[Any, dict[str, Any]]:
    """Feed released values, one row per round, and return all mu and the last memory."""
    released = np.asarray(y, dtype=float)
    rows = released.shape[1]
    memory = algorithm.start(np.zeros(rows))
    prices = []
    for k, values in enumerate(released, start=1):
        held = dict(zip(algorithm.memory, memory, strict=True))
        numbers = algorithm.schedule(k, len(released))[0]
        held |= dict(zip(algorithm.scalars, numbers, strict=True))
        held |= {"y_g": values, "sigma": np.asarray(sigma), "coupled": np.zeros(rows)}
        held["largest"] = held["worth"].max()
        mu, *memory = by_name(algorithm.cloud_step, held)
        prices.append(mu)
    return np.array(prices), dict(zip(algorithm.memory, memory, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gain": 0.0}, "gain must be positive"),
        ({"guess": float("nan")}, "guess must be finite and not negative"),
        ({"pool": -0.1}, "pool must be finite and not negative"),
        ({"decay": 0.5}, r"decay must lie in \(1/2, 1\)"),
        ({"burn_in": 1.0}, r"burn_in must lie in \[0, 1\)"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(
    change: dict[str, float], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Averaging(**change)


def test_a_round_gives_the_same_bits_by_itself_and_among_others() -> None:
    many = ALGORITHM.schedule(np.arange(1, 1001), 1000)
    for k in (1, 2, 7, 100, 101, 1000):
        np.testing.assert_array_equal(ALGORITHM.schedule(k, 1000)[0], many[k - 1])


def test_shares_give_the_average_that_leaves_the_burn_in_out() -> None:
    algorithm = Averaging(weight_power=0.0, burn_in=0.2)
    values = np.random.default_rng(0).normal(size=50)
    mean = 7.0
    for value, numbers in zip(values, algorithm.schedule(np.arange(1, 51), 50), strict=True):
        mean += numbers[-1] * (value - mean)
    assert mean == pytest.approx(values[10:].mean(), abs=1e-14)


def test_an_inactive_row_has_a_multiplier_of_exactly_0() -> None:
    noise = np.random.default_rng(1).normal(size=(500, 1))
    mu, memory = rounds_of(-2.0 + noise, [1.0])
    assert np.all(mu[100:] == 0.0)
    assert memory["answer"][0] < 1e-3


def test_a_violated_row_gets_a_price_and_noise_alone_hardly_one() -> None:
    noise = np.random.default_rng(2).normal(size=(500, 2))
    mu, _ = rounds_of(np.array([0.5, 0.0]) + noise, [1.0, 1.0], Averaging(pool=0.0))
    assert mu[-1, 0] > 100 * max(1e-3, mu[-1, 1])


@given(power=st.integers(-20, 20), seed=st.integers(0, 50))
def test_the_units_of_a_constraint_make_no_difference(power: int, seed: int) -> None:
    y = np.random.default_rng(seed).normal(0.2, 1.0, size=(60, 2))
    unit = np.array([2.0**power, 1.0])
    plain, _ = rounds_of(y, [1.0, 1.0])
    scaled, _ = rounds_of(y * unit, unit)
    np.testing.assert_allclose(scaled * unit, plain, rtol=1e-12)


def test_mu_is_never_negative_and_z_never_below_its_floor() -> None:
    y = np.random.default_rng(3).standard_cauchy(size=(400, 3))
    mu, memory = rounds_of(y, [1.0, 0.1, 0.0])
    assert np.all(mu >= 0)
    assert np.all(memory["z"] >= -memory["scale"])
    assert np.all(np.isfinite(mu))


def test_a_row_without_noise_and_violation_takes_no_step() -> None:
    mu, _ = rounds_of(np.zeros((20, 1)), [0.0])
    assert np.all(mu == 0.0)


def test_the_answer_forgets_multipliers_of_another_size() -> None:
    _, memory = rounds_of(np.concatenate([np.full((60, 1), 5.0), np.full((140, 1), -5.0)]), [1.0])
    assert memory["answer"][0] <= 3.0 * memory["size"][0]


def test_agents_minimise_and_coupling_holds_them_back() -> None:
    def slope(context: float, x: Any) -> Any:
        return 2 * (x - context)

    assert agent_step(slope, 3.0, 0.0, -5.0, 5.0, 0.0, 10.0) == pytest.approx(3.0)
    assert agent_step(slope, 3.0, 0.0, -5.0, 1.0, 0.0, 10.0) == 1.0
    # 2 (x - 3) + 10 * 0.4 x = 0
    assert agent_step(slope, 3.0, 0.0, -5.0, 5.0, 0.4, 10.0) == pytest.approx(1.0)
    box = np.full(2, 5.0)
    both = vector_step(slope, 3.0, np.zeros(2), -box, box, np.array([0.0, 0.4]), 10.0)
    np.testing.assert_allclose(both, [3.0, 1.0], atol=1e-12)
