"""What the page calls prices and constraints, and the limit that each constraint has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np

from sottovoce.network.scalars import Scalars
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.agents import Array
from sottovoce.problem.constraints import equalities
from sottovoce.problem.sums import Region

SHOWN: Final = 32
"""Prices and constraints on the page; the first ones where there are more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A constraint as the page shows it: a released number and where it must lie.

    Attributes:
        name: what people call it.
        lower: the least it may be; None without such a limit.
        upper: the largest, likewise.
        sigma: the standard deviation of the noise in one release; None where the number is a
            function of several noisy sums.
        aims: where prices keep it, the limits moved in by the margin of ``feasible``; empty
            without one, and where no limit is moved.
    """

    name: str
    lower: float | None
    upper: float | None
    sigma: float | None
    aims: tuple[float, ...] = ()


@final
class Limits:
    """The constraints of a plan as functions of what it releases.

    A sum with an interval is shown as it is, against its bounds. Sums that a region holds together
    are shown as ``phi(u) <= 0``. Where values of constraints are
    released it is ``g_j <= 0``.

    Args:
        plan: knows the outputs and the public set.
    """

    def __init__(self, plan: NoisePlan) -> None:
        stated = _sums(plan) if plan.release is None else _values(plan)
        self.prices = stated.prices
        self.all = stated.rows
        self.shown = stated.rows[:SHOWN]
        self._direct = stated.direct[:SHOWN]
        self._regions = [
            (place, region.rows, Scalars([region.phi], region.symbols))
            for place, region in enumerate(stated.regions, start=len(stated.direct))
            if place < SHOWN
        ]

    def spread(self, releases: Array) -> Array:
        """Return mean, least and largest of every shown row over some releases, shape (3, rows).

        A region's phi is taken at the mean of the releases alone: at a single one noise would only
        ever make it larger.

        Args:
            releases: sums, or values of constraints, one row per release.
        """
        found = np.empty((3, len(self.shown)))
        mean = releases.mean(axis=0)
        some = releases[:, self._direct]
        own = slice(len(self._direct))
        found[:, own] = mean[self._direct], some.min(axis=0), some.max(axis=0)
        for place, sums, phi in self._regions:
            found[:, place] = phi(*mean[list(sums)])[0]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stated:
    """Names of the prices, and rows: those that are an output each, then those of regions."""

    prices: list[str]
    rows: tuple[Row, ...]
    direct: list[int]
    regions: tuple[Region, ...] = ()


def _values(plan: NoisePlan) -> _Stated:
    equal = equalities(plan.cloud.constraints).tolist()
    names = plan.cloud.row_labels()
    sigma = plan.released_sigma[: len(names)].tolist()
    rows = tuple(
        Row(name=name, lower=0.0 if both else None, upper=0.0, sigma=s)
        for name, both, s in zip(names, equal, sigma, strict=True)
    )
    return _Stated(prices=names, rows=rows, direct=list(range(len(rows))))


def _sums(plan: NoisePlan) -> _Stated:
    sums = plan.cloud.sums
    names = sums.labels()
    held = {o for region in sums.regions for o in region.rows}
    free = [o for o in range(sums.count) if o not in held]
    rows = [
        Row(
            name=names[o],
            lower=_finite(sums.lower[o]),
            upper=_finite(sums.upper[o]),
            sigma=float(plan.released_sigma[o]),
            aims=_aims(plan, o),
        )
        for o in free
    ]
    rows += [Row(name=r.name, lower=None, upper=0.0, sigma=None) for r in sums.regions]
    return _Stated(prices=names, rows=tuple(rows), direct=free, regions=sums.regions)


def _aims(plan: NoisePlan, o: int) -> tuple[float, ...]:
    if plan.feasible is None:
        return ()
    sums, target = plan.cloud.sums, plan.feasible.target
    pairs = ((sums.lower[o], target.lower[o]), (sums.upper[o], target.upper[o]))
    return tuple(float(aim) for bound, aim in pairs if np.isfinite(aim) and aim != bound)


def _finite(bound: float) -> float | None:
    return float(bound) if np.isfinite(bound) else None
