"""The prices that maximise a quadratic model of the dual: the inner problem of the cloud's round.

    argmax over l of  S'l - A support_C(l) - (l - c)'H(l - c)/2

Rows are in their units here: C is that of the sums divided by ``unit``. H is given row by row, or,
where it has only p entries, as a diagonal.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

from sottovoce.algorithm.projection import Phi
from sottovoce.algorithm.region_prices import Quadratic, by_regions, region_work, row_of
from sottovoce.problem.agents import Array

if TYPE_CHECKING:
    from sottovoce.algorithm.dual_averaging import Rows

_EXCHANGES = 20
_ROUNDING = 1e-13
_TINY = 1e-300


LARGEST_REGION = 64
"""Sums that one region may hold: scratch for its projection grows as their square."""


def price_work(sums: int, entries: int) -> int:
    """Return how many floats of scratch ``argmax_price`` needs, with H of so many entries."""
    exchanging = 3 * sums + entries
    return max(exchanging, sums + region_work(sums, entries, LARGEST_REGION))


def argmax_price(
    total: Array,
    recent: float,
    model: Array,
    center: Array,
    rows: Rows,
    phi: Phi | None,
    price: Array,
    aim: Array,
    work: Array,
) -> None:
    """Fill the maximiser into price, and the point of C that attains the support into aim.

    Nine arguments because the inner problem has four data, two results, C and scratch.

    Args:
        total: S.
        recent: A.
        model: H, positive definite.
        center: c.
        rows: units and C.
        phi: the functions of C's general regions; None if it has no regions at all.
        price: where to start, and the result.
        aim: the second result.
        work: scratch, see ``price_work``.
    """
    p = price.size
    right = work[:p]
    for o in range(p):
        right[o] = total[o] + row_of(model, o, center)
    if phi is not None and rows.public.radii.size > 0:
        by_regions(Quadratic(right, recent, model), rows, phi, price, aim, work[p:])
        return
    if model.size == p and p > 1:
        _by_rows(right, recent, model, rows, price)
    else:
        _by_exchange(right, recent, model, rows, price, work[p:])
    for o in range(p):
        value = (right[o] - row_of(model, o, price)) / recent
        lower, upper = rows.public.lower[o] / rows.unit[o], rows.public.upper[o] / rows.unit[o]
        aim[o] = min(max(value, lower), upper)


def _by_rows(right: Array, recent: float, model: Array, rows: Rows, price: Array) -> None:
    """Intervals and a diagonal H: every row by itself."""
    for o in range(price.size):
        above = right[o] - recent * rows.public.upper[o] / rows.unit[o]
        below = right[o] - recent * rows.public.lower[o] / rows.unit[o]
        price[o] = above / model[o] if above > 0.0 else (below / model[o] if below < 0.0 else 0.0)


def _by_exchange(
    right: Array, recent: float, model: Array, rows: Rows, price: Array, work: Array
) -> None:
    """Intervals: ``H l = right - A bound`` on rows with a price, exchanged until all signs fit.

    The primal active set method for a strictly convex quadratic: every exchange lowers the
    objective, so none comes back; from round to round hardly any is needed.
    """
    p = price.size
    side, goal, factor = work[:p], work[p : 2 * p], work[2 * p :]
    for o in range(p):
        side[o] = 1.0 if price[o] > 0.0 else (-1.0 if price[o] < 0.0 else 0.0)
        if rows.public.lower[o] == rows.public.upper[o]:
            side[o] = 2.0
    for _ in range(_EXCHANGES * p):
        _solve_free(right, recent, model, rows, side, goal, factor)
        share, hit = 1.0, -1
        for o in range(p):
            if (side[o] == 1.0 and goal[o] < 0.0) or (side[o] == -1.0 and goal[o] > 0.0):
                reached = price[o] / (price[o] - goal[o])
                if reached < share:
                    share, hit = reached, o
        for o in range(p):
            if side[o] != 0.0:
                price[o] = goal[o] if share == 1.0 else price[o] + share * (goal[o] - price[o])
        if hit >= 0:
            price[hit], side[hit] = 0.0, 0.0
        elif not _release(right, recent, model, rows, price, side):
            break


def _release(
    right: Array, recent: float, model: Array, rows: Rows, price: Array, side: Array
) -> bool:
    """Give a side to the row without one that gains most by it; return whether there is any."""
    p = price.size
    worst, which, sign = 0.0, -1, 0.0
    for o in range(p):
        if side[o] != 0.0:
            continue
        value, size = right[o], abs(right[o])
        for q in range(p):
            value -= model[o * p + q] * price[q]
            size += abs(model[o * p + q] * price[q])
        scale = sqrt(model[o * p + o])
        above = value - recent * rows.public.upper[o] / rows.unit[o]
        below = recent * rows.public.lower[o] / rows.unit[o] - value
        if above > _ROUNDING * size and above > worst * scale:
            worst, which, sign = above / scale, o, 1.0
        if below > _ROUNDING * size and below > worst * scale:
            worst, which, sign = below / scale, o, -1.0
    if which >= 0:
        side[which] = sign
    return which >= 0


def _solve_free(
    right: Array,
    recent: float,
    model: Array,
    rows: Rows,
    side: Array,
    goal: Array,
    factor: Array,
) -> None:
    """Solve ``H_FF goal_F = right_F - A bound_F`` over the rows F that have a side."""
    p = side.size
    for i in range(p):
        if side[i] == 0.0:
            goal[i] = 0.0
            continue
        bound = rows.public.lower[i] if side[i] == -1.0 else rows.public.upper[i]
        left = right[i] - recent * bound / rows.unit[i]
        for j in range(i + 1):
            if side[j] == 0.0:
                continue
            value = model[i * p + j]
            for k in range(j):
                if side[k] != 0.0:
                    value -= factor[i * p + k] * factor[j * p + k]
            if j < i:
                factor[i * p + j] = value / factor[j * p + j]
                left -= factor[i * p + j] * goal[j]
            else:
                # Rounding must not make a positive definite matrix anything else.
                factor[i * p + i] = sqrt(max(value, 1e-15 * model[i * p + i], _TINY))
        goal[i] = left / factor[i * p + i]
    for i in range(p - 1, -1, -1):
        if side[i] == 0.0:
            continue
        left = goal[i]
        for k in range(i + 1, p):
            if side[k] != 0.0:
                left -= factor[k * p + i] * goal[k]
        goal[i] = left / factor[i * p + i]
