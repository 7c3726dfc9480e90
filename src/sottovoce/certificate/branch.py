"""Branch and bound: a certified maximum over a box by subdivision, many boxes in one batch.

Boxes are kept with an upper bound each. The most promising ones are halved across the variable that
moves the objective most, until the best bound left is within the tolerance of the best value found.
A variable along which the objective is monotone on a box is fixed at the better end. The bound is
valid whenever the search stops; a spent budget only leaves it looser.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Protocol, final

import numpy as np
import numpy.typing as npt

from sottovoce.certificate.norms import norm_of
from sottovoce.formula.enclosure import enclose, enclose_with_gradient
from sottovoce.formula.expression import Expression, Op
from sottovoce.formula.intervals import BoolArray, FloatArray, Interval, interval

_BATCH = 512
_HOPELESS = 2.0**-40
_AGAIN, _DONE = -1, -2  # in place of an axis to halve: bound the box once more, or leave it
_quiet = np.errstate(all="ignore")


class BoundedFunction(Protocol):
    """A function of n variables to maximise; boxes and points are columns of (n, count) arrays."""

    @property
    def convex(self) -> BoolArray:
        """Which variables the function is convex in, the others held fixed; shape (n,).

        It is then greatest at an end: instead of being halved, a box is replaced by two faces.
        """

    def bound(self, box: Interval) -> tuple[FloatArray, Interval]:
        """Return an upper bound for each box, and slopes of shape (n, count).

        A slope nowhere negative (positive) states that the objective does not decrease (increase)
        along that variable within that box.
        """

    def value(self, points: FloatArray) -> FloatArray:
        """Return a lower bound of the value at each point."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Maximum:
    """The outcome of a search.

    Args:
        upper: A certified upper bound of the maximum.
        found: The largest value met, rounded down: never above the true maximum.
        at: The point at which it was met.
        boxes: How many boxes were bounded.
    """

    upper: float
    found: float
    at: FloatArray
    boxes: int


def maximise(
    objective: BoundedFunction,
    box: Interval,
    *,
    tolerance: float,
    budget: int,
    found: float = -np.inf,
) -> Maximum:
    """Bound the maximum of an objective over a box from above and from below.

    The search ends when upper <= found + tolerance * |found|, when no box can be
    improved, or when `budget` boxes have been bounded.

    Args:
        objective: What to maximise.
        box: One interval of shape (n,) with finite ends.
        tolerance: The relative gap to reach.
        budget: The number of boxes that may be bounded.
        found: A value the maximum is known to reach elsewhere; boxes that cannot beat it are cut.
    """
    at, settled, count = split_point(box.lower, box.upper), -np.inf, 0
    fresh = _Boxes(box.lower[:, None], box.upper[:, None], np.array([np.inf]), np.array([_AGAIN]))
    pool = fresh.pick(np.zeros(1, dtype=np.bool_))
    width = box.upper - box.lower
    while True:
        fresh, probes = _study(objective, fresh, width)
        count += fresh.bound.size
        values = objective.value(probes)
        if values.max() > found:
            found, at = float(values.max()), probes[:, values.argmax()]
        pool = _join([pool, fresh])
        goal = found + tolerance * abs(found) if np.isfinite(found) else -np.inf
        over = (pool.bound <= goal) | (pool.axis == _DONE)
        settled = max(settled, pool.bound[over].max(initial=-np.inf))
        pool = pool.pick(~over)
        left = pool.bound.max(initial=-np.inf)
        if left <= max(goal, settled) or count >= budget:
            upper = max(left, settled, found)
            return Maximum(upper=float(upper), found=found, at=at, boxes=count)
        size = min(_BATCH, (budget - count + 1) // 2, pool.bound.size)  # each has two children
        best = np.zeros(pool.bound.size, dtype=np.bool_)
        best[np.argpartition(-pool.bound, size - 1)[:size]] = True
        fresh, pool = _children(pool.pick(best), objective.convex), pool.pick(~best)


@_quiet
def split_point(lower: FloatArray, upper: FloatArray) -> FloatArray:
    """Return a point within each side: halfway, or halfway in logarithm if the scales differ."""
    small, large = np.sort([np.abs(lower), np.abs(upper)], axis=0)
    spread = (lower * upper > 0) & (large > 16 * small)
    geometric = np.copysign(np.sqrt(small) * np.sqrt(large), lower)
    return np.clip(np.where(spread, geometric, lower / 2 + upper / 2), lower, upper)


@final
@dataclass(frozen=True, slots=True)
class _Boxes:
    lower: FloatArray
    upper: FloatArray
    bound: FloatArray
    axis: npt.NDArray[np.intp]

    def pick(self, chosen: BoolArray) -> _Boxes:
        return _Boxes(
            self.lower[:, chosen], self.upper[:, chosen], self.bound[chosen], self.axis[chosen]
        )


def _join(parts: Sequence[_Boxes]) -> _Boxes:
    return _Boxes(
        np.concatenate([part.lower for part in parts], axis=1),
        np.concatenate([part.upper for part in parts], axis=1),
        np.concatenate([part.bound for part in parts]),
        np.concatenate([part.axis for part in parts]),
    )


@_quiet
def _study(
    objective: BoundedFunction, boxes: _Boxes, root_width: FloatArray
) -> tuple[_Boxes, FloatArray]:
    """Bound boxes, fix their monotone variables, choose their next axis, and propose points."""
    bound, slope = objective.bound(interval(boxes.lower, boxes.upper))
    wide = boxes.upper > boxes.lower
    rising, falling = wide & (slope.lower >= 0), wide & (slope.upper <= 0)
    lower = np.where(rising, boxes.upper, boxes.lower)
    upper = np.where(falling & ~rising, boxes.lower, boxes.upper)
    bound = np.minimum(bound, boxes.bound)
    axis = _axis(lower, upper, slope, root_width)
    small = np.all(upper - lower <= _HOPELESS * root_width[:, None], axis=0)
    axis = np.where((bound == np.inf) & small, _DONE, axis)
    axis = np.where(np.any(rising | falling, axis=0), _AGAIN, axis)
    corner = np.where(slope.lower + slope.upper > 0, upper, lower)
    probes = np.concatenate([split_point(lower, upper), corner], axis=1)
    return _Boxes(lower, upper, bound, axis), probes


def _axis(
    lower: FloatArray, upper: FloatArray, slope: Interval, root_width: FloatArray
) -> npt.NDArray[np.intp]:
    width, centre = upper - lower, split_point(lower, upper)
    divisible = (lower < centre) & (centre < upper)
    effect = np.where(divisible, slope.magnitude * width, -1.0)
    # Among unbounded effects the side that was halved least often goes first.
    endless = np.isinf(effect)
    relative = np.where(endless, width / root_width[:, None], -1.0)
    axis = np.where(np.any(endless, axis=0), relative.argmax(axis=0), effect.argmax(axis=0))
    return np.where(np.any(divisible, axis=0), axis, _DONE)


def _children(boxes: _Boxes, convex: BoolArray) -> _Boxes:
    again, split = boxes.pick(boxes.axis == _AGAIN), boxes.pick(boxes.axis >= 0)
    cut = (split.axis, np.arange(split.axis.size))
    low, high = split.lower[cut], split.upper[cut]
    centre, faces = split_point(low, high), convex[split.axis]
    left, right = split.upper.copy(), split.lower.copy()
    left[cut], right[cut] = np.where(faces, low, centre), np.where(faces, high, centre)
    halves = (
        _Boxes(split.lower, left, split.bound, split.axis),
        _Boxes(right, split.upper, split.bound, split.axis),
    )
    return _join([again, *halves])


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Component:
    """An expression as a function of n variables, written in several equivalent ways.

    Args:
        variables: The n symbols, in the order of the rows of boxes and points.
        forms: Equivalent expressions; every enclosure is the intersection of theirs.
        rising: Which variables the expression is proven not to decrease along.
        affine: Which variables it is affine in, the others held fixed.
    """

    variables: tuple[Expression, ...]
    forms: tuple[Expression, ...]
    rising: BoolArray
    affine: BoolArray

    @staticmethod
    def of(
        forms: Sequence[Expression],
        variables: Sequence[Expression],
        nondecreasing: frozenset[Expression] = frozenset(),
    ) -> Component:
        """Build a component; only those facts count that speak of its variables."""
        return Component(
            variables=tuple(variables),
            forms=tuple(forms),
            rising=np.array([symbol in nondecreasing for symbol in variables], dtype=np.bool_),
            affine=np.array([_affine(forms[0], symbol) for symbol in variables], dtype=np.bool_),
        )

    def over(self, box: Interval) -> tuple[Interval, Interval]:
        """Enclose the expression (count,) and its gradient (n, count) on boxes (n, count).

        The natural enclosure is cut down by the mean-value form, c the middle of the box:
        f(x) in f(c) + sum_i f_i(box) (x_i - c_i).
        """
        sides = self._sides(box)
        values, slopes = zip(
            *(enclose_with_gradient(form, sides, self.variables) for form in self.forms),
            strict=True,
        )
        slope = reduce(_meet, slopes)
        known = np.where(self.rising[:, None], np.maximum(slope.lower, 0.0), slope.lower)
        slope = interval(known, np.maximum(slope.upper, known))
        centre = split_point(box.lower, box.upper)
        change = slope * (box - interval(centre, centre))
        mean = reduce(add, self._sides(change).values(), self.at(centre))
        return reduce(_meet, [*values, mean]), slope

    def at(self, points: FloatArray) -> Interval:
        """Enclose the expression at points (n, count)."""
        return enclose(self.forms[0], self._sides(interval(points, points)))

    def _sides(self, box: Interval) -> dict[Expression, Interval]:
        rows = zip(box.lower, box.upper, strict=True)
        return {s: interval(*row) for s, row in zip(self.variables, rows, strict=True)}


def _affine(expr: Expression, symbol: Expression) -> bool:
    """Tell from the structure of a formula whether it is affine in a symbol."""
    moving = [a for a in expr.args if symbol in a.symbols]
    if expr.op == Op.ADD:
        return all(_affine(a, symbol) for a in moving)
    if expr.op == Op.MUL and len(moving) == 1:
        return _affine(moving[0], symbol)
    return not moving


def _meet(a: Interval, b: Interval) -> Interval:
    """Intersect two enclosures of the same quantity, which therefore overlap."""
    return interval(np.maximum(a.lower, b.lower), np.minimum(a.upper, b.upper))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """The objective sign * component, for a sign of 1 or -1."""

    component: Component
    sign: int

    @property
    def convex(self) -> BoolArray:
        """Where the component is affine, it is convex with either sign."""
        return self.component.affine

    def bound(self, box: Interval) -> tuple[FloatArray, Interval]:
        """Return upper bounds and slopes, as `BoundedFunction` asks."""
        value, slope = self.component.over(box)
        return (value.upper, slope) if self.sign > 0 else (-value.lower, -slope)

    def value(self, points: FloatArray) -> FloatArray:
        """Return lower bounds of values, as `BoundedFunction` asks."""
        value = self.component.at(points)
        return value.lower if self.sign > 0 else -value.upper


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """The objective |J|_2 of a matrix J of components, row by row; of a vector its length."""

    components: tuple[Component, ...]
    columns: int = 1

    @property
    def convex(self) -> BoolArray:
        """A norm of affine functions is convex."""
        affine: BoolArray = np.all([component.affine for component in self.components], axis=0)
        return affine

    def bound(self, box: Interval) -> tuple[FloatArray, Interval]:
        """Return upper bounds and slopes.

        Those of a vector are the slopes of half its squared length, sum_i c_i dc_i; those of a
        matrix tell only how strongly each variable moves it.
        """
        pairs = [component.over(box) for component in self.components]
        upper = norm_of([value for value, _ in pairs], self.columns)[1]
        if self.columns == 1:
            return upper, reduce(add, (value * slope for value, slope in pairs))
        steepness = np.sum([slope.magnitude for _, slope in pairs], axis=0)
        return upper, interval(-steepness, steepness)

    def value(self, points: FloatArray) -> FloatArray:
        """Return lower bounds of values, as `BoundedFunction` asks."""
        return norm_of([component.at(points) for component in self.components], self.columns)[0]
