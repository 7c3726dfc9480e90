"""Margins from public figures alone: how far from the edge of C a plan keeps the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray
from scipy.special import chdtri, ndtri

from sottovoce.certificate.certificate import Certificate
from sottovoce.certificate.contributions import sum_ranges
from sottovoce.errors import PrivacyError
from sottovoce.privacy.answer import weights_norm
from sottovoce.privacy.feasibility import Feasibility, Feasible, Margin, cut, highest, may_fall
from sottovoce.privacy.sampler import grid_of
from sottovoce.privacy.target import Target
from sottovoce.problem.agents import Array
from sottovoce.problem.ball import ball_of
from sottovoce.problem.sums import Region, Sums

LAG = 4.0
"""Ybar follows what is aimed at with a lag of about sqrt(T) rounds, so that it is off by about
``T^(-1/4)`` of its own noise: 4 times as much is hardly ever exceeded (measured; see the docs). The
promise does not rest on it: where it is exceeded, the answer is not confirmed."""

EQUAL_LAG = 8.0
"""The same for equalities, whose wider band costs nothing in the objective: sums that must be met
from both sides, with prices far from 0, are found more slowly."""

_UP = 1.0 + 2.0**-30
_SAMPLES = 400


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Noise:
    """What is known of Ybar: per sum its noise and how far rounding may have moved it.

    Attributes:
        sigma: ``sigma_o |w|``, of what is released.
        rounding: how far rounding and evaluation may have moved the average.
        ranges: the least and the largest value that each sum can have.
        rounds: T.
    """

    sigma: Array
    rounding: Array
    ranges: Array
    rounds: int

    @property
    def lag(self) -> Array:
        """How far Ybar may stay from what is aimed at, most of the time."""
        return np.asarray(LAG * float(self.rounds) ** -0.25 * self.sigma)

    def times(self, share: float) -> Noise:
        """The same with less noise."""
        less = (share * self.sigma, share * self.rounding)
        return Noise(sigma=less[0], rounding=less[1], ranges=self.ranges, rounds=self.rounds)


def noise_of(certificate: Certificate, released_sigma: Array, rounds: int) -> Noise:
    """Return what a plan's noise does to the average of T releases."""
    sums, domain = certificate.cloud.sums, certificate.domain
    norm = weights_norm(rounds)
    grid = np.array([grid_of(s) if s > 0 else 0.0 for s in released_sigma])
    # Each agent rounds once per round, by 3/4 of a step at most, and is off by its evaluation.
    each = 0.75 * grid + certificate.contributions.error
    count, reach = np.zeros(sums.count), np.zeros(sums.count)
    sizes = np.concatenate(
        [np.linalg.norm(np.maximum(np.abs(g.lower), np.abs(g.upper)), axis=1) for g in domain]
    )
    for block in certificate.sensitivity.blocks:
        own = sizes[block.first : block.first + block.upper.shape[1]]
        count[block.rows] += _agents(block.upper)
        reach[block.rows] += np.asarray(block.upper @ own).ravel()
    # Averages are updated T times, each time off by a few roundings of what is averaged.
    averaging = 8.0 * rounds * 2.0**-53 * (reach + certificate.contributions.size + released_sigma)
    return Noise(
        sigma=released_sigma * norm * _UP,
        rounding=(count * each + averaging) * _UP,
        ranges=np.array(sum_ranges(sums, domain)).reshape(-1, 2),
        rounds=rounds,
    )


def require_proven_convexity(certificate: Certificate, noise: Noise) -> None:
    """Refuse margins around a constraint whose convexity is not proven.

    The sums at an average of states are at most the average of the sums only where they are convex,
    and a region's function is largest at a corner only where it is.

    Raises:
        PrivacyError: of a constraint that some state could violate only no counterexample is known.
    """
    sums = certificate.cloud.sums
    checked = _checked(sums, noise.ranges)
    rows: set[int] = set()
    first = 0
    for family, origin in zip(certificate.cloud.constraints, sums.origins, strict=True):
        if checked[origin.first : origin.first + origin.count].any():
            rows |= set(range(first, first + family.rows))
        first += family.rows
    for a in certificate.assumptions:
        if a.row in rows and a.name.startswith("convexity") and a.status != "proven":
            raise PrivacyError(
                f"feasible needs a proof for the {a.name}, got {a.status!r}: {a.detail}; restate "
                "the constraint as a sum of functions that are convex by themselves, or tighten "
                "the boxes of its states"
            )


def feasibility(sums: Sums, noise: Noise, asked: Feasible) -> Feasibility:
    """Return the margins that keep p, and what is aimed at so that the test is passed.

    With m constraints that could be violated, each fails with probability ``a = 1 - p^(1/m)``, as
    noises are independent: ``z(a)`` standard deviations where a sum has one edge, ``z(a/2)`` where
    it has two. A region shares a among its sums; of a ball the noise has a chi distribution.
    """
    checked = _checked(sums, noise.ranges)
    rows = [o for o in range(sums.count) if checked[o] and not _in_region(sums, o)]
    regions = [r for r in sums.regions if checked[list(r.rows)].any()]
    count = 1 if asked.each_row else max(1, len(rows) + len(regions))
    chance = -float(np.expm1(np.log(asked.probability) / count))
    margin, band = np.zeros(sums.count), np.zeros(sums.count)
    for o in rows:
        edges = np.isfinite([sums.lower[o], sums.upper[o]]).sum()
        margin[o] = -ndtri(chance / edges) * noise.sigma[o] * _UP + noise.rounding[o]
    for region in regions:
        at = list(region.rows)
        margin[at] = _quantile(region, sums, chance) * noise.sigma[at] * _UP + noise.rounding[at]
    equal = sums.lower == sums.upper
    moved = margin + np.where(equal, EQUAL_LAG / LAG, 1.0) * noise.lag
    band[rows] = np.where(equal, moved, 0.0)[rows]
    inward = np.where(checked & ~equal, moved, 0.0)
    levels = tuple(
        _level(region, sums, noise, margin) if region in regions else 0.0 for region in sums.regions
    )
    target = Target(lower=sums.lower + inward, upper=sums.upper - inward, moved=levels)
    labels = sums.labels()
    found = [_of_sum(sums, labels[o], o, (margin, moved), noise) for o in rows]
    found += [_of_region(r, levels[sums.regions.index(r)], margin, noise) for r in regions]
    return Feasibility(
        asked=asked,
        sums=sums,
        margin=margin,
        rounding=np.where(checked, noise.rounding, 0.0),
        ranges=noise.ranges,
        checked=checked,
        band=band,
        target=target,
        margins=tuple(found),
    )


def aimed_at(found: Feasibility, noise: Noise) -> Target:
    """What answers come to: Ybar stays about half the lag inside of what is aimed at."""
    inward = np.where(found.checked & (found.sums.lower < found.sums.upper), noise.lag / 2.0, 0.0)
    regions = (
        m + float(noise.lag[list(r.rows)].max() / 2.0) if ball_of(r) is not None else m
        for r, m in zip(found.sums.regions, found.target.moved, strict=True)
    )
    return Target(
        lower=found.target.lower + inward,
        upper=found.target.upper - inward,
        moved=tuple(regions),
    )


def _checked(sums: Sums, ranges: Array) -> NDArray[np.bool_]:
    """Which sums belong to a constraint that a state within the public boxes could violate."""
    checked = (ranges[:, 0] < sums.lower) | (ranges[:, 1] > sums.upper)
    for region in sums.regions:
        checked[list(region.rows)] = True
    return np.asarray(checked)


def _in_region(sums: Sums, row: int) -> bool:
    return any(row in region.rows for region in sums.regions)


def _quantile(region: Region, sums: Sums, chance: float) -> Array:
    """By how many standard deviations the sums of a region may be off, all but that chance."""
    if ball_of(region) is not None:
        return np.full(len(region.rows), np.sqrt(chdtri(len(region.rows), chance)))
    each = -np.expm1(np.log1p(-chance) / len(region.rows))
    return np.array([-ndtri(each if falls else each / 2.0) for falls in may_fall(region, sums)])


def _level(region: Region, sums: Sums, noise: Noise, margin: Array) -> float:
    """How far a region's edge is moved in, so that a margin and the lag fit between.

    It is measured at points of the edge, which need not be the worst: the test at the end does not
    rest on it.
    """
    at = list(region.rows)
    away = margin[at] + noise.lag[at]
    if ball_of(region) is not None:
        rounding = noise.rounding[at]
        return float((away - rounding).max() + np.linalg.norm(rounding))
    edge = _edge(region, noise.ranges[at])
    if edge is None:
        return 0.0
    falls = may_fall(region, sums)
    box = cut(edge, away, noise.ranges[at], falls)
    return max(0.0, float(np.max(highest(region, *box, falls))))


def _edge(region: Region, ranges: Array) -> Array | None:
    """Points with ``phi = 0`` between the lowest point found and others of the range."""
    rng = np.random.default_rng(len(region.rows))
    low, high = ranges.T
    points = low + rng.random((_SAMPLES, low.size)) * (high - low)
    value = highest(region, points, points, [True] * low.size)
    inner = points[int(np.argmin(value))]
    outer = points[np.isfinite(value) & (value > 0.0)]
    if not (np.min(value) < 0.0 and outer.size):
        return None
    near, far = np.zeros(len(outer)), np.ones(len(outer))
    for _ in range(50):
        middle = 0.5 * (near + far)
        there = inner + middle[:, np.newaxis] * (outer - inner)
        inside = highest(region, there, there, [True] * low.size) <= 0.0
        near, far = np.where(inside, middle, near), np.where(inside, far, middle)
    return np.asarray(inner + near[:, np.newaxis] * (outer - inner))


def _of_sum(sums: Sums, name: str, row: int, margins: tuple[Array, Array], noise: Noise) -> Margin:
    edges = [abs(b) for b in (sums.lower[row], sums.upper[row]) if np.isfinite(b)]
    return Margin(
        name=name,
        kind="equality" if sums.lower[row] == sums.upper[row] else "bound",
        tested=float(margins[0][row]),
        moved=float(margins[1][row]),
        scale=float(max(edges)) or float(np.ptp(noise.ranges[row])) / 2.0,
    )


def _of_region(region: Region, level: float, margin: Array, noise: Noise) -> Margin:
    at, ball = list(region.rows), ball_of(region)
    return Margin(
        name=region.name,
        kind="region",
        tested=float(margin[at].max()),
        moved=level,
        scale=float(np.ptp(noise.ranges[at], axis=1).max()) / 2.0 if ball is None else ball[1],
    )


def _agents(upper: Any) -> Array:
    """How many agents move each output of a block."""
    if sparse.issparse(upper):
        return np.asarray(np.diff(upper.tocsr().indptr), dtype=np.float64)
    return np.full(np.shape(upper)[0], float(np.shape(upper)[1]))
