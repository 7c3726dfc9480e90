"""Until a cloud of 1,000 named agents listens: CPU seconds of its process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import sottovoce as sv
from benchmarks import PLAIN

AGENTS = 1_000


def run() -> list[dict[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        quadratics(AGENTS).save(f"{folder}/problem", agents=[])
        command("identity", "init", "--dir", f"{folder}/keys", "--agents", str(AGENTS)).wait()
        first, again = (_until_it_listens(folder) for _ in range(2))
    return [
        {
            "work": f"cloud with {AGENTS:,} named agents, first start and restart",
            "bar": "10 s, 2 s",
            "measured": f"{first:.1f} s, {again:.1f} s",
            "where": "both are imports but for half a second",
        }
    ]


def _until_it_listens(folder: str) -> float:
    cloud = command(
        "cloud", f"{folder}/problem", "--keys", f"{folder}/keys", "--store", f"{folder}/run.db",
        "--listen", "127.0.0.1:0", "--epsilon", "ln(3)", "--delta", "0.05", "--radius", "1",
    )  # fmt: skip
    assert cloud.stderr is not None
    try:
        lines: list[str] = []
        for line in cloud.stderr:
            lines.append(line)
            if '"listening"' in line:
                return _cpu_seconds(cloud.pid)
        raise RuntimeError("".join(lines))
    finally:
        cloud.terminate()
        cloud.wait()


def command(*words: str) -> subprocess.Popen[str]:
    """Start the command line tool, on one thread."""
    return subprocess.Popen(  # noqa: S603  our own text
        [sys.executable, "-c", "from sottovoce.cli import main; main()", *words],
        env=os.environ | PLAIN,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, from Linux."""
    times = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(int(t) for t in times[11:13]) / os.sysconf("SC_CLK_TCK")


def quadratics(n: int, rows: int = 20) -> sv.Problem:
    """n agents with random convex quadratics under dense rows."""
    rng = np.random.default_rng(0)
    x = sv.agents(n, lower=-5, upper=5)
    a, c, W = rng.uniform(0.5, 2, n), rng.uniform(-3, 3, n), rng.uniform(0, 1, (rows, n))
    f = [float(p) * (s - float(q)) ** 2 for p, q, s in zip(a, c, x, strict=True)]
    limits = W @ x <= 0.3 * np.maximum(W @ c, 0.0) + 1.0
    return sv.Problem(agents=x, objectives=f, constraints=[limits])
