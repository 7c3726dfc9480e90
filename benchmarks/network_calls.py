"""Python calls of a round: a cloud and 3 agents in one process, secure noise, by module.

Modules of 10 calls and more; functions of libraries are in the last row, C is not counted.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

SRC = str(Path(__file__).parents[1] / "src" / "sottovoce")
FIRST, ROUNDS = 100, 500


def run() -> list[dict[str, str | float]]:
    import uvloop

    with tempfile.TemporaryDirectory() as name:
        calls, rounds = uvloop.run(_count(Path(name)))
    libraries = sum(n for file, n in calls.items() if not file.startswith(SRC)) / rounds
    ours = {file[len(SRC) + 1 :]: n / rounds for file, n in calls.items() if file.startswith(SRC)}
    total = f"all {sum(n >= 0.5 for n in ours.values())} modules"
    rows: list[dict[str, str | float]] = [{"module": total, "calls": sum(ours.values())}]
    rows += [
        {"module": file, "calls": n}
        for file, n in sorted(ours.items(), key=lambda item: -item[1])
        if n >= 10
    ]
    return [*rows, {"module": "libraries", "calls": libraries}]


async def _count(root: Path) -> tuple[Counter[str], int]:
    """Calls by file, and in how many rounds."""
    import sottovoce as sv
    from sottovoce.network import identity

    x = sv.agents(["a", "b", "c"], lower=-10, upper=10)
    problem = sv.Problem(
        objectives=[(x[0] - 9) ** 2, (x[1] + 4) ** 2, (x[2] - 1) ** 2],
        constraints=[sv.total(x) <= 3, x[1] ** 2 + x[2] ** 2 <= 20],
    )
    hide = sv.Trajectory(radius=1.0, rounds=10 * ROUNDS)
    plan = sv.plan(problem, epsilon=1.0, delta=1e-3, hide=hide, progress=False)
    identity.create_keys(root / "keys", agents=3)
    keys, store = root / "keys", root / "run.db"
    cloud = sv.Cloud(plan, rounds=10 * ROUNDS, keys=keys, store=store)
    await cloud.start()
    url = f"wss://127.0.0.1:{cloud.port}"
    agents = [
        sv.Agent(
            sv.network.AgentGroup.of_problem(problem, [i]),
            cloud=url,
            keys=keys / "agents" / str(i + 1),
            saved=root / f"{i}.state",
        )
        for i in range(3)
    ]
    tasks = [asyncio.create_task(agent.run()) for agent in agents]
    calls = Counter[str]()

    def count(frame: Any, event: str, _: object) -> None:
        if event == "call":
            calls[frame.f_code.co_filename] += 1

    while cloud.round < FIRST:
        await asyncio.sleep(0.01)
    first = cloud.round
    sys.setprofile(count)
    while cloud.round < first + ROUNDS:
        await asyncio.sleep(0.01)
    sys.setprofile(None)
    rounds = cloud.round - first
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await cloud.stop()
    return calls, rounds
