"""A cloud in two halves over real sockets: it runs, and neither half sees a contribution."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from network_harness import halves, member, run, split_plan

from sottovoce.network.store import summarise
from sottovoce.problem.problem import Problem


async def played(
    problem: Problem, keys: Path, folder: Path, parties: list[list[int]], **settings: Any
) -> Any:
    async with halves(split_plan(problem), keys, folder, **settings) as (cloud, helper):
        agents = [member(problem, party, cloud, keys, folder) for party in parties]
        tasks = [asyncio.create_task(agent.run()) for agent in agents]
        done = asyncio.create_task(cloud.finished(linger=10))
        await asyncio.wait([*tasks, done], return_when=asyncio.FIRST_EXCEPTION)
        result = await done
        await asyncio.gather(*tasks)
        assert helper.round == result.rounds
    return result


@pytest.mark.parametrize("parties", [[[i] for i in range(1, 8)], [[1, 2, 3], [4, 5, 6, 7]]])
def test_a_split_cloud_runs_to_its_end_with_agents_alone_and_behind_gateways(
    parties: list[list[int]], paper: Problem, split_keys: Path, tmp_path: Path
) -> None:
    result = run(played(paper, split_keys, tmp_path, parties, rounds=20))
    assert result.rounds == 20
    assert np.isfinite(result.price).all()
    assert not result.refused
    assert summarise(tmp_path / "run.db").status == "done"
