"""Whoever floods the cloud is cut off, and the honest go on at nearly their own pace."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import flood_process
import numpy as np
import pytest
from network_harness import Peer, Site, member, plan_for, reached, run, serving, taking_part

import sottovoce as sv
from sottovoce.network.cloud import Cloud
from sottovoce.network.identity.tls import client_context
from sottovoce.network.protocol.messages import PROTOCOLS
from sottovoce.network.transport import limits as limits_module
from sottovoce.network.transport import server as server_module
from sottovoce.network.transport.limits import (
    CONNECTIONS,
    PAGES,
    PINGS,
    Limits,
    TokenBucket,
    most_sockets,
)
from sottovoce.problem.constraints import total
from sottovoce.problem.problem import Problem

ALL = list(range(1, 8))
HERE = Path(__file__).parent
TRIES = 4


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder that no disk slows down, if the system has one."""
    shared = Path("/dev/shm")  # noqa: S108  a fresh folder is made in it
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder)


async def pace(cloud: Cloud, seconds: float) -> float:
    """Rounds per second of this process's own time, so that other processes do not count."""
    rounds, spent = cloud.round, time.process_time()
    await asyncio.sleep(seconds)
    return (cloud.round - rounds) / (time.process_time() - spent)


async def share_kept(kind: str, cloud: Cloud, keys: Path) -> float:
    """The honest rate under a flood over that without, measured side by side."""
    before = await pace(cloud, 0.6)
    flood = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HERE / "flood_process.py"),
        kind,
        str(cloud.port),
        str(keys / "agents" / "8"),
        "2.0",
        stdout=asyncio.subprocess.PIPE,
    )
    assert flood.stdout is not None
    await flood.stdout.readline()
    await asyncio.sleep(0.8)  # by then it has spent what it may do at once
    under = await pace(cloud, 1.0)
    await flood.wait()
    after = await pace(cloud, 0.3)
    return 2 * under / (before + after)


@pytest.mark.parametrize("kind", flood_process.KINDS)
async def test_the_rest_keeps_four_fifths_of_its_rate_under_a_flood(
    kind: str, paper: Problem, keys: Path, memory: Path
) -> None:
    settings = {"rounds": 1_000_000, "seed": 1}
    async with serving(plan_for(paper), keys, memory / "run.db", **settings) as cloud:
        kept: list[float] = []
        async with taking_part(member(paper, ALL, cloud, keys, memory, allow_simulated=True)):
            await reached(cloud, 20)
            while len(kept) < TRIES and max(kept, default=0.0) < 0.8:
                kept.append(await share_kept(kind, cloud, keys))
    assert max(kept) >= 0.8


def send_until_cut_off(port: int, keys: Path, blob: bytes) -> float:
    """Send, never read; return the seconds until the cloud has had enough."""
    voice = flood_process.upgraded(port, client_context(keys / "agents" / "8"))
    began = time.monotonic()
    with contextlib.suppress(OSError):
        while time.monotonic() - began < 8:
            voice.sendall(blob)
            time.sleep(0.01)
    voice.close()
    return time.monotonic() - began


@pytest.mark.parametrize(
    "blob",
    [
        flood_process.frame(2, b"\xc1nonsense"),
        flood_process.frame(1, b"text"),
        flood_process.frame(9, b"") * (PINGS + 1),
        b"\xff" * 16,
        bytes((2, 0xFE)) + b"\xff\xff",
    ],
    ids=["nonsense", "text", "pings", "no frame", "too large"],
)
async def test_refused_connections_are_read_no_further_and_closed(site: Site, blob: bytes) -> None:
    async with site.serving(rounds=3) as cloud:
        loop = asyncio.get_running_loop()
        took = await loop.run_in_executor(None, send_until_cut_off, cloud.port, site.keys, blob)
        assert took < 3  # a second, on a machine that may be busy


@pytest.mark.parametrize("more", [b"", b"Upgrade: x\r\n"], ids=["plain", "upgrade elsewhere"])
async def test_pages_are_answered_so_often_and_no_more(site: Site, more: bytes) -> None:
    async with site.serving(rounds=3) as cloud:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", cloud.port, ssl=client_context(site.keys / "agents" / "1")
        )
        request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + more + b"\r\n"
        answers = b""
        with contextlib.suppress(OSError):
            for _ in range(3 * PAGES):
                writer.write(request)
                await writer.drain()
                answers += await asyncio.wait_for(reader.read(4096), 5)
            answers += await asyncio.wait_for(reader.read(), 5)
        writer.close()
        assert PAGES <= answers.count(b"200 OK") < 2 * PAGES
        assert (await site.page(cloud, "agents/2", "/healthz"))[0] == 200


async def test_a_certificate_has_so_many_connections_and_no_more(site: Site) -> None:
    async with site.serving(rounds=3) as cloud:
        tls = client_context(site.keys / "agents" / "1")
        held = [
            await asyncio.open_connection("127.0.0.1", cloud.port, ssl=tls)
            for _ in range(CONNECTIONS + 4)
        ]
        await asyncio.sleep(0.2)
        open_ = [reader for reader, _ in held if not reader.at_eof()]
        assert len(open_) == CONNECTIONS + 1  # one for its agent
        async with site.peer(cloud, "agents/2") as other:
            assert (await other.hello([2]))["type"] == "welcome"
        for _, writer in held:
            writer.close()


@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nHost: loc"])
async def test_a_request_that_is_never_complete_is_dropped(
    site: Site, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 0.1)

    async with site.serving(rounds=3) as cloud:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", cloud.port, ssl=client_context(site.keys / "agents" / "1")
        )
        writer.write(said)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


def ended(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None


def test_four_hundred_bare_connections_stop_no_return_and_no_reload(site: Site) -> None:
    probe = socket.create_server(("127.0.0.1", 0))
    port = probe.getsockname()[1]
    probe.close()
    words = ("cloud", port, site.keys, site.folder, 5, "--seed", 1)
    command = [sys.executable, str(HERE / "party_process.py"), *map(str, words)]
    cloud = subprocess.Popen(["sh", "-c", 'ulimit -n 200; exec "$@"', "sh", *command])
    tls = client_context(site.keys / "agents" / "8")
    held: list[socket.socket] = []

    def crowd() -> None:
        for kind in ("bare tcp", "handshakes never finished"):
            for _ in range(400):
                with contextlib.suppress(ConnectionError):
                    held.append(flood_process.opened(kind, port, tls))

    async def main() -> None:
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                await asyncio.sleep(0.05)
        await asyncio.to_thread(crowd)
        with (site.keys / "revoked.txt").open("a", encoding="ascii") as file:
            file.write("# touched\n")
        await asyncio.sleep(1.5)  # a reload or two
        assert not ended(cloud)
        agent = site.member(port, *ALL, allow_simulated=True)
        assert (await asyncio.wait_for(agent.run(), 20)).rounds == 5

    try:
        run(main())
        assert cloud.wait(10) == 0
    finally:
        cloud.kill()
        cloud.wait()
        for sock in held:
            sock.close()


def test_the_soft_limit_of_descriptors_is_raised_and_a_reserve_is_kept() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
    try:
        assert 0 < most_sockets() < hard - 64
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_no_connection_takes_the_reserve(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "most_sockets", lambda: 3)

    async with site.serving(rounds=3) as cloud:
        held = [await asyncio.open_connection("127.0.0.1", cloud.port) for _ in range(5)]
        await asyncio.sleep(0.2)
        assert [reader.at_eof() for reader, _ in held] == [False] * 3 + [True] * 2
        for _, writer in held:
            writer.close()


def test_a_flood_of_one_address_leaves_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "ADDRESSES", 2)
    limits = Limits(agents=7, numbers=4)
    flood = [limits.handshake("1.1.1.1") for _ in range(400)]
    assert 7 + limits_module.SPARE <= sum(flood) < 20
    assert limits.handshake("2.2.2.2")
    assert limits.handshake("3.3.3.3")  # and forgets the first
    assert limits.handshake("1.1.1.1")
    many = [limits.handshake(f"10.0.0.{i}") for i in range(200)]
    assert sum(many) < 20  # many addresses together take a bounded share, too


def test_a_bucket_gives_its_capacity_at_once_and_its_rate_in_the_long_run() -> None:
    bucket = TokenBucket(3, 50)
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
    time.sleep(0.03)
    assert bucket.take()
    assert not bucket.take(3)


AGENTS = 1_000


def chargers() -> Problem:
    ev = sv.agents(
        AGENTS, lower=0, upper=1, name="ev", parameters={"want": np.linspace(0.2, 0.9, AGENTS)}
    )
    return Problem(
        agents=ev,
        objectives=(ev.x - ev["want"]) ** 2,
        constraints={"capacity": total(ev.x) <= 0.4 * AGENTS},
    )


@pytest.mark.slow
async def test_a_thousand_agents_on_a_thousand_connections_work(keys: Path, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * AGENTS + 200
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    problem, rounds = chargers(), 5

    async def one(session: aiohttp.ClientSession, url: str, number: int) -> int:
        async with session.ws_connect(url, protocols=PROTOCOLS) as socket:
            peer = Peer(socket)
            assert (await peer.hello([number]))["type"] == "welcome"
            await peer.say({"type": "contribution", "round": 1, "values": bytes(8)})
            heard = 0
            while (message := await peer.hear()) is not None and message["type"] == "round":
                heard += 1
                k = message["round"] + 1
                await peer.say({"type": "contribution", "round": k, "values": bytes(8)})
            return heard

    async with serving(plan_for(problem), keys, tmp_path / "run.db", rounds=rounds) as cloud:
        connector = aiohttp.TCPConnector(ssl=client_context(keys / "agents" / "1-1000"), limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            url = f"wss://127.0.0.1:{cloud.port}"
            heard = await asyncio.gather(*(one(session, url, i) for i in range(1, AGENTS + 1)))
        assert heard == [rounds] * AGENTS


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_memory_after_100_000_rounds_is_within_a_tenth_of_that_after_1_000(site: Site) -> None:
    async def main() -> None:
        async with site.serving(rounds=100_000) as cloud:
            gateway = asyncio.create_task(site.member(cloud, *range(1, 8)).run())
            while cloud.round < 1_000:
                await asyncio.sleep(0.1)
            early = resident_bytes()
            await cloud.finished(linger=10)
            await gateway
            assert resident_bytes() < 1.1 * early

    asyncio.run(main())
