"""The agent in JavaScript passes all vectors and takes part in real runs like one of ours."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance_files import FOLDER
from network_harness import Site, member, plan_for, run, serving

from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.network.cloud import Cloud
from sottovoce.paper.tikhonov import Tikhonov
from sottovoce.problem.problem import Problem
from sottovoce.simulation.simulate import simulate

EXAMPLE = Path(__file__).parents[2] / "examples" / "agent-js"
ROUNDS, SEED = 60, 9
OTHERS = (1, 2, 3, 5, 6, 7)


@pytest.fixture(scope="session")
def agent_js(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with its packages, in a folder of its own."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("needs node and npm")
    folder = tmp_path_factory.mktemp("js") / "agent-js"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("node_modules"))
    npm = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"]
    done = subprocess.run(npm, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    if done.returncode:
        pytest.skip("needs the npm packages of examples/agent-js, which npm install did not get")
    return folder


def command(folder: Path, port: int, keys: Path, state: Path) -> list[str]:
    words = ["node", "main.mjs", "paper-agent-4.mjs", "--agent", "4", "--allow-simulated"]
    words += ["--cloud", f"wss://127.0.0.1:{port}", "--state", str(state)]
    return [*words, "--keys", str(keys / "agents" / "4")]


async def started(folder: Path, cloud: Cloud, keys: Path, state: Path) -> Any:
    words = command(folder, cloud.port, keys, state)
    return await asyncio.create_subprocess_exec(*words, cwd=folder)


def test_it_passes_all_vectors(agent_js: Path) -> None:
    node = ["node", "vectors.mjs", str(FOLDER / "vectors.json")]
    done = subprocess.run(
        node, cwd=agent_js, capture_output=True, text=True, timeout=60, check=False
    )
    passed, _, checks, *_ = done.stdout.split()
    assert done.returncode == 0, done.stdout
    assert passed == checks
    assert int(checks) > 200


def test_a_wrong_vector_fails(agent_js: Path, tmp_path: Path) -> None:
    vectors = json.loads((FOLDER / "vectors.json").read_text())
    vectors["rounding"][0]["value"] += 1
    vectors["rounds"][0]["steps"][2]["x"][0] += 1e-6
    (tmp_path / "wrong.json").write_text(json.dumps(vectors))
    node = ["node", "vectors.mjs", str(tmp_path / "wrong.json")]
    done = subprocess.run(
        node, cwd=agent_js, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stdout.count("FAILED") == 2


def test_a_run_with_an_agent_of_ours_has_the_same_states(site: Site, agent_js: Path) -> None:
    plan = site.plan()

    async def main(javascript: bool) -> tuple[Any, Any, Any]:
        folder = site.folder / str(javascript)
        folder.mkdir()
        numbers = OTHERS if javascript else range(1, 8)
        store = folder / "run.db"
        async with serving(plan, site.keys, store, rounds=ROUNDS, seed=SEED) as cloud:
            ours = [
                asyncio.create_task(
                    member(site.problem, [i], cloud, site.keys, folder, allow_simulated=True).run()
                )
                for i in numbers
            ]
            state = folder / "4.json"
            process = await started(agent_js, cloud, site.keys, state) if javascript else None
            result = await cloud.finished(linger=20)
            ended = dict(zip(numbers, await asyncio.gather(*ours), strict=True))
            if process is None:
                fourth = np.array([*ended[4].last_x, *ended[4].x])
            else:
                assert await process.wait() == 0
                kept = json.loads(state.read_text())
                assert kept["round"] == ROUNDS
                assert state.stat().st_mode & 0o077 == 0
                fourth = np.array([*kept["x"], *kept["answer"]])
        others = np.concatenate([[*ended[i].last_x, *ended[i].x] for i in OTHERS])
        return result.price, others, fourth

    with_js, with_python = run(main(True)), run(main(False))
    for there, here in zip(with_js, with_python, strict=True):
        np.testing.assert_allclose(there, here, rtol=0, atol=1e-9)


async def test_it_stops_at_another_version_or_simulated_noise(site: Site, agent_js: Path) -> None:
    told = []
    async with site.serving(rounds=3, seed=SEED) as cloud:
        words = command(agent_js, cloud.port, site.keys, site.folder / "4.json")
        for wrong in ("noise", "version"):
            if wrong == "version":
                cloud._server.protocols = ("sottovoce.7",)
            process = await asyncio.create_subprocess_exec(
                *[word for word in words if word != "--allow-simulated"],
                cwd=agent_js,
                stderr=asyncio.subprocess.PIPE,
            )
            _, said = await process.communicate()
            told.append((process.returncode or 0, said))
    noise, version = told
    assert noise == (2, b"error: simulated noise: nothing would be private\n")
    assert version == (2, b"error: version: the cloud does not speak sottovoce.6\n")


# --- A client written from docs/reference/protocol.md alone computes what ``simulate`` computes ---


CLIENT_ROUNDS, CLIENT_SEED = 30, 9
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
def test_the_independent_client_takes_part(site: Site, algorithm: Any, method: Any) -> None:
    plan = plan_for(site.problem, method=method)
    settings: dict[str, Any] = {
        "rounds": CLIENT_ROUNDS,
        "seed": CLIENT_SEED,
        "algorithm": algorithm,
    }

    async def main() -> bytes:
        async with site.serving(plan, **settings) as cloud:
            return await together(site.problem, cloud, site.keys, site.folder, allow_simulated=True)

    said = json.loads(run(main()))
    here = simulate(site.problem, plan, **settings)
    assert said["rounds"] == CLIENT_ROUNDS
    assert said["x"] == pytest.approx(here.last_x[0][3], abs=1e-9)
    assert said["answer"] == pytest.approx(here.x[0][3], abs=1e-9)


def test_the_independent_client_takes_part_in_a_split_run(split_site: Site) -> None:
    async def main() -> bytes:
        async with split_site.halves(rounds=CLIENT_ROUNDS) as (cloud, _):
            return await together(split_site.problem, cloud, split_site.keys, split_site.folder)

    # With another mask than the helper's the sums would have left their range.
    assert json.loads(run(main()))["rounds"] == CLIENT_ROUNDS
