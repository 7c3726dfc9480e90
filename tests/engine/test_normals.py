"""The simulation's normals: known bits, exact to rounding, independent and normal."""

from __future__ import annotations

from typing import Any

import mpmath as mp
import numpy as np
from scipy import stats

from sottovoce.engine.compile import load_kernel
from sottovoce.engine.normals import normals, stream_seeds

# Functions that only compiled code calls, called.
CALLED = load_kernel("""
from sottovoce.compiler.module import entry
from sottovoce.engine import normals

@entry("uint64(uint64)")
def mixed(z):
    return normals.mix(z)

@entry("void(uint64[::1], int64, int64, int64, int64, float64[::1])")
def lanes_filled(seeds, done, rounds, pairs, lanes, out):
    normals.fill_lanes(seeds, done, rounds, pairs, lanes, out)

@entry("void(uint64, int64, int64, int64, int64, float64[::1])")
def rounds_filled(seed, done, rounds, pairs, stride, out):
    normals.fill_rounds(seed, done, rounds, pairs, stride, out)
""")
GAMMA = 0x9E3779B97F4A7C15


def splitmix(seed: int, count: int) -> list[int]:
    """SplitMix64 step by step in integers, as published."""
    out, mask = [], 2**64 - 1
    for _ in range(count):
        seed = (seed + GAMMA) & mask
        z = seed
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        out.append(z ^ (z >> 31))
    return out


def test_bits_are_splitmix64() -> None:
    # The first outputs for seed 1234567 in the generator's public test vectors.
    assert splitmix(1234567, 2) == [6457827717110365317, 3203168211198807973]
    state = np.uint64((1234567 + GAMMA) % 2**64)
    assert int(CALLED.mixed(state)) == 6457827717110365317


def test_normals_are_box_muller_of_those_bits_to_rounding() -> None:
    seed = int(stream_seeds(5, range(2, 3))[0])
    got = normals(5, 2, rounds=40, count=6)
    bits = splitmix(seed, 40 * 6)
    with mp.workdps(40):
        for p, z in enumerate(got.reshape(-1, 2)):
            u = 1 - mp.mpf(bits[2 * p] >> 12) / 2**52
            # The turn is cut into quadrants of 2^50 centred on 0, a quarter, a half ...
            turn = mp.mpf(bits[2 * p + 1] >> 12) / 2**52 - mp.mpf(1) / 8
            r = mp.sqrt(-2 * mp.log(u))
            for value, exact in zip(
                z, (r * mp.cos(2 * mp.pi * turn), r * mp.sin(2 * mp.pi * turn)), strict=True
            ):
                assert abs(value - exact) < 1e-15 * max(1, r)


def test_every_way_to_fill_gives_the_same_bits() -> None:
    pairs, rounds, lanes = 5, 37, 32
    seeds = stream_seeds(9, range(lanes))
    wide, narrow = np.empty(rounds * 2 * pairs * lanes), np.empty(2 * pairs * 64)
    CALLED.lanes_filled(seeds, 100, rounds, pairs, lanes, wide)
    by_lane = wide.reshape(rounds, 2 * pairs, lanes)
    for lane in (0, 13, 31):
        CALLED.rounds_filled(seeds[lane], 100, rounds, pairs, 64, narrow)
        np.testing.assert_array_equal(narrow.reshape(-1, 64)[:, :rounds].T, by_lane[:, :, lane])
        alone = normals(9, lane, rounds=100 + rounds, count=2 * pairs)
        np.testing.assert_array_equal(alone[100:], by_lane[:, :, lane])


def test_the_distribution_is_normal_and_a_broken_one_is_noticed() -> None:
    """Kolmogorov-Smirnov and four moments at 1e-5 each: a false alarm in 20,000 seeds."""

    def p_values(z: Any) -> list[Any]:
        n, tests = z.size, [stats.kstest(z, "norm").pvalue]
        for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
            score = (np.mean(z**power) - mean) / np.sqrt(variance / n)
            tests.append(2 * stats.norm.sf(abs(score)))
        return tests

    z = normals(1, 0, rounds=200_000, count=2).ravel()
    assert min(p_values(z)) > 1e-5
    assert min(p_values(z * 1.01)) < 1e-5
    assert min(p_values(np.clip(z, -3, 3))) < 1e-5
    assert np.max(np.abs(z)) > 4


def test_pairs_rounds_and_runs_are_uncorrelated() -> None:
    """Correlations of 2,000 pairs of columns below 6 / sqrt(n): false alarm about 4e-6."""
    n = 4096
    columns = np.column_stack([normals(3, run, rounds=n, count=7) for run in range(9)])
    lagged = np.column_stack([columns[:-1], columns[1:]])
    correlation: Any = np.corrcoef(np.column_stack([lagged, lagged[:, :1] ** 2]).T)
    np.fill_diagonal(correlation, 0.0)
    assert np.max(np.abs(correlation)) < 6 / np.sqrt(n)


def test_seeds_of_streams_depend_on_seed_and_run_alone() -> None:
    np.testing.assert_array_equal(stream_seeds(7, range(10))[4:6], stream_seeds(7, range(4, 6)))
    every = np.concatenate([stream_seeds(s, range(50)) for s in (0, 1, 2**64, 2**100)])
    assert len(np.unique(every)) == every.size
