"""What the page draws: prices and released sums, sampled by the clock, in bounded memory.

A cloud takes hundreds of rounds a second, and an eye a few pictures. So nothing is done in a round:
four times a second the last round is looked at. A point stands for the samples of a few seconds,
and when there are too many points, neighbours become one: a run of any length takes as much memory
as a short one, and every extreme that was sampled stays visible.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any, Final, final

import numpy as np
from msgspec.structs import replace

from sottovoce.formula.tape import Tape, tape
from sottovoce.network.config import RunConfig
from sottovoce.network.protocol.actions import Record
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.statement import down, promise
from sottovoce.problem.agents import Array
from sottovoce.problem.constraints import equalities

SHOWN: Final = 32
"""Prices and constraints on the page; the first ones where there are more."""


TICK_SECONDS: Final = 0.25
WINDOW: Final = 20
"""Samples that a point's band and mean are taken over."""

POINTS: Final = 480
"""At most so many points are kept; half as many after neighbours were merged."""

DIGITS: Final = 6
"""Significant digits on the page: prices and releases are public, and drawn."""

NAMED: Final = 200
"""Agents that the page calls by their names, one by one; a larger fleet goes by numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRow:
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
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShownConstraints:
    """The constraints of a plan as functions of what it releases.

    A sum with an interval is shown as it is, against its bounds. Sums that a region holds together
    are shown as ``phi(u) <= 0``. Where values of constraints are released it is ``g_j <= 0``.

    Attributes:
        prices: the names of the prices.
        rows: all constraints: those that are an output each, then regions.
        direct: the outputs of the former.
        regions: the sums and the phi of the latter.
    """

    prices: list[str]
    rows: tuple[ShownRow, ...]
    direct: list[int]
    regions: tuple[tuple[list[int], Tape], ...] = ()

    @staticmethod
    def of(plan: NoisePlan) -> ShownConstraints:
        """Return what is shown of a plan."""
        sigma = plan.released_sigma.tolist()
        if plan.release is not None:
            names, equal = plan.cloud.row_labels(), equalities(plan.cloud.constraints).tolist()
            rows = tuple(
                ShownRow(name=names[j], lower=0.0 if equal[j] else None, upper=0.0, sigma=sigma[j])
                for j in range(len(names))
            )
            return ShownConstraints(prices=names, rows=rows, direct=list(range(len(rows))))
        sums, names = plan.cloud.sums, plan.cloud.sums.labels()
        held = {o for region in sums.regions for o in region.rows}
        free = [o for o in range(sums.count) if o not in held]
        direct = [
            ShownRow(
                name=names[o],
                lower=_finite(sums.lower[o]),
                upper=_finite(sums.upper[o]),
                sigma=sigma[o],
                aims=_aims(plan, o),
            )
            for o in free
        ]
        mixed = [ShownRow(name=r.name, lower=None, upper=0.0, sigma=None) for r in sums.regions]
        regions = tuple((list(r.rows), tape([r.phi], r.symbols)) for r in sums.regions)
        return ShownConstraints(prices=names, rows=(*direct, *mixed), direct=free, regions=regions)

    def spread(self, releases: Array) -> Array:
        """Return mean, least and largest of every shown row over some releases, shape (3, rows).

        A region's phi is taken at the mean of the releases alone: at a single one noise would only
        ever make it larger.

        Args:
            releases: sums, or values of constraints, one row per release.
        """
        mean, some = releases.mean(axis=0), releases[:, self.direct[:SHOWN]]
        shown = [mean[self.direct[:SHOWN]], some.min(axis=0), some.max(axis=0)]
        regions = self.regions[: max(0, SHOWN - len(self.direct))]
        at_mean = [phi(*mean[sums])[0] for sums, phi in regions]
        return np.array([[*ends, *at_mean] for ends in shown])


def _aims(plan: NoisePlan, o: int) -> tuple[float, ...]:
    if plan.feasible is None:
        return ()
    sums, target = plan.cloud.sums, plan.feasible.target
    pairs = ((sums.lower[o], target.lower[o]), (sums.upper[o], target.upper[o]))
    return tuple(float(aim) for bound, aim in pairs if np.isfinite(aim) and aim != bound)


def _finite(bound: float) -> float | None:
    return float(bound) if np.isfinite(bound) else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Point:
    """What is drawn at one place of the charts.

    Attributes:
        round: the last one that it stands for.
        series: shape (3, prices + constraints). For a price: the answer, the lowest and the
            highest price sampled. For a constraint: the mean of the releases sampled last, their
            least and their largest.
    """

    round: int
    series: Array

    def flat(self) -> list[float]:
        """Return the round and the series one after the other, for the page."""
        return [self.round, *self.series.ravel().tolist()]


@final
class Samples:
    """The points of one run, and its pace.

    Args:
        constraints: what is drawn of releases.
    """

    def __init__(self, constraints: ShownConstraints) -> None:
        self.points: list[Point] = []
        self._constraints = constraints
        self._last: deque[Record] = deque(maxlen=WINDOW)
        self._pace: deque[tuple[float, int]] = deque(maxlen=WINDOW + 1)

    @property
    def round(self) -> int:
        """The round that was sampled last, 0 before the first."""
        return self._last[-1].k if self._last else 0

    @property
    def averaged(self) -> int:
        """How many releases the latest mean is of."""
        return len(self._last)

    @property
    def rate(self) -> float:
        """Rounds per second over the last samples."""
        if not self._pace:
            return 0.0
        (began, first), (now, last) = self._pace[0], self._pace[-1]
        return (last - first) / (now - began) if now > began else 0.0

    def add(self, last: Record | None) -> Point | None:
        """Take a sample in; returns the new point, or None if no round has come since.

        Args:
            last: the last round that is durable and sent: one that is not may yet come out anew.
        """
        self._pace.append((time.monotonic(), 0 if last is None else last.k))
        if last is None or last.k == self.round:
            return None
        self._last.append(replace(last, parts=()))  # what was said is not to be kept
        point = self._point(last)
        self.points.append(point)
        if len(self.points) >= POINTS:
            self.points = halved(self.points)
        return point

    def _point(self, last: Record) -> Point:
        prices = np.array([one.price[:SHOWN] for one in self._last])
        shown = np.stack([last.answer[:SHOWN], prices.min(axis=0), prices.max(axis=0)])
        released = self._constraints.spread(np.array([one.released for one in self._last]))
        return Point(round=last.k, series=_rounded(np.hstack([shown, released])))


def halved(points: list[Point]) -> list[Point]:
    """Make one point of every two neighbours: the later one, with the extremes of both."""
    pairs = zip(points[::2], points[1::2], strict=False)
    kept = [_merge(earlier, later) for earlier, later in pairs]
    return kept + points[len(points) - len(points) % 2 :]


def _merge(earlier: Point, later: Point) -> Point:
    middle, low, high = later.series
    series = np.stack([middle, np.fmin(low, earlier.series[1]), np.fmax(high, earlier.series[2])])
    return Point(round=later.round, series=series)


def _rounded(values: Array) -> Array:
    """Keep so many significant digits; what is not finite becomes NaN, which JSON calls null."""
    finite = np.where(np.isfinite(values), values, np.nan)
    return np.array([[float(f"{v:.{DIGITS}g}") for v in row] for row in finite.tolist()])


def about(plan: NoisePlan, config: RunConfig, constraints: ShownConstraints) -> dict[str, Any]:
    """Return what does not change during a run: names, limits, the promise in words."""
    few = plan.cloud.agents <= NAMED
    return {
        "run": config.run_id,
        "rounds": config.rounds,
        "algorithm": config.algorithm["name"],
        "method": plan.method,
        "private": config.noise == "secure",
        "agents": plan.cloud.agents,
        "names": plan.cloud.agent_labels() if few else [],
        "prices": constraints.prices[:SHOWN],
        "prices_in_all": len(constraints.prices),
        "constraints": [
            asdict(row) | {"noise": None if row.sigma is None else down(row.sigma, 4)}
            for row in constraints.rows[:SHOWN]
        ],
        "constraints_in_all": len(constraints.rows),
        "promise": promise(plan),
        "tick": TICK_SECONDS,
        "window": WINDOW,
        "points": POINTS,
    }
