"""Slater's condition: a point of X at which inequalities hold strictly and equalities hold."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from sottovoce.errors import CertificateError
from sottovoce.formula.enclosure import enclose
from sottovoce.formula.expression import Expression
from sottovoce.formula.intervals import Interval
from sottovoce.problem.agents import Array, Group, lower_bounds, upper_bounds
from sottovoce.problem.numeric import Jacobian, Part, Rows
from sottovoce.problem.problem import CloudView

_SMALL = 200  # states and rows up to which the slack is maximised, not just made positive
_STEPS = 200
_STEPS_OF_MILLIONS = 20
_EPS = 2.0**-52
_GAP = 1e-9  # how near the largest slack must be, relative to it
_FAR = 1e12  # a slack beyond this is as good
_MET = 1e-9  # how far an equality may be off, relative to the numbers it adds up
_ROOM = 1e-7  # the least slack, likewise, that an inequality must have beside equalities


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlaterPoint:
    """A point x of X with ``g_j(x) < 0`` for all j, or the best that was found.

    Attributes:
        point: x, flat, shape (N,).
        slack: a certified upper bound of ``max_j g_j(x)``: negative if the condition is proven.
        status: "proven", "numerical" (equalities are met up to rounding) or "fails".
        how: what was found, in one sentence.
    """

    point: Array
    slack: float
    status: Literal["proven", "numerical", "fails"]
    how: str


def slater_point(cloud: CloudView, domain: Sequence[Group]) -> SlaterPoint:
    """Find x in X with ``max_j g_j(x) < 0`` and certify it in outward-rounded arithmetic.

    In small problems x comes close to the largest slack, ``min_x max_j g_j(x)``; for fleets the
    first point that will do is taken. The paper assumes that there is one; here it is shown.
    Affine equalities need no interior, only a point of the box that meets them together with the
    inequalities: no float may do so exactly, so that this part is checked, not proven.

    Args:
        cloud: the constraints g.
        domain: the same agents with the boxes X_i in which to look.
    """
    constraints = _Constraints(cloud)
    small = max(cloud.size, cloud.rows) <= _SMALL
    equal = bool(constraints.equal.any())
    best, least = np.empty(0), np.inf
    for point in _candidates(constraints, domain):
        if equal:
            point = _met(constraints, domain, point)
        worst = constraints.worst(point)
        if worst < least or not best.size:
            best, least = point, worst
        if least < 0.0:
            break
    if small:
        best = _polished(constraints, domain, best)
    best.flags.writeable = False
    upper = constraints.upper(best)
    labels = cloud.row_labels()
    if equal and constraints.missed(best) > _MET:
        row = int(np.argmax(np.where(constraints.equal, np.abs(upper), -np.inf)))
        how = (
            f"a point of the box that meets the equalities must exist, got none: {labels[row]} is "
            f"off by {abs(upper[row]):.6g} at the best point found; widen the boxes"
        )
        return SlaterPoint(point=best, slack=np.inf, status="fails", how=how)
    if equal:
        # Where equalities are met to rounding only, slack of that size is none.
        upper = np.where(constraints.equal, -np.inf, upper + _ROOM * constraints.scales(best))
    row = int(upper.argmax())
    slack = float(upper[row])
    if slack < 0.0:
        how = f"max_j g_j(x) is {slack:.6g} at a point found (bounded by interval arithmetic)"
        if equal:
            how = f"{how if np.isfinite(slack) else 'no inequalities'}; equalities met to rounding"
        status: Literal["proven", "numerical"] = "numerical" if equal else "proven"
        return SlaterPoint(point=best, slack=slack, status=status, how=how)
    how = (
        f"a point with g(x) < 0 must exist, got none: {labels[row]} is {slack:.6g} at "
        "the best point found; relax the constraints or widen the boxes"
    )
    return SlaterPoint(point=best, slack=slack, status="fails", how=how)


class _Constraints:
    """The rows of g as numbers: values, derivatives and certified upper bounds."""

    def __init__(self, cloud: CloudView) -> None:
        self._rows = Rows(cloud, cloud.constraints)
        self.blocks = self._rows.blocks
        self.equal = self._rows.equality

    def values(self, x: Array) -> Array:
        """``g(x)`` in floating point, shape (m,)."""
        return self._rows.values(x)

    def worst(self, x: Array) -> float:
        """``max_j g_j(x)`` over the inequalities, infinite where g is not defined."""
        g = self.values(x)[~self.equal]
        return float(np.where(np.isfinite(g), g, np.inf).max(initial=-np.inf))

    def missed(self, x: Array) -> float:
        """``max_j |g_j(x)|`` over the equalities, relative to the size of what adds up to it."""
        if not self.equal.any():
            return 0.0
        return float(np.max(np.abs(self.values(x) / self.scales(x))[self.equal]))

    def scales(self, x: Array) -> Array:
        """``1 + |dg_j/dx| |x|`` for every row: the size of the numbers that it adds up."""
        slopes = self.slopes(x)
        parts = ((replace(p, weights=_size(p.weights)), np.abs(s)) for p, s in slopes.parts)
        sizes = replace(slopes, parts=tuple(parts), named=abs(slopes.named))
        return 1.0 + sizes.times(np.abs(x))

    def pullback(self, x: Array, weights: Array) -> Array:
        """``sum_j weights_j dg_j/dx (x)``, shape (N,)."""
        return self._rows.pullback(x, weights)

    def slopes(self, x: Array) -> Jacobian:
        """``dg/dx``, agent by agent."""
        return self._rows.jacobian(x)

    def jacobian(self, x: Array) -> Array:
        """``dg/dx``, dense, shape (m, N)."""
        return self.slopes(x).dense()

    def upper(self, x: Array) -> Array:
        """Certified upper bounds of ``g(x)``, shape (m,), infinite where g may be undefined."""
        named = self._rows.named
        total, size = self._rows.offset.copy(), np.abs(self._rows.offset)
        count = np.diff(named.linear.indptr) + 2.0
        total += named.linear @ x
        size += abs(named.linear) @ np.abs(x)
        for terms in named.terms:
            known = dict(zip(terms.form.symbols, x[terms.columns].T, strict=True))
            _, upper = _ends(terms.formula, known | terms.parameters, len(terms.rows))
            np.add.at(total, terms.rows, upper)
            np.add.at(size, terms.rows, np.abs(upper))
            np.add.at(count, terms.rows, 1.0)
        for part in self._rows.parts:
            upper, magnitude = _upper(part, x)
            total[part.rows] += upper
            size[part.rows] += magnitude
        # n terms summed in any order err by less than n roundings of the sum of their sizes.
        bound = total + (count + len(self._rows.parts) + 4) * _EPS * size
        return np.where(np.isnan(bound), np.inf, bound)


def _upper(part: Part, x: Array) -> tuple[Array, Array]:
    """Bound ``sum_i W[r, i] h_t(x_i)`` from above, and its size; two arrays (r, terms)."""
    block = part.formulas.block
    known = {**dict(zip(block.symbols, block.of(x).T, strict=True)), **block.parameters}
    bounds = [_weighted_upper(part, *_ends(h, known, block.count)) for h in part.formulas.exprs]
    upper, size = (np.stack(columns, axis=1) for columns in zip(*bounds, strict=True))
    return upper, size


def _ends(h: Expression, known: Mapping[Expression, Array], count: int) -> tuple[Array, Array]:
    """Enclose h for all agents; NaN throughout if it may be undefined for one."""
    box = {s: Interval(lower=known[s], upper=known[s]) for s in h.symbols}
    shape = (count,)
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


def _met(constraints: _Constraints, domain: Sequence[Group], near: Array) -> Array:
    """The point of the box that misses the equalities least, starting from a point nearby.

    Newton's steps to the solutions, each by the states that no bound has stopped.
    """
    lower, upper = lower_bounds(domain), upper_bounds(domain)
    best, free = near, lower < upper
    x = near
    for _ in range(_STEPS):
        slopes = constraints.slopes(x)
        left = np.where(constraints.equal, constraints.values(x), 0.0)
        masks = [_diagonal(block.of(free)) for block in constraints.blocks]
        gram = slopes.gram(masks)[np.ix_(constraints.equal, constraints.equal)]
        push = np.zeros_like(left)
        push[constraints.equal] = np.linalg.pinv(gram, hermitian=True) @ left[constraints.equal]
        step = -slopes.pullback(push) * free
        x = np.clip(x + step, lower, upper)
        if constraints.missed(x) < constraints.missed(best):
            best = x
        stopped = free & (((x <= lower) & (step < 0)) | ((x >= upper) & (step > 0)))
        if constraints.missed(best) <= _MET / 1e3 or not stopped.any():
            break
        free = free & ~stopped
    return np.array(best)


def _diagonal(mask: Any) -> Array:
    """Ones on the diagonal for the free components of every agent, shape (count, dim, dim)."""
    return np.asarray(mask[:, :, np.newaxis] * np.eye(mask.shape[1]))


def _size(weights: Any) -> Any:
    return None if weights is None else abs(weights)


def _polished(constraints: _Constraints, domain: Sequence[Group], start: Array) -> Array:
    """Minimise t subject to ``g(x) <= t`` and x in X; return the start if that does no better.

    A linear program over the tangents at the start: where rows are affine, that is all of it.
    """
    if constraints.equal.all() and constraints.missed(start) <= _MET:
        return start
    lower, upper = lower_bounds(domain), upper_bounds(domain)
    x, least = _by_tangents(constraints, lower, upper, start)
    best = _better(constraints, start, x)
    if constraints.worst(best) - least <= _GAP * (1.0 + abs(least)):
        return best
    return _better(constraints, best, _by_steps(constraints, lower, upper, best))


def _better(constraints: _Constraints, now: Array, new: Array) -> Array:
    """The point that meets the equalities; of two that do, the one with the larger slack."""
    keys = [(max(constraints.missed(x), _MET), constraints.worst(x)) for x in (now, new)]
    return new if keys[1] < keys[0] else now


def _by_tangents(
    constraints: _Constraints, lower: Array, upper: Array, start: Array
) -> tuple[Array, float]:
    """Minimise t over the tangents of the rows at the start, and t, which no point is below."""
    from scipy.optimize import linprog  # slow to load, and large problems do without

    slopes, values, equal = (
        constraints.jacobian(start),
        constraints.values(start),
        constraints.equal,
    )
    if not (np.isfinite(slopes).all() and np.isfinite(values).all()):
        return start, -np.inf
    matrix = np.hstack([slopes, np.where(equal, 0.0, -1.0)[:, np.newaxis]])
    right = slopes @ start - values
    found = linprog(
        np.eye(1, start.size + 1, start.size)[0],
        A_ub=matrix[~equal],
        b_ub=right[~equal],
        A_eq=matrix[equal],
        b_eq=right[equal],
        bounds=[*zip(lower, upper, strict=True), (-_FAR, None)],
    )
    if found.x is None:
        return start, -np.inf
    return np.clip(found.x[:-1], lower, upper), float(found.x[-1])


def _by_steps(constraints: _Constraints, lower: Array, upper: Array, start: Array) -> Array:
    """The same for rows that curve, by sequential quadratic programs."""
    from scipy import optimize  # as above

    minimize: Any = optimize.minimize
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # the result is checked, whatever the solver says
        found = minimize(
            lambda z: z[-1],
            np.append(start, max(constraints.worst(start), -1e6)),
            jac=lambda z: np.eye(1, z.size, z.size - 1)[0],
            method="SLSQP",
            bounds=[*zip(lower, upper, strict=True), (None, None)],
            constraints=_conditions(constraints),
            options={"maxiter": 200, "ftol": 1e-9},
        )
    return np.asarray(np.clip(found.x[:-1], lower, upper))


def _conditions(constraints: _Constraints) -> list[dict[str, Any]]:
    """``g(x) <= t`` for inequalities and ``g(x) = 0`` for equalities, for SLSQP."""
    conditions = []
    for kind, rows, share in (("ineq", ~constraints.equal, 1.0), ("eq", constraints.equal, 0.0)):
        column = np.full((int(rows.sum()), 1), share)
        if rows.any():
            conditions.append(
                {
                    "type": kind,
                    "fun": lambda z, r=rows, s=share: s * z[-1] - constraints.values(z[:-1])[r],
                    "jac": lambda z, r=rows, c=column: np.hstack(
                        [-constraints.jacobian(z[:-1])[r], c]
                    ),
                }
            )
    return conditions
