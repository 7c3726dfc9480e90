"""The proximal step of a public cost is that of cvxpy, compiled and in plain Python."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from kernel_builds import BUILDS, use_build

from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.algorithm.public_sum import PublicCost, PublicSum
from sottovoce.formula.canonical import canonical
from sottovoce.formula.expression import ZERO, Expression, symbol
from sottovoce.formula.functions import exp, maximum
from sottovoce.kernels.cloud_kernel import CloudKernel, _regions
from sottovoce.kernels.core import plain, public_cost

cp: Any = import_module("cvxpy")
structs: Any = plain
prox: Any = public_cost.prox
KINDS = ("smooth", "one", "peak", "norm")


def drawn(kind: str, seed: int) -> tuple[PublicCost, Any, Any]:
    """A random cost, and the same in cvxpy with its variable."""
    rng = np.random.default_rng(seed)
    m = 1 if kind == "one" else int(rng.integers(2, 6))
    symbols = tuple(symbol(f"u{i}") for i in range(m))
    u: Any = cp.Variable(m)
    center, weight = 3.0 * rng.normal(size=m), rng.uniform(0.1, 3.0, m)
    squares: Any = sum((w * (s - c) ** 2 for w, s, c in zip(weight, symbols, center, strict=True)))
    same_squares = cp.sum(cp.multiply(weight, cp.square(u - center)))
    phi: Any = ZERO
    more: dict[str, Any] = {"peak": (), "floor": -np.inf, "center": (), "radius": 0.0}
    low, high = rng.choice([-np.inf, -2.0, 0.0], m), rng.choice([np.inf, 2.0, 1.0], m)
    if kind == "smooth":
        total: Any = sum(symbols[1:], symbols[0])
        phi = squares + total**2 + exp(symbols[0] / 3)
        value = same_squares + cp.square(cp.sum(u)) + cp.exp(u[0] / 3)
    elif kind == "one":
        s = symbols[0]
        phi = weight[0] * abs(s - center[0]) + maximum(0, s) ** 2 + maximum(2 * s - 1, -s)
        value = weight[0] * cp.abs(u[0] - center[0]) + cp.square(cp.pos(u[0]))
        value += cp.maximum(2 * u[0] - 1, -u[0])
    elif kind == "peak":
        a, b = rng.normal(size=m) * (rng.random(m) < 0.8), rng.normal(size=m)
        a[0] = a[0] or 1.0
        floor = float(rng.choice([-np.inf, 0.0, 1.0]))
        pieces = [a[i] * u[i] + b[i] for i in range(m) if a[i]]
        value = cp.max(cp.hstack([*pieces, *([floor] if np.isfinite(floor) else [])]))
        more |= {"peak": tuple(zip(a.tolist(), b.tolist(), strict=True)), "floor": floor}
        if rng.random() < 0.5:
            phi, value = squares, value + same_squares
    else:
        radius = float(rng.uniform(0.1, 4.0))
        more |= {"center": tuple(center.tolist()), "radius": radius}
        value, low, high = radius * cp.norm(u - center), np.full(m, -np.inf), np.full(m, np.inf)
    cost = PublicCost(
        members=tuple(range(m)),
        symbols=symbols,
        phi=canonical(phi) if isinstance(phi, Expression) else ZERO,
        ranges=((-10.0, 10.0),) * m,
        bounds=tuple(zip(low.tolist(), high.tolist(), strict=True)),
        **more,
    )
    return cost, value, u


def worse(cost: PublicCost, value: Any, u: Any, step: Any, v: Any, d: Any) -> float:
    """How much more the step costs than cvxpy's answer, relative."""
    bounds = np.array(cost.bounds).T
    rows = [u[i] >= b for i, b in enumerate(bounds[0]) if np.isfinite(b)]
    rows += [u[i] <= b for i, b in enumerate(bounds[1]) if np.isfinite(b)]
    objective = value + 0.5 * cp.sum(cp.multiply(d, cp.square(u - v)))
    best = cp.Problem(cp.Minimize(objective), rows).solve(solver="CLARABEL")
    assert np.all(step >= bounds[0])
    assert np.all(step <= bounds[1])
    u.value = step
    return float((objective.value - best) / (1.0 + abs(best)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_in_any_metric_costs_no_more_than_cvxpys(kind: str) -> None:
    for seed in range(12):
        cost, value, u = drawn(kind, seed)
        rng, m = np.random.default_rng(100 + seed), len(cost.members)
        v, d, step = 4.0 * rng.normal(size=m), rng.uniform(0.1, 3.0, m), np.zeros(m)
        public = structs.Struct()
        structs.fill_struct(public, _regions((cost,)))
        public.sums, public.regions = m, 1
        public.lower, public.upper = np.array(cost.bounds).T.copy()
        prox(v, d, public, step, np.zeros(40 + 12 * m + 3 * m * m))
        assert worse(cost, value, u, step, v, d) < 1e-7


@pytest.mark.parametrize("kind", KINDS)
def test_every_build_takes_the_same_step(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Any] = []
    for build in BUILDS:
        for _ in use_build(build, monkeypatch):
            taken = []
            for seed in range(12):
                cost, *_ = drawn(kind, seed)
                low, high = np.array(cost.bounds).T
                ones = np.ones(low.size)
                public = PublicSum(lower=low, upper=high, unit=ones, noisy=ones, regions=(cost,))
                cloud = CloudKernel(public, DualAveraging(), planned=True)
                v = 4.0 * np.random.default_rng(200 + seed).normal(size=low.size)
                taken.append(cloud.nearest(v, priced=True))
            steps.append(np.concatenate(taken))
    for other in steps[1:]:
        np.testing.assert_array_equal(other, steps[0])
