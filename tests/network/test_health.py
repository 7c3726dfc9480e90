"""Health checks without a certificate, and certificates that are renewed while a run goes on."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest
from network_harness import (
    Site,
    completed,
    free_port,
    member,
    plan_for,
    reached,
    serving,
    taking_part,
)

from sottovoce.network import identity
from sottovoce.network import service as service_module
from sottovoce.network.failures import BusyError
from sottovoce.network.service import RECENT, Attendance
from sottovoce.problem.problem import Problem


async def get(port: int, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as answer,
    ):
        return answer.status, await answer.text()


async def test_a_stalled_cloud_is_alive_and_not_ready(site: Site) -> None:
    port = free_port()
    settings = {"rounds": 100_000, "stall": 0.5, "health_listen": ("127.0.0.1", port)}
    async with site.serving(**settings) as cloud:
        async with taking_part(*(site.member(cloud, i) for i in range(1, 8))):
            await reached(cloud, 3)
            while (await get(port, "/readyz")) != (200, "ok\n"):
                await asyncio.sleep(0.02)
            metrics = (await get(port, "/metrics"))[1]
        while (await get(port, "/readyz")) != (503, "stalled\n"):
            await asyncio.sleep(0.05)
        assert await get(port, "/livez") == (200, "ok\n")
        assert (await get(port, "/status"))[0] == 404
    assert "sottovoce_rounds 100000.0\n" in metrics


async def test_a_health_port_in_use_leaves_nothing_open(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = {"rounds": 1, "health_listen": ("127.0.0.1", taken.getsockname()[1])}
        with pytest.raises(BusyError, match="health_listen must be a free address"):
            async with site.serving(**settings):
                pass
    async with site.serving(rounds=1):
        pass


async def test_renewed_certificates_count_for_new_connections_of_both_sides(
    paper: Problem,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(service_module, "TICK_SECONDS", 0.02)
    caplog.set_level(logging.INFO)
    keys, others = tmp_path / "keys", tmp_path / "others"
    identity.create_keys(keys, agents=7)
    identity.create_keys(others, agents=7)
    agents = [*range(1, 8)]

    async with serving(plan_for(paper), keys, tmp_path / "run.db", rounds=100_000) as cloud:
        members = [member(paper, [i], cloud, keys, tmp_path) for i in agents]
        async with taking_part(*members) as tasks:
            await reached(cloud, 3)
            shutil.copy(others / "server.pem", keys / "server.pem")  # a key for another one
            while "certificate-unusable" not in caplog.messages:
                await asyncio.sleep(0.02)
            for name in ("ca.pem", "server.key"):
                shutil.copy(others / name, keys / name)
            for i in agents:
                for name in ("ca.pem", "cert.pem", "key.pem"):
                    shutil.copy(others / f"agents/{i}" / name, keys / f"agents/{i}" / name)
            while "certificate-renewed" not in caplog.messages:
                await asyncio.sleep(0.02)
            for connection in list(cloud._server.connections):
                connection.abort()
            await reached(cloud, cloud.round + 5)
            assert not any(task.done() for task in tasks)
            serials = {c.identity.serial for c in cloud._server.connections if c.identity}
    assert serials <= {
        line.split()[0].lower() for line in (others / "issued.txt").read_text().splitlines()
    }
    assert serials


# --- The operator can see who is missing, since when, and who is waited for ---


MISSING = 5


async def test_status_metrics_and_the_log_name_agents_that_are_absent_and_who_held_up_rounds(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service_module, "TICK_SECONDS", 0.02)
    caplog.set_level(logging.INFO)

    settings = {"rounds": 1_000_000, "stall": 0.3}
    async with site.serving(**settings) as cloud:
        agents = [site.member(cloud, i) for i in range(1, 8)]
        async with taking_part(*agents) as tasks:
            await reached(cloud, 5)
            while (await site.page(cloud, "agents/8", "/healthz"))[0] != 200:
                await asyncio.sleep(0.15)  # a busy machine may be slow for a moment
            tasks[MISSING - 1].cancel()
            while (await site.page(cloud, "agents/8", "/healthz"))[0] == 200:
                await asyncio.sleep(0.15)
            text = (await site.page(cloud, "agents/1", "/healthz"))[1]
            assert [t["code"] for t in json.loads(text)["troubles"]] == ["stalled"]
            status = json.loads((await site.page(cloud, "operator", "/status"))[1])
            metrics = (await site.page(cloud, "operator", "/metrics"))[1]
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


async def test_a_finished_run_is_not_stalled(site: Site) -> None:
    settings = {"rounds": 2, "stall": 0.01}
    async with site.serving(**settings) as cloud:
        await asyncio.sleep(0.05)
        assert (await site.page(cloud, "operator", "/healthz"))[0] == 503
        await completed(cloud, site.member(cloud, *range(1, 8)))
        await asyncio.sleep(0.05)
        assert (await site.page(cloud, "operator", "/healthz"))[0] == 200
