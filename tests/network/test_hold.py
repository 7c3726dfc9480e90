"""Holding stragglers at their last state: played on the real machine, allowed where it is sound."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from network_harness import plan_for, run, serving
from typer.testing import CliRunner

from sottovoce.algorithm.averaging import Averaging
from sottovoce.certify.certificate import Certificate, certify
from sottovoce.cli.cloud import cloud as command
from sottovoce.errors import PrivacyError
from sottovoce.network import logs
from sottovoce.network.cloud import Cloud
from sottovoce.network.outputs import Outputs
from sottovoce.network.protocol.actions import Action, Commit
from sottovoce.network.protocol.cloud import CloudMachine
from sottovoce.network.protocol.codec import pack
from sottovoce.network.protocol.messages import VERSION, Hello, State
from sottovoce.network.protocol.receipt import Notary
from sottovoce.network.rounds import Rounds, first_carried, noisy_sigma
from sottovoce.network.setup import setup_of
from sottovoce.network.store import Store, summarise
from sottovoce.privacy.plan import NoisePlan, plan
from sottovoce.privacy.sampler import SecureSampler
from sottovoce.problem.agents import Array, states
from sottovoce.problem.problem import Problem
from sottovoce.problem.save import save_problem

ROUNDS, DROPS = 100, 5
HOLD: dict[str, Any] = {"straggler": "hold", "deadline": 1.0}


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    """The problem of the README."""
    x = states(3, lower=-10, upper=10)
    problem = Problem(
        states=x,
        objectives=[(x[0] - 9) ** 2, (x[1] + 4) ** 4, (x[2] - 1) ** 2],
        constraints=[x[0] + x[1] + x[2] <= 3, x[1] ** 2 + x[2] ** 2 <= 20],
    )
    return certify(problem.cloud)


class Line:
    """A machine that holds, its rounds with secure noise, and the states that it used."""

    def __init__(self, made: NoisePlan) -> None:
        algorithm = Averaging()
        self.used: list[Array] = []
        self._rounds = Rounds(made, algorithm, SecureSampler(noisy_sigma(made)), ROUNDS)
        self._machine = CloudMachine(
            setup_of(made, algorithm, "", bytes(32), ROUNDS),
            Notary(bytes(32), bytes(32)),
            lambda k: None,
            hold=True,
        )
        for agent in range(1, made.cloud.agents + 1):
            self._machine.connect(agent, {agent})
            hello = Hello(version=VERSION, agents=[agent], config=b"", round=0, receipt=b"")
            self._machine.receive(agent, hello)

    def send(self, agent: int, k: int, x: float) -> None:
        self._do(self._machine.receive(agent, State(round=k, x=pack(np.array([x])))))

    def deadline(self, k: int) -> None:
        self._do(self._machine.deadline(k))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Commit):
                self.used.append(action.x)
                record, _ = self._rounds.play(
                    action.k, action.x, self._machine.carried, bytes(32), action.held
                )
                self._machine.committed(record)


def played(made: NoisePlan, differences: dict[int, float], *, drops: bool) -> float:
    """``sqrt(sum_k d(k)^2)`` between two behaviours of agent 2, as the machine used them.

    The others send the same states in both worlds, so this is what the whole transcript tells
    given everything else. With ``drops`` agent 2's line is dead after round 5.
    """
    worlds = []
    outputs = Outputs(made)
    for present in (0.0, 1.0):
        line = Line(made)
        for k in range(1, ROUNDS + 1):
            line.send(1, k, 0.5)
            line.send(3, k, -3.0)
            if k <= DROPS or not drops:
                line.send(2, k, -3.5 + present * differences.get(k, 0.0))
            else:
                line.deadline(k)
        assert len(line.used) == ROUNDS
        worlds.append(np.array([outputs(x)[0] / made.sigma_g for x in line.used]))
    return float(np.linalg.norm(worlds[0] - worlds[1]))


def test_a_state_held_for_h_rounds_counts_b_sqrt_1_plus_h_under_trajectory_adjacency(
    certificate: Certificate,
) -> None:
    made = plan(certificate, epsilon=math.log(3), delta=0.05, radius=1.0)
    once = played(made, {DROPS: 1.0}, drops=False)
    held = played(made, {DROPS: 1.0}, drops=True)
    assert once <= made.guarantee(2).gdp_mu
    assert held == pytest.approx(once * math.sqrt(1 + ROUNDS - DROPS), rel=1e-9)
    assert held > 5 * made.guarantee(2).gdp_mu  # which is why the cloud refuses it


@pytest.mark.parametrize("adjacency", ["per-round", "everything"])
def test_held_states_stay_below_the_claim_where_hold_is_allowed(
    adjacency: str, certificate: Certificate
) -> None:
    settings: dict[str, Any] = {"radius": 1.0} if adjacency == "per-round" else {}
    made = plan(
        certificate, epsilon=math.log(3), delta=0.05, adjacency=adjacency, rounds=ROUNDS, **settings
    )
    far = 1.0 if adjacency == "per-round" else 7.0
    everywhere = dict.fromkeys(range(1, ROUNDS + 1), far)
    for differences in ({DROPS: far}, everywhere):
        assert played(made, differences, drops=True) <= made.guarantee(2).gdp_mu
    assert played(made, everywhere, drops=True) > 0.3 * made.guarantee(2).gdp_mu


def test_hold_is_refused_under_trajectory_adjacency(
    paper: Problem, keys: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        where: dict[str, Any] = {"rounds": 5, "keys": keys, "store": tmp_path / "run.db"}
        with pytest.raises(PrivacyError, match="per-round' or 'everything'"):
            Cloud(plan_for(paper), **where, **HOLD)
        assert not (tmp_path / "run.db").exists()
        for adjacency in ("per-round", "everything"):
            Cloud(plan_for(paper, adjacency=adjacency), **where, **HOLD)

    run(main())


@pytest.mark.timeout(60)  # a cloud that does not refuse serves for ever
def test_the_command_refuses_hold_under_trajectory_adjacency(
    paper: Problem, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "configure", lambda level: None)
    save_problem(paper, tmp_path / "problem")
    app = typer.Typer()
    app.command()(command)
    words = [str(tmp_path / "problem"), "--keys", str(keys), "--store", str(tmp_path / "run.db")]
    result = CliRunner().invoke(app, [*words, "--straggler", "hold", "--deadline", "2s"])
    assert isinstance(result.exception, PrivacyError)
    assert "per-round" in str(result.exception)
    assert not (tmp_path / "run.db").exists()


@pytest.mark.parametrize("adjacency", ["trajectory", "per-round"])
def test_a_store_with_held_rounds_is_not_continued_under_trajectory_adjacency(
    adjacency: Any, paper: Problem, keys: Path, tmp_path: Path
) -> None:
    made = plan_for(paper, adjacency=adjacency)
    path = tmp_path / "run.db"

    async def start() -> None:
        async with serving(made, keys, path, rounds=5):
            pass

    run(start())
    rounds = Rounds(made, Averaging(), SecureSampler(noisy_sigma(made)), 5)
    carried = first_carried(Averaging(), made.cloud.rows)
    x = np.zeros(made.cloud.size)
    config = summarise(path).config
    assert config is not None
    record, released = rounds.play(1, x, carried, config.hash, frozenset({3}))
    store = Store(path)
    store.commit(record, released)  # as a cloud did that did not know better
    store.close()
    if adjacency == "per-round":
        run(start())
        return
    with pytest.raises(PrivacyError, match="cannot go on"):
        run(start())
