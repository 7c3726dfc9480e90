"""Lines that lay an agent's separable problem out for ``algorithm.dual_search``.

The same lines serve a block of agents in a kernel and one agent in Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from sottovoce.algorithm.home_block import (
    CURVATURE,
    GIVE,
    LEAST,
    LOWER,
    MOST,
    NUMBERS,
    OTHER,
    POINT,
    ROW,
    SLOPE,
    UPPER,
    VECTORS,
)  # fmt: skip
from sottovoce.engine.emit import Emitter
from sottovoce.engine.formulas import Fleet
from sottovoce.engine.home_shape import LinearRow, Separable
from sottovoce.engine.slopes import Prices, slopes_of
from sottovoce.formula.derive import derivative
from sottovoce.formula.expression import Expression

SEARCHES = ("box_search", "row_search", "two_row_search")
"""What minimises over the box and no row, one or two."""

Task = Literal["round", "project"]
"""What to minimise: ``f + lambda'h + near/2 |y - x|^2``, damped; or ``|y - x|^2/2`` alone."""


def space(dim: int) -> int:
    """How many numbers an agent's problem takes."""
    return VECTORS * dim + 2 * NUMBERS


def rows_of(shape: Separable, task: Task) -> tuple[LinearRow, ...]:
    """The rows that a task's search goes over; squares belong to the objective."""
    return tuple(row for row in shape.rows if row.square is None or task != "project")


def laid_out(
    page: Emitter,
    fleet: Fleet,
    shape: Separable,
    prices: Prices,
    bounds: Sequence[Sequence[str]],
    task: Task = "round",
) -> Iterator[tuple[int, str]]:
    """Yield where every number of an agent's problem goes, and its name, after the page's lines.

    Args:
        page: takes the lines; the state is ``x0, x1, ...``, the round ``number``,
            and ``near`` is 0 in a round.
        fleet: the formulas.
        shape: their structure.
        prices: the name of the multiplier of every term of every sum.
        bounds: the text of every lower and every upper bound.
        task: what is minimised.
    """
    dim, lower, upper = fleet.group.dim, *bounds
    slopes, pulls = ["0.0"] * dim, [""] * dim
    if task == "round":
        slopes = list(slopes_of(page, replace(fleet, objective=shape.objective), prices))
        pulls = list(slopes_of(page, fleet, prices, objective=False))
    for c, symbol in enumerate(fleet.group.symbols):
        low, high = page.assign(lower[c]), page.assign(upper[c])
        bent, eps = "1.0", f"home_damping(number, {pulls[c]}, {high} - {low}, theta)"
        if task == "round":
            bent = page.assign(f"{_curvature(page, fleet, shape, prices, symbol)} + ({eps} + near)")
        yield POINT * dim + c, f"x{c}"
        yield SLOPE * dim + c, slopes[c]
        yield CURVATURE * dim + c, bent
        yield LOWER * dim + c, low
        yield UPPER * dim + c, high
    for order, row in enumerate(rows_of(shape, task)):
        yield from _row(page, row, dim, order)


def _curvature(
    page: Emitter, fleet: Fleet, shape: Separable, prices: Prices, symbol: Expression
) -> str:
    """``d2(f + lambda'h)/dx_c^2`` of the separable part, free of states."""
    terms = [page.value(_second(shape.objective, symbol))]
    for part, price in zip(fleet.sums, prices, strict=True):
        for h, name in zip(part.terms, price, strict=True):
            second = _second(h, symbol)
            if not second.is_zero:
                terms.append(page.times(name, second))
    return page.fold("+", terms)


def _second(expr: Expression, symbol: Expression) -> Expression:
    return derivative(derivative(expr, symbol), symbol)


def _row(page: Emitter, row: LinearRow, dim: int, order: int) -> Iterator[tuple[int, str]]:
    vector, first = (ROW, OTHER)[order] * dim, VECTORS * dim + order * NUMBERS
    for c, factor in enumerate(row.factors):
        yield vector + c, page.value(factor)
    yield first + LEAST, _tightest(page, row.least, ">", "-math.inf")
    yield first + MOST, _tightest(page, row.most, "<", "math.inf")
    give = "0.0" if row.square is None else page.assign(f"softness({page.value(row.square)})")
    yield first + GIVE, give


def _tightest(page: Emitter, limits: Sequence[Expression], sign: str, none: str) -> str:
    names = [page.value(limit) for limit in limits]
    if not names:
        return none
    tight = names[0]
    for name in names[1:]:
        tight = page.assign(f"select({name} {sign} {tight}, {name}, {tight})")
    return tight
