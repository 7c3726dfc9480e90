"""Bound tightening: the boxes that public constraints imply; a smaller domain means less noise.

A constraint is propagated forwards and backwards through its formula (HC4). The tree of g is
enclosed from the leaves to the root, the root is cut down to g <= upper, and the cut is carried
back to the leaves: each operation is solved for each of its operands. No point that satisfies the
constraint is ever lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import accumulate
from operator import add, mul
from typing import Any, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sparse

from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import is_even, is_integer, multiply, negate
from sottovoce.formula.derive import gradient
from sottovoce.formula.enclosure import IntervalBox, evaluate
from sottovoce.formula.expression import Expression, Op, Scalar, symbol
from sottovoce.formula.intervals import BoolArray, Interval, interval
from sottovoce.problem.constraints import Constraint
from sottovoce.problem.groups import Array, Group, lower_bounds, read_only, upper_bounds
from sottovoce.problem.problem import CloudView
from sottovoce.problem.sums import Sums

MARGIN = 0.01  # of the new width, by which a side that moved is moved back
_WIDE = 10.0  # margins of components that enter no derivative of a sum
_SWEEPS = 30  # over all constraints, at most
_ZERO = interval(0.0, 0.0)
_ONE = interval(1.0, 1.0)
_MIN_SHRINKAGE = 1e-3  # of a side's width, by which a sweep must shrink one to be followed
_WEIGHT = symbol("weight of the summand")  # no user's symbol has spaces

Boxes = dict[Expression, tuple[Array, Array]]
"""Lower and upper ends per symbol: one per agent, or a single one that all agents share."""


def tightened_domain(cloud: CloudView, *, margin: float = MARGIN) -> tuple[Group, ...]:
    """Return the agents with the boxes that ``g(x) <= 0`` implies, widened by a margin.

    Every x in X with g(x) <= 0 stays inside. Each side that moved is moved back by ``margin`` times
    the new width, but no further than half-way to the original box, beyond which formulas may not
    be defined: a bound that touched a constraint's boundary could become active at the optimum
    beside it and would leave the multipliers without a unique value. Components that enter no
    derivative of a sum get ten times the margin: their bounds make no difference to any
    sensitivity, and a bound just behind the optimum would hide from noisy sums whether a price is
    too small.

    Raises:
        ProblemError: if the propagation proves that no point satisfies all constraints.
    """
    boxes, column, lower, upper = _boxes(cloud.groups)
    sides = []
    for family in cloud.constraints:
        sides += [family, family.times(-1.0)] if family.equality else [family]
    weights = [_linear(side, column) for side in sides]
    for _ in range(_SWEEPS):
        shrunk = 0.0
        for family, linear in zip(sides, weights, strict=True):
            for row in range(family.rows):
                try:
                    if linear is None:
                        shrunk = max(shrunk, _propagate(family, row, boxes))
                    else:
                        offset = float(family.offset[row])
                        shrunk = max(shrunk, _propagate_linear(linear, row, offset, lower, upper))
                except EmptyDomainError as error:
                    raise ProblemError(
                        f"the constraints must have a common point, got none: "
                        f"{family.label(row)} cannot hold where the others do (proven by interval "
                        "propagation); relax one of them"
                    ) from error
        shrunk = max(shrunk, _apply_local_rows(cloud, boxes))
        if shrunk < _MIN_SHRINKAGE:
            break
    bending = set(_nonlinear_components(cloud.sums))
    margins = {s: margin if s in bending else _WIDE * margin for s in boxes}
    groups = tuple(_widened(group, boxes, margins) for group in cloud.groups)
    if not any(cloud.local_rows):
        return groups
    # No margin beyond local constraints: there no price acts on a bound.
    boxes, *_ = _boxes(groups)
    _apply_local_rows(cloud, boxes)
    return tuple(_widened(group, boxes, dict.fromkeys(boxes, 0.0)) for group in groups)


def _boxes(groups: Sequence[Group]) -> tuple[Boxes, dict[Expression, int], Array, Array]:
    """Return all boxes, and the named agents' columns in the vectors that theirs are views of."""
    named = [group for group in groups if group.count == 1]
    lower, upper = lower_bounds(named), upper_bounds(named)
    column = {s: c for c, s in enumerate(s for group in named for s in group.symbols)}
    boxes: Boxes = {
        s: (_shared(group.lower[:, c]), _shared(group.upper[:, c]))
        for group in groups
        for c, s in enumerate(group.symbols)
    }
    boxes |= {s: (lower[c : c + 1], upper[c : c + 1]) for s, c in column.items()}
    return boxes, column, lower, upper


def _apply_local_rows(cloud: CloudView, boxes: Boxes) -> float:
    """Shrink the boxes of all groups to what each agent's own public rows imply."""
    shrunk = 0.0
    rows = (
        (g, row)
        for g, group_rows in zip(cloud.groups, cloud.local_rows, strict=True)
        for row in group_rows
    )
    for group, row in rows:
        for g in (row.g, negate(row.g)) if row.equality else (row.g,):
            summand = _summand(g, group, boxes)
            try:
                contracted = contract(g, summand.local, 0.0)
            except EmptyDomainError as error:
                raise ProblemError(
                    f"constraint {row.label} must hold somewhere in the box of every agent of "
                    f"{group.name}, got a proof that it does not: relax it"
                ) from error
            shrunk = max(shrunk, _write_back(contracted, summand, boxes))
    return shrunk


def _linear(family: Constraint, column: Mapping[Expression, int]) -> Any:
    """The weights of a family over the states of named agents; None if it has anything else."""
    if family.linear is None or family.rest or family.sums:
        return None
    return family.linear.matrix(column, len(column))


def _nonlinear_components(sums: Sums) -> Iterator[Expression]:
    """The components of states that a derivative of a sum depends on."""
    for family in sums.families:
        for h in (*family.rest, *(t for part in family.sums for t in part.terms)):
            for slope in gradient(h, h.symbols).values():
                yield from slope.symbols


def _propagate_linear(weights: Any, row: int, offset: float, lower: Array, upper: Array) -> float:
    """Shrink a box in place to where ``W[row] x + offset <= 0`` can hold, rounded outwards.

    Returns the largest relative shrinkage of a side.
    """
    begin, end = weights.indptr[row : row + 2]
    column, w = weights.indices[begin:end], weights.data[begin:end]
    low, high = lower[column], upper[column]
    lowest = np.nextafter(np.where(w > 0, low, high) * w, -np.inf)
    sizes = float(np.sum(np.abs(lowest))) + abs(offset)
    least = offset + float(np.sum(lowest)) - (w.size + 4) * 2.0**-52 * sizes
    edge = _largest_summands(lowest, least) / w
    edge = np.where(w > 0, np.nextafter(edge, np.inf), np.nextafter(edge, -np.inf))
    new_upper = np.where(w > 0, np.minimum(high, edge), high)
    new_lower = np.where(w > 0, low, np.maximum(low, edge))
    if np.any(new_lower > new_upper):
        raise EmptyDomainError(f"row {row + 1}")
    lower[column], upper[column] = new_lower, new_upper
    return _shrinkage(low, high, new_lower, new_upper)


def _largest_summands(lower: Array, least: float) -> Array:
    """The largest value of each summand beside the ``lower`` ends of the others, rounded up.

    ``least`` is a lower bound of the sum of all.
    """
    room = lower - (least - 4.0 * np.spacing(abs(least)))
    return np.asarray(room + 2.0 * np.spacing(np.maximum(np.abs(room), np.abs(lower))))


def _shrinkage(low: Array, high: Array, new_low: Array, new_high: Array) -> float:
    """The largest share of its width that a side has lost."""
    moved, width = np.broadcast_arrays(np.maximum(new_low - low, high - new_high), high - low)
    return float(np.max(moved[width > 0] / width[width > 0], initial=0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Summand:
    """A part of a row of g, or one part per agent of a fleet: whose it is and on which boxes."""

    formula: Expression
    local: dict[Expression, Interval]
    members: Any  # which agents of the fleet: a slice or an array of indices
    population: int  # of the whole fleet
    count: int  # of the members


def _propagate(family: Constraint, row: int, boxes: Boxes) -> float:
    """Shrink the boxes of one row's agents; return the largest relative shrinkage of a side."""
    summands = list(_summands(family, row, boxes))
    # Points where a formula is undefined satisfy nothing, so they are passed over.
    ends = [evaluate(s.formula, s.local)[s.formula] for s in summands]
    lowers = [np.broadcast_to(e.lower, (s.count,)) for e, s in zip(ends, summands, strict=True)]
    least = float(family.offset[row]) + sum(
        float(np.sum(v)) - v.size * 2.0**-52 * float(np.sum(np.abs(v))) for v in lowers
    )
    is_single = sum(s.count for s in summands) == 1
    if not (is_single or np.isfinite(least)):
        return 0.0
    shrunk = 0.0
    for summand, end, lower in zip(summands, ends, lowers, strict=True):
        room = -family.offset[[row]] if is_single else _largest_summands(lower, least)
        if np.any(end.upper > room):
            contracted = contract(summand.formula, summand.local, room)
            shrunk = max(shrunk, _write_back(contracted, summand, boxes))
    return shrunk


def _summands(family: Constraint, row: int, boxes: Boxes) -> Iterator[_Summand]:
    if family.rest:
        g = family.rest[row]
        local = {s: Interval(lower=boxes[s][0], upper=boxes[s][1]) for s in g.symbols}
        yield _Summand(formula=g, local=local, members=slice(None), population=1, count=1)
    for part in family.sums:
        h = part.terms[row % len(part.terms)]
        if part.weights is None:
            yield _summand(h, part.group, boxes)
            continue
        weights, members = part.weights[[row // len(part.terms)], :], slice(None)
        if sparse.issparse(weights):
            values, members = weights.data, weights.indices
        else:
            values = np.asarray(weights).ravel()
        summand = _summand(h, part.group, boxes, members)
        local = {_WEIGHT: Interval(lower=values, upper=values), **summand.local}
        yield replace(summand, formula=multiply(_WEIGHT, h), local=local, count=len(values))


def _summand(
    formula: Expression, group: Group, boxes: Boxes, members: Any = slice(None)
) -> _Summand:
    """A formula of some agents of a group, on their boxes."""
    local = {}
    for s in formula.symbols:
        fixed = group.parameters.get(s)
        low, high = boxes[s] if fixed is None else (fixed, fixed)
        local[s] = Interval(lower=_select(low, members), upper=_select(high, members))
    return _Summand(
        formula=formula, local=local, members=members, population=group.count, count=group.count
    )


def _write_back(contracted: dict[Expression, Interval], summand: _Summand, boxes: Boxes) -> float:
    shrunk = 0.0
    for s in summand.local.keys() & boxes.keys():
        old, new = summand.local[s], contracted[s]
        share = _shrinkage(old.lower, old.upper, new.lower, new.upper)
        if share == 0.0:
            continue
        shrunk = max(shrunk, share)
        if summand.population == 1:
            boxes[s][0][:], boxes[s][1][:] = new.lower, new.upper
            continue
        lower, upper = (np.broadcast_to(end, (summand.population,)).copy() for end in boxes[s])
        lower[summand.members], upper[summand.members] = new.lower, new.upper
        boxes[s] = (lower, upper)
    return shrunk


def _widened(group: Group, boxes: Boxes, margins: Mapping[Expression, float]) -> Group:
    lower, upper = list(group.lower.T), list(group.upper.T)
    moved = False
    for c, s in enumerate(group.symbols):
        low, high = boxes[s]
        if (low > lower[c]).any() or (high < upper[c]).any():
            moved = True
            extra = margins[s] * (high - low)
            lower[c] = low - np.minimum(extra, (low - lower[c]) / 2.0)
            upper[c] = high + np.minimum(extra, (upper[c] - high) / 2.0)
    if not moved:
        return group
    return replace(group, lower=read_only(np.stack(lower, 1)), upper=read_only(np.stack(upper, 1)))


def _shared(values: Array) -> Array:
    """A bound that is the same for all agents as one value, to save memory."""
    return values[:1] if values.strides == (0,) else values


def _select(values: Array, members: Any) -> Array:
    return values if values.size == 1 else values[members]


@final
class EmptyDomainError(ProblemError):
    """A constraint is proven to hold at no point of the box."""

    def __init__(self, constraint: object) -> None:
        super().__init__(
            f"the constraint {constraint} <= 0 must hold somewhere within the bounds and the other "
            "constraints, got a proof that it holds nowhere; widen the bounds or relax it"
        )


def contract(
    expr: Expression, box: IntervalBox, upper: npt.ArrayLike = 0.0
) -> dict[Expression, Interval]:
    """Enclose {x in box : expr(x) <= upper}, box by box; points without a value do not count.

    ``EmptyDomainError`` is a proof that some box has no such point.
    """
    image = evaluate(expr, box)
    intersect = partial(_intersection, constraint=expr)
    image[expr] = intersect(image[expr], interval(-np.inf, upper))
    for node in reversed(list(image)):
        for child, allowed in _solved(node, image):
            image[child] = intersect(image[child], allowed)
    return {symbol: image.get(symbol, side) for symbol, side in box.items()}


def _intersection(value: Interval, allowed: Interval, constraint: object) -> Interval:
    lower = np.maximum(value.lower, allowed.lower)
    upper = np.minimum(value.upper, allowed.upper)
    if np.any(lower > upper):
        raise EmptyDomainError(constraint)
    return Interval(lower=lower, upper=upper)


def _solved(
    node: Expression, image: Mapping[Expression, Interval]
) -> Iterator[tuple[Expression, Interval]]:
    """Solve node = image[node] for each operand, given the images of the other operands."""
    result, children = image[node], node.args
    if node.op == Op.ADD:
        for child, rest in zip(children, _all_but_one(children, image, add, _ZERO), strict=True):
            yield child, result - rest
    elif node.op == Op.MUL:
        for child, rest in zip(children, _all_but_one(children, image, mul, _ONE), strict=True):
            yield child, _quotient(result, rest)
    elif node.op == Op.POW:
        yield children[0], _base(result, node.value, image[children[0]])
    elif node.op == Op.EXP:
        yield children[0], result.log()
    elif node.op == Op.LOG:
        yield children[0], result.exp()
    elif node.op in (Op.MAX, Op.ABS, Op.NORM):
        lower = -np.inf if node.op == Op.MAX else -result.upper
        yield from ((child, interval(lower, result.upper)) for child in children)


def _all_but_one(
    children: Sequence[Expression],
    image: Mapping[Expression, Interval],
    operation: Callable[[Interval, Interval], Interval],
    unit: Interval,
) -> Iterator[Interval]:
    """Combine, for each child in turn, all the other ones."""
    values = [image[child] for child in children]
    before = accumulate(values[:-1], operation, initial=unit)
    after = list(accumulate(values[:0:-1], operation, initial=unit))
    return map(operation, before, reversed(after))


def _quotient(result: Interval, divisor: Interval) -> Interval:
    """Enclose the x with x * d in `result` for some d in `divisor`."""
    quotient = result * divisor.reciprocal()
    free = _holds_zero(result) & _holds_zero(divisor)
    return interval(np.where(free, -np.inf, quotient.lower), np.where(free, np.inf, quotient.upper))


def _holds_zero(value: Interval) -> BoolArray:
    holds: BoolArray = (value.lower <= 0) & (value.upper >= 0)
    return holds


def _base(result: Interval, exponent: Scalar, base: Interval) -> Interval:
    """Enclose the x in `base` with x**exponent in `result`."""
    if exponent < 0:
        return _base(result.reciprocal(), -exponent, base)
    inverse = 1 / Fraction(exponent)
    root = result.nonnegative_part().power(inverse)
    if not is_integer(exponent):
        return root
    if not is_even(exponent):
        return root - (-result).nonnegative_part().power(inverse)
    # x lies in [-b, -a] or in [a, b]; the box may rule one of the two out.
    only_positive = base.lower > -root.lower
    only_negative = (base.upper < root.lower) & ~only_positive
    return interval(
        np.where(only_positive, root.lower, -root.upper),
        np.where(only_negative, -root.lower, root.upper),
    )
