from __future__ import annotations

import asyncio
import json
import stat
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from network_harness import free_port
from typer.testing import CliRunner

from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.certificate.optimum import reference_optimum
from sottovoce.cli.console import errors
from sottovoce.cli.demo import demo_command
from sottovoce.cli.options import algorithm_for, run_rounds
from sottovoce.cli.services import cloud_command, gateway_command, listen_address, status_command
from sottovoce.errors import InputError
from sottovoce.network.observe import logs
from sottovoce.network.store import CloudStore
from sottovoce.paper.tikhonov import Tikhonov
from sottovoce.problem import gallery
from sottovoce.problem.files.save import save_problem
from sottovoce.problem.problem import Problem

runner = CliRunner()
status_app = typer.Typer()
status_app.command()(status_command)


async def test_a_gateway_runs_its_agents_from_their_own_files_alone(
    paper: Problem,
    keys: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(logs, "configure", lambda level: None)
    save_problem(paper, tmp_path / "cloud", agents=[])
    save_problem(paper, tmp_path / "gateway", agents=range(1, 8))
    port = free_port()
    serving = asyncio.to_thread(
        cloud_command, problem=tmp_path / "cloud", keys=keys, store=tmp_path / "run.db",
        listen=f"127.0.0.1:{port}", rounds=6,
        linger=10.0,
    )  # fmt: skip
    hosting = asyncio.to_thread(
        gateway_command, problem=tmp_path / "gateway", agents="1-7", keys=keys / "agents" / "1-7",
        cloud=f"wss://127.0.0.1:{port}", out=tmp_path / "answers.json", json=True,
    )  # fmt: skip
    await asyncio.gather(serving, hosting)
    told = json.loads((tmp_path / "answers.json").read_text())
    assert list(told["x"]) == [str(i) for i in range(1, 8)]
    assert stat.S_IMODE((tmp_path / "answers.json").stat().st_mode) == 0o600
    assert (tmp_path / "gateway" / "agents" / "1-7.state").exists()
    printed = capfd.readouterr()
    assert json.loads(printed.out) == {
        "agents": 7, "rounds": 6, "failed": 0, "confirmed": None,
        "out": str(tmp_path / "answers.json"),
    }  # fmt: skip
    for (x,) in told["x"].values():
        assert x == 0.0 or f"{x:.4f}" not in printed.out + printed.err


@pytest.mark.slow
def test_the_demo_of_a_fleet_shows_loads_and_prices_beside_the_optimum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo_command(fleet=200, rounds=20, out=tmp_path)
    shown = capsys.readouterr().out
    assert "200 chargers after 20 private rounds" in shown
    rows = [line.split("│") for line in shown.splitlines() if ":00" in line]
    assert [row[1].strip() for row in rows] == [f"{hour}:00" for hour in range(17, 23)]
    assert "cost of all chargers" in shown
    assert "differentially private or better" in shown
    (run,) = tmp_path.glob("fleet-*")
    assert sorted(p.name for p in (run / "1-50" / "agents").iterdir()) == [
        "fleet-ev.csv", "fleet-ev.toml",
    ]  # fmt: skip
    assert len((run / "1-50" / "agents" / "fleet-ev.csv").read_text().splitlines()) == 51
    assert not (run / "cloud" / "agents").exists() or not any((run / "cloud/agents").iterdir())


def test_status_of_a_halted_run_has_exit_code_1(tmp_path: Path) -> None:
    store = CloudStore(tmp_path / "run.db")
    store.end("halted", "rolled back")
    store.close()
    assert runner.invoke(status_app, [str(tmp_path / "run.db")]).exit_code == 1


def test_settings_come_from_the_command_then_the_file_then_the_default(paper: Problem) -> None:
    assert run_rounds(paper, 7) == 7
    assert run_rounds(paper, None) == 2_000
    assert algorithm_for(paper) == DualAveraging()
    assert algorithm_for(paper, "tikhonov") == Tikhonov()
    with pytest.raises(InputError, match="dual-averaging or tikhonov"):
        algorithm_for(paper, "newton")
    assert listen_address("0.0.0.0:8443") == ("0.0.0.0", 8443)  # noqa: S104
    assert listen_address("[::1]:80") == ("::1", 80)
    for text in ("8443", "host:", "host:99999", ":1"):
        with pytest.raises(InputError, match="address:port"):
            listen_address(text)


def follow_links(monkeypatch: pytest.MonkeyPatch, seen: list[bytes]) -> None:
    """Open the page as soon as its link is printed, and read its data to their end."""
    said = errors.print

    def open_page(link: str) -> None:
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        home = link.partition("/open/")[0]
        assert browser.open(link, timeout=10).status == 200
        assert b"<main" in browser.open(home, timeout=10).read()
        while not seen or not json.loads(seen[-1])["over"]:
            seen.append(browser.open(f"{home}/data", timeout=60).read())
            time.sleep(1)

    def say(text: str, **settings: Any) -> None:
        said(text, **settings)
        if text.startswith("open http://127.0.0.1:"):
            threading.Thread(target=open_page, args=(text.split()[1],)).start()

    monkeypatch.setattr(errors, "print", say)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("algorithm", "labels"),
    [
        pytest.param(None, "price: g4", id="sums"),
        pytest.param("tikhonov", "mu: g4", id="paper", marks=pytest.mark.slow),
    ],
)
def test_the_demo_shows_what_was_reached_beside_the_optimum_with_its_promise_and_a_figure(
    algorithm: str | None,
    labels: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = None
    if algorithm is not None:
        folder = tmp_path / "problem"
        save_problem(gallery.paper(), folder)
        text = (folder / "problem.toml").read_text()
        stated = text.replace("[schedule]", f'[schedule]\nalgorithm = "{algorithm}"')
        (folder / "problem.toml").write_text(stated)
    seen: list[bytes] = []
    if algorithm is None:
        follow_links(monkeypatch, seen)
    demo_command(folder=folder, rounds=60, out=tmp_path, page=algorithm is None)
    assert algorithm is not None or b'"phase":"done"' in seen[-1]
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    shown = capsys.readouterr().out
    assert "after 60 private rounds" in shown
    assert labels in shown
    rows = [line.split("│") for line in shown.splitlines() if line.startswith("│ x")]
    reached = np.array([float(row[2]) for row in rows])
    optimum = np.array([float(row[3]) for row in rows])
    np.testing.assert_allclose(optimum, reference_optimum(gallery.paper()).x, atol=1e-4)
    assert np.any(reached != 0.0)
    if algorithm is None:  # the paper's own steps are hundreds of thousands
        assert np.abs(reached - optimum).max() < 5.0
    assert "differentially private or better" in shown
    assert "Not covered:" in shown


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demo_of_a_split_cloud_says_who_must_not_collude(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo_command(rounds=30, out=tmp_path, split=True)
    told = capsys.readouterr()
    assert "after 30 private rounds" in told.out
    assert "Trust: the operators of cloud and helper must not collude" in told.out
    (run_folder,) = tmp_path.glob("run-*")
    assert {"run.db", "helper.db"} <= {path.name for path in run_folder.iterdir()}
    assert not list((run_folder / "keys" / "cloud").glob("**/mask.key"))
