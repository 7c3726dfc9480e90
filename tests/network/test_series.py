"""Runs that follow each other: agents stay, each run is a new one, and nothing is said twice."""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from msgspec.structs import replace
from network_harness import free_port, page, peer, taking_part

import sottovoce as sv
from sottovoce.algorithm.price_memory import PriceMemory
from sottovoce.cli.serve import ServiceOptions
from sottovoce.errors import InputError
from sottovoce.network.agent import Agent, AgentResult
from sottovoce.network.agent_group import AgentGroup
from sottovoce.network.config import read_config
from sottovoce.network.failures import RefusedError, StoreError
from sottovoce.network.identity.tls import client_context
from sottovoce.network.series import Series
from sottovoce.network.store import CloudStore, summarise
from sottovoce.privacy.ledger import Ledger
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.files.load import Public, load_problem, load_public

ROUNDS = 40
SOTTOVOCE = (sys.executable, "-c", "from sottovoce.cli import main; main()")
PROBLEM = """
[public]
cap = 6

[[agents]]
lower = 0
upper = 10
[[agents]]
lower = 0
upper = 10
[[agents]]
lower = 0
upper = 10

[[constraints]]
name = "shared"
expression = "x1 + x2 + x3 <= cap"

[privacy]
epsilon = 1
delta = 0.001
radius = 0.01
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three agents that want 5 each and may have 6 together."""
    problem = tmp_path / "problem"
    (problem / "agents").mkdir(parents=True)
    (problem / "problem.toml").write_text(PROBLEM)
    for agent in (1, 2, 3):
        want(problem, agent, 5)
    return problem


def want(problem: Path, agent: int, size: float) -> None:
    text = f'objective = "(x{agent} - {size})**2"\n'
    (problem / "agents" / f"{agent}.toml").write_text(text)


def series_of(folder: Path, keys: Path, **settings: Any) -> Series:
    """A series that plans in this process."""

    async def planner(public: Public) -> NoisePlan:
        problem = load_problem(folder, agents=(), public=public)
        hide = sv.Trajectory(radius=0.01, rounds=ROUNDS)
        return sv.plan(sv.certify(problem.cloud), epsilon=1.0, delta=1e-3, hide=hide)

    chosen: dict[str, Any] = {
        "name": "test",
        "rounds": ROUNDS,
        "public": load_public(folder),
        "store": folder.parent / "series.db",
        "gather": 0.5,
        "deadline": 1.0,
        "first_deadline": 2.0,
    }
    cloud = load_problem(folder, agents=()).cloud
    return Series(cloud, planner, keys=keys, **chosen | settings)


@asynccontextmanager
async def in_series(folder: Path, keys: Path, **settings: Any) -> AsyncIterator[Series]:
    """A series that listens."""
    series = series_of(folder, keys, **settings)
    await series.start()
    try:
        yield series
    finally:
        await series.stop()


class Fleet:
    """Agents, or gateways, of a series, with what every run gave them."""

    def __init__(self, folder: Path, keys: Path) -> None:
        self.folder, self.keys = folder, keys
        self.ended: dict[int, list[AgentResult]] = {}

    def agent(self, series: Series, *numbers: int, **settings: Any) -> Agent:
        name = str(numbers[0]) if len(numbers) == 1 else "1-7"
        ended = self.ended.setdefault(numbers[0], [])
        return Agent(
            AgentGroup.of_folder(self.folder, numbers),
            cloud=f"wss://127.0.0.1:{series.port}",
            keys=self.keys / "agents" / name,
            saved=self.folder.parent / f"{name}.state",
            longest_pause=0.2,
            **{"on_result": ended.append} | settings,
        )

    def everyone(self, series: Series) -> list[Agent]:
        return [self.agent(series, number) for number in (1, 2, 3)]

    def answers(self, run: int) -> list[float]:
        """The answers to a run, by its place among those an agent has ended."""
        return [round(float(self.ended[i][run].x[0]), 2) for i in (1, 2, 3)]


@pytest.fixture
def fleet(folder: Path, keys: Path) -> Fleet:
    return Fleet(folder, keys)


def soon() -> dict[str, Any]:
    """A schedule that leaves agents the time to connect."""
    return {"every": 1.0, "first": time.time() + 2.0, "gather": 5.0}


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def facts(series: Series) -> dict[str, Any]:
    return series._series_facts()


async def waiting(series: Series, answered: int = 0) -> None:
    """Wait until runs were answered, and another can be asked for."""
    await until(lambda: facts(series)["answered"] >= answered)
    await until(lambda: facts(series)["state"] == "waiting")


async def ask(
    series: Series, keys: Path, body: Any = None, who: str = "operator"
) -> tuple[int, dict[str, Any]]:
    connector = aiohttp.TCPConnector(ssl=client_context(keys / who))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(f"https://127.0.0.1:{series.port}/runs", json=body) as answer,
    ):
        text = await answer.text()
        return answer.status, json.loads(text) if text.startswith("{") else {"text": text}


async def test_runs_follow_each_other_on_the_same_connections(
    folder: Path, keys: Path, fleet: Fleet
) -> None:
    async with in_series(folder, keys, **soon(), runs=3) as series:
        agents = fleet.everyone(series)
        async with taking_part(*agents) as tasks:
            await until(lambda: len(fleet.ended[1]) == 1)
            want(folder, 1, 1)  # its data are read anew
            assert await series.finished() == 3
            results = await asyncio.gather(*tasks)
        assert series._server._count == 3  # connections
        assert [r.run and r.run.number for r in fleet.ended[2]] == [1, 2, 3]
        assert results[1] is fleet.ended[2][-1]
        assert fleet.answers(0) == pytest.approx([2, 2, 2], abs=0.3)
        assert fleet.answers(2) == pytest.approx([0, 3, 3], abs=0.3)
    last = summarise(folder.parent / "series.db")
    assert last.series is not None
    assert last.config is not None
    assert last.config.warm_start is not None  # from the run before
    assert [(run.number, run.status, run.rounds) for run in last.series.runs] == [
        (n, "done", ROUNDS) for n in (1, 2, 3)
    ]


async def test_an_operator_opens_a_run_with_public_data_of_its_own(
    folder: Path, keys: Path, fleet: Fleet
) -> None:
    async with in_series(folder, keys) as series, taking_part(*fleet.everyone(series)):
        await until(lambda: len(series._lobby.waiting) == 3)
        assert (await ask(series, keys, who="agents/1"))[0] == 403
        for body in ({"public": {"cap": [1, 2]}}, {"public": {"x": 1}}, [1], {"cap": 9}):
            status, words = await ask(series, keys, body)
            assert (status, words["code"]) == (400, "bad-data")
        assert facts(series)["run"] == 0  # nothing is lost
        assert await ask(series, keys, {"public": {"cap": 9}}) == (
            202, {"series": "test", "run": 1},
        )  # fmt: skip
        assert (await ask(series, keys))[0] == 409
        await waiting(series, 1)
        assert (await ask(series, keys))[0] == 202
        await waiting(series, 2)
        await until(lambda: len(fleet.ended[3]) == 2)
    assert sum(fleet.answers(0)) == pytest.approx(9, abs=0.5)
    assert sum(fleet.answers(1)) == pytest.approx(6, abs=0.5)
    assert fleet.ended[3][0].run == read_config(first_config(folder, fleet)).series


def first_config(folder: Path, fleet: Fleet) -> str:
    """The configuration of the first run, as its agents have it, with what the store says now."""
    config = summarise(folder.parent / "series.db").config
    run = fleet.ended[3][0].run
    assert config is not None
    assert run is not None
    assert config.series is not None
    assert (run.name, run.origin) == (config.series.name, config.series.origin)
    assert (run.number, run.public) == (1, {"cap": 9})
    text: dict[str, Any] = json.loads(config.text)
    text["series"] |= {"number": 1, "public": {"cap": 9.0}}
    return json.dumps(text)


async def test_a_run_without_its_quorum_is_put_off_and_says_so(
    folder: Path, keys: Path, fleet: Fleet
) -> None:
    async with (
        in_series(folder, keys, every=1.0, gather=0.1, quorum=0.9) as series,
        taking_part(*fleet.everyone(series)[:2]),
    ):
        why = "2 agents can take part, and the quorum is 3"  # the first may have seen fewer yet
        await until(lambda: why in [run["reason"] for run in facts(series)["runs"]])
        assert facts(series)["run"] == 0
        assert {run["status"] for run in facts(series)["runs"]} == {"skipped"}
        async with taking_part(fleet.agent(series, 3)):
            await until(lambda: facts(series)["answered"])


async def test_who_is_absent_counts_with_its_fallback_and_joins_the_next_run(
    folder: Path, keys: Path, fleet: Fleet
) -> None:
    async with in_series(folder, keys, gather=0.1, quorum=2) as series:
        one, two, three = fleet.everyone(series)
        async with taking_part(one, two):
            await until(lambda: len(series._lobby.waiting) == 2)
            await ask(series, keys)
            await until(lambda: facts(series)["state"] == "running")
            async with taking_part(three):
                await waiting(series, 1)
                await until(lambda: series._lobby.waiting == {1, 2, 3})
                assert facts(series)["sat_out"] == [{"agent": 3, "why": "absent"}]
                assert fleet.ended[3] == []
                await ask(series, keys)
                await waiting(series, 2)
                await until(lambda: len(fleet.ended[3]) == 1)
    # Of the absent one its fallback counts, which is 0.
    assert [round(float(fleet.ended[i][0].x[0]), 1) for i in (1, 2)] == pytest.approx(
        [3, 3], abs=0.3
    )
    assert sum(float(fleet.ended[i][-1].x[0]) for i in (1, 2, 3)) == pytest.approx(6, abs=0.5)


@pytest.mark.parametrize("gateway", [False, True])
async def test_an_agent_whose_budget_is_spent_sits_out_alone(
    folder: Path, keys: Path, fleet: Fleet, gateway: bool
) -> None:
    ledger = Ledger(folder.parent / "ledger.db")
    ledger.grant(["x1", "x3"], 100, 1e-3, hide="trajectory", radius=0.01)
    ledger.grant("x2", 1.0, 1e-3, hide="trajectory", radius=0.01)
    async with in_series(folder, keys, gather=0.1, ledger=ledger) as series:
        agents = [fleet.agent(series, 1, 2, 3)] if gateway else fleet.everyone(series)
        async with taking_part(*agents):
            for run in (1, 2):
                await until(lambda: len(series._lobby.waiting) == 3)
                await ask(series, keys)
                await waiting(series, run)
                await until(lambda n=run: len(fleet.ended[1]) == n)  # type: ignore[misc]
            assert facts(series)["sat_out"] == [{"agent": 2, "why": "budget"}]
    assert len(ledger.history()) == 5
    assert ledger.unaffordable([ledger.history()[1].charge])
    assert fleet.ended[1][1].agents == ((1, 3) if gateway else (1,))
    assert fleet.ended[1][1].x[-1] == pytest.approx(3, abs=0.4)


async def test_a_series_that_was_interrupted_goes_on_with_the_same_run(
    folder: Path, keys: Path, fleet: Fleet
) -> None:
    ledger = Ledger(folder.parent / "ledger.db")
    ledger.grant(["x1", "x2", "x3"], 100, 1e-3, hide="trajectory", radius=0.01)
    names = set()
    for stop in (5, 20, ROUNDS):
        async with (
            in_series(folder, keys, runs=2, ledger=ledger) as series,
            taking_part(*fleet.everyone(series)),
        ):
            if stop == 5:
                await until(lambda: len(series._lobby.waiting) == 3)
                assert (await ask(series, keys))[0] == 202
            await until(lambda: series._machine is not None)
            assert series._machine is not None
            machine, at = series._machine, stop
            await until(lambda: machine.round > at)  # noqa: B023
            names.add(series._store.run.run_id)
    assert len(names) == 1
    assert len(ledger.history()) == 3  # charged once
    async with (
        in_series(folder, keys, runs=2, ledger=ledger) as series,
        taking_part(*fleet.everyone(series)),
    ):
        await until(lambda: len(series._lobby.waiting) == 3)
        assert facts(series)["answered"] == 1
        assert (await ask(series, keys))[0] == 202
        assert await series.finished() == 2
    assert len(ledger.history()) == 6


async def test_an_agent_that_missed_the_end_learns_that_the_run_is_over(
    folder: Path, keys: Path, fleet: Fleet
) -> None:
    async with in_series(folder, keys, gather=0.1, deadline=0.2) as series:
        one, two, three = fleet.everyone(series)
        async with taking_part(one, two):
            async with taking_part(three):
                await until(lambda: len(series._lobby.waiting) == 3)
                await ask(series, keys)
                await until(lambda: series._machine is not None and series._machine.round > 3)
            await waiting(series, 1)
            await ask(series, keys)
            await waiting(series, 2)
            async with taking_part(fleet.agent(series, 3)):
                await until(lambda: series._lobby.waiting == {1, 2, 3})
                await ask(series, keys)
                await waiting(series, 3)
                await until(lambda: fleet.ended[3])
    assert series._metrics.refused["over"] == 1
    assert fleet.ended[3][-1].run is not None
    assert fleet.ended[3][-1].run.number == 3


async def test_an_agent_refuses_a_series_that_was_rolled_back(
    folder: Path, keys: Path, fleet: Fleet
) -> None:
    async with in_series(folder, keys) as series, taking_part(*fleet.everyone(series)):
        await until(lambda: len(series._lobby.waiting) == 3)
        await ask(series, keys)
        await waiting(series, 1)
        await until(lambda: len(series._lobby.waiting) == 3)
        kept = series._note
    for file in folder.parent.glob("series.db*"):
        file.unlink()  # a store that was put back has no run of this number
    async with in_series(folder, keys) as series:
        series._note = replace(kept, number=0)
        async with taking_part(*fleet.everyone(series)) as tasks:
            await until(lambda: len(series._lobby.waiting) == 3)
            await ask(series, keys)
            for task in tasks:
                with pytest.raises(RefusedError, match="rolled back"):
                    await task


async def test_a_run_that_fails_ends_without_an_answer_and_the_next_begins_cold(
    folder: Path, keys: Path, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sottovoce.network.failures import DivergedError
    from sottovoce.network.round_arithmetic import Rounds

    play, runs = Rounds.play, [0]

    def failing(self: Rounds, k: int, *arguments: Any, **settings: Any) -> Any:
        runs[0] += k == 1
        if runs[0] == 2 and k == 7:
            raise DivergedError(k)
        return play(self, k, *arguments, **settings)

    monkeypatch.setattr(Rounds, "play", failing)
    async with (
        in_series(folder, keys, **soon(), runs=3) as series,
        taking_part(*fleet.everyone(series)) as tasks,
    ):
        assert await series.finished() == 2
        await asyncio.gather(*tasks)
    last = summarise(folder.parent / "series.db")
    assert last.series is not None
    assert last.config is not None
    assert [(run.status, run.reason) for run in last.series.runs] == [
        ("done", ""), ("unanswered", "prices diverged"), ("done", ""),
    ]  # fmt: skip
    assert last.config.warm_start is None
    assert [result.confirmed for result in fleet.ended[1]] == [None, False, None]


async def test_a_run_that_nobody_contributes_to_ends(folder: Path, keys: Path) -> None:
    async with in_series(folder, keys, deadline=0.05, first_deadline=0.05, gather=0.1) as series:
        async with peer(series, keys, "agents/1") as silent:
            await silent.say({"type": "hello", "agents": [1], "config": b"", "round": 0, "receipt": b""})  # fmt: skip  # noqa: E501
            await until(lambda: series._lobby.waiting)
            await ask(series, keys)
            assert (await silent.hear())["type"] == "welcome"
            assert (await silent.hear())["code"] == "over"
        await until(lambda: facts(series)["runs"])
        assert facts(series)["runs"][-1]["reason"] == "no agent contributed"
        assert series._store.released == 0


async def test_an_agent_whose_files_cannot_be_read_takes_part_as_before(
    folder: Path, keys: Path, fleet: Fleet
) -> None:
    async with (
        in_series(folder, keys, **soon(), runs=2) as series,
        taking_part(*fleet.everyone(series)) as tasks,
    ):
        await until(lambda: fleet.ended[1])
        (folder / "agents" / "1.toml").write_text("objective = ")
        assert await series.finished() == 2
        await asyncio.gather(*tasks)
    assert fleet.answers(1) == pytest.approx([2, 2, 2], abs=0.3)


async def test_an_agent_refuses_a_run_of_another_problem(
    folder: Path, keys: Path, fleet: Fleet
) -> None:
    fleet.folder = folder.parent / "own"
    shutil.copytree(folder, fleet.folder)
    own = fleet.folder / "problem.toml"
    own.write_text(own.read_text().replace("<= cap", "<= cap + 1"))
    async with in_series(folder, keys) as series, taking_part(*fleet.everyone(series)) as tasks:
        await until(lambda: len(series._lobby.waiting) == 3)
        await ask(series, keys)
        for task in tasks:
            with pytest.raises(RefusedError, match="another problem"):
                await task


def started(folder: Path, *words: object) -> subprocess.Popen[bytes]:
    """A command of sottovoce as a process, whose log goes to a file in the folder."""
    with (folder / f"{words[0]}.log").open("ab") as log:
        return subprocess.Popen([*SOTTOVOCE, *map(str, words)], stdout=log, stderr=log)


@contextmanager
def processes(folder: Path, keys: Path, port: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Three agents as processes, in a list to which others may be added; all end with the block."""
    cloud = f"wss://127.0.0.1:{port}"
    files = ((folder / "agents" / f"{i}.toml", keys / "agents" / str(i)) for i in (1, 2, 3))
    alive = [
        started(
            folder, "agent", file, "--keys", own, "--cloud", cloud, "--out", f"{file}-{{run}}.json"
        )
        for file, own in files
    ]
    try:
        yield alive
    finally:
        for process in alive:
            process.kill()
            process.wait()


def service_file(folder: Path, keys: Path, port: int, *further: str) -> Path:
    file = folder.parent / "service.toml"
    lines = (
        "[series.test]",
        f'problem = "{folder.name}"',
        f'keys = "{keys}"',
        'store = "series.db"',
        'ledger = "ledger.db"',
        f'listen = "127.0.0.1:{port}"',
        "rounds = 150",
        'gather = "3 s"',
        'deadline = "2s"',
        *further,
    )
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_service_that_is_killed_goes_on_exactly(folder: Path, keys: Path, kills: int) -> None:
    port, chance = free_port(), random.Random(kills)  # noqa: S311
    file = service_file(folder, keys, port, 'every = "2 s"')
    ledger = Ledger(folder.parent / "ledger.db")
    ledger.grant(["x1", "x2", "x3"], 1e3, 1e-3, hide="trajectory", radius=0.01)
    store, began = folder.parent / "series.db", time.monotonic()
    with processes(folder, keys, port) as alive:
        for _ in range(kills):
            alive.append(started(folder, "serve", file))
            while time.monotonic() - began < 40 + 10 * kills:
                with suppress(StoreError):
                    if summarise(store).series is not None:
                        break
                time.sleep(0.05)
            time.sleep(chance.uniform(0.5, 6.0))
            alive[-1].kill()
            assert alive.pop().wait() == -signal.SIGKILL
        alive.append(started(folder, "serve", file))
        known = summarise(store).series
        before = known.answered if known else 0
        while (known := summarise(store).series) is None or known.answered < before + 2:
            assert time.monotonic() - began < 60 + 10 * kills
            time.sleep(0.1)
        # No agent was told two different things: it would have stopped.
        assert all(process.poll() is None for process in alive)
        alive[-1].terminate()
        alive[-1].wait()
    known = summarise(store).series
    assert known is not None
    opened = [run for run in known.runs if run.status != "skipped"]
    assert {run.status for run in opened} == {"done"}
    numbers = [run.number for run in opened]
    assert numbers == list(range(1, len(numbers) + 1))
    charged = Counter(spend.run_id for spend in ledger.history())
    assert list(charged.values()) == [run.agents for run in opened]  # those who took part, once
    answers = [json.loads(f.read_text()) for f in (folder / "agents").glob("1.toml-*.json")]
    assert sorted(answer["run"] for answer in answers) >= numbers[:1]


def test_nothing_private_is_where_others_read(folder: Path, keys: Path, fleet: Fleet) -> None:
    want(folder, 1, 3.1415926)
    port = free_port()
    file = service_file(folder, keys, port, "runs = 1", 'every = "1 h"')
    Ledger(folder.parent / "ledger.db").grant(
        ["x1", "x2", "x3"], 1e3, 1e-3, hide="trajectory", radius=0.01
    )
    with processes(folder, keys, port) as alive:
        command = [*SOTTOVOCE, "serve", str(file)]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as serve:
            said = serve.communicate(timeout=60)[1]
        assert serve.returncode == 0
        assert [process.wait(timeout=30) for process in alive] == [0, 0, 0]
    answer = json.loads((folder / "agents" / "1.toml-1.json").read_text())
    canaries = [
        b"3.1415926",
        str(answer["x"][0]).encode()[:8],
        np.float64(answer["x"][0]).tobytes(),
    ]
    public = [p for p in folder.parent.iterdir() if p.is_file() and ".state" not in p.name]
    assert {file.name for file in public} >= {"service.toml", "series.db", "ledger.db"}
    for text in (said, *(p.read_bytes() for p in public)):
        assert not any(canary in text for canary in canaries)
    for kept in [p for p in folder.parent.iterdir() if p.suffix == ".db"]:
        assert kept.stat().st_mode & 0o077 == 0
    assert (folder / "agents" / "1.toml-1.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("new = true", "got 'new'"),
        ('every = "soon"', "every must be"),
        ('every = "0 s"', "every must be"),
        ('quorum = "0%"', "quorum must be"),
        ("straggler = 3", "straggler"),
        ('first = "noon"', "first must be a time"),
        ("runs = true", "runs must be"),
        ('problem = ["a"]', "TOML"),
    ],
)
def test_a_service_file_that_cannot_be_meant_is_refused(
    folder: Path, keys: Path, line: str, named: str
) -> None:
    file = service_file(folder, keys, 1, line)
    with ThreadPoolExecutor() as pool, pytest.raises(InputError, match=re.escape(named)):
        ServiceOptions(file=file).tables()["test"].series("test", pool)


async def test_prices_move_with_the_horizon_and_old_ones_are_forgotten(
    folder: Path, keys: Path
) -> None:
    text = PROBLEM.replace("x1 + x2 + x3 <= cap", "total(ev) <= cap[1]").replace("cap = 6", "cap = [6, 6]")  # fmt: skip  # noqa: E501
    fleet = '[[fleet]]\nname = "ev"\ncount = 3\ndim = 3\nlower = 0\nupper = 10\n'
    (folder / "problem.toml").write_text(re.sub(r"\[\[agents\]\]\nlower = 0\nupper = 10\n", "", text) + fleet)  # fmt: skip  # noqa: E501
    async with in_series(folder, keys, every=900.0, first=0.0, shift=1, runs=0) as series:
        labels = tuple(series.cloud.sums.labels)
        zeros, square = np.zeros(3), np.zeros((3, 3))
        memory = PriceMemory(
            labels=labels, rounds=40, count=3.0, price=np.arange(3.0), mean_price=zeros,
            mean_sum=zeros, aim=zeros, covariance=square, response=square, slope=square,
        )  # fmt: skip
        learnt = replace(series._note, number=7, learnt=memory, learnt_at=(7, 9_000.0))
        series._note = learnt
        expected = {9_900.0: [1, 2, 0], 10_800.0: [2, 0, 1], 9_010.0: [0, 1, 2]}
        for due, price in expected.items():
            moved = series._warm(due)
            assert moved is not None
            assert moved.price.tolist() == price
        assert series._warm(9_000.0 + 101 * 900) is None


async def test_a_killed_begin_of_a_run_is_gone_on_with(tmp_path: Path) -> None:
    with closing(CloudStore(tmp_path / "series.db")) as store:
        first = store.run.run_id
        mark = (tmp_path / "series.db.mark").read_bytes()
        store.begin("second", "{}", {})
    (tmp_path / "series.db.mark").write_bytes(mark)  # killed before the marker was written
    with closing(CloudStore(tmp_path / "series.db")) as store:
        assert (store.run.run_id, store.run.before) == ("second", first)
        store.begin("third", "{}", {})
    (tmp_path / "series.db.mark").write_bytes(mark)  # two runs ago: not what a kill leaves
    with pytest.raises(StoreError, match="rolled back"):
        CloudStore(tmp_path / "series.db")


async def test_the_pages_show_the_series(folder: Path, keys: Path, fleet: Fleet) -> None:
    async with in_series(folder, keys, every=3600.0, first=time.time() + 3600) as series:
        assert (await page(series, keys, "operator", "/status"))[0] == 200  # before the first run
        async with taking_part(*fleet.everyone(series)[:2]):
            await until(lambda: len(series._lobby.waiting) == 2)
            await ask(series, keys)
            await waiting(series, 1)
            shown = json.loads((await page(series, keys, "operator", "/status"))[1])["series"]
            metrics = (await page(series, keys, "operator", "/metrics"))[1]
    assert shown["sat_out"] == [{"agent": 3, "why": "absent"}]
    assert [(run["status"], run["agents"]) for run in shown["runs"]] == [("done", 2)]
    assert shown["next"] is not None
    assert [line.partition(":")[0] for line in shown["promise"][:2]] == [
        "a run", "any 60 minutes, 2 runs by the schedule",
    ]  # fmt: skip
    for line in ("run 1.0", "answered 1.0", "sat_out_count 1.0"):
        assert f"\nsottovoce_series_{line}\n" in metrics


async def test_several_series_run_side_by_side(folder: Path, keys: Path) -> None:
    other = folder.parent / "other" / "problem"
    shutil.copytree(folder, other)
    fleets = [Fleet(folder, keys), Fleet(other, keys)]
    async with (
        in_series(folder, keys) as one,
        in_series(other, keys, name="two") as two,
        taking_part(*fleets[0].everyone(one), *fleets[1].everyone(two)),
    ):
        for series in (one, two):
            await until(lambda s=series: len(s._lobby.waiting) == 3)  # type: ignore[misc]
            await ask(series, keys)
        for series in (one, two):
            await waiting(series, 1)
        await until(lambda: fleets[0].ended[1] and fleets[1].ended[1])
    runs = [fleet.ended[1][0].run for fleet in fleets]
    assert [run and run.name for run in runs] == ["test", "two"]
