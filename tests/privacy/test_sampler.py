"""The noise: its law, its support, and that no draw is ever used twice."""

from __future__ import annotations

import copy
import json
import math
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from sottovoce.errors import InputError, PrivacyError
from sottovoce.network.round_arithmetic import SimulatedSampler
from sottovoce.privacy import sampler as sampler_module
from sottovoce.privacy.sampler import (
    DISCRETISATION,
    MAX_STEPS,
    STEPS,
    Released,
    SecureSampler,
    grid_of,
    max_release,
    rounding_allowance,
)

Floats = NDArray[np.float64]

SIGMA = np.array([0.01, 1.2559, 3.3, 830.0])
DRAWS = 200_000
FALSE_ALARM = 1e-6
"""Of each statistical test here. With 200,000 draws both tests below miss noise that is 3% too
small with probability under 1e-9: KS on |z| then sees a distance of 0.0145, which is 0.0085 beyond
its threshold of 0.0060; chi-square on 40 bins has mean 390, deviation 39, and threshold 99.
"""


@pytest.fixture(scope="module", params=["secure", "simulated"])
def draws(request: pytest.FixtureRequest) -> Floats:
    """Noise of many releases, in units of sigma."""
    sigma = np.tile(SIGMA, 250)
    sampler = SecureSampler(sigma) if request.param == "secure" else SimulatedSampler(sigma, 7)
    zero = np.zeros(sigma.size)
    rounds = [sampler.release(zero).values / sigma for _ in range(DRAWS // sigma.size)]
    return np.concatenate(rounds)


def ks_p_value(z: Floats) -> float:
    """Kolmogorov-Smirnov on |z|, where a wrong sigma shows twice as much as on z."""
    return float(stats.kstest(np.abs(z), stats.halfnorm.cdf).pvalue)


def chi_square_p_value(z: Floats) -> float:
    """Goodness of fit over 40 bins of equal probability, signs included."""
    edges = stats.norm.ppf(np.linspace(0, 1, 41))
    return float(stats.chisquare(np.histogram(z, edges)[0]).pvalue)


@pytest.mark.parametrize("p_value", [ks_p_value, chi_square_p_value])
def test_noise_is_gaussian_with_the_stated_sigma_and_no_smaller(
    draws: Floats, p_value: Callable[[Floats], float]
) -> None:
    assert p_value(draws) > FALSE_ALARM
    assert p_value(0.97 * draws) < FALSE_ALARM


def check_tails(z: Floats, *, beyond: float) -> None:
    """Compare how many draws lie this far out, on either side, with how many should."""
    for side in (z, -z):
        seen = stats.binom(z.size, stats.norm.sf(beyond))
        count = int(np.sum(side > beyond))
        assert seen.cdf(count) > FALSE_ALARM
        assert seen.sf(count - 1) > FALSE_ALARM


def test_the_tails_of_the_noise_are_there(draws: Floats) -> None:
    for beyond in (2.0, 2.5, 3.0, 3.5):
        check_tails(draws, beyond=beyond)
        with pytest.raises(AssertionError):
            check_tails(np.clip(draws, -beyond, beyond), beyond=beyond)


def largest_correlation(z: Floats) -> float:
    """The largest correlation with its own past, over every lag up to half of its length."""
    spectrum = np.abs(np.fft.rfft(z - z.mean(), 2 * z.size)) ** 2
    products = np.fft.irfft(spectrum)[: z.size // 2]
    return float(np.max(np.abs(products[1:])) / products[0])


def test_noise_is_uncorrelated_at_every_lag(draws: Floats) -> None:
    # 100,000 lags, and twice as many with the squares, which a change of sign does not hide.
    limit = stats.norm.isf(FALSE_ALARM / draws.size) / math.sqrt(draws.size)
    echo = 0.8 * draws + 0.6 * np.roll(draws, 997) * np.where(np.arange(draws.size) % 2, 1, -1)
    assert largest_correlation(draws) < limit
    assert largest_correlation(np.square(draws)) < limit
    assert largest_correlation(np.abs(echo)) > limit
    assert largest_correlation(np.repeat(draws[::2], 2)) > limit


def test_few_draws_are_gaussian_independent_fresh_and_on_every_output() -> None:
    # Eleven comparisons, whose false alarms come to about FALSE_ALARM together.
    outputs, releases, alarm = 4, 5_000, FALSE_ALARM / 10
    sampler, zeros = SecureSampler(np.ones(outputs)), np.zeros(outputs, dtype=np.int64)
    rounds = [sampler.release_multiples(zeros).multiples for _ in range(releases)]
    z = np.array(rounds, dtype=np.float64) / STEPS
    flat, far = z.ravel(), stats.norm.isf(alarm / outputs**2) / math.sqrt(releases)
    assert ks_p_value(flat) > alarm
    assert np.abs(z.mean(axis=0)).max() < far
    for beyond in (2.5, 3.0):
        count = int(np.sum(np.abs(flat) > beyond))
        assert stats.binom.cdf(count, flat.size, 2 * stats.norm.sf(beyond)) > alarm
    products = z.T @ z / releases
    assert np.abs(products - np.diag(np.diag(products))).max() < far
    assert largest_correlation(flat) < stats.norm.isf(alarm / flat.size) / math.sqrt(flat.size)
    # A draw is 0 with probability 6e-9: two of 20,000 are once in 140 million tests.
    assert np.count_nonzero(flat == 0.0) < 2
    # Two releases share two neighbouring numbers with probability 3e-17 a pair of releases.
    assert len({tuple(row[:2]) for row in z.tolist()}) == releases


def test_both_halves_of_a_split_cloud_add_noise() -> None:
    sampler, zeros = SecureSampler(np.ones(500)), np.zeros(500, dtype=np.int64)
    released = sampler.release_modular(zeros).multiples
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


@pytest.mark.slow
def test_two_million_draws_have_their_tails_and_no_memory() -> None:
    sampler = SecureSampler(np.ones(1000))
    z = np.concatenate([sampler.release(np.zeros(1000)).values for _ in range(2_000)])
    for beyond in (3.0, 3.5, 4.0, 4.3):
        check_tails(z, beyond=beyond)
    assert largest_correlation(z) < stats.norm.isf(FALSE_ALARM / z.size) / math.sqrt(z.size)


def added(sampler: SecureSampler, method: str, steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """The noise of one release of these multiples of the grid, by one of the ways to release."""
    if method == "blind":
        return sampler.blind(steps) - steps
    between = steps + 0.4 * (-1.0) ** np.arange(steps.size)  # rounded, neither up nor down
    given = between * sampler.grid if method == "release" else steps
    multiples = getattr(sampler, method)(given).multiples
    return np.asarray(multiples - steps)


RELEASE_METHODS = ["release", "release_multiples", "blind", "release_modular"]


@pytest.mark.parametrize("method", RELEASE_METHODS)
def test_every_draw_is_released_once_as_it_came(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    issued: list[int] = []

    def source(zeros: list[int]) -> list[int]:
        # Distinct integers, up to 100 sigma from zero on both sides.
        first = len(issued)
        fresh = [(-1) ** i * (i * 2**20 + 3**i % 2**20) for i in range(first, first + len(zeros))]
        issued.extend(fresh)
        return fresh

    monkeypatch.setattr(sampler_module, "_discrete_gaussian", lambda: source)
    values = np.array([1e-3, -12.3456, 77.7, 1e5])
    sampler = SecureSampler(SIGMA)
    nearest = np.rint(values / grid_of(SIGMA)).astype(np.int64)
    used: list[int] = []
    for _ in range(1_500):
        used += added(sampler, method, nearest).tolist()
    assert len(set(used)) == len(used) == 6_000
    assert set(used) <= set(issued)
    assert max(used) > 80 * STEPS
    assert min(used) < -80 * STEPS


def test_the_source_of_draws_does_not_saturate() -> None:
    far = [2**40, -(2**40), 2**50, -(2**50)]
    draws = sampler_module._discrete_gaussian()(far)
    assert np.all(np.abs(np.subtract(draws, far)) < 60 * STEPS)  # beyond: never


def could_be_secure(y: Floats, value: float, sigma: float) -> NDArray[np.bool_]:
    """Return whether an integer z with (round(value/grid) + z) grid == y exists."""
    grid = grid_of(sigma)
    z = np.rint(y / grid) - np.rint(value / grid)
    return np.asarray((np.rint(value / grid) + z) * grid == y)


@pytest.mark.parametrize("hypothesis", [0.0, 0.1, 1.0, -7.3])
def test_secure_noise_never_excludes_a_hypothesis(hypothesis: float) -> None:
    released = SecureSampler(np.full(5_000, 3.3)).release(np.full(5_000, 0.1))
    assert could_be_secure(released.values, hypothesis, 3.3).all()
    # the same draws added to the unrounded value would give themselves away
    leaky = 0.1 + (released.values - np.rint(0.1 / grid_of(3.3)) * grid_of(3.3))
    assert not could_be_secure(leaky, hypothesis, 3.3).all()


def test_low_bits_of_secure_outputs_say_nothing_about_the_value() -> None:
    n = 20_000

    def p_value(low_bits: NDArray[np.int64]) -> float:
        return float(stats.chisquare(np.bincount(low_bits, minlength=16)).pvalue)

    sampler = SecureSampler(np.full(n, 3.3))
    for value in (0.0, 0.1):
        multiples = sampler.release(np.full(n, value)).multiples
        assert multiples is not None
        assert p_value(multiples % 16) > FALSE_ALARM
        assert p_value(multiples // 2 * 2 % 16) < FALSE_ALARM


def test_the_discrete_gaussian_is_a_continuous_one_seen_through_a_channel() -> None:
    """Check the constants of the discretisation argument to 50 digits."""
    with mpmath.workdps(50):
        r, big = mpmath.mpf(8), mpmath.mpf(STEPS)
        assert big / mpmath.sqrt(big**2 - r**2) <= mpmath.mpf(DISCRETISATION)
        # both normalisers: r = 8 for the channel, N for the discrete Gaussian itself
        wobble = 3 * mpmath.exp(-2 * mpmath.pi**2 * r**2)
        assert 4 * wobble < mpmath.mpf("1e-547")
    with mpmath.workdps(700):
        for y in ("0", "0.25", "0.5"):
            terms = (mpmath.exp(-((j - mpmath.mpf(y)) ** 2) / 128) for j in range(-600, 601))
            total = mpmath.fsum(terms) / (8 * mpmath.sqrt(2 * mpmath.pi))
            assert abs(total - 1) <= wobble


@given(sigma=st.floats(1e-6, 1e6), fraction=st.floats(-1.0, 1.0, allow_subnormal=False))
def test_rounding_stays_within_three_quarters_of_a_step(sigma: float, fraction: float) -> None:
    value, grid = fraction * max_release(sigma), grid_of(sigma)
    step = np.rint(value / grid)
    with mpmath.workdps(50):
        assert abs(mpmath.mpf(float(step)) - mpmath.mpf(value) / grid) <= 0.75 + 2**-50
        assert 2 * 0.75 * mpmath.mpf(grid) + 2 * mpmath.mpf(1e-9) <= rounding_allowance(sigma, 1e-9)


def test_the_secure_sampler_adds_noise_to_the_rounded_value() -> None:
    # near the reach, where a float32 or a saturating integer would be off by whole sigmas
    value = 12_345_678.9
    sampler = SecureSampler(np.full(10_000, 1.0))
    mean = sampler.release(np.full(10_000, value)).values.mean()
    assert abs(mean - value) < 5.2 / math.sqrt(10_000)  # false alarm below 1e-6


def test_no_draw_of_the_pool_is_used_twice_by_many_threads() -> None:
    sampler = SecureSampler(np.ones(8))
    sampler.refill(100)

    def multiples(_: int) -> list[tuple[int, int]]:
        got = sampler.release(np.zeros(8)).multiples
        assert got is not None
        return list(zip(got[:-1].tolist(), got[1:].tolist(), strict=True))

    with ThreadPoolExecutor(4) as threads:
        rounds = list(threads.map(multiples, range(600)))
    pairs = [pair for each in rounds for pair in each]
    assert len(set(pairs)) == len(pairs)  # false alarm: 4,200^2/2 pairs of 54 random bits, 1e-9


def test_noise_drawn_beside_waits_in_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()
    draws: list[str] = []

    def slow(zeros: list[int]) -> list[int]:
        draws.append(threading.current_thread().name)
        begun.set()
        assert go.wait(10)
        return list(range(len(zeros)))

    monkeypatch.setattr(sampler_module, "_discrete_gaussian", lambda: slow)
    sampler = SecureSampler(np.ones(8))
    for _ in range(3):
        sampler.refill_beside()
    assert begun.wait(10)
    assert len(draws) == 1
    go.set()
    while not sampler._pool._draws:
        time.sleep(0.001)
    sampler.refill_beside()
    released = sampler.release(np.zeros(8)).multiples
    assert released is not None
    assert sorted(released.tolist()) == released.tolist()  # the end of what was drawn, in order
    assert draws == [draws[0]]
    assert draws[0] != threading.current_thread().name


def test_copies_and_pickles_carry_no_noise() -> None:
    sampler = SecureSampler(np.ones(8))
    sampler.refill()
    twins = [
        sampler,
        copy.copy(sampler),
        copy.deepcopy(sampler),
        pickle.loads(pickle.dumps(sampler)),  # noqa: S301
    ]
    seen = {tuple(twin.release(np.zeros(8)).values) for twin in twins}
    assert len(seen) == len(twins)


def run(script: str) -> list[list[int]]:
    """Run a script in a new interpreter; each line it prints is one release's multiples."""
    # newer Pythons warn about forking with threads, which is the very case under test
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return [json.loads(line) for line in done.stdout.splitlines()]


def share(a: list[int], b: list[int]) -> int:
    """Count common draws; by chance three among 40 x 40 have probability below 1e-14."""
    return len(set(a) & set(b))


FRESH = """
import numpy as np
from sottovoce.privacy.sampler import SecureSampler
sampler = SecureSampler(np.ones(40))
print(sampler.release(np.zeros(40)).multiples.tolist())
"""

FORKED = """
import os, signal
import numpy as np
from sottovoce.privacy.sampler import SecureSampler
{before}
sampler = SecureSampler(np.ones(40))
sampler.refill()
for _ in range(2):
    {hold}
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a child that waits for a lost lock must not outlive the test
        print(sampler.release(np.zeros(40)).multiples.tolist(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    {free}
print(sampler.release(np.zeros(40)).multiples.tolist(), flush=True)
"""


def test_noise_never_repeats_across_processes() -> None:
    first, second = run(FRESH), run(FRESH)
    assert share(first[0], second[0]) < 3


@pytest.mark.parametrize(
    ("before", "hold", "free"),
    [
        ("", "", ""),
        ("", "sampler._pool._lock.acquire()", "sampler._pool._lock.release()"),
        ("os.getpid = lambda: 1", "", ""),
    ],
    ids=["plain", "while another thread draws", "with a recycled pid"],
)
def test_parent_and_children_differ_after_a_fork(before: str, hold: str, free: str) -> None:
    one, two, parent = run(FORKED.format(before=before, hold=hold, free=free))
    assert share(one, two) < 3
    assert share(one, parent) < 3
    assert share(two, parent) < 3


def test_a_seed_reproduces_a_simulation_and_only_a_simulation() -> None:
    a, b, c = (SimulatedSampler(SIGMA, seed).release(np.ones(4)).values for seed in (1, 1, 2))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    with pytest.raises(TypeError):
        SecureSampler(SIGMA, 1)  # type: ignore[call-arg]


def test_a_simulation_says_that_it_is_not_private() -> None:
    released = SimulatedSampler(SIGMA, 1).release(np.ones(4))
    assert not released.private
    assert "simulated: not private" in repr(released)
    secure = SecureSampler(SIGMA).release(np.ones(4))
    assert secure.private
    assert "not private" not in repr(secure)


STEPS_BEYOND = [2**51 + 1, -(2**51) - 1, -(2**63), 2**63 - 1]


@pytest.mark.parametrize("value", [1e300, -1e300, 1.001 * max_release(1.0), *STEPS_BEYOND])
def test_what_is_out_of_reach_is_refused_without_being_named(value: float) -> None:
    method = "release_multiples" if isinstance(value, int) else "release"
    with pytest.raises(PrivacyError, match=r"within 2\^25 sigma of zero, output 2") as refusal:
        getattr(SecureSampler([1.0, 1.0]), method)(np.array([0, value]))
    assert repr(value)[:4] not in str(refusal.value)
    assert SecureSampler([1.0]).release([max_release(1.0)]).private
    assert SecureSampler([1.0]).release_multiples(np.array([2**51])).private


def test_multiples_are_whole_numbers_one_for_each_output() -> None:
    for wrong in (np.zeros(4), np.zeros(3, dtype=np.int64), np.zeros((4, 1), dtype=np.int64)):
        with pytest.raises(InputError, match="multiples must be 4 whole numbers"):
            SecureSampler(SIGMA).release_multiples(wrong)  # type: ignore[arg-type]


def test_refusals_never_quote_the_values() -> None:
    for values in (["1.5", "secret"], [1.5, None, 3.0]):
        with pytest.raises(InputError) as refusal:
            SecureSampler([1.0, 1.0]).release(values)  # type: ignore[arg-type]
        assert "secret" not in str(refusal.value)
        assert refusal.value.__cause__ is None
        assert refusal.value.__suppress_context__ or refusal.value.__context__ is None


@pytest.mark.parametrize("bad", [-1e-9, math.nan, math.inf])
def test_a_bad_evaluation_error_is_refused(bad: float) -> None:
    with pytest.raises(InputError, match="evaluation_error must be finite and at least 0"):
        rounding_allowance(1.0, bad)


def test_a_released_value_is_immutable_and_consistent() -> None:
    released = SecureSampler(SIGMA).release(np.ones(4))
    with pytest.raises(ValueError, match="read-only"):
        released.values[0] = 0.0
    with pytest.raises(PrivacyError, match="values must equal multiples"):
        Released(values=np.ones(1), multiples=np.array([3]), grid=np.array([0.5]))
    with pytest.raises(InputError, match="given together"):
        Released(values=np.ones(1), grid=np.ones(1))


def test_released_integers_fit_exactly_into_doubles() -> None:
    assert MAX_STEPS + 100 * STEPS < 2.0**52
