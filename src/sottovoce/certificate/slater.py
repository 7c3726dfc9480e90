"""Slater's condition: a point of X at which inequalities hold strictly and equalities hold.

The cloud looks for one in the boxes. Where agents keep local sets, which the cloud does not know,
the holder of the whole problem looks inside them; local rows themselves need no interior.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import scipy.sparse as sparse

from sottovoce.certificate.contributions import row_ranges
from sottovoce.certificate.kkt import InteriorPoint
from sottovoce.certificate.smooth_form import smooth_form, unchecked_problem
from sottovoce.errors import SottovoceError
from sottovoce.formula.expression import ZERO, symbol
from sottovoce.problem.agents import Array, Group, lower_bounds, read_only, upper_bounds
from sottovoce.problem.constraints import Constraint
from sottovoce.problem.linear_rows import linear_rows
from sottovoce.problem.local import ROW_TOLERANCE, box_of
from sottovoce.problem.numeric import Numeric, numeric_of
from sottovoce.problem.problem import CloudView, Problem

_SMALL = 200  # states and rows up to which the slack is maximised, not just made positive
_STEPS = 200  # of the conditional gradient, and of Newton's method for equalities
_LARGE = 10**6  # states beyond which fewer steps are taken
_STEPS_OF_LARGE = 20
_DEFINITE = 1e-10  # of the trace, below which a Gram matrix is solved by least squares
_GAP = 1e-9  # how near the largest slack must be, relative to the range of the rows
_LOCAL = 1e-6  # how far a local row or an equality beside it may be off, likewise
_ROOM = 1e-7  # the least slack, likewise, that an inequality must have beside equalities


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlaterPoint:
    """A point x of X, shape (N,), with ``g_j(x) < 0`` for all j, or the best that was found.

    ``slack`` is a certified upper bound of ``max_j g_j(x)``, negative if the condition is proven;
    it is "numerical" where equalities are met up to rounding. ``detail`` is one sentence about it.
    """

    point: Array
    slack: float
    status: Literal["proven", "numerical", "fails"]
    detail: str


def slater_point(cloud: CloudView, domain: Sequence[Group]) -> SlaterPoint:
    """Find x in the boxes of ``domain`` with ``max_j g_j(x) < 0`` and certify it by intervals.

    In small problems x comes close to the largest slack, ``min_x max_j g_j(x)``; for fleets the
    first point that will do is taken. Affine equalities need no interior, only a point of the box
    that meets them together with the inequalities: no float may do so exactly, so that this part
    is checked, not proven.
    """
    if not cloud.rows:
        center = lower_bounds(domain) / 2 + upper_bounds(domain) / 2
        detail = "there are no constraints that couple agents"
        return SlaterPoint(point=center, slack=-np.inf, status="proven", detail=detail)
    constraints = _Constraints(cloud)
    small = max(cloud.size, cloud.rows) <= _SMALL
    has_equalities = bool(constraints.equal.any())
    best, least = np.empty(0), np.inf
    for candidate in _candidates(constraints, domain):
        point = _restore_equalities(constraints, domain, candidate) if has_equalities else candidate
        worst = constraints.violation(point)
        if worst < least or not best.size:
            best, least = point, worst
        if least < 0.0:
            break
    if small and not (constraints.equal.all() and constraints.residual(best) <= ROW_TOLERANCE):
        best = min(
            (best, *_points_of_most_slack(cloud, domain)),
            key=lambda x: (max(constraints.residual(x), ROW_TOLERANCE), constraints.violation(x)),
        )
    best.flags.writeable = False
    upper = constraints.upper(best)
    if constraints.residual(best) > ROW_TOLERANCE:
        row = int(np.argmax(np.where(constraints.equal, np.abs(upper), -np.inf)))
        detail = (
            "a point of the box that meets the equalities must exist, got none: "
            f"{cloud.row_labels()[row]} is off by {abs(upper[row]):.6g} at the best point found; "
            "widen the boxes"
        )
        return SlaterPoint(point=best, slack=np.inf, status="fails", detail=detail)
    if has_equalities:
        # Where equalities are met to rounding only, slack of that size is none.
        upper = np.where(constraints.equal, -np.inf, upper + _ROOM * constraints.scales(best))
    row = int(upper.argmax())
    slack = float(upper[row])
    if not slack < 0.0:
        detail = (
            f"a point with g(x) < 0 must exist, got none: {cloud.row_labels()[row]} is {slack:.6g} "
            "at the best point found; relax the constraints or widen the boxes"
        )
        return SlaterPoint(point=best, slack=slack, status="fails", detail=detail)
    detail = f"max_j g_j(x) is {slack:.6g} at a point found (bounded by interval arithmetic)"
    if not has_equalities:
        return SlaterPoint(point=best, slack=slack, status="proven", detail=detail)
    detail = f"{detail if np.isfinite(slack) else 'no inequalities'}; equalities met to rounding"
    return SlaterPoint(point=best, slack=slack, status="numerical", detail=detail)


class _Constraints:
    """The rows of g as numbers: values, derivatives and certified upper bounds."""

    def __init__(self, cloud: CloudView) -> None:
        self.rows = Numeric(cloud)
        self.equal = self.rows.equality

    def violation(self, x: Array) -> float:
        """``max_j g_j(x)`` over the inequalities, infinite where g is not defined."""
        g = self.rows.constraints(x)[~self.equal]
        return float(np.where(np.isfinite(g), g, np.inf).max(initial=-np.inf))

    def residual(self, x: Array) -> float:
        """``max_j |g_j(x)|`` over the equalities, relative to the size of what adds up to it."""
        if not self.equal.any():
            return 0.0
        return float(np.max(np.abs(self.rows.constraints(x) / self.scales(x))[self.equal]))

    def scales(self, x: Array) -> Array:
        """``1 + |dg_j/dx| |x|`` for every row: the size of the numbers that it adds up."""
        return 1.0 + np.asarray(abs(self.rows.jacobian(x)) @ np.abs(x))

    def upper(self, x: Array) -> Array:
        """Certified upper bounds of ``g(x)``, shape (m,), infinite where g may be undefined."""
        fleets = [
            replace(f, group=replace(f.group, lower=f.select(x), upper=f.select(x)))
            for f in (member.fleet for member in self.rows.members)
        ]
        _, above = row_ranges(fleets, self.equal.size, where_defined=False)
        return np.nextafter(above + self.rows.offset, np.inf)


def _candidates(constraints: _Constraints, domain: Sequence[Group]) -> Iterator[Array]:
    """Yield the lower corner, the upper corner, the centre, then conditional gradient steps.

    A step moves towards the best corner for the linearised constraints, weighted by how near they
    are to violation.
    """
    lower = lower_bounds(domain)
    yield lower
    upper = upper_bounds(domain)
    yield upper
    x = lower / 2 + upper / 2
    yield x
    for step in range(_STEPS if x.size <= _LARGE else _STEPS_OF_LARGE):
        g = np.nan_to_num(constraints.rows.constraints(x), nan=0.0, posinf=0.0, neginf=0.0)
        spread = max(float(g.max() - g.min()), 1e-12) / (step + 1)
        weights = np.exp((g - g.max()) / spread)
        slope = constraints.rows.pullback(x, weights / weights.sum())
        corner = np.where(slope > 0, lower, upper)
        # In place, because a fleet's vector of states can fill a tenth of the memory.
        corner -= x
        corner *= 2.0 / (step + 2)
        corner += x
        x = np.clip(corner, lower, upper, out=corner)
        yield x


def _restore_equalities(constraints: _Constraints, domain: Sequence[Group], start: Array) -> Array:
    """The point of the box that misses the equalities least, by Newton's method from ``start``.

    Each step is the shortest by the states that no bound has stopped.
    """
    lower, upper = lower_bounds(domain), upper_bounds(domain)
    x, free = start, lower < upper
    best, least = start, constraints.residual(start)
    for _ in range(_STEPS):
        slopes = constraints.rows.jacobian(x)[constraints.equal]
        gram = (slopes @ sparse.diags_array(free * 1.0) @ slopes.T).toarray()
        multipliers = _solve_gram(gram, constraints.rows.constraints(x)[constraints.equal])
        step = -(slopes.T @ multipliers) * free
        x = np.clip(x + step, lower, upper)
        residual = constraints.residual(x)
        if residual < least:
            best, least = x, residual
        at_bound = free & (((x <= lower) & (step < 0)) | ((x >= upper) & (step > 0)))
        if least <= ROW_TOLERANCE / 1e3 or not at_bound.any():
            break
        free = free & ~at_bound
    return np.array(best)


def _solve_gram(gram: Array, right: Array) -> Array:
    """Solve ``gram y = right``; by least squares where the matrix is not safely definite."""
    try:
        np.linalg.cholesky(gram - _DEFINITE * np.trace(gram) * np.eye(len(gram)))
        return np.asarray(np.linalg.solve(gram, right), dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.pinv(gram, hermitian=True) @ right)


def _points_of_most_slack(cloud: CloudView, domain: Sequence[Group]) -> list[Array]:
    """The point of the boxes with the largest slack; none where the method fails."""
    stated = unchecked_problem(
        groups=tuple(domain),
        objectives=(ZERO,) * len(domain),
        cloud=replace(cloud, groups=tuple(domain)),
        local=tuple(box_of(group) for group in domain),
        start=tuple(0.5 * group.lower + 0.5 * group.upper for group in domain),
    )
    try:
        with np.errstate(all="ignore"):
            point = largest_slack(stated)
    except SottovoceError:
        return []
    return [np.clip(point, lower_bounds(domain), upper_bounds(domain))]


def largest_slack(problem: Problem) -> Array:
    """Return the x of the agents' sets with the least ``max_j g_j(x)``, to rounding.

    ``minimise t`` over x and t with ``g_j(x) - c t <= 0`` for inequalities and ``g_j(x) = 0`` for
    equalities and local rows as they are, by the interior-point method that the saddle point uses;
    t is one more agent in [-1, 1] and c the range that tangents show. Equalities and local rows
    without a common point are refused.
    """
    numeric = numeric_of(problem)
    g, slopes = numeric.constraints(numeric.start), abs(numeric.jacobian(numeric.start))
    reach = float(np.max(np.abs(g) + slopes @ (numeric.upper - numeric.lower)))
    t, one = symbol("slack of the rows"), np.ones((1, 1))
    slack = Group(name=t.name, symbols=(t,), lower=-one, upper=one)

    def relaxed(family: Constraint) -> Constraint:
        weights = np.full((family.rows, 1), -reach if np.isfinite(reach) else -1e6)
        slack_rows = linear_rows([t], weights)
        return family if family.equality else replace(family, linear=slack_rows.plus(family.linear))

    groups, cloud = (*problem.groups, slack), problem.cloud.without_cost()
    rows = tuple(relaxed(family) for family in cloud.constraints)
    stated = unchecked_problem(
        groups=groups,
        objectives=(*(ZERO for _ in problem.groups), t),
        cloud=replace(cloud, groups=groups, constraints=rows),
        local=(*problem.local, box_of(slack)),
        start=(*problem.start, 0.5 * one),
    )
    form = smooth_form(stated)
    *_, best = InteriorPoint(numeric_of(form.problem)).iterate((_GAP,))
    return best.x[form.columns][:-1]


def local_slater_point(problem: Problem) -> SlaterPoint:
    """Find x in the local sets with ``max_j g_j(x) < 0``, to rounding, or refuse the rows."""
    point = read_only(largest_slack(problem))
    stated = numeric_of(problem)
    g, scales = stated.constraints(point), 1.0 + np.abs(stated.jacobian(point) @ point)
    is_strict = ~stated.equality & (np.arange(g.size) < problem.rows)  # rows that need slack
    violation = np.where(stated.equality, np.abs(g), np.where(is_strict, -np.inf, g))
    strict = np.where(is_strict, g, -np.inf)
    slack = float(np.max(strict, initial=-np.inf))
    has_room = not is_strict.any() or slack < -_ROOM * (1.0 + abs(slack))
    if np.any(violation > _LOCAL * scales) or not has_room:
        detail = (
            "a point of the agents' local sets with g(x) < 0 must exist, got none: "
            f"{stated.label(int(np.argmax(strict)))} is {slack:.6g} at the best point found; "
            "relax the constraints or the local rows"
        )
        return SlaterPoint(point=point, slack=slack, status="fails", detail=detail)
    what = f"max_j g_j(x) is {slack:.6g}" if is_strict.any() else "no inequalities"
    detail = f"{what} at a point found inside the local sets, which it meets to rounding"
    return SlaterPoint(point=point, slack=slack, status="numerical", detail=detail)
