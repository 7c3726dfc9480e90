"""The law of the secure sampler's noise, on few draws: any of a dozen faults shows."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from sottovoce.privacy import sampler as sampler_module
from sottovoce.privacy.sampler import STEPS, SecureSampler

OUTPUTS, RELEASES = 4, 5_000
FALSE_ALARM = 1e-7
"""Of each of eleven comparisons at most, hence about 1e-6 of the test."""


def released() -> NDArray[np.float64]:
    """Noise of many releases, in units of sigma."""
    sampler, zeros = SecureSampler(np.ones(OUTPUTS)), np.zeros(OUTPUTS, dtype=np.int64)
    rounds = [sampler.release_multiples(zeros).multiples for _ in range(RELEASES)]
    return np.array(rounds, dtype=np.float64) / STEPS


def largest_correlation(z: NDArray[np.float64]) -> float:
    """The largest correlation with its own past, over every lag up to half of its length."""
    spectrum = np.abs(np.fft.rfft(z - z.mean(), 2 * z.size)) ** 2
    products = np.fft.irfft(spectrum)[: z.size // 2]
    return float(np.max(np.abs(products[1:])) / products[0])


def test_noise_is_gaussian_independent_fresh_and_on_every_output() -> None:
    z = released()
    flat, far = z.ravel(), stats.norm.isf(FALSE_ALARM / OUTPUTS**2)
    assert stats.kstest(np.abs(flat), stats.halfnorm.cdf).pvalue > FALSE_ALARM
    assert np.abs(z.mean(axis=0)).max() < far / math.sqrt(RELEASES)
    for beyond in (2.5, 3.0):
        count = int(np.sum(np.abs(flat) > beyond))
        assert stats.binom.cdf(count, flat.size, 2 * stats.norm.sf(beyond)) > FALSE_ALARM
    products = z.T @ z / RELEASES
    assert np.abs(products - np.diag(np.diag(products))).max() < far / math.sqrt(RELEASES)
    limit = stats.norm.isf(FALSE_ALARM / flat.size) / math.sqrt(flat.size)
    assert largest_correlation(flat) < limit
    # A draw is 0 with probability 6e-9: two of 20,000 are once in 140 million tests.
    assert np.count_nonzero(flat == 0.0) < 2
    # Two releases share two neighbouring numbers with probability 3e-17 a pair of releases.
    assert len({tuple(row[:2]) for row in z.tolist()}) == RELEASES


def test_both_halves_of_a_split_cloud_add_noise() -> None:
    sampler, zeros = SecureSampler(np.ones(500)), np.zeros(500, dtype=np.int64)
    released = sampler.release_residues(zeros).multiples
    assert released is not None
    for noise in (sampler.blind(zeros), released):
        low, high = stats.chi2.interval(1 - FALSE_ALARM, noise.size)
        assert low < np.square(noise / STEPS).sum() < high


def test_a_pool_that_another_process_filled_is_not_used() -> None:
    sampler = SecureSampler(np.ones(8))
    sampler.refill()
    waiting = set(sampler._pool._draws)
    sampler_module._count_fork()  # what a child does first
    drawn = sampler.release_multiples(np.zeros(8, dtype=np.int64)).multiples
    assert drawn is not None
    assert len(waiting & set(drawn.tolist())) < 3  # by chance: 1,024 draws of 27 bits, 1e-13
