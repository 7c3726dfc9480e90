"""Local rows in float64: values, derivatives and multipliers, agent by agent.

Rows of named agents that are linear, such as ramps, are one sparse matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from sottovoce.formula.expression import Expression
from sottovoce.problem.agents import Array
from sottovoce.problem.blocks import Block
from sottovoce.problem.constraints import Constraint
from sottovoce.problem.linear import coefficients
from sottovoce.problem.named import NamedFormulas
from sottovoce.problem.numeric import Formulas, Jacobian, Numeric, Rows
from sottovoce.problem.terms import filled, grouped

if TYPE_CHECKING:
    from sottovoce.problem.problem import Problem


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
    """All local rows of a problem, agent by agent, inequalities of an agent first.

    Args:
        problem: whose agents.
        rows: what couples them, and where their states lie.
    """

    def __init__(self, problem: Problem, rows: Rows) -> None:
        self.blocks, self._layout = rows.blocks, rows.layout
        self._groups, unit = [], rows.named.unit_of()
        self._fleets: list[tuple[NDArray[np.intp], Formulas]] = []
        named: list[tuple[int, int, Expression]] = []
        linear: dict[int, tuple[dict[Expression, float], float]] = {}
        own_rows: dict[int, list[int]] = {u: [] for u in range(len(rows.named.units))}
        fleets: dict[str, NDArray[np.intp]] = {}
        masks, begin = [np.zeros(0, dtype=np.bool_)], 0
        for group, own in zip(problem.groups, problem.local, strict=True):
            exprs = (*own.inequalities, *own.equalities)
            mine = begin + np.arange(group.count * len(exprs)).reshape(group.count, len(exprs))
            if group.count == 1:
                at = unit[group.symbols[0]]
                own_rows[at] += mine[0].tolist()
                for row, expr in enumerate((filled(e, group) for e in exprs), begin):
                    found = coefficients(expr)
                    if found is None:
                        named.append((row, at, expr))
                    else:
                        linear[row] = found
            else:
                fleets[group.name] = mine
                self._fleets.append((mine, Formulas(exprs, rows.layout.fleets[group.name])))
            equal = np.arange(len(exprs)) >= len(own.inequalities)
            masks.append(np.tile(equal, group.count))
            self._groups.append((begin, group.name, own.labels))
            begin += mine.size
        self._named = NamedFormulas(grouped(named, rows.named.units))
        self._rows = self._by_block(own_rows, fleets)
        self.count = begin
        self._linear, self._constants = _matrix(linear, rows, begin)
        self._constant_slopes = self._spread_out()
        self.equality: NDArray[np.bool_] = np.concatenate(masks)

    def _by_block(
        self, units: Mapping[int, Sequence[int]], fleets: Mapping[str, NDArray[np.intp]]
    ) -> tuple[NDArray[np.intp], ...]:
        """Per block the rows of its agents, shape (count, R)."""
        members: list[list[Sequence[int]]] = [[] for _ in self.blocks]
        for u, (block, _) in enumerate(self._layout.units):
            members[block].append(units[u])
        known = {id(self._layout.fleets[name]): rows for name, rows in fleets.items()}
        return tuple(
            known[id(block)]
            if id(block) in known
            else np.array(rows, dtype=np.intp).reshape(block.count, -1)
            for block, rows in zip(self.blocks, members, strict=True)
        )

    def _spread_out(self) -> tuple[Array, ...]:
        """The linear rows per block, an array (count, R, dim)."""
        agent, place = (np.zeros(self.count, dtype=np.intp) for _ in range(2))
        component = np.zeros(self._linear.shape[1], dtype=np.intp)
        for rows, block in zip(self._rows, self.blocks, strict=True):
            agent[rows], place[rows] = (
                np.arange(block.count)[:, np.newaxis],
                np.arange(rows.shape[1]),
            )
            component[block.index] = np.tile(np.arange(block.dim), block.count)
        found = []
        for rows, block in zip(self._rows, self.blocks, strict=True):
            slopes = np.zeros((*rows.shape, block.dim))
            mine = rows.ravel()
            entries = self._linear[mine].tocoo()
            at = mine[entries.row]
            slopes[agent[at], place[at], component[entries.col]] = entries.data
            found.append(slopes)
        return tuple(found)

    def label(self, row: int) -> str:
        """What people call a local row."""
        begin, name, texts = next(g for g in reversed(self._groups) if g[2] and g[0] <= row)
        return f"{texts[(row - begin) % len(texts)]} of {name}"

    def values(self, x: Array) -> Array:
        """``c(x)`` and ``e(x)``, one number per row."""
        out = np.asarray(self._linear @ x) + self._constants
        for terms, found in zip(self._named.terms, self._named.values(x), strict=True):
            out[terms.rows] = found
        for rows, formulas in self._used():
            out[rows] = formulas.values(formulas.block.of(x)).T
        return out

    def pullback(self, x: Array, nu: Array) -> Array:
        """``(dc/dx)' nu``, shape (N,)."""
        out = np.asarray(self._linear.T @ nu)
        self._named.add_pullback(x, [nu[terms.rows] for terms in self._named.terms], out)
        for rows, formulas in self._used():
            block = formulas.block
            out[block.index] = formulas.pullback(block.of(x), nu[rows]).ravel()
        return out

    def add_hessian(self, x: Array, nu: Array, out: Sequence[Array]) -> None:
        """Add the second derivatives of ``nu'c`` to an array (count, dim, dim) per block."""
        weights = [nu[terms.rows] for terms in self._named.terms]
        self._named.add_hessian(x, weights, self._layout.targets(self._named.terms, out))
        for rows, formulas in self._used():
            total = out[self.blocks.index(formulas.block)]
            formulas.add_hessian(formulas.block.of(x), nu[rows], total)

    def jacobian(self, x: Array) -> LocalJacobian:
        """The derivatives of all rows at x."""
        slopes = [slope.copy() for slope in self._constant_slopes]
        place = np.zeros(self.count, dtype=np.intp)
        for rows in self._rows:
            place[rows] = np.arange(rows.shape[1])
        targets = self._layout.targets(self._named.terms, slopes)
        for t, c, slope in self._named.slopes(x):
            for total, mine, agents in targets[t]:
                total[agents, place[self._named.terms[t].rows[mine]], c] = slope[mine]
        for _, formulas in self._used():
            slopes[self.blocks.index(formulas.block)][:] = formulas.gradients(formulas.block.of(x))
        return LocalJacobian(
            blocks=self.blocks, slopes=tuple(slopes), rows=self._rows, count=self.count
        )

    def _used(self) -> Iterator[tuple[NDArray[np.intp], Formulas]]:
        return ((rows, formulas) for rows, formulas in self._fleets if rows.size)


def _matrix(
    linear: Mapping[int, tuple[Mapping[Expression, float], float]], rows: Rows, count: int
) -> tuple[Any, Array]:
    """Linear rows, by their number, as a sparse array (count, N) and constants."""
    column = {
        s: int(c)
        for unit in rows.named.units
        for s, c in zip(unit.symbols, unit.columns, strict=True)
    }
    entries = [(row, column[s], w) for row, (own, _) in linear.items() for s, w in own.items()]
    at, columns, values = zip(*entries, strict=True) if entries else ((), (), ())
    constants = np.zeros(count)
    for row, (_, constant) in linear.items():
        constants[row] = constant
    shape = (count, rows.named.linear.shape[1])
    return sparse.csr_array(
        (np.array(values, dtype=np.float64), (at, columns)), shape=shape
    ), constants


def numeric_of(problem: Problem, families: Sequence[Constraint] | None = None) -> Numeric:
    """Return a problem in float64, with its local rows if it has local sets.

    Args:
        problem: what to evaluate.
        families: its rows; the constraints as stated by default.
    """
    given = problem.constraints if families is None else families
    plain = all(own.plain(g) for own, g in zip(problem.local, problem.groups, strict=True))
    if plain:
        return Numeric(problem, Rows(problem, given))
    kept = {g.name: own.rows for g, own in zip(problem.groups, problem.local, strict=True)}
    rows = Rows(problem, given, kept)
    return Numeric(problem, rows, LocalRows(problem, rows))


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
