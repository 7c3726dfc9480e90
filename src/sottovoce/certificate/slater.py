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
from numpy.typing import NDArray

from sottovoce.certificate.contributions import row_ranges
from sottovoce.certificate.kkt import InteriorPoint
from sottovoce.certificate.smooth_form import smooth_form, unchecked_problem
from sottovoce.errors import SottovoceError
from sottovoce.formula.expression import ZERO, symbol
from sottovoce.problem.constraints import Constraint
from sottovoce.problem.groups import Array, Group, lower_bounds, read_only, upper_bounds
from sottovoce.problem.linear_rows import linear_rows
from sottovoce.problem.local import ROW_TOLERANCE, box_of
from sottovoce.problem.numeric import Numeric
from sottovoce.problem.problem import CloudView, Problem

_SMALL = 200  # states and rows up to which the slack is maximised, not just made positive
_STEPS = 200  # of the conditional gradient, and of Newton's method for equalities
_LARGE = 10**6  # states beyond which fewer steps are taken
_STEPS_OF_LARGE = 20
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
    rows = _Rows(Numeric(cloud), np.ones(cloud.rows, dtype=np.bool_))
    best, least = np.empty(0), np.inf
    for candidate in _candidates(rows, domain):
        point = _restore_equalities(rows, domain, candidate) if rows.equal.any() else candidate
        worst = rows.violation(point)
        if worst < least or not best.size:
            best, least = point, worst
        if least < 0.0:
            break
    small = max(cloud.size, cloud.rows) <= _SMALL
    if small and not (rows.equal.all() and rows.residual(best) <= ROW_TOLERANCE):
        best = min(
            (best, *_points_of_most_slack(cloud, domain)),
            key=lambda x: (max(rows.residual(x), ROW_TOLERANCE), rows.violation(x)),
        )
    fleets = [
        replace(f, group=replace(f.group, lower=f.select(best), upper=f.select(best)))
        for f in (member.fleet for member in rows.numeric.members)
    ]
    _, above = row_ranges(fleets, cloud.rows, where_defined=False)
    upper = np.nextafter(above + rows.numeric.offset, np.inf)
    return rows.judge(best, upper, ROW_TOLERANCE, "the box")


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """The rows of g as numbers; those that are no equality need slack where they are ``strict``."""

    numeric: Numeric
    strict: NDArray[np.bool_]

    @property
    def equal(self) -> NDArray[np.bool_]:
        return self.numeric.equality

    def violation(self, x: Array) -> float:
        """``max_j g_j(x)`` over the inequalities, infinite where g is not defined."""
        g = self.numeric.constraints(x)[~self.equal]
        return float(np.where(np.isfinite(g), g, np.inf).max(initial=-np.inf))

    def residual(self, x: Array) -> float:
        """``max_j |g_j(x)|`` over the equalities, relative to the size of what adds up to it."""
        off = np.abs(self.numeric.constraints(x) / self.scales(x))[self.equal]
        return float(off.max(initial=0.0))

    def scales(self, x: Array) -> Array:
        """``1 + |dg_j/dx| |x|`` for every row: the size of the numbers that it adds up."""
        return 1.0 + np.asarray(abs(self.numeric.jacobian(x)) @ np.abs(x))

    def judge(self, x: Array, upper: Array, tolerance: float, where: str) -> SlaterPoint:
        """Say what ``upper``, bounds of g, prove of a point; other rows are met to a tolerance."""
        scales, label = self.scales(x), self.numeric.label
        off = np.where(self.equal, np.abs(upper), np.where(self.strict, -np.inf, upper)) / scales
        row, point = int(off.argmax()), read_only(x)
        if off[row] > tolerance:
            detail = (
                f"a point of {where} that meets the {'equalities' if self.equal[row] else 'rows'} "
                f"must exist, got none: {label(row)} is off by {off[row] * scales[row]:.6g} at the "
                "best point found; widen the boxes"
            )
            return SlaterPoint(point=point, slack=np.inf, status="fails", detail=detail)
        exact = bool(self.strict.all() and not self.equal.any())
        # Where rows are met to rounding only, slack of that size is none.
        upper = upper if exact else upper + _ROOM * scales
        upper = np.where(self.equal | ~self.strict, -np.inf, upper)
        row = int(upper.argmax())
        slack = float(upper[row])
        if not slack < 0.0:
            detail = (
                f"a point of {where} with g(x) < 0 must exist, got none: {label(row)} is "
                f"{slack:.6g} at the best point found; relax the constraints or widen the boxes"
            )
            return SlaterPoint(point=point, slack=slack, status="fails", detail=detail)
        status: Literal["proven", "numerical"] = "proven" if exact else "numerical"
        detail = f"max_j g_j(x) is {slack:.6g}" if np.isfinite(slack) else "no inequalities"
        how = "bounded by interval arithmetic" if exact else "equalities met to rounding"
        detail = f"{detail} at a point of {where}; {how}"
        return SlaterPoint(point=point, slack=slack, status=status, detail=detail)


def _candidates(rows: _Rows, domain: Sequence[Group]) -> Iterator[Array]:
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
        g = np.nan_to_num(rows.numeric.constraints(x), nan=0.0, posinf=0.0, neginf=0.0)
        spread = max(float(g.max() - g.min()), 1e-12) / (step + 1)
        weights = np.exp((g - g.max()) / spread)
        slope = rows.numeric.pullback(x, weights / weights.sum())
        corner = np.where(slope > 0, lower, upper)
        # In place, because a fleet's vector of states can fill a tenth of the memory.
        corner -= x
        corner *= 2.0 / (step + 2)
        corner += x
        x = np.clip(corner, lower, upper, out=corner)
        yield x


def _restore_equalities(rows: _Rows, domain: Sequence[Group], start: Array) -> Array:
    """The point of the box that misses the equalities least, by Newton's method from ``start``.

    Each step is the shortest by the states that no bound has stopped.
    """
    lower, upper = lower_bounds(domain), upper_bounds(domain)
    x, free = start, lower < upper
    best, least = start, rows.residual(start)
    for _ in range(_STEPS):
        slopes = rows.numeric.jacobian(x)[rows.equal] @ sparse.diags_array(free * 1.0)
        gram = (slopes @ slopes.T).toarray()
        off = rows.numeric.constraints(x)[rows.equal]
        step = -(slopes.T @ (np.linalg.pinv(gram, hermitian=True) @ off))
        x = np.clip(x + step, lower, upper)
        residual = rows.residual(x)
        if residual < least:
            best, least = x, residual
        at_bound = free & (((x <= lower) & (step < 0)) | ((x >= upper) & (step > 0)))
        if least <= ROW_TOLERANCE / 1e3 or not at_bound.any():
            break
        free = free & ~at_bound
    return np.array(best)


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
    numeric = Numeric(problem, local=True)
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
    *_, best = InteriorPoint(Numeric(form.problem, local=True)).iterate((_GAP,))
    return best.x[form.columns][:-1]


def local_slater_point(problem: Problem) -> SlaterPoint:
    """Find x in the local sets with ``max_j g_j(x) < 0``, to rounding, or refuse the rows."""
    point, numeric = largest_slack(problem), Numeric(problem, local=True)
    g = numeric.constraints(point)
    rows = _Rows(numeric, np.arange(g.size) < problem.rows)
    return rows.judge(point, g, _LOCAL, "the agents' local sets")
