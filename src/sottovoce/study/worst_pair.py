"""Where one agent's change shows most: two of its states, and states of all others.

    maximise  || diag(1/sigma) (F(x with q) - F(x with p)) ||    over x in D,  |q - p| <= reach

A sum moves by the agent's own contribution, so that its own two states are all there is to search.
For the paper's release what the others do matters: adjacency fixes their behaviours and not which
they are, so a game may put them wherever they make things worst. The search starts from many
corners, climbs coordinate by coordinate with steps that halve, and turns the agent's own step
towards the direction in which its outputs are steepest. What it finds is attained: a lower bound on
the supremum, never an estimate.
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
_SLOPE = 1e-4  # of the reach, where directions are compared
_GAIN = 1.0 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorstPair:
    """Two adjacent states of an agent in the company where they are told apart best.

    Attributes:
        begin: all states that F was given as a function of, the agent's own being the first of
            the two.
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
        own: the agent's place among the states they are functions of.
        reach: how far apart its two states may be, in l2; infinite if any two will do.
        seed: of the starts.
    """
    search = _Search(stated, own, reach, np.random.default_rng(seed))
    points, steps = search.climbed(*search.starts())
    begin, end = search.pairs(points, steps)
    shifts = stated.shifts(begin, end)
    best = int(np.argmax(shifts))
    return WorstPair(
        begin=read_only(begin[best]), end=read_only(end[best]), shift=float(shifts[best])
    )


@final
class _Search:
    """Points (count, states) and steps of the agent's own (count, d), judged by their shift."""

    def __init__(
        self, stated: Stated, own: slice, reach: float, generator: np.random.Generator
    ) -> None:
        self.stated, self.own = stated, own
        self.generator = generator
        self.lower, self.upper = stated.lower, stated.upper
        self.width = self.upper - self.lower
        self.dim = own.stop - own.start
        self.reach = min(reach, float(np.linalg.norm(self.width[own])))
        self.moving = np.flatnonzero(self.width > 0)

    def pairs(self, points: Array, steps: Array) -> tuple[Array, Array]:
        """Return both points of every pair; the second stays in the box, no further than reach."""
        length = np.linalg.norm(steps, axis=1, keepdims=True)
        shrunk = steps * np.minimum(1.0, self.reach / np.where(length > 0, length, 1.0))
        end = points.copy()
        low, high = self.lower[self.own], self.upper[self.own]
        end[:, self.own] = np.clip(points[:, self.own] + shrunk, low, high)
        return points, end

    def score(self, points: Array, steps: Array) -> Array:
        """Return the shift of every pair; what is not a number counts as nothing."""
        shifts = self.stated.shifts(*self.pairs(points, steps))
        return np.where(np.isfinite(shifts), shifts, -np.inf)

    def starts(self) -> tuple[Array, Array]:
        """Return the most promising of many corners and random points."""
        share = self.generator.random((_STARTS, self.lower.size))
        kind = self.generator.random(share.shape)
        share = np.where(kind < 0.4, 0.0, np.where(kind < 0.8, 1.0, share))
        points = np.clip(self.lower + share * self.width, self.lower, self.upper)
        inward = (self.lower + self.upper)[self.own] / 2.0 - points[:, self.own]
        axes = np.eye(self.dim)[self.generator.integers(self.dim, size=_STARTS)]
        towards = np.where(self.generator.random((_STARTS, 1)) < 0.5, inward, axes * inward)
        steps = self._as_far_as_may_be(towards)
        order: Any = np.argsort(self.score(points, steps))[::-1][:_CLIMBERS]
        return points[order].copy(), steps[order].copy()

    def climbed(self, points: Array, steps: Array) -> tuple[Array, Array]:
        """Improve every point until halved steps gain nothing more."""
        scores = self.score(points, steps)
        for halving in range(_HALVINGS):
            for _ in range(_SWEEPS):
                before = scores.max()
                self._sweep(points, steps, scores, 0.5**halving)
                if scores.max() <= before * _GAIN:
                    break
        return points, steps

    def _sweep(self, points: Array, steps: Array, scores: Array, share: float) -> None:
        """Move every pair to its best neighbour, all of them judged at once."""
        both = zip(points, steps, strict=True)
        tried = [self._neighbours(point, step, share) for point, step in both]
        found = self.score(*(np.concatenate(part) for part in zip(*tried, strict=True)))
        begin = 0
        for c, (candidates, directions) in enumerate(tried):
            here = found[begin : begin + len(candidates)]
            begin += len(candidates)
            best = int(np.argmax(here))
            if here[best] > scores[c]:
                points[c], steps[c] = candidates[best], directions[best]
                scores[c] = here[best]

    def _neighbours(self, point: Array, step: Array, share: float) -> tuple[Array, Array]:
        """Return points one coordinate away, and the same point with other steps."""
        moved = _one_by_one(point, self.moving, share * self.width, self.lower, self.upper)
        far = np.minimum(self.reach, self.width[self.own])
        turned = np.concatenate(
            [
                _one_by_one(step, np.flatnonzero(far > 0), share * far, -far, far),
                self._as_far_as_may_be(self._steepest(point, step)),
                -step[np.newaxis],
            ]
        )
        return (
            np.concatenate([moved, np.tile(point, (len(turned), 1))]),
            np.concatenate([np.tile(step, (len(moved), 1)), turned]),
        )

    def _steepest(self, point: Array, step: Array) -> Array:
        """Return both directions along which the outputs are steepest at the pair's middle."""
        _, end = self.pairs(point[np.newaxis], step[np.newaxis])
        middle = (point + end[0]) / 2.0
        low, high = self.lower[self.own], self.upper[self.own]
        inside = np.where(middle[self.own] - low < high - middle[self.own], 1.0, -1.0)
        tiny = np.minimum(_SLOPE * self.reach, (high - low) / 2.0) * inside
        around = np.tile(middle, (self.dim + 1, 1))
        around[1:, self.own] += np.diag(tiny)
        values = self.stated(around) / self.stated.sigma
        slopes = (values[1:] - values[0]) / np.where(tiny == 0.0, np.inf, tiny)[:, np.newaxis]
        if not np.isfinite(slopes).all():
            return step[np.newaxis]
        first = np.linalg.svd(slopes.T, full_matrices=False)[2][0]
        return np.stack([first, -first])

    def _as_far_as_may_be(self, towards: Array) -> Array:
        length = np.linalg.norm(towards, axis=1, keepdims=True)
        return np.asarray(self.reach * towards / np.where(length > 0, length, 1.0))


def _one_by_one(start: Array, which: Any, by: Array, lower: Array, upper: Array) -> Array:
    """Return copies of ``start`` with one coordinate moved down, up, and to either bound."""
    moved = np.tile(start, (4, which.size, 1))
    at = np.arange(which.size)
    for part, value in enumerate((start - by, start + by, lower, upper)):
        moved[part, at, which] = np.clip(value, lower, upper)[which]
    return moved.reshape(-1, start.size)
