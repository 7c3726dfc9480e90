"""How near the default algorithm comes to the statistical limit, over families of problems."""

from __future__ import annotations

import argparse
import math
import sys
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from benchmarks.__main__ import table
from benchmarks.problems.families import held_out, routing, tuned
from benchmarks.problems.games import Game, Optimum, limits, optimum
from benchmarks.problems.rounds import Answer, run_rounds
from sottovoce.algorithm.dual_averaging import DualAveraging


class Case(NamedTuple):
    game: Game
    best: Optimum
    agents: Any
    half: str = ""


def case_of(game: Game, half: str = "") -> Case:
    return Case(game, optimum(game), game.agents, half)


class Found(NamedTuple):
    """RMS error over the limit, in x and in price, and how many runs failed."""

    x: float
    price: float
    failed: int
    name: str
    radius: float
    half: str


def measure(
    case: Case, radius: float, rounds: int, runs: int, algorithm: DualAveraging, seed: int = 0
) -> Found:
    """One problem; every problem has noise of its own, or means over problems would share it."""
    sigma = case.game.sigma if case.game.sigma is not None else case.game.plan(radius)
    public = case.game.public(sigma, noisy=True)
    name = zlib.crc32(f"{case.game.name} {radius:g}".encode())
    error, cost, failed = 0.0, 0.0, 0
    shares = algorithm.share(np.arange(1, rounds + 1), rounds, noisy=True)
    for run in range(runs):
        rng = np.random.default_rng([seed, name, run])
        normals = rng.standard_normal((rounds, sigma.size))
        answer = Answer(np.zeros(case.best.x.size), np.zeros(sigma.size), np.zeros((0, 0)))
        bad = run_rounds(shares, normals, case.agents, public, algorithm, answer)
        error += np.sum((answer.x - case.best.x) ** 2) / runs
        cost += np.sum((answer.price - case.best.price) ** 2) / runs
        failed += bad > 0
    in_x, in_price = (one / math.sqrt(rounds) for one in limits(case.game, case.best, sigma))
    found = math.sqrt(error) / in_x, math.sqrt(cost) / in_price
    return Found(*found, failed, case.game.name, radius, case.half)


def tail(case: Case, rounds: int, algorithm: DualAveraging, size: Any = None) -> Any:
    """The noise-free trace of the largest error in widths of the boxes."""
    unit = case.game.plan(1.0) if size is None else size
    public = case.game.public(unit, noisy=False)
    n, a = case.best.x.size, case.agents
    answer = Answer(np.zeros(n), np.zeros(unit.size), np.full((rounds, n), np.nan))
    run_rounds(np.ones(rounds), np.zeros(0), a, public, algorithm, answer)
    width = np.maximum(a.upper - a.lower, 1e-300)
    return np.max(np.abs(answer.trace - case.best.x) / width, axis=1)


# Geometric means of few runs are low: by 13% with 4 runs, by 2% with 32.
PLAN = ((100, 64), (1000, 32), (10_000, 16))
DEFAULT = DualAveraging()


def over_families(
    cases: list[Case], rounds: int, runs: int, algorithm: DualAveraging, seed: int = 0
) -> list[Found]:
    """Every problem with both radii; tells on stderr how far it is."""
    found = []
    for done, case in enumerate(cases):
        for radius in (0.02, 1.0) if case.game.sigma is None else (1.0,):
            found.append(measure(case, radius, rounds, runs, algorithm, seed))
            last = found[-1]
            print(
                f"{rounds:,} rounds, {done + 1} of {len(cases)}: {last.name}, radius {radius:g}: "
                f"{last.x:.3f} in x, {last.price:.3f} in price, {last.failed} failed",
                file=sys.stderr,
                flush=True,
            )
    return found


def summary(found: list[Found], half: str, rounds: int, runs: int) -> dict[str, Any]:
    """Geometric means and how many are above 2."""
    some = [one for one in found if half in ("all", one.half)]
    x, price = np.array([one.x for one in some]), np.array([one.price for one in some])
    worst = sorted(some, reverse=True)[:3]
    return {
        "problems": half,
        "rounds": rounds,
        "runs": runs,
        "x, geometric mean": float(np.exp(np.mean(np.log(x)))),
        "price": float(np.exp(np.mean(np.log(price)))),
        "x above 2": f"{np.sum(x > 2)} of {x.size}",
        "failed": sum(one.failed for one in some),
        "worst in x": ", ".join(f"{w.name} at {w.radius:g}: {w.x:.3g}" for w in worst),
    }


def run(
    plan: Sequence[tuple[int, int]] = PLAN,
    algorithm: DualAveraging = DEFAULT,
    *,
    seed: int = 0,
    without: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """A row per half and number of rounds."""
    games = [(game, "tuned") for game in tuned()] + [(game, "held out") for game in held_out()]
    cases = [
        case_of(game, half) for game, half in games if not any(w in game.name for w in without)
    ]
    rows = []
    for rounds, runs in plan:
        found = over_families(cases, rounds, runs, algorithm, seed)
        rows += [summary(found, half, rounds, runs) for half in ("tuned", "held out", "all")]
    return rows


def main() -> None:
    """``python -m benchmarks.efficiency 100:64 1000:32 --without fleet2000 --reach 32``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "plan", nargs="*", default=[f"{r}:{n}" for r, n in PLAN], help="ROUNDS:RUNS"
    )
    parser.add_argument("--without", nargs="*", default=[], help="parts of names left out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tails", action="store_true", help="noise-free rounds to 1e-6 instead")
    parser.add_argument("--routing", action="store_true", help="500 sums, 2,000 agents instead")
    for name, value in asdict(DEFAULT).items():
        parser.add_argument(f"--{name}", type=float, default=value)
    asked = parser.parse_args()
    algorithm = DualAveraging(**{name: getattr(asked, name) for name in asdict(DEFAULT)})
    if asked.tails:
        for game in tuned() + held_out():
            late = np.flatnonzero(~(tail(case_of(game), 600, algorithm) <= 1e-6))
            print(f"{game.name}: 1e-6 after {late[-1] + 2 if late.size else 1}", flush=True)
    elif asked.routing:
        case = case_of(routing())
        for radius in (0.02, 1.0):
            print(measure(case, radius, 1000, 1, algorithm, asked.seed))
    else:
        plan = [(int(r), int(n)) for r, n in (one.split(":") for one in asked.plan)]
        print(table(run(plan, algorithm, seed=asked.seed, without=asked.without)))


if __name__ == "__main__":
    main()
