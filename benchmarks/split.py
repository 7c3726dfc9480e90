"""Rounds per second of a cloud in two halves, beside the trusted cloud in the same run."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.context import SpawnProcess
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.network import SECONDS, _agents, _ended, _fleet, _started

PAIRS = 5


def run() -> list[dict[str, str | float]]:
    single = [range(i, i + 1) for i in range(1, 8)]
    gateways = [range(b, b + 250) for b in range(1, 1001, 250)]
    return [
        *_pairs("7 processes", "paper", single),
        *_pairs("1,000 agents, 4 gateways", "fleet", gateways),
    ]


def _pairs(what: str, name: str, parts: Sequence[range]) -> list[dict[str, str | float]]:
    """Both kinds in turn, several times: what else the machine does meets both alike."""
    from sottovoce.network import identity

    one, split = [], []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for kind, helper in (("one", None), ("split", ())):
            identity.create_keys(root / kind, agents=0, gateways=parts, helper=helper)
        for _ in range(PAIRS):
            one.append(_rate(name, root, parts, split=False))
            split.append(_rate(name, root, parts, split=True))
    ratios = [b / a for a, b in zip(one, split, strict=True)]
    return [
        {"what": f"{what}: trusted cloud", "rounds/s": median(one), "ratio": 1.0},
        {"what": f"{what}: two halves", "rounds/s": median(split), "ratio": median(ratios)},
    ]


def _plan(name: str, *, split: bool) -> tuple[Any, Any]:
    import math

    from sottovoce.certificate.certificate import certify
    from sottovoce.privacy.adjacency import Trajectory
    from sottovoce.privacy.plan import plan
    from sottovoce.privacy.trust import OneCloud, SplitCloud
    from sottovoce.problem import gallery

    problem: Any = gallery.paper() if name == "paper" else _fleet(1000)
    trust = SplitCloud() if split else OneCloud()
    hide = Trajectory(radius=1.0)
    asked = {"epsilon": math.log(3), "delta": 0.05, "hide": hide, "trust": trust}
    return problem, plan(certify(problem.cloud), **asked)


def _rate(name: str, root: Path, parts: Sequence[range], *, split: bool) -> float:
    """Rounds per second, each durable in one store or in two."""
    import uvloop

    from sottovoce.network.cloud import Cloud

    _, made = _plan(name, split=split)
    keys = root / ("split" if split else "one")
    folder = Path(tempfile.mkdtemp(dir=root))

    async def main() -> float:
        crew: list[SpawnProcess] = []
        settings: dict[str, Any] = {"keys": keys}
        if split:
            port = _free_port()
            crew += _started(_helper, [(name, keys / "helper", folder, port)])
            settings = {"keys": keys / "cloud", "helper": f"wss://127.0.0.1:{port}"}
        cloud = Cloud(made, rounds=1_000_000, store=folder / "run.db", **settings)
        await cloud.start()
        crew += _started(_agents, [(keys, folder, cloud.port, part, name) for part in parts])
        try:
            deadline = time.perf_counter() + 240
            while cloud.round < 50:
                if time.perf_counter() > deadline:
                    raise TimeoutError("the agents do not come up")
                await asyncio.sleep(0.05)
            first, began = cloud.round, time.perf_counter()
            await asyncio.sleep(SECONDS)
            return (cloud.round - first) / (time.perf_counter() - began)
        finally:
            _ended(crew)
            await cloud.stop()

    return uvloop.run(main())


def _helper(name: str, keys: Path, folder: Path, port: int) -> None:
    import uvloop

    from sottovoce.network.helper import Helper

    _, made = _plan(name, split=True)

    async def main() -> None:
        store, listen = folder / "helper.db", ("127.0.0.1", port)
        await Helper(made, keys=keys, store=store, listen=listen).run()

    uvloop.run(main())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
