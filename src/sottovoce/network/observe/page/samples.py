"""Prices and releases as the page draws them: sampled by the clock, kept in bounded memory.

A cloud takes hundreds of rounds a second, and an eye a few pictures. So nothing is done in a round:
four times a second the last round is looked at. A point stands for the samples of a few seconds,
and when there are too many points, neighbours become one: a run of any length takes as much memory
as a short one, and every extreme that was sampled stays visible.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from sottovoce.network.observe.page.limits import SHOWN, Limits
from sottovoce.network.protocol.cloud_machine import CloudMachine
from sottovoce.problem.agents import Array

TICK_SECONDS: Final = 0.25
WINDOW: Final = 20
"""Samples that a point's band and mean are taken over."""

POINTS: Final = 480
"""At most so many points are kept; half as many after neighbours were merged."""

DIGITS: Final = 6
"""Significant digits on the page: prices and releases are public, and drawn."""

_TINY: Final = 1e-200


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """What everybody could know after a round.

    Attributes:
        round: the round.
        price: lambda(k+1), or the multipliers of gradient steps.
        answer: the prices to report: averaged if the algorithm averages.
        release: y(k), the noisy sums or values of constraints.
    """

    round: int
    price: Array
    answer: Array
    release: Array


def sample_of(machine: CloudMachine) -> Sample | None:
    """Look at the last round that is durable and sent; one that is not may yet come out anew."""
    last = machine.last
    if last is None:
        return None
    # Copies, since the next round may use the same arrays.
    return Sample(
        round=last.k,
        price=last.price.copy(),
        answer=last.answer.copy(),
        release=last.released.copy(),
    )


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
        limits: the constraints.
    """

    def __init__(self, limits: Limits) -> None:
        self.points: list[Point] = []
        self._limits = limits
        self._last: deque[Sample] = deque(maxlen=WINDOW)
        self._pace: deque[tuple[float, int]] = deque(maxlen=WINDOW + 1)

    @property
    def round(self) -> int:
        """The round that was sampled last, 0 before the first."""
        return self._last[-1].round if self._last else 0

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

    def add(self, sample: Sample | None) -> Point | None:
        """Take a sample in; returns the new point, or None if no round has come since."""
        self._pace.append((time.monotonic(), 0 if sample is None else sample.round))
        if sample is None or sample.round == self.round:
            return None
        self._last.append(sample)
        point = self._point(sample)
        self.points.append(point)
        if len(self.points) >= POINTS:
            self.points = merged(self.points)
        return point

    def _point(self, sample: Sample) -> Point:
        prices = np.array([one.price[:SHOWN] for one in self._last])
        shown = np.stack([sample.answer[:SHOWN], prices.min(axis=0), prices.max(axis=0)])
        released = self._limits.spread(np.array([one.release for one in self._last]))
        return Point(round=sample.round, series=_rounded(np.hstack([shown, released])))


def merged(points: list[Point]) -> list[Point]:
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
    size = np.abs(finite)
    exponent = np.floor(np.log10(np.where(size > _TINY, size, 1.0)))
    scale = 10.0 ** (DIGITS - 1 - exponent)
    return np.asarray(np.round(finite * scale) / scale)
