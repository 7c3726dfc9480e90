"""Algorithm 1 of the paper: projected gradient steps with Tikhonov regularisation."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, ClassVar, final

import numpy as np

from sottovoce.algorithm.algorithm import GradientSteps
from sottovoce.arguments import real
from sottovoce.errors import InputError
from sottovoce.problem.groups import Array


def state_step(x: Any, slope: Any, gamma: Any, alpha: Any, lower: Any, upper: Any) -> Any:
    """Return ``x_i(k+1) = P_Xi[x_i - gamma(k) (df_i/dx_i + Y_i' mu + alpha(k) x_i)]``.

    ``slope`` is ``df_i/dx_i (x_i(k)) + Y_i(k)' mu(k)``, with Y_i as the agent knows it.
    """
    return np.minimum(np.maximum(x - gamma * (slope + alpha * x), lower), upper)


def multiplier_step(mu: Any, y_g: Any, gamma: Any, alpha: Any) -> Any:
    """Return ``mu(k+1) = [mu(k) + gamma(k) (y_g(k) - alpha(k) mu(k))]_+``, with noisy y_g of g."""
    return np.maximum(mu + gamma * (y_g - alpha * mu), 0.0)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tikhonov(GradientSteps):
    """The paper's Algorithm 1, ``gamma(k) = gamma_bar k^-c1`` and ``alpha(k) = alpha_bar k^-c2``.

    ``0 < c2 < c1`` and ``c1 + c2 < 1``. Departs from the paper in that k starts at 1: gamma(0) is
    not defined.
    """

    gamma_bar: float = 5e-4
    alpha_bar: float = 0.2
    c1: float = 1 / 3
    c2: float = 1 / 4
    release: ClassVar[str] = "paper"

    def __post_init__(self) -> None:
        for name in ("gamma_bar", "alpha_bar"):
            real(name, getattr(self, name), "positive and finite", lambda v: 0 < v < inf)
        for name in ("c1", "c2"):
            real(name, getattr(self, name), "a finite number", isfinite)
        if not 0 < self.c2 < self.c1:
            raise InputError(f"0 < c2 < c1 must hold, got c1={self.c1}, c2={self.c2}")
        if not self.c1 + self.c2 < 1:
            raise InputError(f"c1 + c2 < 1 must hold, got c1={self.c1}, c2={self.c2}")

    def schedule(self, k: Any) -> Array:
        """Return gamma(k) and alpha(k) for the rounds ``k >= 1``, one row per round."""
        rounds = np.atleast_1d(np.asarray(k, dtype=np.float64))
        steps = np.empty((rounds.size, 2))
        np.multiply(self.gamma_bar, rounds**-self.c1, out=steps[:, 0])
        np.multiply(self.alpha_bar, rounds**-self.c2, out=steps[:, 1])
        return steps
