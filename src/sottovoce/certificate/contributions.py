"""What one agent can add to one sum: its range over the agent's set, and how far float64 is off.

Agents send contributions ``h_oi(x_i)``, one number per sum they take part in. The range says how
much any two behaviours of an agent can differ by, whatever its objective and its data, and what a
cloud may believe; the evaluation error is paid for in the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from sottovoce.certificate.influence import agent_box, weighted_blocks
from sottovoce.certificate.sensitivity import Block, Sensitivity
from sottovoce.errors import CertificateError
from sottovoce.formula.enclosure import IntervalBox, evaluate, evaluation_error
from sottovoce.formula.expression import Expression
from sottovoce.formula.intervals import Interval
from sottovoce.problem.agents import Array, Group, read_only
from sottovoce.problem.fleets import Fleet, fleets_of, row_constants
from sottovoce.problem.problem import CloudView
from sottovoce.problem.sums import Sums

_UP = 1.0 + 2.0**-40  # more than the roundings of the few operations it is applied to
_UNIT = 2.0**-53


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

    ``fleets`` is what ``fleets_of`` makes of both, if it is known.

    Raises:
        CertificateError: if a contribution has no finite bound.
    """
    blocks: list[Block] = []
    # The range of an agent that cannot move is rounding, which is the evaluation error's to pay.
    moves = np.concatenate([np.any(g.upper > g.lower, axis=1).astype(np.float64) for g in domain])
    size, error = np.zeros(sums.count), np.zeros(sums.count)
    for rows, first, lower, upper, off in block_ranges(sums, domain, fleets):
        if not all(np.all(np.isfinite(_data(v))) for v in (lower, upper, off)):
            raise CertificateError(
                "every contribution must have finite bounds, got none for the sum "
                f"{sums.labels()[int(rows[0])]}: tighten the boxes so that formulas stay defined"
            )
        here = moves[first : first + lower.shape[1]]
        width = (upper - lower) * _UP
        width = width.multiply(here).tocsr() if sparse.issparse(width) else width * here
        blocks.append(Block(rows=rows, first=first, upper=width, found=width))
        reach = abs(lower).maximum(abs(upper)) if sparse.issparse(lower) else np.maximum(
            np.abs(lower), np.abs(upper)
        )  # fmt: skip
        size[rows] += np.asarray(reach.sum(axis=1)).ravel() * _UP
        most = off.max(axis=1)
        most = most.toarray().ravel() if sparse.issparse(most) else np.asarray(most)
        error[rows] = np.maximum(error[rows], most * _UP)
    agents = sum(group.count for group in domain)
    spread = Sensitivity(outputs=sums.count, agents=agents, blocks=tuple(blocks))
    return Contributions(spread=spread, size=size, error=error)


def own_range(h: Expression, group: Group) -> tuple[Interval, Array]:
    """Enclose ``h(x_i)`` for every agent of a group, and bound its evaluation error."""
    box = agent_box(h, group)
    return evaluate(h, box)[h], evaluation_error(h, box)


BlockRange = tuple[NDArray[np.int64], int, Any, Any, Any]


def block_ranges(
    sums: Sums, domain: Sequence[Group], fleets: Sequence[Fleet] | None = None
) -> Iterator[BlockRange]:
    """Per block its sums, its first agent, lower and upper ends and errors (sums x agents)."""

    def values(fleet: Fleet) -> list[tuple[int, list[Array]]]:
        found = [own_range(h, fleet.group) for h in fleet.terms]
        return [(0, [value.lower, value.upper, error]) for value, error in found]

    def weighted(weight: Array, low: Array, high: Array, error: Array) -> tuple[Array, ...]:
        lower, upper = _scaled(weight, low, high)
        size = np.maximum(-lower, upper)
        rounding = np.where(np.abs(weight) == 1.0, 0.0, 2.0 * _UNIT * size)
        return lower, upper, np.abs(weight) * error * (1.0 + 4.0 * _UNIT) + rounding

    fleets = fleets_of(domain, sums.families) if fleets is None else fleets
    agents = sum(group.count for group in domain)
    for rows, first, _, ends in weighted_blocks(fleets, agents, values, weighted):
        yield (rows, first, *ends)


def _scaled(weight: Array, low: Array, high: Array) -> tuple[Array, Array]:
    scaled = Interval(lower=low, upper=high) * Interval(lower=weight, upper=weight)
    return scaled.lower, scaled.upper


def sum_ranges(sums: Sums, domain: Sequence[Group]) -> list[tuple[float, float]]:
    """Enclose every sum over the boxes of ``domain``: the ranges of its contributions added up.

    One that a single agent makes keeps its range to the last bit: a formula of it may not be
    defined beyond.
    """
    fleets = fleets_of(domain, sums.families)
    low, high = row_ranges(fleets, sums.count, _where_defined)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def _where_defined(h: Expression, box: IntervalBox) -> Interval:
    return evaluate(h, box)[h]


def row_ranges(
    fleets: Sequence[Fleet], count: int, enclosed: Callable[[Expression, IntervalBox], Interval]
) -> tuple[Array, Array]:
    """Return least and largest values of rows over the agents' boxes, without their constants."""

    def values(fleet: Fleet) -> list[tuple[int, list[Array]]]:
        found = [enclosed(h, agent_box(h, fleet.group)) for h in fleet.terms]
        return [(0, [value.lower, value.upper]) for value in found]

    agents = sum(fleet.group.count for fleet in fleets)
    low, high, size, terms = np.zeros((4, count))
    for rows, _, _, (lower, upper) in weighted_blocks(fleets, agents, values, _scaled):
        low[rows] += np.asarray(lower.sum(axis=1)).ravel()
        high[rows] += np.asarray(upper.sum(axis=1)).ravel()
        size[rows] += np.asarray(abs(lower).sum(axis=1) + abs(upper).sum(axis=1)).ravel()
        terms[rows] += np.asarray(((lower != 0) + (upper != 0)).sum(axis=1)).ravel()
    # n terms summed in any order err by less than n roundings of the sum of their sizes.
    slack = np.where(terms > 1, size * (terms + 4.0) * _UNIT, 0.0)
    return low - slack, high + slack


def _data(values: Any) -> Any:
    return values.data if sparse.issparse(values) else values


def row_scales(cloud: CloudView) -> Array:
    """Return the scale of every stated constraint, shape (m,), for figures in percent.

    It is ``|b_j|`` of ``sum_i h_ij(x_i) <= b_j``, and in general the constant of ``g_j``; where the
    bound is 0, the width of the range that the row has over the public boxes.
    """
    bound = np.abs(row_constants(cloud.constraints))
    if np.any(bound == 0.0):
        fleets = fleets_of(cloud.groups, cloud.constraints)
        low, high = row_ranges(fleets, cloud.rows, _where_defined)
        bound = np.where(bound == 0.0, high - low, bound)
    fine = np.isfinite(bound) & (bound > 0.0)
    return read_only(np.where(fine, bound, 1.0))
