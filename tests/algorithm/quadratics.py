"""Agents that answer prices in closed form, and the cloud's round compiled, for the tests here."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from sottovoce.algorithm.dual_averaging import (
    Constants,
    DualAveraging,
    Rows,
    memory_size,
)
from sottovoce.algorithm.projection import PublicSet
from sottovoce.engine.turn import load_turn
from sottovoce.problem.agents import Array

CONSTANTS = DualAveraging().constants


@cache
def turn() -> Any:
    return load_turn(DualAveraging(), ()).turn


def step(
    k: int, y: Array, price: Array, memory: Array, rows: Rows, constants: Constants = CONSTANTS
) -> bool:
    """The cloud's round, compiled."""
    given = (np.array(constants), rows.unit, rows.noise, *rows.public)
    return bool(turn()(k, y, price, memory, *given))


class Quadratics:
    """Agents ``q/2 (x - t)^2`` on a box with affine sums."""

    def __init__(self, q: Any, t: Any, rows: Any, lower: Any, upper: Any) -> None:
        self.q, self.t, self.rows = np.asarray(q), np.asarray(t), np.asarray(rows)
        self.lower, self.upper = np.asarray(lower), np.asarray(upper)

    def best(self, force: Array, eps: Array | float, x: Array) -> Array:
        """The minimiser on the line of ``f + force x + eps/2 (. - x)^2``."""
        return np.asarray((self.q * self.t - force + eps * x) / (self.q + eps))

    def curvature(self, x: Array) -> Array:
        return self.q

    def run(
        self,
        public: PublicSet,
        sigma: Array,
        rounds: int,
        *,
        noise: float = 1.0,
        seed: Any = 0,
        constants: Constants = CONSTANTS,
        trace: list[Array] | None = None,
    ) -> tuple[Array, Array, int]:
        rng = np.random.default_rng(seed)
        p = sigma.size
        x, price = np.clip(0.0 * self.t, self.lower, self.upper), np.zeros(p)
        memory, answer, cost = np.zeros(memory_size(p)), np.zeros(x.size), np.zeros(p)
        rows = Rows(sigma, np.full(p, noise), public)
        for k in range(1, rounds + 1):
            y = self.rows @ x + noise * sigma * rng.standard_normal(p)
            share = float(DualAveraging().share(k, rounds, noisy=noise > 0)[0])
            if noise > 0:  # what was released is averaged
                answer, cost = answer + share * (x - answer), cost + share * (price - cost)
            if not step(k, y, price, memory, rows, constants):
                return answer, cost, k
            force = self.rows.T @ price
            eps = constants.theta * np.abs(force) / (np.sqrt(k) * (self.upper - self.lower))
            x = np.clip(self.best(force, eps, x), self.lower, self.upper)
            if not noise > 0:
                answer, cost = x, price.copy()
            if trace is not None:
                trace.append(x)
        return answer, cost, 0


class Logarithms(Quadratics):
    """Agents ``-q log(x + t)``: flows with logarithmic worth."""

    def best(self, force: Array, eps: Array | float, x: Array) -> Array:
        """The positive root of ``eps z^2 + c z = q``, ``z = x + t``."""
        c = force - eps * (x + self.t)
        below = c + np.sqrt(c * c + 4 * eps * self.q)
        return np.asarray(2 * self.q / np.maximum(below, 1e-300) - self.t)

    def curvature(self, x: Array) -> Array:
        return np.asarray(self.q / (x + self.t) ** 2)


def residual(agents: Quadratics, x: Array, price: Array) -> float:
    """How far x is from every agent's own minimiser at these prices."""
    best = agents.best(agents.rows.T @ price, 0.0, x)
    return float(np.max(np.abs(x - np.clip(best, agents.lower, agents.upper))))
