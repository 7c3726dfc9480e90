from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from network_harness import Peer, member, plan_for, serving

import sottovoce as sv
from sottovoce.network.identity.tls import client_context
from sottovoce.network.protocol.messages import PROTOCOLS
from sottovoce.problem.constraints import total
from sottovoce.problem.problem import Problem

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
def test_memory_after_100_000_rounds_is_within_a_tenth_of_that_after_1_000(
    paper: Problem, keys: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serving(plan_for(paper), keys, tmp_path / "run.db", rounds=100_000) as cloud:
            gateway = asyncio.create_task(
                member(paper, list(range(1, 8)), cloud, keys, tmp_path).run()
            )
            while cloud.round < 1_000:
                await asyncio.sleep(0.1)
            early = resident_bytes()
            await cloud.finished(linger=10)
            await gateway
            assert resident_bytes() < 1.1 * early

    asyncio.run(main())
