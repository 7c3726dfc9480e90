"""What is public of the sums: the set C that they must lie in, their units and their noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.certificate.contributions import sum_ranges
from sottovoce.errors import ProblemError
from sottovoce.formula.expression import Expression
from sottovoce.privacy.feasibility import TargetSet
from sottovoce.problem.costs import CostTerm, is_convex_everywhere
from sottovoce.problem.groups import Array, Group
from sottovoce.problem.sums import Region, Sums, ball_of

Nearest: TypeAlias = Callable[..., Array]
"""Gives the point of C nearest to another: ``CloudKernel.nearest``."""

LARGEST_REGION: Final = 128  # sums that one region may hold, as in kernels.core.prices
_RANGE_ROUNDING: Final = 2.0**-40  # relative: a range this narrow is a constant, rounded outwards


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ball:
    """``|u - center| <= radius`` of the sums ``members``."""

    members: tuple[int, ...]
    center: tuple[float, ...]
    radius: float


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Level:
    """``phi(u) + level <= 0`` of the sums ``members``, phi convex in ``symbols``, one per sum.

    ``ranges`` encloses what these sums can be.
    """

    members: tuple[int, ...]
    symbols: tuple[Expression, ...]
    phi: Expression
    ranges: tuple[tuple[float, float], ...]
    level: float = 0.0


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublicCost:
    """``phi(u)``, convex, and nondecreasing in sums of terms that are not affine."""

    members: tuple[int, ...]  # the sums
    symbols: tuple[Expression, ...]  # what phi calls them
    phi: Expression
    rising: tuple[float, ...]  # 1 for a sum whose terms are not affine, 0 for others
    ranges: tuple[tuple[float, float], ...]  # encloses what these sums can be
    bounds: tuple[tuple[float, float], ...]  # of C, inside the range if phi is convex there alone


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublicSum:
    """What is public of the sums: C, a product of intervals and regions, and the noise."""

    lower: ArrayLike  # the least value of every sum, ``-inf`` if there is none or in a region
    upper: ArrayLike  # the largest; a point has ``lower == upper``
    unit: ArrayLike  # sigma of every sum; where there is no noise, any positive size of the sum
    noise: ArrayLike  # sigma over the range of every sum, 0 for one without noise
    regions: Sequence[Ball | Level | PublicCost] = ()  # over disjoint groups of sums


def public_sums(
    sums: Sums, domain: Sequence[Group], sigma: Array | None, target: TargetSet | None = None
) -> PublicSum:
    """Return what is public of the sums; a sum without noise counts in units of its range.

    The range is over the boxes of ``domain``; ``target`` is how much of C is aimed at, by default
    all of it.
    """
    sigmas = np.zeros(sums.count) if sigma is None or sigma.size != sums.count else sigma
    ranges = sum_ranges(sums, domain)
    low, high = np.array(ranges).reshape(-1, 2).T
    width, size = high - low, np.maximum(np.abs(low), np.abs(high))
    movable = np.isfinite(width) & (width > _RANGE_ROUNDING * size)
    width = np.where(movable, width, np.where(sigmas > 0.0, sigmas, 1.0))
    aimed = TargetSet.whole(sums) if target is None else target
    return PublicSum(
        lower=np.array(aimed.lower),
        upper=np.array(aimed.upper),
        unit=np.where(sigmas > 0.0, sigmas, width),
        noise=sigmas / width,
        regions=(
            *(_region(r, ranges, m) for r, m in zip(sums.regions, aimed.tightening, strict=True)),
            *(_cost(term, ranges, aimed) for term in sums.costs),
        ),
    )


def _cost(term: CostTerm, ranges: Sequence[tuple[float, float]], aimed: TargetSet) -> PublicCost:
    low, high = (np.asarray(side)[list(term.rows)] for side in (aimed.lower, aimed.upper))
    box = {s: ranges[o] for s, o in zip(term.symbols, term.rows, strict=True)}
    formula = term.extended(box)
    if not is_convex_everywhere(formula):
        rising = [s in term.rising for s in term.symbols]
        least, most = np.array(list(box.values())).T
        low, high = np.where(rising, low, np.maximum(low, least)), np.minimum(high, most)
    return PublicCost(
        members=term.rows,
        symbols=term.symbols,
        phi=formula,
        rising=tuple(float(s in term.rising) for s in term.symbols),
        ranges=tuple(ranges[o] for o in term.rows),
        bounds=tuple(zip(low.tolist(), high.tolist(), strict=True)),
    )


def _region(region: Region, ranges: Sequence[tuple[float, float]], moved: float) -> Ball | Level:
    """A region of C with its edge moved in; balls are recognised."""
    members = tuple(region.rows)
    if len(members) > LARGEST_REGION:
        raise ProblemError(
            f"constraint {region.name} must mix at most {LARGEST_REGION} sums, got "
            f"{len(members)}: state it as several constraints"
        )
    ball = ball_of(region)
    if ball is not None:
        center, radius = ball
        return Ball(members=members, center=tuple(center), radius=radius - moved)
    return Level(
        members=members,
        symbols=tuple(region.symbols),
        phi=region.phi,
        ranges=tuple(ranges[o] for o in members),
        level=moved,
    )
