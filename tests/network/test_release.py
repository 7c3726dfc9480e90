"""What leaves the cloud: noise of the planned size on every number, and nothing that has none."""

from __future__ import annotations

import math
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy as sp
from network_harness import member, plan_for, play, run, serving
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from sottovoce.algorithm.averaging import Averaging
from sottovoce.algorithm.tikhonov import Tikhonov
from sottovoce.certify.certificate import certify
from sottovoce.network.protocol.actions import Action, Commit, Send
from sottovoce.network.protocol.cloud import CloudMachine
from sottovoce.network.protocol.codec import encode, pack
from sottovoce.network.protocol.messages import VERSION, Hello, Round, State
from sottovoce.network.protocol.receipt import Notary
from sottovoce.network.rounds import Rounds, first_carried, noisy_sigma, release_bytes
from sottovoce.network.setup import setup_of
from sottovoce.network.store import summarise
from sottovoce.privacy.plan import NoisePlan
from sottovoce.privacy.plan import plan as make_plan
from sottovoce.privacy.sampler import Released, Sampler, SecureSampler, grid_of
from sottovoce.problem.agents import lower_bounds, upper_bounds
from sottovoce.problem.problem import Problem

Floats = NDArray[np.float64]

ROUNDS = 2_000
FALSE_ALARM = 1e-7
"""Of each comparison below; a test makes fewer than a thousand."""

CONFIG = bytes(32)


def exact_outputs(plan: NoisePlan) -> Any:
    """``x -> (g, released gradient entries)``, from the stated formulas alone."""
    symbols = [s for group in plan.cloud.groups for s in group.symbols]
    g = [
        row + sp.Float(float(offset))
        for family in plan.cloud.constraints
        for row, offset in zip(family.rest, family.offset, strict=True)
    ]
    pairs = zip(plan.gradient_rows.tolist(), plan.gradient_columns.tolist(), strict=True)
    entries = [sp.diff(g[row], symbols[column]) for row, column in pairs]
    formulas = sp.lambdify([symbols], [*g, *entries])
    return lambda x: np.array(formulas(x), dtype=np.float64)


class Run:
    """A cloud without sockets and disk: takes states, keeps every byte that it sends."""

    def __init__(self, plan: NoisePlan, algorithm: Any, sampler: Sampler, rounds: int) -> None:
        self.rounds = Rounds(plan, algorithm, sampler, rounds)
        self.last = rounds
        setup = setup_of(plan, algorithm, "{}", CONFIG, rounds)
        self.offsets = setup.offsets
        self.machine = CloudMachine(setup, Notary(b"k" * 32, CONFIG), lambda k: None)
        self.sent: list[bytes] = []
        self.used: list[Floats] = []
        for agent in range(1, len(self.offsets)):
            hello = Hello(version=VERSION, agents=[agent], config=b"", round=0, receipt=b"")
            self.machine.connect(agent, {agent})
            self.do(self.machine.receive(agent, hello))

    def say(self, k: int, x: Floats) -> None:
        """Every agent sends its part of x(k)."""
        for agent in range(1, len(self.offsets)):
            own = x[self.offsets[agent - 1] : self.offsets[agent]]
            self.do(self.machine.receive(agent, State(round=k, x=pack(own))))

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.sent.append(encode(action.message))
            elif isinstance(action, Commit) and action.k > self.last:
                self.do(self.machine.finished())
            elif isinstance(action, Commit):
                machine = self.machine
                previous = CONFIG if machine.last is None else machine.last.digest
                record, _ = self.rounds.play(
                    action.k, action.x, machine.carried, previous, action.held
                )
                self.used.append(record.x)
                self.do(machine.committed(record))


class Scripted(Sampler):
    """Releases the numbers of a script, whatever the values are."""

    def __init__(self, sigma: Floats, script: int) -> None:
        self._grid = np.asarray(grid_of(sigma))
        self._generator = np.random.default_rng(script)

    def release(self, values: ArrayLike) -> Released:
        multiples = self._generator.integers(-(2**28), 2**28, self._grid.size)
        return Released(values=multiples * self._grid, multiples=multiples, grid=self._grid)


@pytest.mark.parametrize("algorithm", [Tikhonov(), Averaging()], ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("name", ["paper", "coupled"])
def test_what_is_sent_depends_on_states_through_the_releases_alone(
    name: str, algorithm: Any, request: pytest.FixtureRequest
) -> None:
    plan = plan_for(request.getfixturevalue(name))
    lower, upper = lower_bounds(plan.domain), upper_bounds(plan.domain)

    def transcript(states: int, script: int, beyond: float = 0.0) -> list[bytes]:
        generator = np.random.default_rng(states)
        played = Run(plan, algorithm, Scripted(noisy_sigma(plan), script), 8)
        for k in range(1, 10):
            played.say(k, generator.uniform(lower - beyond, upper + beyond))
        return played.sent

    one = transcript(states=1, script=1)
    assert sum(b"mu" in message for message in one) >= 9  # eight rounds and the end
    assert transcript(states=2, script=1) == one
    assert transcript(states=3, script=1, beyond=9.0) == one  # states outside tell nothing either
    assert transcript(states=1, script=2) != one


def test_what_is_sent_has_independent_gaussian_noise_of_the_planned_sigma(
    coupled: Problem,
) -> None:
    plan = plan_for(coupled)
    rows, outputs = plan.cloud.rows, plan.sigma.size
    scales = np.geomspace(0.02, 50.0, outputs)
    plan = replace(plan, sigma_g=scales[:rows], gradient_sigma=scales[rows:])
    algorithm = Averaging()
    rounds = Rounds(plan, algorithm, SecureSampler(noisy_sigma(plan)), ROUNDS)
    x = np.random.default_rng(3).uniform(lower_bounds(plan.domain), upper_bounds(plan.domain))
    truth = exact_outputs(plan)(x)
    carried, digest = first_carried(algorithm, rows), CONFIG
    noise = np.empty((ROUNDS, outputs))
    for k in range(1, ROUNDS + 1):
        record, released = rounds.play(k, x, carried, digest, frozenset())
        logged = np.frombuffer(release_bytes(released), dtype="<i8") * grid_of(plan.sigma)
        assert np.array_equal(record.y, logged[rows:])
        noise[k - 1] = logged - truth
        carried, digest = record.carried, record.digest
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


def test_the_cloud_adds_the_planned_sigma_to_every_kind_of_output(
    coupled: Problem, keys: Path, tmp_path: Path
) -> None:
    plan = plan_for(coupled, sigma=4.0, gradient_sigma=2.0)
    run(play(coupled, plan, keys, tmp_path, rounds=60, keep_states=True))
    database = sqlite3.connect(tmp_path / "run.db")
    rows = database.execute("SELECT x, release, y FROM rounds ORDER BY k").fetchall()
    database.close()
    outputs = exact_outputs(plan)
    truth = np.array([outputs(np.frombuffer(x, dtype="<f8")) for x, _, _ in rows])
    released = np.array([np.frombuffer(r, dtype="<i8") for _, r, _ in rows]) * grid_of(plan.sigma)
    sent = np.array([np.frombuffer(y, dtype="<f8") for _, _, y in rows])
    assert np.array_equal(sent, released[:, plan.cloud.rows :])
    z = (released - truth) / plan.sigma
    for part in (z[:, : plan.cloud.rows], z[:, plan.cloud.rows :]):
        low, high = stats.chi2.interval(1 - FALSE_ALARM, part.size)
        assert low < np.square(part).sum() < high


def test_no_state_outside_the_certified_domain_enters_a_round(paper: Problem) -> None:
    plan = make_plan(certify(paper.cloud), epsilon=math.log(3), delta=0.05, radius=1.0)
    lower, upper = lower_bounds(plan.domain), upper_bounds(plan.domain)
    box = upper_bounds(plan.cloud.groups)
    assert np.any(box > upper)
    played = Run(plan, Averaging(), SecureSampler(noisy_sigma(plan)), 5)
    # What is refused or clipped does not matter here: the round goes on with admissible states.
    played.say(1, box)
    played.say(1, np.zeros(box.size))
    (x,) = played.used
    assert np.all((lower <= x) & (x <= upper))


def test_a_round_is_on_disk_before_a_byte_of_it_is_sent(
    paper: Problem, keys: Path, tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []

    async def main() -> None:
        async with serving(plan_for(paper), keys, tmp_path / "run.db", rounds=5) as cloud:
            post = cloud._peers.post

            def watched(action: Send) -> None:
                if isinstance(action.message, Round):
                    # Read by a connection of its own, which sees what is committed and no more.
                    seen.append((action.message.round, summarise(tmp_path / "run.db").rounds))
                post(action)

            cloud._peers.post = watched  # type: ignore[method-assign]
            gateway = member(paper, list(range(1, 8)), cloud, keys, tmp_path)
            await gateway.run()

    run(main())
    assert seen == [(k, k) for k in range(1, 6)]
