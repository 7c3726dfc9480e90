"""A run in one process is the run of the network, byte by byte."""

from __future__ import annotations

import numpy as np

from plans import planned
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.network.round_arithmetic import SimulatedSampler
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem import gallery
from sottovoce.study.loopback import Loopback, Replayed
from sottovoce.study.released_outputs import released_outputs

ALGORITHM = DualAveraging()


def loopback(name: str, made: NoisePlan, *, rounds: int, agent: int) -> Loopback:
    sampler = SimulatedSampler(made.sigma[made.sigma > 0], 3)
    return Loopback(
        gallery.get(name), made, algorithm=ALGORITHM, sampler=sampler, rounds=rounds, agent=agent
    )


def test_agents_contribute_from_what_the_game_has_them_act() -> None:
    made = planned(radius=0.1)
    acted = np.full(7, np.nan)  # the others go on as they do
    acted[0] = 1.5
    played = loopback("paper", made, rounds=5, agent=1).play(lambda k: acted if k == 3 else None)
    own = loopback("paper", made, rounds=5, agent=1).play()
    assert played.states[2, 0] == 1.5
    assert np.array_equal(played.states[2, 1:], own.states[2, 1:])
    assert played.states[3, 0] != 1.5
    # the same noise: releases differ by the contributions alone
    moved = released_outputs(made)(played.states) - released_outputs(made)(own.states)
    np.testing.assert_allclose(
        (played.values - own.values)[:3] / made.sigma, moved[:3] / made.sigma, atol=1e-7
    )


def test_runs_one_after_the_other_begin_anew() -> None:
    made = planned(radius=0.1)
    loop = loopback("paper", made, rounds=5, agent=1)
    first = loop.play()
    for _ in range(2):
        assert loop.play(sampler=Replayed(first.releases)).frames == first.frames
