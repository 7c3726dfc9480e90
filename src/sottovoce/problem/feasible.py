"""Feasibility of local sets: emptiness, conflicting rows, fallbacks, bounds inside public ones.

Most agents of a fleet are settled together: a point found by steps towards the rows shows that a
set is not empty. What is left is decided by linear programs over tangents, ``minimise t with
c(y) + c'(y)(x - y) <= t``: for affine rows the first one is exact, for convex rows each adds a
tangent where the last one was wrong (Kelley).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import ProblemError
from sottovoce.formula.derive import Indices
from sottovoce.problem.groups import Array, Group, read_only, read_states
from sottovoce.problem.local import ROW_TOLERANCE, LocalSet
from sottovoce.problem.numeric import Formulas

_SWEEPS = 60
_PROGRAMS = 100
_HALVINGS = 60
_LONG = 80  # letters of a row in a message


@np.errstate(all="ignore")  # where a row is not defined, it is not met
def require_nonempty(group: Group, local: LocalSet) -> None:
    """Refuse a local set that holds no point."""
    if not local.rows:
        return
    every = range(local.rows)
    for place in _undecided(_Tangents(group, local, every)):
        agent, agent_set = group.some(place), local.some(place)
        if not _empty(_Tangents(agent, agent_set, every)):
            continue
        conflict = list(every)  # an irreducible infeasible subset of the rows
        for row in every:
            fewer = [j for j in conflict if j != row]
            if fewer and _empty(_Tangents(agent, agent_set, fewer)):
                conflict = fewer
        rows = " and ".join(_short(local.labels[j]) for j in conflict)
        raise ProblemError(
            f"the local set of {group.label(int(place[0]))} must hold at least one point of its "
            f"box, got none for {rows}: relax a row or widen the bounds"
        )


def _undecided(rows: _Tangents) -> Iterator[Indices]:
    """Project onto the rows in turn, for all agents at once; yield the undecided, one by one."""
    x = rows.lower / 2.0 + rows.upper / 2.0
    left = np.ones(len(x), dtype=np.bool_)
    for _ in range(_SWEEPS):
        values, slopes = rows.evaluate(x)
        left &= ~rows.satisfied(x, values, slopes)
        if not left.any():
            break
        x = rows.project(x, values, slopes)
    yield from np.flatnonzero(left)[:, np.newaxis]


def _empty(rows: _Tangents) -> bool:
    """Whether one agent's rows hold nowhere, by linear programs over tangents."""
    centre = x = rows.defined_point()
    cuts: list[tuple[Array, float, float]] = []
    for _ in range(_PROGRAMS):
        values, slopes = rows.evaluate(x)
        for _ in range(_HALVINGS):
            if np.isfinite(values).all() and np.isfinite(slopes).all():
                break
            x = (x + centre) / 2.0
            values, slopes = rows.evaluate(x)
        if not (np.isfinite(values).all() and np.isfinite(slopes).all()):
            return False  # not defined where we looked: the minimiser will tell
        if rows.satisfied(x, values, slopes).all():
            return False
        for slope, value, scale, equal in zip(
            slopes[0], values[0], _scales(x, slopes)[0], rows.equal, strict=True
        ):
            constant = float(value - slope @ x[0])
            cuts.append((slope, constant, float(scale)))
            if equal:
                cuts.append((-slope, -constant, float(scale)))
        least, x = _minimise_cuts(cuts, rows)
        if least > ROW_TOLERANCE:
            return True
    return False


def _minimise_cuts(
    cuts: Sequence[tuple[Array, float, float]], rows: _Tangents
) -> tuple[float, Array]:
    """The least t with all tangents below t times their scale, and where."""
    from scipy.optimize import linprog  # slow to load, and hardly any set needs it

    matrix = np.array([[*(a / s), -1.0] for a, _, s in cuts])
    right = np.array([-b / s for _, b, s in cuts])
    bounds = [*zip(rows.lower[0], rows.upper[0], strict=True), (None, None)]
    cost = np.append(np.zeros(rows.lower.shape[1]), 1.0)
    x = linprog(cost, A_ub=matrix, b_ub=right, bounds=bounds, method="highs").x
    if x is None:
        return -np.inf, rows.lower / 2.0 + rows.upper / 2.0
    return float(x[-1]), np.clip(x[np.newaxis, :-1], rows.lower, rows.upper)


def _scales(x: Array, slopes: Array) -> Array:
    """``1 + |c'| |x|`` of every agent and row: the size of the numbers that a row adds up."""
    return np.asarray(1.0 + (np.abs(slopes) * np.abs(x)[:, np.newaxis]).sum(axis=2))


def _short(label: str) -> str:
    return label if len(label) <= _LONG else f"{label[: _LONG // 2]} ... {label[-_LONG // 2 :]}"


@final
class _Tangents:
    """Some rows of a group's agents as numbers: values and slopes at a point of each."""

    def __init__(self, group: Group, local: LocalSet, chosen: Sequence[int]) -> None:
        exprs = (*local.inequalities, *local.equalities)
        self.equal = np.array([j >= len(local.inequalities) for j in chosen])
        self.lower, self.upper = local.lower, local.upper
        self._formulas = Formulas([exprs[j] for j in chosen], group)

    def evaluate(self, x: Array) -> tuple[Array, Array]:
        """Values (count, R) and slopes (count, R, d)."""
        return self._formulas.values(x).T, self._formulas.gradients(x)

    def satisfied(self, x: Array, values: Array, slopes: Array) -> NDArray[np.bool_]:
        """Which agents keep all rows, to rounding."""
        off = np.where(self.equal, np.abs(values), values)
        return np.asarray(np.all(off <= ROW_TOLERANCE * _scales(x, slopes), axis=1))

    def defined_point(self) -> Array:
        """A point of one agent's box where all rows are defined, the middle if it is one."""
        dim = self.lower.shape[1]
        # The middle, towards corners, and at random, always the same.
        ends = [np.full((1, dim), share) for share in (0.5, 0.9, 0.1, 1.0, 0.0)]
        for share in np.vstack([*ends, np.random.default_rng(0).random((200, dim))]):
            x = np.asarray(self.lower + share * (self.upper - self.lower))
            values, slopes = self.evaluate(x)
            if np.isfinite(values).all() and np.isfinite(slopes).all():
                return x
        return self.lower / 2.0 + self.upper / 2.0

    def project(self, x: Array, values: Array, slopes: Array) -> Array:
        """One step towards the tangent of every row in turn, and back into the box."""
        start = x
        for j, equal in enumerate(self.equal):
            slope = slopes[:, j]
            off = values[:, j] + (slope * (x - start)).sum(axis=1)
            if not equal:
                off = np.maximum(off, 0.0)
            push = off[:, np.newaxis] * slope
            free = slope * ~(((x <= self.lower) & (push > 0)) | ((x >= self.upper) & (push < 0)))
            size = (free * free).sum(axis=1)
            step = np.where(size > 0.0, off / size, 0.0)
            moved = np.clip(x - step[:, np.newaxis] * free, self.lower, self.upper)
            x = np.where(np.isfinite(moved), moved, x)
        return x


@np.errstate(all="ignore")
def read_fallback(fallback: object, group: Group, local: LocalSet) -> Array | None:
    """Return what a group's agents apply without an answer, shape (count, d), if it is said."""
    if fallback is None:
        return None
    points = read_states("fallback", fallback, group)
    inside = np.all((points >= local.lower) & (points <= local.upper), axis=1)
    rows = _Tangents(group, local, range(local.rows))
    inside &= rows.satisfied(points, *rows.evaluate(points))
    if not inside.all():
        place = int(np.argmin(inside))
        raise ProblemError(
            f"fallback of {group.label(place)} must lie in its own set, bounds and local rows, got "
            "a state that does not: it is applied when there is no answer"
        )
    return points


def own_domain(
    groups: Sequence[Group], domain: Sequence[Group], local: Sequence[LocalSet]
) -> tuple[Group, ...]:
    """Return the public groups with every agent's own bounds inside the public ones."""
    inside = []
    for group, public, agent_set in zip(groups, domain, local, strict=True):
        lower, upper = own_bounds(group, agent_set, public.lower, public.upper)
        same = lower is public.lower and upper is public.upper
        inside.append(public if same else replace(public, lower=lower, upper=upper))
    return tuple(inside)


def own_bounds(group: Group, local: LocalSet, lower: Array, upper: Array) -> tuple[Array, Array]:
    """Return the bounds of the agents' local sets inside public ones, all of shape (count, d)."""
    low = _tighter(local.lower, lower, np.maximum)
    high = _tighter(local.upper, upper, np.minimum)
    if (low is not local.lower or high is not local.upper) and np.any(low > high):
        place = int(np.argmax(np.any(low > high, axis=1)))
        raise ProblemError(
            f"the own bounds of {group.label(place)} must meet the public domain, got none in "
            "common: widen them, or relax the public constraints that shrank its box"
        )
    if not (low is local.lower and high is local.upper) and local.rows:
        require_nonempty(group, replace(local, lower=low, upper=high))
    return low, high


def _tighter(private: Array, public: Array, pick: np.ufunc) -> Array:
    """The tighter of two bounds; one of both themselves where it is that, as fleets are large."""
    if private is public:
        return public
    flat = public[:1] if public.strides[0] == 0 else public
    tight = pick(private, flat)
    for same in (private, public):  # the agent's own first: its rows need no second look then
        if np.array_equal(tight, same):
            return same
    return read_only(tight)
