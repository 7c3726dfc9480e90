"""How near the default algorithm comes to the statistical limit, over families of problems."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit, typeof, types
from numba.extending import overload

from benchmarks.families import held_out, routing, tuned
from benchmarks.games import EXP, LOG, WHOLE, Agents, Game, Optimum, limits, optimum
from sottovoce.algorithm import dual_averaging, eigen, prices, projection
from sottovoce.algorithm.dual_averaging import (
    Constants,
    DualAveraging,
    Rows,
    answer_share,
    cloud_round,
    damping,
    memory_size,
)

for _module in (projection, eigen, prices, dual_averaging):
    for _function in _module.COMPILED:
        overload(_function, strict=False)(lambda *args, function=_function: function)

compiled = njit(error_model="numpy")


@compiled
def slope_of(a: Any, c: int, x: float, price: Any) -> Any:
    """Slope and curvature of ``f_c + price'h_c``, couplings within the agent left out."""
    kind, d = a.kind[c], x - a.place[c]
    if kind == LOG:
        t = x + a.place[c]
        slope, bend = a.linear[c] - a.scale[c] / t, a.scale[c] / (t * t)
    else:
        m = a.power[c]
        if m == 2.0:
            slope, bend = a.linear[c] + 2.0 * a.scale[c] * d, 2.0 * a.scale[c]
        else:
            even = d ** int(m - 2.0)
            slope, bend = a.linear[c] + a.scale[c] * m * even * d, a.scale[c] * m * (m - 1.0) * even
    for e in range(a.h_ptr[c], a.h_ptr[c + 1]):
        cost, m = price[a.h_row[e]] * a.h_coef[e], a.h_power[e]
        if a.h_kind[e] == EXP:
            value = m * math.exp(m * x)
            slope += cost * value
            bend += cost * m * value
        elif m == 1.0:
            slope += cost
        else:
            below = x ** int(m - 2.0)
            slope += cost * m * below * x
            bend += cost * m * (m - 1.0) * below
    return slope, bend


@compiled
def force_of(a: Any, c: int, x: float, price: Any) -> float:
    force = 0.0
    for e in range(a.h_ptr[c], a.h_ptr[c + 1]):
        cost, m = price[a.h_row[e]] * a.h_coef[e], a.h_power[e]
        if a.h_kind[e] == EXP:
            force += cost * m * math.exp(m * x)
        elif m == 1.0:
            force += cost
        else:
            force += cost * m * x ** int(m - 1.0)
    return force


@compiled
def scalar(a: Any, c: int, price: Any, extra: float, eps: float, anchor: float, x: float) -> float:
    """argmin of ``f_c + price'h_c + extra x + eps/2 (x - anchor)^2`` on the box, by Newton."""
    low, high = a.lower[c], a.upper[c]
    width = high - low
    for _ in range(200):
        slope, bend = slope_of(a, c, x, price)
        slope += extra + eps * (x - anchor)
        bend += eps
        if slope > 0.0:
            high = x
        else:
            low = x
        if slope == 0.0 or (x == a.lower[c] and slope > 0.0) or (x == a.upper[c] and slope < 0.0):
            return x
        new = x - slope / bend if bend > 0.0 else (a.lower[c] if slope > 0.0 else a.upper[c])
        if new <= a.lower[c] and high > a.lower[c]:
            new = a.lower[c]
        elif new >= a.upper[c] and low < a.upper[c]:
            new = a.upper[c]
        if not low <= new <= high or new == x:
            new = 0.5 * (low + high) if abs(new - x) > 1e-15 * width else new
        moved = abs(new - x)
        x = new
        if moved <= 1e-15 * width or high - low <= 1e-15 * width:
            break
    return min(max(x, a.lower[c]), a.upper[c])


@compiled
def respond(a: Any, price: Any, x: Any, old: Any, eps: Any) -> None:
    """Every agent's exact minimiser, in place."""
    for b in range(a.block_weight.size):
        i, j = a.block_ptr[b], a.block_ptr[b + 1]
        if a.block_weight[b] > 0.0:
            # the derivative of the shared square is a price of its own: nu = weight (sum - need)
            w, need = a.block_weight[b], a.block_need[b]
            low, high = w * (np.sum(a.lower[i:j]) - need), w * (np.sum(a.upper[i:j]) - need)
            for _ in range(100):
                nu = 0.5 * (low + high)
                total = 0.0
                for c in range(i, j):
                    x[c] = scalar(a, c, price, nu, eps[c], old[c], x[c])
                    total += x[c]
                if w * (total - need) > nu:
                    low = nu
                else:
                    high = nu
                if high - low <= 1e-15 * (abs(low) + abs(high)):
                    break
        elif a.quad_ptr[j] > a.quad_ptr[i]:
            for _ in range(300):
                moved = 0.0
                for c in range(i, j):
                    extra = 0.0
                    for e in range(a.quad_ptr[c], a.quad_ptr[c + 1]):
                        extra += a.quad[e] * x[a.quad_to[e]]
                    new = scalar(a, c, price, extra, eps[c], old[c], x[c])
                    moved = max(moved, abs(new - x[c]) / (a.upper[c] - a.lower[c]))
                    x[c] = new
                if moved < 1e-13:
                    break
        else:
            for c in range(i, j):
                x[c] = scalar(a, c, price, 0.0, eps[c], old[c], x[c])


@compiled
def sums_of(a: Any, x: Any, s: Any) -> None:
    s[:] = 0.0
    for c in range(x.size):
        for e in range(a.h_ptr[c], a.h_ptr[c + 1]):
            if a.h_kind[e] == EXP:
                s[a.h_row[e]] += a.h_coef[e] * math.exp(a.h_power[e] * x[c])
            elif a.h_power[e] == 1.0:
                s[a.h_row[e]] += a.h_coef[e] * x[c]
            else:
                s[a.h_row[e]] += a.h_coef[e] * x[c] ** int(a.h_power[e])


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
    rounds: int,
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
    for k in range(1, rounds + 1):
        sums_of(a, x, y)
        for o in range(p):
            if rows.noise[o] > 0.0:
                y[o] += rows.unit[o] * rows.noise[o] * rng.standard_normal()
        if not cloud(k, y, price, memory, rows, constants):
            failed = k
            break
        for c in range(n):
            old[c] = x[c]
            width = max(a.upper[c] - a.lower[c], 1e-300)
            eps[c] = damping(k, force_of(a, c, x[c], price), width, constants.theta)
        respond(a, price, x, old, eps)
        share = answer_share(k, rounds, noisy)
        for c in range(n):
            answer[c] += share * (x[c] - answer[c])
        for o in range(p):
            cost[o] += share * (price[o] - cost[o])
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


def case_of(game: Game) -> Case:
    return Case(game, optimum(game), game.agents, game.public)


def measure(
    case: Case, radius: float, rounds: int, runs: int, constants: Constants, seed: int = 0
) -> tuple[float, float, int]:
    """Efficiency in x and in price: RMS error over the limit; and how many runs failed."""
    sigma = case.game.sigma if case.game.sigma is not None else case.game.plan(radius)
    rows = Rows(sigma, np.ones(sigma.size), case.public)
    error, cost, failed = 0.0, 0.0, 0
    for run in range(runs):
        rng = np.random.default_rng([seed, run])
        x, price, bad = loop(
            rounds, case.agents, rows, constants, cloud(), rng, case.best.x, np.zeros(0)
        )
        error += np.sum((x - case.best.x) ** 2) / runs
        cost += np.sum((price - case.best.price) ** 2) / runs
        failed += bad > 0
    limit_x, limit_price = limits(case.game, case.best, sigma)
    scale = math.sqrt(rounds)
    return math.sqrt(error) * scale / limit_x, math.sqrt(cost) * scale / limit_price, failed


def tail(case: Case, rounds: int, constants: Constants, size: Any = None) -> Any:
    """The noise-free trace of the largest error in widths of the boxes."""
    unit = case.game.plan(1.0) if size is None else size
    rows = Rows(unit, np.zeros(unit.size), case.public)
    trace = np.full(rounds, np.nan)
    loop(
        rounds, case.agents, rows, constants, cloud(), np.random.default_rng(0), case.best.x, trace
    )
    return trace


PLAN = ((100, 12), (1000, 4), (10000, 1))


def report(name: str, games: list[Game], constants: Constants) -> None:
    """Print geometric means, counts above 2 and the worst, at every number of rounds."""
    cases = [case_of(game) for game in games]
    for rounds, runs in PLAN:
        found = []
        for case in cases:
            for radius in (0.02, 1.0) if case.game.sigma is None else (1.0,):
                x, price, failed = measure(case, radius, rounds, runs, constants)
                found.append((x, price, failed, case.game.name, radius))
        efficiency = np.array([row[0] for row in found])
        mean, above = np.exp(np.mean(np.log(efficiency))), np.sum(efficiency > 2)
        print(f"{name} T={rounds}: geometric mean {mean:.3f}, above 2: {above} of {len(found)}")
        for x, price, failed, label, radius in sorted(found, reverse=True)[:5]:
            print(f"    {x:8.3f} in x, {price:8.3f} in price, {failed} failed: {label}, {radius:g}")
    for case in cases:
        late = np.flatnonzero(tail(case, 300, constants) > 1e-6)
        last = late[-1] + 1 if late.size else 0
        print(f"    without noise within 1e-6 after round {last}: {case.game.name}")


def main() -> None:
    """Measure the tuned and the held-out half, then the sparse routing problem."""
    constants = DualAveraging().constants
    report("tuned", tuned(), constants)
    report("held out", held_out(), constants)
    print("routing", measure(case_of(routing()), 1.0, 1000, 1, constants))


if __name__ == "__main__":
    main()
