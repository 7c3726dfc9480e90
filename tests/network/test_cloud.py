from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from network_harness import member, peer, plan_for, play, run, serving

from sottovoce.algorithm.averaging import Averaging
from sottovoce.algorithm.tikhonov import Tikhonov
from sottovoce.engine.solve import solve
from sottovoce.errors import BudgetError, InputError, PrivacyError
from sottovoce.network.cloud import Cloud
from sottovoce.network.errors import BusyError, HaltedError, RefusedError, StoreError
from sottovoce.network.outputs import Outputs
from sottovoce.network.protocol.actions import Record
from sottovoce.network.protocol.messages import Code
from sottovoce.network.reach import check_reach
from sottovoce.network.store import summarise
from sottovoce.privacy.ledger import Ledger
from sottovoce.privacy.sampler import Released
from sottovoce.problem.problem import Problem

ALL = list(range(1, 8))
FAST = Tikhonov(gamma_bar=0.02)


@pytest.mark.parametrize("algorithm", [FAST, Averaging()], ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("name", ["paper", "coupled"])
def test_with_the_same_seed_the_iterates_equal_those_of_solve(
    name: str, algorithm: Any, request: pytest.FixtureRequest, keys: Path, tmp_path: Path
) -> None:
    problem: Problem = request.getfixturevalue(name)
    plan = plan_for(problem)
    result, x = run(play(problem, plan, keys, tmp_path, rounds=40, seed=3, algorithm=algorithm))
    here = solve(problem, plan, rounds=40, seed=3, algorithm=algorithm)
    np.testing.assert_allclose(x, here.x[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(result.mu, here.mu[0], rtol=0, atol=1e-12)
    assert np.any(result.mu > 0)  # the noise took part


def test_a_gateway_gives_the_same_run_as_single_agents(
    paper: Problem, keys: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        plan = plan_for(paper)
        async with serving(plan, keys, tmp_path / "g.db", rounds=20, seed=3) as cloud:
            gateway = member(paper, list(range(1, 8)), cloud, keys, tmp_path, allow_simulated=True)
            task = asyncio.create_task(gateway.run())
            await cloud.finished(linger=10)
            ended = await task
        here = solve(paper, plan, rounds=20, seed=3)
        np.testing.assert_allclose(ended.x, here.x[0], rtol=0, atol=1e-12)

    run(main())


def test_secure_runs_differ_and_store_integers_whose_noise_has_the_right_size(
    paper: Problem, keys: Path, tmp_path: Path
) -> None:
    plan = plan_for(paper, sigma=4.0)
    settings = {"rounds": 60, "keep_states": True}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        run(play(paper, plan, keys, tmp_path / name, **settings))
    rows = []
    for name in ("a", "b"):
        database = sqlite3.connect(tmp_path / name / "run.db")
        rows.append(database.execute("SELECT x, release FROM rounds ORDER BY k").fetchall())
        database.close()
    releases = [np.array([np.frombuffer(r[1], dtype="<i8") for r in part]) for part in rows]
    assert len({bytes(r[1]) for part in rows for r in part}) == 120  # no release came twice
    outputs = Outputs(plan)
    g = np.array([outputs(np.frombuffer(r[0], dtype="<f8"))[0] for r in rows[0]])
    noise = releases[0] * (4.0 / 2**26) - g
    # 240 draws: the sample standard deviation leaves [0.8, 1.2] sigma with probability below 1e-4.
    assert 0.8 * 4 < noise.std() < 1.2 * 4


@pytest.mark.parametrize("algorithm", [Tikhonov(), Averaging()], ids=lambda a: type(a).__name__)
def test_the_independent_client_takes_part(
    algorithm: Any, paper: Problem, keys: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        plan = plan_for(paper)
        script = str(Path(__file__).with_name("independent_client.py"))
        async with serving(
            plan, keys, tmp_path / "run.db", rounds=30, seed=9, algorithm=algorithm
        ) as cloud:
            others = [
                asyncio.create_task(
                    member(paper, [i], cloud, keys, tmp_path, allow_simulated=True).run()
                )
                for i in (1, 2, 3, 5, 6, 7)
            ]
            client = await asyncio.create_subprocess_exec(
                sys.executable,
                script,
                str(cloud.port),
                str(keys / "agents" / "4"),
                stdout=asyncio.subprocess.PIPE,
            )
            await cloud.finished(linger=20)
            await asyncio.gather(*others)
            output, _ = await client.communicate()
        assert client.returncode == 0
        here = solve(paper, plan, rounds=30, seed=9, algorithm=algorithm)
        said = json.loads(output)
        assert said["rounds"] == 30
        assert said["x"] == pytest.approx(here.last_x[0][3], abs=1e-12)

    run(main())


def test_a_restarted_cloud_and_restarted_agents_continue_the_same_run(
    paper: Problem, keys: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        plan = plan_for(paper)
        port = 0
        for stop_at in (7, 15, 40):
            # A new cloud and new agents every time: nothing survives but their files.
            cloud = Cloud(
                plan,
                rounds=40,
                keys=keys,
                store=tmp_path / "run.db",
                listen=("127.0.0.1", port),
                seed=11,
            )
            await cloud.start()
            port = cloud.port
            tasks = [
                asyncio.create_task(
                    member(paper, [i], cloud, keys, tmp_path, allow_simulated=True).run()
                )
                for i in range(1, 8)
            ]
            if stop_at == 40:
                result = await cloud.finished(linger=10)
                ended = await asyncio.gather(*tasks)
                await cloud.stop()
                break
            while cloud.round < stop_at:
                await asyncio.sleep(0.005)
            for task in tasks:
                task.cancel()
            await cloud.stop()
            await asyncio.gather(*tasks, return_exceptions=True)
        here = solve(paper, plan, rounds=40, seed=11)
        x = np.concatenate([e.x for e in ended])
        np.testing.assert_allclose(x, here.x[0], rtol=0, atol=1e-12)
        np.testing.assert_allclose(result.mu, here.mu[0], rtol=0, atol=1e-12)

    run(main())


def test_a_store_rolled_back_to_a_backup_halts_the_run_for_good(
    paper: Problem, keys: Path, tmp_path: Path
) -> None:
    async def five_rounds_more() -> None:
        plan = plan_for(paper)
        async with serving(plan, keys, tmp_path / "run.db", rounds=1_000) as cloud:
            tasks = [
                asyncio.create_task(member(paper, [i], cloud, keys, tmp_path).run())
                for i in range(1, 8)
            ]
            ended = asyncio.create_task(cloud.finished())
            until = cloud.round + 5
            while cloud.round < until and not ended.done():
                await asyncio.sleep(0.005)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if ended.done():
                ended.result()
            ended.cancel()

    run(five_rounds_more())
    backup = {name: (tmp_path / name).read_bytes() for name in ("run.db", "run.db.mark")}
    run(five_rounds_more())
    (tmp_path / "run.db").write_bytes(backup["run.db"])
    with pytest.raises(StoreError, match="lost"):
        run(five_rounds_more())
    (tmp_path / "run.db.mark").write_bytes(backup["run.db.mark"])
    with pytest.raises(HaltedError, match="rolled back"):
        run(five_rounds_more())
    assert summarise(tmp_path / "run.db").status == "halted"
    with pytest.raises(HaltedError):
        run(five_rounds_more())


def test_a_held_agent_does_not_stop_the_others(paper: Problem, keys: Path, tmp_path: Path) -> None:
    async def main() -> None:
        plan = plan_for(paper, adjacency="per-round")
        settings = {"rounds": 12, "straggler": "hold", "deadline": 0.05}
        async with serving(plan, keys, tmp_path / "run.db", **settings) as cloud:
            tasks = [
                asyncio.create_task(member(paper, [i], cloud, keys, tmp_path).run())
                for i in range(1, 7)
            ]
            lazy = asyncio.create_task(member(paper, [7], cloud, keys, tmp_path).run())
            while cloud.round < 3:
                await asyncio.sleep(0.005)
            lazy.cancel()
            result = await cloud.finished(linger=0.1)
            await asyncio.gather(*tasks)
        assert result.held >= 1
        assert summarise(tmp_path / "run.db").held == result.held

    run(main())


def test_a_restarted_cloud_holds_an_agent_that_never_came_back(
    paper: Problem, keys: Path, tmp_path: Path
) -> None:
    async def part(numbers: list[int], until: int) -> None:
        settings = {"rounds": 100_000, "straggler": "hold", "deadline": 0.05}
        plan = plan_for(paper, adjacency="per-round")
        async with serving(plan, keys, tmp_path / "run.db", **settings) as cloud:
            tasks = [
                asyncio.create_task(member(paper, [i], cloud, keys, tmp_path).run())
                for i in numbers
            ]
            while cloud.round < until:
                await asyncio.sleep(0.005)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    run(part(ALL, 3))
    done = summarise(tmp_path / "run.db").rounds
    run(part(ALL[:-1], done + 3))
    assert summarise(tmp_path / "run.db").held >= 3


def test_a_run_takes_its_place_in_the_ledger_once_or_not_at_all(
    paper: Problem, keys: Path, tmp_path: Path
) -> None:
    plan = plan_for(paper)  # costs every agent mu = 0.5
    ledger = Ledger(tmp_path / "ledger.db")
    names = paper.cloud.agent_labels()
    ledger.grant(names, np.log(3), 0.05, adjacency="trajectory", radius=1.0)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()

    async def start(store: Path) -> None:
        async with serving(plan, keys, store, rounds=5, ledger=ledger):
            pass

    run(start(tmp_path / "run.db"))
    run(start(tmp_path / "run.db"))
    assert ledger.spent("x1") == 0.5
    run(start(tmp_path / "other.db"))
    assert ledger.spent("x1") == pytest.approx(np.sqrt(0.5))
    with pytest.raises(BudgetError):
        run(start(tmp_path / "third.db"))
    assert summarise(tmp_path / "third.db").rounds == 0


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"rounds": 0}, InputError),
        ({"rounds": 11}, InputError),
        ({"rounds": 5, "straggler": "hold"}, InputError),
        ({"rounds": 5, "deadline": 1.0}, InputError),
        ({"rounds": 5, "straggler": "hold", "deadline": float("nan")}, InputError),
    ],
)
def test_requests_that_cannot_be_met_are_refused(
    settings: dict[str, object], error: type[Exception], paper: Problem, keys: Path, tmp_path: Path
) -> None:
    plan = plan_for(paper, rounds=10)

    async def main() -> None:
        with pytest.raises(error):
            Cloud(plan, keys=keys, store=tmp_path / "run.db", **settings)  # type: ignore[arg-type]

    run(main())


def test_an_undernoised_plan_is_never_served(paper: Problem, keys: Path, tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(PrivacyError):
            Cloud(
                replace(plan_for(paper), certified=False),
                rounds=5,
                keys=keys,
                store=tmp_path / "run.db",
            )

    run(main())


def test_a_second_cloud_on_the_store_refuses_to_start(
    paper: Problem, keys: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        plan = plan_for(paper)
        async with serving(plan, keys, tmp_path / "run.db", rounds=5):
            with pytest.raises(BusyError, match="another cloud"):
                await Cloud(plan, rounds=5, keys=keys, store=tmp_path / "run.db").start()

    run(main())


def test_agents_refuse_simulated_noise_and_other_problems(
    paper: Problem, coupled: Problem, keys: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serving(plan_for(paper), keys, tmp_path / "run.db", rounds=5, seed=1) as cloud:
            with pytest.raises(RefusedError, match="simulated"):
                await member(paper, [1], cloud, keys, tmp_path).run()
            with pytest.raises(RefusedError, match="another problem") as caught:
                await member(coupled, [3], cloud, keys, tmp_path, allow_simulated=True).run()
            assert caught.value.code is Code.OTHER_RUN

    run(main())


def test_a_repeated_state_gets_the_same_bytes_over_the_wire(
    paper: Problem, keys: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with (
            serving(plan_for(paper), keys, tmp_path / "run.db", rounds=5) as cloud,
            peer(cloud, keys, "agents/1-7") as gateway,
        ):
            await gateway.hello(list(range(1, 8)))
            state = {"type": "state", "round": 1, "x": bytes(56)}
            answers = []
            for _ in range(3):
                await gateway.say(state)
                answers.append(await gateway.hear())
            assert answers[0]["type"] == "round"
            assert answers[0] == answers[1] == answers[2]
            await gateway.say(state | {"x": bytes(55) + b"\1"})
            assert (await gateway.hear())["code"] == "conflict"
        assert summarise(tmp_path / "run.db").incidents == {"conflict": 1}

    run(main())


@pytest.mark.parametrize("name", ["paper", "coupled"])
def test_an_output_beyond_the_samplers_reach_is_refused_before_the_first_round(
    name: str, request: pytest.FixtureRequest, keys: Path, tmp_path: Path
) -> None:
    problem: Problem = request.getfixturevalue(name)
    check_reach(plan_for(problem, sigma=1e-3, gradient_sigma=1e-3))
    with pytest.raises(PrivacyError, match="2\\^25"):
        check_reach(plan_for(problem, sigma=1e-8))

    async def main() -> None:
        ledger = Ledger(tmp_path / "ledger.db")
        plan = plan_for(problem, sigma=1e-8)
        with pytest.raises(PrivacyError):
            await Cloud(plan, rounds=5, keys=keys, store=tmp_path / "run.db", ledger=ledger).start()
        assert ledger.history() == ()

    run(main())


def test_an_error_inside_a_round_ends_the_run_and_a_restart_continues_it(
    paper: Problem, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_for(paper)

    async def broken() -> None:
        async with serving(plan, keys, tmp_path / "run.db", rounds=8) as cloud:
            real = cloud._store.commit

            def fail(record: Record, released: Released) -> None:
                if record.k == 4:
                    raise StoreError("the disk is full")
                real(record, released)

            monkeypatch.setattr(cloud._store, "commit", fail)
            task = asyncio.create_task(member(paper, ALL, cloud, keys, tmp_path).run())
            with pytest.raises(StoreError, match="full"):
                await cloud.finished()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def mended() -> None:
        async with serving(plan, keys, tmp_path / "run.db", rounds=8) as cloud:
            assert cloud.round == 3
            task = asyncio.create_task(member(paper, ALL, cloud, keys, tmp_path).run())
            await cloud.finished(linger=10)
            await task

    run(broken())
    run(mended())
    assert summarise(tmp_path / "run.db").status == "done"
