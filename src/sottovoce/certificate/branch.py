"""Branch and bound: the certified maximum of a norm over a box, many boxes in one batch.

Boxes are kept with an upper bound each. The most promising ones are halved across the variable that
moves the objective most, until the best bound left is within the tolerance of the best value
attained. A variable along which the objective is monotone on a box is fixed at the better end. The
bound is valid whenever the search stops; a spent budget only leaves it looser.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from sottovoce.formula.enclosure import ROUNDOFF, enclose, enclose_with_gradient, require_defined
from sottovoce.formula.expression import Expression, Op
from sottovoce.formula.intervals import BoolArray, FloatArray, Interval, interval, square_root

_BATCH = 512  # boxes that are halved at once
_MIN_WIDTH = 2.0**-40  # of the width of the domain: smaller boxes without a bound are given up
_AGAIN, _DONE = -1, -2  # in place of an axis to halve: bound the box once more, or leave it
_UNDERFLOW = 2.0**-1000  # more than all that numbers below 1 can lose by underflow
_without_warnings = np.errstate(all="ignore")


class Maximum(NamedTuple):
    """A certified upper bound, the largest value attained rounded down, its point, boxes spent."""

    upper: float
    attained: float
    point: FloatArray
    boxes: int


def maximise_norm(
    objective: Norm, box: Interval, *, tolerance: float, budget: int, attained: float = -np.inf
) -> Maximum:
    """Bound the maximum of a norm over a box, an interval of shape (n,), from above and from below.

    The search ends when upper <= attained + tolerance * |attained|, when no box can be improved, or
    when `budget` boxes have been bounded. Boxes that cannot beat `attained`, a value reached
    elsewhere, are cut.
    """
    point, settled, count = split_point(box.lower, box.upper), -np.inf, 0
    fresh = _Boxes(box.lower[:, None], box.upper[:, None], np.array([np.inf]), np.array([_AGAIN]))
    pool = fresh.pick(np.zeros(1, dtype=np.bool_))
    width = box.upper - box.lower
    while True:
        fresh, probes = _bound_boxes(objective, fresh, width)
        count += fresh.bound.size
        values = objective.value(probes)
        if values.max() > attained:
            attained, point = float(values.max()), probes[:, values.argmax()]
        pool = _concatenate([pool, fresh])
        goal = attained + tolerance * abs(attained) if np.isfinite(attained) else -np.inf
        over = (pool.bound <= goal) | (pool.axis == _DONE)
        settled = max(settled, pool.bound[over].max(initial=-np.inf))
        pool = pool.pick(~over)
        left = pool.bound.max(initial=-np.inf)
        if left <= max(goal, settled) or count >= budget:
            return Maximum(float(max(left, settled, attained)), attained, point, count)
        size = min(_BATCH, (budget - count + 1) // 2, pool.bound.size)  # each has two children
        best = np.zeros(pool.bound.size, dtype=np.bool_)
        best[np.argpartition(-pool.bound, size - 1)[:size]] = True
        fresh, pool = _children(pool.pick(best), objective.convex), pool.pick(~best)


@_without_warnings
def split_point(lower: FloatArray, upper: FloatArray) -> FloatArray:
    """Return a point within each side: halfway, or halfway in logarithm if the scales differ."""
    small, large = np.sort([np.abs(lower), np.abs(upper)], axis=0)
    spread = (lower * upper > 0) & (large > 16 * small)
    geometric = np.copysign(np.sqrt(small) * np.sqrt(large), lower)
    return np.clip(np.where(spread, geometric, lower / 2 + upper / 2), lower, upper)


class _Boxes(NamedTuple):
    """Boxes (n, count), an upper bound of each, and the axis to halve it along."""

    lower: FloatArray
    upper: FloatArray
    bound: FloatArray
    axis: npt.NDArray[np.intp]

    def pick(self, chosen: BoolArray) -> _Boxes:
        fields: tuple[Any, ...] = self
        return _Boxes(*(values[..., chosen] for values in fields))


def _concatenate(parts: Sequence[_Boxes]) -> _Boxes:
    return _Boxes(*(np.concatenate(values, axis=-1) for values in zip(*parts, strict=True)))


@_without_warnings
def _bound_boxes(
    objective: Norm, boxes: _Boxes, root_width: FloatArray
) -> tuple[_Boxes, FloatArray]:
    """Bound boxes, fix their monotone variables, choose their next axis, and propose points."""
    bound, slope = objective.bound(interval(boxes.lower, boxes.upper))
    wide = boxes.upper > boxes.lower
    rising, falling = wide & (slope.lower >= 0), wide & (slope.upper <= 0)
    lower = np.where(rising, boxes.upper, boxes.lower)
    upper = np.where(falling & ~rising, boxes.lower, boxes.upper)
    bound = np.minimum(bound, boxes.bound)
    axis = _axis(lower, upper, slope, root_width)
    small = np.all(upper - lower <= _MIN_WIDTH * root_width[:, None], axis=0)
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
    centre, is_convex = split_point(low, high), convex[split.axis]
    left, right = split.upper.copy(), split.lower.copy()
    left[cut], right[cut] = np.where(is_convex, low, centre), np.where(is_convex, high, centre)
    return _concatenate([again, split._replace(upper=left), split._replace(lower=right)])


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Component:
    """An expression of n variables in equivalent forms, whose enclosures are intersected.

    ``rising`` tells along which variables it is proven not to decrease, ``affine`` in which it is
    affine, the others fixed.
    """

    variables: tuple[Expression, ...]
    forms: tuple[Expression, ...]
    rising: BoolArray
    affine: BoolArray

    @staticmethod
    def build(
        forms: Sequence[Expression],
        variables: Sequence[Expression],
        nondecreasing: frozenset[Expression] = frozenset(),
    ) -> Component:
        """Build a component; facts about other variables do not count."""
        return Component(
            variables=tuple(variables),
            forms=tuple(forms),
            rising=np.array([symbol in nondecreasing for symbol in variables], dtype=np.bool_),
            affine=np.array([_affine(forms[0], symbol) for symbol in variables], dtype=np.bool_),
        )

    def enclose(self, box: Interval) -> tuple[Interval, Interval]:
        """Enclose the expression (count,) and its gradient (n, count) on boxes (n, count).

        The natural enclosure is cut down by the mean-value form, c the middle of the box:
        f(x) in f(c) + sum_i f_i(box) (x_i - c_i).
        """
        sides = self._sides(box)
        values, slopes = zip(
            *(enclose_with_gradient(form, sides, self.variables) for form in self.forms),
            strict=True,
        )
        if not np.all(np.isfinite(values[0].magnitude)):
            require_defined(self.forms[0], sides)
        slope = reduce(_intersection, slopes)
        least = np.where(self.rising[:, None], np.maximum(slope.lower, 0.0), slope.lower)
        slope = interval(least, np.maximum(slope.upper, least))
        centre = split_point(box.lower, box.upper)
        change = slope * (box - interval(centre, centre))
        mean = reduce(add, self._sides(change).values(), self.enclose_at(centre))
        return reduce(_intersection, [*values, mean]), slope

    def enclose_at(self, points: FloatArray) -> Interval:
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


def _intersection(a: Interval, b: Interval) -> Interval:
    """Intersect two enclosures of the same quantity, which therefore overlap."""
    return interval(np.maximum(a.lower, b.lower), np.minimum(a.upper, b.upper))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """The objective |J|_2 of a matrix J of components, row by row; of a vector its length.

    With ``sign`` 1 or -1 it is ``sign`` times the only component.
    """

    components: tuple[Component, ...]
    columns: int = 1
    sign: int = 0

    @property
    def convex(self) -> BoolArray:
        """Which variables it is convex in, the others fixed, shape (n,): affine ones.

        It is then greatest at an end: instead of being halved, a box is replaced by two faces.
        """
        affine: BoolArray = np.all([component.affine for component in self.components], axis=0)
        return affine

    def bound(self, box: Interval) -> tuple[FloatArray, Interval]:
        """Return an upper bound for each box of (n, count), and slopes of that shape.

        A slope nowhere negative (positive) states that the objective does not decrease (increase)
        along that variable within that box. Those of a vector are the slopes of half its squared
        length, sum_i c_i dc_i; those of a matrix tell only how strongly each variable moves it.
        """
        pairs = [component.enclose(box) for component in self.components]
        if self.sign:
            value, slope = pairs[0]
            return (value.upper, slope) if self.sign > 0 else (-value.lower, -slope)
        upper = norm_of([value for value, _ in pairs], self.columns)[1]
        if self.columns == 1:
            return upper, reduce(add, (value * slope for value, slope in pairs))
        steepness = np.sum([slope.magnitude for _, slope in pairs], axis=0)
        return upper, interval(-steepness, steepness)

    def value(self, points: FloatArray) -> FloatArray:
        """Return a lower bound of the value at each point of (n, count)."""
        values = [component.enclose_at(points) for component in self.components]
        if self.sign:
            return values[0].lower if self.sign > 0 else -values[0].upper
        return norm_of(values, self.columns)[0]


# Norms, rounded outwards --------------------------------------------------------------------------


def norm_of(values: Sequence[Interval], columns: int = 1) -> tuple[FloatArray, FloatArray]:
    """Bound the spectral norm of matrices known by intervals, row by row; of a vector its length.

    | |C|_2 - |J|_2 | <= |D|_2 where J lies within D of its centre C; also |J|_2 <= | |J| |_2.
    """
    if columns == 1:
        length = euclidean(values)
        return length.lower, length.upper
    lower, upper = (
        np.stack([getattr(value, end) for value in values], axis=-1).reshape(
            -1, len(values) // columns, columns
        )
        for end in ("lower", "upper")
    )
    size = np.maximum(-lower, upper)
    finite = np.all(np.isfinite(size), axis=(-2, -1))
    lower, upper, size = (np.where(finite[:, None, None], m, 0.0) for m in (lower, upper, size))
    centre = lower / 2 + upper / 2
    radius = np.nextafter(np.maximum(upper - centre, centre - lower), np.inf)
    least, most = singular_bounds(centre)
    _, spread = singular_bounds(np.where(lower == upper, 0.0, radius))
    _, modulus = singular_bounds(size)
    most = np.minimum(np.nextafter(most + spread, np.inf), modulus)
    least = np.nextafter(least - spread, -np.inf)
    return np.where(finite, np.maximum(least, 0.0), 0.0), np.where(finite, most, np.inf)


def euclidean(values: Sequence[Interval]) -> Interval:
    """Enclose sqrt(sum_i v_i^2), scaled by a power of two so that no square overflows."""
    largest = reduce(np.maximum, (value.magnitude for value in values))
    exponent = np.clip(np.frexp(largest)[1], -1000, 1000)
    shrink, grow = (np.ldexp(1.0, sign * exponent) for sign in (-1, 1))
    squares = ((value * interval(shrink, shrink)).power(2) for value in values)
    return square_root(reduce(add, squares)) * interval(grow, grow)


def singular_bounds(matrices: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Enclose the largest singular value of each matrix of a stack (..., m, n).

    A computed singular value can lie below the true one (NumPy returns 1.9999999999999998 for 2).
    Here a computed decomposition is a guess M ~ U S V', and what the guess misses is bounded:

    |M|_2 <= s_max |U|_2 |V|_2 + |M - U S V'|_F  and  |U|_2^2 <= 1 + |U'U - I|_F

    for whatever U, S, V were computed, tight to about 1e-12 relatively.
    """
    # Powers of two, so that squares neither overflow nor vanish.
    _, exponent = np.frexp(np.max(np.abs(matrices), axis=(-2, -1), initial=0.0))
    scale = np.ldexp(1.0, np.clip(exponent, -1000, 1000))
    scaled = matrices / scale[..., None, None]
    u, s, vt = np.linalg.svd(scaled, full_matrices=False)
    rank = s.shape[-1]
    guess = (u * s[..., None, :]) @ vt
    # A product of sums of k terms errs by at most k + 1 roundings of the product of the moduli.
    rounding = 2 * (rank + 2) * ROUNDOFF * ((np.abs(u) * s[..., None, :]) @ np.abs(vt))
    missed = _frobenius(np.abs(scaled - guess) * (1 + 2 * ROUNDOFF) + rounding)
    missed = np.where(s[..., 0] > 0, missed, 0.0)  # exactly 0 for a matrix of zeros
    skew = [_skewness(basis) for basis in (u, np.swapaxes(vt, -1, -2))]
    grown, shrunk = ((1 + sign * skew[0]) * (1 + sign * skew[1]) for sign in (1, -1))
    upper = (s[..., 0] * np.sqrt(grown) + missed) * (1 + 16 * ROUNDOFF)
    lower = (s[..., 0] * np.sqrt(np.maximum(shrunk, 0)) - missed) * (1 - 16 * ROUNDOFF)
    return (
        np.maximum(np.nextafter(lower * scale, -np.inf), 0),
        np.where(upper > 0, np.nextafter(upper * scale, np.inf), 0.0),
    )


def _skewness(basis: FloatArray) -> FloatArray:
    """Bound |B'B - I|_F for the columns of B."""
    length, count = basis.shape[-2:]
    gram = np.swapaxes(basis, -1, -2) @ basis
    size = np.swapaxes(np.abs(basis), -1, -2) @ np.abs(basis)
    rounding = 2 * (length + 2) * ROUNDOFF * size
    return _frobenius(np.abs(gram - np.eye(count)) * (1 + 2 * ROUNDOFF) + rounding) + _UNDERFLOW


def _frobenius(matrices: FloatArray) -> FloatArray:
    """Bound the Frobenius norm of nonnegative matrices from above."""
    terms = matrices.shape[-1] * matrices.shape[-2]
    total = np.sqrt(np.sum(np.square(matrices), axis=(-2, -1)))
    return np.asarray(total * (1 + (terms + 4) * ROUNDOFF * 2) + _UNDERFLOW)
