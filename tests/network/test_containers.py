"""The container's commands and settings, run as processes, and the dashboard's metrics."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from network_harness import free_port

import sottovoce as sv
from sottovoce.network import identity
from sottovoce.network.observe.operator_pages import Facts

CONTAINER = Path(__file__).parents[2] / "container"
MAIN = "from sottovoce.cli import main; main()"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((CONTAINER / "compose.yaml").read_text())["services"]
    return services


def test_the_image_runs_a_role_as_no_privileged_user() -> None:
    lines = (CONTAINER / "Dockerfile").read_text().splitlines()
    final = lines[max(i for i, line in enumerate(lines) if line.startswith("FROM")) :]
    assert 'ENTRYPOINT ["sottovoce"]' in final
    assert [int(line.split()[1]) for line in final if line.startswith("USER")] == [10001]


def test_the_compose_file_starts_cloud_and_gateway(
    services: dict[str, Any], tmp_path: Path
) -> None:
    problem = sv.gallery.chargers(100, hours=3)
    keys, port, health = tmp_path / "keys", free_port(), free_port()
    identity.create_keys(keys, agents=100, gateways=[range(1, 101)])
    problem.save(tmp_path / "cloud", agents=[])
    problem.save(tmp_path / "gateway")
    folders = {"cloud": keys, "gateway": keys / "agents" / "1-100"}

    def local(role: str, value: str) -> str:
        """A container's file or address on this machine."""
        places = {"/problem": tmp_path / role, "/keys": folders[role], "/state": tmp_path}
        value = re.sub("^(/problem|/keys|/state)", lambda m: str(places[m[0]]), value)
        return re.sub("(cloud|[0-9.]+):8443", f"127.0.0.1:{port}", value).replace(
            "0.0.0.0:8080", f"127.0.0.1:{health}"
        )

    processes = []
    for role in ("cloud", "gateway"):
        service = services[role]
        settings = {k: local(role, v) for k, v in service["environment"].items()}
        if role == "cloud":
            settings["SOTTOVOCE_ROUNDS"] = "40"
        words = [sys.executable, "-c", MAIN, *(local(role, word) for word in service["command"])]
        processes.append(subprocess.Popen(words, env={**os.environ, **settings}))
    try:
        _, *probe = services["cloud"]["healthcheck"]["test"]
        check = [sys.executable, *probe[1:-1], probe[-1].replace("8080", str(health))]
        healthy = False
        while processes[0].poll() is None:
            done = subprocess.run(check, capture_output=True, timeout=30, check=False)
            healthy = healthy or done.returncode == 0
            time.sleep(0.05)
        assert healthy
        assert [process.wait(30) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    answers = json.loads((tmp_path / "answers.json").read_text())
    assert answers["rounds"] == 40
    assert len(answers["x"]) == 100


def test_the_dashboard_asks_for_metrics_that_there_are(services: dict[str, Any]) -> None:
    panels = json.loads((CONTAINER / "grafana" / "sottovoce.json").read_text())["panels"]
    wanted = {n for p in panels for n in re.findall(r"sottovoce_\w+", p["targets"][0]["expr"])}
    facts = {f.metadata["metric"][1] for f in Facts.__dataclass_fields__.values() if f.metadata}
    labelled = {"sottovoce_refused_total", "sottovoce_certificate_days"}
    assert wanted <= facts | labelled | {"sottovoce_round_seconds_bucket"}
    scrape = yaml.safe_load((CONTAINER / "prometheus.yaml").read_text())["scrape_configs"][0]
    listen = services["cloud"]["environment"]["SOTTOVOCE_HEALTH_LISTEN"]
    assert scrape["static_configs"][0]["targets"] == [f"cloud:{listen.rpartition(':')[2]}"]
