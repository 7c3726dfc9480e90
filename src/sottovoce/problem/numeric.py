"""Numbers from formulas: f, g and their exact derivatives in float64, whole fleets at a time.

States meet in blocks, because that is how second derivatives do: every fleet is a block of
``count`` agents that only a sum ties together, and so are all named agents of one dimension, save
those that a row mixes. Where a formula is not defined (a logarithm outside its domain, say) the
answer is NaN or infinite, without a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from sottovoce.formula.derive import Derivatives
from sottovoce.formula.expression import Expression
from sottovoce.formula.tape import Tape
from sottovoce.problem.agents import Array
from sottovoce.problem.blocks import Block, layout_of
from sottovoce.problem.constraints import Constraint, FleetSum, Weights, equalities
from sottovoce.problem.named import NamedFormulas
from sottovoce.problem.terms import filled, grouped, named_rows_of

if TYPE_CHECKING:
    from sottovoce.problem.local_numeric import LocalJacobian, LocalRows
    from sottovoce.problem.problem import CloudView, Problem

PIECE = 4096
"""How many agents of a fleet are evaluated together."""


@final
class Formulas:
    """Formulas ``h_1, ..., h_T`` of one agent's state, for all agents of a block at once."""

    def __init__(self, exprs: Iterable[Expression], block: Block) -> None:
        self.exprs = tuple(exprs)
        self.block = block
        self._derivatives = Derivatives(self.exprs, block.symbols, block.parameters)

    def values(self, x: Array) -> Array:
        """``h_t(x_i)``, shape (T, count)."""
        out = np.empty((len(self.exprs), self.block.count))
        for piece, values in self._pieces(self._derivatives.values, x):
            for t, value in enumerate(values):
                out[t, piece] = value
        return out

    def pullback(self, x: Array, nu: Array) -> Array:
        """``sum_t nu_it dh_t/dx (x_i)``, shape (count, dim), for nu that fits (count, T)."""
        places, slopes = self._derivatives.first
        out = np.zeros((self.block.count, self.block.dim))
        nu = np.broadcast_to(nu, (self.block.count, len(self.exprs)))
        for piece, values in self._pieces(slopes, x):
            for (t, c), value in zip(places, values, strict=True):
                out[piece, c] += nu[piece, t] * value
        return out

    def gradients(self, x: Array) -> Array:
        """``dh_t/dx (x_i)``, shape (count, T, dim), or (1, T, dim) if all agents agree."""
        places, slopes = self._derivatives.first
        public = all(e.is_number for e in slopes.formulas)
        out = np.zeros((1 if public else self.block.count, len(self.exprs), self.block.dim))
        for piece, values in self._pieces(slopes, x[:1] if public else x):
            for (t, c), value in zip(places, values, strict=True):
                out[piece, t, c] = value
        return out

    def add_hessian(self, x: Array, nu: Array, out: Array) -> None:
        """Add ``sum_t nu_it d2h_t/dx2 (x_i)`` to ``out``, shape (count, dim, dim)."""
        places, entries = self._derivatives.second
        if not places:
            return
        nu = np.broadcast_to(nu, (self.block.count, len(self.exprs)))
        for piece, values in self._pieces(entries, x):
            for (t, a, b), value in zip(places, values, strict=True):
                out[piece, a, b] += nu[piece, t] * value
                if a != b:
                    out[piece, b, a] += nu[piece, t] * value

    def _pieces(self, formulas: Tape, x: Array) -> Iterator[tuple[slice, list[Any]]]:
        # Columns of a tall array lie far apart: pieces that fit the cache are ten times faster.
        for begin in range(0, len(x), PIECE):
            piece = slice(begin, begin + PIECE)
            columns = x[piece].T.copy()
            parameters = (values[piece] for values in self.block.parameters.values())
            yield piece, formulas(*columns, *parameters)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """What one block adds to some rows of g: ``g[rows[r, t]] += sum_i W[r, i] h_t(x_i)``."""

    rows: Any
    weights: Weights
    formulas: Formulas

    def spread(self, mu: Array) -> Array:
        """``nu_it = sum_r W[r, i] mu[rows[r, t]]``, shape (count, T), or (1, T) without weights."""
        local = mu[self.rows]
        return local if self.weights is None else np.asarray(self.weights.T @ local)

    def gather(self, values: Array) -> Array:
        """``sum_i W[r, i] values[t, i]`` for every row, shape (r, T)."""
        if self.weights is None:
            return np.asarray(values.sum(axis=1))[np.newaxis]
        return np.asarray(self.weights @ values.T)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Jacobian:
    """``J = dg/dx`` at one point, kept as weights and gradients per agent.

    Attributes:
        shape: (m, N).
        blocks: the blocks of states.
        parts: with each part of g, ``dh_t/dx (x_i)`` as ``Formulas.gradients`` gives it.
        local: the derivatives of local rows, which vectors over rows have behind those of g.
        named: the columns of named agents' states, a sparse array (m, N).
    """

    shape: tuple[int, int]
    blocks: tuple[Block, ...]
    parts: tuple[tuple[Part, Array], ...]
    named: Any
    local: LocalJacobian | None = None

    def times(self, v: Array) -> Array:
        """``J v``, one number per row."""
        out = np.asarray(self.named @ v)
        for part, slope in self.parts:
            moved = np.einsum("itd,id->ti", slope, part.formulas.block.of(v))
            out[part.rows] += part.gather(moved)
        return out if self.local is None else np.concatenate([out, self.local.times(v)])

    def pullback(self, mu: Array) -> Array:
        """``J' mu``, shape (N,)."""
        out = np.asarray(self.named.T @ mu[: self.shape[0]])
        if self.local is not None:
            out += self.local.pullback(mu[self.shape[0] :], self.shape[1])
        for part, slope in self.parts:
            block = part.formulas.block
            pulled = np.einsum("it,itd->id", part.spread(mu), slope)
            out[block.index] += np.broadcast_to(pulled, (block.count, block.dim)).ravel()
        return out

    def gram(self, inner: Sequence[Array | None]) -> Array:
        """``J B J'`` of the rows of g, shape (m, m), for B with blocks ``inner``, None for 0."""
        out = np.zeros((self.shape[0], self.shape[0]))
        for block, b in zip(self.blocks, inner, strict=True):
            if b is None:
                continue
            if block.named:
                own = self.named[:, block.index]
                out += _dense(own @ _block_diagonal(b) @ own.T)
                continue
            mine = [(p, slope) for p, slope in self.parts if p.formulas.block is block]
            if all(p.weights is None and len(slope) == 1 for p, slope in mine):
                b = b.sum(axis=0, keepdims=True)
            for left, left_slope in mine:
                half = left_slope @ b
                for right, right_slope in mine:
                    products = half @ right_slope.transpose(0, 2, 1)
                    at = np.ix_(left.rows.ravel(), right.rows.ravel())
                    out[at] += _weighted(left.weights, products, right.weights)
        return out

    def columns(self, block: Block) -> Array:
        """The columns of one block as a dense array (m, count * dim)."""
        if block.named:
            return _dense(self.named[:, block.index])
        out = np.zeros((self.shape[0], block.count * block.dim))
        for part, slope in self.parts:
            if part.formulas.block is block:
                w = np.ones((1, block.count)) if part.weights is None else _dense(part.weights)
                products = np.einsum("ri,itd->rtid", w, slope)
                out[part.rows.ravel()] += products.reshape(part.rows.size, -1)
        return out

    def dense(self) -> Array:
        """J itself, shape (m, N); for small problems."""
        out = np.zeros(self.shape)
        for block in self.blocks:
            out[:, block.index] = self.columns(block)
        return out


@final
class Rows:
    """Families of rows in float64, such as the sums of a problem: values and derivatives.

    Args:
        problem: whose agents.
        families: the rows.
        local: how many local rows each group keeps, if these count.
    """

    def __init__(
        self,
        problem: Problem | CloudView,
        families: Sequence[Constraint],
        local: Mapping[str, int] | None = None,
    ) -> None:
        self.named = named_rows_of(problem.groups, families)
        self.formulas = NamedFormulas(self.named.terms)
        self.layout = layout_of(problem.groups, self.named.units, local or {})
        self.equality = equalities(families)
        self.blocks = self.layout.blocks
        self.parts = tuple(_fleet_parts(families, self.layout.fleets))
        self.offset = self.named.constants

    def values(self, x: Array) -> Array:
        """The rows at x, shape (r,)."""
        out = self.offset + self.named.linear @ x
        for terms, values in zip(self.named.terms, self.formulas.values(x), strict=True):
            np.add.at(out, terms.rows, values)
        for part in self.parts:
            out[part.rows] += part.gather(part.formulas.values(part.formulas.block.of(x)))
        return np.asarray(out)

    def pullback(self, x: Array, weights: Array) -> Array:
        """The gradient of the weighted sum of the rows, shape (N,)."""
        out = np.asarray(self.named.linear.T @ weights)
        own = [weights[terms.rows] for terms in self.named.terms]
        self.formulas.add_pullback(x, own, out)
        for part in self.parts:
            block = part.formulas.block
            out[block.index] += part.formulas.pullback(block.of(x), part.spread(weights)).ravel()
        return out

    def hessian(self, x: Array, weights: Array) -> tuple[Array, ...]:
        """Second derivatives of the weighted sum, per block an array (count, dim, dim)."""
        out = self.layout.zeros()
        own = [weights[terms.rows] for terms in self.named.terms]
        self.formulas.add_hessian(x, own, self.layout.targets(self.named.terms, out))
        for total, block in zip(out, self.blocks, strict=True):
            for part in (p for p in self.parts if p.formulas.block is block):
                part.formulas.add_hessian(block.of(x), part.spread(weights), total)
        return out

    def jacobian(self, x: Array) -> Jacobian:
        """The derivatives of the rows at x."""
        slopes = ((p, p.formulas.gradients(p.formulas.block.of(x))) for p in self.parts)
        shape = (self.offset.size, x.size)
        named = self.named.linear + self.formulas.jacobian(x, shape[0])
        return Jacobian(shape=shape, blocks=self.blocks, parts=tuple(slopes), named=named.tocsr())


@final
class Numeric:
    """A problem in float64: objective, constraints and their first and second derivatives.

    Vectors x have one entry per scalar state, vectors mu one per row, both in the problem's order.
    Local rows, where they count, follow the others: whatever speaks of rows speaks of them too, and
    bounds are the private ones.

    Args:
        problem: what to evaluate.
        rows: its rows; the constraints as stated by default.
        local: its local rows, if they count.
    """

    def __init__(
        self, problem: Problem, rows: Rows | None = None, local: LocalRows | None = None
    ) -> None:
        self.problem, self.local = problem, local
        self._rows = Rows(problem, problem.constraints) if rows is None else rows
        self._layout, self.blocks = self._rows.layout, self._rows.blocks
        equality = [self._rows.equality] + ([] if local is None else [local.equality])
        self.equality: NDArray[np.bool_] = np.concatenate(equality)
        stated = zip(problem.groups, problem.objectives, problem.code, strict=True)
        pairs = [(g, f) for g, f, code in stated if code is None]
        self._code = len(pairs) < len(problem.groups)
        unit = self._rows.named.unit_of()
        named = [(0, unit[g.symbols[0]], filled(f, g)) for g, f in pairs if g.count == 1]
        self._own = NamedFormulas(grouped(named, self._rows.named.units))
        self._ones = [np.ones(len(terms.rows)) for terms in self._own.terms]
        self._fleets = tuple(
            Formulas([f], self._layout.fleets[g.name]) for g, f in pairs if g.count > 1
        )

    @cached_property
    def lower(self) -> Array:
        """The lower bounds of all states, shape (N,)."""
        if self.local is None:
            return self.problem.cloud.lower()
        return np.concatenate([own.lower.ravel() for own in self.problem.local])

    @cached_property
    def upper(self) -> Array:
        """The upper bounds of all states, shape (N,)."""
        if self.local is None:
            return self.problem.cloud.upper()
        return np.concatenate([own.upper.ravel() for own in self.problem.local])

    def label(self, row: int) -> str:
        """What people call a row."""
        labels = self.problem.cloud.row_labels()
        if self.local is None or row < len(labels):
            return labels[row]
        return self.local.label(row - len(labels))

    def objective(self, x: Array) -> float:
        """``sum_i f_i(x_i)``; not a number where an objective is code."""
        total = sum(float(v.sum()) for v in self._own.values(x)) + (np.nan if self._code else 0.0)
        for formulas in self._fleets:
            total += float(formulas.values(formulas.block.of(x)).sum())
        return total

    def objective_gradient(self, x: Array) -> Array:
        """The gradients of all ``f_i`` in one vector, shape (N,)."""
        out = np.zeros(x.size)
        self._own.add_pullback(x, self._ones, out)
        for formulas in self._fleets:
            block = formulas.block
            out[block.index] = formulas.pullback(block.of(x), np.ones((1, 1))).ravel()
        return out

    def objective_hessian(self, x: Array) -> tuple[Array, ...]:
        """Second derivatives of the objective, per block an array (count, dim, dim)."""
        out = self._layout.zeros()
        self._own.add_hessian(x, self._ones, self._layout.targets(self._own.terms, out))
        for formulas in self._fleets:
            total = out[self.blocks.index(formulas.block)]
            formulas.add_hessian(formulas.block.of(x), np.ones((1, 1)), total)
        return out

    def constraints(self, x: Array) -> Array:
        """``g(x)``, one number per row."""
        g = self._rows.values(x)
        return g if self.local is None else np.concatenate([g, self.local.values(x)])

    def pullback(self, x: Array, mu: Array) -> Array:
        """``(dg/dx)' mu``, the gradient of ``mu' g``, shape (N,)."""
        m = self._rows.offset.size
        pulled = self._rows.pullback(x, mu[:m])
        return pulled if self.local is None else pulled + self.local.pullback(x, mu[m:])

    def lagrangian(self, x: Array, mu: Array) -> float:
        """``L = sum_i f_i + mu' g`` at (x, mu)."""
        with np.errstate(all="ignore"):
            return self.objective(x) + float(mu @ self.constraints(x))

    def lagrangian_gradient(self, x: Array, mu: Array) -> Array:
        """The gradient of ``L = sum_i f_i + mu' g`` in x, shape (N,)."""
        return self.objective_gradient(x) + self.pullback(x, mu)

    def constraint_hessian(self, x: Array, mu: Array) -> tuple[Array, ...]:
        """Second derivatives of ``mu' g``, per block an array (count, dim, dim)."""
        m = self._rows.offset.size
        out = self._rows.hessian(x, mu[:m])
        if self.local is not None:
            self.local.add_hessian(x, mu[m:], out)
        return out

    def lagrangian_hessian(self, x: Array, mu: Array) -> tuple[Array, ...]:
        """Second derivatives of ``L`` in x, per block an array (count, dim, dim)."""
        both = zip(self.objective_hessian(x), self.constraint_hessian(x, mu), strict=True)
        return tuple(f + g for f, g in both)

    def jacobian(self, x: Array) -> Jacobian:
        """``dg/dx`` at x."""
        found = self._rows.jacobian(x)
        return found if self.local is None else replace(found, local=self.local.jacobian(x))

    def residual(self, x: Array, mu: Array) -> float:
        """The natural residual of the saddle-point conditions, 0 at a saddle point only.

        ``max(|x - P_X(x - dL/dx)|, |mu - max(mu + g, 0)|)`` over all components, ``|g|`` for the
        rows that must be 0.
        """
        moved = np.clip(x - self.lagrangian_gradient(x, mu), self.lower, self.upper)
        raised = mu + self.constraints(x)
        raised = np.where(self.equality, raised, np.maximum(raised, 0.0))
        return float(max(np.max(np.abs(x - moved)), np.max(np.abs(mu - raised))))


def _fleet_parts(families: Sequence[Constraint], place: Mapping[str, Block]) -> Iterator[Part]:
    begin = 0
    for family in families:
        for term in family.sums:
            if term.group.count > 1:
                yield _fleet_part(term, begin, place[term.group.name])
        begin += family.rows


def _fleet_part(term: FleetSum, begin: int, block: Block) -> Part:
    rows = begin + np.arange(term.rows).reshape(-1, len(term.terms))
    return Part(rows=rows, weights=term.weights, formulas=Formulas(term.terms, block))


def _weighted(left: Weights, products: Array, right: Weights) -> Array:
    """``sum_i Wl[r, i] products[i, t, u] Wr[s, i]`` as a matrix, rows (r, t), columns (s, u)."""
    if left is None and right is None:
        return np.asarray(products.sum(axis=0))
    one = np.ones((1, products.shape[0]))
    wl, wr = (one if w is None else w for w in (left, right))
    out = np.zeros((wl.shape[0], products.shape[1], wr.shape[0], products.shape[2]))
    for t, u in zip(*np.nonzero(np.any(products != 0.0, axis=0)), strict=True):
        factor = products[:, t, u]
        scaled = wl * factor if isinstance(wl, np.ndarray) else wl.multiply(factor)
        out[:, t, :, u] = _dense(scaled @ wr.T)
    return out.reshape(wl.shape[0] * products.shape[1], -1)


def _block_diagonal(blocks: Array) -> Any:
    """The matrix with these blocks, shape (count, dim, dim), along its diagonal, sparse."""
    count, dim, _ = blocks.shape
    columns = np.arange(count * dim).reshape(count, 1, dim)
    indices = np.broadcast_to(columns, blocks.shape).ravel()
    begins = np.arange(0, blocks.size + 1, dim)
    return sparse.csr_array((blocks.ravel(), indices, begins), shape=(count * dim,) * 2)


def _dense(matrix: Any) -> Array:
    return np.asarray(matrix if isinstance(matrix, np.ndarray) else matrix.toarray())
