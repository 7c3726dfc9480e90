"""``sottovoce conformance`` passes our agents and clouds, and names what others do wrong."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from network_harness import Site, free_port, member, plan_for, serving
from test_agent_js import agent_js as agent_js
from test_agent_js import command

from sottovoce.errors import SottovoceError
from sottovoce.network.conformance import scripted_cloud
from sottovoce.network.conformance.checks import CheckOutcome
from sottovoce.network.conformance.scripted_agent import ScriptedAgent
from sottovoce.network.conformance.scripted_cloud import ScriptedCloud
from sottovoce.network.protocol.agent_machine import AgentMachine
from sottovoce.network.protocol.cloud_machine import CloudMachine
from sottovoce.network.protocol.messages import Code
from sottovoce.problem.problem import Problem

COMMAND = (sys.executable, "-c", "from sottovoce.cli import main; main()")
CLIENT = str(Path(__file__).with_name("independent_client.py"))
Start = Callable[[int], Awaitable[object]]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents of these tests come back within 0.2 s."""
    monkeypatch.setattr(scripted_cloud, "ABSENT_SECONDS", 1.0)


def failed(checks: list[CheckOutcome]) -> list[str]:
    return [check.name for check in checks if not check.passed]


async def played(keys: Path, start: Start, *, patience: float = 10.0) -> list[CheckOutcome]:
    """The checks of an agent that ``start`` starts, whenever it is asked for."""
    running: list[asyncio.Future[Any]] = []
    port = free_port()

    async def after(before: list[asyncio.Future[Any]]) -> None:
        await asyncio.gather(*before)
        await start(port)

    def tell(words: str) -> None:
        if words.startswith("start"):
            running.append(asyncio.ensure_future(after(list(running))))

    try:
        script = ScriptedCloud(keys, tell=tell, patience=patience)
        return await script.play(("127.0.0.1", port))
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def ours(problem: Problem, keys: Path, folder: Path) -> Start:
    async def start(port: int) -> None:
        with suppress(SottovoceError):  # the first and the third time it is refused
            await member(problem, [4], port, keys, folder, allow_simulated=True).run()

    return start


async def test_an_agent_of_ours_passes(site: Site) -> None:
    checks = await played(site.keys, ours(site.problem, site.keys, site.folder))
    assert failed(checks) == []
    assert len(checks) > 40


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        ("_missed", "a round that it did not contribute to: a gap"),
        ("_check_round", "a receipt of 63 bytes: it leaves"),
    ],
)
async def test_an_agent_that_breaks_a_rule_fails_by_name(
    site: Site, broken: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(AgentMachine):  # type: ignore[misc]
        def _missed(self, spoke: int) -> Any:
            return () if broken == "_missed" else super()._missed(spoke)

        def _check_round(self, message: Any) -> Any:
            check = broken != "_check_round" or len(message.receipt) == 64
            return super()._check_round(message) if check else self._round(message)

    monkeypatch.setattr("sottovoce.network.agent.AgentMachine", Broken)
    checks = await played(site.keys, ours(site.problem, site.keys, site.folder), patience=3.0)
    assert named in failed(checks)


async def test_nobody_who_comes_is_a_failure(keys: Path) -> None:
    async def start(port: int) -> None:
        pass

    checks = await played(keys, start, patience=0.2)
    assert failed(checks) == ["it takes part to the end"]
    assert checks[-1].seen == "no agent came within 0.2 s"


async def test_the_independent_client_takes_part_until_it_must_reconnect(keys: Path) -> None:
    async def start(port: int) -> None:
        words = [sys.executable, CLIENT, str(port), str(keys / "agents" / "4")]
        process = await asyncio.create_subprocess_exec(*words, stderr=asyncio.subprocess.DEVNULL)
        await process.wait()

    checks = await played(keys, start, patience=3.0)
    assert failed(checks)[-1] == "it takes part to the end"
    passed = [check.name for check in checks if check.passed]
    assert {"hello of a new agent", "the contribution after round 3"} <= set(passed)


async def test_the_javascript_agent_passes(agent_js: Path, keys: Path, tmp_path: Path) -> None:
    words = ["conformance", "cloud", "--keys", str(keys), "--listen", "127.0.0.1:0", "--json"]
    pipe = asyncio.subprocess.PIPE
    script = await asyncio.create_subprocess_exec(*COMMAND, *words, stdout=pipe, stderr=pipe)
    assert script.stderr is not None
    port, agents = 0, []
    async for line in script.stderr:
        text = line.decode()
        if text.startswith("listening"):
            port = int(text.split()[-1])
        elif text.startswith("start"):
            node = command(agent_js, port, keys, tmp_path / "4.json")
            agents.append(await asyncio.create_subprocess_exec(*node, cwd=agent_js, stderr=pipe))
    output, _ = await script.communicate()
    told = json.loads(output)
    assert [check for check in told["checks"] if not check["passed"]] == []
    assert (script.returncode, told["failed"], len(agents)) == (0, 0, scripted_cloud.STARTS)
    assert [await agent.wait() for agent in agents] == [2, 0, 2]


async def visited(keys: Path, problem: Problem, folder: Path) -> list[CheckOutcome]:
    """The checks of a cloud of ours."""
    async with serving(plan_for(problem), keys, folder / "run.db", rounds=9) as cloud:
        url, everybody = f"wss://127.0.0.1:{cloud.port}", tuple(range(1, 8))
        return await ScriptedAgent(url, keys / "agents" / "1-7", everybody, patience=10.0).play()


async def test_a_cloud_of_ours_passes(site: Site) -> None:
    checks = await visited(site.keys, site.problem, site.folder)
    assert failed(checks) == []
    assert len(checks) > 40


async def test_the_command_tests_a_cloud_and_its_exit_code_says_how_it_went(site: Site) -> None:
    async def commanded(port: int, *more: str) -> tuple[int | None, Any]:
        words = ["conformance", "agent", "--cloud", f"wss://127.0.0.1:{port}", "--json", *more]
        words += ["--agents", "1-7", "--keys", str(site.keys / "agents" / "1-7")]
        pipe = asyncio.subprocess.PIPE
        script = await asyncio.create_subprocess_exec(*COMMAND, *words, stdout=pipe)
        output, _ = await script.communicate()
        return script.returncode, json.loads(output)

    async with site.serving(rounds=9) as cloud:
        code, told = await commanded(cloud.port)
    assert (code, told["failed"]) == (0, 0)
    assert {"name": "a flood: flood", "passed": True, "seen": ""} in told["checks"]
    code, told = await commanded(free_port(), "--patience", "0.5")
    assert (code, told["failed"]) == (1, 1)
    assert told["checks"][0]["seen"] == "no cloud takes a connection within 0.5 s"


async def test_a_cloud_that_breaks_rules_fails_by_name(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    object_to = CloudMachine._refuse_message

    def silent(self: Any, session: Any, code: Code, *more: Any) -> Any:
        wrong = Code.OLD_ROUND if code is Code.CONFLICT else code
        return object_to(self, session, wrong, *more)

    monkeypatch.setattr(CloudMachine, "_refuse_message", silent)
    server = "sottovoce.network.transport.server.Server._require_version"
    monkeypatch.setattr(server, lambda self, request: None)
    checks = await visited(site.keys, site.problem, site.folder)
    assert failed(checks) == [
        "asked for no version, it refuses with 426",
        "asked for sottovoce.0, it refuses with 426",
        "another contribution: conflict, and the connection stays",
    ]


async def test_a_cloud_that_refuses_the_keys_is_a_failure_and_no_traceback(site: Site) -> None:
    async with site.serving(rounds=9) as cloud:
        url, own = f"wss://127.0.0.1:{cloud.port}", site.keys / "operator"
        checks = await ScriptedAgent(url, own, (1,), patience=5.0).play()
    assert failed(checks)[-1] == "it takes part to the end"
    assert checks[-1].seen == "the cloud refuses the handshake (HTTP 403)"
