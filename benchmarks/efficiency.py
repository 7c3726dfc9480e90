"""How near the default algorithm comes to the statistical limit, over families of problems."""

from __future__ import annotations

import argparse
import math
import sys
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit, typeof, types
from numba.extending import overload

from benchmarks.__main__ import table
from benchmarks.problems.families import held_out, routing, tuned
from benchmarks.problems.games import WHOLE, Agents, Game, Optimum, limits, optimum
from benchmarks.problems.responses import force_of, respond, sums_of
from sottovoce.algorithm import dual_averaging, eigen, prices, projection, region_prices
from sottovoce.algorithm.dual_averaging import (
    Constants,
    DualAveraging,
    Rows,
    cloud_round,
    damping,
    memory_size,
)

for _module in (projection, eigen, region_prices, prices, dual_averaging):
    for _function in _module.COMPILED:
        overload(_function, strict=False)(lambda *args, function=_function: function)

compiled = njit(error_model="numpy")


@compiled
def paraboloid(region: int, u: Any, gradient: Any, hessian: Any) -> float:
    """``u_0^2 + u_1 <= 9``: the only general region of all families, so one loop serves all."""
    hessian[:, :] = 0.0
    hessian[0, 0], gradient[0], gradient[1] = 2.0, 2.0 * u[0], 1.0
    return u[0] * u[0] + u[1] - 9.0


_array, _whole = types.float64[::1], types.int64[::1]
_public = types.NamedTuple([_array, _array, _whole, _whole, _array, _array], projection.PublicSet)
_rows = types.NamedTuple([_array, _array, _public], Rows)
_numbers = types.NamedUniTuple(types.float64, len(Constants._fields), Constants)
_cloud = types.boolean(types.int64, _array, _array, _array, _rows, _numbers)
_agents = types.NamedTuple([_whole if f in WHOLE else _array for f in Agents._fields], Agents)
_generator = typeof(np.random.default_rng(0))
_result = types.Tuple([_array, _array, types.int64])


@cache
def cloud() -> Any:
    """The cloud's round, compiled apart from the loop, which calls it by its address."""

    @njit(_cloud, error_model="numpy")
    def compiled_round(k: int, y: Any, price: Any, memory: Any, rows: Any, constants: Any) -> bool:
        return cloud_round(k, y, price, memory, rows, constants, paraboloid)

    return compiled_round


@njit(
    _result(
        types.int64,
        _agents,
        _rows,
        _numbers,
        types.FunctionType(_cloud),
        _generator,
        _array,
        _array,
    ),
    error_model="numpy",
)
def loop(
    shares: Any,
    a: Any,
    rows: Rows,
    constants: Constants,
    cloud: Any,
    rng: Any,
    best: Any,
    trace: Any,
) -> Any:
    """One run; the answers of x and price, the round of failure, and ``|x - best|`` per round."""
    p, n = rows.unit.size, a.lower.size
    x, price, memory = a.start.copy(), np.zeros(p), np.zeros(memory_size(p))
    y, old, eps = np.zeros(p), np.zeros(n), np.zeros(n)
    answer, cost = np.zeros(n), np.zeros(p)
    noisy = rows.noise.max() > 0.0
    failed = 0
    for k in range(1, shares.size + 1):
        sums_of(a, x, y)
        for o in range(p):
            if rows.noise[o] > 0.0:
                y[o] += rows.unit[o] * rows.noise[o] * rng.standard_normal()
        if noisy:  # what was released is averaged; without noise the answer is the last
            for c in range(n):
                answer[c] += shares[k - 1] * (x[c] - answer[c])
            for o in range(p):
                cost[o] += shares[k - 1] * (price[o] - cost[o])
        if not cloud(k, y, price, memory, rows, constants):
            failed = k
            break
        for c in range(n):
            old[c] = x[c]
            width = max(a.upper[c] - a.lower[c], 1e-300)
            eps[c] = damping(k, force_of(a, c, x[c], price), width, constants.theta)
        respond(a, price, x, old, eps)
        if not noisy:
            answer[:], cost[:] = x, price
        if trace.size:
            total = 0.0
            for c in range(n):
                total = max(total, abs(x[c] - best[c]) / max(a.upper[c] - a.lower[c], 1e-300))
            trace[k - 1] = total
    return answer, cost, failed


class Case(NamedTuple):
    game: Game
    best: Optimum
    agents: Any
    public: Any
    half: str = ""


def case_of(game: Game, half: str = "") -> Case:
    return Case(game, optimum(game), game.agents, game.public, half)


class Found(NamedTuple):
    """RMS error over the limit, in x and in price, and how many runs failed."""

    x: float
    price: float
    failed: int
    name: str
    radius: float
    half: str


def measure(
    case: Case, radius: float, rounds: int, runs: int, constants: Constants, seed: int = 0
) -> Found:
    """One problem; every problem has noise of its own, or means over problems would share it."""
    sigma = case.game.sigma if case.game.sigma is not None else case.game.plan(radius)
    rows = Rows(sigma, np.ones(sigma.size), case.public)
    name = zlib.crc32(f"{case.game.name} {radius:g}".encode())
    error, cost, failed = 0.0, 0.0, 0
    shares = DualAveraging().share(np.arange(1, rounds + 1), rounds, noisy=True)
    for run in range(runs):
        rng = np.random.default_rng([seed, name, run])
        x, price, bad = loop(
            shares, case.agents, rows, constants, cloud(), rng, case.best.x, np.zeros(0)
        )
        error += np.sum((x - case.best.x) ** 2) / runs
        cost += np.sum((price - case.best.price) ** 2) / runs
        failed += bad > 0
    in_x, in_price = (one / math.sqrt(rounds) for one in limits(case.game, case.best, sigma))
    found = math.sqrt(error) / in_x, math.sqrt(cost) / in_price
    return Found(*found, failed, case.game.name, radius, case.half)


def tail(case: Case, rounds: int, constants: Constants, size: Any = None) -> Any:
    """The noise-free trace of the largest error in widths of the boxes."""
    unit = case.game.plan(1.0) if size is None else size
    rows = Rows(unit, np.zeros(unit.size), case.public)
    trace = np.full(rounds, np.nan)
    rng, shares = np.random.default_rng(0), np.ones(rounds)
    loop(shares, case.agents, rows, constants, cloud(), rng, case.best.x, trace)
    return trace


PLAN = ((100, 8), (1000, 8))


def over_families(
    cases: list[Case], rounds: int, runs: int, constants: Constants, seed: int = 0
) -> list[Found]:
    """Every problem with both radii; tells on stderr how far it is."""
    found = []
    for done, case in enumerate(cases):
        for radius in (0.02, 1.0) if case.game.sigma is None else (1.0,):
            found.append(measure(case, radius, rounds, runs, constants, seed))
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
    constants: Constants | None = None,
    *,
    seed: int = 0,
    without: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """A row per half and number of rounds."""
    numbers = DualAveraging().constants if constants is None else constants
    games = [(game, "tuned") for game in tuned()] + [(game, "held out") for game in held_out()]
    cases = [
        case_of(game, half) for game, half in games if not any(w in game.name for w in without)
    ]
    rows = []
    for rounds, runs in plan:
        found = over_families(cases, rounds, runs, numbers, seed)
        rows += [summary(found, half, rounds, runs) for half in ("tuned", "held out", "all")]
    return rows


def main() -> None:
    """``python -m benchmarks.efficiency 100:8 1000:8 --without fleet2000 --reach 32``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", nargs="*", default=["100:8", "1000:8"], help="ROUNDS:RUNS")
    parser.add_argument("--without", nargs="*", default=[], help="parts of names left out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tails", action="store_true", help="noise-free rounds to 1e-6 instead")
    parser.add_argument("--routing", action="store_true", help="500 sums, 2,000 agents instead")
    numbers = DualAveraging().constants
    for name, value in numbers._asdict().items():
        parser.add_argument(f"--{name}", type=float, default=value)
    asked = parser.parse_args()
    constants = Constants(*(getattr(asked, name) for name in Constants._fields))
    if asked.tails:
        for game in tuned() + held_out():
            late = np.flatnonzero(~(tail(case_of(game), 600, constants) <= 1e-6))
            print(f"{game.name}: 1e-6 after {late[-1] + 2 if late.size else 1}", flush=True)
    elif asked.routing:
        case = case_of(routing())
        for radius in (0.02, 1.0):
            print(measure(case, radius, 1000, 1, constants, asked.seed))
    else:
        plan = [(int(r), int(n)) for r, n in (one.split(":") for one in asked.plan)]
        print(table(run(plan, constants, seed=asked.seed, without=asked.without)))


if __name__ == "__main__":
    main()
