"""What one agent can add to one sum: its range over the agent's set, and how far float64 is off.

Agents send contributions ``h_oi(x_i)``, one number per sum they take part in. The range says how
much any two behaviours of an agent can differ by, whatever its objective and its data, and what a
cloud may believe; the evaluation error is paid for in the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from sottovoce.certificate.sensitivity import Block, Sensitivity
from sottovoce.errors import CertificateError
from sottovoce.formula.canonical import split_constant
from sottovoce.formula.enclosure import IntervalBox, evaluate, evaluation_error
from sottovoce.formula.expression import Expression
from sottovoce.formula.intervals import Interval
from sottovoce.problem.agents import Array, Group, read_only
from sottovoce.problem.constraints import Constraint
from sottovoce.problem.fleet import WeightedTerms
from sottovoce.problem.fleets import fleets_of
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


def contribution_ranges(sums: Sums, domain: Sequence[Group]) -> Contributions:
    """Bound every contribution over the boxes of ``domain``, in outward-rounded arithmetic.

    Raises:
        CertificateError: if a contribution has no finite bound.
    """
    blocks: list[Block] = []
    # The range of an agent that cannot move is rounding, which is the evaluation error's to pay.
    moves = np.concatenate([np.any(g.upper > g.lower, axis=1).astype(np.float64) for g in domain])
    size, error = np.zeros(sums.count), np.zeros(sums.count)
    for rows, first, lower, upper, off in block_ranges(sums, domain):
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
    """Enclose ``h(x_i)`` for every agent of a group, and bound its evaluation error.

    Where all agents have one box and h names no parameter, one of them stands for all.
    """
    used = h.symbols
    one_box = group.lower.strides[0] == 0 == group.upper.strides[0]
    some = slice(1) if one_box and not used & set(group.parameters) else slice(None)
    box: IntervalBox = {
        s: Interval(lower=group.lower[some, c], upper=group.upper[some, c])
        for c, s in enumerate(group.symbols)
        if s in used
    } | {s: Interval(lower=a, upper=a) for s, a in group.parameters.items() if s in used}
    value = evaluate(h, box)[h]
    return value, evaluation_error(h, box)


def sum_ranges(sums: Sums, domain: Sequence[Group]) -> list[tuple[float, float]]:
    """Enclose every sum over the boxes of ``domain``: the ranges of its contributions added up.

    One that a single agent makes keeps its range to the last bit: a formula of it may not be
    defined beyond.
    """
    low, high, size, terms = np.zeros((4, sums.count))
    for rows, _, lower, upper, _ in block_ranges(sums, domain):
        low[rows] += np.asarray(lower.sum(axis=1)).ravel()
        high[rows] += np.asarray(upper.sum(axis=1)).ravel()
        size[rows] += np.asarray(abs(lower).sum(axis=1) + abs(upper).sum(axis=1)).ravel()
        terms[rows] += np.asarray(((lower != 0) + (upper != 0)).sum(axis=1)).ravel()
    # n terms summed in any order err by less than n roundings of the sum of their sizes.
    slack = np.where(terms > 1, size * (terms + 4.0) * _UNIT, 0.0)
    return list(zip((low - slack).tolist(), (high + slack).tolist(), strict=True))


BlockRange = tuple[NDArray[np.int64], int, Any, Any, Any]


def block_ranges(sums: Sums, domain: Sequence[Group]) -> Iterator[BlockRange]:
    """Per block its sums, its first agent, lower and upper ends and errors (sums x agents)."""
    agents = sum(group.count for group in domain)
    entries: list[Any] = []
    for fleet in fleets_of(domain, sums.families):
        ranges = [own_range(h, fleet.group) for h in fleet.terms]
        for part in fleet.parts():
            if isinstance(fleet.agents, slice):
                own = [_scaled(part, *ranges[t], fleet.group.count) for t in part.terms]
                ends = (_stacked(part, values) for values in zip(*own, strict=True))
                yield (part.rows.ravel(), fleet.agents.start, *ends)
                continue
            for t, row, place, weight in part.entries(fleet.group.count):
                values = _product(weight, *ranges[t], place, fleet.group.count)
                entries.append((row, fleet.agents[place], *values))
    if entries:
        row, agent, *all_ends = (np.concatenate(columns) for columns in zip(*entries, strict=True))
        rows, at = np.unique(row, return_inverse=True)
        shape = (rows.size, agents)
        yield (rows, 0, *(sparse.csr_array((v, (at, agent)), shape=shape) for v in all_ends))


def _product(
    weight: Array, value: Interval, error: Array, place: Any, count: int
) -> tuple[Array, Array, Array]:
    """Lower ends, upper ends and errors of weights times a term of the agents ``place``."""
    low, high, off = (np.broadcast_to(v, (count,))[place] for v in
                      (value.lower, value.upper, error))  # fmt: skip
    scaled = Interval(lower=low, upper=high) * Interval(lower=weight, upper=weight)
    rounding = np.where(np.abs(weight) == 1.0, 0.0, 2.0 * _UNIT * scaled.magnitude)
    return scaled.lower, scaled.upper, np.abs(weight) * off * (1.0 + 4.0 * _UNIT) + rounding


def _scaled(part: WeightedTerms, value: Interval, error: Array, count: int) -> tuple[Any, ...]:
    """The same for all agents of a fleet, in the shape of its weights."""
    if part.weights is None:
        return tuple(np.broadcast_to(v, (1, count)) for v in (value.lower, value.upper, error))
    if not sparse.issparse(part.weights):
        return _product(part.weights, value, error, np.s_[np.newaxis, :], count)
    w = part.weights
    ends = _product(w.data, value, error, w.indices, count)
    return tuple(sparse.csr_array((v, w.indices, w.indptr), shape=w.shape) for v in ends)


def _stacked(part: WeightedTerms, values: Sequence[Any]) -> Any:
    """Values of several terms as rows ``r * terms + t``."""
    if not sparse.issparse(part.weights):
        return np.stack(values, axis=1).reshape(part.rows.size, -1)
    order = np.arange(part.rows.size).reshape(len(values), -1).T.ravel()
    return sparse.csr_array(sparse.vstack(values, format="csr")[order])


def _data(values: Any) -> Any:
    return values.data if sparse.issparse(values) else values


def row_scales(cloud: CloudView) -> Array:
    """Return the scale of every stated constraint, shape (m,), for figures in percent.

    It is ``|b_j|`` of ``sum_i h_ij(x_i) <= b_j``, and in general the constant of ``g_j``; where the
    bound is 0, the width of the range that the row has over the public boxes.
    """
    bound = np.concatenate([np.abs(_constants(family)) for family in cloud.constraints])
    if np.any(bound == 0.0):
        bound = np.where(bound == 0.0, _row_widths(cloud), bound)
    fine = np.isfinite(bound) & (bound > 0.0)
    return read_only(np.where(fine, bound, 1.0))


def _constants(family: Constraint) -> Array:
    found = np.array(family.offset)
    for row, formula in enumerate(family.rest):
        found[row] += float(split_constant(formula)[0])
    return found


def _row_widths(cloud: CloudView) -> Array:
    """How wide the range of every row is over the public boxes."""
    ranges = sum_ranges(cloud.sums, cloud.groups)
    widths: list[float] = []
    for family, origin in zip(cloud.constraints, cloud.sums.origins, strict=True):
        for row in range(family.rows):
            if origin.as_stated or family.sums:
                low, high = ranges[origin.first + row]
            else:
                low, high = _formula_range(cloud, family.formulas[row])
            widths.append(high - low)
    return np.array(widths)


def _formula_range(cloud: CloudView, formula: Expression) -> tuple[float, float]:
    used = formula.symbols
    box = {
        symbol: Interval(lower=group.lower[:1, c], upper=group.upper[:1, c])
        for group in cloud.groups
        for c, symbol in enumerate(group.symbols)
        if symbol in used
    }
    found = evaluate(formula, box)[formula]
    return float(np.min(found.lower)), float(np.max(found.upper))
