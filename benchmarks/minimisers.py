"""How fast agents minimise over private sets, beside OSQP warm-started per agent."""

from __future__ import annotations

import os
import subprocess
import sys
from time import process_time
from typing import Any

import numpy as np
import osqp
import scipy.sparse as sparse

from sottovoce.problem.gallery import PRICE, WEAR, smart_charging
from sottovoce.simulation.simulate import simulate

Row = dict[str, str]


def run() -> list[Row]:
    """CPU seconds of one core; fleets of 100,000 and more on two, each in a process of its own."""
    ours, theirs = _ours(10_000), _osqp(200)
    rows = [
        _row("EV fleet, d = 24, private energy need and window, an agent's round, one core",
             "1.0 us", f"{ours:.2f} us", "10,000 agents, 50 rounds, setting up does not count"),
        _row("the same against OSQP, warm-started, to 1e-6", "30x faster", f"{theirs / ours:.0f}x",
             f"OSQP {theirs:.0f} us"),
    ]  # fmt: skip
    for n, rounds, bar in ((100_000, 100, "20 s, 1 GB"), (1_000_000, 50, "2.5 GB")):
        seconds, whole, memory = _large(n, rounds)
        rows.append(
            _row(f"{n:,} EVs x 24 h, {rounds} rounds, two threads", bar,
                 f"{whole:.1f} s, {memory:.2f} GB", f"{seconds:.1f} s of it rounds")
        )  # fmt: skip
    return rows


def _row(work: str, bar: str, measured: str, detail: str) -> Row:
    return {"work": work, "bar": bar, "measured": measured, "detail": detail}


def _ours(n: int) -> float:
    """Microseconds of one core per agent and round."""
    problem = smart_charging(n)
    asked: dict[str, Any] = {"record": [], "threads": 1, "progress": False}
    simulate(problem, rounds=3, **asked)

    def took(rounds: int) -> float:
        began = process_time()
        simulate(problem, rounds=rounds, **asked)
        return process_time() - began

    few, many = (min(took(rounds) for _ in range(5)) for rounds in (3, 53))
    return (many - few) / 50 / n * 1e6


def _osqp(n: int) -> float:
    """Microseconds per agent and round of OSQP: set up once, then prices change and it resumes."""
    problem, rng = smart_charging(n), np.random.default_rng(0)
    need = next(v for s, v in problem.groups[0].parameters.items() if s.name == "need")
    price = np.take(PRICE, (17 + np.arange(24)) % 24)
    rows = sparse.vstack([sparse.csc_matrix(np.ones((1, 24))), sparse.eye(24)], format="csc")
    solvers = []
    for i in range(n):
        solver = osqp.OSQP()
        upper = np.append(need[i], problem.local[0].upper[i])
        lower = np.append(need[i], np.zeros(24))
        solver.setup(sparse.eye(24, format="csc") * 2 * WEAR, price, rows, lower, upper,
                     eps_abs=1e-6, eps_rel=1e-6, verbose=False, warm_starting=True)  # fmt: skip
        solver.solve()
        solvers.append(solver)
    rounds, moved = 5, [price + 0.02 * rng.uniform(size=24) * 0.9**k for k in range(5)]
    began = process_time()
    for q in moved:
        for solver in solvers:
            solver.update(q=q)
            solver.solve()
    return (process_time() - began) / rounds / n * 1e6


def _large(n: int, rounds: int) -> tuple[float, float, float]:
    """Seconds of the rounds, of stating and solving, and gigabytes, in a process of its own."""
    script = (
        "from pathlib import Path\n"
        "from time import perf_counter\n"
        "from sottovoce.simulation.simulate import simulate\n"
        "from sottovoce.problem.gallery import smart_charging\n"
        "begin = perf_counter()\n"
        f"problem = smart_charging({n})\n"
        f"found = simulate(problem, rounds={rounds}, record=[{rounds}],"
        " threads=2, progress=False)\n"
        "print(found.seconds, perf_counter() - begin)\n"
        "print(Path('/proc/self/status').read_text())\n"
    )
    for _ in range(2):  # the first warms caches up
        done = subprocess.run(  # noqa: S603 - our own text
            [sys.executable, "-c", script], env=os.environ, check=True, capture_output=True,
            text=True,
        )  # fmt: skip
    lines = done.stdout.splitlines()
    (peak,) = (line for line in lines if line.startswith("VmHWM"))
    seconds, whole = map(float, lines[0].split())
    return seconds, whole, int(peak.split()[1]) / 1e6
