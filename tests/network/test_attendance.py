"""The operator can see who is missing, since when, and who is waited for; a stall is no health."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from network_harness import completed, member, page, plan_for, reached, serving, taking_part

from sottovoce.network import service as service_module
from sottovoce.network.service import RECENT, Attendance
from sottovoce.problem.problem import Problem

MISSING = 5


async def test_status_metrics_and_the_log_name_agents_that_are_absent_and_who_held_up_rounds(
    paper: Problem,
    keys: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(service_module, "TICK_SECONDS", 0.02)
    caplog.set_level(logging.INFO)

    settings = {"rounds": 1_000_000, "stall": 0.3}
    async with serving(plan_for(paper), keys, tmp_path / "run.db", **settings) as cloud:
        agents = [member(paper, [i], cloud, keys, tmp_path) for i in range(1, 8)]
        async with taking_part(*agents) as tasks:
            await reached(cloud, 5)
            while (await page(cloud, keys, "agents/8", "/healthz"))[0] != 200:
                await asyncio.sleep(0.15)  # a busy machine may be slow for a moment
            tasks[MISSING - 1].cancel()
            while (await page(cloud, keys, "agents/8", "/healthz"))[0] == 200:
                await asyncio.sleep(0.15)
            text = (await page(cloud, keys, "agents/1", "/healthz"))[1]
            assert [t["code"] for t in json.loads(text)["troubles"]] == ["stalled"]
            status = json.loads((await page(cloud, keys, "operator", "/status"))[1])
            metrics = (await page(cloud, keys, "operator", "/metrics"))[1]
    assert [absence["agent"] for absence in status["absent"]] == [MISSING]
    assert status["absent"][0]["since"].endswith("Z")
    assert sum(one["rounds"] for one in status["last_to_answer"]) == min(RECENT, status["round"])
    assert f'sottovoce_absent_seconds{{agent="{MISSING}"}}' in metrics
    assert "sottovoce_agents_absent 1.0\n" in metrics
    assert "sottovoce_last_to_answer{agents=" in metrics
    lines = [vars(r) for r in caplog.records if r.getMessage() == "agents-absent"]
    assert any(MISSING in line["fields"]["agents"] for line in lines)


def test_everybody_is_absent_until_seen_and_the_last_rounds_are_counted() -> None:
    attendance = Attendance(range(1, 5))
    assert [one["agent"] for one in attendance.absent()] == [1, 2, 3, 4]
    machine = SimpleNamespace(present={1, 2, 3, 4})
    attendance.update(machine.present)
    assert attendance.absent() == []
    machine.present = {1, 2, 4}
    attendance.update(machine.present)
    assert [one["agent"] for one in attendance.absent()] == [3]
    for _ in range(RECENT):
        attendance.completed((4,))
    for _ in range(30):
        attendance.completed((1, 2, 4))
    counted = [(one["agents"], one["rounds"]) for one in attendance.last_to_answer()]
    assert counted == [("4", RECENT - 30), ("1-2,4", 30)]


async def test_a_finished_run_is_not_stalled(paper: Problem, keys: Path, tmp_path: Path) -> None:
    settings = {"rounds": 2, "stall": 0.01}
    async with serving(plan_for(paper), keys, tmp_path / "run.db", **settings) as cloud:
        await asyncio.sleep(0.05)
        assert (await page(cloud, keys, "operator", "/healthz"))[0] == 503
        await completed(cloud, member(paper, list(range(1, 8)), cloud, keys, tmp_path))
        await asyncio.sleep(0.05)
        assert (await page(cloud, keys, "operator", "/healthz"))[0] == 200
