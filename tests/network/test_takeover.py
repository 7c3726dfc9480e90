"""Two clouds on one PostgreSQL database: one holds the lease, the other waits and takes over."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from network_harness import Site, free_port, member
from test_chaos import check_the_three_nevers, start, witness_agents

from databases import Server, needs_postgres
from sottovoce.errors import Exit
from sottovoce.network.journal_place import LEASE_SECONDS
from sottovoce.network.store import summarise
from sottovoce.privacy.ledger import Ledger
from sottovoce.problem.problem import Problem

pytestmark = needs_postgres

SEED = 5
HOSTS = ("127.0.0.1", "127.0.0.2")
"""Where the two clouds listen, on one port; agents know one name with both addresses."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    started = Server(free_port())
    yield started
    started.remove()


@pytest.fixture
def url(server: Server, paper: Problem) -> str:
    made = server.database()
    Ledger(made).grant(paper.cloud.agent_labels(), 1.1, 0.05, hide="trajectory", radius=1.0)
    return made


@pytest.fixture(autouse=True)
def two_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name localhost has both addresses, as a name of two machines would."""
    resolve = socket.getaddrinfo

    def resolved(host: Any, *words: Any, **more: Any) -> Any:
        hosts = HOSTS if host == "localhost" else (host,)
        return [entry for each in hosts for entry in resolve(each, *words, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)


class Pair:
    """Two clouds with the same command; ``lease`` in seconds."""

    def __init__(
        self, server: Server, url: str, keys: Path, folder: Path, *, rounds: int, lease: float
    ) -> None:
        self._server, self._url = server, url
        self.port, self.ended = free_port(), list[int]()
        self._words = (keys, folder, rounds, "--seed", SEED, url, lease)
        self.clouds: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *hosts: str) -> None:
        for host in hosts:
            self.clouds[host] = start("cloud", f"{host}:{self.port}", *self._words)

    def start_ended(self) -> None:
        """Start again what has ended with another code than 0, as a supervisor does."""
        for host, process in self.clouds.items():
            if process.poll() not in (None, 0):
                self.ended.append(process.returncode)
                self.start(host)

    @property
    def rounds(self) -> int:
        try:
            rows = self._server.rows(self._url, "SELECT coalesce(max(k), 0) FROM rounds")
        except self._server.errors:  # it may be down, or has no tables yet
            return 0
        return int(rows[0][0])

    async def holder(self) -> str:
        while True:
            for host in HOSTS:
                with suppress(OSError):
                    socket.create_connection((host, self.port), timeout=1).close()
                    return host
            await asyncio.sleep(0.05)

    async def reached(self, k: int) -> None:
        while self.rounds < k:
            await asyncio.sleep(0.02)

    def remove(self) -> None:
        for process in self.clouds.values():
            process.kill()
            process.wait()


@asynccontextmanager
async def taking_part(
    problem: Problem, pair: Pair, keys: Path, folder: Path, **settings: Any
) -> AsyncIterator[asyncio.Task[Any]]:
    """All agents, each on its own connection; the clouds are killed at the end."""
    tasks = []
    for i in range(1, 8):
        agent = member(problem, [i], pair.port, keys, folder, allow_simulated=True)
        agent.cloud = f"wss://localhost:{pair.port}"
        for name, value in settings.items():
            setattr(agent, name, value)
        tasks.append(asyncio.create_task(agent.run()))
    try:
        async with asyncio.timeout(3_000):
            yield asyncio.create_task(asyncio.wait(tasks))
            for task in tasks:
                await task
    finally:
        pair.remove()
        for task in tasks:
            task.cancel()


@pytest.fixture
def played(site: Site, server: Server, url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Plays a run while a script does something to its clouds; then all must tell one story."""

    def play(
        script: Any, *, rounds: int, lease: float = 1.0, hosts: Any = HOSTS, **settings: Any
    ) -> None:
        async def main() -> None:
            pair = Pair(server, url, site.keys, site.folder, rounds=rounds, lease=lease)
            pair.start(*hosts)
            where = (site.problem, pair, site.keys, site.folder)
            async with taking_part(*where, **settings) as ended:
                await script(pair, ended)

        witness_agents(site.folder, monkeypatch)
        asyncio.run(main())
        check_the_three_nevers(site.problem, site.folder, rounds, SEED, store=url)

    return play


def test_a_cloud_that_was_stopped_and_wakes_up_after_a_takeover_releases_nothing(
    played: Any, url: str
) -> None:
    async def stop(pair: Pair, ended: asyncio.Task[Any]) -> None:
        await pair.reached(40)
        first = await pair.holder()
        stopped = pair.clouds[first]
        stopped.send_signal(signal.SIGSTOP)
        # It keeps its connections: agents must leave it, as they do when a machine is lost.
        (other,) = set(HOSTS) - {first}
        await asyncio.sleep(3.0)
        stopped.send_signal(signal.SIGCONT)
        assert await asyncio.to_thread(stopped.wait, 30) == Exit.AGAIN
        assert await pair.holder() == other
        await ended

    played(stop, rounds=600)
    assert summarise(url).status == "done"  # not halted by who had not heard of the last rounds


def test_a_database_that_restarts_ends_the_cloud_with_75_and_the_run_goes_on(
    played: Any, server: Server
) -> None:
    async def restart(pair: Pair, ended: asyncio.Task[Any]) -> None:
        for k in (30, 60):
            await pair.reached(k)
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(pair.clouds[HOSTS[0]].wait, 30)
            await asyncio.to_thread(server.start)
            pair.start_ended()
        await ended
        assert pair.ended == [Exit.AGAIN, Exit.AGAIN]

    played(restart, rounds=150, hosts=HOSTS[:1])


@pytest.mark.parametrize(
    ("count", "rounds"),
    [(4, 400), pytest.param(200, 9_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
)
# = test_clouds_killed_at_random_instants_leave_one_undisturbed_run kills
def test_clouds_killed_at_random_instants_leave_one_undisturbed_run(
    played: Any, count: int, rounds: int
) -> None:
    async def kill(pair: Pair, ended: asyncio.Task[Any]) -> None:
        """Kill clouds between some rounds, mostly the one that has the lease."""
        rng = random.Random(count)  # noqa: S311
        for _ in range(count):
            await pair.reached(pair.rounds + rng.randint(1, 30))
            await asyncio.sleep(rng.uniform(0.0, 0.2))
            victim = await pair.holder() if rng.random() < 0.8 else rng.choice(HOSTS)
            pair.clouds[victim].kill()
            pair.clouds[victim].wait()
            pair.start_ended()
        assert not ended.done()
        while not ended.done():
            pair.start_ended()  # who lost the lease in between
            await asyncio.sleep(0.2)

    # The lease expires between renewals, too: the other takes over from a cloud that runs.
    played(kill, rounds=rounds, lease=0.5)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_standby_goes_on_within_two_lease_times_in_20_of_20_kills(
    played: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    took: list[float] = []

    async def kill(pair: Pair, ended: asyncio.Task[Any]) -> None:
        for _ in range(20):
            await pair.reached(pair.rounds + 20)
            first = await pair.holder()
            await asyncio.sleep(6.0)  # until the other one waits
            before, began = pair.rounds, time.monotonic()
            pair.clouds[first].kill()
            await pair.reached(before + 50)  # 50 rounds cannot have been under way
            took.append(time.monotonic() - began)
            pair.start_ended()
        raise asyncio.CancelledError

    with suppress(asyncio.CancelledError):
        played(kill, rounds=200_000, lease=LEASE_SECONDS, longest_pause=30.0)
    with capsys.disabled():
        print("\nseconds from the kill to new rounds:", *(f"{t:.1f}" for t in sorted(took)))  # noqa: T201
    assert len(took) == 20
    assert max(took) < 2 * LEASE_SECONDS
