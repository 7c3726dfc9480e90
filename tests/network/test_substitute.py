"""An agent whose own code fails: the run goes on, and nobody else's state depends on it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from network_harness import Site, member, plan_for, run, serving
from welcomes import welcome_to

import sottovoce as sv
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.errors import InputError
from sottovoce.network.agent import Agent, AgentResult
from sottovoce.network.agent_group import AgentGroup
from sottovoce.network.config import read_config
from sottovoce.network.local_round import LocalRound
from sottovoce.network.protocol.actions import LocalStep
from sottovoce.network.store import transcript
from sottovoce.privacy.adjacency import Adjacency, Offset, Trajectory
from sottovoce.privacy.sampler import grid_of
from sottovoce.problem.constraints import total
from sottovoce.problem.groups import Array
from sottovoce.problem.problem import Problem

ROUNDS = 6
START = 3.25
GRID = float(grid_of(4.0))  # of the plans made here
QUOTE = "the state is"


def failing(k: int, how: str) -> Any:
    calls = 0

    def gradient(x: Array) -> Array:
        nonlocal calls
        calls += 1
        if calls >= k and how == "raises":
            raise ZeroDivisionError(f"{QUOTE} {x}")
        return np.array([np.nan]) if calls >= k else 2 * (x - 4.0)

    return gradient


async def with_a_failing_agent(
    paper: Problem, keys: Path, folder: Path, hide: Adjacency, agent7: dict[str, Any]
) -> AgentResult:
    plan = plan_for(paper, hide=hide)
    settings: dict[str, Any] = {"rounds": ROUNDS, "keep_states": True}
    async with serving(plan, keys, folder / "run.db", **settings) as cloud:
        others = [
            asyncio.create_task(member(paper, [i], cloud, keys, folder).run()) for i in range(1, 7)
        ]
        last = Agent(
            AgentGroup.of_gradient(paper.cloud, 6, agent7.pop("gradient"), start=[START]),
            cloud=f"wss://127.0.0.1:{cloud.port}",
            keys=keys / "agents" / "7",
            saved=folder / "7.state",
            **agent7,
        )
        ended, _ = await asyncio.gather(last.run(), cloud.finished(linger=10))
        await asyncio.gather(*others)
        return ended


def said(x: float) -> list[int]:
    return [round(x**4 / 12 / GRID), round(x**2 / GRID)]


def heard(folder: Path) -> list[list[int]]:
    said = transcript(folder / "run.db").said
    assert said is not None
    return [np.frombuffer(dict(parts)[7,], dtype="<i8").tolist() for parts in said]


@pytest.mark.parametrize("how", ["raises", "is not finite"])
@pytest.mark.parametrize("hide", [Trajectory(radius=1.0), Offset(radius=1.0, rounds=ROUNDS)])
def test_an_agent_whose_own_code_fails_does_not_stop_the_run(
    site: Site, hide: Adjacency, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    driven: list[float] = []
    agent7 = {
        "gradient": failing(1, how),
        "on_state": lambda k, x, which: driven.append(float(x[0])),
    }
    ended = run(with_a_failing_agent(site.problem, site.keys, site.folder, hide, agent7))
    assert (ended.rounds, ended.failed) == (ROUNDS, ROUNDS)
    instead = 0.0 if hide.kind == "trajectory" else START  # x7 lives in [-10, 10]
    assert heard(site.folder) == [said(START)] + [said(instead)] * (ROUNDS - 1)
    assert driven == [START] * ROUNDS  # no device follows a substitute
    told = [r for r in caplog.records if r.getMessage() == "state-substituted"]
    assert [r.levelname for r in told] == ["ERROR"] + ["DEBUG"] * (ROUNDS - 1)
    text = "\n".join(f"{r.getMessage()} {vars(r).get('fields')}" for r in caplog.records)
    assert QUOTE not in text
    assert str(START) not in text


def test_a_device_that_refuses_stops_no_run(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(k: int, x: Array, which: str) -> None:
        raise OSError(f"{QUOTE} {x}")

    agent7 = {"gradient": failing(10**9, ""), "on_state": refuse}
    ended = run(
        with_a_failing_agent(site.problem, site.keys, site.folder, Trajectory(radius=1.0), agent7)
    )
    assert (ended.rounds, ended.failed) == (ROUNDS, 0)
    assert any(r.getMessage() == "on-state-failed" for r in caplog.records)
    assert QUOTE not in caplog.text


def stepped(house: AgentGroup, price: Array, hide: str = "trajectory") -> LocalStep:
    """The first round of a group, whatever bounds its problem has."""
    welcome = welcome_to(house.cloud, list(house.agents), DualAveraging(), hide=hide)
    return LocalRound(house, welcome)(1, house.start, house.start, price, np.zeros(0))


@pytest.mark.parametrize(
    ("hide", "instead"),
    [
        ("trajectory", 0.0),  # the middle of its bounds
        ("offset", 0.5),  # the state before
        ("everything", 0.5),
        ("", 0.0),  # a run that says nothing may mean trajectories
    ],
)
def test_an_agent_behind_a_gateway_fails_alone(hide: str, instead: float, paper: Problem) -> None:
    def gateway(fails: bool) -> LocalStep:
        alone = []
        for number in (1, 2, 3):
            gradient = failing(1, "raises") if fails and number == 2 else lambda x: 2 * (x - 1.0)
            alone.append(AgentGroup.of_gradient(paper.cloud, number - 1, gradient, start=[0.5]))
        house = AgentGroup(
            cloud=paper.cloud,
            agents=(1, 2, 3),
            start=np.full(3, 0.5),
            groups=tuple(group for one in alone for group in one.groups),
            fallback=np.full(3, np.nan),
        )
        assert house.sizes == [1, 1, 1]
        return stepped(house, np.full(4, 0.1), hide)

    well, ill = gateway(False), gateway(True)
    assert well.failed.tolist() == []
    assert ill.failed.tolist() == [1]
    assert ill.x[[0, 2]].tolist() == well.x[[0, 2]].tolist()
    assert ill.x[1] == instead
    assert ill.answer[1] == 0.5  # as it was
    # What the gateway says is the sum of what the others say and the substitute's part.
    assert well.values is not None
    assert ill.values is not None
    lost = np.round(well.x[1] / 1e-6) - np.round(instead / 1e-6)
    assert (well.values - ill.values).tolist() == [lost, 0, 0, 0]


@pytest.mark.slow  # compiles
@pytest.mark.parametrize("dim", [1, 2])
def test_an_agent_of_a_compiled_fleet_fails_alone(dim: int) -> None:
    count, ill = 37, 20
    shift = np.ones(count)
    shift[ill] = -5.0  # the root of a negative number
    steps = []
    for a in (np.ones(count), shift):
        ev = sv.agents(count, lower=0, upper=2, dim=dim, name="ev", parameters={"a": a})
        x = ev.x if dim == 2 else [ev.x]
        problem = Problem(
            agents=ev,
            objectives=sum((v**2 - 1.5 * sv.sqrt(v + ev["a"]) for v in x), 0),
            constraints={"net": total([x[0]]) <= np.ones(1)},
        )
        house = AgentGroup.of_problem(problem, range(count))
        assert house.sizes == [dim] * count
        steps.append(stepped(house, np.full(1, 0.1)))
    others = np.arange(count) != ill
    well, failed = (step.x.reshape(count, dim) for step in steps)
    assert steps[1].failed.tolist() == [ill]
    assert failed[ill].tolist() == [1.0] * dim
    assert failed[others].tolist() == well[others].tolist()
    assert steps[1].values is not None
    assert steps[1].values.tolist() == [np.round(failed[:, 0] / 1e-6).sum()]


def test_a_configuration_without_a_promise_is_refused() -> None:
    with pytest.raises(InputError, match="promise"):
        read_config(
            '{"run_id":"a","problem":"b","plan":"c","algorithm":{},"rounds":1,"noise":"secure",'
            '"promise":7}'
        )
