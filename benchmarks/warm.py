"""Rounds to 2% of the optimum over a day of 96 runs whose data drift, begun warm and cold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import sottovoce as sv
from sottovoce.certificate.optimum import saddle_prices
from sottovoce.problem.numeric import Numeric

RUNS = 96  # one every quarter of an hour
FIRST = 200  # rounds of the cold run before the day
WITHIN = 0.02
GRID = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
PRIVACY = {"epsilon": 3.0, "delta": 1e-5}  # of every run
DRIFT = 0.1  # needs and tariffs swing by so much in a day


class Instance(NamedTuple):
    """One run's problem, its optimum and the optimal multipliers."""

    problem: sv.Problem
    numeric: Numeric
    best: float
    mu: Any
    saddle: tuple[Any, Any]

    def excess(self, x: Any) -> float:
        """``f - f* + mu* max(g, 0)``, never negative, as a share of ``f*``."""
        violation = np.maximum(self.numeric.constraints(x), 0.0)
        return float((self.numeric.objective(x) - self.best + self.mu @ violation) / abs(self.best))


def paper(angle: float) -> sv.Problem:
    """The paper's constraints; where agents would be on their own swings by half a unit."""
    w = [0.5 * math.sin(angle + i) for i in range(7)]
    stated = sv.gallery.paper()
    a, b, c, d, e, f, g = x = sv.agents([f"x{i + 1}" for i in range(7)], lower=-10, upper=10)
    objectives = [
        (a - 9 - w[0]) ** 2 + a, (b + 4 + w[1]) ** 4, (c - 1 - w[2]) ** 8,
        d**2 + (1 + w[3]) * d + 6, (e + 3 + w[4]) ** 6, (f - 7 - w[5]) ** 2, (g - 5 - w[6]) ** 2,
    ]  # fmt: skip
    rows = [
        a + b + c <= 3, e**2 + f**4 / 12 + g**4 / 12 <= 20, c**2 + d + f <= 1, f**2 + g**2 <= 5
    ]  # fmt: skip
    assert len(rows) == stated.rows
    return sv.Problem(agents=x, objectives=objectives, constraints=rows)


def _fleet(angle: float) -> tuple[Any, Any, Any, Any]:
    """Seven chargers of the gallery, their tariff, and what homes draw."""
    group = sv.gallery.chargers(7).groups[0]
    data = {symbol.name: values for symbol, values in group.parameters.items()}
    swing = 1.0 + DRIFT * np.sin(angle + np.arange(7))
    hours = np.arange(17, 41) % 24
    from sottovoce.problem.gallery import HOME_KW, PRICE

    tariff = np.take(PRICE, hours) * (1.0 + DRIFT * np.sin(angle + np.arange(24) / 4))
    return group.upper, data["need"] * swing, tariff, 7 * np.take(HOME_KW, hours)


def chargers(angle: float) -> sv.Problem:
    """24 hours under a tight limit; hours of one price are alike, so that costs are nearly flat."""
    limit, need, tariff, _ = _fleet(angle)
    data = {s.name: v for s, v in sv.gallery.chargers(7).groups[0].parameters.items()}
    data["need"] = need
    ev = sv.agents(7, name="ev", dim=24, lower=0.0, upper=limit, parameters=data)
    capacity = -sv.gallery.chargers(7).constraints[0].offset
    cost = sum(float(p) * x + 0.002 * x**2 for p, x in zip(tariff, ev.x, strict=True))
    return sv.Problem(
        objectives=cost + ev["value"] * (sum(ev.x) - ev["need"]) ** 2,
        constraints={"capacity": sv.total(ev.x) <= 0.4 * capacity},
        start=[0.0],
    )


def valley(angle: float) -> sv.Problem:
    """24 hours at a public cost of the load squared."""
    limit, need, tariff, home = _fleet(angle)
    ev = sv.agents(
        7, name="ev", dim=24, lower=0.0, upper=22.0, parameters={"need": need, "limit": limit}
    )
    cost = sum(float(p) * x + 0.002 * x**2 for p, x in zip(tariff, ev.x, strict=True))
    window = zip(ev.x, ev["limit"], strict=True)
    return sv.Problem(
        objectives=cost,
        cost=0.05 / 7 * sv.sum_squares(home + sv.total(ev.x)),
        local=[sum(ev.x) == ev["need"], *(x <= most for x, most in window)],
    )


def instance(problem: sv.Problem) -> Instance:
    optimum = sv.reference_optimum(problem)
    x, mu = np.array(optimum.x), np.array(optimum.mu)
    saddle = x, np.array(saddle_prices(problem, optimum))
    return Instance(problem, Numeric(problem), optimum.objective, mu, saddle)


def excesses(day: list[Instance], plan: Any, first: Any, rounds: int, *, warm: bool) -> Any:
    """How far the answers of all runs of a day are from their optima."""
    earlier, result = None, []
    if warm:
        earlier = _simulated(day[0], first, FIRST, None, seed=RUNS)
    for seed, one in enumerate(day):
        answer = _simulated(one, plan, rounds, earlier, seed)
        result.append(one.excess(answer.x[0]))
        earlier = answer if warm else None
    return np.array(result)


def _simulated(one: Instance, plan: Any, rounds: int, earlier: Any, seed: int) -> sv.Result:
    return sv.simulate(
        one.problem, plan, rounds=rounds, record=[], seed=seed, saddle=one.saddle,
        warm_start=earlier, progress=False,
    )  # fmt: skip


def fewest(day: list[Instance], plans: Callable[[int], Any], *, warm: bool) -> int:
    """The fewest rounds of the grid with which the median run ends within 2%."""
    for rounds in GRID:
        if np.median(excesses(day, plans(rounds), plans(FIRST), rounds, warm=warm)) <= WITHIN:
            return rounds
    return GRID[-1] + 1


def rows(name: str, problem: Callable[[float], sv.Problem], radius: float) -> Iterator[Any]:
    """With and without noise."""
    day = [instance(problem(2.0 * math.pi * t / RUNS)) for t in range(RUNS)]
    certificate = sv.certify(day[0].problem)

    @cache
    def noisy(rounds: int) -> Any:
        return sv.plan(certificate, **PRIVACY, hide=sv.Offset(radius=radius, rounds=rounds))

    for noise, plans in (("none", lambda rounds: None), (f"epsilon 3, offset {radius:g}", noisy)):
        cold, warm = fewest(day, plans, warm=False), fewest(day, plans, warm=True)
        yield {
            "problem": name,
            "noise of a run": noise,
            "rounds, cold": cold,
            "rounds, warm": warm,
            "warm / cold": warm / cold,
        }


def run() -> list[dict[str, Any]]:
    return [
        *rows("paper", paper, 0.03),
        *rows("chargers, 24 h, limit", chargers, 0.02),
        *rows("chargers, 24 h, valley", valley, 0.02),
    ]
