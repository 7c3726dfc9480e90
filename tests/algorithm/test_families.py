"""Efficiency over families of problems, fast: agents in closed form, affine sums, few rounds.

``python -m benchmarks efficiency`` measures all families, with curved sums and public regions.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from quadratics import GAINS, Intervals, Logarithms, Quadratics, intervals, residual

from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.problem.agents import Array

GAUSSIAN = 0.796227  # of epsilon = ln 3 and delta = 0.05
ROUNDS, RUNS = 200, 6


class Family(NamedTuple):
    """A problem, its saddle point, and the error of (x, price) per unit of noise in every sum."""

    agents: Quadratics
    public: Intervals
    x: Array
    price: Array
    root: Array


def drawn(*seed: int) -> np.random.Generator:
    return np.random.default_rng([20, *seed])


def utility() -> tuple[Quadratics, Intervals]:
    """Eight flows with logarithmic worth over three links."""
    rng = drawn(1)
    routes = (rng.random((3, 8)) < 0.5).astype(float)
    routes[rng.integers(0, 3, 8), np.arange(8)] = 1.0
    agents = Logarithms(rng.uniform(0.5, 3, 8), np.full(8, 0.1), routes, np.zeros(8), np.full(8, 5))
    return agents, intervals(np.full(3, -np.inf), rng.uniform(2, 6, 3))


def dispatch() -> tuple[Quadratics, Intervals]:
    """Ten generators with curvatures over six decades that meet a demand."""
    rng = drawn(2)
    q = rng.permutation(10 ** np.linspace(-3, 3, 10))
    agents = Quadratics(q, rng.uniform(0, 2, 10), np.ones((1, 10)), np.zeros(10), np.full(10, 10.0))
    return agents, intervals([25.0], [25.0])


def fleet() -> tuple[Quadratics, Intervals]:
    """Two hundred agents under one capacity."""
    rng = drawn(3)
    q, t = 10 ** rng.uniform(-0.3, 0.3, 200), rng.uniform(0.2, 0.9, 200)
    return Quadratics(q, t, np.ones((1, 200)), np.zeros(200), np.ones(200)), intervals(
        [-np.inf], [70.0]
    )


def scaled(f: float) -> tuple[Quadratics, Intervals]:
    """An objective and rows in odd units."""
    rng = drawn(4)
    A = rng.uniform(0.2, 1.0, (3, 8)) * 10 ** rng.uniform(-3, 3, (3, 1))
    q, t = f * rng.uniform(1, 4, 8), rng.uniform(0.5, 1, 8)
    most = A.sum(1) * np.array([0.35, 0.45, 0.7])
    return Quadratics(q, t, A, np.zeros(8), np.ones(8)), intervals(np.full(3, -np.inf), most)


def weak() -> tuple[Quadratics, Intervals]:
    """Constraints that hardly matter, on either side."""
    rng = drawn(5)
    A, t, q = rng.uniform(0, 1, (4, 6)), rng.uniform(0.2, 0.8, 6), rng.uniform(1, 4, 6)
    most = (A @ t) * np.array([0.8, 0.998, 1.002, 1.3])
    return Quadratics(q, t, A, np.zeros(6), np.ones(6)), intervals(np.full(4, -np.inf), most)


FAMILIES: dict[str, Callable[[], tuple[Quadratics, Intervals]]] = {
    "utility": utility,
    "dispatch": dispatch,
    "fleet": fleet,
    "small objective": lambda: scaled(1e-5),
    "large objective": lambda: scaled(1e5),
    "weak": weak,
}


@cache
def family(name: str) -> Family:
    """The saddle point by a run without noise; ``residual`` is its witness, the limit linear."""
    agents, public = FAMILIES[name]()
    x, price, _ = agents.run(public, plan(agents, 1.0), 400, noise=0.0)
    slack = public.upper - agents.rows @ x
    active = price != 0.0
    assert residual(agents, x, price) < 1e-7
    assert np.all(slack > -1e-7 * np.abs(public.upper))
    assert np.all(np.abs(slack[active]) < 1e-7 * np.abs(public.upper[active]))
    free = (x > agents.lower) & (x < agents.upper)
    slopes = agents.rows[active] * free
    towards = slopes / agents.curvature(x)
    root = np.zeros((x.size + price.size, price.size))
    inverse = np.linalg.inv(towards @ slopes.T)
    root[: x.size, active] = towards.T @ inverse
    root[x.size + np.flatnonzero(active)[:, None], np.flatnonzero(active)] = inverse
    return Family(agents, public, x, price, root)


def plan(agents: Quadratics, radius: float) -> Array:
    """sigma for trajectories of ``radius`` times the box, by the spectral bound's simple form."""
    sizes = np.abs(agents.rows)
    median = np.array([np.median(row[row > 0]) for row in sizes])
    width = agents.upper - agents.lower
    worst = np.max(radius * width * np.sqrt(np.sum((sizes / median[:, None]) ** 2, axis=0)))
    return np.asarray(median * worst / GAUSSIAN)


@cache
def efficiency(name: str, radius: float, gains: DualAveraging = GAINS) -> float:
    """The RMS error of x over the limit."""
    one = family(name)
    sigma, error = plan(one.agents, radius), 0.0
    for run in range(RUNS):
        seed = [zlib.crc32(name.encode()), int(100 * radius), run]
        x, _, failed = one.agents.run(one.public, sigma, ROUNDS, seed=seed, gains=gains)
        assert not failed
        error += float(np.sum((x - one.x) ** 2)) / RUNS
    limit = float(np.linalg.norm(one.root[: one.x.size] * sigma)) / math.sqrt(ROUNDS)
    return math.sqrt(error) / limit


RECORDED = {
    ("utility", 0.02): 0.758,
    ("utility", 1.0): 1.570,
    ("dispatch", 0.02): 0.771,
    ("dispatch", 1.0): 1.410,
    ("fleet", 0.02): 1.005,
    ("fleet", 1.0): 1.085,
    ("small objective", 0.02): 44.5,  # `start` is 30,000 times too large; 0.9 after 1,000 rounds
    ("small objective", 1.0): 6.11,
    ("large objective", 0.02): 1.112,
    ("large objective", 1.0): 2.655,
    ("weak", 0.02): 0.919,
    ("weak", 1.0): 1.331,
}
"""Seeds are fixed, so a change means that the algorithm has; six runs tell a figure to some 20%."""


@pytest.mark.parametrize(("name", "radius"), list(RECORDED))
def test_no_family_moves_away_from_the_limit(name: str, radius: float) -> None:
    assert efficiency(name, radius) < 1.2 * RECORDED[name, radius]


def test_all_families_are_recorded_and_nothing_else() -> None:
    assert {name for name, _ in RECORDED} == set(FAMILIES)


def test_a_lame_cloud_would_be_noticed() -> None:
    lame = replace(GAINS, doubt=30.0)
    assert efficiency("utility", 0.02, lame) > 1.2 * RECORDED["utility", 0.02]
    assert efficiency("fleet", 1.0, lame) > 1.2 * RECORDED["fleet", 1.0]
