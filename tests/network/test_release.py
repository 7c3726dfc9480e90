"""What leaves the cloud: noise of the planned size on every number, and nothing that has none."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from network_harness import MachineRun, Site, parts_at, plan_for, play, run
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from plans import planned
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.formula.canonical import add
from sottovoce.formula.derive import derivative
from sottovoce.formula.expression import number
from sottovoce.network.protocol.actions import Part, Party, Send
from sottovoce.network.protocol.codec import pack, pack_release, pack_whole
from sottovoce.network.protocol.collected import ContributionTotals
from sottovoce.network.protocol.messages import Round
from sottovoce.network.round_arithmetic import Rounds, noisy_sigma
from sottovoce.network.setup import parties_of
from sottovoce.network.store import summarise, transcript
from sottovoce.paper.paper_rounds import states_of
from sottovoce.paper.tikhonov import Tikhonov
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.sampler import Released, Sampler, SecureSampler, grid_of
from sottovoce.problem.groups import lower_bounds, upper_bounds
from sottovoce.problem.problem import Problem
from sympy_oracle import function_of

Floats = NDArray[np.float64]

ROUNDS = 2_000
FALSE_ALARM = 1e-9
"""Of each single comparison, of which no test makes more than 500: of a test below 1e-6."""
"""Of each comparison below; a test makes fewer than a thousand."""


def exact_outputs(plan: NoisePlan) -> Any:
    """``x ->`` the sums, or g and the released gradient entries, from formulas alone."""
    symbols = [s for group in plan.cloud.groups for s in group.symbols]
    stated = plan.cloud.sums.families if plan.method == "joint" else plan.cloud.constraints
    rows = [
        add(row, number(offset))
        for family in stated
        for row, offset in zip(family.named, family.offset, strict=True)
    ]
    entries = [
        derivative(rows[o.row], symbols[o.column]) for o in plan.outputs if o.column is not None
    ]
    formulas = function_of(symbols, [*rows, *entries])
    return lambda x: np.array(formulas(x), dtype=np.float64)


def anything(parties: list[Party], generator: Any, beyond: float) -> dict[int, bytes]:
    """Random words of every agent, some outside of what is admissible."""
    said = {}
    for party in parties:
        (agent,) = party.agents
        if party.owners is not None:
            said[agent] = pack(generator.uniform(party.lower - beyond, party.upper + beyond))
        else:
            more = int(beyond * 2**26)
            said[agent] = pack_whole(generator.integers(party.least - more, party.most + more))
    return said


class Scripted(Sampler):
    """Releases the numbers of a script, whatever the values are."""

    def __init__(self, sigma: Floats, script: int) -> None:
        self._grid = np.asarray(grid_of(sigma))
        self._generator = np.random.default_rng(script)

    def release(self, values: ArrayLike) -> Released:
        multiples = self._generator.integers(-(2**28), 2**28, self._grid.size)
        return Released(values=multiples * self._grid, multiples=multiples, grid=self._grid)

    def release_multiples(self, multiples: Any) -> Released:
        return self.release(multiples)


@pytest.mark.parametrize("method", ["joint", "paper"])
@pytest.mark.parametrize("name", ["paper", "coupled"])
def test_what_is_sent_depends_on_what_is_said_through_the_releases_alone(
    name: str, method: Any, request: pytest.FixtureRequest
) -> None:
    plan = plan_for(request.getfixturevalue(name), method=method)
    algorithm = DualAveraging() if method == "joint" else Tikhonov()
    describe = parties_of(plan)
    parties = [describe((agent,)) for agent in range(1, plan.cloud.agents + 1)]

    def heard(words: int, script: int, beyond: float = 0.0) -> list[bytes]:
        generator = np.random.default_rng(words)
        played = MachineRun(plan, algorithm, Scripted(noisy_sigma(plan), script), 8)
        for k in range(1, 9):
            played.say(k, anything(parties, generator, beyond))
        return played.sent

    one = heard(words=1, script=1)
    assert sum(b"price" in message for message in one) >= 9  # eight rounds and the end
    assert heard(words=2, script=1) == one
    assert heard(words=3, script=1, beyond=9.0) == one  # what lies outside tells nothing either
    assert heard(words=1, script=2) != one


@pytest.mark.parametrize("method", ["joint", "paper"])
def test_what_is_sent_has_gaussian_noise_of_the_plan(method: Any, coupled: Problem) -> None:
    plan = plan_for(coupled, method=method)
    scales = np.geomspace(0.02, 50.0, plan.sigma.size)
    plan = replace(
        plan,
        outputs=tuple(
            replace(o, sigma=float(s)) for o, s in zip(plan.outputs, scales, strict=True)
        ),
    )
    algorithm = DualAveraging() if method == "joint" else Tikhonov()
    rounds = Rounds(plan, algorithm, SecureSampler(noisy_sigma(plan)), ROUNDS)
    # Near 0 every constraint has slack: states that never answer to prices would drive them away.
    x = np.random.default_rng(3).uniform(lower_bounds(plan.domain), upper_bounds(plan.domain)) / 50
    truth, parts, digest = exact_outputs(plan)(x), parts_at(plan, x), bytes(32)
    noise = np.empty((ROUNDS, scales.size))
    for k in range(1, ROUNDS + 1):
        record, released = rounds.play(k, parts, digest, frozenset())
        logged = np.frombuffer(pack_release(released), dtype="<i8") * grid_of(plan.sigma)
        if method == "paper":
            assert np.array_equal(record.y, logged[plan.cloud.rows :])
        noise[k - 1] = logged - truth
        digest = record.digest
        rounds.prepare()
    check_noise(noise / plan.sigma)


def check_noise(z: Floats) -> None:
    """Check draws of shape (rounds, outputs): standard normal, tails too, and independent."""
    rounds = len(z)
    far = stats.norm.isf(FALSE_ALARM / 2)
    assert np.abs(z.mean(axis=0)).max() < far / math.sqrt(rounds)
    low, high = stats.chi2.interval(1 - FALSE_ALARM, rounds)
    square_sums = np.square(z).sum(axis=0)
    assert low < square_sums.min()
    assert square_sums.max() < high
    beyond = int(np.sum(np.abs(z) > 3))
    assert stats.binom.cdf(beyond, z.size, 2 * stats.norm.sf(3)) > FALSE_ALARM
    for lag in range(3):
        product = z[lag:].T @ z[: rounds - lag] / rounds
        assert np.abs(product - (lag == 0) * np.diag(np.diag(product))).max() < far / math.sqrt(
            rounds - lag
        )


@pytest.mark.parametrize("method", ["joint", "paper"])
def test_the_cloud_adds_the_planned_sigma_to_every_kind_of_output(
    method: Any, coupled: Problem, keys: Path, tmp_path: Path
) -> None:
    plan = plan_for(coupled, sigma=4.0, gradient_sigma=2.0, method=method)
    algorithm = DualAveraging() if method == "joint" else Tikhonov()
    settings: dict[str, Any] = {"rounds": 60, "keep_states": True, "algorithm": algorithm}
    run(play(coupled, plan, keys, tmp_path, **settings))
    kept = transcript(tmp_path / "run.db")
    assert kept.said is not None
    parties = parties_of(plan)
    said = [tuple(Part(party=parties(a), data=d) for a, d in part) for part in kept.said]
    released = kept.multiples * grid_of(plan.sigma)
    if method == "paper":
        outputs = exact_outputs(plan)
        truth = np.array([outputs(states_of(parts, np.zeros(coupled.size))) for parts in said])
    else:
        totals = ContributionTotals(plan.cloud.sums.count)
        truth = np.array([totals(parts) for parts in said]) * grid_of(plan.sigma)
    z = (released - truth) / plan.sigma
    for part in (z[:, : plan.cloud.rows], z[:, plan.cloud.rows :]):
        low, high = stats.chi2.interval(1 - FALSE_ALARM, part.size)
        assert low < np.square(part).sum() < high


@pytest.mark.parametrize("method", ["joint", "paper"])
def test_nothing_outside_the_certified_domain_enters_a_round(method: Any, paper: Problem) -> None:
    made = planned()
    assert np.any(upper_bounds(made.cloud.groups) > upper_bounds(made.domain))
    plan = made if method == "joint" else plan_for(paper, method="paper")
    algorithm = DualAveraging() if method == "joint" else Tikhonov()
    played = MachineRun(plan, algorithm, SecureSampler(noisy_sigma(plan)), 5)
    # What is refused or clipped does not matter here: the round goes on with admissible words.
    beyond = upper_bounds(plan.cloud.groups) + 1.0
    everybody = {p.party.agents[0]: p.data for p in parts_at(plan, beyond)}
    played.say(1, everybody)
    played.say(1, {p.party.agents[0]: p.data for p in parts_at(plan, np.zeros(beyond.size))})
    (used,) = played.used
    assert all(part.party.range.holds(part.data) for part in used)
    assert any(part.data != everybody[part.party.agents[0]] for part in used)


async def test_a_round_is_on_disk_before_a_byte_of_it_is_sent(site: Site) -> None:
    seen: list[tuple[int, int]] = []

    async with site.serving(rounds=5) as cloud:
        post = cloud._server.post

        def watched(action: Send) -> None:
            if isinstance(action.message, Round):
                # Read by a connection of its own, which sees what is committed and no more.
                seen.append((action.message.round, summarise(site.store).rounds))
            post(action)

        cloud._server.post = watched  # type: ignore[method-assign]
        gateway = site.member(cloud, *range(1, 8))
        await gateway.run()
    assert seen == [(k, k) for k in range(1, 6)]
