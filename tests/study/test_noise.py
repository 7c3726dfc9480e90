"""Tests on noise: what is right passes as often as stated, what is broken is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from broken_samplers import FAULTS, Array, Fault

from sottovoce.errors import InputError
from sottovoce.privacy.sampler import STEPS
from sottovoce.study import noise
from sottovoce.study.noise import _bound_chance, check_noise


def normals(rounds: int, outputs: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((rounds, outputs))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_broken_noise_is_found(fault: Fault) -> None:
    assert check_noise(normals(4_000, 3)).passed
    assert not check_noise(fault(normals(4_000, 3))).passed


@pytest.mark.parametrize("rounds", [1_300, 2_000])
def test_one_output_of_many_correlated_at_a_long_lag_is_found(rounds: int) -> None:
    z = normals(rounds, 12)
    assert check_noise(z).passed
    z[997:, 5] = 0.6 * z[:-997, 5] + 0.8 * z[997:, 5]
    found = {check.name: check for check in check_noise(z).checks}
    assert not found["correlation"].passed
    assert found["correlation"].observed.endswith("at lag 997")


def test_correlation_is_found_where_pairs_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_PAIRWISE", 0)
    z = normals(800, 30)
    assert check_noise(z).passed
    z[3:, 7] = 0.6 * z[:-3, 20] + 0.8 * z[3:, 7]
    assert not check_noise(z).passed


def test_draws_that_meet_by_chance_on_the_grid_are_no_alarm() -> None:
    z = np.rint(normals(60_000, 4) * STEPS) / STEPS
    found = check_noise(z)
    assert found.passed
    equal = next(check for check in found.checks if check.name == "repeated draws")
    assert int(equal.observed.split(",")[0]) > 100


def test_depth_says_which_clamp_is_found() -> None:
    z = normals(20_000, 3)
    found = check_noise(z)
    assert 3.5 < found.depth < 4.2
    assert not check_noise(np.clip(z, -found.depth + 0.05, found.depth - 0.05)).passed


@pytest.mark.slow
def test_a_clamp_at_5_sigma_is_found_in_forty_million_draws() -> None:
    z = normals(2_000_000, 20)
    assert check_noise(z).depth > 5.0
    assert not check_noise(np.clip(z, -5.0, 5.0)).passed


def test_every_kind_of_alarm_is_as_rare_as_stated() -> None:
    # Of 400 samples each kind may give 5% at its own 5% level; 36 are 3.7 deviations more.
    kinds = len(check_noise(normals(300, 3)).checks)
    levels = np.array(
        [
            [check.chance / kinds for check in check_noise(normals(300, 3, seed)).checks]
            for seed in range(400)
        ]
    )
    assert (levels * kinds >= 1.0).any()
    assert np.all((levels < 0.05 / kinds).sum(axis=0) <= 36)


@pytest.mark.parametrize("lag", [1, 13, 40])
def test_the_bound_on_lagged_products_holds_and_is_not_empty(lag: int) -> None:
    rng = np.random.default_rng(5)
    z = rng.standard_normal((20_000, 60))
    sums = np.abs((z[:, lag:] * z[:, :-lag]).sum(axis=1))
    for level in (0.5, 0.1, 0.01):
        share = np.mean(_bound_chance(sums, 60 - lag) <= level)
        assert share <= level
    assert _bound_chance(np.array([45.0]), 60)[0] < 1e-4


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_no_number_fails(wrong: Any) -> None:
    z = normals(200, 2)
    z[5, 1] = wrong
    assert not check_noise(z).passed


def test_too_few_rounds_are_refused() -> None:
    with pytest.raises(InputError, match="at least 100 rounds, got 99"):
        check_noise(normals(99, 2))
