"""Real processes: a cloud and agents by the command line, killed, rolled back and flooded."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import problems as p
import pytest
from commands import run_cli
from processes import Network, answer, copy_store, ended, free_port

import sottovoce as sv

OPTIMUM = np.array([80 / 7, 68 / 7, 62 / 7])
ROUNDS = 300


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """A run that has ended: a cloud with a ledger, killed once, three agents, and a flood."""
    folder = tmp_path_factory.mktemp("network")
    with Network(folder) as net:
        net.make_keys()
        assert run_cli("identity", "issue", "--dir", net.keys, "--agents", "9").code == 0
        book = sv.Ledger(folder / "budget.db")
        book.grant(["north", "south", "west"], 3.0, 0.01, hide="trajectory", radius=2.0)
        options = ("--keep-states", "--ledger", folder / "budget.db")
        net.flood("frames", 30.0)
        cloud = net.cloud(*options, rounds=ROUNDS)
        agents = [net.agent(number) for number in (1, 2, 3)]
        net.wait_for_round(3)
        os.kill(cloud.pid, signal.SIGKILL)
        cloud.wait(timeout=30)
        copy_store(net.store, folder / "old")
        assert net.status()["rounds"] < ROUNDS
        cloud = net.cloud(*options, rounds=ROUNDS)
        assert ended(cloud, *agents) == [0, 0, 0, 0], net.log("cloud") + net.log("agent1")
        yield net


def test_every_agent_ends_with_an_answer_that_only_its_owner_can_read(done: Network) -> None:
    for number in (1, 2, 3):
        path = done.folder / f"{number}.json"
        output = answer(path)
        assert output["rounds"] == ROUNDS
        assert len(output["x"]) == 1
        assert 0 <= output["x"][0] <= 20
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        (sure,) = output["deviation"]  # an agent's statement of its own certainty
        assert sure is None or sure >= 0


def test_private_answers_come_near_the_optimum(done: Network) -> None:
    """The limit of 300 rounds is 0.13, 0.06, 0.03: ten times that has no measurable probability."""
    x = np.array([answer(done.folder / f"{number}.json")["x"][0] for number in (1, 2, 3)])
    assert np.all(np.abs(x - OPTIMUM) < [1.3, 0.7, 0.5])


def test_status_tells_the_promise_and_that_the_run_is_done(done: Network) -> None:
    facts = done.status()
    assert (facts["status"], facts["rounds"]) == ("done", ROUNDS)
    assert facts["config"]["promise"]["epsilon"] <= 1.0 + 1e-9
    text = run_cli("status", done.store).out
    for word in ("done", "300 of 300", "secure", "trajectory", "(1, 0.01)-DP", "trusted"):
        assert word in text


def test_no_state_of_an_agent_is_in_any_log(done: Network) -> None:
    for number in (1, 2, 3):
        (x,) = answer(done.folder / f"{number}.json")["x"]
        for name in ("cloud", "agent1", "agent2", "agent3"):
            assert f"{x:.4f}" not in done.log(name)


def test_the_ledger_was_charged_once_for_every_agent(done: Network) -> None:
    accounts = run_cli("ledger", "show", done.folder / "budget.db", "--json").json
    assert {account["agent"] for account in accounts} == {"north", "south", "west"}
    for account in accounts:
        assert account["spent"] == pytest.approx(0.532517, rel=1e-5)


def test_the_noise_of_a_finished_store_is_audited(done: Network) -> None:
    output = run_cli("audit", done.problem, "--store", done.store, "--json")
    assert output.code == 0, output.out + output.err
    assert output.json["passed"] is True


@pytest.mark.slow
def test_a_store_that_lost_rounds_is_refused_and_new_begins_anew(tmp_path: Path) -> None:
    with Network(tmp_path) as net:
        net.make_keys("--gateway", "1-3")
        cloud, gateway = net.cloud(rounds=600), net.gateway()
        net.wait_for_round(3)
        for process in (cloud, gateway):
            process.kill()
            process.wait(timeout=30)
        net.store.write_bytes(b"")
        (tmp_path / "run.db-wal").unlink()
        assert ended(net.cloud(rounds=600)) == [2]
        assert "run.db" in net.log("cloud")
        assert "--new" in net.log("cloud")
        for path in (net.problem / "agents").glob("*.state"):
            path.unlink()
        cloud, gateway = net.cloud("--new", rounds=20), net.gateway()
        assert ended(cloud, gateway) == [0, 0], net.log("cloud")
        assert net.status()["rounds"] == 20
        assert list(tmp_path.glob("run.db.lost-*"))
        assert ended(net.cloud("--new", rounds=20)) == [2]  # the run is whole now


def refused_cloud(net: Network, store: Path, ledger: Path, *more: str) -> str:
    """Start a cloud in this process, which must refuse the run, and return what it logs."""
    cloud = run_cli(
        "cloud", net.problem, "--keys", net.keys, "--store", store, "--ledger", ledger,
        "--listen", f"127.0.0.1:{free_port()}", "--rounds", ROUNDS, *more,
    )  # fmt: skip
    assert cloud.code == 2, cloud.err
    return cloud.err


def test_a_ledger_refuses_an_old_store(done: Network, tmp_path: Path) -> None:
    for path in (done.folder / "old").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    book = done.folder / "budget.db"
    assert "RollbackError" in refused_cloud(done, tmp_path / "run.db", book, "--keep-states")
    assert sv.Ledger(book).spent("north") == pytest.approx(0.532517, rel=1e-5)  # once


def test_a_budget_too_small_refuses_a_run_before_it_begins(done: Network, tmp_path: Path) -> None:
    book = tmp_path / "budget.db"
    sv.Ledger(book).grant(["north", "south"], 3.0, 0.01, hide="trajectory", radius=2.0)
    log = refused_cloud(done, tmp_path / "run.db", book)
    assert "BudgetError" in log
    assert "west" in log
    assert sv.Ledger(book).spent("north") == 0.0


@pytest.mark.slow
def test_a_split_cloud_runs_with_a_helper(tmp_path: Path) -> None:
    with Network(tmp_path) as net:
        net.make_keys("--helper")
        other = free_port()
        helper = net.start(
            "helper", "helper", net.problem, "--keys", net.keys / "helper", "--store",
            tmp_path / "helper.db", "--listen", f"127.0.0.1:{other}", "--rounds", "30",
        )  # fmt: skip
        half = ("--keys", net.keys / "cloud", "--helper", f"wss://127.0.0.1:{other}")
        cloud = net.cloud(*half, rounds=30)
        agents = [net.agent(number) for number in (1, 2, 3)]
        assert ended(cloud, *agents) == [0] * 4, net.log("cloud") + net.log("helper")
        assert "collude" in run_cli("status", net.store).out
        assert helper.poll() in (None, 0)


# The same seed gives the same bits in a simulation and on the network


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority with agents 1 to 11, and gateways of some of them."""
    folder = tmp_path_factory.mktemp("keys") / "keys"
    assert run_cli("identity", "init", "--dir", folder, "--agents", "11").code == 0
    for gateway in ("1-2", "1-3", "2-3", "3-5", "3-6", "1-7", "9-11"):
        assert run_cli("identity", "issue", "--dir", folder, "--agents", gateway).code == 0
    return folder


async def on_the_network(
    noise: Any, groups: dict[str, Any], keys: Path, folder: Path, *, allow: bool = True, **more: Any
) -> list[Any]:
    """Run a cloud with simulated noise and agents in this process, over real sockets."""
    server = sv.Cloud(noise, keys=keys, store=folder / "run.db", seed=17, rounds=40, **more)
    await server.start()
    try:
        agents = [
            sv.Agent(
                group, cloud=f"wss://127.0.0.1:{server.port}", keys=keys / "agents" / name,
                saved=folder / f"{name}.state", allow_simulated=allow, longest_pause=0.2,
            )
            for name, group in groups.items()
        ]  # fmt: skip
        async with asyncio.timeout(90):
            results = await asyncio.gather(*(agent.run() for agent in agents))
            await server.finished(linger=0.0)
    finally:
        await server.stop()
    return list(results)


def groups_of(problem: sv.Problem, *names: str) -> dict[str, Any]:
    """Agents and gateways of a problem by the names of their keys, which count from 1."""
    ranges = {name: [int(end) for end in name.split("-")] for name in names}
    return {
        name: sv.network.AgentGroup.of_problem(problem, list(range(ends[0] - 1, ends[-1])))
        for name, ends in ranges.items()
    }


SAME: dict[str, tuple[Any, tuple[str, ...], Any]] = {
    "named": (p.bakeries, ("1", "2-3"), None),
    "mixed": (p.mixed, ("1-3",), None),
    "nonsmooth": (p.nonsmooth, ("1", "2"), None),
    "fleet": (lambda: p.small_fleet(6), ("1-2", "3-6"), None),
    "fleets and agents": (p.fleets_and_agents, ("1-7", "8", "9-11"), None),
    "public sets": (p.public_sets, ("1-2", "3-5"), None),
    "code": (p.coded, ("1", "2-3"), None),
    "a user's own step": (p.bakeries, ("1-3",), sv.DualAveraging(theta=0.2, memory=3.0)),
}


@pytest.mark.parametrize("name", SAME)
def test_a_simulation_has_the_bits_of_the_network(name: str, keys: Path, tmp_path: Path) -> None:
    make, parts, step = SAME[name]
    problem, own = make(), {} if step is None else {"algorithm": step}
    noise = p.plan(problem.cloud, radius=0.1, rounds=40)
    simulated = sv.simulate(problem, noise, seed=17, **own)
    results = asyncio.run(on_the_network(noise, groups_of(problem, *parts), keys, tmp_path, **own))
    np.testing.assert_array_equal(np.concatenate([r.x for r in results]), simulated.x[0])
    np.testing.assert_array_equal(np.concatenate([r.last_x for r in results]), simulated.last_x[0])
    np.testing.assert_array_equal(results[0].price, simulated.price[0])


@pytest.mark.slow
def test_an_absent_agent_is_held_where_that_is_sound(tmp_path: Path) -> None:
    """Under an offset the last contribution of a lost agent counts again, and the run goes on."""
    with Network(tmp_path) as net:
        net.make_keys("--gateway", "2-3")
        hide = ("--hide", "offset", "--radius", "0.5")
        hold = ("--straggler", "hold", "--deadline", "0.3s")
        cloud, one, rest = net.cloud(*hide, *hold), net.agent(1), net.gateway("2-3")
        net.wait_for_round(3)
        os.kill(one.pid, signal.SIGKILL)
        one.wait(timeout=30)
        assert ended(cloud, rest) == [0, 0]
        assert net.status()["rounds"] == 60
