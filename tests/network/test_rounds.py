"""Rounds without sockets and disk: sums of whole numbers, and the very round of the engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import pytest
from network_harness import contributed, parts_at, plan_for

import sottovoce as sv
from plans import planned
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.algorithm.public_sum import PublicSum
from sottovoce.errors import InputError
from sottovoce.kernels.cloud_kernel import CloudKernel
from sottovoce.network.failures import DivergedError
from sottovoce.network.protocol.actions import CloudMemory, JournalRow, Part, Record
from sottovoce.network.protocol.codec import MalformedError, pack, pack_whole
from sottovoce.network.round_arithmetic import (
    Rounds,
    SimulatedSampler,
    deployed_sampler,
    noisy_sigma,
)
from sottovoce.network.setup import parties_of
from sottovoce.paper.tikhonov import Tikhonov
from sottovoce.privacy import sampler
from sottovoce.privacy.sampler import Released, Sampler
from sottovoce.problem.gallery import coupled, paper
from sottovoce.problem.groups import Array, lower_bounds, upper_bounds
from sottovoce.problem.problem import Problem
from sottovoce.simulation.simulate import simulate

NOBODY: frozenset[int] = frozenset()


@final
class Told(Sampler):
    """Releases what it is told, whatever was contributed."""

    def __init__(self, releases: Iterable[Array]) -> None:
        self._releases = iter(releases)

    def release(self, values: Any) -> Released:
        return Released(values=np.array(next(self._releases)))

    def release_multiples(self, multiples: Any) -> Released:
        return self.release(multiples)


def played(rounds: Rounds, count: int, since: int = 0) -> Record:
    """The last of so many rounds, after round ``since``."""
    digest = bytes(32)
    for k in range(since + 1, since + count + 1):
        record, _ = rounds.play(k, (), digest, NOBODY)
        digest = record.digest
    return record


@final
@dataclass(frozen=True)
class Ascent:
    """A user's own step: ascent on the dual, with a memory that counts the rounds."""

    theta: float = 0.5

    def share(self, k: Any, rounds: int, *, noisy: bool) -> Array:
        return 1.0 / np.atleast_1d(np.asarray(k, dtype=np.float64))

    def memory_size(self, sums: int) -> int:
        return 1

    def cloud_round(
        self, k: int, y: Array, price: Array, memory: Array, public: PublicSum, nearest: Any
    ) -> Array:
        memory[0] += 1.0
        metric = 1.0 / np.sqrt(memory[0])
        aim = y + price / metric
        return np.asarray(metric * (aim - nearest(aim)))


@pytest.mark.parametrize("algorithm", [DualAveraging(), Ascent()], ids=["default", "own step"])
@pytest.mark.parametrize("name", ["paper", "coupled"])
def test_the_same_releases_give_the_same_prices_as_solve_bit_for_bit(
    name: str, algorithm: Any, request: pytest.FixtureRequest
) -> None:
    problem: Problem = request.getfixturevalue(name)
    made = plan_for(problem, sigma=0.5)
    here = simulate(problem, made, rounds=40, seed=3, transcript=True, algorithm=algorithm)
    assert here.transcript is not None
    record = played(Rounds(made, algorithm, Told(here.transcript.y[0]), 40), 40)
    assert record.price.tolist() == here.last_price[0].tolist()
    assert record.answer.tolist() == here.price[0].tolist()
    assert np.any(record.price != 0)


def test_a_warm_start_of_other_sums_or_for_another_algorithm_is_refused() -> None:
    made = plan_for(paper())
    other = simulate(coupled(), rounds=3).warm_start()
    with pytest.raises(InputError, match="the same sums"):
        Rounds(made, DualAveraging(), deployed_sampler(made), 5, other)
    with pytest.raises(InputError, match=r"must be for sv\.DualAveraging"):
        Rounds(made, Ascent(), deployed_sampler(made), 5, other)


@pytest.mark.parametrize("name", ["paper", "coupled"])
def test_releases_have_the_bits_of_simulate(name: str, request: pytest.FixtureRequest) -> None:
    problem: Problem = request.getfixturevalue(name)
    made = plan_for(problem, sigma=0.5)
    lower, upper = lower_bounds(made.domain), upper_bounds(made.domain)
    x = np.random.default_rng(4).uniform(lower, upper)
    here = simulate(problem, made, rounds=1, seed=3, x0=x, transcript=True)
    assert here.transcript is not None
    rounds = Rounds(made, DualAveraging(), SimulatedSampler(noisy_sigma(made), 3), 1)
    record, released = rounds.play(1, parts_at(made, x), bytes(32), NOBODY)
    assert released.values.tolist() == here.transcript.y[0, 0].tolist()
    assert record.price.tolist() == here.last_price[0].tolist()


def test_noise_is_drawn_before_its_round_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    draws: list[int] = []
    draw = sampler._discrete_gaussian()

    def counted(zeros: list[int]) -> Any:
        draws.append(len(zeros))
        return draw(zeros)

    monkeypatch.setattr(sampler, "_discrete_gaussian", lambda: counted)
    monkeypatch.setattr(sampler, "BATCH", 1)
    monkeypatch.setattr(sampler.SecureSampler, "refill_beside", lambda self: None)
    made = plan_for(paper())
    rounds = Rounds(made, DualAveraging(), sampler.SecureSampler(noisy_sigma(made)), 3)
    parts = parts_at(made, np.zeros(7))
    for k in (1, 2, 3):
        before = len(draws)
        assert before == k
        rounds.play(k, parts, bytes(32), NOBODY)
        assert len(draws) == before
        rounds.prepare()


@pytest.mark.parametrize("method", ["joint", "paper"])
def test_prices_that_run_away_end_the_round_with_its_number(
    method: Any, paper: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan_for(paper, method=method)
    algorithm = DualAveraging() if method == "joint" else Tikhonov(gamma_bar=1e308)
    values = np.zeros(made.sigma.size)
    rounds = Rounds(made, algorithm, Told([values, values + 1e300]), 5)
    played(rounds, 1)
    if method == "joint":
        monkeypatch.setattr(CloudKernel, "round", lambda *arguments, **more: False)
    with pytest.raises(DivergedError, match="round 2") as caught:
        played(rounds, 1, since=1)
    assert caught.value.k == 2


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [("paper", DualAveraging()), ("coupled", DualAveraging()), ("many", DualAveraging()),
     ("paper", Ascent()), ("paper", Tikhonov())],
    ids=["default", "region", "many sums", "own step", "paper's release"],
)  # fmt: skip
def test_a_cloud_goes_on_from_its_memory_as_if_it_had_never_stopped(
    name: str, algorithm: Any, request: pytest.FixtureRequest
) -> None:
    problem = many_sums() if name == "many" else request.getfixturevalue(name)
    steps = isinstance(algorithm, Tikhonov)
    made = plan_for(problem, method="paper" if steps else "joint")
    releases = np.random.default_rng(5).normal(30.0, 20.0, size=(24, noisy_sigma(made).size))
    whole = played(Rounds(made, algorithm, Told(releases), 24), 24)
    half = played(Rounds(made, algorithm, Told(releases), 24), 12)
    assert half.memory is not None
    row = JournalRow(k=12, context=pack(half.price), release=pack(releases[11]), digest=half.digest)
    again = Rounds(made, algorithm, Told(releases[12:]), 24)
    resumed = again.resume(row, half.memory, NOBODY, (), secure=False)
    for field in ("sent_price", "price", "answer", "released", "y", "digest"):
        before, after = getattr(half, field), getattr(resumed, field)
        assert np.array_equal(np.atleast_1d(before), np.atleast_1d(after)), field
    ended = played(again, 12, since=12)
    assert whole.memory == ended.memory
    assert np.any(whole.price != 0)


def many_sums() -> Problem:
    """More sums than are learnt as a full matrix."""
    x = sv.agents(3, lower=-1, upper=1, dim=30)
    return Problem(
        objectives=[sum((x[i][c] - 2) ** 2 for c in range(30)) for i in range(3)],
        constraints=[x[0][c] + x[1][c] + x[2][c] <= 1 for c in range(30)],
    )


def test_a_memory_of_another_length_is_refused(paper: Problem) -> None:
    made = plan_for(paper)
    rounds = Rounds(made, DualAveraging(), Told(np.zeros((1, 4))), 9)
    memory = played(rounds, 1).memory
    assert memory is not None
    row = JournalRow(k=1, context=b"", release=pack(np.zeros(4)), digest=bytes(32))
    short = CloudMemory(k=1, state=memory.state[:-8], discrepancy=b"", confirmed=None)
    with pytest.raises(MalformedError, match="numbers, got"):
        rounds.resume(row, short, NOBODY, (), secure=False)


@pytest.mark.parametrize(("method", "algorithm"), [("joint", Tikhonov()), ("paper", None)])
def test_a_plan_for_another_release_is_refused(method: Any, algorithm: Any, paper: Problem) -> None:
    made = plan_for(paper, method=method)
    with pytest.raises(InputError, match="use sv"):
        Rounds(made, algorithm or DualAveraging(), deployed_sampler(made), 5)


def test_a_sum_that_nobody_can_move_is_a_public_constant_and_asked_of_nobody() -> None:
    x = sv.agents(4, lower=[0.0, 0.0, 0.3, 0.4], upper=[1.0, 1.0, 0.3, 0.4])
    problem = Problem(
        objectives=[(s - 1) ** 2 for s in x], constraints=[x[0] + x[1] <= 1, x[2] + x[3] <= 1]
    )
    made = plan_for(problem)
    still = replace(made.outputs[1], sigma=0.0)
    made = replace(made, outputs=(made.outputs[0], still))
    parties = [parties_of(made)((i,)) for i in range(1, 5)]
    assert [party.sums.tolist() for party in parties] == [[0], [0], [], []]
    rounds = Rounds(made, DualAveraging(), deployed_sampler(made), 5)
    parts = tuple(Part(party=p, data=pack_whole(p.least)) for p in parties)
    _, released = rounds.play(1, parts, bytes(32), NOBODY)
    assert released.values.size == 1
    y, _ = rounds._release.outputs(released.values)
    here = simulate(problem, made, rounds=2, seed=1, transcript=True)
    assert here.transcript is not None
    for constant in (y[1], *here.transcript.y[0, :, 1]):
        assert constant == pytest.approx(0.7, rel=1e-14)


def test_every_honest_contribution_lies_in_its_certified_range(coupled: Problem) -> None:
    made = planned("coupled")
    lower, upper = lower_bounds(made.domain), upper_bounds(made.domain)
    rng = np.random.default_rng(5)
    corners = [np.where(rng.random(lower.size) < 0.5, lower, upper) for _ in range(16)]
    inside = [rng.uniform(lower, upper) for _ in range(16)]
    everybody = tuple(range(1, coupled.agents + 1))
    for x in (lower, upper, *corners, *inside):
        for part in (*parts_at(made, x), *parts_at(made, x, everybody)):
            assert part.party.range.holds(part.data)


def test_ranges_are_those_of_the_certified_domain(paper: Problem) -> None:
    made = planned()
    lower, upper = lower_bounds(made.domain), upper_bounds(made.domain)
    assert np.any(upper < upper_bounds(paper.cloud.groups))
    parties = parties_of(made)
    for agent in range(1, 8):
        party = parties((agent,))
        at = np.linspace(lower, upper, 65)
        said = [np.frombuffer(contributed(made, party, x), "<i8") for x in at]
        least, most = np.min(said, axis=0), np.max(said, axis=0)
        loose = 0.01 * (most - least)  # of points that miss an extremum inside
        assert np.all((party.least <= least) & (party.least >= least - loose - 2))
        assert np.all((party.most >= most) & (party.most <= most + loose + 2))
