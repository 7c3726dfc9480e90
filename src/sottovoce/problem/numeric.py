"""Numbers from formulas: f, g and their exact derivatives in float64, fleet by fleet.

Second derivatives come in blocks: every stated fleet is a block of ``count`` agents that only sums
tie together, and so are all named agents of one dimension, save those that a row mixes. Where a
formula is not defined (a logarithm outside its domain, say) the answer is NaN or infinite, without
a warning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from sottovoce.formula.derive import Derivatives
from sottovoce.formula.expression import Expression
from sottovoce.formula.tape import Tape
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.connected import Indices, connected
from sottovoce.problem.constraints import Constraint, equalities
from sottovoce.problem.fleet import Fleet
from sottovoce.problem.fleets import fleets_of, row_constants
from sottovoce.problem.jacobian import Jacobian, LocalJacobian, StateBlock
from sottovoce.problem.local import LocalSet

if TYPE_CHECKING:
    from sottovoce.problem.problem import CloudView, Problem

PIECE = 4096
"""How many agents of a fleet are evaluated together."""


@final
class Formulas:
    """Formulas ``h_1, ..., h_T`` of one agent's state, for all agents of a group at once."""

    def __init__(self, exprs: Iterable[Expression], group: Group) -> None:
        self.exprs, self.group = tuple(exprs), group
        self._derivatives = Derivatives(self.exprs, group.symbols, group.parameters)

    @property
    def places(self) -> list[tuple[int, int]]:
        """The terms and components (t, c) whose ``dh_t/dx_c`` is not 0."""
        return self._derivatives.first[0]

    @cached_property
    def constant(self) -> bool:
        """Whether no derivative depends on the state."""
        states = set(self.group.symbols)
        return not any(e.symbols & states for e in self._derivatives.first[1].formulas)

    def values(self, x: Array) -> Array:
        """``h_t(x_i)``, shape (T, count)."""
        out = np.empty((len(self.exprs), self.group.count))
        for piece, values in self._pieces(self._derivatives.values, x):
            for t, value in enumerate(values):
                out[t, piece] = value
        return out

    def pullback(self, x: Array, nu: Array) -> Array:
        """``sum_t nu_it dh_t/dx (x_i)``, shape (count, dim), for nu that fits (count, T)."""
        places, slopes = self._derivatives.first
        out = np.zeros((self.group.count, self.group.dim))
        nu = np.broadcast_to(nu, (self.group.count, len(self.exprs)))
        for piece, values in self._pieces(slopes, x):
            for (t, c), value in zip(places, values, strict=True):
                out[piece, c] += nu[piece, t] * value
        return out

    def slopes(self, x: Array) -> list[Array]:
        """``dh_t/dx_c (x_i)`` for every one of ``places``, shape (count,) each."""
        out = [np.empty(self.group.count) for _ in self.places]
        for piece, values in self._pieces(self._derivatives.first[1], x):
            for slope, value in zip(out, values, strict=True):
                slope[piece] = value
        return out

    def gradients(self, x: Array) -> Array:
        """``dh_t/dx (x_i)``, shape (count, T, dim)."""
        out = np.zeros((self.group.count, len(self.exprs), self.group.dim))
        for (t, c), slope in zip(self.places, self.slopes(x), strict=True):
            out[:, t, c] = slope
        return out

    def add_hessian(self, x: Array, nu: Array, out: Array) -> None:
        """Add ``sum_t nu_it d2h_t/dx2 (x_i)`` to ``out``, shape (count, dim, dim)."""
        places, entries = self._derivatives.second
        if not places:
            return
        nu = np.broadcast_to(nu, (self.group.count, len(self.exprs)))
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
            parameters = (values[piece] for values in self.group.parameters.values())
            with np.errstate(all="ignore"):
                yield piece, formulas(*columns, *parameters)


@final
class _Member:
    """A fleet's formulas, and where second derivatives and local rows of its agents belong.

    Args:
        fleet: the agents.
        local: their local rows, if these count, shape (count, R).
    """

    def __init__(self, fleet: Fleet, local: Indices) -> None:
        self.fleet, self.local = fleet, local
        self.objective = Formulas([fleet.objective], fleet.group)
        self.terms = Formulas(fleet.terms, fleet.group)
        self.parts = tuple(fleet.parts()) if fleet.sums else ()
        kept = fleet.local if local.size else None
        rows = () if kept is None else (*kept.inequalities, *kept.equalities)
        self.rows = Formulas(rows, fleet.group)
        # Per block: which agents, their places there, and their components there.
        self.targets: list[tuple[int, Any, Any, Any]] = []

    def spread(self, mu: Array) -> Array:
        """The multiplier of every term, shape (count or 1, T)."""
        plain = all(part.weights is None for part in self.parts)
        nu = np.zeros((1 if plain else self.fleet.group.count, len(self.terms.exprs)))
        for part in self.parts:
            nu[:, part.terms] += part.spread(mu)
        return nu

    def add_hessian(self, formulas: Formulas, x: Array, nu: Array, out: Sequence[Array]) -> None:
        """Add the second derivatives of ``nu'h`` to the blocks' arrays (count, dim, dim)."""
        if len(self.targets) == 1 and self.targets[0][1] is None:
            formulas.add_hessian(self.fleet.of(x), nu, out[self.targets[0][0]])
            return
        own = np.zeros((self.fleet.group.count, self.fleet.group.dim, self.fleet.group.dim))
        formulas.add_hessian(self.fleet.of(x), nu, own)
        for block, mine, place, c in self.targets:
            at = (place[:, np.newaxis, np.newaxis], c[:, :, np.newaxis], c[:, np.newaxis, :])
            out[block][at] += own[mine]

    def jacobian(self, x: Array, size: tuple[int, int]) -> Any:
        """What the fleet adds to J."""
        columns = self.fleet.of(np.arange(size[1]))
        slopes = list(zip(self.terms.places, self.terms.slopes(self.fleet.of(x)), strict=True))
        data, rows, at = [], [], []
        for part in self.parts:
            for t, row, agent, weight in part.entries(self.fleet.group.count):
                for c, slope in ((c, slope) for (of, c), slope in slopes if of == t):
                    rows.append(row)
                    at.append(columns[agent, c])
                    data.append(weight * slope[agent])
        if not data:
            return sparse.csr_array(size)
        place = (np.concatenate(rows), np.concatenate(at))
        return sparse.csr_array((np.concatenate(data), place), shape=size)


@final
class Rows:
    """Families of rows in float64, such as the sums of a problem: values and derivatives.

    Args:
        view: whose agents.
        families: the rows.
        objectives: the agents' objectives, if they count.
        local: the agents' local sets, if their rows count.
        alone: groups whose objectives are code.
    """

    def __init__(
        self,
        view: Problem | CloudView,
        families: Sequence[Constraint],
        objectives: Sequence[Expression] | None = None,
        local: Sequence[LocalSet] | None = None,
        *,
        alone: Collection[int] = (),
    ) -> None:
        groups = view.groups
        self.equality = equalities(families)
        self.offset = row_constants(families)
        self.size = sum(group.count * group.dim for group in groups)
        self._kept = [0] * len(groups) if local is None else [own.rows for own in local]
        sizes = [group.count * rows for group, rows in zip(groups, self._kept, strict=True)]
        self._begin = np.cumsum([0, *sizes])
        self.members = [
            _Member(fleet, self._local_rows(fleet))
            for fleet in fleets_of(groups, families, objectives, local, alone=alone)
        ]
        self.blocks, self._block_rows = self._laid_out()
        self._constant: Any = None

    def _local_rows(self, fleet: Fleet) -> Indices:
        """The local rows of every agent of a fleet, shape (count, R)."""
        if not fleet.places:
            return np.zeros((1, 0), dtype=np.int64)
        rows = self._kept[fleet.places[0]]
        begins = self._begin[list(fleet.places)][:, np.newaxis]
        if len(fleet.places) < fleet.group.count:
            begins = begins + rows * np.arange(fleet.group.count)[:, np.newaxis]
        return begins + np.arange(rows)

    def _laid_out(self) -> tuple[tuple[StateBlock, ...], tuple[Indices, ...]]:
        """The blocks of states with their local rows; named agents that a row mixes share one."""
        owner = np.full(self.size, -1, dtype=np.int64)
        named: list[tuple[Indices, Indices]] = []  # columns and local rows of every named agent
        blocks: list[StateBlock] = []
        rows: list[Indices] = []
        for member in self.members:
            fleet = member.fleet
            if isinstance(fleet.columns, slice):
                member.targets.append((len(blocks), None, None, None))
                count, dim = fleet.group.count, fleet.group.dim
                blocks.append(StateBlock(index=fleet.columns, count=count, dim=dim))
                rows.append(member.local)
            elif fleet.places:
                for columns, own in zip(fleet.of(np.arange(self.size)), member.local, strict=True):
                    owner[columns] = len(named)
                    named.append((columns, own))
        mixing = [m.fleet.columns for m in self.members if not m.fleet.places]
        ends = [np.zeros((0, 2), dtype=np.int64)]
        ends += [np.stack([np.full(c.size, owner[c[0]]), owner[c]], axis=1) for c in mixing]
        label = connected(len(named), *np.concatenate(ends).T)
        units: defaultdict[int, list[int]] = defaultdict(list)
        for agent in sorted(range(len(named)), key=lambda a: int(named[a][0][0])):
            units[int(label[agent])].append(agent)
        kinds: defaultdict[Any, list[tuple[Indices, Indices]]] = defaultdict(list)
        for unit, agents in units.items():
            columns, own = (np.concatenate(part) for part in zip(*(named[a] for a in agents),
                                                                 strict=True))  # fmt: skip
            alone = len(agents) == 1
            kinds[columns.size, -1 if alone else unit, own.size].append((columns, own))
        block_of, place_of, component = (np.zeros(self.size, dtype=np.int64) for _ in range(3))
        for those in kinds.values():
            columns, own = (np.stack(part) for part in zip(*those, strict=True))
            block_of[columns] = len(blocks)
            place_of[columns] = np.arange(len(those))[:, np.newaxis]
            component[columns] = np.arange(columns.shape[1])
            count, dim = columns.shape
            blocks.append(StateBlock(index=columns.ravel(), count=count, dim=dim, named=True))
            rows.append(own)
        for member in self.members:
            if not member.targets:
                at = member.fleet.of(np.arange(self.size))
                for b in np.unique(block_of[at[:, 0]]):
                    mine = np.flatnonzero(block_of[at[:, 0]] == b)
                    place, parts = place_of[at[mine, 0]], component[at[mine]]
                    member.targets.append((int(b), mine, place, parts))
        return tuple(blocks), tuple(rows)

    def values(self, x: Array) -> Array:
        """The rows at x, shape (r,)."""
        out = self.offset.copy()
        for member in self.members:
            if member.parts:
                values = member.terms.values(member.fleet.of(x))
                for part in member.parts:
                    out[part.rows] += part.gather(values[part.terms.start : part.terms.stop])
        return out

    def pullback(self, x: Array, weights: Array) -> Array:
        """The gradient of the weighted sum of the rows, shape (N,)."""
        out = np.zeros(self.size)
        for member in self.members:
            if member.parts:
                fleet = member.fleet
                found = member.terms.pullback(fleet.of(x), member.spread(weights))
                out[fleet.columns] += found.ravel()
        return out

    def hessian(self, x: Array, weights: Array) -> tuple[Array, ...]:
        """Second derivatives of the weighted sum, per block an array (count, dim, dim)."""
        out = self.zeros()
        for member in self.members:
            if member.parts:
                member.add_hessian(member.terms, x, member.spread(weights), out)
        return out

    def zeros(self) -> tuple[Array, ...]:
        """An array (count, dim, dim) of zeros for every block."""
        return tuple(np.zeros((b.count, b.dim, b.dim)) for b in self.blocks)

    def jacobian(self, x: Array) -> Jacobian:
        """The derivatives of the rows at x."""
        size = (self.offset.size, self.size)
        if self._constant is None:
            found = (m.jacobian(x, size) for m in self.members if m.terms.constant)
            self._constant = sum(found, sparse.csr_array(size))
        varying = (m.jacobian(x, size) for m in self.members if not m.terms.constant)
        return Jacobian(matrix=sum(varying, self._constant), blocks=self.blocks)

    @property
    def local_count(self) -> int:
        """How many local rows there are."""
        return int(self._begin[-1])

    def local_equality(self) -> NDArray[np.bool_]:
        """Which local rows must be 0, and not just at most 0."""
        out = np.zeros(self.local_count, dtype=np.bool_)
        for member in self.members:
            if member.local.size and member.fleet.local is not None:
                out[member.local[:, len(member.fleet.local.inequalities) :]] = True
        return out

    def local_values(self, x: Array) -> Array:
        """``c(x)`` and ``e(x)``, one number per local row."""
        out = np.zeros(self.local_count)
        for member in self._with_rows():
            out[member.local] = member.rows.values(member.fleet.of(x)).T
        return out

    def local_pullback(self, x: Array, nu: Array) -> Array:
        """``(dc/dx)' nu``, shape (N,)."""
        out = np.zeros(self.size)
        for member in self._with_rows():
            found = member.rows.pullback(member.fleet.of(x), nu[member.local])
            out[member.fleet.columns] = found.ravel()
        return out

    def add_local_hessian(self, x: Array, nu: Array, out: Sequence[Array]) -> None:
        """Add the second derivatives of ``nu'c`` to an array (count, dim, dim) per block."""
        for member in self._with_rows():
            member.add_hessian(member.rows, x, nu[member.local], out)

    def local_jacobian(self, x: Array) -> LocalJacobian:
        """The derivatives of all local rows at x."""
        place = np.zeros(self.local_count, dtype=np.int64)
        slopes = []
        for block, rows in zip(self.blocks, self._block_rows, strict=True):
            place[rows] = np.arange(rows.shape[1])
            slopes.append(np.zeros((block.count, rows.shape[1], block.dim)))
        for member in self._with_rows():
            found = member.rows.gradients(member.fleet.of(x))
            for b, mine, at, c in member.targets:
                if mine is None:
                    slopes[b] += found
                else:
                    rows = place[member.local[mine]][:, :, np.newaxis]
                    slopes[b][at[:, None, None], rows, c[:, None, :]] = found[mine]
        return LocalJacobian(
            blocks=self.blocks,
            slopes=tuple(slopes),
            rows=self._block_rows,
            count=self.local_count,
        )

    def _with_rows(self) -> Iterator[_Member]:
        return (member for member in self.members if member.local.size)


@final
class Numeric:
    """A problem in float64: objective, constraints and their first and second derivatives.

    Vectors x have one entry per scalar state, vectors mu one per row, both in the problem's order.
    Local rows, where they count, follow the others: whatever speaks of rows speaks of them too, and
    bounds are the private ones.

    Args:
        problem: what to evaluate.
        families: its rows; the constraints as stated by default.
        local: whether local sets count.
    """

    def __init__(
        self,
        problem: Problem,
        families: Sequence[Constraint] | None = None,
        *,
        local: bool = False,
    ) -> None:
        self.problem = problem
        stated = problem.constraints if families is None else families
        known = [code is None for code in problem.code]
        alone = [i for i, formula in enumerate(known) if not formula]
        self._rows = Rows(
            problem, stated, problem.objectives, problem.local if local else None, alone=alone
        )
        self._valued = [
            m for m in self._rows.members if m.fleet.places and known[m.fleet.places[0]]
        ]
        ends = np.cumsum([0, *(g.count * g.dim for g in problem.groups)])
        self._code = [
            (slice(ends[i], ends[i + 1]), code.value)
            for i, code in enumerate(problem.code)
            if code is not None
        ]
        self.blocks = self._rows.blocks
        self.local = self._rows if local else None
        self.equality: NDArray[np.bool_] = np.concatenate(
            [self._rows.equality, self._rows.local_equality()]
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
        if row < len(labels):
            return labels[row]
        row -= len(labels)
        for group, own in zip(self.problem.groups, self.problem.local, strict=True):
            if row < group.count * own.rows:
                return f"{own.labels[row % own.rows]} of {group.name}"
            row -= group.count * own.rows
        raise IndexError(row)

    def objective(self, x: Array) -> float:
        """``sum_i f_i(x_i)``; NaN where an objective is code without a value."""
        found = [float(m.objective.values(m.fleet.of(x)).sum()) for m in self._valued]
        found += [np.nan if f is None else float(f(x[at])) for at, f in self._code]
        return sum(found)

    def objective_gradient(self, x: Array) -> Array:
        """The gradients of all ``f_i`` in one vector, shape (N,)."""
        out = np.zeros(x.size)
        for m in self._valued:
            out[m.fleet.columns] = m.objective.pullback(m.fleet.of(x), np.ones((1, 1))).ravel()
        return out

    def objective_hessian(self, x: Array) -> tuple[Array, ...]:
        """Second derivatives of the objective, per block an array (count, dim, dim)."""
        out = self._rows.zeros()
        for m in self._valued:
            m.add_hessian(m.objective, x, np.ones((1, 1)), out)
        return out

    def constraints(self, x: Array) -> Array:
        """``g(x)``, one number per row."""
        return np.concatenate([self._rows.values(x), self._rows.local_values(x)])

    def pullback(self, x: Array, mu: Array) -> Array:
        """``(dg/dx)' mu``, the gradient of ``mu' g``, shape (N,)."""
        m = self._rows.offset.size
        return self._rows.pullback(x, mu[:m]) + self._rows.local_pullback(x, mu[m:])

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
        self._rows.add_local_hessian(x, mu[m:], out)
        return out

    def lagrangian_hessian(self, x: Array, mu: Array) -> tuple[Array, ...]:
        """Second derivatives of ``L`` in x, per block an array (count, dim, dim)."""
        both = zip(self.objective_hessian(x), self.constraint_hessian(x, mu), strict=True)
        return tuple(f + g for f, g in both)

    def jacobian(self, x: Array) -> Jacobian:
        """``dg/dx`` at x."""
        found = self._rows.jacobian(x)
        return replace(found, local=self._rows.local_jacobian(x)) if self.local else found

    def residual(self, x: Array, mu: Array) -> float:
        """The natural residual of the saddle-point conditions, 0 at a saddle point only.

        ``max(|x - P_X(x - dL/dx)|, |mu - max(mu + g, 0)|)`` over all components, ``|g|`` for the
        rows that must be 0.
        """
        moved = np.clip(x - self.lagrangian_gradient(x, mu), self.lower, self.upper)
        raised = mu + self.constraints(x)
        raised = np.where(self.equality, raised, np.maximum(raised, 0.0))
        return float(max(np.max(np.abs(x - moved)), np.max(np.abs(mu - raised))))


def numeric_of(problem: Problem, families: Sequence[Constraint] | None = None) -> Numeric:
    """Return a problem in float64, with its local rows if it has local sets.

    Args:
        problem: what to evaluate.
        families: its rows; the constraints as stated by default.
    """
    plain = all(own.plain(g) for own, g in zip(problem.local, problem.groups, strict=True))
    return Numeric(problem, families, local=not plain)
