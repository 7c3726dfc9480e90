"""A run in one process is the run of the network, byte by byte."""

from __future__ import annotations

import math

import numpy as np

from sottovoce.algorithm.averaging import Averaging
from sottovoce.certify.certificate import certify
from sottovoce.engine.solve import solve
from sottovoce.network.protocol.codec import decode_from_cloud, unpack
from sottovoce.network.protocol.messages import Done, Round
from sottovoce.network.rounds import noisy_sigma
from sottovoce.network.simulated import EngineSampler
from sottovoce.privacy.plan import plan
from sottovoce.problem import gallery
from sottovoce.study.loopback import Loopback


def test_the_iterates_are_those_of_solve() -> None:
    algorithm = Averaging()
    problem = gallery.get("hs10")
    made = plan(certify(problem.cloud), epsilon=math.log(3), delta=0.05, radius=0.1)
    sampler = EngineSampler(noisy_sigma(made), 3)
    loop = Loopback(problem, made, algorithm=algorithm, sampler=sampler, rounds=20, agent=2)
    played = loop.play()
    here = solve(problem, made, rounds=20, seed=3, algorithm=algorithm)
    done = decode_from_cloud(played.frames[-1][1])
    assert isinstance(done, Done)
    np.testing.assert_allclose(unpack(done.mu), here.mu[0], rtol=0, atol=1e-12)
    rounds = [m for _, f in played.frames if isinstance(m := decode_from_cloud(f), Round)]
    assert len(rounds) == 2 * 20
    assert len({m.receipt for m in rounds}) == 20


def test_agents_send_what_the_game_has_them_act() -> None:
    problem = gallery.get("hs10")
    made = plan(certify(problem.cloud), epsilon=math.log(3), delta=0.05, radius=0.1)
    sampler = EngineSampler(noisy_sigma(made), 3)
    loop = Loopback(problem, made, algorithm=Averaging(), sampler=sampler, rounds=5, agent=1)
    acted = np.array([1.5, -2.5])
    played = loop.play(lambda k: acted if k == 3 else None)
    assert np.array_equal(played.states[2], acted)
    assert not np.array_equal(played.states[3], acted)
