"""What the page draws: prices and released sums, sampled by the clock, in bounded memory.

A cloud takes hundreds of rounds a second, and an eye a few pictures. So nothing is done in a round:
four times a second the last round is looked at. A point stands for the samples of a few seconds,
and when there are too many points, neighbours become one: a run of any length takes as much memory
as a short one, and every extreme that was sampled stays visible.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from msgspec.structs import replace

from sottovoce.formula.canonical import add
from sottovoce.formula.tape import Tape, tape
from sottovoce.network.config import RunConfig
from sottovoce.network.protocol.actions import Record
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.statement import down, guarantee_text
from sottovoce.problem.constraints import equalities
from sottovoce.problem.groups import Array

SHOWN: Final = 32  # prices and constraints on the page; the first ones where there are more
TICK_SECONDS: Final = 0.25
WINDOW: Final = 20  # samples that a point's band and mean are taken over
POINTS: Final = 480  # at most so many points are kept; half as many after neighbours were merged
DIGITS: Final = 6  # significant digits on the page: prices and releases are public, and drawn

NAMED: Final = 200
"""Agents that the page calls by their names, one by one; a larger fleet has numbers."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShownConstraints:
    """The constraints of a plan as functions of what it releases.

    A sum with an interval is shown as it is, against its bounds. Sums that a region holds together
    are shown as ``phi(u) <= 0``, the public cost as its value. Where values of constraints are
    released it is ``g_j <= 0``.
    """

    prices: list[str]  # their names
    rows: list[dict[str, Any]]  # as the page gets them: those that are an output, then regions
    direct: list[int]  # the outputs of the former
    regions: tuple[tuple[list[int], Tape], ...] = ()  # the sums and the phi of the latter

    @staticmethod
    def of(plan: NoisePlan) -> ShownConstraints:
        """Return what is shown of a plan."""
        sigma = plan.released_sigma.tolist()
        if plan.release is not None:
            names, equal = plan.cloud.row_labels(), equalities(plan.cloud.constraints)
            lower = np.where(equal, 0.0, -np.inf)
            rows = [_row(names[j], lower[j], 0.0, sigma[j]) for j in range(len(names))]
            return ShownConstraints(prices=names, rows=rows, direct=list(range(len(rows))))
        sums, names = plan.cloud.sums, list(plan.cloud.sums.labels)
        in_regions = {o for region in sums.regions for o in region.rows}
        free = [o for o in range(sums.count) if o not in in_regions]
        rows = [
            _row(names[o], sums.lower[o], sums.upper[o], sigma[o], _aims(plan, o)) for o in free
        ]
        rows += [_row(region.name, -np.inf, 0.0, None) for region in sums.regions]
        regions = [(list(r.rows), tape([r.phi], r.symbols)) for r in sums.regions]
        if sums.costs:
            rows.append(_row("public cost", -np.inf, np.inf, None))
            symbols = [s for term in sums.costs for s in term.symbols]
            cost = tape([add(*(term.formula for term in sums.costs))], symbols)
            regions.append(([o for term in sums.costs for o in term.rows], cost))
        return ShownConstraints(prices=names, rows=rows, direct=free, regions=tuple(regions))

    def spread(self, releases: Array) -> Array:
        """Return mean, least and largest of every shown row over some releases, shape (3, rows).

        A region's phi is taken at the mean of the releases alone: at a single one noise would only
        ever make it larger. ``releases`` has one row per release.
        """
        mean, some = releases.mean(axis=0), releases[:, self.direct[:SHOWN]]
        shown = [mean[self.direct[:SHOWN]], some.min(axis=0), some.max(axis=0)]
        regions = self.regions[: max(0, SHOWN - len(self.direct))]
        at_mean = [phi(*mean[sums])[0] for sums, phi in regions]
        return np.array([[*ends, *at_mean] for ends in shown])


def _row(
    name: str, lower: float, upper: float, sigma: float | None, aims: tuple[float, ...] = ()
) -> dict[str, Any]:
    """A row of the page; None stands for no such limit, or a function of several noisy sums.

    ``aims`` are the limits as the margin of ``feasible`` moves them in, where it moves any.
    """
    return {
        "name": name,
        "lower": float(lower) if np.isfinite(lower) else None,
        "upper": float(upper) if np.isfinite(upper) else None,
        "sigma": sigma,
        "noise": None if sigma is None else down(sigma, 4),
        "aims": aims,
    }


def _aims(plan: NoisePlan, o: int) -> tuple[float, ...]:
    if plan.feasible is None:
        return ()
    sums, target = plan.cloud.sums, plan.feasible.target
    pairs = ((sums.lower[o], target.lower[o]), (sums.upper[o], target.upper[o]))
    return tuple(float(aim) for bound, aim in pairs if np.isfinite(aim) and aim != bound)


@final
class Samples:
    """The points of one run, one row each, and its pace.

    A row has its last round; for every price the answer, for every constraint the mean of the
    releases sampled last; then the least, then the largest price or release sampled, likewise.
    NaN where it was not finite.
    """

    def __init__(self, constraints: ShownConstraints) -> None:
        self._constraints = constraints
        self._size = len(constraints.prices[:SHOWN]) + len(constraints.rows[:SHOWN])
        self.points: Array = np.zeros((0, 1 + 3 * self._size))
        self._last: deque[Record] = deque(maxlen=WINDOW)
        self._pace: deque[tuple[float, int]] = deque(maxlen=WINDOW + 1)

    def after(self, seen: int) -> dict[str, Any]:
        """Return where the run is, and the points after a round, as the page gets them."""
        began, first = self._pace[0] if self._pace else (0.0, 0)
        now, last = self._pace[-1] if self._pace else (0.0, 0)
        return {
            "round": self._round,
            "rate": round((last - first) / (now - began), 1) if now > began else 0.0,
            "averaged": len(self._last),  # releases that the latest mean is of
            "points": self.points[self.points[:, 0] > seen].tolist(),
        }

    @property
    def _round(self) -> int:
        """The round that was sampled last, 0 before the first."""
        return self._last[-1].k if self._last else 0

    def add(self, last: Record | None) -> None:
        """Take the last round that is durable and sent in: another may yet come out anew."""
        self._pace.append((time.monotonic(), 0 if last is None else last.k))
        if last is None or last.k == self._round:
            return
        self._last.append(replace(last, parts=()))  # contributions are not to be kept
        prices = np.array([one.price[:SHOWN] for one in self._last])
        shown = np.stack([last.answer[:SHOWN], prices.min(axis=0), prices.max(axis=0)])
        released = self._constraints.spread(np.array([one.released for one in self._last]))
        series = _rounded(np.hstack([shown, released]).ravel())
        self.points = np.vstack([self.points, [last.k, *series]])
        if len(self.points) >= POINTS:
            self._halve()

    def _halve(self) -> None:
        """Make one point of every two neighbours: the later one, with the extremes of both."""
        pairs = len(self.points) // 2 * 2
        earlier, later = self.points[:pairs:2], self.points[1:pairs:2].copy()
        low, high = slice(1 + self._size, 1 + 2 * self._size), slice(1 + 2 * self._size, None)
        later[:, low] = np.fmin(earlier[:, low], later[:, low])
        later[:, high] = np.fmax(earlier[:, high], later[:, high])
        self.points = np.vstack([later, self.points[pairs:]])


def _rounded(values: Array) -> list[float]:
    """Keep so many significant digits; what is not finite becomes NaN, which JSON calls null."""
    finite = np.where(np.isfinite(values), values, np.nan)
    return [float(f"{value:.{DIGITS}g}") for value in finite.tolist()]


def about(plan: NoisePlan, config: RunConfig, constraints: ShownConstraints) -> dict[str, Any]:
    """Return what does not change during a run: names, limits, the promise in words."""
    few = plan.cloud.agents <= NAMED
    return {
        "run": config.run_id,
        "rounds": config.rounds,
        "algorithm": config.algorithm["name"],
        "private": config.noise == "secure",
        "agents": plan.cloud.agents,
        "names": plan.cloud.agent_labels() if few else [],
        "prices": constraints.prices[:SHOWN],
        "prices_in_all": len(constraints.prices),
        "constraints": constraints.rows[:SHOWN],
        "constraints_in_all": len(constraints.rows),
        "promise": guarantee_text(plan),
        "window": WINDOW,
        "points": POINTS,
    }
