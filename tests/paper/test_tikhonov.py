"""Algorithm 1's settings and steps."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.paper.tikhonov import Tikhonov, multiplier_step, state_step

unit = st.floats(-1e3, 1e3)


def test_the_schedule_is_the_papers_and_starts_at_round_1() -> None:
    algorithm = Tikhonov(gamma_bar=2.0, alpha_bar=3.0, c1=0.5, c2=0.25)
    np.testing.assert_allclose(algorithm.schedule([1, 16]), [[2.0, 3.0], [0.5, 1.5]])


def test_a_round_gives_the_same_bits_by_itself_and_among_others() -> None:
    many = Tikhonov().schedule(np.arange(1, 1001))
    for k in (1, 2, 7, 8, 9, 500, 1000):
        np.testing.assert_array_equal(Tikhonov().schedule(k)[0], many[k - 1])


@given(x=unit, slope=unit, gamma=st.floats(0, 10), alpha=st.floats(0, 1))
def test_steps_on_arrays_and_on_floats_agree_and_stay_in_their_sets(
    x: float, slope: float, gamma: float, alpha: float
) -> None:
    one = state_step(x, slope, gamma, alpha, -2.0, 5.0)
    both = state_step(np.array([x, x]), np.array([slope, -slope]), gamma, alpha, -2.0, 5.0)
    assert -2.0 <= one <= 5.0
    assert both[0] == one
    unprojected = x - gamma * (slope + alpha * x)
    assert one == min(max(unprojected, -2.0), 5.0)
    mu = multiplier_step(abs(x), slope, gamma, alpha)
    assert mu == max(abs(x) + gamma * (slope - alpha * abs(x)), 0.0)


def test_what_is_not_a_number_stays_so() -> None:
    assert np.isnan(state_step(float("nan"), 0.0, 1.0, 0.0, -1.0, 1.0))
    assert np.isnan(multiplier_step(0.0, float("nan"), 1.0, 0.0))
