"""Nobody stalls a run: who is absent counts with a public fallback, which tells nothing of it."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import numpy as np
import pytest
from network_harness import (
    MachineRun,
    Site,
    contributed,
    parts_at,
    plan_for,
    run,
    serving,
    split_plan,
    taking_part,
)
from test_cloud_machine import Table, codes, messages, said

import sottovoce as sv
from plans import planned
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.certificate.certificate import Certificate, certify
from sottovoce.errors import PrivacyError
from sottovoce.network.cloud import Cloud
from sottovoce.network.protocol.actions import Commit, Part, Record, Wait
from sottovoce.network.protocol.cloud_machine import CloudPhase
from sottovoce.network.protocol.codec import MaskName, join_mask, pack_whole
from sottovoce.network.protocol.collected import ContributionTotals
from sottovoce.network.protocol.messages import Code, Done
from sottovoce.network.round_arithmetic import Rounds, SimulatedSampler, noisy_sigma
from sottovoce.network.setup import fallbacks_of, parties_of, ranges_of
from sottovoce.network.store import CloudStore, summarise
from sottovoce.paper.tikhonov import Tikhonov
from sottovoce.privacy.adjacency import Adjacency, Everything, Offset, Trajectory
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.plan import plan
from sottovoce.privacy.sampler import Released, Sampler, SecureSampler
from sottovoce.problem.groups import Array, lower_bounds, upper_bounds
from sottovoce.problem.problem import Problem
from sottovoce.study.audit import audit
from sottovoce.study.noise import audit_store

ROUNDS = 12


class Answering(Table):
    """A table at which some may be missing."""

    def record(self, action: Commit) -> Record:
        everybody = sorted({a for p in action.parts for a in p.party.agents} | action.held)
        assert everybody == [1, 2, 3]
        return self.committed(action)


def waits(actions: Any) -> list[int]:
    return [action.k for action in actions if isinstance(action, Wait)]


def absent(record: Record) -> set[int]:
    """Whose fallback counts in a round."""
    return set(record.held) - {a for part in record.parts for a in part.party.agents}


# --- who is waited for ---------------------------------------------------------------------------


def test_the_first_round_waits_for_an_agent_and_then_every_round_has_its_deadline() -> None:
    table = Answering(straggler="fallback")
    assert waits(table.join(1, 1)) == []
    assert waits(table.send(1, 1, 5)) == [1]
    table.join(3, 3)
    assert waits(table.send(3, 1, 6)) == []
    assert waits(table.do(table.machine.deadline(1))) == [2]
    assert absent(table.records[1]) == {2}  # that never came
    assert said(table.records[1]) == {1: [5], 3: [6]}
    assert table.do(table.machine.deadline(1)) == []  # it is over
    table.machine.disconnect(1)
    table.machine.disconnect(3)
    for k in range(2, 5):  # nobody is there any more
        table.do(table.machine.deadline(k))
        assert absent(table.records[k]) == {1, 2, 3}
        assert table.records[k].parts == ()


def test_only_a_run_that_has_begun_has_a_deadline_before_an_agent_comes() -> None:
    table = Answering(straggler="fallback")
    assert table.machine.opened() == []
    table.seat_all()
    table.round(1)
    again = table.restarted(straggler="fallback")
    assert waits(again.machine.opened()) == [2]
    again.join(1, 1, k=1)
    assert waits(again.send(1, 2, 1)) == []  # it has begun
    assert table.restarted(straggler="wait").machine.opened() == []


def test_who_missed_a_deadline_and_is_not_connected_is_not_waited_for_until_it_comes_back() -> None:
    table = Answering(straggler="fallback")
    table.seat_all()
    table.round(1)
    table.machine.disconnect(2)
    table.send(1, 2, 1)
    assert 2 not in table.records  # it may come back any moment
    table.send(3, 2, 4)
    table.do(table.machine.deadline(2))
    table.send(1, 3, 1)
    table.send(3, 3, 4)
    assert absent(table.records[3]) == {2}  # without another deadline
    assert codes(table.join(4, 2)) == []
    table.send(3, 4, 4)
    table.send(1, 4, 1)
    assert 4 not in table.records
    table.send(4, 4, 2, 3)
    assert table.records[4].held == frozenset()
    assert said(table.records[4]) == {1: [1], 2: [2, 3], 3: [4]}


def test_who_is_late_is_told_so_and_goes_on_with_the_current_round() -> None:
    table = Answering(straggler="fallback")
    table.seat_all()
    table.send(1, 1, 1)
    table.do(table.machine.deadline(1))
    late = table.send(2, 1, 9, 9)
    assert codes(late) == [Code.LATE]
    table.send(2, 2, 2, 3)
    table.send(1, 2, 1)
    assert 2 not in table.records  # agent 3 missed a deadline too, but is connected
    table.send(3, 2, 4)
    assert table.records[2].held == frozenset()


def test_a_gateway_that_comes_back_in_parts_counts_as_far_as_it_is_there() -> None:
    table = Answering(straggler="fallback")
    table.join(1, 1, 2)
    table.join(3, 3)
    table.send(1, 1, 3, 3)
    table.send(3, 1, 4)
    table.join(9, 1)
    table.send(9, 2, 1)
    table.send(3, 2, 5)
    table.do(table.machine.deadline(2))
    assert absent(table.records[2]) == {2}
    assert said(table.records[2]) == {1: [1], 3: [5]}


@pytest.mark.parametrize("straggler", ["wait", "hold"])
def test_a_run_that_waits_or_holds_counts_no_fallback(straggler: Any) -> None:
    table = Answering(straggler=straggler)
    table.seat_all()
    table.send(1, 1, 1)
    table.do(table.machine.deadline(1))
    assert table.machine.phase is CloudPhase.COLLECTING
    assert table.records == {}


def test_a_run_of_absences_alone_ends_and_says_so_to_who_comes_late() -> None:
    table = Answering(straggler="fallback")
    for k in range(1, table.setup.rounds + 1):
        table.do(table.machine.deadline(k))
    assert table.machine.phase is CloudPhase.DONE
    assert any(isinstance(m, Done) for m in messages(table.join(1, 1), 1))


# --- what counts ---------------------------------------------------------------------------------


def fallback_states(plan: sv.NoisePlan) -> Array:
    """The public points nearest 0, by their definition."""
    return np.asarray(np.clip(0.0, lower_bounds(plan.domain), upper_bounds(plan.domain)))


@pytest.mark.parametrize("name", ["paper", "coupled"])
def test_a_fallback_is_that_of_the_public_point_0(
    name: str, request: pytest.FixtureRequest
) -> None:
    problem: Problem = request.getfixturevalue(name)
    plan = planned(name)
    parties, fallbacks = parties_of(plan), fallbacks_of(plan)
    for agents in ((1,), (2,), tuple(range(1, problem.agents + 1))):
        expected = np.zeros(plan.cloud.sums.count, dtype=np.int64)
        for agent in agents:
            party = parties((agent,))
            said = np.frombuffer(contributed(plan, party, fallback_states(plan)), "<i8")
            expected[party.sums] += said
            assert party.range.holds(pack_whole(said))
        assert fallbacks(frozenset(agents)).tolist() == expected.tolist()
    assert not fallbacks(frozenset()).any()


def test_agents_of_a_fleet_count_each_with_their_own_public_box_and_weights() -> None:
    weights = np.linspace(-1.0, 1.0, 40)
    own: Any = {"lower": np.linspace(-1.0, 2.0, 40), "parameters": {"w": weights}}
    fleet = sv.agents(40, name="ev", upper=3.0, **own)
    problem = Problem(
        objectives=[(fleet.x - 1) ** 2],
        constraints=[sv.total(fleet["w"] * fleet.x) <= 5, sv.total(fleet.x**2) <= 90],
    )
    plan = plan_for(problem)
    grid = np.array([output.grid for output in plan.outputs])
    x = fallback_states(plan)
    chosen = np.array([3, 17, 40])
    found = fallbacks_of(plan)(frozenset(chosen.tolist())) * grid
    some = x[chosen - 1]
    rounding = 3 * grid
    np.testing.assert_array_less(abs(found - [weights[chosen - 1] @ some, some @ some]), rounding)
    _, _, least, most = ranges_of(plan).of(chosen - 1)
    assert np.all((least * grid <= found) & (found <= most * grid))


@pytest.mark.parametrize(
    "hide", [Trajectory(radius=1.0), Offset(radius=1.0, rounds=ROUNDS), Everything(rounds=ROUNDS)]
)
def test_an_absent_agents_share_follows_from_public_figures(
    hide: Adjacency, paper: Problem
) -> None:
    """Two worlds that differ in agent 2 differ in rounds that it contributes to, in no other."""
    plan = plan_for(paper, hide=hide)
    parties, totals = parties_of(plan), ContributionTotals(plan.cloud.sums.count)
    seen = []
    for x2 in (-1.0, 1.0):
        bare = Bare(noisy_sigma(plan))
        line = MachineRun(plan, DualAveraging(), bare, ROUNDS, straggler="fallback")
        for k in range(1, ROUNDS + 1):
            x = np.full(7, 0.5)
            x[1] = x2
            speaking = [a for a in range(1, 8) if a != 2 or k <= 3]
            line.say(k, {a: contributed(plan, parties((a,)), x) for a in speaking})
            line.do(line.machine.deadline(k))
        seen.append(np.array(bare.seen))
        others = totals(line.used[-1]) + fallbacks_of(plan)(frozenset({2}))
        assert bare.seen[-1].tolist() == others.tolist()
    differ = np.any(seen[0] != seen[1], axis=1)
    assert differ.tolist() == [k <= 3 for k in range(1, ROUNDS + 1)]


class Bare(Sampler):
    """No noise, and a memory of what it was to be added to."""

    def __init__(self, sigma: Array) -> None:
        self._sampler, self.seen = SimulatedSampler(sigma * 1e-30, 1), list[Any]()

    def release(self, values: Any) -> Released:
        self.seen.append(np.array(values))
        return self._sampler.release(values)

    def release_multiples(self, multiples: Any) -> Released:
        self.seen.append(np.array(multiples))
        return Released(values=multiples * 1.0, multiples=multiples, grid=np.ones(multiples.size))

    def release_modular(self, residues: Any) -> Released:
        return self.release_multiples(residues)


def test_of_a_split_cloud_masks_of_the_present_go_and_fallbacks_come(paper: Problem) -> None:
    plan = split_plan(paper)
    x = np.linspace(-0.5, 0.5, 7)
    rng = np.random.default_rng(2)
    masks = np.zeros(plan.cloud.sums.count, dtype=np.int64)
    parts, name = [], MaskName(key=bytes(32), session=bytes(16), round=1)
    for part in parts_at(plan, x)[2:]:
        mask = rng.integers(-(2**62), 2**62, part.party.sums.size)
        masks[part.party.sums] += mask
        values = np.frombuffer(part.data, "<i8") + mask
        parts.append(Part(party=part.party, data=join_mask(name, pack_whole(values))))
    expected = ContributionTotals(plan.cloud.sums.count)(parts_at(plan, x)[2:])
    expected = expected + fallbacks_of(plan)(frozenset({1, 2}))
    for there, held in ((parts, {1, 2}), ([], set(range(1, 8)))):
        bare = Bare(noisy_sigma(plan))
        rounds = Rounds(plan, DualAveraging(), bare, 3)
        answer = pack_whole(masks if there else 0 * masks)
        rounds.play(1, tuple(there), bytes(32), frozenset(held), answer)
        whole = expected if there else fallbacks_of(plan)(frozenset(held))
        assert bare.seen[-1].tolist() == whole.tolist()


def test_of_the_papers_release_an_absent_agent_counts_with_its_public_state(paper: Problem) -> None:
    plan = plan_for(paper, method="paper")
    x = np.linspace(-0.5, 0.5, 7)
    there = x.copy()
    there[3] = fallback_states(plan)[3]
    seen = []
    for parts, held in (
        ([p for p in parts_at(plan, x) if p.party.agents != (4,)], frozenset({4})),
        (parts_at(plan, there), frozenset[int]()),
    ):
        bare = Bare(noisy_sigma(plan))
        Rounds(plan, Tikhonov(), bare, 3).play(1, tuple(parts), bytes(32), held)
        seen.append(bare.seen[-1].tolist())
    assert seen[0] == seen[1]


@pytest.mark.parametrize("method", ["joint", "paper"])
def test_an_auditor_finds_what_an_absent_agent_would_have_contributed(
    method: str, paper: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_for(paper, method=method)
    settings: Any = {
        "agent": 1,
        "runs": 100,
        "rounds": 4,
        "sampler": SecureSampler(noisy_sigma(plan)),
    }
    assert audit(paper, plan, **settings).leaks == ""
    play, last = Rounds.play, dict[Any, Part]()

    def repeats(self: Any, k: int, parts: Any, previous: Any, held: Any, *more: Any) -> Any:
        last.update({part.party.agents: part for part in parts})
        there = {part.party.agents for part in parts}
        again = [p for who, p in last.items() if who not in there and held.issuperset(who)]
        return play(self, k, (*parts, *again), previous, held, *more)

    monkeypatch.setattr(Rounds, "play", repeats)
    assert "missed" in audit(paper, plan, **settings).leaks


# --- whole runs ----------------------------------------------------------------------------------


async def test_a_run_that_one_leaves_and_another_never_joins_ends_in_time(site: Site) -> None:
    plan = site.plan()  # hides a trajectory
    settings: dict[str, Any] = {
        "rounds": 500, "deadline": 0.3, "first_deadline": 1.0, "keep_states": True
    }  # fmt: skip
    async with site.serving(plan, **settings) as cloud:
        agents = [site.member(cloud, i) for i in range(1, 7)]
        async with taking_part(*agents) as tasks:
            while cloud.round < 20:
                await asyncio.sleep(0.002)
            tasks[2].cancel()
            began = time.perf_counter()
            result = await cloud.finished(linger=0)
            assert time.perf_counter() - began < 30  # not 480 deadlines
    assert 500 < result.held <= 2 * 500 - 20
    assert summarise(site.store).held == result.held
    audited = audit_store(plan, site.store)  # fallbacks are accounted for
    assert audited.noise.passed


async def test_a_split_run_that_an_agent_never_joins_ends_in_its_time(split_site: Site) -> None:
    plan = split_plan(split_site.problem)
    async with split_site.halves(plan, rounds=8, first_deadline=0.5) as (cloud, _):
        agents = [split_site.member(cloud, i) for i in range(1, 7)]
        async with taking_part(*agents):
            result = await cloud.finished(linger=0)
    assert result.held == 8


async def test_a_run_ends_after_a_restart_to_which_no_agent_returns(site: Site) -> None:
    settings: dict[str, Any] = {
        "rounds": 80, "first_deadline": 0.5, "deadline": 0.02, "seed": 1
    }  # fmt: skip
    async with site.serving(**settings) as cloud:
        gateway = site.member(cloud, *range(1, 8), allow_simulated=True)
        async with taking_part(gateway):
            while cloud.round < 3:
                await asyncio.sleep(0.001)
    began = time.perf_counter()
    async with site.serving(**settings) as cloud:
        left = 80 - cloud.round
        result = await cloud.finished(linger=0)
    assert result.held == 7 * left > 0
    assert 0.5 < time.perf_counter() - began < 30


# --- Hold-last-value on the real machine, allowed where it is sound ---


HELD_ROUNDS, DROPS = 100, 5
HOLD: dict[str, Any] = {"straggler": "hold", "deadline": 1.0}


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    """The problem of the README."""
    x = sv.agents(3, lower=-10, upper=10)
    problem = Problem(
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
        line = MachineRun(made, DualAveraging(), sampler, HELD_ROUNDS, straggler="hold")
        for k in range(1, HELD_ROUNDS + 1):
            states = np.array([0.5, -3.5 + present * differences.get(k, 0.0), -3.0])
            speaking = (1, 2, 3) if k <= DROPS or not drops else (1, 3)
            line.say(k, {a: contributed(made, parties((a,)), states) for a in speaking})
            line.do(line.machine.deadline(k))
        assert len(line.used) == HELD_ROUNDS
        worlds.append(np.array([totals(parts) for parts in line.used]) / 2**26)  # of sigma
    return float(np.linalg.norm(worlds[0] - worlds[1]))


def test_held_words_count_b_sqrt_1_plus_h_of_a_trajectory(certificate: Certificate) -> None:
    made = plan(certificate, epsilon=math.log(3), delta=0.05, hide=Trajectory(radius=1.0))
    once = played(made, {DROPS: 1.0}, drops=False)
    held = played(made, {DROPS: 1.0}, drops=True)
    assert once <= made.guarantee(1).gdp_mu
    assert held == pytest.approx(once * math.sqrt(1 + HELD_ROUNDS - DROPS), rel=1e-9)
    assert held > 5 * made.guarantee(1).gdp_mu  # which is why the cloud refuses it


@pytest.mark.parametrize(
    ("hide", "far"),
    [(Offset(radius=1.0, rounds=HELD_ROUNDS), 1.0), (Everything(rounds=HELD_ROUNDS), 7.0)],
)
def test_held_contributions_stay_below_the_claim_where_hold_is_allowed(
    hide: Adjacency, far: float, certificate: Certificate
) -> None:
    made = plan(certificate, epsilon=math.log(3), delta=0.05, hide=hide)
    everywhere = dict.fromkeys(range(1, HELD_ROUNDS + 1), far)
    for differences in ({DROPS: far}, everywhere):
        assert played(made, differences, drops=True) <= made.guarantee(1).gdp_mu
    assert played(made, everywhere, drops=True) > 0.3 * made.guarantee(1).gdp_mu


async def test_hold_is_refused_where_a_trajectory_is_hidden(site: Site) -> None:
    where: dict[str, Any] = {"rounds": 5, "keys": site.keys, "store": site.store}
    with pytest.raises(PrivacyError, match=r"sv\.Offset"):
        Cloud(site.plan(), **where, **HOLD)
    assert not (site.store).exists()
    for hide in (Offset(radius=1.0, rounds=5), Everything(rounds=5)):
        Cloud(plan_for(site.problem, hide=hide), **where, **HOLD)


@pytest.mark.parametrize("hide", [Trajectory(radius=1.0), Offset(radius=1.0, rounds=5)])
def test_held_rounds_end_where_a_trajectory_is_hidden(site: Site, hide: Adjacency) -> None:
    made = plan_for(site.problem, hide=hide)
    path = site.store

    async def start() -> None:
        async with serving(made, site.keys, path, rounds=5):
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
