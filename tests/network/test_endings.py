"""How cloud and agents end, and what they outlive."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from network_harness import Site, free_port

from sottovoce.network.agent import AgentStore
from sottovoce.network.failures import DiskError
from sottovoce.network.identity import certificates as certificates_module
from sottovoce.network.identity.certificates import Authorization, Identity
from sottovoce.network.observe import logs as logs_module
from sottovoce.network.observe.logs import LINES, PERIOD_SECONDS, LogRateLimiter
from sottovoce.network.protocol.actions import Memory
from sottovoce.network.protocol.codec import decode_from_cloud
from sottovoce.network.protocol.messages import Code
from sottovoce.network.transport.client import Client
from sottovoce.problem.files.save import save_problem

START = Memory(x=b"\0" * 8, answer=b"\0" * 8)
COMMAND = (sys.executable, "-c", "from sottovoce.cli import main; main()")
ALL = list(range(1, 8))


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if word in line:
            return
    raise AssertionError(f"ended with {process.wait()} without {word!r}")


def test_sigterm_and_sighup_end_cloud_and_agent_cleanly(site: Site) -> None:
    save_problem(site.problem, site.folder / "p")
    port = free_port()
    cloud_words = ("cloud", site.folder / "p", "--keys", site.keys, "--store", site.store)
    own = ("agent", site.folder / "p" / "agents" / "1.toml", "--keys", site.keys / "agents" / "1")
    address = ("--cloud", f"wss://127.0.0.1:{port}", "--state", site.folder / "1.state")
    with (
        _start(*cloud_words, "--listen", f"127.0.0.1:{port}") as cloud,
        _start(*own, *address) as agent,
    ):
        wait_for(cloud, "listening")
        wait_for(agent, "joined")
        assert (site.folder / "1.state-wal").exists()
        agent.send_signal(signal.SIGHUP)
        assert agent.wait(30) == -signal.SIGHUP
        cloud.send_signal(signal.SIGTERM)
        assert cloud.wait(30) == -signal.SIGTERM
    assert site.store.stat().st_size > 0
    assert not list(site.folder.glob("*-wal"))  # both stores were closed
    AgentStore(site.folder / "1.state", START).close()


def _start(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, *map(str, words)], stderr=subprocess.PIPE, text=True)


async def test_a_clock_that_jumps_stops_no_agent(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = SimpleNamespace(time=lambda: time.time() + 4e8, monotonic=time.monotonic)
    objection = Authorization.objection

    def ahead_of_agents(self: Authorization, identity: Identity | None) -> Code | None:
        with monkeypatch.context() as clock:  # the cloud's alone
            clock.setattr(certificates_module, "time", ahead)
            return objection(self, identity)

    async with site.serving(rounds=3) as cloud:
        task = asyncio.create_task(site.member(cloud, *ALL[:1]).run())
        while len(cloud._machine.present) == 0:
            await asyncio.sleep(0.01)
        with monkeypatch.context() as patch:
            patch.setattr(Authorization, "objection", ahead_of_agents)
            while len(cloud._machine.present):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)
            assert not task.done()
            assert cloud._metrics.refused[Code.EXPIRED] > 0
        others = [site.member(cloud, i).run() for i in ALL[1:]]
        await asyncio.gather(task, *others)


async def test_an_agent_cancelled_as_its_connection_opens_closes_it(site: Site) -> None:
    keys = site.keys / "agents" / "1"
    client = Client("wss://127.0.0.1:1", keys, decode_from_cloud, limit=1)
    closed = asyncio.Event()

    async def close() -> None:
        closed.set()

    async def connect(_: object) -> None:
        vars(client)["_socket"] = SimpleNamespace(close=close)
        asyncio.get_running_loop().call_soon(serving.cancel)  # before the conversation begins

    async def hear(_: object) -> bool:
        raise AssertionError("a conversation began")

    vars(client)["_connect"] = connect
    serving = asyncio.create_task(
        client.serve(hear, lost=lambda: None, progress=lambda: 0, done=lambda: False)
    )
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert closed.is_set()


def test_a_full_disk_at_an_agent_is_an_error_with_a_name(tmp_path: Path) -> None:
    path = tmp_path / "3.state"
    saved = AgentStore(path, START)
    saved.save(Memory(round=1, receipt=b"r" * 64, x=b"\1" * 8, answer=b"\1" * 8))
    pages = saved._database.execute("PRAGMA page_count").fetchone()[0]
    saved._database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(DiskError, match="full"):
        saved.save(
            Memory(round=2, receipt=b"r" * 64, x=b"\2" * 8, answer=b"\2" * 8, sent=bytes(99_999))
        )
    saved.close()
    again = AgentStore(path, START)
    assert again.memory.round == 1
    again.close()


def test_a_flood_of_refusals_writes_a_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(logs_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    limiter = LogRateLimiter()
    said = [limiter.suppressed((Code.FLOOD, 1)) for _ in range(1_000)]
    assert [s for s in said if s is not None] == [0] * LINES
    assert limiter.suppressed((Code.CONFLICT, 1)) == 0
    assert limiter.suppressed((Code.FLOOD, 2)) == 0
    now[0] = PERIOD_SECONDS
    assert limiter.suppressed((Code.FLOOD, 1)) == 1_000 - LINES
