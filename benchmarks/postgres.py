"""Rounds per second with store and ledger in SQLite and in PostgreSQL on this machine, in turns."""

from __future__ import annotations

import asyncio
import math
import socket
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.network import _agents, _ended, _started

SECONDS = 3.0
TURNS = 3


def run() -> list[dict[str, str | float]]:
    from tests.databases import Server

    from sottovoce.network import identity

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server, rates = Server(port), dict[str, list[tuple[float, float]]]()
    try:
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            identity.create_keys(root / "keys", agents=7, gateways=[range(1, 8)])
            for turn in range(TURNS):
                for what, places in _places(root, server, turn).items():
                    rates.setdefault(what, []).append(_rate(root, *places))
    finally:
        server.remove()
    first = rates["SQLite, no ledger"]
    return [
        {
            "7 agents behind a gateway": what,
            "rounds/s": median(wall for wall, _ in turns),
            "of SQLite, no ledger": median(
                wall / of for (wall, _), (of, _) in zip(turns, first, strict=True)
            ),
            "cloud's processor time, ms a round": median(cpu for _, cpu in turns),
        }
        for what, turns in rates.items()
    ]


def _places(root: Path, server: Any, turn: int) -> dict[str, tuple[str, str]]:
    """Where store and ledger are."""
    database, other = server.database(), server.database()
    files = [str(root / f"{name}-{turn}") for name in ("1.db", "2.db", "2.ledger", "3.ledger")]
    return {
        "SQLite, no ledger": (files[0], ""),
        "SQLite, ledger in SQLite": (files[1], files[2]),
        "PostgreSQL, no ledger": (f"{database}?schema=a", ""),
        "PostgreSQL, ledger in the same database": (f"{database}?schema=b", database),
        "PostgreSQL, ledger in another database": (f"{database}?schema=c", other),
        "PostgreSQL, ledger in SQLite": (f"{database}?schema=d", files[3]),
    }


def _rate(root: Path, store: str, ledger: str) -> tuple[float, float]:
    """Rounds per second, and the cloud's processor time in milliseconds a round."""
    import uvloop

    from sottovoce.certificate.certificate import certify
    from sottovoce.network.cloud import Cloud
    from sottovoce.privacy.adjacency import Trajectory
    from sottovoce.privacy.ledger import Ledger
    from sottovoce.privacy.plan import plan
    from sottovoce.problem import gallery

    public, hide = gallery.paper().cloud, Trajectory(radius=1.0)
    made = plan(certify(public), epsilon=math.log(3), delta=0.05, hide=hide)
    accounts = None
    if ledger:
        accounts = Ledger(ledger)
        accounts.grant(public.agent_labels(), 1.1, 0.05, hide="trajectory", radius=1.0)
    folder = Path(tempfile.mkdtemp(dir=root))

    async def main() -> tuple[float, float]:
        cloud = Cloud(made, rounds=10**6, keys=root / "keys", store=store, ledger=accounts)
        await cloud.start()
        crew = _started(_agents, [(root / "keys", folder, cloud.port, range(1, 8), "paper")])
        try:
            while cloud.round < 50:
                await asyncio.sleep(0.05)
            first, began, spent = cloud.round, time.perf_counter(), time.process_time()
            await asyncio.sleep(SECONDS)
            rounds = cloud.round - first
            return (
                rounds / (time.perf_counter() - began),
                1e3 * (time.process_time() - spent) / rounds,
            )
        finally:
            _ended(crew)
            await cloud.stop()

    return uvloop.run(main())
