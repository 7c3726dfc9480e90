from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from sottovoce.algorithm.averaging import Averaging
from sottovoce.certify.certificate import certify
from sottovoce.network.rounds import Rounds, first_carried, noisy_sigma
from sottovoce.privacy import sampler
from sottovoce.privacy.plan import plan
from sottovoce.problem.gallery import paper


def test_noise_is_drawn_before_the_states_of_its_round_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draws: list[int] = []
    draw = sampler._discrete_gaussian()

    def counted(zeros: list[int]) -> Any:
        draws.append(len(zeros))
        return draw(zeros)

    monkeypatch.setattr(sampler, "_discrete_gaussian", lambda: counted)
    monkeypatch.setattr(sampler, "BATCH", 1)
    made = plan(certify(paper().cloud), epsilon=math.log(3), delta=0.05, radius=1.0)
    algorithm = Averaging()
    rounds = Rounds(made, algorithm, sampler.SecureSampler(noisy_sigma(made)), 3)
    x, carried = np.zeros(7), first_carried(algorithm, 4)
    for k in (1, 2, 3):
        before = len(draws)
        assert before == k
        rounds.play(k, x, carried, bytes(32), frozenset())
        assert len(draws) == before
        rounds.prepare()
