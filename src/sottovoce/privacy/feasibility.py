"""Answers that keep the constraints: what is promised, and the test that a run ends with.

``Ybar = sum_k w_k y(k)``, the average of what was released, is a public number. Whatever the
algorithm did, ``s_o(xbar) <= Ybar_o - N_o`` with ``N_o ~ N(0, sigma_o^2 |w|^2)`` independent over
o, with equality where contributions are affine (Jensen's inequality where they are convex). So the
sums at the answer lie within a margin around Ybar with probability p, and an answer whose whole
margin lies in C is *confirmed*:

    P(confirmed and s(xbar) not in C) <= 1 - p.

The proof is in docs/explanation/feasible.md. It does not ask whether the run converged: one that
did not is not confirmed, and agents apply their fallbacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.errors import CertificateError, InputError
from sottovoce.formula.derive import is_affine
from sottovoce.formula.enclosure import enclose
from sottovoce.formula.intervals import Interval
from sottovoce.formula.tape import tape
from sottovoce.problem.agents import Array, Group, read_only
from sottovoce.problem.sums import Region, Sums, ball_of

LAG = 4.0
"""Ybar follows its target with a lag of about sqrt(T) rounds, so that it is off by about
``T^(-1/4)`` of its own noise: 4 times as much is hardly ever exceeded (measured; see the docs). The
promise does not rest on it: where it is exceeded, the answer is not confirmed."""

EQUAL_LAG = 8.0
"""The same for equalities, whose wider band costs nothing in the objective: sums that must be met
from both sides, with prices far from 0, are found more slowly."""

BURN_IN = 0.1  # the share of all rounds that no answer counts
UNIT_ROUNDS = 10.0  # rounds in which prices find their unit, at most another BURN_IN of all
WEIGHT_POWER = 0.25
_CORNERS = 12  # sums of a region up to which all corners of the margin are evaluated
_ROUNDING = 2.0**-45  # of the few operations of a test, relative
_FACTORS = np.exp(np.linspace(-9.0, 2.0, 221))  # tried for nu, in units of a ball's best
_CLOSE = 1e-9  # what rounding may be off by, relative
_EXACT = 100_000  # rounds up to which the weights' norm is added up; beyond, it is bounded


def counted_rounds(k: ArrayLike, rounds: int) -> Array:
    """Return which of the rounds that count k is, from 1; 1 for those before them too."""
    return np.maximum(1.0, np.atleast_1d(np.asarray(k, dtype=np.float64)) - _skipped(rounds))


def answer_shares(k: ArrayLike, rounds: int) -> Array:
    """Return the shares of rounds k: ``answer += share (value - answer)``, so ``w_k ~ k^0.25``."""
    return (1.0 + WEIGHT_POWER) / (counted_rounds(k, rounds) + WEIGHT_POWER)


def answer_weights(rounds: int) -> Array:
    """Return ``w_1 .. w_T``, which add up to 1.

    An answer is ``xbar = sum_k w_k x(k)`` over the states whose contributions were released, with
    weights that depend on k and T alone. So the average of the releases, ``Ybar = sum_k w_k y(k)``,
    is the sums at the answer plus Gaussian noise of exactly known size.
    """
    shares = answer_shares(np.arange(1, rounds + 1), rounds)
    remaining = np.append(np.cumprod(1.0 - shares[:0:-1])[::-1], 1.0)
    return np.asarray(shares * remaining)


@cache
def weights_norm(rounds: int) -> float:
    """Return ``|w|_2``, rounded up: the noise of Ybar is ``sigma |w|``.

    With N rounds that count, ``w_j = 1.25 G(j) / (N G(N) (1 + 0.25/N))`` with
    ``G(j) = Gamma(j + 0.25) / Gamma(j) <= j^0.25``, and ``G(N) >= N / (N + 0.25)^0.75`` (Wendel).
    """
    if rounds <= _EXACT:
        return float(np.linalg.norm(answer_weights(rounds))) * (1.0 + 2.0**-30)
    n = float(rounds - _skipped(rounds))
    total = ((n + 1.0) ** 1.5 - 1.0) / 1.5  # above sum_j j^0.5
    return float(np.sqrt(total) * 1.25 / (n * (n + 0.25) ** 0.25)) * (1.0 + 2.0**-30)


def _skipped(rounds: int) -> int:
    """The rounds that do not count: the first tenth, and those in which prices find their unit."""
    return int(np.floor(BURN_IN * rounds + min(BURN_IN * rounds, UNIT_ROUNDS)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TargetSet:
    """What of the public set C the cloud aims at: all of C, or C with its edges moved in.

    Of an equality ``lower`` and ``upper`` are the same, and not moved. Of every region the edge is
    ``moved`` in: a ball's radius is so much smaller, any other is ``{phi(u) <= -moved}``.
    """

    lower: Array
    upper: Array
    moved: tuple[float, ...]

    @staticmethod
    def whole(sums: Sums) -> TargetSet:
        """Return C as it was stated."""
        return TargetSet(lower=sums.lower, upper=sums.upper, moved=(0.0,) * len(sums.regions))

    def moved_in(self, inward: Array, levels: tuple[float, ...]) -> TargetSet:
        """Return the same with its edges moved in further, per sum and per region."""
        return TargetSet(
            lower=self.lower + inward,
            upper=self.upper - inward,
            moved=tuple(m + more for m, more in zip(self.moved, levels, strict=True)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """How far from its edge one constraint is kept.

    Attributes:
        name: the constraint, or its sum.
        kind: "bound", "equality", or "region" for several sums.
        tested: what the test leaves between Ybar and the edge: the noise at probability p.
        moved: by how much the edge is moved in for the algorithm, so that the test is passed; of
            an equality the half-width of the band within which it is kept.
        scale: the size of the constraint, in the same unit.
    """

    name: str
    kind: str
    tested: float
    moved: float
    scale: float

    @property
    def percent_of_scale(self) -> float:
        """``100 moved / scale``."""
        return 100.0 * (self.moved / self.scale if self.scale > 0.0 else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginCost:
    """The objective at the stated optimum, and how much ``more`` it is with the margins."""

    optimum: float
    more: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AveragedNoise:
    """What is known of Ybar, the average of T releases."""

    sigma: Array  # sigma_o |w|, of what is released
    rounding: Array  # how far rounding and evaluation may have moved the average
    ranges: Array  # the least and the largest value that each sum can have, shape (p, 2)
    rounds: int  # T

    @property
    def lag(self) -> Array:
        """How far Ybar may stay from its target, most of the time."""
        return np.asarray(LAG * float(self.rounds) ** -0.25 * self.sigma)

    def times(self, share: float) -> AveragedNoise:
        """Return the same with noise ``share`` times as large."""
        return replace(self, sigma=share * self.sigma, rounding=share * self.rounding)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Feasibility:
    """The margins of a plan, and the test at the end.

    Attributes:
        probability: p; an answer is confirmed and violates a constraint with probability at most
            1 - p.
        each_row: whether that holds for every constraint by itself, which needs smaller margins,
            instead of for all of them together.
        sums: the sums and C.
        noise: of Ybar. Beyond its ranges nothing is known of the functions of regions, which may
            have poles there.
        margin: per sum how far Ybar may be from the sums at the answer, shape (p,); 0 where no
            constraint can be violated. The part of noise is a half-axis of an ellipsoid for the
            sums of a ball, and of a box for others; that of rounding is a box for all.
        levels: per region how far its edge is moved in.
        cost: what the margins are expected to cost; None where objectives are not known.
    """

    probability: float
    each_row: bool
    sums: Sums
    noise: AveragedNoise
    margin: Array
    levels: tuple[float, ...]
    cost: MarginCost | None = None

    @property
    def checked(self) -> NDArray[np.bool_]:
        """Which sums the test checks."""
        return may_violate(self.sums, self.noise.ranges)

    @property
    def rounding(self) -> Array:
        """The part of ``margin`` that pays for rounding."""
        return np.where(self.checked, self.noise.rounding, 0.0)

    @property
    def moved(self) -> Array:
        """How far every edge is moved in, or an equality allowed to be off: margin and lag."""
        equal = self.sums.lower == self.sums.upper
        return np.asarray(self.margin + np.where(equal, EQUAL_LAG / LAG, 1.0) * self.noise.lag)

    @property
    def band(self) -> Array:
        """Per sum the half-width of an equality's band; 0 for others."""
        return np.where(self.checked & (self.sums.lower == self.sums.upper), self.moved, 0.0)

    @property
    def target(self) -> TargetSet:
        """What the algorithm aims at."""
        inward = np.where(self.checked & (self.sums.lower < self.sums.upper), self.moved, 0.0)
        return TargetSet.whole(self.sums).moved_in(inward, self.levels)

    @property
    def margins(self) -> tuple[Margin, ...]:
        """The margins of all constraints that could be violated."""
        sums, ranges, labels, moved = self.sums, self.noise.ranges, self.sums.labels(), self.moved
        bounded = np.isfinite(sums.lower) | np.isfinite(sums.upper)  # false within a region
        of_sums = [
            Margin(
                name=labels[o],
                kind="equality" if sums.lower[o] == sums.upper[o] else "bound",
                tested=float(self.margin[o]),
                moved=float(moved[o]),
                scale=_scale_of_sum(sums, o, ranges),
            )
            for o in np.flatnonzero(self.checked & bounded).tolist()
        ]
        of_regions = [
            Margin(
                name=region.name,
                kind="region",
                tested=float(self.margin[list(region.rows)].max()),
                moved=level,
                scale=_scale_of_region(region, ranges),
            )
            for region, level in zip(sums.regions, self.levels, strict=True)
        ]
        return (*of_sums, *of_regions)

    def confirmed(self, averaged: Array, off: Array | float = 0.0) -> NDArray[np.bool_]:
        """Return which averaged releases, shape (runs, p), confirm the answers beside them.

        Everything within the margin must lie in C, or of an equality in its band.

        Args:
            averaged: Ybar.
            off: how far it may be off besides, per sum and any of them together: what was
                released was not all averaged.
        """
        values = np.atleast_2d(np.asarray(averaged, dtype=np.float64))
        finite = np.all(np.isfinite(values), axis=1)
        y = np.where(finite[:, np.newaxis], values, 0.0)
        rounding, band = self.rounding, self.band
        noise = self.margin - rounding
        box = rounding + off + _ROUNDING * (np.abs(y) + self.margin + off)
        away = noise + box
        inside = (y + away <= self.sums.upper + band) & (y - away >= self.sums.lower - band)
        confirmed = np.all(inside | ~self.checked, axis=1) & finite
        for region in self.sums.regions:
            rows = list(region.rows)
            around = (y[:, rows], noise[rows], box[:, rows])
            falls = may_fall(region, self.sums)
            confirmed &= within(region, around, self.noise.ranges[rows], falls)
        return np.asarray(confirmed)

    def __repr__(self) -> str:
        cost = "" if self.cost is None else f", predicted cost {self.cost.more:.3g}"
        return f"Feasibility(probability={self.probability:g}, {len(self.margins)} margins{cost})"


def _scale_of_sum(sums: Sums, row: int, ranges: Array) -> float:
    edges = [abs(b) for b in (sums.lower[row], sums.upper[row]) if np.isfinite(b)]
    return float(max(edges)) or float(np.ptp(ranges[row])) / 2.0


def _scale_of_region(region: Region, ranges: Array) -> float:
    ball = ball_of(region)
    return float(np.ptp(ranges[list(region.rows)], axis=1).max()) / 2.0 if ball is None else ball[1]


def may_violate(sums: Sums, ranges: Array) -> NDArray[np.bool_]:
    """Which sums belong to a constraint that a state within the public boxes could violate."""
    checked = (ranges[:, 0] < sums.lower) | (ranges[:, 1] > sums.upper)
    for region in sums.regions:
        checked[list(region.rows)] = True
    return np.asarray(checked)


def within(
    region: Region, around: tuple[Array, Array, Array], ranges: Array, falls: Sequence[bool]
) -> NDArray[np.bool_]:
    """Whether the region holds all that its sums can be, run by run.

    Args:
        region: some of the constraints on the sums.
        around: y; how far noise may have moved each sum, which of a ball are the half-axes of an
            ellipsoid and of others a box; and a box that is added to it.
        ranges: in which the sums are in any case.
        falls: which sums may be smaller as well: these are looked at from above only.
    """
    y, noise, box = around
    ball = ball_of(region)
    if ball is not None:
        center, radius = np.array(ball[0]), ball[1]
        beside = np.linalg.norm(box, axis=1) * (1.0 + _ROUNDING)
        return np.asarray(_farthest(y - center, np.broadcast_to(noise, y.shape)) + beside <= radius)
    low, high = boxes_within(y, noise + box, ranges, falls)
    if len(region.rows) > _CORNERS:
        ends = zip(low, high, strict=True)
        return np.array([_enclosed(region, *each) for each in ends], dtype=bool)
    return np.asarray(highest(region, low, high, falls) <= 0.0)


def boxes_within(
    y: Array, away: Array, ranges: Array, falls: Sequence[bool]
) -> tuple[Array, Array]:
    """The ends of the boxes around y within the ranges; low above high of an empty one."""
    least, most = ranges.T
    low = np.where(falls, least, np.maximum(y - away, least))
    return low, np.minimum(y + away, most)


def highest(region: Region, low: Array, high: Array, falls: Sequence[bool]) -> Array:
    """The largest phi over boxes in which it is convex: at a corner; infinite for an empty box."""
    phi = tape((region.phi,), region.symbols)
    most = np.where(np.any(low > high, axis=1), np.inf, -np.inf)
    with np.errstate(all="ignore"):
        for upper in product(*((True,) if fall else (True, False) for fall in falls)):
            value = np.broadcast_to(phi(*np.where(upper, high, low).T)[0], most.shape)
            size = _ROUNDING * (1.0 + np.abs(value))
            most = np.maximum(most, np.where(np.isnan(value), np.inf, value + size))
    return most


def may_fall(region: Region, sums: Sums) -> list[bool]:
    """Which sums of a region have terms that are not affine: it lets these fall."""
    return [not _is_affine_sum(sums, row) for row in region.rows]


def _is_affine_sum(sums: Sums, row: int) -> bool:
    """Whether every contribution to a sum is affine in the agent's state."""
    for family in sums.families:
        if row < family.rows:
            terms = [p.terms[row % len(p.terms)] for p in family.sums] + list(
                family.rest[row : row + 1]
            )
            states = {s for p in family.sums for s in p.group.symbols}
            return all(is_affine(h, h.symbols & states or None) for h in terms)
        row -= family.rows
    raise InputError(f"row must be one of the sums, got {row} too many")


def _farthest(c: Array, axes: Array) -> Array:
    """Upper bounds of ``|c + u|`` over ellipsoids ``sum_o (u_o / axes_o)^2 <= 1``, run by run.

    For every nu above the largest squared axis, ``|c + u|^2 <= |c|^2 + nu + sum_o c_o^2 axes_o^2 /
    (nu - axes_o^2)``; the least of them is sharp, and of many tried the least is nearly so.
    """
    square = np.square(axes)
    most = np.maximum(square.max(axis=1), 1e-300)
    size = np.square(c).sum(axis=1)
    best_of_ball = np.sqrt(size / most) + 1e-12
    best = np.full(size.shape, np.inf)
    for factor in _FACTORS:
        nu = most * (1.0 + factor * best_of_ball)
        rest = np.square(c) * square / (nu[:, np.newaxis] - square)
        best = np.minimum(best, size + nu + rest.sum(axis=1))
    return np.asarray(np.sqrt(best) * (1.0 + _ROUNDING))


def _enclosed(region: Region, low: Array, high: Array) -> bool:
    if np.any(low > high):
        return False
    ends = zip(region.symbols, low, high, strict=True)
    box = {s: Interval(lower=np.array([a]), upper=np.array([b])) for s, a, b in ends}
    try:
        return bool(enclose(region.phi, box).upper[0] <= 0.0)
    except CertificateError:
        return False


def unsafe_fallbacks(
    sums: Sums, domain: Sequence[Group], fallbacks: Sequence[Group]
) -> NDArray[np.bool_]:
    """Return, for every agent, whether its fallback is not shown to be safe beside any answers.

    Agents do not all get their answers at the same moment. Where a sum must not be too large, any
    mixture of fallbacks and answers that keep the constraint keeps it if every fallback contributes
    the least that its agent can; where it must not be too small, the most. Where it has both
    limits, or the constraint weighs several sums against each other, both must be the same.
    ``fallbacks`` are the groups of ``domain`` with a fallback for both bounds.
    """
    import scipy.sparse as sparse  # large, and an agent needs only the rest of this module

    from sottovoce.certificate.contributions import block_ranges

    least, most = _sides(sums)
    unsafe = np.zeros(sum(group.count for group in domain), dtype=np.bool_)
    blocks = zip(block_ranges(sums, domain), block_ranges(sums, fallbacks), strict=True)
    for (rows, first, low, high, error), (_, _, down, up, off) in blocks:
        room = error + off + _CLOSE * (abs(low) + abs(high))
        for needed, beyond in ((least, up - low - room), (most, high - down - room)):
            excess: Any = sparse.coo_array(beyond)
            row, agent = excess.coords
            unsafe[first + agent[needed[rows[row]] & ~(excess.data <= 0.0)]] = True
    return unsafe


def nearest_zero(domain: Sequence[Group]) -> tuple[Group, ...]:
    """Return the public fallbacks of agents that state neither a fallback nor a start."""
    points = [read_only(np.clip(0.0, group.lower, group.upper)) for group in domain]
    return tuple(
        replace(group, lower=point, upper=point)
        for group, point in zip(domain, points, strict=True)
    )


def _sides(sums: Sums) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of which sums a fallback must contribute the least, and of which the most."""
    least, most = np.isfinite(sums.upper), np.isfinite(sums.lower)
    for region in sums.regions:
        rows = np.array(region.rows)
        least[rows] = True
        most[rows] |= ~np.array(may_fall(region, sums))
    return least, most
