"""What the live page costs a cloud: the same run with and without a page open, turn by turn."""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.network import MEMORY, SPAWN

SECONDS = 2.5
TURNS = 10


def run() -> list[dict[str, str | float]]:
    from sottovoce.network import identity

    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        root = Path(name)
        identity.create_keys(root / "keys", agents=7, gateways=[range(1, 8)])
        turns = _turns(root)
    without, beside = turns[::2], turns[1::2]
    ratio = median(b[1] / w[1] for w, b in zip(without, beside, strict=True))
    return [_row("no page open", without, 1.0), _row("a page open", beside, ratio)]


def _row(what: str, turns: list[tuple[float, float]], ratio: float) -> dict[str, str | float]:
    return {
        "7 agents behind a gateway, store in memory": what,
        "rounds/s": median(wall for wall, _ in turns),
        "rounds per second of the cloud's processor time": median(cpu for _, cpu in turns),
        "ratio of these, median of pairs": ratio,
    }


def _turns(root: Path) -> list[tuple[float, float]]:
    """Rounds per second, and per second of processor time, without the page and with it."""
    import uvloop

    from sottovoce.certificate.certificate import certify
    from sottovoce.network.cloud import Cloud
    from sottovoce.privacy.adjacency import Trajectory
    from sottovoce.privacy.plan import plan
    from sottovoce.problem import gallery

    made = plan(
        certify(gallery.paper().cloud),
        epsilon=math.log(3),
        delta=0.05,
        hide=Trajectory(radius=1.0),
    )

    async def main() -> list[tuple[float, float]]:
        cloud = Cloud(made, rounds=1_000_000, keys=root / "keys", store=root / "run.db")
        await cloud.start()
        look = SPAWN.Event()
        crew = [
            SPAWN.Process(target=_gateway, args=(root, cloud.port), daemon=True),
            SPAWN.Process(target=_viewer, args=(root, cloud.port, look), daemon=True),
        ]
        for process in crew:
            process.start()
        try:
            while cloud.round < 50:
                await asyncio.sleep(0.05)
            return [await _turn(cloud, look, turn % 2 == 1) for turn in range(2 * TURNS)]
        finally:
            for process in crew:
                process.kill()
                process.join()
            await cloud.stop()

    return uvloop.run(main())


async def _turn(cloud: Any, look: Event, wanted: bool) -> tuple[float, float]:
    (look.set if wanted else look.clear)()
    while bool(cloud.viewers) is not wanted:
        await asyncio.sleep(0.05)
    first, began, used = cloud.round, time.perf_counter(), time.process_time()
    await asyncio.sleep(SECONDS)
    rounds = cloud.round - first
    return rounds / (time.perf_counter() - began), rounds / (time.process_time() - used)


def _gateway(root: Path, port: int) -> None:
    import uvloop

    from sottovoce.network.agent import Agent
    from sottovoce.network.agent_group import AgentGroup
    from sottovoce.problem import gallery

    async def main() -> None:
        await Agent(
            AgentGroup.of_problem(gallery.paper(), list(range(7))),
            cloud=f"wss://127.0.0.1:{port}",
            keys=root / "keys" / "agents" / "1-7",
            saved=root / "7.state",
        ).run()

    uvloop.run(main())


def _viewer(root: Path, port: int, look: Event) -> None:
    """Reads the page's events while it is asked to."""
    import aiohttp

    from sottovoce.network.identity.tls import client_context

    async def main() -> None:
        connector = aiohttp.TCPConnector(ssl=client_context(root / "keys" / "operator"))
        async with aiohttp.ClientSession(connector=connector) as session:
            while True:
                while not look.is_set():
                    await asyncio.sleep(0.05)
                async with session.get(f"https://127.0.0.1:{port}/events") as answer:
                    while look.is_set():
                        await answer.content.readany()

    asyncio.run(main())
