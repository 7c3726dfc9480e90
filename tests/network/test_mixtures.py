"""Mixtures of answers and fallbacks: who checks them, and when answers are applied."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from network_harness import member, run, serving
from test_feasible_run import with_margins
from typer.testing import CliRunner

import sottovoce as sv
from sottovoce.cli import application
from sottovoce.network.agent import AgentResult
from sottovoce.problem.files.save import save_problem
from sottovoce.problem.problem import Problem

ROUNDS = 20


def fused(*fallback: float, rows: Any = None, limit: float = 3.0) -> Problem:
    """Two agents under a limit, with the fallbacks given."""
    x = sv.agents(2, lower=0, upper=5)
    couple = sv.hard(sum(x) <= limit) if rows is None else rows(x)
    return Problem(
        agents=x,
        objectives=[(x[0] - 3) ** 2, (x[1] - 2) ** 2],
        constraints={"fuse": couple},
        fallback=[[value] for value in fallback] or None,
    )


async def whole(
    problem: Problem, keys: Path, folder: Path, *, devices: tuple[Any, Any] = (None, None),
    **settings: Any,
) -> list[AgentResult]:  # fmt: skip
    made = with_margins(problem, ROUNDS, sigma=0.01)
    fixed: dict[str, Any] = {"rounds": ROUNDS, "seed": 1, **settings}
    async with serving(made, keys, folder / "run.db", **fixed) as cloud:
        agents = [
            member(problem, [a], cloud, keys, folder, allow_simulated=True, on_state=device)
            for a, device in zip((1, 2), devices, strict=True)
        ]
        ended = await asyncio.gather(*(agent.run() for agent in agents))
        await cloud.finished(linger=5)
        return list(ended)


def warned(caplog: pytest.LogCaptureFixture, event: str = "fallback-unsafe") -> list[list[int]]:
    lines = [record for record in caplog.records if record.msg == event]
    return sorted(record.fields["agents"] for record in lines)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("problem", "unsafe", "above"),
    [
        (fused(3.0, 0.0), [[1]], [[1]]),
        (fused(0.0, 0.0), [], []),
        (fused(), [], []),
        (fused(5.0, 1.0, rows=lambda x: sv.hard(x[0] + x[1] >= 3)), [[2]], []),
        (fused(0.0, 5.0, rows=lambda x: sv.hard(x[0] - x[1] <= 3)), [], []),
        (fused(0.0, 0.0, rows=lambda x: sv.hard((x[0] - x[1]) ** 2 <= 4)), [[1], [2]], []),
        (fused(0.0, 1.0, rows=lambda x: sv.hard((x[0] - x[1]) ** 2 <= 4)), [[1], [2]], [[2]]),
        (fused(0.0, 1.0, rows=lambda x: sv.hard(x[0] ** 2 + x[1] ** 2 <= 4)), [[2]], [[2]]),
    ],
)  # fmt: skip
def test_mixtures_with_an_unsafe_fallback_are_noted_by_its_agent(
    problem: Problem,
    unsafe: list[list[int]],
    above: list[list[int]],
    keys: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, logger="sottovoce.network"):
        run(whole(problem, keys, tmp_path))
    assert warned(caplog) == unsafe
    assert warned(caplog, "fallback-above-public") == above


def test_an_own_bound_makes_the_least_that_an_agent_can(
    keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    x = sv.agents(2, lower=0, upper=5)
    problem = Problem(
        agents=x,
        objectives=[(x[0] - 3) ** 2, (x[1] - 2) ** 2],
        constraints={"fuse": sv.hard(x[0] + x[1] <= 3)},
        local=[x[0] >= 1],
        fallback=[[1.0], None],
    )
    with caplog.at_level(logging.WARNING, logger="sottovoce.network"):
        run(whole(problem, keys, tmp_path))
    assert warned(caplog) == []


@pytest.mark.parametrize(
    ("rows", "unsafe"),
    [
        (lambda x: sv.hard(x[0] + x[1] <= 3), []),
        (lambda x: sv.hard(x[0] + x[1] >= 3), ["x1", "x2"]),
        (lambda x: x[0] + x[1] >= 3, []),  # nobody asks for answers that keep it
    ],
)
def test_check_lists_public_fallbacks_that_are_unsafe_in_mixtures(
    rows: Any, unsafe: list[str], tmp_path: Path
) -> None:
    save_problem(fused(rows=rows), tmp_path / "p")
    told = CliRunner().invoke(application(), ["check", str(tmp_path / "p"), "--json"])
    assert told.exit_code == 0
    assert json.loads(told.stdout)["unsafe_fallbacks"] == unsafe
    words = CliRunner().invoke(application(), ["check", str(tmp_path / "p")]).stdout
    assert ("may violate a constraint" in " ".join(words.split())) is bool(unsafe)


def test_answers_are_applied_at_one_time(keys: Path, tmp_path: Path) -> None:
    moments: list[float] = []

    def device(k: int, x: Any, which: str) -> None:
        if which == "answer":
            moments.append(time.monotonic())

    began = time.monotonic()
    ended = run(whole(fused(0.0, 0.0), keys, tmp_path, devices=(device,) * 2, apply_after=2.0))
    assert all(one.confirmed for one in ended)
    assert len(moments) == 2
    assert moments[0] - began > 2.0
    assert moments[1] - moments[0] < 1.0
