"""A client written from docs/reference/protocol.md alone computes what ``simulate`` computes."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from network_harness import halves, member, plan_for, run, serving, split_plan

from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.network.cloud import Cloud
from sottovoce.paper.tikhonov import Tikhonov
from sottovoce.problem.problem import Problem
from sottovoce.simulation.simulate import simulate

ROUNDS, SEED = 30, 9
SCRIPT = str(Path(__file__).with_name("independent_client.py"))


async def together(problem: Problem, cloud: Cloud, keys: Path, folder: Path, **more: Any) -> bytes:
    """Run six agents of ours with the client as the fourth; return what it printed."""
    others = [
        asyncio.create_task(member(problem, [i], cloud, keys, folder, **more).run())
        for i in (1, 2, 3, 5, 6, 7)
    ]
    client = await asyncio.create_subprocess_exec(
        sys.executable,
        SCRIPT,
        str(cloud.port),
        str(keys / "agents" / "4"),
        stdout=asyncio.subprocess.PIPE,
    )
    await cloud.finished(linger=20)
    await asyncio.gather(*others)
    output, _ = await client.communicate()
    assert client.returncode == 0
    return output


@pytest.mark.parametrize(
    ("algorithm", "method"),
    [(DualAveraging(), "joint"), (Tikhonov(), "paper")],
    ids=["sums", "paper"],
)
def test_the_independent_client_takes_part(
    algorithm: Any, method: Any, paper: Problem, keys: Path, tmp_path: Path
) -> None:
    plan = plan_for(paper, method=method)
    settings: dict[str, Any] = {"rounds": ROUNDS, "seed": SEED, "algorithm": algorithm}

    async def main() -> bytes:
        async with serving(plan, keys, tmp_path / "run.db", **settings) as cloud:
            return await together(paper, cloud, keys, tmp_path, allow_simulated=True)

    said = json.loads(run(main()))
    here = simulate(paper, plan, **settings)
    assert said["rounds"] == ROUNDS
    assert said["x"] == pytest.approx(here.last_x[0][3], abs=1e-9)
    assert said["answer"] == pytest.approx(here.x[0][3], abs=1e-9)


def test_the_independent_client_takes_part_in_a_split_run(
    paper: Problem, split_keys: Path, tmp_path: Path
) -> None:
    async def main() -> bytes:
        async with halves(split_plan(paper), split_keys, tmp_path, rounds=ROUNDS) as (cloud, _):
            return await together(paper, cloud, split_keys, tmp_path)

    # With another mask than the helper's the sums would have left their range.
    assert json.loads(run(main()))["rounds"] == ROUNDS
