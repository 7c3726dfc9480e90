"""Whether a local set holds a point, decided exactly, and which rows are to blame if it does not.

Most agents of a fleet are settled together: a point found by steps towards the rows shows that a
set is not empty, and a tangent that is positive on the whole box that it is. What is left is
decided by linear programs over tangents, ``minimise t with c(y) + c'(y)(x - y) <= t``: for affine
rows the first one is exact, for convex rows each adds a tangent where the last one was wrong
(Kelley).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import sympy as sp
from numpy.typing import NDArray
from scipy.optimize import linprog

from sottovoce.errors import ProblemError
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.local import LocalSet
from sottovoce.problem.numeric import Block, Formulas

MET = 1e-9
"""How far a row may be off, relative to the numbers that it adds up."""

_SWEEPS = 60
_TANGENTS = 100
_HALVINGS = 60
_LONG = 80  # letters of a row in a message


def require_nonempty(group: Group, local: LocalSet) -> None:
    """Refuse a local set that holds no point.

    Raises:
        ProblemError: naming the first agent whose set is empty, and rows that exclude each other.
    """
    if not local.rows:
        return
    rows = _Rows(group, local, np.arange(group.count))
    undecided = _settled(rows, group, local)
    for place in undecided:
        one = _Rows(group, local, np.array([place]))
        if _empty(one):
            _refuse(group, local, int(place), _guilty(one, local))


def _settled(rows: _Rows, group: Group, local: LocalSet) -> NDArray[np.int64]:
    """Steps towards the rows, for all agents at once; return the agents left undecided."""
    places = np.arange(group.count)
    x = rows.lower / 2.0 + rows.upper / 2.0
    for _ in range(_SWEEPS):
        values, slopes, scales = rows.at(x)
        off = np.abs(values) if rows.equal.all() else np.where(rows.equal, np.abs(values), values)
        met = np.all(off <= MET * scales, axis=1)
        barred = rows.barred(x, values, slopes, scales)
        if barred.any():
            agent = int(np.argmax(barred.any(axis=1)))
            labels = [local.labels[j] for j in np.flatnonzero(barred[agent])[:1]]
            _refuse(group, local, int(places[agent]), labels)
        places, x, rows = places[~met], x[~met], rows.taken(~met)
        if not places.size:
            break
        x = rows.nearer(x)
    return places


def _empty(rows: _Rows) -> bool:
    """Whether one agent's rows hold nowhere, by linear programs over tangents."""
    centre = x = rows.defined()
    cuts: list[tuple[Array, float, float]] = []
    for _ in range(_TANGENTS):
        values, slopes, scales = rows.at(x)
        for _ in range(_HALVINGS):
            if np.isfinite(values).all() and np.isfinite(slopes).all():
                break
            x = (x + centre) / 2.0
            values, slopes, scales = rows.at(x)
        if not (np.isfinite(values).all() and np.isfinite(slopes).all()):
            return False  # not defined where we looked: the minimiser will tell
        off = np.where(rows.equal, np.abs(values), values)
        if np.all(off <= MET * scales):
            return False
        for j in range(values.shape[1]):
            constant = float(values[0, j] - slopes[0, j] @ x[0])
            cuts.append((slopes[0, j], constant, float(scales[0, j])))
            if rows.equal[j]:
                cuts.append((-slopes[0, j], -constant, float(scales[0, j])))
        least, x = _least(cuts, rows)
        if least > MET:
            return True
    return False


def _least(cuts: Sequence[tuple[Array, float, float]], rows: _Rows) -> tuple[float, Array]:
    """The least t with all tangents below t times their scale, and where."""
    matrix = np.array([[*(a / s), -1.0] for a, _, s in cuts])
    right = np.array([-b / s for _, b, s in cuts])
    bounds = [*zip(rows.lower[0], rows.upper[0], strict=True), (None, None)]
    cost = np.append(np.zeros(rows.lower.shape[1]), 1.0)
    found: Any = linprog(cost, A_ub=matrix, b_ub=right, bounds=bounds, method="highs")
    if found.x is None:
        return -np.inf, rows.lower / 2.0 + rows.upper / 2.0
    return float(found.x[-1]), np.clip(found.x[np.newaxis, :-1], rows.lower, rows.upper)


def _guilty(rows: _Rows, local: LocalSet) -> list[str]:
    """Labels of rows that exclude each other: without any one of them a point is left."""
    kept = list(range(local.rows))
    for j in range(local.rows):
        fewer = [k for k in kept if k != j]
        if fewer and _empty(rows.only(fewer)):
            kept = fewer
    return [local.labels[j] for j in kept]


def _refuse(group: Group, local: LocalSet, place: int, labels: Sequence[str]) -> None:
    raise ProblemError(
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
class _Rows:
    """The rows of some agents as numbers."""

    def __init__(
        self,
        group: Group,
        local: LocalSet,
        places: NDArray[np.int64],
        chosen: Sequence[int] | None = None,
    ) -> None:
        exprs: tuple[sp.Expr, ...] = (*local.inequalities, *local.equalities)
        equal = [False] * len(local.inequalities) + [True] * len(local.equalities)
        chosen = range(len(exprs)) if chosen is None else chosen
        self._group, self._local, self._places = group, local, places
        self.equal = np.array([equal[j] for j in chosen])
        self.lower, self.upper = local.lower[places], local.upper[places]
        block = Block(
            index=slice(0, len(places) * group.dim),
            count=len(places),
            symbols=group.symbols,
            parameters={s: a[places] for s, a in group.parameters.items()},
        )
        self._formulas = Formulas([exprs[j] for j in chosen], block)

    def taken(self, which: NDArray[np.bool_]) -> _Rows:
        """The same rows of some of the agents."""
        if which.all():
            return self
        return _Rows(self._group, self._local, self._places[which])

    def only(self, chosen: Sequence[int]) -> _Rows:
        """Some of the rows of the same agents."""
        return _Rows(self._group, self._local, self._places, chosen)

    def at(self, x: Array) -> tuple[Array, Array, Array]:
        """Values (count, R), slopes (count, R, d) and the size of what the rows add up."""
        values = self._formulas.values(x).T
        slopes = self._formulas.gradients(x)
        scales = 1.0 + np.einsum("crd,cd->cr", np.abs(np.broadcast_to(
            slopes, (len(x), *slopes.shape[1:]))), np.abs(x))  # fmt: skip
        return values, np.broadcast_to(slopes, (len(x), *slopes.shape[1:])), scales

    def barred(self, x: Array, values: Array, slopes: Array, scales: Array) -> NDArray[np.bool_]:
        """Which rows cannot hold, (count, R): their tangents are positive on the whole box."""
        below = np.where(slopes > 0.0, self.lower[:, np.newaxis], self.upper[:, np.newaxis])
        above = np.where(slopes > 0.0, self.upper[:, np.newaxis], self.lower[:, np.newaxis])
        here = values - np.einsum("crd,cd->cr", slopes, x)
        least = here + np.einsum("crd,crd->cr", slopes, below)
        most = here + np.einsum("crd,crd->cr", slopes, above)
        room = MET * np.maximum(scales, np.abs(here))
        return np.asarray((least > room) | (self.equal & (most < -room)))

    def defined(self) -> Array:
        """A point of the first agent's box where all rows are defined, the middle if it is one."""
        shares = np.vstack([np.full((1, self.lower.shape[1]), 0.5), _corners(self.lower.shape[1])])
        for share in shares:
            x = self.lower[:1] + share * (self.upper[:1] - self.lower[:1])
            values, slopes, _ = self.at(x)
            if np.isfinite(values).all() and np.isfinite(slopes).all():
                return np.asarray(x)
        return np.asarray(self.lower[:1] / 2.0 + self.upper[:1] / 2.0)

    def nearer(self, x: Array) -> Array:
        """One step towards every row in turn, along its slope and back into the box."""
        for j in range(self.equal.size):
            one = self.only([j]) if self.equal.size > 1 else self
            values, slopes, _ = one.at(x)
            off = values[:, 0] if self.equal[j] else np.maximum(values[:, 0], 0.0)
            slope = slopes[:, 0] * ~(
                ((x <= self.lower) & (off[:, np.newaxis] * slopes[:, 0] > 0.0))
                | ((x >= self.upper) & (off[:, np.newaxis] * slopes[:, 0] < 0.0))
            )
            size = np.einsum("cd,cd->c", slope, slope)
            with np.errstate(all="ignore"):
                step = np.where(size > 0.0, off / size, 0.0)
                moved = np.clip(x - step[:, np.newaxis] * slope, self.lower, self.upper)
            x = np.where(np.isfinite(moved), moved, x)
        return x
