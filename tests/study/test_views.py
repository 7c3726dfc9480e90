"""A split cloud attacked from every side: no half finds more than claimed, faults are found."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from broken_samplers import Faulty

import sottovoce as sv
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.certificate.certificate import Certificate, certify
from sottovoce.errors import InputError
from sottovoce.network import masks
from sottovoce.network.masks import Stream
from sottovoce.network.protocol.codec import Integers, decode_from_cloud, unpack
from sottovoce.network.protocol.messages import Round
from sottovoce.network.round_arithmetic import noisy_sigma
from sottovoce.privacy.adjacency import Trajectory
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.plan import plan
from sottovoce.privacy.sampler import Released, Sampler, grid_of
from sottovoce.privacy.trust import ONE_CLOUD, SplitCloud, Trust
from sottovoce.problem import gallery
from sottovoce.problem.problem import Problem
from sottovoce.study.audit import Audit, audit
from sottovoce.study.loopback import Loopback

Case = tuple[Problem, Certificate]
VIEWS = ("cloud", "helper", "outside")


@pytest.fixture(scope="module")
def paper() -> Case:
    problem = gallery.paper()
    return problem, certify(problem.cloud)


@pytest.fixture(scope="module")
def two() -> Case:
    x = sv.agents(2, lower=-1, upper=1)
    problem = Problem(
        objectives=[(x[0] - 0.5) ** 2, (x[1] + 0.5) ** 2],
        constraints=[x[0] + 10 * x[1] <= 1, x[0] - x[1] <= 1],
    )
    return problem, certify(problem.cloud)


def made(case: Case, trust: Trust | None = None) -> NoisePlan:
    hide = Trajectory(radius=0.05)
    trust = SplitCloud() if trust is None else trust
    return plan(case[1], epsilon=math.log(3), delta=0.05, hide=hide, trust=trust)


class Bare(Sampler):
    """No noise at all, for either half."""

    def __init__(self, plan: NoisePlan) -> None:
        self._grid = np.asarray(grid_of(noisy_sigma(plan)))

    def release(self, values: Any) -> Released:
        return self.release_multiples(np.rint(values / self._grid).astype(np.int64))

    def release_multiples(self, multiples: Integers) -> Released:
        return Released(values=multiples * self._grid, multiples=multiples, grid=self._grid)

    def release_modular(self, residues: Integers) -> Released:
        return self.release_multiples(residues)

    def blind(self, residues: Integers) -> Integers:
        return residues


def short(case: Case, view: Any, **change: Any) -> Audit:
    made_for = made(case)
    settings: dict[str, Any] = {"runs": 100, "rounds": 4, "agent": 1}
    noise = {"sampler": Faulty(made_for, seed=1), "helper": Faulty(made_for, seed=2)}
    return audit(case[0], made_for, view=view, **(settings | noise | change))


@pytest.mark.parametrize("view", VIEWS)
def test_every_party_finds_no_more_than_claimed(two: Case, view: Any) -> None:
    found = short(two, view, sampler=None, helper=None)  # the deployed noise
    assert found.passed
    assert (found.view, found.leaks) == (view, "")
    mu = float(made(two).gdp_mu[1])
    assert found.claimed_mu == pytest.approx(mu / math.sqrt(2) if view == "outside" else mu)
    assert 0.85 < found.played_share <= 1.0  # what was played uses the claim up
    assert found.noise.checks[1].passed


@pytest.mark.parametrize(
    ("half", "view"), [("helper", "cloud"), ("sampler", "helper"), ("helper", "outside"),
                       ("sampler", "outside")],
)  # fmt: skip
def test_a_half_without_noise_is_found(two: Case, half: str, view: str) -> None:
    found = short(two, view, **{half: Bare(made(two))})
    assert not found.noise.passed
    assert view == "outside" or not found.game_passed  # there the other half's noise is left


def test_a_helper_without_noise_still_faces_the_clouds(two: Case) -> None:
    assert short(two, "helper", helper=Bare(made(two))).passed


def test_a_mask_of_two_rounds_is_found(two: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Stream.rounds
    monkeypatch.setattr(
        Stream, "rounds", lambda self, first, count: np.tile(rounds(self, 1, 1), (count, 1))
    )
    assert "behind one mask" in short(two, "cloud").leaks


def test_a_mask_used_again_after_a_crash_is_found(
    two: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A session that outlives the process, as if it had been saved with the state.
    monkeypatch.setattr(masks, "new_session", lambda: bytes(16))
    assert "behind one mask" in short(two, "cloud").leaks


def test_with_noise_switched_off_prices_are_those_of_the_trusted_cloud_bit_for_bit(
    paper: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is released counts in units of its noise, of which there is none here for either.
    monkeypatch.setattr(NoisePlan, "released_sigma", property(lambda plan: plan.sigma))
    problem, split = paper[0], made(paper)
    settings: dict[str, Any] = {"algorithm": DualAveraging(), "rounds": 40, "agent": 3}
    halves = Loopback(problem, split, sampler=Bare(split), helper=Bare(split), **settings).play()
    one = made(paper, ONE_CLOUD)
    whole = Loopback(problem, one, sampler=Bare(one), **settings).play()
    assert halves.values.tolist() == whole.values.tolist()
    assert halves.states.tolist() == whole.states.tolist()
    prices = [
        [unpack(m.price).tolist() for m in heard if isinstance(m, Round)]
        for heard in ([decode_from_cloud(f) for _, f in p.frames] for p in (halves, whole))
    ]
    assert prices[0] == prices[1]
    assert len(prices[0]) >= 40
    masked = b"".join(data for *_, data in halves.masked)
    assert np.unique(np.frombuffer(masked, "<i8")).size == len(masked) // 8


def test_a_helper_s_noise_is_each_process_s_own(paper: Case) -> None:
    with pytest.raises(InputError, match="sampler must be left out"):
        short(paper, "cloud", sampler=None, helper=Bare(made(paper)), executor=object())
