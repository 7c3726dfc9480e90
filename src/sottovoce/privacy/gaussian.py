"""Gaussian differential privacy and (epsilon, delta), exactly and never optimistically.

A release is mu-GDP if telling two adjacent inputs apart is at least as hard as telling N(0, 1) from
N(mu, 1) by one draw. It then satisfies (epsilon, delta) for every point of the curve (Balle, Wang)

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu).

Subtracting as written loses every digit when mu is small. With s = epsilon/mu - mu/2, the normal
density phi and the Mills ratio R(x) = (1 - Phi(x))/phi(x), the identity e^epsilon phi(s + mu) =
phi(s) gives the form used here,

    delta = phi(s) [R(s) - R(s + mu)],       R(s) - R(s + mu) = int_s^{s+mu} (1 - x R(x)) dx,

the difference for mu > 1/8 and five Gauss-Legendre nodes below, where its relative remainder stays
under 1e-17: 1 - x R(x) = int_0^inf v e^(-xv - v^2/2) dv is completely monotone, so the remainder is
at most c mu^10 E[v^10], c = 5!^4/(11 10!^3), the mean under that weight being largest at s = -mu/2.

Rounding. Write u = 2^-53. Every result errs towards more noise: s is rounded down (delta falls as s
grows), each Mills ratio carries the relative margin MARGIN = 256 u, and the final logarithm a
margin for its own terms. SciPy's erfcx is within 17 u over the arguments used, rounding its
argument adds 2 s^2 u for s < 0 and u otherwise, and s < -7 is answered by delta = 1; ndtri is
within 5 u. The inverse functions check their answer against this upper bound on delta, so they are
safe whatever the iteration before did. Inside epsilon in [1e-4, 50], delta in [1e-300, 0.5] the
price is less than 1e-9 relative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, TypeVar, cast

import numpy as np
import scipy  # its modules load when they are first used: serving a run needs none of them
from numpy.typing import ArrayLike, NDArray

from sottovoce.errors import InputError

Floats = NDArray[np.float64]
Real = TypeVar("Real", float, Floats)
"""A number or an array; arguments broadcast, and numbers alone give a number."""

SMALLEST_DELTA: Final = 1e-300  # below, doubles lose a probability's digits
LARGEST: Final = 1e100  # largest mu and epsilon taken; the reciprocal is the smallest
UNIT: Final = 2.0**-53
MARGIN: Final = 256 * UNIT
SMALL_MU: Final = 0.125
CERTAIN_BELOW: Final = -7.0
LARGEST_QUANTILE: Final = 1e6
CONVERGED_STEP: Final = 2.0**-26  # Newton squares its error: a step this small was the last
NODES, WEIGHTS = (np.polynomial.legendre.leggauss(5) + np.array([[1.0], [0.0]])) / 2


def delta_of(mu: Real, epsilon: Real | float) -> Real:
    """Return the smallest delta at which mu-GDP gives (epsilon, delta), rounded up.

    delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

    At mu = 0 nothing is revealed, and delta = 0; at epsilon = 0 it is the total variation distance.
    """
    m, e = np.broadcast_arrays(_at_least_zero("mu", mu), _at_least_zero("epsilon", epsilon))
    bound = np.exp(_log_delta(*_tail(np.maximum(m, 1 / LARGEST), e))) * (1 + 4 * UNIT)
    # eight subnormal steps cover everything that underflow can have taken away
    bound = np.minimum(bound + 8 * np.finfo(np.float64).smallest_subnormal, 1.0)
    return cast("Real", _unwrapped(np.where(m == 0, 0.0, bound)))


def epsilon_of(mu: Real, delta: Real | float) -> Real:
    """Return the smallest epsilon >= 0 at which mu-GDP gives (epsilon, delta), rounded up.

    delta_of(mu, epsilon) <= delta

    log delta is concave in epsilon, so Newton's iteration on it falls monotonically from the start
    mu K + mu^2/2, K = Q^-1(delta), where the first term of delta alone is already small enough.
    """
    m, d = np.broadcast_arrays(_at_least_zero("mu", mu), _probability("delta", delta))
    hidden = m == 0
    m, target = np.maximum(m, 1 / LARGEST), _log_below(d)
    epsilon = np.maximum(m * _upper_quantile(d) + m * m / 2, 0.0)
    for _ in range(64):
        s, gap = _tail(m, epsilon)
        step = (_log_delta(s, gap) - target) * gap / _mills(s + m)
        before, epsilon = epsilon, np.maximum(epsilon + step, 0.0)
        if np.all(np.abs(epsilon - before) <= CONVERGED_STEP * m):
            break
    more = UNIT
    while np.any(exceeding := _log_delta(*_tail(m, epsilon)) > target):
        epsilon, more = np.where(exceeding, epsilon + more * (epsilon + m), epsilon), 2 * more
    return cast("Real", _unwrapped(np.where(hidden, 0.0, epsilon)))


def gdp_mu_of(epsilon: Real, delta: Real | float) -> Real:
    """Return the largest mu for which mu-GDP gives (epsilon, delta), rounded down.

    delta_of(mu, epsilon) <= delta

    Newton's iteration on log delta against log mu climbs from 1/kappa, which is always too small.
    """
    e, d = np.broadcast_arrays(_positive("epsilon", epsilon), _probability("delta", delta))
    target = _log_below(d)
    mu = 1 / _kappa(e, d)
    for _ in range(64):
        s, gap = _tail(mu, e)
        step = np.clip((target - _log_delta(s, gap)) * gap / mu, -4.0, 4.0)
        mu = mu * np.exp(step)
        if np.all(np.abs(step) <= CONVERGED_STEP):
            break
    less = UNIT
    while np.any(exceeding := _log_delta(*_tail(mu, e)) > target):
        mu, less = np.where(exceeding, mu * (1 - less), mu), 2 * less
    return cast("Real", _unwrapped(mu))


def exact_sigma(epsilon: float, delta: float) -> float:
    """Return the least noise per unit of sensitivity that gives (epsilon, delta), rounded up.

    sigma = 1/mu,    delta_of(mu, epsilon) = delta

    The paper uses `kappa` instead, which is always larger.
    """
    return math.nextafter(1 / gdp_mu_of(epsilon, delta), math.inf)


def kappa(epsilon: float, delta: float) -> float:
    """Return the paper's noise per unit of sensitivity, rounded up.

    kappa = (K + sqrt(K^2 + 2 epsilon)) / (2 epsilon),    K = Q^-1(delta)

    It solves s = K, that is, it drops the negative term of delta; so kappa >= `exact_sigma`.
    """
    return float(_kappa(_positive("epsilon", epsilon), _probability("delta", delta)))


@dataclass(frozen=True, slots=True)
class Attacker:
    """The best possible attacker on a mu-GDP release, who knows all but which of two inputs."""

    mu: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", float(_at_least_zero("mu", self.mu)))

    @property
    def advantage(self) -> float:
        """2 Phi(mu/2) - 1, the most by which hits exceed false alarms, rounded up."""
        return min(float(scipy.special.erf(self.mu / math.sqrt(8))) * (1 + MARGIN), 1.0)

    @property
    def equal_error_rate(self) -> float:
        """Phi(-mu/2), both errors when they are made equal, rounded down: 1/2 is blind guessing."""
        return float(_phi_below(np.asarray(-self.mu / 2), np.asarray(self.mu)))

    def miss_rate(self, false_alarm: Real) -> Real:
        """Return the least rate of misses at a rate of false alarms, rounded down.

        beta(alpha) = Phi(Phi^-1(1 - alpha) - mu)
        """
        alpha = _within("false_alarm", false_alarm, 0.0, 1.0, "lie in [0, 1]")
        quantile = np.clip(-scipy.special.ndtri(alpha), -LARGEST_QUANTILE, LARGEST_QUANTILE)
        return cast("Real", _unwrapped(_phi_below(quantile - self.mu, np.abs(quantile) + self.mu)))


def _tail(mu: Floats, epsilon: Floats) -> tuple[Floats, Floats]:
    """Return s = epsilon/mu - mu/2 rounded down, and R(s) - R(s + mu) rounded up."""
    ratio = epsilon / mu
    s = np.clip(ratio - mu / 2 - 4 * UNIT * (ratio + mu / 2), CERTAIN_BELOW - 1, 1e150)
    near, far = _mills(s), _mills(s + mu)
    difference = (near - far) + MARGIN * (near + far)
    return s, np.where(mu <= SMALL_MU, _integral(s, np.minimum(mu, SMALL_MU)), difference)


def _integral(s: Floats, mu: Floats) -> Floats:
    """Return int_s^{s+mu} (1 - x R(x)) dx for mu <= SMALL_MU, rounded up."""
    mean = np.zeros_like(s)
    for node, weight in zip(NODES, WEIGHTS, strict=True):
        x = s + node * mu
        x_r = x * _mills(x)
        mean += weight * ((1 - x_r) + MARGIN * (1 + np.abs(x_r)))
    return mu * mean


def _mills(x: Floats) -> Floats:
    """Return R(x) = (1 - Phi(x))/phi(x)."""
    ratio: Floats = math.sqrt(math.pi / 2) * scipy.special.erfcx(x * math.sqrt(0.5))
    return ratio


def _log_delta(s: Floats, gap: Floats) -> Floats:
    """Return log(phi(s) gap) rounded up; from s < -7 on, where delta > 1 - 2e-12, log 1."""
    square, log_gap = s * s, np.log(gap)
    value = log_gap - square / 2 - math.log(2 * math.pi) / 2
    margin = 4 * UNIT * (square + np.abs(log_gap) + 16)
    return np.where(s < CERTAIN_BELOW, 0.0, np.minimum(value + margin, 0.0))


def _log_below(delta: Floats) -> Floats:
    log = np.log(delta)
    return log - 4 * UNIT * (1 - log)


def _upper_quantile(delta: Floats) -> Floats:
    """Return K = Q^-1(delta), Q = 1 - Phi, rounded up."""
    k: Floats = -scipy.special.ndtri(delta)
    return k + 32 * UNIT * (1 + np.abs(k))


def _kappa(epsilon: Floats, delta: Floats) -> Floats:
    k = _upper_quantile(delta)
    root = np.sqrt(k * k + 2 * epsilon)
    # for k < 0 (delta > 1/2) the sum k + root would cancel; 2 epsilon = (root - k) (root + k)
    value = np.where(k >= 0, (k + root) / (2 * epsilon), 1 / (root - np.minimum(k, 0.0)))
    return value * (1 + 16 * UNIT)


def _phi_below(x: Floats, scale: Floats) -> Floats:
    """Return Phi(x) rounded down, x being known up to MARGIN scale."""
    below: Floats = scipy.special.ndtr(x - MARGIN * scale) * (1 - 16 * MARGIN)
    return below


def _unwrapped(array: Floats) -> float | Floats:
    return float(array) if array.ndim == 0 else array


def _at_least_zero(name: str, value: ArrayLike) -> Floats:
    return _within(name, value, 0.0, LARGEST, f"lie in [0, {LARGEST:g}]")


def _positive(name: str, value: ArrayLike) -> Floats:
    return _within(name, value, 1 / LARGEST, LARGEST, f"be positive and at most {LARGEST:g}")


def _probability(name: str, value: ArrayLike) -> Floats:
    array = _within(name, value, math.ulp(0.0), 1 - UNIT, "lie in (0, 1)")
    return _within(name, array, SMALLEST_DELTA, 1 - UNIT, f"be at least {SMALLEST_DELTA:g}")


def _within(name: str, value: ArrayLike, low: float, high: float, requirement: str) -> Floats:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a number or an array of numbers") from None
    inside = (low <= array) & (array <= high)  # false for NaN
    if not np.all(inside):
        first = float(array[~inside].flat[0])
        raise InputError(f"{name} must {requirement}, got {name}={first!r}")
    return array
