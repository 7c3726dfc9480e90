"""Where one agent's change shows most: two of its states, and states of all others.

    maximise  || diag(1/sigma) (F(x with q) - F(x with p)) ||    over x in D,  |q - p| <= reach

Adjacency fixes the behaviours of the other agents and not which they are, so a game may put the
others wherever they make things worst. The search starts from many corners, climbs coordinate by
coordinate with steps that halve, and turns the agent's own step towards the direction in which its
outputs are steepest. What it finds is attained: a lower bound on the supremum, never an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from sottovoce.problem.agents import Array, read_only
from sottovoce.study.stated import Stated

_STARTS = 512
_CLIMBERS = 8
_HALVINGS = 9
_SWEEPS = 6  # per step length
_PROBES = 8
_SLOPE = 1e-4  # of the reach, where directions are compared
_GAIN = 1.0 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorstPair:
    """Two adjacent states of an agent in the company where they are told apart best.

    Attributes:
        begin: the states of all agents, the agent's own being the first of the two.
        end: the same with the second.
        shift: how far all outputs move, in units of the noise.
    """

    begin: Array
    end: Array
    shift: float


def worst_pair(stated: Stated, own: slice, reach: float, *, seed: int = 0) -> WorstPair:
    """Search the domain for the pair of states that moves the outputs most.

    Args:
        stated: the outputs.
        own: the agent's place among all states.
        reach: how far apart its two states may be, in l2.
        seed: of the starts.
    """
    search = _Search(stated, own, reach, np.random.default_rng(seed))
    points, towards = search.climbed(*search.starts())
    begin, end = search.pairs(points, towards)
    shifts = stated.shifts(begin, end)
    best = int(np.argmax(shifts))
    return WorstPair(
        begin=read_only(begin[best]), end=read_only(end[best]), shift=float(shifts[best])
    )


@final
class _Search:
    """Points (count, N) and directions (count, d), judged by the shift they cause."""

    def __init__(
        self, stated: Stated, own: slice, reach: float, generator: np.random.Generator
    ) -> None:
        self.stated, self.own, self.reach = stated, own, reach
        self.generator = generator
        self.lower, self.upper = stated.lower, stated.upper
        self.dim = own.stop - own.start
        self.moving = np.flatnonzero(self.upper > self.lower)
        if not self._others_matter():
            inside = (self.moving >= own.start) & (self.moving < own.stop)
            self.moving = self.moving[inside]

    def pairs(self, points: Array, towards: Array) -> tuple[Array, Array]:
        """Return both points of every pair; the second stays in the box, no further than reach."""
        length = np.linalg.norm(towards, axis=1, keepdims=True)
        step = self.reach * towards / np.where(length > 0, length, 1.0)
        end = points.copy()
        low, high = self.lower[self.own], self.upper[self.own]
        end[:, self.own] = np.clip(points[:, self.own] + step, low, high)
        return points, end

    def score(self, points: Array, towards: Array) -> Array:
        """Return the shift of every pair; what is not a number counts as nothing."""
        shifts = self.stated.shifts(*self.pairs(points, towards))
        return np.where(np.isfinite(shifts), shifts, -np.inf)

    def starts(self) -> tuple[Array, Array]:
        """Return the most promising of many corners and random points."""
        count = _STARTS if self.moving.size > 1 else 16
        share = self.generator.random((count, self.lower.size))
        kind = self.generator.random(share.shape)
        share = np.where(kind < 0.4, 0.0, np.where(kind < 0.8, 1.0, share))
        fixed = np.ones(self.lower.size, dtype=bool)
        fixed[self.moving] = False
        share[:, fixed] = 0.5
        points = self.lower + share * (self.upper - self.lower)
        inward = (self.lower + self.upper)[self.own] / 2.0 - points[:, self.own]
        axes = np.eye(self.dim)[self.generator.integers(self.dim, size=count)]
        towards = np.where(self.generator.random((count, 1)) < 0.5, inward, axes * np.sign(inward))
        return self._best(points, towards, _CLIMBERS)

    def climbed(self, points: Array, towards: Array) -> tuple[Array, Array]:
        """Improve every point until halved steps gain nothing more."""
        scores = self.score(points, towards)
        for halving in range(_HALVINGS):
            for _ in range(_SWEEPS):
                before = scores.max()
                self._sweep(points, towards, scores, 0.5**halving)
                if scores.max() <= before * _GAIN:
                    break
        return points, towards

    def _sweep(self, points: Array, towards: Array, scores: Array, step: float) -> None:
        """Move every point to its best neighbour, all of them judged at once."""
        both = zip(points, towards, strict=True)
        tried = [self._neighbours(point, direction, step) for point, direction in both]
        found = self.score(*(np.concatenate(part) for part in zip(*tried, strict=True)))
        begin = 0
        for c, (candidates, directions) in enumerate(tried):
            here = found[begin : begin + len(candidates)]
            begin += len(candidates)
            best = int(np.argmax(here))
            if here[best] > scores[c]:
                points[c], towards[c] = candidates[best], directions[best]
                scores[c] = here[best]

    def _neighbours(self, point: Array, towards: Array, step: float) -> tuple[Array, Array]:
        """Return points one coordinate away, and the same point with other directions."""
        width = (self.upper - self.lower)[self.moving]
        moved = np.tile(point, (4 * self.moving.size, 1))
        at = np.arange(self.moving.size)
        for part, value in enumerate(
            (
                point[self.moving] - step * width,
                point[self.moving] + step * width,
                self.lower[self.moving],
                self.upper[self.moving],
            )
        ):
            clipped = np.clip(value, self.lower[self.moving], self.upper[self.moving])
            moved[part * at.size + at, self.moving] = clipped
        turned = self._steepest(point, towards)
        return (
            np.concatenate([moved, np.tile(point, (len(turned), 1))]),
            np.concatenate([np.tile(towards, (len(moved), 1)), turned]),
        )

    def _steepest(self, point: Array, towards: Array) -> Array:
        """Return both directions along which the outputs are steepest at the pair's middle."""
        _, end = self.pairs(point[np.newaxis], towards[np.newaxis])
        middle = (point + end[0]) / 2.0
        low, high = self.lower[self.own], self.upper[self.own]
        inside = np.where(middle[self.own] + low < high - middle[self.own], 1.0, -1.0)
        steps = np.minimum(_SLOPE * self.reach, (high - low) / 2.0) * inside
        around = np.tile(middle, (self.dim + 1, 1))
        around[1:, self.own] += np.diag(steps)
        values = self.stated(around) / self.stated.sigma
        slopes = (values[1:] - values[0]) / np.where(steps == 0.0, np.inf, steps)[:, np.newaxis]
        if not np.isfinite(slopes).all():
            return np.stack([towards, -towards])
        first = np.linalg.svd(slopes.T, full_matrices=False)[2][0]
        return np.stack([first, -first, -towards])

    def _others_matter(self) -> bool:
        """Whether what the others do changes the agent's own shift: a sum does not care."""
        points = self.lower + self.generator.random((_PROBES, self.lower.size)) * (
            self.upper - self.lower
        )
        mixed = points.copy()
        mixed[:, self.own] = points[0, self.own]
        towards = np.tile(self.generator.standard_normal(self.dim), (_PROBES, 1))
        shifts = self.score(mixed, towards)
        return bool(np.ptp(shifts) > 1e-9 * np.max(np.abs(shifts)))

    def _best(self, points: Array, towards: Array, count: int) -> tuple[Array, Array]:
        order: Any = np.argsort(self.score(points, towards))[::-1][:count]
        return points[order].copy(), towards[order].copy()
