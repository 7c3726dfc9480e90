"""The linear systems of an interior-point method, with fleets eliminated agent by agent."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from sottovoce.problem.agents import Array
from sottovoce.problem.blocks import Block
from sottovoce.problem.numeric import Jacobian

TINY = float(np.finfo(np.float64).tiny)
DEPENDENT = 1e-13
FEW = 64
"""Up to so many states of named agents none is eliminated: a dense system is fast and exact."""
FLAT = 1e-4
"""An agent whose least curvature is below this share of the largest is not eliminated."""
PIECE = 256
"""How many agents are eliminated together; their matrices then stay in the cache."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KktMatrix:
    """``[K J'; J -S]`` with ``K = hessian + diag(diagonal)`` and ``S = diag(shift)``.

    Attributes:
        jacobian: J; its local rows take part.
        hessian: one array (count, dim, dim) per block.
        diagonal: shape (N,).
        held: which states do not move, shape (N,).
        shift: one number per row.
        rows: which multipliers move.
    """

    jacobian: Jacobian
    hessian: Sequence[Array]
    diagonal: Array
    held: NDArray[np.bool_]
    shift: Array
    rows: NDArray[np.bool_]


@final
class KktSystem:
    """The linear system ``[K J'; J -S] [dx; dmu] = -[r; q]``, solved block by block.

    Agents are eliminated one by one, together with their local rows, by which their matrix becomes
    ``[K_i C_i'; C_i -S_i]``; what remains, the rows and named agents that nothing curves, is one
    dense system.
    """

    def __init__(self, matrix: KktMatrix) -> None:
        jacobian, hessian, diagonal = matrix.jacobian, matrix.hessian, matrix.diagonal
        held, shift, rows = matrix.held, matrix.shift, matrix.rows
        m = jacobian.shape[0]
        self.jacobian, self.rows = replace(jacobian, local=None), rows[:m]
        self.inverses: list[Array] = []
        self.local: list[NDArray[np.intp]] = []
        few = sum(block.count * block.dim for block in jacobian.blocks if block.named) <= FEW
        most = np.inf if few else max(float(np.max(np.abs(h), initial=0.0)) for h in hessian)
        corner = _Corner(m)
        for place, (block, h) in enumerate(zip(jacobian.blocks, hessian, strict=True)):
            slopes, bend, own = _local_border(jacobian, place, shift[m:], rows[m:])
            self.local.append(own)
            still = block.of(held)
            if block.named:
                full = _shifted(h, block.of(diagonal))
                flat = _least_curvature(full, still) <= FLAT * most
                kept = flat[:, np.newaxis] & ~still
                if kept.any():
                    corner.keep(block, kept, full, jacobian.columns(block)[:, kept.ravel()])
                    corner.keep_rows(kept, slopes, bend, own)
                still = still | kept
            self.inverses.append(_inverses(h, block.of(diagonal), still, slopes, bend))
        tops = [
            inverse[:, : block.dim, : block.dim]
            for block, inverse in zip(jacobian.blocks, self.inverses, strict=True)
        ]
        schur = jacobian.gram(tops) + np.diag(shift[:m])
        rows = self.rows
        self.kept, self.kept_rows, inner, border = corner.assembled()
        self.system = Symmetric(
            np.block([[inner, border[rows].T], [border[rows], -schur[np.ix_(rows, rows)]]])
        )

    def solve(self, r: Array, q: Array) -> tuple[Array, Array]:
        """Return ``(dx, dmu)``; 0 for states that are held and rows that do not take part."""
        m = self.rows.size
        w = q[m:]
        reduced = q[:m] - self.jacobian.times(self._eliminated(r, w)[0])
        right = [r[self.kept], w[self.kept_rows], reduced[self.rows]]
        found = self.system.solve(-np.concatenate(right))
        n, local = self.kept.size, self.kept_rows.size
        dmu = np.zeros(m)
        dmu[self.rows] = found[n + local :]
        dx, dnu = (-part for part in self._eliminated(r + self.jacobian.pullback(dmu), w))
        dx[self.kept] = found[:n]
        dnu[self.kept_rows] = found[n : n + local]
        return dx, np.concatenate([dmu, dnu])

    def _eliminated(self, r: Array, w: Array) -> tuple[Array, Array]:
        dx, dnu = np.zeros_like(r), np.zeros_like(w)
        for block, own, inverse in zip(
            self.jacobian.blocks, self.local, self.inverses, strict=True
        ):
            right = np.hstack([block.of(r), w[own]])
            both = (inverse @ right[:, :, np.newaxis])[:, :, 0]
            dx[block.index], dnu[own] = both[:, : block.dim].ravel(), both[:, block.dim :]
        return dx, dnu


@final
class _Corner:
    """The agents that are not eliminated: their states, local rows and columns of J."""

    def __init__(self, rows: int) -> None:
        self._states: list[NDArray[np.intp]] = [np.empty(0, dtype=np.intp)]
        self._rows: list[NDArray[np.intp]] = [np.empty(0, dtype=np.intp)]
        self._matrices, self._slopes = [np.empty((0, 0))], [np.empty((0, 0))]
        self._bends = [np.empty(0)]
        self._borders = [np.empty((rows, 0))]

    def keep(self, block: Block, kept: NDArray[np.bool_], full: Array, columns: Array) -> None:
        """Keep states of a block; ``full`` is K and ``columns`` are J's."""
        self._states.append(np.asarray(block.index)[kept.ravel()])
        self._matrices += [own[np.ix_(m, m)] for own, m in zip(full, kept, strict=True)]
        self._borders.append(columns)

    def keep_rows(
        self, kept: NDArray[np.bool_], slopes: Array, bend: Array, own: NDArray[np.intp]
    ) -> None:
        """Keep the local rows of agents that keep a state."""
        for mask, c, below, rows in zip(kept, slopes, bend, own, strict=True):
            used = np.flatnonzero(np.full(len(rows), mask.any()))
            self._slopes.append(c[used][:, mask])
            self._bends.append(below[used])
            self._rows.append(rows[used])

    def assembled(self) -> tuple[NDArray[np.intp], NDArray[np.intp], Array, Array]:
        """Which states and local rows there are, their matrix, and their columns of the rows."""
        states, rows = np.concatenate(self._states), np.concatenate(self._rows)
        k, c = _diagonal(self._matrices), _diagonal(self._slopes)
        border = np.hstack(self._borders)
        below = -np.diag(np.concatenate(self._bends))
        whole = np.hstack([border, np.zeros((len(border), rows.size))])
        return states, rows, np.block([[k, c.T], [c, below]]), whole


def _local_border(
    jacobian: Jacobian, place: int, shift: Array, rows: NDArray[np.bool_]
) -> tuple[Array, Array, NDArray[np.intp]]:
    """A block's slopes of local rows, what stands below them, and which rows they are.

    A row that does not take part has slope 0 and 1 below, so that its multiplier stays.
    """
    local, block = jacobian.local, jacobian.blocks[place]
    if local is None:
        none = np.empty((block.count, 0))
        return np.empty((block.count, 0, block.dim)), none, none.astype(np.intp)
    own = local.rows[place]
    takes_part = rows[own]
    slopes = local.slopes[place] * takes_part[:, :, np.newaxis]
    return slopes, np.where(takes_part, shift[own], 1.0), own


def _diagonal(blocks: Sequence[Array]) -> Array:
    """The matrix with these blocks along its diagonal; a block may have no rows or no columns."""
    ends = np.cumsum([(0, 0), *(block.shape for block in blocks)], axis=0)
    out = np.zeros(ends[-1])
    for block, (row, column) in zip(blocks, ends[:-1], strict=True):
        out[row : row + block.shape[0], column : column + block.shape[1]] = block
    return out


def _shifted(h: Array, diagonal: Array) -> Array:
    """``h_i + diag(diagonal_i)`` for every agent."""
    out = h.copy()
    index = np.arange(h.shape[1])
    out[:, index, index] += diagonal
    return out


def _least_curvature(h: Array, held: NDArray[np.bool_]) -> Array:
    """The least eigenvalue over the states that move, for every agent; infinite if none does."""
    moves = ~held
    if h.shape[1] == 1:
        return np.where(held[:, 0], np.inf, h[:, 0, 0])
    index = np.arange(h.shape[1])
    masked = h * moves[:, :, np.newaxis] * moves[:, np.newaxis, :]
    masked[:, index, index] += np.where(held, np.abs(h).max() + 1.0, 0.0)
    return np.where(held.all(axis=1), np.inf, np.linalg.eigvalsh(masked)[:, 0])


def _inverses(
    h: Array, diagonal: Array, held: NDArray[np.bool_], slopes: Array, bend: Array
) -> Array:
    """``[h_i + diag(diagonal_i), C_i'; C_i, -S_i]^-1`` per agent, 0 for states that are held."""
    if slopes.shape[1]:
        return _bordered(h, diagonal, held, slopes, bend)
    index = np.arange(h.shape[1])
    out = np.empty_like(h)
    for begin in range(0, len(h), PIECE):
        piece = slice(begin, begin + PIECE)
        still = held[piece]
        size = h[piece, index, index] + diagonal[piece]
        scale = np.where(still, 0.0, 1.0 / np.sqrt(np.maximum(np.abs(size), TINY)))
        k = h[piece] * scale[:, :, np.newaxis]
        k *= scale[:, np.newaxis, :]
        k[:, index, index] = np.where(still, 1.0, size * scale**2)
        inverse = np.linalg.inv(k)
        inverse *= scale[:, :, np.newaxis]
        np.multiply(inverse, scale[:, np.newaxis, :], out=out[piece])
    return out


def _bordered(
    h: Array, diagonal: Array, held: NDArray[np.bool_], slopes: Array, bend: Array
) -> Array:
    count, local, dim = slopes.shape
    index, below = np.arange(dim), dim + np.arange(local)
    out = np.empty((count, dim + local, dim + local))
    for begin in range(0, count, PIECE):
        piece = slice(begin, begin + PIECE)
        still, size = held[piece], h[piece, index, index] + diagonal[piece]
        scale = np.where(still, 0.0, 1.0 / np.sqrt(np.maximum(np.abs(size), TINY)))
        c = slopes[piece] * scale[:, np.newaxis, :]
        squares = np.maximum(np.max(c**2, axis=2), bend[piece])
        idle = ~(squares > TINY)  # rows whose states are all held: nothing answers to them
        lengths = np.where(idle, 1.0, np.sqrt(squares))
        k = np.zeros((len(size), dim + local, dim + local))
        k[:, :dim, :dim] = h[piece] * scale[:, :, np.newaxis] * scale[:, np.newaxis, :]
        k[:, index, index] = np.where(still, 1.0, size * scale**2)
        k[:, dim:, :dim] = c / lengths[:, :, np.newaxis]
        k[:, :dim, dim:] = k[:, dim:, :dim].transpose(0, 2, 1)
        # A little below every row keeps rows that depend on each other solvable.
        k[:, below, below] = np.where(idle, 1.0, -bend[piece] / lengths**2 - DEPENDENT)
        scales = np.hstack([scale, np.where(idle, 0.0, 1.0 / lengths)])
        inverse = np.linalg.inv(k) * scales[:, :, np.newaxis]
        np.multiply(inverse, scales[:, np.newaxis, :], out=out[piece])
    return out


@final
class Symmetric:
    """A symmetric system, its rows and columns scaled to size 1, factored once."""

    def __init__(self, matrix: Array) -> None:
        from scipy.linalg import LinAlgWarning, lu_factor  # slow to load; a cloud solves no system

        self._scale = np.ones(len(matrix))
        for _ in range(4):
            sizes = np.abs(matrix * self._scale) * self._scale[:, np.newaxis]
            largest = np.max(sizes, axis=1, initial=0.0)
            self._scale /= np.sqrt(np.where(largest > 0.0, largest, 1.0))
        self._scaled = matrix * self._scale * self._scale[:, np.newaxis]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LinAlgWarning)
            self._factors = lu_factor(self._scaled, check_finite=False) if len(matrix) else None
        if self._factors is not None and not np.all(np.diag(self._factors[0])):
            self._factors = None

    def solve(self, right: Array) -> Array:
        """The solution, refined once; where there is none or many, the least that comes nearest."""
        from scipy.linalg import lu_solve  # as above

        scaled = self._scale * right
        if not right.size:
            return scaled
        if self._factors is None:
            y = np.asarray(np.linalg.lstsq(self._scaled, scaled)[0], dtype=np.float64)
        else:
            y = lu_solve(self._factors, scaled, check_finite=False)
            rest = scaled - self._scaled @ y
            y = y + lu_solve(self._factors, rest, check_finite=False)
        return np.asarray(self._scale * y, dtype=np.float64)
