"""Objectives for branch and bound made of expressions: one component, or the norm of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import final

import numpy as np

from sottovoce.certificate.branch import middle
from sottovoce.formula.enclosure import enclose, enclose_with_gradient
from sottovoce.formula.expression import Expression, Op
from sottovoce.formula.intervals import BoolArray, FloatArray, Interval, interval, root


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
        centre = middle(box.lower, box.upper)
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
        """Return upper bounds and slopes, as `Objective` asks."""
        value, slope = self.component.over(box)
        return (value.upper, slope) if self.sign > 0 else (-value.lower, -slope)

    def value(self, points: FloatArray) -> FloatArray:
        """Return lower bounds of values, as `Objective` asks."""
        value = self.component.at(points)
        return value.lower if self.sign > 0 else -value.upper


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """The objective sqrt(sum_i c_i^2) of several components c_i."""

    components: tuple[Component, ...]

    @property
    def convex(self) -> BoolArray:
        """A norm of affine functions is convex."""
        affine: BoolArray = np.all([component.affine for component in self.components], axis=0)
        return affine

    def bound(self, box: Interval) -> tuple[FloatArray, Interval]:
        """Return upper bounds and slopes, those of half the squared norm: sum_i c_i dc_i."""
        pairs = [component.over(box) for component in self.components]
        slope = reduce(add, (value * slope for value, slope in pairs))
        return euclidean([value for value, _ in pairs]).upper, slope

    def value(self, points: FloatArray) -> FloatArray:
        """Return lower bounds of values, as `Objective` asks."""
        return euclidean([component.at(points) for component in self.components]).lower


def euclidean(values: Sequence[Interval]) -> Interval:
    """Enclose sqrt(sum_i v_i^2), scaled by a power of two so that no square overflows."""
    largest = reduce(np.maximum, (value.magnitude for value in values))
    exponent = np.clip(np.frexp(largest)[1], -1000, 1000)
    shrink, grow = (np.ldexp(1.0, sign * exponent) for sign in (-1, 1))
    squares = ((value * interval(shrink, shrink)).power(2) for value in values)
    return root(reduce(add, squares)) * interval(grow, grow)
