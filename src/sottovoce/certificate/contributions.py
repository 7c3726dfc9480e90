"""Ranges of agents' contributions ``h_oi(x_i)`` to sums, and their evaluation errors in float64.

The range bounds how far any two behaviours of an agent differ, and what a cloud may accept; the
evaluation error is paid for in the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.certificate.influence import agent_box, weighted_blocks
from sottovoce.certificate.sensitivity import Block, Sensitivity, dense
from sottovoce.errors import CertificateError
from sottovoce.formula.enclosure import ROUNDOFF, enclose, evaluate, evaluation_error
from sottovoce.formula.intervals import Interval
from sottovoce.problem.fleets import Fleet, fleets_of, row_constants
from sottovoce.problem.groups import Array, Group, read_only
from sottovoce.problem.linear_rows import sparse
from sottovoce.problem.problem import CloudView
from sottovoce.problem.sums import Sums

_UP = 1.0 + 2.0**-40  # more than the roundings of the few operations it is applied to


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contributions:
    """The ranges of all agents' contributions, and their evaluation errors.

    Attributes:
        spread: ``sup h_oi - inf h_oi`` over agent i's set, for every sum o and agent i, in the
            blocks of a sensitivity: how far apart two contributions can be.
        size: the largest ``sum_i |h_oi|``, per sum: no partial sum is larger.
        error: the largest evaluation error of any agent's contribution, per sum.
    """

    spread: Sensitivity
    size: Array
    error: Array


def contribution_ranges(
    sums: Sums, domain: Sequence[Group], fleets: Sequence[Fleet] | None = None
) -> Contributions:
    """Bound every contribution over the boxes of ``domain``, in outward-rounded arithmetic.

    ``fleets`` is what ``fleets_of`` makes of both, if it is known. Infinite bounds are refused.
    """
    blocks: list[Block] = []
    # The range of an agent that cannot move is rounding, which is the evaluation error's to pay.
    moves = np.concatenate([np.any(g.upper > g.lower, axis=1).astype(np.float64) for g in domain])
    size, error = np.zeros(sums.count), np.zeros(sums.count)
    for rows, first, lower, upper, off in block_ranges(sums, domain, fleets):
        ends = (v.data if sparse.issparse(v) else v for v in (lower, upper, off))
        if not all(np.all(np.isfinite(v)) for v in ends):
            raise CertificateError(
                "every contribution must have finite bounds, got none for the sum "
                f"{sums.labels[int(rows[0])]}: tighten the boxes so that formulas stay defined"
            )
        moving = moves[first : first + lower.shape[1]]
        width = (upper - lower) * _UP
        if sparse.issparse(width):
            width, reach = width.multiply(moving).tocsr(), abs(lower).maximum(abs(upper))
        else:
            width, reach = width * moving, np.maximum(np.abs(lower), np.abs(upper))
        blocks.append(Block(rows=rows, first=first, upper=width, attained=width))
        size[rows] += np.asarray(reach.sum(axis=1)).ravel() * _UP
        error[rows] = np.maximum(error[rows], dense(off.max(axis=1)).ravel() * _UP)
    agents = sum(group.count for group in domain)
    spread = Sensitivity(outputs=sums.count, agents=agents, blocks=tuple(blocks))
    return Contributions(spread=spread, size=size, error=error)


BlockRange = tuple[NDArray[np.int64], int, Any, Any, Any]


def block_ranges(
    sums: Sums, domain: Sequence[Group], fleets: Sequence[Fleet] | None = None
) -> Iterator[BlockRange]:
    """Per block its sums, its first agent, lower and upper ends and errors (sums x agents)."""

    def values(fleet: Fleet) -> list[tuple[int, list[Array]]]:
        boxes = ((h, agent_box(h, fleet.group)) for h in fleet.terms)
        ranges = ((evaluate(h, box)[h], evaluation_error(h, box)) for h, box in boxes)
        return [(0, [value.lower, value.upper, error]) for value, error in ranges]

    def weighted(weight: Array, low: Array, high: Array, error: Array) -> tuple[Array, ...]:
        lower, upper = _scaled(weight, low, high)
        size = np.maximum(-lower, upper)
        rounding = np.where(np.abs(weight) == 1.0, 0.0, 2.0 * ROUNDOFF * size)
        return lower, upper, np.abs(weight) * error * (1.0 + 4.0 * ROUNDOFF) + rounding

    fleets = fleets_of(domain, sums.families) if fleets is None else fleets
    for rows, first, _, ends in weighted_blocks(fleets, values, weighted):
        yield (rows, first, *ends)


def _scaled(weight: Array, low: Array, high: Array) -> tuple[Array, Array]:
    scaled = Interval(lower=low, upper=high) * Interval(lower=weight, upper=weight)
    return scaled.lower, scaled.upper


def sum_ranges(sums: Sums, domain: Sequence[Group]) -> list[tuple[float, float]]:
    """Enclose every sum over the boxes of ``domain``: the ranges of its contributions added up.

    A sum of a single agent keeps its range to the last bit: a formula of it may not be defined
    beyond.
    """
    fleets = fleets_of(domain, sums.families)
    low, high = row_ranges(fleets, sums.count, where_defined=True)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def row_ranges(fleets: Sequence[Fleet], count: int, *, where_defined: bool) -> tuple[Array, Array]:
    """Return least and largest values of rows over the agents' boxes, without their constants.

    Points where a term is undefined are passed over if ``where_defined``; else they make its range
    infinite.
    """

    def values(fleet: Fleet) -> list[tuple[int, list[Array]]]:
        boxes = ((h, agent_box(h, fleet.group)) for h in fleet.terms)
        ranges = (evaluate(h, box)[h] if where_defined else enclose(h, box) for h, box in boxes)
        return [(0, [value.lower, value.upper]) for value in ranges]

    low, high, size, terms = np.zeros((4, count))
    negative, positive = np.zeros((2, count))
    for rows, _, _, (lower, upper) in weighted_blocks(fleets, values, _scaled):
        low[rows] += np.asarray(lower.sum(axis=1)).ravel()
        high[rows] += np.asarray(upper.sum(axis=1)).ravel()
        size[rows] += np.asarray(abs(lower).sum(axis=1) + abs(upper).sum(axis=1)).ravel()
        terms[rows] += np.asarray(((lower != 0) + (upper != 0)).sum(axis=1)).ravel()
        negative[rows] += np.asarray((lower < 0).sum(axis=1)).ravel()
        positive[rows] += np.asarray((upper > 0).sum(axis=1)).ravel()
    # n terms summed in any order err by less than n roundings of the sum of their sizes.
    slack = np.where(terms > 1, size * (terms + 4.0) * ROUNDOFF, 0.0)
    # Terms of one sign have a sum of that sign, exactly.
    low, high = low - slack, high + slack
    low = np.where(negative == 0, np.maximum(low, 0.0), low)
    return low, np.where(positive == 0, np.minimum(high, 0.0), high)


def row_scales(cloud: CloudView) -> Array:
    """Return the scale of every stated constraint, shape (m,), for figures in percent.

    It is the constant of ``g_j``, ``|b_j|`` of ``sum_i h_ij(x_i) <= b_j``; where that is 0, the
    width of the row's range over the public boxes.
    """
    bound = np.abs(row_constants(cloud.constraints))
    if np.any(bound == 0.0):
        fleets = fleets_of(cloud.groups, cloud.constraints)
        low, high = row_ranges(fleets, cloud.rows, where_defined=True)
        bound = np.where(bound == 0.0, high - low, bound)
    is_usable = np.isfinite(bound) & (bound > 0.0)
    return read_only(np.where(is_usable, bound, 1.0))
