"""The proximal step of a public cost is that of cvxpy, compiled and in plain Python."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from kernel_builds import BUILDS, use_build

import sottovoce
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.algorithm.public_sum import PublicCost, PublicSum
from sottovoce.formula.canonical import canonical
from sottovoce.formula.expression import symbol
from sottovoce.kernels.cloud_kernel import CloudKernel, _regions
from sottovoce.kernels.core import plain, public_cost

cp: Any = import_module("cvxpy")
sv: Any = sottovoce
structs: Any = plain
kernel: Any = public_cost
prox = kernel.prox
KINDS = ("smooth", "one", "peak", "norm", "mixed")


def drawn(kind: str, seed: int) -> tuple[PublicCost, Any, Any]:
    rng = np.random.default_rng(seed)
    m = 1 if kind == "one" else int(rng.integers(2, 6))
    symbols = tuple(symbol(f"u{i}") for i in range(m))
    u: Any = cp.Variable(m)
    center, weight = 3.0 * rng.normal(size=m), rng.uniform(0.1, 3.0, m)
    pieces = [sv.norm(*(w * (s - c) for w, s, c in zip(weight, symbols, center, strict=True)))]
    value = cp.norm(cp.multiply(weight, u - center))
    if kind == "smooth":
        pieces = [w * (s - c) ** 2 for w, s, c in zip(weight, symbols, center, strict=True)]
        pieces += [sum(symbols[1:], symbols[0]) ** 2, sv.exp(symbols[0] / 3)]
        value = cp.sum(cp.multiply(weight, cp.square(u - center)))
        value += cp.square(cp.sum(u)) + cp.exp(u[0] / 3)
    elif kind == "one":
        (s,) = symbols
        pieces = [weight[0] * abs(s - center[0]), sv.pos(s) ** 2, sv.maximum(2 * s - 1, -s)]
        value = weight[0] * cp.abs(u[0] - center[0]) + cp.square(cp.pos(u[0]))
        value += cp.maximum(2 * u[0] - 1, -u[0])
    elif kind == "peak":
        a, b = rng.normal(size=m), rng.normal(size=m)
        pieces = [sv.maximum(*(a[i] * s + b[i] for i, s in enumerate(symbols)), 0.5)]
        value = cp.max(cp.hstack([cp.multiply(a, u) + b, [0.5]]))
    elif kind == "mixed":
        M = rng.normal(size=(3, m))
        sums = list(M @ np.array(symbols))
        pieces = [sv.pos(sv.norm(*sums) - 1), sv.huber(sums[0] - 1)]
        pieces += [sv.maximum(sums[1] ** 2, abs(sums[2]), 1), sv.pos(sums[2]) ** 2]
        value = cp.pos(cp.norm(M @ u) - 1) + cp.huber(M[0] @ u - 1)
        value += cp.maximum(cp.square(M[1] @ u), cp.abs(M[2] @ u), 1)
        value += cp.square(cp.pos(M[2] @ u))
    low, high = rng.choice([-np.inf, -2.0, 0.0], m), rng.choice([np.inf, 2.0, 1.0], m)
    cost = PublicCost(
        members=tuple(range(m)),
        symbols=symbols,
        phi=canonical(sum(pieces[1:], pieces[0])),
        rising=(0.0,) * m,
        ranges=((-10.0, 10.0),) * m,
        bounds=tuple(zip(low.tolist(), high.tolist(), strict=True)),
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
        v, d, step = 4.0 * rng.normal(size=m), 10.0 ** rng.uniform(-2, 2, m), np.zeros(m)
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
                public = PublicSum(lower=low, upper=high, unit=ones, noise=ones, regions=(cost,))
                cloud = CloudKernel(public, DualAveraging(), planned=True)
                v = 4.0 * np.random.default_rng(200 + seed).normal(size=low.size)
                taken.append(cloud.nearest(v, priced=True))
            steps.append(np.concatenate(taken))
    for other in steps[1:]:
        np.testing.assert_array_equal(other, steps[0])


def test_the_derivative_of_a_step_is_the_difference_of_two() -> None:
    for kind in KINDS:
        for seed in range(6):
            cost, *_ = drawn(kind, seed)
            rng, m = np.random.default_rng(300 + seed), len(cost.members)
            public, step = structs.Struct(), structs.Struct()
            structs.fill_struct(public, _regions((cost,)))
            public.sums, public.regions = m, 1
            public.lower, public.upper = np.array(cost.bounds).T.copy()
            v, d = 4.0 * rng.normal(size=m), rng.uniform(0.1, 3.0, m)

            def taken(at: Any, d: Any = d, public: Any = public, m: int = m) -> Any:
                u = np.zeros(m)
                prox(at, d, public, u, np.zeros(40 + 12 * m + 3 * m * m))
                return u

            j, width = int(rng.integers(m)), 1e-6
            difference = (taken(v + width * np.eye(m)[j]) - taken(v - width * np.eye(m)[j])) / (
                2 * width
            )
            taken(v)
            kernel.lay_out_cost(step, public, 0)
            kernel.slope_column(step, j)
            np.testing.assert_allclose(step.solved[:m], difference, atol=1e-4)
