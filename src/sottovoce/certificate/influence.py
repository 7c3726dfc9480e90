"""How far agents can move what they add to outputs: ``sup |dh/dx_i|`` over their boxes.

All affine contributions of one agent move together: a difference v of two states moves the sums by
``A v``. Row by row, ``|A v|^2 <= sum_o |a_o|^2 |v|^2`` takes each sum at its own worst direction v;
the largest singular value of A takes one direction for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from sottovoce.certificate.forms import exact
from sottovoce.certificate.supremum import norm_supremum
from sottovoce.errors import CertificateError
from sottovoce.formula.canonical import in_order
from sottovoce.formula.derive import gradient
from sottovoce.formula.enclosure import enclose
from sottovoce.formula.expression import ZERO, Expression, exactly
from sottovoce.formula.intervals import Interval
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.connected import Indices
from sottovoce.problem.constraints import Weights
from sottovoce.problem.fleet import Fleet, Index

UP = 1.0 + 2.0**-50  # more than the rounding of the few products it is applied to
_EPS = 2.0**-52
_PIECE = 1 << 14  # agents whose small matrices are held at once
_FEW = 1000  # different agents up to which each is bounded by branch and bound

Slopes = Mapping[Expression, Expression]


@exactly()
def slope_bounds(
    h: Expression, group: Group, *, convex: bool, tolerance: float
) -> tuple[Array, Array]:
    """Bound ``|dh/dx_i|`` over X_i for every agent i of a fleet; upper bounds and values met.

    Args:
        h: the formula of the agents' contribution.
        group: the agents with their boxes.
        convex: whether it is proven convex; then its slope by a component never decreases in it.
        tolerance: relative gap at which subdivision stops.
    """
    slopes = gradient(exact(h), group.symbols)
    states = {s for d in slopes.values() for s in d.symbols} & set(group.symbols)
    met = _norm(slopes, group, group.lower, group.lower)
    if not states:
        return met, met
    if convex and len(slopes) == len(states) == 1:
        # A convex function of one variable has its steepest slopes at the ends of its interval.
        met = np.maximum(met, _norm(slopes, group, group.upper, group.upper))
        return met, met
    different = _different(h, group)
    if different is None:
        met = np.maximum(met, _norm(slopes, group, group.upper, group.upper))
        return _norm(slopes, group, group.lower, group.upper), met
    first, same = different
    bounds = [_of_agent(h, group, int(i), convex=convex, tolerance=tolerance) for i in first]
    upper, found = np.array(bounds).T
    return upper[same], found[same]


def mixture_bounds(
    fleet: Fleet, owners: Sequence[int], *, convex: bool, tolerance: float
) -> Iterator[tuple[int, float, float]]:
    """Bound the slope of a formula that mixes agents by each of them: agent, bound, value met.

    Args:
        fleet: the formula, as one agent with the states of all of them.
        owners: the agent that each of these belongs to.
        convex: whether the formula is proven convex.
        tolerance: relative gap at which subdivision stops.
    """
    group, formula = fleet.group, fleet.terms[0]
    box = _box(group, 0)
    for agent in dict.fromkeys(owners):
        own = [s for s, owner in zip(group.symbols, owners, strict=True) if owner == agent]
        upper, met = _supremum(formula, own, box, convex=convex, tolerance=tolerance)
        if upper > 0.0:
            yield agent, upper, met


def _different(h: Expression, group: Group) -> tuple[Indices, Indices] | None:
    """Agents with different boxes and numbers, and which of them each agent is; None if many."""
    used = [values for s, values in group.parameters.items() if s in h.symbols]
    one_box = group.lower.strides[0] == 0 == group.upper.strides[0]
    if one_box and not used:
        return np.zeros(1, dtype=np.int64), np.zeros(group.count, dtype=np.int64)
    if group.count > _FEW:
        return None
    facts = np.hstack([group.lower, group.upper, *(a[:, np.newaxis] for a in used)])
    _, first, same = np.unique(facts, axis=0, return_index=True, return_inverse=True)
    return first, same.ravel()


def _box(group: Group, place: int) -> dict[Expression, tuple[float, float]]:
    ends = zip(group.lower[place].tolist(), group.upper[place].tolist(), strict=True)
    return dict(zip(group.symbols, ends, strict=True))


def _of_agent(
    h: Expression, group: Group, place: int, *, convex: bool, tolerance: float
) -> tuple[float, float]:
    own, box = group.fill(h, place), _box(group, place)
    return _supremum(own, group.symbols, box, convex=convex, tolerance=tolerance)


@exactly()
def _supremum(
    formula: Expression,
    symbols: Sequence[Expression],
    box: Mapping[Expression, tuple[float, float]],
    *,
    convex: bool,
    tolerance: float,
) -> tuple[float, float]:
    """Branch and bound for ``|dh/dx|`` by some components; 0 if it depends on none."""
    slopes = gradient(exact(formula), symbols)
    components = [slopes.get(s, ZERO) for s in symbols]
    used = {s for d in components for s in d.symbols}
    if not slopes:
        return 0.0, 0.0
    bound = norm_supremum(
        components,
        {s: box[s] for s in in_order(used)},
        nondecreasing=[frozenset({s}) for s in symbols] if convex else None,
        tolerance=tolerance,
    )
    return bound.upper, bound.found


def _norm(slopes: Slopes, group: Group, lower: Array, upper: Array) -> Array:
    """Bound the length of the gradient of every agent over boxes, shape (count,)."""
    box = {s: Interval(lower=a, upper=a) for s, a in group.parameters.items()}
    box |= {s: Interval(lower=lower[:, c], upper=upper[:, c]) for c, s in enumerate(group.symbols)}
    sizes = []
    for slope in slopes.values():
        bound = enclose(slope, {s: box[s] for s in slope.symbols})
        sizes.append(np.maximum(np.abs(bound.lower), np.abs(bound.upper)))
    norm = sizes[0] if sizes else np.zeros(1)
    if len(sizes) > 1:
        squares = sum(np.square(size) * UP for size in sizes)
        norm = np.sqrt(squares) * (1.0 + (len(sizes) + 8) * 2.0**-52)
    if not np.all(np.isfinite(norm)):
        raise CertificateError(
            f"the slope of {next(iter(slopes.values()))} has no finite bound on the agents' boxes: "
            "tighten the bounds so that every formula stays defined and finite"
        )
    return np.asarray(np.broadcast_to(norm, (group.count,)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _AffineRows:
    """Outputs ``rows[r, t]`` moved by ``W[r, i] (middle[t, i] +- radius[t, i])`` of agent i."""

    rows: NDArray[np.int64]
    weights: Weights
    middle: Array  # (terms, agents or 1, dim)
    radius: Array  # (terms, agents or 1): a bound on the length of what rounding left out

    def strength(self, precision: Array) -> Array:
        """``sum_r W[r, i]^2 precision[rows[r, t]]``, shape (terms, agents or 1)."""
        local = precision[self.rows]
        if self.weights is None:
            return np.asarray(local.T)
        squared = self.weights.power(2) if sparse.issparse(self.weights) else self.weights**2
        return np.asarray((squared.T @ local).T)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Affine:
    """The affine contributions of the agents of one fleet, whose states have several components.

    Attributes:
        agents: their numbers, from 0.
        count: how many agents.
        outputs: the sums they are contributions to, from 0.
        parts: their slopes.
    """

    agents: Index
    count: int
    outputs: NDArray[np.int64]
    parts: tuple[_AffineRows, ...]

    def loads(self, precision: Array) -> Array:
        """``|diag(precision)^(1/2) A_i|_2^2`` for every agent i, rounded up; shape (count,)."""
        strength = [part.strength(precision) for part in self.parts]
        dim = self.parts[0].middle.shape[2]
        slack = (self.outputs.size + 16 * dim + 32) * _EPS
        found = np.empty(self.count)
        for begin in range(0, self.count, _PIECE):
            at = slice(begin, begin + _PIECE)
            gram, lost = np.zeros((1, dim, dim)), np.zeros(1)
            for part, all_of_them in zip(self.parts, strength, strict=True):
                c, b, r = (_of(v, at) for v in (all_of_them, part.middle, part.radius))
                c = np.broadcast_to(c, np.broadcast_shapes(c.shape, r.shape))
                gram = gram + np.einsum("tn,tna,tnb->nab", c, *(np.broadcast_to(
                    b, (*c.shape, dim)),) * 2)  # fmt: skip
                lost = lost + (c * r**2).sum(axis=0)
            # A computed eigenvalue errs by a few roundings of the matrix's size, its trace.
            largest = np.linalg.eigvalsh(gram)[:, -1] + slack * np.trace(gram, axis1=1, axis2=2)
            found[at] = np.square(np.sqrt(largest) + np.sqrt(lost)) * (1.0 + 8.0 * _EPS)
        return found


def affine_parts(fleets: Sequence[Fleet]) -> Iterator[Affine]:
    """Yield what is affine of the fleets whose components some affine contribution mixes."""
    for fleet in fleets:
        found = list(_parts(fleet)) if fleet.places and fleet.group.dim > 1 else []
        if any(np.any(np.count_nonzero(part.middle, axis=2) > 1) for part in found):
            yield Affine(
                agents=fleet.agents,
                count=fleet.group.count,
                outputs=np.unique(np.concatenate([_rows_moved(part) for part in found])),
                parts=tuple(found),
            )


def _rows_moved(part: _AffineRows) -> Indices:
    """The rows with a weight that is not 0: a sum that only lies between them may be curved."""
    if part.weights is None:
        return part.rows.ravel()
    moved = np.asarray((part.weights != 0).sum(axis=1)).ravel() > 0
    return np.asarray(part.rows[moved].ravel())


def _parts(fleet: Fleet) -> Iterator[_AffineRows]:
    slopes_of = [_slopes(h, fleet.group) for h in fleet.terms]
    for part in fleet.parts():
        own = [slopes_of[t] for t in part.terms]
        kept = [column for column, slopes in enumerate(own) if slopes is not None]
        if kept:
            yield _rows(part.rows[:, kept], part.weights, [s for s in own if s is not None])


@exactly()
def _slopes(formula: Expression, group: Group) -> list[Interval] | None:
    """The derivatives of an affine formula by the group's components; None if none or not so."""
    slopes, own = gradient(exact(formula), group.symbols), set(group.symbols)
    if not slopes or any(d.symbols & own for d in slopes.values()):
        return None
    box = {s: Interval(lower=a, upper=a) for s, a in group.parameters.items()}
    derivatives = [slopes.get(s, ZERO) for s in group.symbols]
    return [enclose(d, {s: box[s] for s in d.symbols}) for d in derivatives]


def _rows(rows: Any, weights: Weights, slopes: Sequence[Sequence[Interval]]) -> _AffineRows:
    count = max(np.size(end.lower) for term in slopes for end in term)
    lower, upper = (
        np.array([[np.broadcast_to(e, (count,)) for e in ends] for ends in sides])
        for sides in (
            [[end.lower for end in term] for term in slopes],
            [[end.upper for end in term] for term in slopes],
        )
    )
    middle = lower / 2 + upper / 2
    radius = np.nextafter(np.maximum(upper - middle, middle - lower), np.inf)
    length = np.sqrt(np.square(radius).sum(axis=1)) * (1.0 + (middle.shape[1] + 8) * _EPS)
    return _AffineRows(rows=rows, weights=weights, middle=middle.transpose(0, 2, 1), radius=length)


def _of(values: Array, agents: slice) -> Array:
    return values if values.shape[1] == 1 else values[:, agents]
