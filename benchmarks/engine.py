"""How fast rounds run, each algorithm by its name, beside something computed in the same run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sparse

import sottovoce as sv
from sottovoce.algorithm.algorithm import Algorithm
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.certificate.certificate import certify
from sottovoce.paper.reproduction import published_noise
from sottovoce.paper.tikhonov import Tikhonov
from sottovoce.privacy.adjacency import Trajectory
from sottovoce.privacy.plan import plan
from sottovoce.problem.constraints import total
from sottovoce.problem.gallery import PRICE, WEAR, chargers, paper
from sottovoce.problem.problem import Problem
from sottovoce.simulation.simulate import simulate

SECONDS = 1.5
HAT = (np.zeros(7), np.zeros(4))
NORMALS = 20
SIGMA_G = 688971.6017**0.5
ROWS, COLUMNS = np.tile(np.arange(4), 4), np.repeat([2, 4, 5, 6], 4)
SIGMA = np.sqrt(np.repeat([12.3406, 30900.7580], 8))

Row = dict[str, str]


def run() -> list[Row]:
    """Measure everything; ratios compare least times of several, taken within one run."""
    return [*_default_rows(), *_paper_rows(), *_fleet_rows(), *_sparse_rows(), *_growth_rows()]


def row(work: str, bar: str, measured: str, detail: str) -> Row:
    return {"work": work, "bar": bar, "measured": measured, "detail": detail}


def least(*works: Callable[[], Any], repeat: int = 5) -> list[float]:
    """The least time of each work, taken in turn so that all see the same machine."""
    best = [np.inf] * len(works)
    for _ in range(repeat):
        for i, work in enumerate(works):
            start = perf_counter()
            work()
            best[i] = min(best[i], perf_counter() - start)
    return best


def _default_rows() -> list[Row]:
    """The default algorithm on the paper's problem; solving as a whole."""
    problem, rounds = paper(), 20_000
    hide = Trajectory(radius=0.1, rounds=rounds)
    made = plan(certify(problem.cloud), epsilon=1.0, delta=1e-3, hide=hide)
    asked: dict[str, Any] = {"saddle": HAT, "record": [], "progress": False}
    runs = partial(simulate, problem, made, rounds=2_000, runs=64, **asked)
    one, steps, alone, both = least(
        partial(simulate, problem, made, rounds=rounds, threads=1, **asked),
        partial(
            simulate, problem, published_noise(certify(problem)), rounds=rounds, threads=1,
            algorithm=Tikhonov(), **asked,
        ),
        partial(runs, threads=1),
        partial(runs, threads=2),
        repeat=3,
    )  # fmt: skip
    return [
        row("paper's problem, 1 run, a round of the default algorithm against one of Algorithm 1",
            "", f"{one / steps:.0f}x", f"{one / rounds * 1e6:.2f} us a round; Algorithm 1 needs "
            "hundreds of thousands of rounds where the default needs hundreds"),
        row("64 runs x 2,000 rounds, 2 threads against 1", "1.8x faster",
            f"{alone / both:.2f}x faster", f"{both / 128_000 * 1e6:.2f} us a run and round"),
    ]  # fmt: skip


def _paper_rows() -> list[Row]:
    problem, rounds = paper(), 200_000
    noise = published_noise(certify(problem))
    asked: dict[str, Any] = {"algorithm": Tikhonov(), "saddle": HAT, "progress": False}
    generator, out = np.random.default_rng(0), np.empty(rounds * NORMALS)
    single, normals = least(
        partial(simulate, problem, noise, rounds=rounds, threads=1, **asked),
        lambda: generator.standard_normal(out=out),
    )
    few = 2_000
    loop, _ = least(lambda: _numpy_paper(few), lambda: None, repeat=3)
    factor = loop / few / (single / rounds)
    many, both = least(
        partial(simulate, problem, noise, rounds=20_000, runs=256, threads=2, **asked),
        lambda: _numpy_draws(20_000 * NORMALS * 256),
        repeat=3,
    )
    per = many / (20_000 * 256) * 1e9
    return [
        row("Algorithm 1, paper's problem, 1 run, against NumPy drawing its normals", "2.0x",
            f"{single / normals:.2f}x", f"{single / rounds * 1e9:.0f} ns a round"),
        row("Algorithm 1, the same against a plain NumPy loop", "100x faster",
            f"{factor:.0f}x faster", f"{loop / few * 1e6:.1f} us a round in NumPy"),
        row("Algorithm 1, 256 runs x 20,000 rounds, 2 threads, against NumPy drawing the normals "
            "on 2", "0.6x", f"{many / both:.2f}x", f"{per:.1f} ns a run and round"),
    ]  # fmt: skip


def _numpy_draws(count: int) -> None:
    def fill(seed: int) -> None:
        generator, out = np.random.default_rng(seed), np.empty(100_000)
        for _ in range(count // 2 // out.size):
            generator.standard_normal(out=out)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(fill, range(2)))


def _numpy_paper(rounds: int) -> None:
    """The paper's rounds with NumPy arrays and the same arithmetic."""
    rng = np.random.default_rng(0)
    steps = Tikhonov().schedule(np.arange(1, rounds + 1))
    x, mu, Y = np.zeros(7), np.zeros(4), np.zeros((4, 7))
    Y[0, :3] = Y[2, 3] = Y[2, 5] = 1.0
    centre, power = np.array([9, -4, 1, 0, -3, 7, 5.0]), np.array([2, 4, 8, 2, 6, 2, 2.0])
    linear = np.array([1, 0, 0, 1, 0, 0, 0.0])
    for gamma, alpha in steps:
        z = rng.standard_normal(NORMALS)
        g = np.array(
            [
                x[0] + x[1] + x[2] - 3,
                x[4] ** 2 + x[5] ** 4 / 12 + x[6] ** 4 / 12 - 20,
                x[2] ** 2 + x[3] + x[5] - 1,
                x[5] ** 2 + x[6] ** 2 - 5,
            ]
        )
        y = g + SIGMA_G * z[:4]
        Y[1, 4], Y[1, 5], Y[1, 6] = 2 * x[4], x[5] ** 3 / 3, x[6] ** 3 / 3
        Y[2, 2], Y[3, 5], Y[3, 6] = 2 * x[2], 2 * x[5], 2 * x[6]
        noisy = Y.copy()
        noisy[ROWS, COLUMNS] += SIGMA * z[4:]
        slope = power * (x - centre) ** (power - 1) + linear + mu @ noisy
        x = np.clip(x - gamma * (slope + alpha * x), -10, 10)
        mu = np.maximum(mu + gamma * (y - alpha * mu), 0.0)


def _fleet_rows() -> list[Row]:
    n = 10_000
    problem = chargers(n)
    default, ours = _per_agent(problem, DualAveraging()), _per_agent(problem, Tikhonov())
    numpy = least(lambda: _numpy_chargers(problem, 2), repeat=20)[0] / 2 / n * 1e9
    return [
        row("EV fleet, d = 24, n = 10,000, agents minimise locally, against a gradient step of "
            "Algorithm 1", "", f"{default / ours:.0f}x", f"{default:,.0f} ns an agent and round"),
        row("Algorithm 1, EV fleet, d = 24, n = 10,000, against in-place NumPy", "15x faster",
            f"{numpy / ours:.0f}x faster", f"{ours:.1f} ns an agent and round, NumPy {numpy:.0f}"),
    ]  # fmt: skip


def _per_agent(problem: Problem, algorithm: Algorithm) -> float:
    """Nanoseconds per agent and round on two threads; setting up does not count."""
    sums = problem.rows if isinstance(algorithm, Tikhonov) else problem.cloud.sums.count
    asked: dict[str, Any] = {
        "record": [], "threads": 2, "saddle": (np.zeros(problem.size), np.zeros(sums)),
        "algorithm": algorithm, "progress": False,
    }  # fmt: skip
    first = simulate(problem, rounds=2, **asked).seconds / 2
    rounds = int(np.clip(SECONDS / first, 2, 2_000))
    seconds = min(simulate(problem, rounds=rounds, **asked).seconds for _ in range(3))
    return seconds / rounds / problem.agents * 1e9


def _numpy_chargers(problem: Problem, rounds: int) -> None:
    """The fleet's rounds with in-place NumPy: no array is allocated inside the loop."""
    group, constraint = problem.groups[0], problem.constraints[0]
    need, value = (group.parameters[s] for s in sorted(group.parameters, key=str))
    price = np.take(PRICE, (17 + np.arange(24)) % 24)
    x, slope = np.zeros((group.count, 24)), np.empty((group.count, 24))
    mu, g, unmet = np.zeros(24), np.empty(24), np.empty(group.count)
    upper = np.ascontiguousarray(group.upper)
    for gamma, alpha in Tikhonov().schedule(np.arange(1, rounds + 1)):
        x.sum(axis=1, out=unmet)
        unmet -= need
        unmet *= value
        unmet *= 2.0
        np.multiply(x, 2 * WEAR + alpha, out=slope)
        slope += unmet[:, np.newaxis]
        slope += price + mu
        slope *= gamma
        x.sum(axis=0, out=g)
        g += constraint.offset
        x -= slope
        np.clip(x, 0.0, upper, out=x)
        mu += gamma * (g - alpha * mu)
        np.maximum(mu, 0.0, out=mu)


def _sparse_problem(n: int) -> Problem:
    rng = np.random.default_rng(0)
    rows = np.stack([rng.integers(0, 12, n), rng.integers(12, 24, n)]).ravel(order="F")
    weights = sparse.csc_array(
        (rng.uniform(0.5, 1.5, 2 * n), rows, np.arange(0, 2 * n + 1, 2)), shape=(24, n)
    )
    group = sv.agents(n, lower=0.0, upper=2.0, parameters={"a": rng.uniform(0, 2, n)})
    return Problem(
        agents=group,
        objectives=(group.x - group["a"]) ** 2,
        constraints=[total(group.x, weights=weights) <= n / 24],
    )


def _scipy_sparse(problem: Problem, rounds: int) -> None:
    group, constraint = problem.groups[0], problem.constraints[0]
    A: Any = constraint.sums[0].weights
    B = A.T.tocsr()
    (a,) = group.parameters.values()
    x, mu = np.zeros(group.count), np.zeros(24)
    for gamma, alpha in Tikhonov().schedule(np.arange(1, rounds + 1)):
        slope = B @ mu
        slope += 2.0 * (x - a)
        slope += alpha * x
        slope *= gamma
        g = A @ x + constraint.offset
        x -= slope
        np.clip(x, 0.0, 2.0, out=x)
        mu = np.maximum(mu + gamma * (g - alpha * mu), 0.0)


def _sparse_rows() -> list[Row]:
    n, rounds = 1_000_000, 3
    problem = _sparse_problem(n)
    ours = _per_agent(problem, Tikhonov())
    theirs = least(lambda: _scipy_sparse(problem, rounds), repeat=8)[0] / rounds / n * 1e9
    return [
        row("Algorithm 1, 2 sparse affine constraints per agent, n = 1,000,000, m = 24, against "
            "SciPy", "4x faster", f"{theirs / ours:.1f}x faster",
            f"{ours:.1f} ns an agent and round, SciPy {theirs:.0f}"),
    ]  # fmt: skip


def _growth_rows() -> list[Row]:
    rows = []
    for what, make, sizes, algorithm in (
        ("EV fleet, d = 24", chargers, (10**3, 10**4, 10**5), DualAveraging()),
        ("Algorithm 1, sparse fleet, d = 1", _sparse_problem, (10**3, 10**5, 10**6), Tikhonov()),
        ("Algorithm 1, EV fleet, d = 24", chargers, (10**3, 10**5, 10**6), Tikhonov()),
    ):
        costs = [_per_agent(make(n), algorithm) for n in sizes]
        shown = ", ".join(f"{c:,.1f}" for c in costs)
        rows.append(
            row(f"growth from n = {sizes[0]:,} to {sizes[-1]:,}: {what}", "1.5x the best cost",
                f"{max(costs) / min(costs):.1f}x", f"{shown} ns an agent and round")
        )  # fmt: skip
    peak = "peak of the process, 3 rounds"
    rows.append(row("memory at n = 1,000,000, d = 24", "2.5 GB", _memory("DualAveraging"), peak))
    rows.append(row("Algorithm 1, the same", "1.2 GB", _memory("paper.Tikhonov"), peak))
    return rows


def _memory(algorithm: str) -> str:
    script = (
        "from pathlib import Path\n"
        "import sottovoce as sv\n"
        "problem = sv.gallery.chargers(1_000_000)\n"
        f"sv.simulate(problem, rounds=3, record=[3], algorithm=sv.{algorithm}())\n"
        "print(Path('/proc/self/status').read_text())\n"
    )
    # Linux only: other counters of the peak also see the memory of the process that started this.
    (peak,) = (line for line in _python(script).splitlines() if line.startswith("VmHWM"))
    return f"{int(peak.split()[1]) / 1e6:.2f} GB"


def _python(script: str) -> str:
    done = subprocess.run(  # noqa: S603 - our own text
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    return done.stdout
