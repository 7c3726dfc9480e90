"""The default algorithm: agents minimise at home, prices step in units of noise, all average.

Everything the cloud does here is arithmetic on numbers that were released already, and everything
an agent does stays with the agent, so the noise plan's promise is untouched.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf
from typing import Any, ClassVar, final

import numpy as np

from sottovoce.algorithm.newton import minimise_vector
from sottovoce.algorithm.search import minimise
from sottovoce.arguments import real
from sottovoce.errors import InputError
from sottovoce.problem.agents import Array

_OUTGROWN = 3.0
_TINY = 1e-300  # a row without noise that has been 0 so far has no size, and takes no step


def agent_step(
    slope: Any, context: Any, x: Any, lower: Any, upper: Any, coupling: Any, damping: Any
) -> Any:
    """Return ``x_i(k+1) = argmin over X_i of L_i(x) + sqrt(k + k_0) c_i (x - x_i(k))^2 / 2``.

    ``L_i(x) = f_i(x) + sum_own mu_j h_ji(x) + (sum_released mu_j Y_ji) x`` is the agent's own part
    of the Lagrangian: what it knows as a formula, it follows wherever x goes. Of a released entry
    it has only the noisy value at x(k): there ``c_i = sum_released mu_j L_ji`` keeps it near, ever
    nearer as rounds go by, which averages the noise. Without released entries c_i is 0.

    Args:
        slope: ``dL_i/dx``, a function of ``context`` and x that does not decrease.
        context: whatever slope wants besides.
        x: x_i(k).
        lower: lower bound of X_i.
        upper: upper bound of X_i.
        coupling: c_i.
        damping: ``sqrt(k + k_0)``.
    """
    return minimise(slope, context, x, lower, upper, damping * coupling)


def vector_step(
    slope: Any, context: Any, x: Any, lower: Any, upper: Any, coupling: Any, damping: Any
) -> Any:
    """Return the same minimiser for an agent whose state is a vector; all are arrays of size d."""
    return minimise_vector(slope, context, x, lower, upper, damping * coupling)


def cloud_step(
    y_g: Any,
    z: Any,
    scale: Any,
    square: Any,
    drift: Any,
    size: Any,
    spread: Any,
    worth: Any,
    answer: Any,
    sigma: Any,
    coupled: Any,
    largest: Any,
    step: Any,
    coupled_step: Any,
    guess: Any,
    pool: Any,
    plain: Any,
    recent: Any,
    doubt: Any,
    least: Any,
    scatter: Any,
    share: Any,
) -> Any:
    """Return mu_j(k+1) and the cloud's memory of row j: ``z, r, q, ybar, m, v, m s``, the answer.

    ``z <- max(z + c k^-p rho y / s, -r)`` and ``mu = max(0, z)``. s is the size of what was
    released so far, noise or violation; r is the size of multiplier that the row is thought to
    need, so that units of x, of g and of f cancel; ``rho <= r`` is smaller where mu hardly scatters
    around its mean, because steps that are longer than need be bias a curved g.

    Args:
        y_g: y_j(k), the released value of the row.
        z: the multiplier before it is cut off at 0.
        scale: r.
        square: q, the mean of y^2.
        drift: ybar, the recent mean of y.
        size: m, the recent mean of mu.
        spread: v, the recent mean of mu^2.
        worth: ``m s``, in units of the objective.
        answer: the averaged multiplier.
        sigma: the noise on the row, 0 if there is none.
        coupled: 1 if a gradient entry of the row is released, else 0.
        largest: the largest worth of any row.
        step: ``c k^-p``.
        coupled_step: ``c (k + k_0)^-p`` for coupled rows, whose agents follow slowly.
        guess: a worth to begin with, fading.
        pool: the share of the largest worth that a row may need at any time.
        plain: the weight of y in a plain mean, ``1/k``.
        recent: the weight in a recent mean.
        doubt: how many s the drift must exceed before r may rise.
        least: ``rho / r`` is at least this,
        scatter: or this many standard deviations of mu over its mean.
        share: the weight of mu in the answer.
    """
    square = square + plain * (y_g * y_g - square)
    level = np.maximum(np.maximum(np.sqrt(square), sigma), _TINY)
    drift = drift + recent * (y_g - drift)
    wanted = np.maximum(size, np.maximum(pool * largest, guess) / level)
    # It falls at once, but noise alone must not drive it up.
    scale = np.where(drift > doubt * level, wanted, np.minimum(scale, wanted))
    stride = np.where(coupled > 0.0, coupled_step, step)
    # m rho / r, so that nothing is divided by a mean that is 0.
    moves = np.maximum(least * size, scatter * np.sqrt(np.maximum(spread - size * size, 0.0)))
    short = np.where(moves < size, moves / np.maximum(size, _TINY), 1.0)
    z = np.maximum(z + stride * short * scale * (y_g / level), -scale)
    mu = np.maximum(z, 0.0)
    size = size + recent * (mu - size)
    spread = spread + recent * (mu * mu - spread)
    # Rounds in which mu was of another size altogether tell nothing of it.
    answer = np.minimum(answer + share * (mu - answer), _OUTGROWN * size)
    return mu, z, scale, square, drift, size, spread, size * level, answer


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Averaging:
    """Primal-dual averaging in units of the noise, with no step size to choose.

    Attributes:
        gain: c, the first step of a multiplier relative to its scale.
        coupled_gain: c for rows with released gradient entries, whose agents must follow slowly.
        decay: p in ``k^-p``; averaging is efficient for any p in (1/2, 1).
        weight_power: weights of the averaged x and mu grow as ``k^weight_power``.
        burn_in: the share of all rounds that the averages leave out.
        recent_power: weights of the means that r and its evidence are taken from grow as
            ``k^recent_power``.
        evidence: how many standard deviations of its recent mean y must exceed 0 by, for r to rise.
        pool: the share of the largest row's worth that every row's r reaches up to.
        guess: the worth to begin with, in units of the objective.
        guess_decay: it fades as ``k^-guess_decay``,
        guess_rounds: and as ``k^-guess_fade`` besides after so many rounds,
        guess_share: or after this share of all rounds, if that is later: what happens before the
            averages begin costs nothing.
        guess_fade: see above; fast, because the objective may be of another size altogether.
        scatter: steps of mu shrink to so many standard deviations of it, relative to its mean,
        least_decay: but not below a share ``k^-least_decay``.
        patience: k_0 in the weight that keeps agents near their last state, and in the steps of
            coupled rows: a price must not outrun agents who follow slowly.
    """

    gain: float = 4.0
    coupled_gain: float = 2.0
    decay: float = 0.6
    weight_power: float = 0.25
    burn_in: float = 0.1
    recent_power: float = 3.0
    evidence: float = 1.5
    pool: float = 0.3
    guess: float = 5.0
    guess_decay: float = 0.5
    guess_rounds: float = 25.0
    guess_share: float = 0.05
    guess_fade: float = 8.0
    scatter: float = 5.0
    least_decay: float = 0.2
    patience: float = 100.0

    scalars: ClassVar[tuple[str, ...]] = (
        "step", "coupled_step", "guess", "pool", "plain", "recent", "doubt", "least", "scatter",
        "damping", "share",
    )  # fmt: skip
    memory: ClassVar[tuple[str, ...]] = (
        "z",
        "scale",
        "square",
        "drift",
        "size",
        "spread",
        "worth",
        "answer",
    )
    thinks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            real(field.name, value, "finite and not negative", lambda v: 0 <= v < inf)
        for name in ("gain", "coupled_gain", "guess", "guess_rounds"):
            if getattr(self, name) == 0:
                raise InputError(f"{name} must be positive, got {name}=0")
        if not 0.5 < self.decay < 1:
            raise InputError(f"decay must lie in (1/2, 1), got decay={self.decay}")
        if not self.burn_in < 1:
            raise InputError(f"burn_in must lie in [0, 1), got burn_in={self.burn_in}")

    @property
    def agent_step(self) -> Any:
        """The step of an agent with a scalar state."""
        return agent_step

    @property
    def vector_step(self) -> Any:
        """The step of an agent with a vector state."""
        return vector_step

    @property
    def cloud_step(self) -> Any:
        """The step the cloud takes."""
        return cloud_step

    def start(self, mu: Any) -> tuple[Any, ...]:
        """Return ``z = mu``, ``r = inf`` and empty means."""
        zero = np.zeros_like(mu)
        return mu + zero, zero + np.inf, zero, zero, zero, zero, zero, mu + zero

    def schedule(self, k: Any, rounds: int) -> Array:
        """Return the numbers of rounds k of 1..rounds, one row per round."""
        at = np.atleast_1d(np.asarray(k, dtype=np.float64))
        counted = np.maximum(1.0, at - np.floor(self.burn_in * rounds))
        power, recent = self.weight_power, self.recent_power
        numbers = np.empty((at.size, len(self.scalars)))
        numbers[:, 0] = self.gain * at**-self.decay
        numbers[:, 1] = self.coupled_gain * (at + self.patience) ** -self.decay
        first = max(self.guess_rounds, self.guess_share * rounds)
        fade = np.minimum(1.0, first / at) ** self.guess_fade
        numbers[:, 2] = self.guess * at**-self.guess_decay * fade
        numbers[:, 3] = self.pool
        numbers[:, 4] = 1.0 / at
        numbers[:, 5] = (1.0 + recent) / (at + recent)
        # The recent mean of k independent values of size s has this standard deviation.
        numbers[:, 6] = self.evidence * np.sqrt((1.0 + recent) ** 2 / ((1.0 + 2.0 * recent) * at))
        numbers[:, 7] = at**-self.least_decay
        numbers[:, 8] = self.scatter
        numbers[:, 9] = np.sqrt(at + self.patience)
        numbers[:, 10] = (1.0 + power) / (counted + power)
        return numbers
