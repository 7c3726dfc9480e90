"""Feasible answers: constraint tightening, and the test on averaged releases that ends a run.

``Ybar = sum_k w_k y(k)``, the average of the releases, is a public number. Whatever the algorithm
did, ``s_o(xbar) <= Ybar_o - N_o`` with ``N_o ~ N(0, sigma_o^2 |w|^2)`` independent over
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
from itertools import product
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import CertificateError, InputError
from sottovoce.formula.derive import is_affine
from sottovoce.formula.enclosure import enclose
from sottovoce.formula.intervals import Interval
from sottovoce.formula.tape import tape
from sottovoce.problem.groups import Array, Group, read_only
from sottovoce.problem.sums import Region, Sums, ball_of

LAG_FACTOR = 4.0
"""Ybar follows its target with a lag of about sqrt(T) rounds, so that it is off by about
``T^(-1/4)`` of its own noise: 4 times as much is hardly ever exceeded (measured, see
docs/explanation/feasible.md). The promise does not rest on it: where it is exceeded, the answer is
not confirmed."""

EQUALITY_LAG_FACTOR = 8.0
"""The same for equalities, whose wider band costs nothing in the objective: sums that must be met
from both sides, with prices far from 0, converge more slowly."""

_MOST_CORNER_SUMS = 12  # sums of a region up to which all corners of the margin are evaluated
_TEST_ROUNDING = 2.0**-45  # relative: more than the few float64 operations of a test add up to
_RANGE_ROUNDING = 1e-9  # relative: what ranges of contributions may be off by
_NU_FACTORS = np.exp(np.linspace(-9.0, 2.0, 221))  # tried for nu, in units of a ball's best


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TargetSet:
    """What of the public set C the cloud aims at: all of C, or C with tightened constraints.

    Of an equality ``lower`` and ``upper`` are the same, and not tightened. Every region has a
    ``tightening``: a ball's radius is so much smaller, any other is ``{phi(u) <= -tightening}``.
    """

    lower: Array
    upper: Array
    tightening: tuple[float, ...]

    @staticmethod
    def whole(sums: Sums) -> TargetSet:
        """Return C as it was stated."""
        return TargetSet(lower=sums.lower, upper=sums.upper, tightening=(0.0,) * len(sums.regions))

    def tightened(self, sums: Array, regions: tuple[float, ...]) -> TargetSet:
        """Return the same, tightened by so much more, per sum and per region."""
        further = zip(self.tightening, regions, strict=True)
        return TargetSet(
            lower=self.lower + sums,
            upper=self.upper - sums,
            tightening=tuple(before + more for before, more in further),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """By how much one constraint is tightened.

    Attributes:
        name: the constraint, or its sum.
        kind: "bound", "equality", or "region" for several sums.
        tested: what the test leaves between Ybar and the limit: the noise at probability p.
        tightening: by how much the algorithm's limit is tighter, so that the test is passed; of an
            equality the half-width of the band within which it is kept.
        scale: the size of the constraint, in the same unit.
    """

    name: str
    kind: str
    tested: float
    tightening: float
    scale: float

    @property
    def percent_of_scale(self) -> float:
        """``100 tightening / scale``."""
        return 100.0 * (self.tightening / self.scale if self.scale > 0.0 else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginCost:
    """The objective at the stated optimum, and how much ``more`` it is with the margins."""

    optimum: float
    more: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AveragedNoise:
    """The noise of Ybar, the average of T releases.

    Attributes:
        sigma: its standard deviations, ``sigma_o |w|`` of what is released.
        rounding: the error of Ybar by rounding and float64, at most.
        ranges: the least and the largest value that each sum can have, shape (p, 2).
        rounds: T.
    """

    sigma: Array
    rounding: Array
    ranges: Array
    rounds: int

    @property
    def lag(self) -> Array:
        """How far Ybar stays from its target at most, most of the time."""
        return np.asarray(LAG_FACTOR * float(self.rounds) ** -0.25 * self.sigma)

    def scaled(self, factor: float) -> AveragedNoise:
        """Return the same with noise ``factor`` times as large."""
        return replace(self, sigma=factor * self.sigma, rounding=factor * self.rounding)


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
        region_tightening: per region what ``TargetSet.tightening`` is.
        cost: what the margins are expected to cost; None where objectives are not known.
    """

    probability: float
    each_row: bool
    sums: Sums
    noise: AveragedNoise
    margin: Array
    region_tightening: tuple[float, ...]
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
    def tightening(self) -> Array:
        """Per sum the tightening of its limits, or an equality's band: margin and lag."""
        equality = self.sums.lower == self.sums.upper
        factor = np.where(equality, EQUALITY_LAG_FACTOR / LAG_FACTOR, 1.0)
        return np.asarray(self.margin + factor * self.noise.lag)

    @property
    def band(self) -> Array:
        """Per sum the half-width of an equality's band; 0 for others."""
        return np.where(self.checked & (self.sums.lower == self.sums.upper), self.tightening, 0.0)

    @property
    def target(self) -> TargetSet:
        """What the algorithm aims at."""
        inward = np.where(self.checked & (self.sums.lower < self.sums.upper), self.tightening, 0.0)
        return TargetSet.whole(self.sums).tightened(inward, self.region_tightening)

    @property
    def margins(self) -> tuple[Margin, ...]:
        """The margins of all constraints that could be violated."""
        sums, ranges, tightening = self.sums, self.noise.ranges, self.tightening
        labels = sums.labels
        bounded = np.isfinite(sums.lower) | np.isfinite(sums.upper)  # false within a region
        of_sums = [
            Margin(
                name=labels[o],
                kind="equality" if sums.lower[o] == sums.upper[o] else "bound",
                tested=float(self.margin[o]),
                tightening=float(tightening[o]),
                scale=_scale_of_sum(sums, o, ranges),
            )
            for o in np.flatnonzero(self.checked & bounded).tolist()
        ]
        of_regions = [
            Margin(
                name=region.name,
                kind="region",
                tested=float(self.margin[list(region.rows)].max()),
                tightening=by,
                scale=_scale_of_region(region, ranges),
            )
            for region, by in zip(sums.regions, self.region_tightening, strict=True)
        ]
        return (*of_sums, *of_regions)

    def confirmed(self, averaged: Array, error: Array | float = 0.0) -> NDArray[np.bool_]:
        """Return which averaged releases, shape (runs, p), confirm the answers beside them.

        Everything within the margin must lie in C, or of an equality in its band.

        Args:
            averaged: Ybar.
            error: the largest further error of Ybar per sum, where agents' averages lack rounds or
                their contributions were repeated.
        """
        values = np.atleast_2d(np.asarray(averaged, dtype=np.float64))
        finite = np.all(np.isfinite(values), axis=1)
        y = np.where(finite[:, np.newaxis], values, 0.0)
        rounding, band = self.rounding, self.band
        noise = self.margin - rounding
        box = rounding + error + _TEST_ROUNDING * (np.abs(y) + self.margin + error)
        reach = noise + box
        inside = (y + reach <= self.sums.upper + band) & (y - reach >= self.sums.lower - band)
        confirmed = np.all(inside | ~self.checked, axis=1) & finite
        for region in self.sums.regions:
            rows = list(region.rows)
            around = (y[:, rows], noise[rows], box[:, rows])
            one_sided = one_sided_sums(region, self.sums)
            confirmed &= region_contains(region, around, self.noise.ranges[rows], one_sided)
        return np.asarray(confirmed)

    def __repr__(self) -> str:
        cost = "" if self.cost is None else f", predicted cost {self.cost.more:.3g}"
        return f"Feasibility(probability={self.probability:g}, {len(self.margins)} margins{cost})"


def _scale_of_sum(sums: Sums, row: int, ranges: Array) -> float:
    limits = [abs(b) for b in (sums.lower[row], sums.upper[row]) if np.isfinite(b)]
    return float(max(limits)) or float(np.ptp(ranges[row])) / 2.0


def _scale_of_region(region: Region, ranges: Array) -> float:
    ball = ball_of(region)
    return float(np.ptp(ranges[list(region.rows)], axis=1).max()) / 2.0 if ball is None else ball[1]


def may_violate(sums: Sums, ranges: Array) -> NDArray[np.bool_]:
    """Which sums belong to a constraint that a state within the public boxes could violate."""
    checked = (ranges[:, 0] < sums.lower) | (ranges[:, 1] > sums.upper)
    for region in sums.regions:
        checked[list(region.rows)] = True
    return np.asarray(checked)


def region_contains(
    region: Region, around: tuple[Array, Array, Array], ranges: Array, one_sided: Sequence[bool]
) -> NDArray[np.bool_]:
    """Whether the region contains all values that its sums can have, run by run.

    Args:
        region: some of the constraints on the sums.
        around: y; the reach of the noise, of a ball the half-axes of an ellipsoid and of others
            those of a box; and the half-axes of a box that is added to it.
        ranges: in which the sums are in any case.
        one_sided: which sums y bounds from above only.
    """
    y, noise, box = around
    ball = ball_of(region)
    if ball is not None:
        center, radius = np.array(ball[0]), ball[1]
        diagonal = np.linalg.norm(box, axis=1) * (1.0 + _TEST_ROUNDING)
        farthest = _bound_farthest(y - center, np.broadcast_to(noise, y.shape))
        return np.asarray(farthest + diagonal <= radius)
    low, high = boxes_within(y, noise + box, ranges, one_sided)
    if len(region.rows) > _MOST_CORNER_SUMS:
        ends = zip(low, high, strict=True)
        return np.array([_proven_inside(region, *each) for each in ends], dtype=bool)
    return np.asarray(maximise_over_boxes(region, low, high, one_sided) <= 0.0)


def boxes_within(
    y: Array, reach: Array, ranges: Array, one_sided: Sequence[bool]
) -> tuple[Array, Array]:
    """The ends of the boxes around y within the ranges; low above high of an empty one."""
    least, most = ranges.T
    low = np.where(one_sided, least, np.maximum(y - reach, least))
    return low, np.minimum(y + reach, most)


def maximise_over_boxes(
    region: Region, low: Array, high: Array, one_sided: Sequence[bool]
) -> Array:
    """The largest phi over boxes in which it is convex: at a corner; infinite for an empty box."""
    phi = tape((region.phi,), region.symbols)
    largest = np.where(np.any(low > high, axis=1), np.inf, -np.inf)
    with np.errstate(all="ignore"):
        for upper in product(*((True,) if above else (True, False) for above in one_sided)):
            value = np.broadcast_to(phi(*np.where(upper, high, low).T)[0], largest.shape)
            rounding = _TEST_ROUNDING * (1.0 + np.abs(value))
            largest = np.maximum(largest, np.where(np.isnan(value), np.inf, value + rounding))
    return largest


def one_sided_sums(region: Region, sums: Sums) -> list[bool]:
    """Which sums of a region have terms that are not affine: the region is closed downwards there.

    By Jensen's inequality the average of the releases bounds these from above only.
    """
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


def _bound_farthest(c: Array, axes: Array) -> Array:
    """Upper bounds of ``|c + u|`` over ellipsoids ``sum_o (u_o / axes_o)^2 <= 1``, run by run.

    For every nu above the largest squared axis, ``|c + u|^2 <= |c|^2 + nu + sum_o c_o^2 axes_o^2 /
    (nu - axes_o^2)``; the least of them is sharp, and of many tried the least is nearly so.
    """
    axes_sq = np.square(axes)
    largest = np.maximum(axes_sq.max(axis=1), 1e-300)  # never 0
    c_sq = np.square(c).sum(axis=1)
    best_of_ball = np.sqrt(c_sq / largest) + 1e-12
    least = np.full(c_sq.shape, np.inf)
    for factor in _NU_FACTORS:
        nu = largest * (1.0 + factor * best_of_ball)
        rest = np.square(c) * axes_sq / (nu[:, np.newaxis] - axes_sq)
        least = np.minimum(least, c_sq + nu + rest.sum(axis=1))
    return np.asarray(np.sqrt(least) * (1.0 + _TEST_ROUNDING))


def _proven_inside(region: Region, low: Array, high: Array) -> bool:
    """Whether interval arithmetic proves that the region contains a box."""
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

    least, most = _required_extremes(sums)
    unsafe = np.zeros(sum(group.count for group in domain), dtype=np.bool_)
    blocks = zip(block_ranges(sums, domain), block_ranges(sums, fallbacks), strict=True)
    for (rows, first, lower, upper, error), (_, _, lowest, highest, fallback_error) in blocks:
        tolerance = error + fallback_error + _RANGE_ROUNDING * (abs(lower) + abs(upper))
        above_least, below_most = highest - lower - tolerance, upper - lowest - tolerance
        for required, distance in ((least, above_least), (most, below_most)):
            excess: Any = sparse.coo_array(distance)
            row, agent = excess.coords
            unsafe[first + agent[required[rows[row]] & ~(excess.data <= 0.0)]] = True
    return unsafe


def default_fallbacks(domain: Sequence[Group]) -> tuple[Group, ...]:
    """Return the public fallbacks of agents that state neither a fallback nor a start."""
    points = [read_only(np.clip(0.0, group.lower, group.upper)) for group in domain]
    return tuple(
        replace(group, lower=point, upper=point)
        for group, point in zip(domain, points, strict=True)
    )


def _required_extremes(sums: Sums) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of which sums a fallback must contribute the least, and of which the most."""
    least, most = np.isfinite(sums.upper), np.isfinite(sums.lower)
    for region in sums.regions:
        rows = np.array(region.rows)
        least[rows] = True
        most[rows] |= ~np.array(one_sided_sums(region, sums))
    return least, most
