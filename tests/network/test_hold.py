"""Last words of stragglers that count again: on the real machine, allowed where it is sound."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from network_harness import MachineRun, contributed, parts_at, plan_for, run, serving

import sottovoce as sv
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.certificate.certificate import Certificate, certify
from sottovoce.errors import PrivacyError
from sottovoce.network.cloud import Cloud
from sottovoce.network.protocol.collected import ContributionTotals
from sottovoce.network.round_arithmetic import Rounds, noisy_sigma
from sottovoce.network.setup import parties_of
from sottovoce.network.store import CloudStore, summarise
from sottovoce.privacy.adjacency import Adjacency, Everything, Offset, Trajectory
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.plan import plan
from sottovoce.privacy.sampler import SecureSampler
from sottovoce.problem.problem import Problem

ROUNDS, DROPS = 100, 5
HOLD: dict[str, Any] = {"straggler": "hold", "deadline": 1.0}


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    """The problem of the README."""
    x = sv.agents(3, lower=-10, upper=10)
    problem = Problem(
        agents=x,
        objectives=[(x[0] - 9) ** 2, (x[1] + 4) ** 4, (x[2] - 1) ** 2],
        constraints=[x[0] + x[1] + x[2] <= 3, x[1] ** 2 + x[2] ** 2 <= 20],
    )
    return certify(problem.cloud)


def played(made: NoisePlan, differences: dict[int, float], *, drops: bool) -> float:
    """``sqrt(sum_k d(k)^2)`` between two behaviours of agent 2, as the machine used them.

    The others say the same in both worlds, so this is what the whole transcript tells given
    everything else. With ``drops`` agent 2's line is dead after round 5.
    """
    worlds = []
    parties, totals = parties_of(made), ContributionTotals(made.cloud.sums.count)
    for present in (0.0, 1.0):
        sampler = SecureSampler(noisy_sigma(made))
        line = MachineRun(made, DualAveraging(), sampler, ROUNDS, straggler="hold")
        for k in range(1, ROUNDS + 1):
            states = np.array([0.5, -3.5 + present * differences.get(k, 0.0), -3.0])
            speaking = (1, 2, 3) if k <= DROPS or not drops else (1, 3)
            line.say(k, {a: contributed(made, parties((a,)), states) for a in speaking})
            line.do(line.machine.deadline(k))
        assert len(line.used) == ROUNDS
        worlds.append(np.array([totals(parts) for parts in line.used]) / 2**26)  # of sigma
    return float(np.linalg.norm(worlds[0] - worlds[1]))


def test_last_words_that_count_h_times_more_count_b_sqrt_1_plus_h_where_a_trajectory_is_hidden(
    certificate: Certificate,
) -> None:
    made = plan(certificate, epsilon=math.log(3), delta=0.05, hide=Trajectory(radius=1.0))
    once = played(made, {DROPS: 1.0}, drops=False)
    held = played(made, {DROPS: 1.0}, drops=True)
    assert once <= made.guarantee(1).gdp_mu
    assert held == pytest.approx(once * math.sqrt(1 + ROUNDS - DROPS), rel=1e-9)
    assert held > 5 * made.guarantee(1).gdp_mu  # which is why the cloud refuses it


@pytest.mark.parametrize(
    ("hide", "far"), [(Offset(radius=1.0, rounds=ROUNDS), 1.0), (Everything(rounds=ROUNDS), 7.0)]
)
def test_held_contributions_stay_below_the_claim_where_hold_is_allowed(
    hide: Adjacency, far: float, certificate: Certificate
) -> None:
    made = plan(certificate, epsilon=math.log(3), delta=0.05, hide=hide)
    everywhere = dict.fromkeys(range(1, ROUNDS + 1), far)
    for differences in ({DROPS: far}, everywhere):
        assert played(made, differences, drops=True) <= made.guarantee(1).gdp_mu
    assert played(made, everywhere, drops=True) > 0.3 * made.guarantee(1).gdp_mu


async def test_hold_is_refused_where_a_trajectory_is_hidden(
    paper: Problem, keys: Path, tmp_path: Path
) -> None:
    where: dict[str, Any] = {"rounds": 5, "keys": keys, "store": tmp_path / "run.db"}
    with pytest.raises(PrivacyError, match=r"sv\.Offset"):
        Cloud(plan_for(paper), **where, **HOLD)
    assert not (tmp_path / "run.db").exists()
    for hide in (Offset(radius=1.0, rounds=5), Everything(rounds=5)):
        Cloud(plan_for(paper, hide=hide), **where, **HOLD)


@pytest.mark.parametrize("hide", [Trajectory(radius=1.0), Offset(radius=1.0, rounds=5)])
def test_a_store_with_held_rounds_is_not_continued_where_a_trajectory_is_hidden(
    hide: Adjacency, paper: Problem, keys: Path, tmp_path: Path
) -> None:
    made = plan_for(paper, hide=hide)
    path = tmp_path / "run.db"

    async def start() -> None:
        async with serving(made, keys, path, rounds=5):
            pass

    run(start())
    rounds = Rounds(made, DualAveraging(), SecureSampler(noisy_sigma(made)), 5)
    config = summarise(path).config
    assert config is not None
    parts = parts_at(made, np.zeros(made.cloud.size))
    record, released = rounds.play(1, parts, config.hash, frozenset({3}))
    store = CloudStore(path)
    store.commit(record, released)  # as a cloud did that did not know better
    store.close()
    if isinstance(hide, Offset):
        run(start())
        return
    with pytest.raises(PrivacyError, match="cannot go on"):
        run(start())
