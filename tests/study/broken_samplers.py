"""Samplers that are wrong in one way each, as fast as simulated ones: an audit must find them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.sampler import STEPS, Integers, Released, Sampler, grid_of

Array = NDArray[np.float64]
Fault = Callable[[Array], Array]
"""What happens to standard normals of shape (rounds, outputs) on their way into releases."""

AHEAD = 4_000


class Faulty(Sampler):
    """Integers on the public grid, as the secure sampler's, with a fault in the noise."""

    def __init__(self, plan: NoisePlan, fault: Fault | None = None, *, seed: int = 1) -> None:
        self._grid = grid_of(plan.sigma[plan.sigma > 0])
        self._fault = fault or honest
        self._generator = np.random.default_rng(seed)
        self._waiting: list[Array] = []

    def release(self, values: ArrayLike) -> Released:
        steps = np.rint(np.asarray(values, dtype=np.float64) / self._grid)
        return self.release_multiples(steps.astype(np.int64))

    def release_multiples(self, multiples: Integers) -> Released:
        if not self._waiting:
            drawn = self._generator.standard_normal((AHEAD, self._grid.size))
            self._waiting = list(self._fault(drawn)[::-1])
        noisy = multiples + np.rint(STEPS * self._waiting.pop()).astype(np.int64)
        return Released(values=noisy * self._grid, multiples=noisy, grid=self._grid)

    def release_modular(self, residues: Integers) -> Released:
        return self.release_multiples(residues)

    def blind(self, residues: Integers) -> Integers:
        noise = self.release_multiples(np.zeros_like(residues)).multiples
        assert noise is not None
        return residues + noise


def honest(z: Array) -> Array:
    return z


def none_at_all(z: Array) -> Array:
    return 0.0 * z


def halved(z: Array) -> Array:
    return 0.5 * z


def a_tenth_less(z: Array) -> Array:
    return 0.9 * z


def clamped_at_3_sigma(z: Array) -> Array:
    return np.clip(z, -3.0, 3.0)


def first_output_bare(z: Array) -> Array:
    z[:, 0] = 0.0
    return z


def last_output_weaker(z: Array) -> Array:
    z[:, -1] *= 0.7
    return z


def two_outputs_correlated(z: Array) -> Array:
    z[:, 1] = 0.6 * z[:, 0] + 0.8 * z[:, 1]
    return z


def correlated_at_lag_997(z: Array) -> Array:
    z[997:] = 0.6 * z[:-997] + 0.8 * z[997:]
    return z


def one_output_correlated_at_lag_997(z: Array) -> Array:
    z[997:, 0] = 0.6 * z[:-997, 0] + 0.8 * z[997:, 0]
    return z


def same_in_pairs_of_rounds(z: Array) -> Array:
    z[1::2] = z[::2]
    return z


def same_again_much_later(z: Array) -> Array:
    z[500:600] = z[:100]
    return z


def same_with_the_other_sign(z: Array) -> Array:
    z[100:200] = -z[:100]
    return z


def same_on_two_outputs(z: Array) -> Array:
    z[:, 0] = z[:, -1]
    return z


def uniform(z: Array) -> Array:
    return np.random.default_rng(2).uniform(-np.sqrt(3), np.sqrt(3), z.shape)


def off_centre(z: Array) -> Array:
    return z + 0.2


FAULTS: tuple[Fault, ...] = (
    none_at_all,
    halved,
    a_tenth_less,
    clamped_at_3_sigma,
    first_output_bare,
    last_output_weaker,
    two_outputs_correlated,
    correlated_at_lag_997,
    one_output_correlated_at_lag_997,
    same_in_pairs_of_rounds,
    same_again_much_later,
    same_with_the_other_sign,
    same_on_two_outputs,
    uniform,
    off_centre,
)
