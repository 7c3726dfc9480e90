"""Slater's condition: a point of X at which every constraint holds strictly."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.optimize as optimize
import sympy as sp

from sottovoce.certify.interval import Interval, enclose
from sottovoce.errors import CertificateError
from sottovoce.problem.agents import Array, Group, lower_bounds, upper_bounds
from sottovoce.problem.numeric import Block, Formulas, Jacobian, Part, blocks_of
from sottovoce.problem.problem import CloudView

_SMALL = 200  # states and rows up to which the slack is maximised, not just made positive
_STEPS = 200
_STEPS_OF_MILLIONS = 20
_EPS = 2.0**-52


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlaterPoint:
    """A point x of X with ``g_j(x) < 0`` for all j, or the best that was found.

    Attributes:
        point: x, flat, shape (N,).
        slack: a certified upper bound of ``max_j g_j(x)``: negative if the condition is proven.
        status: "proven" or "fails".
        how: what was found, in one sentence.
    """

    point: Array
    slack: float
    status: Literal["proven", "fails"]
    how: str


def slater_point(cloud: CloudView, domain: Sequence[Group]) -> SlaterPoint:
    """Find x in X with ``max_j g_j(x) < 0`` and certify it in outward-rounded arithmetic.

    In small problems x comes close to the largest slack, ``min_x max_j g_j(x)``; for fleets the
    first point that will do is taken. The paper assumes that there is one; here it is shown.

    Args:
        cloud: the constraints g.
        domain: the same agents with the boxes X_i in which to look.
    """
    constraints = _Constraints(cloud)
    small = max(cloud.size, cloud.rows) <= _SMALL
    best, least = np.empty(0), np.inf
    for point in _candidates(constraints, domain):
        worst = constraints.worst(point)
        if worst < least or not best.size:
            best, least = point, worst
        if least < 0.0 and not small:
            break
    if small:
        best = _polished(constraints, domain, best)
    best.flags.writeable = False
    upper = constraints.upper(best)
    row = int(upper.argmax())
    slack = float(upper[row])
    if slack < 0.0:
        how = f"max_j g_j(x) is {slack:.6g} at a point found (bounded by interval arithmetic)"
        return SlaterPoint(point=best, slack=slack, status="proven", how=how)
    how = (
        f"a point with g(x) < 0 must exist, got none: {cloud.row_labels()[row]} is {slack:.6g} at "
        "the best point found; relax the constraints or widen the boxes"
    )
    return SlaterPoint(point=best, slack=slack, status="fails", how=how)


class _Constraints:
    """The rows of g as numbers: values, derivatives and certified upper bounds."""

    def __init__(self, cloud: CloudView) -> None:
        self.blocks, place = blocks_of(cloud.groups)
        self.size = cloud.size
        self.offset = np.concatenate([family.offset for family in cloud.constraints])
        self.parts: list[Part] = []
        first = 0
        for family in cloud.constraints:
            rows = first + np.arange(family.rows)
            if family.rest:
                formulas = Formulas(family.rest, self.blocks[0])
                self.parts.append(Part(rows=rows[np.newaxis], weights=None, formulas=formulas))
            for part in family.sums:
                formulas = Formulas(part.terms, place[part.group.name])
                shaped = rows.reshape(-1, len(part.terms))
                self.parts.append(Part(rows=shaped, weights=part.weights, formulas=formulas))
            first += family.rows

    def values(self, x: Array) -> Array:
        """``g(x)`` in floating point, shape (m,)."""
        out = self.offset.copy()
        for part in self.parts:
            out[part.rows] += part.gather(part.formulas.values(part.formulas.block.of(x)))
        return out

    def worst(self, x: Array) -> float:
        """``max_j g_j(x)``, infinite where g is not defined."""
        g = self.values(x)
        return float(np.where(np.isfinite(g), g, np.inf).max())

    def pullback(self, x: Array, weights: Array) -> Array:
        """``sum_j weights_j dg_j/dx (x)``, shape (N,)."""
        out = np.zeros(self.size)
        for part in self.parts:
            block = part.formulas.block
            slope = part.formulas.pullback(block.of(x), part.spread(weights))
            out[block.index] += slope.ravel()
        return out

    def jacobian(self, x: Array) -> Array:
        """``dg/dx``, dense, shape (m, N)."""
        slopes = ((p, p.formulas.gradients(p.formulas.block.of(x))) for p in self.parts)
        shape = (self.offset.size, self.size)
        return Jacobian(shape=shape, blocks=self.blocks, parts=tuple(slopes)).dense()

    def upper(self, x: Array) -> Array:
        """Certified upper bounds of ``g(x)``, shape (m,), infinite where g may be undefined."""
        total, size = self.offset.copy(), np.abs(self.offset)
        for part in self.parts:
            upper, magnitude = _upper(part, x)
            total[part.rows] += upper
            size[part.rows] += magnitude
        bound = total + (len(self.parts) + 2) * _EPS * size
        return np.where(np.isnan(bound), np.inf, bound)


def _upper(part: Part, x: Array) -> tuple[Array, Array]:
    """Bound ``sum_i W[r, i] h_t(x_i)`` from above, and its size; two arrays (r, terms)."""
    block = part.formulas.block
    known = {**dict(zip(block.symbols, block.of(x).T, strict=True)), **block.parameters}
    bounds = [_weighted_upper(part, *_ends(h, known, block)) for h in part.formulas.exprs]
    upper, size = (np.stack(columns, axis=1) for columns in zip(*bounds, strict=True))
    return upper, size


def _ends(h: sp.Expr, known: Mapping[sp.Symbol, Array], block: Block) -> tuple[Array, Array]:
    """Enclose h for every agent of a block; NaN throughout if it may be undefined for one."""
    box = {s: Interval(lower=known[s], upper=known[s]) for s in h.free_symbols}
    shape = (block.count,)
    try:
        found = enclose(h, box)
    except CertificateError:
        found = None
    if found is None or not (np.isfinite(found.lower).all() and np.isfinite(found.upper).all()):
        return np.full(shape, np.nan), np.full(shape, np.nan)
    return np.broadcast_to(found.lower, shape), np.broadcast_to(found.upper, shape)


def _weighted_upper(part: Part, lower: Array, upper: Array) -> tuple[Array, Array]:
    # n terms summed in any order err by less than n roundings of the sum of their sizes.
    slack = (lower.size + 4) * _EPS
    if part.weights is None:
        size = np.abs(upper).sum(keepdims=True)
        return upper.sum(keepdims=True) + slack * size, size
    middle = lower / 2 + upper / 2
    radius = np.nextafter(np.maximum(upper - middle, middle - lower), np.inf)
    weights = abs(part.weights)
    size = np.asarray(weights @ (np.abs(middle) + radius))
    above = np.asarray(part.weights @ middle) + np.asarray(weights @ radius)
    return above + 2.0 * slack * size, size


def _candidates(constraints: _Constraints, domain: Sequence[Group]) -> Iterator[Array]:
    """Yield the lower corner, the upper corner, the centre, then conditional gradient steps.

    Each step moves towards the corner that is best for the constraints nearest to violation,
    linearised and weighted by how near they are.
    """
    lower = lower_bounds(domain)
    yield lower
    upper = upper_bounds(domain)
    yield upper
    x = lower / 2 + upper / 2
    yield x
    for step in range(_STEPS if x.size <= 10**6 else _STEPS_OF_MILLIONS):
        g = np.nan_to_num(constraints.values(x), nan=0.0, posinf=0.0, neginf=0.0)
        spread = max(float(g.max() - g.min()), 1e-12) / (step + 1)
        weights = np.exp((g - g.max()) / spread)
        slope = constraints.pullback(x, weights / weights.sum())
        corner = np.where(slope > 0, lower, upper)
        # In place, because a fleet's vector of states can fill a tenth of the memory.
        corner -= x
        corner *= 2.0 / (step + 2)
        corner += x
        x = np.clip(corner, lower, upper, out=corner)
        yield x


def _polished(constraints: _Constraints, domain: Sequence[Group], start: Array) -> Array:
    """Minimise t subject to ``g(x) <= t`` and x in X; return the start if that does no better."""
    lower = lower_bounds(domain)
    upper = upper_bounds(domain)
    ones = np.ones((constraints.offset.size, 1))
    minimize: Any = optimize.minimize
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # the result is checked below, whatever the solver says
        found = minimize(
            lambda z: z[-1],
            np.append(start, constraints.worst(start)),
            jac=lambda z: np.eye(1, z.size, z.size - 1)[0],
            method="SLSQP",
            bounds=[*zip(lower, upper, strict=True), (None, None)],
            constraints={
                "type": "ineq",
                "fun": lambda z: z[-1] - constraints.values(z[:-1]),
                "jac": lambda z: np.hstack([-constraints.jacobian(z[:-1]), ones]),
            },
            options={"maxiter": 200, "ftol": 1e-9},
        )
    point = np.clip(found.x[:-1], lower, upper)
    better = constraints.worst(point) < constraints.worst(start)
    return point if better else start
