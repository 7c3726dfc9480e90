"""Statistical tests of released noise, on residuals ``(released - F(x)) / sigma``.

Under the claim residuals are independent standard normal numbers, whatever the closed loop did with
them. Every test gives a probability that noise as stated looks so odd, already multiplied by the
number of tests (Bonferroni): noise as stated fails with probability ``FALSE_ALARM`` at most.
Residuals come from an audit's games, or from the store of a run whose cloud kept what agents sent.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np
import scipy.fft
from scipy.special import chdtr, chdtrc, ndtr, ndtri, pdtrc
from scipy.stats import binom, kstest

from sottovoce.database import address_of
from sottovoce.errors import InputError
from sottovoce.network.config import algorithm_of
from sottovoce.network.protocol.codec import unpack, unpack_whole
from sottovoce.network.setup import fallbacks_of, make_config, parties_of
from sottovoce.network.store import Said, transcript
from sottovoce.privacy.feasibility import default_fallbacks
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.sampler import STEPS, Integers, grid_of
from sottovoce.privacy.statement import down
from sottovoce.privacy.trust import SplitCloud
from sottovoce.problem.groups import Array, lower_bounds
from sottovoce.study.released_outputs import agent_columns, released_outputs
from sottovoce.tables import PlainTable

FALSE_ALARM = 5e-5  # how often noise as stated fails the tests, at most

_LEAST_ROUNDS = 100  # below, the tests have no power
_TAILS = (3.0, 5.0)  # sigmas beyond which draws are counted
_LAG_SHARE = 0.9  # of the rounds; beyond, hardly a product is left to add up
_PAIRWISE = 5e7  # outputs^2 rounds up to which every pair of outputs is compared at every lag
_PAIR_LAGS = 64  # at which pairs of more outputs than that are compared
_NOT_FINITE = 1e6  # in sigmas: stands for a residual that is not finite, and fails by far
_EQUAL = 1.0 / (np.sqrt(np.pi) * STEPS)  # chance that two draws are equal in absolute value


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One property of the noise, its most extreme figure in words, and its p-value.

    ``chance`` is the probability of a figure as extreme for noise as stated, all tests considered.
    """

    name: str
    observed: str
    chance: float

    @property
    def passed(self) -> bool:
        """Whether noise as stated may well show this figure."""
        return self.chance > FALSE_ALARM


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseChecks:
    """The tests of residuals of so many ``outputs`` in so many ``rounds``.

    A clamp nearer than ``depth``, in sigmas, is detected.
    """

    outputs: int
    rounds: int
    depth: float
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every property is as stated."""
        return all(check.passed for check in self.checks)

    @property
    def draws(self) -> int:
        """The number of draws of noise that were tested."""
        return self.outputs * self.rounds

    def table(self, title: str = "The noise that was released") -> PlainTable:
        """Return every property of the noise with its p-value."""
        return PlainTable(
            title=f"{title}: {self.draws:,} draws in {self.rounds:,} rounds, tails seen to "
            f"{down(self.depth, 2)} sigma, false alarms below {FALSE_ALARM:g}",
            columns=("", "observed", "chance", ""),
            rows=tuple(
                (check.name, check.observed, f"{check.chance:.2g}", verdict(check.passed))
                for check in self.checks
            ),
        )

    def data(self) -> dict[str, object]:
        """Return everything as plain values for JSON."""
        return asdict(self) | {"passed": self.passed}


def verdict(passed: bool) -> str:
    """Return the result of a test as a table has it."""
    return "holds" if passed else "BROKEN"


def check_noise(residuals: Array) -> NoiseChecks:
    """Test residuals of shape (rounds, outputs), in the order of their release."""
    rounds, outputs = residuals.shape
    if rounds < _LEAST_ROUNDS:
        raise InputError(f"noise must be judged by at least {_LEAST_ROUNDS} rounds, got {rounds}")
    finite = bool(np.isfinite(residuals).all())
    z = np.clip(np.nan_to_num(residuals, nan=_NOT_FINITE), -_NOT_FINITE, _NOT_FINITE)
    tests = [
        _test_mean(z), _test_variance(z), *(_test_tail(z, sigmas) for sigmas in _TAILS),
        _test_largest(z), _test_distribution(z), _test_correlation(z), *_test_repeats(z),
    ]  # fmt: skip
    tests.append(("finite", "yes" if finite else "no", float(finite)))
    checks = tuple(
        Check(name=name, observed=text, chance=min(1.0, chance * len(tests)))
        for name, text, chance in tests
    )
    beyond = min(0.5, -np.log(FALSE_ALARM / len(checks) / 2.0) / z.size)
    return NoiseChecks(
        outputs=outputs, rounds=rounds, depth=float(-ndtri(beyond / 2.0)), checks=checks
    )


_Test = tuple[str, str, float]
"""A property, its most extreme figure in words, and the probability of such a figure."""


def _test_mean(z: Array) -> _Test:
    scores = z.mean(axis=0) * np.sqrt(len(z))
    worst = float(scores[np.argmax(np.abs(scores))])
    chance = z.shape[1] * 2.0 * float(ndtr(-abs(worst)))
    return "mean", f"{worst:+.2f} standard errors", chance


def _most_extreme(
    z: Array, by_output: Array, tails: Callable[[Array, Array], Any]
) -> tuple[Any, int, float]:
    """Of each output's total and the total of all the most extreme, its draws and its p-value."""
    totals = np.append(by_output, by_output.sum())
    draws = np.append(np.full(z.shape[1], len(z)), z.size)
    chances = 2.0 * np.minimum(*tails(totals, draws))
    worst = int(np.argmin(chances))
    return totals[worst], draws[worst], totals.size * float(chances[worst])


def _test_variance(z: Array) -> _Test:
    """The sum of n squares is chi-square."""
    total, draws, chance = _most_extreme(
        z, np.square(z).sum(axis=0), lambda sums, n: (chdtr(n, sums), chdtrc(n, sums))
    )
    return "standard deviation", f"{np.sqrt(total / draws):.4f} of sigma", chance


def _test_tail(z: Array, sigmas: float) -> _Test:
    """How many draws lie beyond a number of sigmas."""
    share = 2.0 * float(ndtr(-sigmas))
    count, draws, chance = _most_extreme(
        z, (np.abs(z) > sigmas).sum(axis=0),
        lambda counts, n: (binom.cdf(counts, n, share), binom.sf(counts - 1, n, share)),
    )  # fmt: skip
    return f"beyond {sigmas:g} sigma", f"{count:,} draws, {draws * share:.3g} expected", chance


def _test_largest(z: Array) -> _Test:
    """The largest of all: a clamp shows in it as soon as draws reach it."""
    largest = float(np.abs(z).max())
    outside = z.size * np.log1p(-2.0 * ndtr(-largest)) if largest > 0 else -np.inf
    chance = 2.0 * float(min(np.exp(outside), -np.expm1(outside)))
    return "largest draw", f"{largest:.2f} sigma", chance


def _test_distribution(z: Array) -> _Test:
    """Kolmogorov and Smirnov: each output, and all together."""
    tests = [kstest(sample, ndtr, method="exact") for sample in (*z.T, z.ravel())]
    worst = min(tests, key=lambda test: float(test.pvalue))
    text = f"{worst.statistic:.4f} from the normal curve"
    return "distribution", text, len(tests) * float(worst.pvalue)


def _test_correlation(z: Array) -> _Test:
    """Sums of products of two outputs at a lag, over all outputs and lags."""
    least, tests, text = 1.0, 0, "none"
    for sums, terms, lags in _lagged_products(z):
        chances = _bound_chance(np.abs(sums), terms)
        tests += chances.size
        worst = int(np.argmin(chances))
        if chances.flat[worst] < least:
            least = float(chances.flat[worst])
            count, lag = (np.broadcast_to(n, chances.shape).flat[worst] for n in (terms, lags))
            text = f"{sums.flat[worst] / count:+.3f} at lag {lag:,}"
    return "correlation", text, tests * least


def _lagged_products(z: Array) -> Iterator[tuple[Array, Any, Any]]:
    """Yield sums of lagged products, how many were added up, and the lags."""
    rounds, outputs = z.shape
    all_pairs = outputs**2 * rounds <= _PAIRWISE
    waves, size = _transform(z)
    lags = np.arange(1, int(_LAG_SHARE * rounds) + 1)[:, np.newaxis]
    for o in range(outputs):
        others = slice(None) if all_pairs else slice(o, o + 1)
        mixed = scipy.fft.irfft(np.conj(waves[:, o : o + 1]) * waves[:, others], size, axis=0)
        yield mixed[lags[:, 0]], rounds - lags, lags
    for lag in range(1 if all_pairs else min(_PAIR_LAGS, rounds - 1)):
        matrix = z[lag:].T @ z[: rounds - lag]
        pairs = np.triu_indices(outputs, 1) if lag == 0 else ~np.eye(outputs, dtype=bool)
        if matrix[pairs].size:
            yield matrix[pairs], rounds - lag, lag
    if outputs > 1:  # in the order of drawing, wherever rounds begin
        wave, size = _transform(z.reshape(-1, 1))
        offsets = np.arange(1, int(_LAG_SHARE * z.size) + 1)
        product = scipy.fft.irfft(np.square(np.abs(wave[:, 0])), size)
        yield product[offsets], z.size - offsets, offsets


def _transform(z: Array) -> tuple[Any, int]:
    size = int(scipy.fft.next_fast_len(2 * len(z), real=True))
    return scipy.fft.rfft(z, size, axis=0), size


def _bound_chance(total: Array, terms: Any) -> Array:
    """Bound the chance that n lagged products of standard normals sum to ``total`` or beyond.

    Chernoff: ``2 exp(-theta t) E exp(theta sum)``. Products that share a draw form paths, and a
    path of n products has ``E exp(theta sum) = (D_n)^(-1/2)`` with
    ``D_n = (r^(n+2) - q^(n+2)) / (r - q) >= r^n``, where r and q are the roots of
    ``r + q = 1, r q = theta^2``, r being the larger; independent products are paths of one each.
    Any theta in (0, 1/2) is valid; this one is near the best.
    """
    mean = total / terms
    theta = mean / np.sqrt(1.0 + 4.0 * np.square(mean)) * (1.0 - 1e-9)
    root = (1.0 + np.sqrt(1.0 - 4.0 * np.square(theta))) / 2.0
    exponent = -theta * total - terms / 2.0 * np.log(root)
    return np.asarray(np.minimum(1.0, 2.0 * np.exp(exponent)))


def _test_repeats(z: Array) -> Iterator[_Test]:
    """Draws that were used twice, with either sign: more equal ones than by chance.

    Honest draws are integers on a grid and sometimes repeat; two in a row practically never do.
    """
    steps = np.abs(np.rint(z.ravel() * STEPS)).astype(np.uint64)
    hashes = steps[:-1] * np.uint64(0x9E3779B97F4A7C15) + steps[1:]  # of two draws in a row
    for name, values, equal in (
        ("repeated draws", steps, _EQUAL),
        ("repeated pairs", hashes, _EQUAL**2 + 2.0**-64),
    ):
        repeats = np.unique(values, return_counts=True)[1].astype(np.float64)
        count = int((repeats * (repeats - 1.0) / 2.0).sum())  # pairs of equal values
        expected = values.size * (values.size - 1) / 2.0 * equal
        # Three equal draws are three equal pairs: a little more spread than Poisson's.
        excess = expected + max(0.0, count - expected) / np.sqrt(1.0 + values.size * equal)
        text = f"{count:,}, {expected:.3g} expected"
        yield name, text, 1.0 if count == 0 else float(pdtrc(np.ceil(excess) - 1.0, expected))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAudit:
    """The noise of a store that holds ``committed`` of its run's ``rounds``."""

    committed: int
    rounds: int
    noise: NoiseChecks

    @property
    def finished(self) -> bool:
        """Whether the run has had all its rounds."""
        return self.committed == self.rounds

    @property
    def title(self) -> str:
        """The title of the noise's table."""
        if self.finished:
            return "The noise of the finished run"
        return f"The noise of a run that is not finished, {self.committed:,} of {self.rounds:,}"

    def data(self) -> dict[str, object]:
        """Return everything as plain values for JSON."""
        return asdict(self) | {
            "noise": self.noise.data(),
            "finished": self.finished,
            "passed": self.noise.passed,
        }


def audit_store(plan: NoisePlan, path: str | os.PathLike[str]) -> StoreAudit:
    """Test the noise of every round in a store that kept what agents sent under a plan.

    The result holds nothing that they sent: residuals are the noise alone.

    Raises:
        InputError: the store belongs to another plan, did not keep what was sent, or its noise was
            simulated.
        StoreError: it is not a store, or damaged.
    """
    run, name = transcript(path), address_of("store", path).name
    config = run.config
    if config is None or run.said is None:
        raise InputError(
            f"{name} must hold what agents sent in all its rounds, got a store without: only a "
            "cloud started with --keep-states keeps it"
        )
    if isinstance(plan.trust, SplitCloud) or config.promise.get("trust", "one") == "split":
        raise InputError(
            f"{name} must be a trusted cloud's store, got one of a split cloud: what agents sent "
            "is masked, and no half can tell noise from contributions; audit with --view instead"
        )
    if config.noise != "secure":
        raise InputError(f"{name} must hold secure noise, got a simulated run: nothing is private")
    expected = make_config(
        plan,
        algorithm_of(config.algorithm),
        rounds=config.rounds,
        noise=config.noise,
        run_id=config.run_id,
    )
    if (expected.problem, expected.plan) != (config.problem, config.plan):
        raise InputError(
            f"{name} must belong to this plan, got a run of another: give the options and the "
            "folder that its cloud was started with"
        )
    residuals = _residuals_of_sums if plan.release is None else _residuals_of_values
    checks = check_noise(residuals(plan, run.said, run.multiples))
    return StoreAudit(committed=len(run.said), rounds=config.rounds, noise=checks)


def _residuals_of_sums(
    plan: NoisePlan, contributions: tuple[Said, ...], multiples: Integers
) -> Array:
    """Integers minus integers: the draws themselves."""
    parties, fallbacks = parties_of(plan), fallbacks_of(plan)
    noisy, everybody = np.flatnonzero(plan.sigma > 0), range(1, plan.cloud.agents + 1)
    sums: dict[tuple[int, ...], Integers] = {}
    draws = multiples.copy()
    for row, parts in zip(draws, contributions, strict=True):
        absent = frozenset(everybody).difference(*(agents for agents, _ in parts))
        row -= fallbacks(absent)[noisy]
        for agents, data in parts:
            if agents not in sums:
                sums[agents] = np.searchsorted(noisy, parties(agents).sums)
            row[sums[agents]] -= unpack_whole(data)
    return np.asarray(draws / STEPS)


def _residuals_of_values(
    plan: NoisePlan, contributions: tuple[Said, ...], multiples: Integers
) -> Array:
    """A release of states, from which F is computed."""
    outputs = released_outputs(plan)
    fallback = lower_bounds(default_fallbacks(plan.domain))  # of absent agents
    states = np.tile(fallback, (len(contributions), 1))
    for x, parts in zip(states, contributions, strict=True):
        for agents, data in parts:
            columns = [np.r_[agent_columns(plan.cloud, agent)] for agent in agents]
            x[np.concatenate(columns)] = unpack(data)
    return outputs.standardised(states, multiples * grid_of(outputs.sigma))
