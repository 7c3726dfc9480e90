from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sottovoce.algorithm import region_prices
from sottovoce.algorithm.dual_averaging import Rows
from sottovoce.algorithm.prices import argmax_price, price_work
from sottovoce.algorithm.projection import PublicSet, project
from sottovoce.problem.agents import Array

PUBLIC = PublicSet(
    np.array([-np.inf] * 6 + [0.5]),
    np.array([np.inf] * 4 + [2.0, np.inf, 0.5]),
    np.array([0, 2, 4]),
    np.array([0, 1, 2, 3]),
    np.array([0.2, -0.1, 0.0, 0.0]),
    np.array([1.5, -1.0]),
    np.zeros(2),
)
"""A disc, a paraboloid, a half-line, a free sum and a point."""


def paraboloid(region: int, u: Array, gradient: Array, hessian: Array) -> float:
    hessian[:, :] = 0.0
    hessian[0, 0], gradient[0], gradient[1] = 2.0, 2.0 * u[0], 1.0
    return float(u[0] * u[0] + u[1] - 3.0)


class Inner:
    """An inner problem drawn from a seed, with rows in units over six decades."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        p = self.size = PUBLIC.lower.size
        root = rng.normal(size=(p, p)) * 10 ** rng.uniform(-1, 1, p)
        self.model = root @ root.T + 0.01 * np.eye(p)
        self.total, self.center = 20 * rng.normal(size=p), rng.normal(size=p)
        unit = 10 ** rng.uniform(-3, 3, p)
        unit[[1, 3]] = unit[[0, 2]]
        self.rows = Rows(unit, np.ones(p), PUBLIC)
        self.recent = 7.0

    def solve(self, price: Array, aim: Array) -> None:
        work = np.empty(price_work(self.size, self.size**2))
        argmax_price(
            self.total, self.recent, self.model.ravel(), self.center, self.rows, paraboloid,
            price, aim, work,
        )  # fmt: skip

    def solved(self) -> tuple[Array, Array]:
        price, aim = np.zeros(self.size), np.zeros(self.size)
        self.solve(price, aim)
        return price, aim

    def optimal(self, price: Array, aim: Array) -> bool:
        """``H (l - c) + A u = S`` with u in C and l normal to C at u, in the units of the sums."""
        left = self.model @ (price - self.center) + self.recent * aim - self.total
        size = np.abs(self.model) @ np.abs(price - self.center) + np.abs(self.total)
        u, force = aim * self.rows.unit, price / self.rows.unit
        out = u[:2] - PUBLIC.centers[:2]
        bent = np.array([2 * u[2], 1.0])
        return bool(
            np.all(np.abs(left) < 1e-8 * size)
            and self._normal(force[:2], out, float(np.linalg.norm(out)) - 1.5)
            and self._normal(force[2:4], bent, u[2] ** 2 + u[3] - 3.0)
            and self._normal(force[4:5], np.ones(1), u[4] - 2.0)
            and abs(price[5]) < 1e-8 * np.max(np.abs(price))
            and abs(u[6] - 0.5) < 1e-9
        )

    def _normal(self, force: Array, gradient: Array, slack: float) -> bool:
        nu = float(force @ gradient / (gradient @ gradient))
        sized = 1e-7 * max(float(np.linalg.norm(force)), 1e-12)
        holds = abs(slack) < 1e-9 and nu >= -sized
        return bool(
            np.linalg.norm(force - max(nu, 0.0) * gradient) < sized and (holds or nu <= sized)
        )


@pytest.mark.parametrize("seed", range(12))
def test_the_conditions_of_optimality_hold_for_discs_paraboloids_and_intervals(seed: int) -> None:
    inner = Inner(seed)
    price, aim = inner.solved()
    assert inner.optimal(price, aim)
    assert not inner.optimal(price * (1 + 1e-4), aim)


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_without_newtons_steps_the_proximal_ones_end_at_the_same_prices(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = Inner(seed)
    price, _ = inner.solved()
    monkeypatch.setattr(region_prices, "_NEWTON", 0)
    monkeypatch.setattr(region_prices, "_STEPS", 100_000)
    slow, _ = inner.solved()
    assert np.allclose(price, slow, rtol=1e-4, atol=1e-5 * np.max(np.abs(price)))


def test_from_a_pair_nearby_a_few_projections_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def counted(*given: Any) -> Any:
        nonlocal count
        count += 1
        return project(*given)

    monkeypatch.setattr(region_prices, "project", counted)
    for seed in range(6):
        inner = Inner(seed)
        price, aim = inner.solved()
        inner.total, count = inner.total * 1.01, 0
        inner.solve(price, aim)
        assert inner.optimal(price, aim)
        assert count <= 6
