"""Noise that is secure: integers on a public grid, from the operating system's entropy.

Output o with noise sigma_o lives on the public grid

    grid_o = sigma_o / N,    N = 2^26,

and a value v is released as the integer round(v/grid_o) + Z. Whoever knows v rounds it: of a sum
each agent its own contribution, whose integers add up without an error. Z is an exact draw from the
discrete Gaussian P(Z = z) = exp(-z^2 / 2N^2) / sum_j exp(-j^2 / 2N^2) on all integers (OpenDP,
whose bits come from OpenSSL's generator: the operating system seeds it, again after a fork). Every
integer is possible for every v, so no output excludes a hypothesis. N is the same for all outputs,
hence one pool of draws serves them all, drawn before any value is known. The division by 2^26 is
exact; multiplying the released integer (below 2^52) by grid_o afterwards is one correctly rounded
product, the same on every machine, and post-processing.

What the integers cost, compared with N(v, sigma_o^2):

1. Rounding. float64 gives round(v/grid_o) within 1/2 + 2^-53 |v/grid_o| of v/grid_o, at most 3/4 as
   |v/grid_o| <= 2^51 is checked; if v itself is only computed within a known evaluation error, two
   adjacent inputs move apart by at most `rounding_allowance` more. It is added to the sensitivity.
2. Discreteness. Take Y ~ N(k, N^2 - r^2), k an integer and r = 8, then an integer X with
   probability rho_r(X - Y) / sum_j rho_r(j - Y), where rho_r(t) = exp(-t^2 / 2r^2). X is computed
   from Y without knowing k, so it is as private as Y: a shift of k is (shift/sqrt(N^2 - r^2))-GDP,
   and sqrt(N^2 - r^2) >= N / DISCRETISATION with DISCRETISATION = 1 + 2^-46. By Poisson summation
   the sum in the denominator is r sqrt(2 pi) (1 +- 3 exp(-2 pi^2 r^2)) whatever Y is, so P(X = x)
   is proportional to exp(-(x - k)^2 / 2N^2) up to a factor within exp(+-1e-547): X is the discrete
   Gaussian. Being pointwise, the factor multiplies over a whole adaptive transcript: after fewer
   than 1e40 draws the release is (epsilon + 2e-500, delta (1 + 1e-500)) wherever the Gaussian one,
   with mu multiplied by DISCRETISATION, is (epsilon, delta). `gaussian.delta_of` rounds up by more.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, Protocol, final, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.arguments import array as numbers
from sottovoce.errors import InputError, PrivacyError

if TYPE_CHECKING:
    from opendp.mod import Measurement

    from sottovoce.privacy.gaussian import Floats, Real  # SciPy is large: agents do without


Integers = NDArray[np.int64]

STEPS: Final = 2.0**26  # N, grid steps per standard deviation; public, agents round to it too
DISCRETISATION: Final = 1.0 + 2.0**-46  # on mu: the discrete Gaussian for the continuous one
MAX_STEPS: Final = 2.0**51  # grid steps from zero beyond which a value is refused
MAX_RELEASED: Final = 2**52  # largest multiple released: its product with the grid is rounded once
BATCH: Final = 1024  # draws at once, at least: a call costs as much as some hundred draws
ROUNDS_AHEAD: Final = 64  # releases whose noise is drawn ahead


def grid_of(sigma: Real) -> Real:
    """Return the public grid of outputs with noise sigma.

    grid = sigma / 2^26
    """
    _check_sigma(sigma)
    return sigma / STEPS


def max_release(sigma: Real) -> Real:
    """Return the largest absolute value the secure sampler releases with noise sigma.

    2^51 grid = 2^25 sigma

    A refusal in the middle of a run would itself reveal something: check the certified range of
    every output against this before the first round.
    """
    return grid_of(sigma) * MAX_STEPS


def rounding_allowance(sigma: Real, evaluation_error: Real | float) -> Real:
    """Return the l2 shift to add to the sensitivity of one output in one round.

    2 grid + 2 evaluation_error,    grid = sigma / 2^26

    Each of two adjacent values is off by at most 3/4 of a grid step plus the evaluation error; the
    rest of the second step covers the rounding of this sum. Over T rounds the shifts
    a_k <= b_k + c satisfy ||a|| <= ||b|| + sqrt(T) c (Minkowski). ``evaluation_error`` bounds
    |computed output - exact output| at every admissible input.
    """
    if not np.all((np.asarray(evaluation_error) >= 0) & np.isfinite(evaluation_error)):
        raise InputError(f"evaluation_error must be finite and at least 0, got {evaluation_error}")
    return 2 * grid_of(sigma) + 2 * evaluation_error * (1 + 2.0**-50)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Released:
    """Outputs of one round as the world may see them; only `privacy` turns raw arrays into these.

    Receivers compute with ``values = multiples * grid``; the integers are transmitted. Both factors
    are None in a simulation.
    """

    values: Floats
    multiples: Integers | None = None
    grid: Floats | None = None

    def __post_init__(self) -> None:
        if (self.multiples is None) != (self.grid is None):
            raise InputError("multiples and grid must be given together or not at all")
        if self.multiples is not None and self.grid is not None:
            whole = self.multiples * self.grid
            if self.values.tobytes() != whole.tobytes():
                raise PrivacyError("values must equal multiples * grid: they came from elsewhere")
        for name, kind in (("values", "f8"), ("multiples", "i8"), ("grid", "f8")):
            if getattr(self, name) is not None:
                copy = np.array(getattr(self, name), dtype=kind)
                copy.setflags(write=False)
                object.__setattr__(self, name, copy)

    @property
    def private(self) -> bool:
        """Whether the noise is secure; False for a simulation."""
        return self.multiples is not None

    def __repr__(self) -> str:
        kind = "private" if self.private else "simulated: not private"
        return f"Released({self.values.size} outputs, {kind})"


class Sampler(ABC):
    """Turns raw outputs into released ones by adding noise of a fixed sigma per output."""

    @abstractmethod
    def release(self, values: ArrayLike) -> Released:
        """Return values + noise, one independent draw of standard deviation sigma per output.

        A value that is not finite or out of reach is refused. No message contains a value.
        """

    @abstractmethod
    def release_multiples(self, multiples: Integers) -> Released:
        """Return the same for values that are whole multiples of their outputs' grids.

        Whoever knows a value rounds it; sums of such numbers are exact.
        """


@runtime_checkable
class ResidueSampler(Protocol):
    """Adds a split cloud's noise to sums that are known modulo 2^64 alone."""

    def release_modular(self, residues: Integers) -> Released:
        """Return the sums with noise, on the grid."""


@final
class SecureSampler(Sampler):
    """Discrete Gaussian noise on the public grid, from the operating system's entropy.

    There is no seed. Draws wait in a pool, each is used once, and none survives a fork, a copy or
    a pickle. Safe to share between threads.

    Args:
        sigma: standard deviation of each output, positive; outputs that need no noise are public
            constants and do not belong here.
    """

    def __init__(self, sigma: ArrayLike) -> None:
        self._sigma = _checked_sigma(sigma)
        self.grid = grid_of(self._sigma)  # of each output, public
        for array in (self._sigma, self.grid):
            array.setflags(write=False)
        self._pool = _Pool()

    def draw_ahead(self) -> None:
        """Draw the next release's noise now, and that of the releases after it meanwhile."""
        if len(self._process_pool()._draws) < ROUNDS_AHEAD * self._sigma.size:
            self.refill(releases=1)
            self.refill_beside()

    def refill(self, releases: int = ROUNDS_AHEAD) -> None:
        """Draw ahead, so that the pool holds the noise of at least this many releases."""
        self._process_pool().fill(releases * self._sigma.size)

    def refill_beside(self) -> None:
        """Draw the same ahead in a thread; releases go on meanwhile, as OpenDP needs no GIL."""
        self._process_pool().fill_beside(ROUNDS_AHEAD * self._sigma.size)

    def release(self, values: ArrayLike) -> Released:
        """Return round(values/grid) + Z on the grid, with Z taken from the pool."""
        noise = self._process_pool().take(self._sigma.size)  # before the values are read
        with np.errstate(over="ignore"):
            steps = np.rint(_checked_values(values, self._sigma.size) / self.grid)
        _require_releasable(steps)
        return self._released(steps.astype(np.int64) + noise)

    def release_multiples(self, multiples: Integers) -> Released:
        """Return multiples + Z on the grid, with Z taken from the pool."""
        noise = self._process_pool().take(self._sigma.size)
        steps = _checked_multiples(multiples, self._sigma.size)
        _require_releasable(steps)
        return self._released(steps + noise)

    def blind(self, residues: Integers) -> Integers:
        """Return integers modulo 2^64 with noise: a helper's sum of masks.

        The noise keeps the promise by itself: whoever takes the masks off finds noisy sums.
        """
        noise = self._process_pool().take(self._sigma.size)
        return _checked_multiples(residues, self._sigma.size) + noise  # wraps around

    def release_modular(self, residues: Integers) -> Released:
        """Return sums that were masked, modulo 2^64, with noise of our own, on the grid.

        Nothing is refused or checked before the noise is added: ranges are checked of released
        sums. What is further than 2^52 from 0 is moved there.
        """
        return self._released(np.clip(self.blind(residues), -MAX_RELEASED, MAX_RELEASED))

    def _released(self, multiples: Integers) -> Released:
        return Released(values=multiples * self.grid, multiples=multiples, grid=self.grid)

    def _process_pool(self) -> _Pool:
        if self._pool.process != _process():
            self._pool = _Pool()  # with its own lock: the parent's may be held for ever
        return self._pool

    def __reduce__(self) -> tuple[type[SecureSampler], tuple[Floats]]:
        return SecureSampler, (self._sigma,)

    def __repr__(self) -> str:
        return f"SecureSampler({self._sigma.size} outputs)"


_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):  # where processes cannot fork there is nothing to count
    os.register_at_fork(after_in_child=_count_fork)


def _process() -> tuple[int, int]:
    """Identify this process; the number of forks tells it from an ancestor with a recycled pid."""
    return os.getpid(), _forks


@final
class _Pool:
    """Draws of the discrete Gaussian of scale 2^26 that belong to one process."""

    __slots__ = ("_drawing", "_draws", "_lock", "process")

    def __init__(self) -> None:
        self.process = _process()
        self._lock = threading.Lock()
        self._drawing = threading.Lock()
        self._draws: list[int] = []

    def fill(self, count: int) -> None:
        with self._lock:
            if len(self._draws) < count:
                self._draws += _draw(count - len(self._draws))

    def fill_beside(self, count: int) -> None:
        """Draw in a thread unless there are enough; of two calls at a time the second does nothing.

        A thread that fails draws nothing: ``take`` then raises the same error in its caller.
        """
        if len(self._draws) < count and self._drawing.acquire(blocking=False):
            threading.Thread(target=self._draw_beside, args=(count,), daemon=True).start()

    def take(self, count: int) -> Integers:
        with self._lock:
            if len(self._draws) < count:
                self._draws += _draw(count - len(self._draws))
            draws = self._draws[-count:]
            del self._draws[-count:]
        return np.array(draws, dtype=np.int64)

    def _draw_beside(self, count: int) -> None:
        try:
            draws = _draw(count)
            with self._lock:
                self._draws += draws
        finally:
            self._drawing.release()


def _draw(count: int) -> list[int]:
    """Return so many draws, or more."""
    draws: list[int] = _discrete_gaussian()([0] * max(count, BATCH))
    return draws


@cache
def _discrete_gaussian() -> Measurement:
    # Loaded where noise is drawn: simulations draw from a seed. Not OpenDP's prelude, which loads
    # its bridges to data frames and learning as well.
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    # "i64" and never int, which OpenDP takes for i32: draws beyond 2^31 would saturate silently
    integers = vector_domain(atom_domain(T="i64"))
    return make_gaussian(integers, l2_distance(T="i64"), scale=STEPS)


def _checked_sigma(sigma: ArrayLike) -> Floats:
    array = numbers("sigma", sigma, "a non-empty list of numbers")
    if array.ndim != 1 or array.size == 0:
        raise InputError(f"sigma must be a non-empty list of numbers, got shape {array.shape}")
    _check_sigma(array)
    return array.copy()


def _check_sigma(sigma: ArrayLike) -> None:
    array = np.atleast_1d(np.asarray(sigma, dtype=np.float64))
    wrong = ~((array >= 1e-200) & (array <= 1e200))  # true for NaN
    if wrong.any():
        got, where = float(array[wrong][0]), int(np.argmax(wrong)) + 1
        raise InputError(
            f"sigma must be positive and within [1e-200, 1e200], got sigma={got!r} "
            f"for output {where}"
        )


def _checked_values(values: ArrayLike, outputs: int) -> Floats:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("values must be numbers") from None  # the cause would quote them
    if array.shape != (outputs,):
        raise InputError(f"values must have shape ({outputs},), got shape {array.shape}")
    if not np.all(np.isfinite(array)):
        where = int(np.argmin(np.isfinite(array))) + 1
        raise PrivacyError(f"values must be finite, output {where} is not (its value is withheld)")
    return array


def _checked_multiples(multiples: Integers, outputs: int) -> Integers:
    array = np.asarray(multiples)
    if array.dtype != np.int64 or array.shape != (outputs,):
        raise InputError(
            f"multiples must be {outputs} whole numbers (int64), got {array.dtype} of shape "
            f"{array.shape}"
        )
    return array


def _require_releasable(steps: Floats | Integers) -> None:
    values = steps.tolist()
    if max(values) > MAX_STEPS or min(values) < -MAX_STEPS:
        output = int(np.argmax((steps > MAX_STEPS) | (steps < -MAX_STEPS))) + 1
        raise PrivacyError(
            f"values must lie within 2^25 sigma of zero, output {output} does not (its value is "
            "withheld): scale the output or plan with a larger sigma"
        )
