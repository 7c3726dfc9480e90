"""Many agents stated one by one: CPU seconds on one core from nothing to an answer.

Every row is a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

import sottovoce as sv
from benchmarks import PLAIN

ROUNDS = 1000
RAMP = 5.0  # per hour: a quarter of the largest change of demand, so that some ramps hold
Row = dict[str, str]


def run() -> list[Row]:
    """Measure everything."""
    rows = []
    for work, name, bar in (
        ("200 named quadratics, 20 dense rows, 1,000 rounds", "quadratics200", 10),
        ("the same with 1,000", "quadratics1000", 20),
        ("6 generators x 24 h, balance, 40 line rows per hour, ramps", "generators", 30),
    ):  # fmt: skip
        found = _measured(name)
        where = ", ".join(
            f"{part} {found[part]:.2f}" for part in found if part not in ("total", "of")
        )
        where += f"; error {found['of']:.2f} of the limit" if "of" in found else ""
        rows.append(_row(work, f"{bar} s", f"{found['total']:.1f} s", where))
    return [*rows, _again(), _cloud()]


def _row(work: str, bar: str, measured: str, detail: str) -> Row:
    return {"work": work, "bar": bar, "measured": measured, "where": detail}


def _measured(name: str) -> dict[str, float]:
    settings = os.environ | PLAIN
    done = subprocess.run(  # noqa: S603  our own text
        [sys.executable, "-m", "benchmarks.named", name],
        env=settings, check=True, capture_output=True, text=True,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _again() -> Row:
    problem = sv.gallery.get("paper")
    plan = _plan(sv.certify(problem))
    times = []
    for _ in range(6):
        before = process_time()
        sv.simulate(problem, plan, rounds=ROUNDS, threads=1, progress=False)
        times.append(process_time() - before)
    rounds = process_time()
    sv.simulate(problem, plan, rounds=ROUNDS, runs=100, threads=1, progress=False)
    each = (process_time() - rounds) / 100
    measured = f"{min(times[1:]) * 1e3:.1f} ms"
    detail = f"of which rounds {each * 1e3:.1f} ms"
    return _row("the paper's problem solved once more, 1,000 rounds", "5 ms", measured, detail)


def _cloud() -> Row:
    """Until a cloud of 1,000 named agents listens: its process, first start and restart."""
    with tempfile.TemporaryDirectory() as folder:
        quadratics(1000).save(f"{folder}/problem", agents=[])
        command("identity", "init", "--dir", f"{folder}/keys", "--agents", "1000").wait()
        first, again = (_until_it_listens(folder) for _ in range(2))
    measured = f"{first:.1f} s, {again:.1f} s"
    detail = "both are imports but for half a second"
    return _row(
        "cloud with 1,000 named agents, first start and restart", "10 s, 2 s", measured, detail
    )


def _until_it_listens(folder: str) -> float:
    cloud = command(
        "cloud", f"{folder}/problem", "--keys", f"{folder}/keys", "--store", f"{folder}/run.db",
        "--listen", "127.0.0.1:0", "--epsilon", "ln(3)", "--delta", "0.05", "--radius", "1",
    )  # fmt: skip
    assert cloud.stderr is not None
    try:
        said: list[str] = []
        for line in cloud.stderr:
            said.append(line)
            if '"listening"' in line:
                return _cpu_seconds(cloud.pid)
        raise RuntimeError("".join(said))
    finally:
        cloud.terminate()
        cloud.wait()


def command(*words: str, **settings: str) -> subprocess.Popen[str]:
    """Start the command line tool, on one thread."""
    return subprocess.Popen(  # noqa: S603  our own text
        [sys.executable, "-c", "from sottovoce.cli import main; main()", *words],
        env=os.environ | PLAIN | settings,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, from Linux."""
    times = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(int(t) for t in times[11:13]) / os.sysconf("SC_CLK_TCK")


def _plan(certificate: Any) -> Any:
    hide = sv.Trajectory(radius=1.0, rounds=ROUNDS)
    return sv.plan(certificate, epsilon=np.log(3), delta=0.05, hide=hide)


def quadratics(n: int, m: int = 20) -> sv.Problem:
    """n agents with random convex quadratics under m dense rows."""
    rng = np.random.default_rng(0)
    x = sv.agents(n, lower=-5, upper=5)
    a, c, W = rng.uniform(0.5, 2, n), rng.uniform(-3, 3, n), rng.uniform(0, 1, (m, n))
    f = [float(p) * (s - float(q)) ** 2 for p, q, s in zip(a, c, x, strict=True)]
    rows = W @ x <= 0.3 * np.maximum(W @ c, 0.0) + 1.0
    return sv.Problem(agents=x, objectives=f, constraints=[rows])


def generators(n: int = 6, hours: int = 24, lines: int = 40) -> sv.Problem:
    """A dispatch: quadratic costs, a balance and limits of lines per hour, private ramps."""
    rng = np.random.default_rng(0)
    x = sv.agents([f"gen{i + 1}" for i in range(n)], lower=0.0, upper=100.0, dim=hours)
    cost, slope = rng.uniform(0.01, 0.1, n), rng.uniform(5, 20, n)
    shift = rng.uniform(-1, 1, (lines, n))
    balance, flows = np.zeros((hours, n * hours)), np.zeros((hours * lines, n * hours))
    for t in range(hours):
        at = np.arange(n) * hours + t
        balance[t, at] = 1.0
        flows[t * lines : (t + 1) * lines, at] = shift
    demand = 250.0 + 80.0 * np.sin(np.arange(hours) / hours * 2 * np.pi)
    limit = np.tile(np.abs(shift @ np.full(n, 50.0)) + 60.0, hours)
    f = [
        sum(float(c) * p**2 + float(s) * p for p in own)
        for c, s, own in zip(cost, slope, x, strict=True)
    ]
    rows = {"balance": balance @ x == demand, "lines": flows @ x <= limit}
    ramps = [
        row
        for own in x
        for t in range(hours - 1)
        for row in (own[t + 1] - own[t] <= RAMP, own[t] - own[t + 1] <= RAMP)
    ]
    return sv.Problem(agents=x, objectives=f, constraints=rows, local=ramps)


WORKS = {
    "quadratics200": lambda: quadratics(200),
    "quadratics1000": lambda: quadratics(1000),
    "generators": generators,
}


def main(name: str) -> None:
    """Do one work in this process and print how long its parts took."""
    laps = {"import": process_time()}

    def lap(part: str) -> None:
        laps[part] = process_time() - sum(laps.values())

    problem = WORKS[name]()
    lap("state")
    certificate = sv.certify(problem)
    lap("certify")
    plan = _plan(certificate)
    lap("plan")
    result = sv.simulate(problem, plan, rounds=ROUNDS, threads=1, progress=False)
    lap("solve")
    total = {"total": process_time()}
    if name == "generators":
        error = np.linalg.norm(result.x[0] - sv.reference_optimum(problem).x)
        total["of"] = float(error) / sv.accuracy_limit(problem, plan, ROUNDS).x
    print(json.dumps(laps | total))


if __name__ == "__main__":
    main(sys.argv[1])
