"""Agents that answer prices in closed form, under the cloud's kernel, for the tests here."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.algorithm.public_sum import PublicSum
from sottovoce.kernels.cloud_kernel import CloudKernel
from sottovoce.problem.agents import Array

GAINS = DualAveraging()


class Intervals(NamedTuple):
    """A product of intervals C."""

    lower: Array
    upper: Array


def intervals(lower: Any, upper: Any) -> Intervals:
    return Intervals(np.asarray(lower, dtype=float), np.asarray(upper, dtype=float))


def cloud_of(
    public: Intervals,
    unit: Any,
    noisy: float = 1.0,
    gains: DualAveraging = GAINS,
    *,
    planned: bool = True,
) -> CloudKernel:
    noise = np.full(np.size(unit), noisy)
    known = PublicSum(lower=public.lower, upper=public.upper, unit=unit, noisy=noise)
    return CloudKernel(known, gains, planned=planned)


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
        public: Intervals,
        sigma: Array,
        rounds: int,
        *,
        noise: float = 1.0,
        seed: Any = 0,
        gains: DualAveraging = GAINS,
        trace: list[Array] | None = None,
    ) -> tuple[Array, Array, int]:
        rng = np.random.default_rng(seed)
        p = sigma.size
        x, answer = np.clip(0.0 * self.t, self.lower, self.upper), np.zeros(self.t.size)
        cloud = cloud_of(public, sigma, noise, gains, planned=noise > 0)
        for k in range(1, rounds + 1):
            y = self.rows @ x + noise * sigma * rng.standard_normal(p)
            share = float(DualAveraging().share(k, rounds, noisy=noise > 0)[0])
            if noise > 0:  # what was released is averaged
                answer = answer + share * (x - answer)
            if not cloud.round(k, y, share=share):
                return answer, cloud.answer, k
            force = self.rows.T @ cloud.price
            eps = gains.theta * np.abs(force) / (np.sqrt(k) * (self.upper - self.lower))
            x = np.clip(self.best(force, eps, x), self.lower, self.upper)
            if not noise > 0:
                answer = x
            if trace is not None:
                trace.append(x)
        return answer, cloud.answer, 0


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
