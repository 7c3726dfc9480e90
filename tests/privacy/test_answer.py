"""The answer's weights, of which the noise of averaged releases is made."""

import numpy as np
import pytest

from sottovoce.privacy.feasibility import answer_shares, answer_weights, weights_norm


@pytest.mark.parametrize("rounds", [1, 2, 10, 99, 1000, 99_999])
def test_weights_are_those_of_the_recursion_and_add_up_to_one(rounds: int) -> None:
    weights = answer_weights(rounds)
    assert weights.sum() == pytest.approx(1.0, rel=1e-12)
    values = np.random.default_rng(rounds).normal(size=rounds)
    answer = 0.0
    for share, value in zip(answer_shares(np.arange(1, rounds + 1), rounds), values, strict=True):
        answer += share * (value - answer)
    assert answer == pytest.approx(float(weights @ values), abs=1e-12)
    assert np.count_nonzero(weights) == rounds - int(0.1 * rounds + min(0.1 * rounds, 10.0))


@pytest.mark.parametrize("rounds", [100_001, 300_000])
def test_the_norm_of_many_weights_is_bounded_from_above_and_nearly_so(rounds: int) -> None:
    exact = float(np.linalg.norm(answer_weights(rounds)))
    assert exact <= weights_norm(rounds) <= exact * (1 + 1e-4)


def test_the_norm_of_few_weights_is_theirs_rounded_up() -> None:
    exact = float(np.linalg.norm(answer_weights(100)))
    assert exact < weights_norm(100) < exact * (1 + 1e-8)
    assert weights_norm(1) == pytest.approx(1.0)
