"""Local rows in float64: values, derivatives and multipliers, agent by agent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
import sympy as sp
from numpy.typing import NDArray

from sottovoce.problem.agents import Array
from sottovoce.problem.numeric import Block, Formulas, Jacobian, Numeric, blocks_of

if TYPE_CHECKING:
    from sottovoce.problem.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalPart:
    """The rows of one block: ``c[rows[i, r]] = c_r(x_i)``."""

    rows: NDArray[np.intp]
    formulas: Formulas


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalJacobian:
    """``dc/dx`` at one point: for each block an array (count, R, dim), and its rows."""

    blocks: tuple[Block, ...]
    slopes: tuple[Array, ...]
    rows: tuple[NDArray[np.intp], ...]
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
class LocalRows:
    """All local rows of a problem, block by block, inequalities of a block first."""

    def __init__(self, problem: Problem) -> None:
        self.blocks, place = blocks_of(problem.groups)
        exprs: dict[int, list[sp.Expr]] = {id(block): [] for block in self.blocks}
        equal: dict[int, list[bool]] = {id(block): [] for block in self.blocks}
        labels: dict[int, list[str]] = {id(block): [] for block in self.blocks}
        for group, own in zip(problem.groups, problem.local, strict=True):
            at = id(place[group.name])
            exprs[at] += [*own.inequalities, *own.equalities]
            equal[at] += [False] * len(own.inequalities) + [True] * len(own.equalities)
            labels[at] += [f"{text} of {group.name}" for text in own.labels]
        self.parts: list[LocalPart] = []
        masks, self._labels, begin = [np.zeros(0, dtype=np.bool_)], [], 0
        for block in self.blocks:
            kept = exprs[id(block)]
            rows = begin + np.arange(block.count * len(kept)).reshape(block.count, len(kept))
            self.parts.append(LocalPart(rows=rows, formulas=Formulas(kept, block)))
            masks.append(np.tile(np.array(equal[id(block)], dtype=np.bool_), block.count))
            self._labels.append(labels[id(block)])
            begin += rows.size
        self.count = begin
        self.equality: NDArray[np.bool_] = np.concatenate(masks)

    def label(self, row: int) -> str:
        """What people call a local row."""
        for part, texts in zip(self.parts, self._labels, strict=True):
            if part.rows.size and part.rows.flat[0] <= row <= part.rows.flat[-1]:
                return texts[(row - int(part.rows.flat[0])) % len(texts)]
        raise IndexError(row)

    def values(self, x: Array) -> Array:
        """``c(x)`` and ``e(x)``, one number per row."""
        out = np.zeros(self.count)
        for part in self._used():
            out[part.rows] = part.formulas.values(part.formulas.block.of(x)).T
        return out

    def pullback(self, x: Array, nu: Array) -> Array:
        """``(dc/dx)' nu``, shape (N,)."""
        out = np.zeros(x.size)
        for part in self._used():
            block = part.formulas.block
            out[block.index] = part.formulas.pullback(block.of(x), nu[part.rows]).ravel()
        return out

    def add_hessian(self, x: Array, nu: Array, out: Sequence[Array]) -> None:
        """Add the second derivatives of ``nu'c`` to an array (count, dim, dim) per block."""
        for part, total in zip(self.parts, out, strict=True):
            if part.rows.size:
                part.formulas.add_hessian(part.formulas.block.of(x), nu[part.rows], total)

    def jacobian(self, x: Array) -> LocalJacobian:
        """The derivatives of all rows at x."""
        slopes = []
        for part in self.parts:
            block = part.formulas.block
            shape = (*part.rows.shape, block.dim)
            found = part.formulas.gradients(block.of(x)) if part.rows.size else np.zeros(shape)
            slopes.append(np.broadcast_to(found, shape))
        rows = tuple(part.rows for part in self.parts)
        return LocalJacobian(blocks=self.blocks, slopes=tuple(slopes), rows=rows, count=self.count)

    def _used(self) -> Iterator[LocalPart]:
        return (part for part in self.parts if part.rows.size)


def numeric_of(problem: Problem) -> Numeric:
    """Return a problem in float64, with its local rows if it has local sets."""
    plain = all(own.plain(g) for own, g in zip(problem.local, problem.groups, strict=True))
    return Numeric(problem, None if plain else LocalRows(problem))


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
