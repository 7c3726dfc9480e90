"""Whether a local set holds a point, decided exactly, and which rows are to blame if it does not.

Most agents of a fleet are settled together: a point found by steps towards the rows shows that a
set is not empty, and a tangent that is positive on the whole box that it is. What is left is
decided by linear programs over tangents, ``minimise t with c(y) + c'(y)(x - y) <= t``: for affine
rows the first one is exact, for convex rows each adds a tangent where the last one was wrong
(Kelley).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import ProblemError
from sottovoce.formula.expression import Expression
from sottovoce.problem.agents import Array, Group, read_only
from sottovoce.problem.local import LocalSet
from sottovoce.problem.numeric import Formulas

MET = 1e-9
"""How far a row may be off, relative to the numbers that it adds up."""

_SWEEPS = 60
_TANGENTS = 100
_HALVINGS = 60
_LONG = 80  # letters of a row in a message


@np.errstate(all="ignore")  # where a row is not defined, nothing is met and nothing barred
def require_nonempty(group: Group, local: LocalSet) -> None:
    """Refuse a local set that holds no point.

    Raises:
        ProblemError: naming the first agent whose set is empty, and rows that exclude each other.
    """
    if not local.rows:
        return
    rows = _LinearisedRows(group, local, np.arange(group.count))
    for place in _undecided(rows, group, local):
        one = _LinearisedRows(group, local, np.array([place]))
        if _empty(one):
            raise _nothing_left(group, int(place), _guilty(one, local))


def _undecided(rows: _LinearisedRows, group: Group, local: LocalSet) -> NDArray[np.int64]:
    """Steps towards the rows, for all agents at once; return the agents left undecided."""
    x = rows.lower / 2.0 + rows.upper / 2.0
    left = np.ones(group.count, dtype=np.bool_)
    for _ in range(_SWEEPS):
        values, slopes = rows.at(x)
        left &= ~rows.met(x, values, slopes)
        barred = rows.barred(x, values, slopes)
        if barred is not None:
            raise _nothing_left(group, barred[0], [local.labels[barred[1]]])
        if not left.any():
            break
        x = rows.nearer(x, values, slopes)
    return np.flatnonzero(left)


def _empty(rows: _LinearisedRows) -> bool:
    """Whether one agent's rows hold nowhere, by linear programs over tangents."""
    centre = x = rows.defined()
    cuts: list[tuple[Array, float, float]] = []
    for _ in range(_TANGENTS):
        values, slopes = rows.at(x)
        for _ in range(_HALVINGS):
            if np.isfinite(values).all() and np.isfinite(slopes).all():
                break
            x = (x + centre) / 2.0
            values, slopes = rows.at(x)
        if not (np.isfinite(values).all() and np.isfinite(slopes).all()):
            return False  # not defined where we looked: the minimiser will tell
        if rows.met(x, values, slopes).all():
            return False
        for j in range(values.shape[1]):
            constant = float(values[0, j] - slopes[0, j] @ x[0])
            scale = float(_scale(x, slopes[:, j])[0])
            cuts.append((slopes[0, j], constant, scale))
            if rows.equal[j]:
                cuts.append((-slopes[0, j], -constant, scale))
        least, x = _least(cuts, rows)
        if least > MET:
            return True
    return False


def _least(
    cuts: Sequence[tuple[Array, float, float]], rows: _LinearisedRows
) -> tuple[float, Array]:
    """The least t with all tangents below t times their scale, and where."""
    from scipy.optimize import linprog  # slow to load, and hardly any set needs it

    matrix = np.array([[*(a / s), -1.0] for a, _, s in cuts])
    right = np.array([-b / s for _, b, s in cuts])
    bounds = [*zip(rows.lower[0], rows.upper[0], strict=True), (None, None)]
    cost = np.append(np.zeros(rows.lower.shape[1]), 1.0)
    found: Any = linprog(cost, A_ub=matrix, b_ub=right, bounds=bounds, method="highs")
    if found.x is None:
        return -np.inf, rows.lower / 2.0 + rows.upper / 2.0
    return float(found.x[-1]), np.clip(found.x[np.newaxis, :-1], rows.lower, rows.upper)


def _guilty(rows: _LinearisedRows, local: LocalSet) -> list[str]:
    """Labels of rows that exclude each other: without any one of them a point is left."""
    kept = list(range(local.rows))
    for j in range(local.rows):
        fewer = [k for k in kept if k != j]
        if fewer and _empty(rows.only(fewer)):
            kept = fewer
    return [local.labels[j] for j in kept]


def _scale(x: Array, slopes: Array) -> Array:
    """``1 + |c'| |x|`` of every agent: the size of the numbers that a row adds up."""
    return np.asarray(1.0 + (np.abs(slopes) * np.abs(x)).sum(axis=1))


def _nothing_left(group: Group, place: int, labels: Sequence[str]) -> ProblemError:
    return ProblemError(
        f"the local set of {group.label(place)} must hold at least one point of its box, got none "
        f"for {' and '.join(map(_short, labels))}: relax a row or widen the bounds"
    )


def _short(label: str) -> str:
    return label if len(label) <= _LONG else f"{label[: _LONG // 2]} ... {label[-_LONG // 2 :]}"


def _corners(dim: int) -> Array:
    """Points of a unit box to look at: towards its corners and at random, always the same."""
    rng = np.random.default_rng(0)
    ends = [np.full((1, dim), share) for share in (0.9, 0.1, 1.0, 0.0)]
    return np.vstack([*ends, rng.random((200, dim))])


@final
class _LinearisedRows:
    """The rows of some agents as numbers."""

    def __init__(
        self,
        group: Group,
        local: LocalSet,
        places: NDArray[np.int64],
        chosen: Sequence[int] | None = None,
    ) -> None:
        exprs: tuple[Expression, ...] = (*local.inequalities, *local.equalities)
        equal = [False] * len(local.inequalities) + [True] * len(local.equalities)
        chosen = range(len(exprs)) if chosen is None else chosen
        self._group, self._local, self._places = group, local, places
        self.equal = np.array([equal[j] for j in chosen])
        self.lower, self.upper = local.lower[places], local.upper[places]
        those = replace(
            group,
            count=len(places),
            lower=self.lower,
            upper=self.upper,
            parameters={s: a[places] for s, a in group.parameters.items()},
        )
        self._formulas = Formulas([exprs[j] for j in chosen], those)

    def only(self, chosen: Sequence[int]) -> _LinearisedRows:
        """Some of the rows of the same agents."""
        return _LinearisedRows(self._group, self._local, self._places, chosen)

    def at(self, x: Array) -> tuple[Array, Array]:
        """Values (count, R) and slopes (count, R, d), a view if all agents share them."""
        slopes = self._formulas.gradients(x)
        return self._formulas.values(x).T, np.broadcast_to(slopes, (len(x), *slopes.shape[1:]))

    def met(self, x: Array, values: Array, slopes: Array) -> NDArray[np.bool_]:
        """Which agents keep all rows, to rounding."""
        fine = np.ones(len(x), dtype=np.bool_)
        for j, equal in enumerate(self.equal):
            off = np.abs(values[:, j]) if equal else values[:, j]
            fine &= off <= MET * _scale(x, slopes[:, j])
        return fine

    def barred(self, x: Array, values: Array, slopes: Array) -> tuple[int, int] | None:
        """The first agent with a row that cannot hold: its tangent is positive on the whole box."""
        for j, equal in enumerate(self.equal):
            slope = slopes[:, j]
            here = values[:, j] - (slope * x).sum(axis=1)
            low, high = slope * self.lower, slope * self.upper
            room = MET * np.maximum(_scale(x, slope), np.abs(here))
            never = here + np.minimum(low, high).sum(axis=1) > room
            if equal:
                never |= here + np.maximum(low, high).sum(axis=1) < -room
            if never.any():
                return int(np.argmax(never)), j
        return None

    def defined(self) -> Array:
        """A point of the first agent's box where all rows are defined, the middle if it is one."""
        shares = np.vstack([np.full((1, self.lower.shape[1]), 0.5), _corners(self.lower.shape[1])])
        for share in shares:
            x = self.lower[:1] + share * (self.upper[:1] - self.lower[:1])
            values, slopes = self.at(x)
            if np.isfinite(values).all() and np.isfinite(slopes).all():
                return np.asarray(x)
        return np.asarray(self.lower[:1] / 2.0 + self.upper[:1] / 2.0)

    def nearer(self, x: Array, values: Array, slopes: Array) -> Array:
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


def own_domain(
    groups: Sequence[Group], domain: Sequence[Group], local: Sequence[LocalSet]
) -> tuple[Group, ...]:
    """Return the public groups with every agent's own bounds inside the public ones.

    Args:
        groups: the agents, with all their parameters.
        domain: the groups with the public boxes of a run.
        local: what each group's agents keep to besides.

    Raises:
        ProblemError: naming the agent, and the rows, that leave it no point there.
    """
    found = []
    for group, public, own in zip(groups, domain, local, strict=True):
        lower, upper = own_bounds(group, own, public.lower, public.upper)
        same = lower is public.lower and upper is public.upper
        found.append(public if same else replace(public, lower=lower, upper=upper))
    return tuple(found)


def own_bounds(group: Group, own: LocalSet, lower: Array, upper: Array) -> tuple[Array, Array]:
    """Return the bounds of the agents' own sets inside public ones, all of shape (count, d).

    Raises:
        ProblemError: naming the agent, and the rows, that leave it no point there.
    """
    low = _tighter(own.lower, lower, np.maximum)
    high = _tighter(own.upper, upper, np.minimum)
    if (low is not own.lower or high is not own.upper) and np.any(low > high):
        place = int(np.argmax(np.any(low > high, axis=1)))
        raise ProblemError(
            f"the own bounds of {group.label(place)} must meet the public domain, got none in "
            "common: widen them, or relax the public constraints that shrank its box"
        )
    if own.rows and not (low is own.lower and high is own.upper):
        require_nonempty(group, replace(own, lower=low, upper=high))
    return low, high


def _tighter(own: Array, public: Array, pick: np.ufunc) -> Array:
    """The tighter of two bounds; one of both themselves where it is that, as fleets are large."""
    if own is public:
        return public
    flat = public[:1] if public.strides[0] == 0 else public
    tight = pick(own, flat)
    for same in (own, public):  # the agent's own first: its rows need no second look then
        if np.array_equal(tight, same):
            return same
    return read_only(tight)
