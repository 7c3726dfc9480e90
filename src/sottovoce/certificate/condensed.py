"""The linear systems of an interior-point method where rows outnumber the states.

Eliminating states would leave a dense system of the size of the rows, of which few are near their
bounds; eliminating the others leaves one of the size of the states.
"""

from __future__ import annotations

from typing import Any, TypeAlias, final

import numpy as np
import scipy.sparse as sparse

from sottovoce.certificate.kkt import FEW, KktMatrix, KktSystem, Symmetric
from sottovoce.problem.agents import Array
from sottovoce.problem.numeric import Jacobian

STIFF = 1e6
"""A row that curves its states more than so many times as much as they curve themselves is kept:
eliminating it would drown them in rounding."""

System: TypeAlias = "KktSystem | CondensedSystem"


def kkt_system(matrix: KktMatrix) -> System:
    """Return the system ``[K J'; J -S] [dx; dmu] = -[r; q]``, eliminated from the longer side."""
    m, n = matrix.jacobian.shape
    many = m > max(FEW, n) and all(block.named for block in matrix.jacobian.blocks)
    return CondensedSystem(matrix) if many else KktSystem(matrix)


@final
class CondensedSystem:
    """The same system with slack rows E eliminated: ``dmu_E = (J_E dx + q_E) / S_E``.

        [K + J_E' S_E^-1 J_E, J_R'; J_R, -S_R] [dx; dmu_R] = -[r + J_E' (q_E / S_E); q_R]

    All agents must be named.
    """

    def __init__(self, matrix: KktMatrix) -> None:
        jacobian, shift, rows = matrix.jacobian, matrix.shift, matrix.rows
        self.free = ~matrix.held
        K = np.diag(matrix.diagonal)
        for block, h in zip(jacobian.blocks, matrix.hessian, strict=True):
            at = np.reshape(block.index, (block.count, block.dim))
            K[at[:, :, np.newaxis], at[:, np.newaxis, :]] += h
        K = K[np.ix_(self.free, self.free)]
        slopes = _all_rows(jacobian)[:, self.free]
        size = np.abs(np.diag(K))
        size = np.maximum(size, np.max(size, initial=0.0) / STIFF)
        bends = slopes.power(2) @ (1.0 / np.where(size > 0.0, size, 1.0))
        loose = rows & (shift > 0.0) & (bends <= STIFF * shift)
        self.out, self.kept = np.flatnonzero(loose), np.flatnonzero(rows & ~loose)
        self.slopes, self.shift = slopes[self.out], shift[self.out]
        weighted = self.slopes.multiply((1.0 / self.shift)[:, np.newaxis]).tocsr()
        inner = K + (self.slopes.T @ weighted).toarray()
        border = slopes[self.kept].toarray()
        below = -np.diag(shift[self.kept])
        self.system = Symmetric(np.block([[inner, border.T], [border, below]]))

    def solve(self, r: Array, q: Array) -> tuple[Array, Array]:
        """Return ``(dx, dmu)``; 0 for states that are held and rows that do not take part."""
        loose = q[self.out]
        pulled = r[self.free] + self.slopes.T @ (loose / self.shift)
        found = self.system.solve(-np.concatenate([pulled, q[self.kept]]))
        n = pulled.size
        dx, dmu = np.zeros_like(r), np.zeros_like(q)
        dx[self.free], dmu[self.kept] = found[:n], found[n:]
        dmu[self.out] = (self.slopes @ found[:n] + loose) / self.shift
        return dx, dmu


def _all_rows(jacobian: Jacobian) -> Any:
    """J with its local rows below, a sparse array."""
    local = jacobian.local
    if local is None:
        return jacobian.named.tocsr()
    parts = [sparse.csr_array((local.count, jacobian.shape[1]))]
    for block, slopes, rows in zip(local.blocks, local.slopes, local.rows, strict=True):
        columns = np.reshape(block.index, (block.count, 1, block.dim))
        at = (np.broadcast_to(rows[:, :, np.newaxis], slopes.shape).ravel(),
              np.broadcast_to(columns, slopes.shape).ravel())  # fmt: skip
        parts.append(sparse.csr_array((slopes.ravel(), at), shape=parts[0].shape))
    own = sum(parts[1:], parts[0])
    own.eliminate_zeros()
    return sparse.vstack([jacobian.named, own], format="csr")
