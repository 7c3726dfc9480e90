"""An agent whose own code fails: the run goes on, and nobody else's state depends on it."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy as sp
from network_harness import member, plan_for, run, serving

from sottovoce.algorithm.averaging import Averaging
from sottovoce.errors import InputError
from sottovoce.network.agent import Agent, AgentResult
from sottovoce.network.config import read_config
from sottovoce.network.fallback import Fallback
from sottovoce.network.home import Household, Single
from sottovoce.network.home_step import HomeStep
from sottovoce.problem.agents import Array, fleet
from sottovoce.problem.constraints import total
from sottovoce.problem.problem import Problem

ROUNDS = 6
START = 3.25
QUOTE = "the state is"


@pytest.mark.parametrize(
    ("promise", "sent"),
    [
        ({"adjacency": "trajectory"}, [1.0, 0.0, 5.0]),
        ({"adjacency": "per-round"}, [1.0, 7.0, 8.0]),
        ({"adjacency": "everything"}, [1.0, 7.0, 8.0]),
        ({}, [1.0, 0.0, 5.0]),  # a run that says nothing may mean trajectories
    ],
)
def test_a_failed_step_is_repeated_where_rounds_count_by_themselves_and_else_public(
    promise: dict[str, str], sent: list[float]
) -> None:
    lower, upper = np.array([-1.0, -2.0, 1.0]), np.array([3.0, 2.0, 9.0])
    fallback = Fallback([1, 2], lower, upper, promise)
    x = np.array([1.0, 0.5, np.inf])
    assert fallback.failed(x).tolist() == [1]
    assert fallback.state(x, np.array([6.0, 7.0, 8.0])).tolist() == sent


def failing(k: int, how: str) -> Any:
    """A gradient that fails from its k-th call on."""
    calls = 0

    def gradient(x: Array) -> Array:
        nonlocal calls
        calls += 1
        if calls >= k and how == "raises":
            raise ZeroDivisionError(f"{QUOTE} {x}")
        return np.array([np.nan]) if calls >= k else 2 * (x - 4.0)

    return gradient


async def with_a_failing_agent(
    paper: Problem, keys: Path, folder: Path, adjacency: Any, agent7: dict[str, Any]
) -> AgentResult:
    plan = plan_for(paper, adjacency=adjacency)
    settings: dict[str, Any] = {"rounds": ROUNDS, "keep_states": True}
    async with serving(plan, keys, folder / "run.db", **settings) as cloud:
        others = [
            asyncio.create_task(member(paper, [i], cloud, keys, folder).run()) for i in range(1, 7)
        ]
        last = Agent(
            Household.of_gradient(paper.cloud, 7, agent7.pop("gradient"), start=[START]),
            cloud=f"wss://127.0.0.1:{cloud.port}",
            keys=keys / "agents" / "7",
            saved=folder / "7.state",
            **agent7,
        )
        ended, _ = await asyncio.gather(last.run(), cloud.finished(linger=10))
        await asyncio.gather(*others)
        return ended


def used(folder: Path) -> list[float]:
    """Agent 7's states as the cloud used them."""
    database = sqlite3.connect(folder / "run.db")
    rows = database.execute("SELECT x FROM rounds ORDER BY k").fetchall()
    database.close()
    return [float(np.frombuffer(row[0], dtype="<f8")[6]) for row in rows]


@pytest.mark.parametrize("how", ["raises", "is not finite"])
@pytest.mark.parametrize("adjacency", ["trajectory", "per-round"])
def test_an_agent_whose_own_code_fails_does_not_stop_the_run(
    adjacency: str,
    how: str,
    paper: Problem,
    keys: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    driven: list[float] = []
    agent7 = {"gradient": failing(1, how), "on_state": lambda k, x: driven.append(float(x[0]))}
    ended = run(with_a_failing_agent(paper, keys, tmp_path, adjacency, agent7))
    assert (ended.rounds, ended.failed) == (ROUNDS, ROUNDS)
    instead = 0.0 if adjacency == "trajectory" else START  # x7 lives in [-10, 10]
    assert used(tmp_path) == [START] + [instead] * (ROUNDS - 1)
    assert driven == [START] * ROUNDS  # no device follows a substitute
    told = [r for r in caplog.records if r.getMessage() == "no step, sending a substitute"]
    assert [r.levelname for r in told] == ["ERROR"] + ["DEBUG"] * (ROUNDS - 1)
    text = "\n".join(f"{r.getMessage()} {vars(r).get('fields')}" for r in caplog.records)
    assert QUOTE not in text
    assert str(START) not in text


def test_a_device_that_refuses_a_setpoint_does_not_stop_the_run(
    paper: Problem, keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(k: int, x: Array) -> None:
        raise OSError(f"{QUOTE} {x}")

    agent7 = {"gradient": failing(10**9, ""), "on_state": refuse}
    ended = run(with_a_failing_agent(paper, keys, tmp_path, "trajectory", agent7))
    assert (ended.rounds, ended.failed) == (ROUNDS, 0)
    assert any(r.getMessage() == "on_state failed" for r in caplog.records)
    assert QUOTE not in caplog.text


def step_of(house: Household, algorithm: Any = None) -> HomeStep:
    size = house.start.size
    return HomeStep(
        house, Averaging() if algorithm is None else algorithm, rounds=10,
        lower=np.full(size, -10.0), upper=np.full(size, 10.0), rows=[], columns=[], slopes=[],
    )  # fmt: skip


def test_an_agent_behind_a_gateway_fails_alone(paper: Problem) -> None:
    def gateway(fails: bool) -> Array:
        members = []
        for number in (1, 2, 3):
            index, _ = paper.cloud.locate(number)
            gradient = failing(1, "raises") if fails and number == 2 else lambda x: 2 * (x - 1.0)
            members.append(Single(group=paper.cloud.groups[index], place=0, gradient=gradient))
        house = Household(
            cloud=paper.cloud, agents=(1, 2, 3), start=np.zeros(3), members=tuple(members)
        )
        assert house.sizes == [1, 1, 1]
        return step_of(house)(1, np.zeros(3), np.full(4, 0.1), np.zeros(0))

    well, ill = gateway(False), gateway(True)
    assert np.isfinite(well).all()
    assert np.isnan(ill[1])
    assert ill[[0, 2]].tolist() == well[[0, 2]].tolist()


@pytest.mark.slow  # compiles
@pytest.mark.parametrize("dim", [1, 2])
def test_an_agent_of_a_compiled_fleet_fails_alone(dim: int) -> None:
    count, ill = 37, 20
    shift = np.ones(count)
    shift[ill] = -5.0  # the root of a negative number
    steps = []
    for a in (np.ones(count), shift):
        ev = fleet(count, lower=0, upper=2, dim=dim, name="ev", parameters={"a": a})
        x = ev.state if dim == 2 else [ev.state]
        problem = Problem(
            states=ev,
            objectives=sum((v**2 - 1.5 * sp.sqrt(v + ev.parameter("a")) for v in x), 0),
            constraints={"net": total(ev, [x[0]]) <= np.ones(1)},
        )
        house = Household.of_problem(problem, range(1, count + 1))
        assert house.sizes == [dim] * count
        start = np.full(count * dim, 0.5)
        steps.append(step_of(house)(1, start, np.full(1, 0.1), np.zeros(0)).reshape(count, dim))
    others = np.arange(count) != ill
    assert np.isnan(steps[1][ill]).any()
    assert steps[1][others].tolist() == steps[0][others].tolist()


def test_a_configuration_without_a_promise_is_refused() -> None:
    with pytest.raises(InputError, match="promise"):
        read_config(
            '{"run_id":"a","problem":"b","plan":"c","algorithm":{},"rounds":1,"noise":"secure",'
            '"promise":7}'
        )
