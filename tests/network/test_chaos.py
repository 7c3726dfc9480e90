"""Kill, cut and delay a run; afterwards its store and all that agents received must tell one story.

The three nevers: never two different releases for one round, never the same noise for two states,
never a release that is not in the store.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from network_harness import Site, free_port, plan_for, run
from party_process import witnessed_agent

from databases import sqlite
from sottovoce.database import address_of
from sottovoce.kernels.run_kernel import normals, stream_seed
from sottovoce.network import agent as agent_module
from sottovoce.network.failures import StoreError
from sottovoce.network.journal import Journal
from sottovoce.network.journal_place import seal
from sottovoce.network.protocol.actions import JournalRow, Part
from sottovoce.network.protocol.codec import decode_from_cloud, encode, pack
from sottovoce.network.protocol.collected import ContributionTotals
from sottovoce.network.protocol.messages import Round
from sottovoce.network.setup import parties_of
from sottovoce.network.store import answers, summarise, transcript
from sottovoce.privacy.fence import ledger_transaction
from sottovoce.privacy.sampler import grid_of
from sottovoce.problem.problem import Problem
from sottovoce.simulation.simulate import simulate

SCRIPT = str(Path(__file__).with_name("party_process.py"))
SIGMA = 4.0


def start(*words: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, SCRIPT, *map(str, words)])


def rounds_done(store: Path | str) -> int:
    try:
        return summarise(store).rounds
    except StoreError:
        return 0  # not made yet


def lines(path: Path) -> list[bytes]:
    """What was written down; a line that a kill tore is no line."""
    return [bytes.fromhex(line) for line in path.read_text().split("\n")[:-1]]


def check_frames(folder: Path, rows: list[JournalRow], rounds: int) -> None:
    """Never a release that is not in the store."""
    stored = {row.k: (row.context, row.digest) for row in rows}
    frames = [frame for path in folder.glob("*.frames") for frame in lines(path)]
    heard = [m for m in map(decode_from_cloud, frames) if isinstance(m, Round)]
    assert len(heard) >= rounds
    for message in heard:
        assert stored[message.round] == (message.price, message.receipt[:32])


def check_the_three_nevers(
    problem: Problem,
    folder: Path,
    rounds: int,
    seed: int,
    *,
    store: str = "",
    planned: int | None = None,
) -> None:
    """Check a run that ended; where more rounds are ``planned``, one that was cut off."""
    plan, place = plan_for(problem, sigma=SIGMA), store or folder / "run.db"
    with Journal.open(place) as journal:
        rows = list(journal.rounds())
    assert [row.k for row in rows] == list(range(1, rounds + 1))
    said = transcript(place).said
    assert said is not None
    z = normals(stream_seed(seed, 0), rounds, plan.sigma.size)
    parties, totals = parties_of(plan), ContributionTotals(plan.cloud.sums.count)
    known = {agents: parties(agents) for parts in said for agents, _ in parts}
    for row, parts in zip(rows, said, strict=True):
        total = totals([Part(party=known[agents], data=data) for agents, data in parts])
        noise = (np.frombuffer(row.release, dtype="<f8") - total * grid_of(SIGMA)) / SIGMA
        # The noise of round k, on the one sum the store has for it.
        np.testing.assert_allclose(noise, z[row.k - 1], rtol=0, atol=1e-9)
    check_frames(folder, rows, rounds)
    here = simulate(problem, plan, rounds=planned or rounds, seed=seed, transcript=True)
    assert here.transcript is not None
    released = [np.frombuffer(row.release, "<f8") for row in rows]
    assert np.array_equal(released, here.transcript.y[0][:rounds])  # of an undisturbed run
    ledger = address_of("ledger", store or folder / "ledger.db")
    with ledger_transaction(ledger) as database:
        ((fence,),) = database.execute("SELECT fence FROM runs").fetchall()
    if planned is None:
        assert rows[-1].context == pack(here.last_price[0])
        assert answers(place)[-1].tolist() == here.price[0].tolist()
        assert fence == rounds
    assert fence >= rounds


def witness_agents(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every frame of the agents in this process written down until the test ends."""
    monkeypatch.setitem(vars(agent_module), "encode", encode)  # put back later
    monkeypatch.setitem(vars(agent_module), "decode_from_cloud", decode_from_cloud)
    witnessed_agent(folder, "all")


def test_a_cloud_killed_at_any_instant_goes_on(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, seed, port = 150, 5, free_port()
    words = ("cloud", port, site.keys, site.folder, rounds, "--seed", seed)
    witness_agents(site.folder, monkeypatch)

    async def main() -> None:
        cloud = start(*words)
        try:
            async with asyncio.timeout(200):
                tasks = [
                    asyncio.create_task(site.member(port, i, allow_simulated=True).run())
                    for i in range(1, 8)
                ]
                while rounds_done(site.store) < 40:
                    await asyncio.sleep(0.01)
                cloud.kill()
                cloud.wait()
                cloud = start(*words)
                await asyncio.gather(*tasks)
                assert await asyncio.to_thread(cloud.wait) == 0
        finally:
            cloud.kill()
            cloud.wait()

    asyncio.run(main())
    check_the_three_nevers(site.problem, site.folder, rounds, seed)


class Proxy:
    """Passes bytes on between agents and the cloud; delays them at random unless quiet."""

    def __init__(self, target: int, rng: random.Random) -> None:
        self._target = target
        self._rng = rng
        self.quiet = False
        self._server: asyncio.Server
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        self._server.close()
        self.cut(1.0)
        await self._server.wait_closed()

    def cut(self, share: float) -> None:
        for writer in list(self._writers):
            if self._rng.random() < share:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, back}
        await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
        self._writers -= {writer, back}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                if not self.quiet and self._rng.random() < 0.002:
                    await asyncio.sleep(self._rng.uniform(0.01, 0.5))
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


async def soak(
    problem: Problem, keys: Path, folder: Path, *, rounds: int, seed: int, seconds: float
) -> int:
    """Disturb a run for ``seconds`` by kills, cuts and delays; return the kills.

    Then 100 rounds must be done undisturbed before everything is killed: more of the ``rounds``
    than there is time for are planned, so that a slow machine does fewer.
    """
    rng = random.Random(seed)  # noqa: S311
    direct = free_port()
    proxy = Proxy(direct, rng)
    port = await proxy.start()
    begin: list[Callable[[], subprocess.Popen[bytes]]] = [
        lambda: start("cloud", direct, keys, folder, rounds, "--seed", seed)
    ]
    for i in range(1, problem.agents + 1):
        begin.append(lambda i=i: start("agent", port, keys, folder, i))  # type: ignore[misc]
    crew = [begun() for begun in begin]
    end, kills = time.monotonic() + seconds, 0
    try:
        while time.monotonic() < end:
            await asyncio.sleep(rng.uniform(1.0, 12.0))
            assert all(process.poll() is None for process in crew), "a process gave up"
            victim = rng.choice([0, 0, *range(1, problem.agents + 1)])
            crew[victim].kill()
            crew[victim].wait()
            crew[victim] = begin[victim]()
            kills += 1
            proxy.cut(0.1)
        proxy.quiet = True
        settled = rounds_done(folder / "run.db") + 100
        while rounds_done(folder / "run.db") < settled:
            assert all(process.poll() is None for process in crew), "a process gave up"
            assert time.monotonic() < end + 600, "the run does not go on"
            await asyncio.sleep(0.2)
    finally:
        for process in crew:
            process.kill()
            process.wait()
        await proxy.close()
    return kills


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_minutes_of_kills_cuts_and_delays_leave_one_undisturbed_run(site: Site) -> None:
    seed, planned = 17, 1_000_000
    kills = asyncio.run(
        soak(site.problem, site.keys, site.folder, rounds=planned, seed=seed, seconds=1_200.0)
    )
    assert kills >= 100
    done = rounds_done(site.store)
    check_the_three_nevers(site.problem, site.folder, done, seed, planned=planned)


def test_the_check_itself_notices_a_forged_round(site: Site) -> None:

    run(site.play(plan_for(site.problem, sigma=SIGMA), rounds=8, seed=2, keep_states=True))
    (site.folder / "1.frames").write_text("")
    with pytest.raises(AssertionError):
        check_the_three_nevers(site.problem, site.folder, 8, 2)  # nobody witnessed anything
    ((said,),) = sqlite(site.store, "SELECT said FROM rounds WHERE k = 5")
    forged = said[:-1] + bytes([said[-1] ^ 1])  # another contribution of the last party
    write = "UPDATE rounds SET said = ?, said_seal = ? WHERE k = 5"
    sqlite(site.store, write, forged, seal(forged))
    with pytest.raises(AssertionError, match="Not equal"):
        check_the_three_nevers(site.problem, site.folder, 8, 2)
