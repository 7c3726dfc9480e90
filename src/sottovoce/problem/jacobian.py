"""First derivatives of rows at one point, and the blocks in which second derivatives come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, final

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from sottovoce.problem.agents import Array
from sottovoce.problem.connected import Indices
from sottovoce.problem.fleet import Index

_DENSE = 0.1  # share of a block's slopes that are not 0 from which dense products are faster

Scalar = TypeVar("Scalar", bound=np.generic)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StateBlock:
    """States whose second derivatives mix: those of each agent, or of several that a row mixes.

    Attributes:
        index: where the states lie in the vector of all, a slice for a stated fleet.
        count: how many agents.
        dim: the number of states of one agent.
        named: whether they are agents stated one by one.
    """

    index: Index
    count: int
    dim: int
    named: bool = False

    def of(self, x: NDArray[Scalar]) -> NDArray[Scalar]:
        """The block's part of the vector ``x`` of all states, shape (count, dim)."""
        return np.reshape(x[self.index], (self.count, self.dim))


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalJacobian:
    """``dc/dx`` at one point: for each block an array (count, R, dim), and its rows (count, R)."""

    blocks: tuple[StateBlock, ...]
    slopes: tuple[Array, ...]
    rows: tuple[Indices, ...]
    count: int

    def times(self, v: Array) -> Array:
        """``C v``, one number per local row."""
        out = np.zeros(self.count)
        for block, slope, rows in zip(self.blocks, self.slopes, self.rows, strict=True):
            out[rows] = np.einsum("ird,id->ir", slope, block.of(v))
        return out

    def pullback(self, nu: Array, size: int) -> Array:
        """``C' nu``, shape (N,)."""
        out = np.zeros(size)
        for block, slope, rows in zip(self.blocks, self.slopes, self.rows, strict=True):
            out[block.index] = np.einsum("ird,ir->id", slope, nu[rows]).ravel()
        return out


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Jacobian:
    """``J = dg/dx`` at one point.

    Attributes:
        matrix: J, a compressed sparse row array (m, N).
        blocks: the blocks of states.
        local: the derivatives of local rows, which vectors over rows have behind those of g.
    """

    matrix: Any
    blocks: tuple[StateBlock, ...]
    local: LocalJacobian | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(m, N)."""
        m, n = self.matrix.shape
        return int(m), int(n)

    def times(self, v: Array) -> Array:
        """``J v``, one number per row."""
        out = np.asarray(self.matrix @ v)
        return out if self.local is None else np.concatenate([out, self.local.times(v)])

    def pullback(self, mu: Array) -> Array:
        """``J' mu``, shape (N,)."""
        out = np.asarray(self.matrix.T @ mu[: self.shape[0]])
        if self.local is not None:
            out = out + self.local.pullback(mu[self.shape[0] :], self.shape[1])
        return out

    def gram(self, inner: Sequence[Array | None]) -> Array:
        """``J B J'`` of the rows of g, shape (m, m), for B with blocks ``inner``, None for 0."""
        out = np.zeros((self.shape[0], self.shape[0]))
        for block, b in zip(self.blocks, inner, strict=True):
            if b is None:
                continue
            own = self.matrix[:, block.index]
            if own.nnz > _DENSE * own.shape[0] * own.shape[1]:
                dense = own.toarray()
                half = np.einsum("mia,iab->mib", dense.reshape(-1, block.count, block.dim), b)
                out += half.reshape(dense.shape) @ dense.T
            else:
                out += (own @ _block_diagonal(b) @ own.T).toarray()
        return out

    def columns(self, block: StateBlock) -> Array:
        """The columns of one block as a dense array (m, count * dim)."""
        return np.asarray(self.matrix[:, block.index].toarray())

    def dense(self) -> Array:
        """J itself, shape (m, N); for small problems."""
        return np.asarray(self.matrix.toarray())


def tangents(jacobian: Jacobian, free: NDArray[np.bool_], active: NDArray[np.bool_]) -> list[Array]:
    """Return projectors, an array (count, dim, dim) per block, on where states may move.

    Args:
        jacobian: at the point; its local rows count.
        free: the states that no bound holds, shape (N,).
        active: which rows hold, one entry per row, those of g first.
    """
    found = []
    for place, block in enumerate(jacobian.blocks):
        mask = block.of(free)
        projector = mask[:, :, np.newaxis] * np.eye(block.dim)
        local = jacobian.local
        if local is not None and local.rows[place].size:
            holds = active[jacobian.shape[0] :][local.rows[place]]
            rows = local.slopes[place] * holds[:, :, np.newaxis] * mask[:, np.newaxis, :]
            projector = projector - np.linalg.pinv(rows, rcond=1e-10) @ rows
        found.append(np.asarray(projector, dtype=np.float64))
    return found


def _block_diagonal(blocks: Array) -> Any:
    """The matrix with these blocks, shape (count, dim, dim), along its diagonal, sparse."""
    count, dim, _ = blocks.shape
    columns = np.arange(count * dim).reshape(count, 1, dim)
    indices = np.broadcast_to(columns, blocks.shape).ravel()
    begins = np.arange(0, blocks.size + 1, dim)
    return sparse.csr_array((blocks.ravel(), indices, begins), shape=(count * dim,) * 2)
