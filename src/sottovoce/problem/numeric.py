"""Evaluation of f, g and their exact derivatives in float64, fleet by fleet.

The public cost of sums counts in the objective's value; its derivatives are those of the epigraph
form (``certificate.smooth_form``), where it is an agent's.

Rows are those of g and, where they count, behind them the local rows of every agent: to a local row
one agent adds. Derivatives are sparse arrays. Where a formula is not defined (a logarithm outside
its domain, say) the answer is NaN or infinite, without a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.formula.derive import Indices, gradient
from sottovoce.formula.expression import Expression
from sottovoce.formula.tape import Tape, tape
from sottovoce.problem.constraints import Constraint, equalities, row_labels
from sottovoce.problem.costs import cost_of
from sottovoce.problem.fleets import Fleet, WeightedTerms, fleets_of, row_constants
from sottovoce.problem.groups import Array, Group, lower_bounds, state_columns, upper_bounds
from sottovoce.problem.linear_rows import Matrix, sparse

if TYPE_CHECKING:
    from sottovoce.problem.problem import CloudView, Problem

PIECE = 4096  # how many agents of a fleet are evaluated together


@final
class Formulas:
    """Formulas ``h_1, ..., h_T`` of one agent's state, for all agents of a group at once."""

    def __init__(self, exprs: Iterable[Expression], group: Group) -> None:
        self.exprs, self.group = tuple(exprs), group
        self._inputs = (*group.symbols, *group.parameters)
        self._place = {s: c for c, s in enumerate(group.symbols)}

    @cached_property
    def _values(self) -> Tape:
        return tape(self.exprs, self._inputs)

    @cached_property
    def _first(self) -> tuple[list[tuple[int, int]], Tape]:
        """``dh_t/dx_c`` that are not 0, and their places (t, c)."""
        slopes = {
            (t, self._place[s]): slope
            for t, h in enumerate(self.exprs)
            for s, slope in gradient(h, self.group.symbols).items()
        }
        return list(slopes), tape(slopes.values(), self._inputs)

    @cached_property
    def _second(self) -> tuple[list[tuple[int, int, int]], Tape]:
        """``d2h_t/dx_a dx_b`` with a <= b that are not 0, and their places (t, a, b)."""
        places, slopes = self._first
        entries = {
            (t, a, self._place[s]): entry
            for (t, a), slope in zip(places, slopes.formulas, strict=True)
            for s, entry in gradient(slope, self.group.symbols[a:]).items()
        }
        return list(entries), tape(entries.values(), self._inputs)

    @cached_property
    def constant(self) -> bool:
        """Whether no derivative depends on the state."""
        return not any(e.symbols & set(self.group.symbols) for e in self._first[1].formulas)

    def values(self, x: Array) -> Array:
        """``h_t(x_i)``, shape (T, count)."""
        return self._evaluated(self._values, x)

    def pullback(self, x: Array, nu: Array) -> Array:
        """``sum_t nu_it dh_t/dx (x_i)``, shape (count, dim), for nu that fits (count, T)."""
        places, slopes = self._first
        out = np.zeros((self.group.count, self.group.dim))
        nu = np.broadcast_to(nu, (self.group.count, len(self.exprs)))
        for piece, values in self._pieces(slopes, x):
            for (t, c), value in zip(places, values, strict=True):
                out[piece, c] += nu[piece, t] * value
        return out

    def slopes(self, x: Array) -> list[tuple[int, int, Array]]:
        """``dh_t/dx_c (x_i)``, shape (count,), with t and c for every one that is not 0."""
        places, slopes = self._first
        values = self._evaluated(slopes, x)
        return [(t, c, slope) for (t, c), slope in zip(places, values, strict=True)]

    def gradients(self, x: Array) -> Array:
        """``dh_t/dx (x_i)``, shape (count, T, dim)."""
        out = np.zeros((self.group.count, len(self.exprs), self.group.dim))
        for t, c, slope in self.slopes(x):
            out[:, t, c] = slope
        return out

    def curvatures(self, x: Array, nu: Array) -> Iterator[tuple[int, int, Array]]:
        """``nu_it d2h_t/dx_a dx_b (x_i)``, shape (count,), with a and b, for every entry."""
        places, entries = self._second
        nu = np.broadcast_to(nu, (self.group.count, len(self.exprs)))
        for (t, a, b), value in zip(places, self._evaluated(entries, x), strict=True):
            weighted = nu[:, t] * value
            yield a, b, weighted
            if a != b:
                yield b, a, weighted

    def _evaluated(self, formulas: Tape, x: Array) -> Array:
        out = np.empty((len(formulas.formulas), self.group.count))
        for piece, values in self._pieces(formulas, x):
            for row, value in enumerate(values):
                out[row, piece] = value
        return out

    def _pieces(self, formulas: Tape, x: Array) -> Iterator[tuple[slice, list[Array]]]:
        # Columns of a tall array lie far apart: pieces that fit the cache are ten times faster.
        for begin in range(0, len(x), PIECE):
            piece = slice(begin, begin + PIECE)
            columns = x[piece].T.copy()
            parameters = (values[piece] for values in self.group.parameters.values())
            with np.errstate(all="ignore"):
                yield piece, formulas(*columns, *parameters)


def _assembled(entries: Iterable[tuple[Indices, Indices, Array]], shape: tuple[int, int]) -> Matrix:
    """The sparse array with these entries (rows, columns, values), equal places added up."""
    parts = list(entries)
    if not parts:
        return sparse.csr_array(shape)
    rows, columns, values = (np.concatenate(part) for part in zip(*parts, strict=True))
    matrix = sparse.csr_array((values, (rows, columns)), shape=shape)
    matrix.eliminate_zeros()
    return matrix


@final
class _FleetFormulas:
    """A fleet's formulas, and the rows that its agents add to; local ones, shape (count, R)."""

    def __init__(self, fleet: Fleet, local: Indices) -> None:
        self.fleet, self.local = fleet, local
        rows = (*fleet.local.inequalities, *fleet.local.equalities) if local.size else ()
        self.objective = Formulas([fleet.objective], fleet.group)
        self.terms = Formulas((*fleet.terms, *rows), fleet.group)
        self.parts = tuple(fleet.parts())
        if rows:
            each = sparse.eye_array(fleet.group.count, format="csr")
            behind = range(len(fleet.terms), len(self.terms.exprs))
            self.parts += (WeightedTerms(rows=local, terms=behind, weights=each),)

    def spread(self, mu: Array) -> Array:
        """The multiplier of every term, shape (count or 1, T)."""
        plain = all(part.weights is None for part in self.parts)
        nu = np.zeros((1 if plain else self.fleet.group.count, len(self.terms.exprs)))
        for part in self.parts:
            nu[:, part.terms] += part.spread(mu)
        return nu

    def jacobian(self, x: Array) -> Iterator[tuple[Indices, Indices, Array]]:
        """What the fleet adds to J: rows, columns and values."""
        columns = self.fleet.select(np.arange(x.size))
        slopes = self.terms.slopes(self.fleet.select(x))
        for part in self.parts:
            for t, row, agent, weight in part.entries(self.fleet.group.count):
                for _, c, slope in (entry for entry in slopes if entry[0] == t):
                    yield row, columns[agent, c], weight * slope[agent]

    def hessian(
        self, formulas: Formulas, x: Array, nu: Array
    ) -> Iterator[tuple[Indices, Indices, Array]]:
        """The second derivatives of ``nu'h``: rows, columns and values."""
        columns = self.fleet.select(np.arange(x.size))
        for a, b, value in formulas.curvatures(self.fleet.select(x), nu):
            yield columns[:, a], columns[:, b], value


@final
class Numeric:
    """A problem in float64: objective, constraints and their first and second derivatives.

    Vectors x have one entry per scalar state, vectors mu one per row, both in the problem's order.
    The rows are ``families``, by default the constraints as stated. With ``local`` those of local
    sets follow, and bounds are the private ones. A public problem alone has no objective.
    """

    def __init__(
        self,
        problem: Problem | CloudView,
        families: Sequence[Constraint] | None = None,
        *,
        local: bool = False,
    ) -> None:
        from sottovoce.problem.problem import CloudView  # it states what this evaluates

        whole = None if isinstance(problem, CloudView) else problem
        stated = problem.constraints if families is None else families
        self.families, self.groups, self.size = stated, problem.groups, problem.size
        self._starts = () if whole is None else whole.start
        self.offset = row_constants(stated)
        self._sets = whole.local if local and whole is not None else ()
        objectives = None if whole is None else whole.formulas
        code = {} if whole is None else whole.coded
        fleets = fleets_of(self.groups, stated, objectives, self._sets, alone=code)
        each = np.zeros(problem.agents, dtype=np.int64)  # local rows of every agent
        for fleet in fleets:
            each[fleet.agents] += fleet.local.rows
        begins = self.offset.size + np.append(0, np.cumsum(each))
        self.members = [
            _FleetFormulas(f, begins[:-1][f.agents][:, np.newaxis] + np.arange(f.local.rows))
            for f in fleets
        ]
        columns = state_columns(self.groups)
        self._code = [(columns[i], f.value) for i, f in code.items()]
        self.equality: NDArray[np.bool_] = np.zeros(int(begins[-1]), dtype=np.bool_)
        self.equality[: self.offset.size] = equalities(stated)
        for m in self.members:
            if m.local.size:
                self.equality[m.local[:, len(m.fleet.local.inequalities) :]] = True
        self._constant: Matrix = None
        self._costs = () if whole is None else whole.cloud.sums.costs
        self._coupling = (
            Numeric(whole.cloud, whole.cloud.sums.families) if whole and self._costs else None
        )

    @property
    def rows(self) -> int:
        """The number of rows that couple agents; local ones follow."""
        return int(self.offset.size)

    @property
    def start(self) -> Array:
        """Where all agents start, shape (N,)."""
        return np.concatenate([np.ravel(part) for part in self._starts])

    @cached_property
    def lower(self) -> Array:
        """The lower bounds of all states, shape (N,)."""
        return lower_bounds(self._sets or self.groups)

    @cached_property
    def upper(self) -> Array:
        """The upper bounds of all states, shape (N,)."""
        return upper_bounds(self._sets or self.groups)

    def objective(self, x: Array) -> float:
        """``sum_i f_i(x_i) + U(s(x))``; NaN where an objective is code without a value."""
        values = [float(m.objective.values(m.fleet.select(x)).sum()) for m in self.members]
        if self._coupling is not None:
            values.append(float(cost_of(self._costs, self._coupling.constraints(x))))
        values += [np.nan if f is None else float(f(x[columns])) for columns, f in self._code]
        return sum(values)

    def objective_gradient(self, x: Array) -> Array:
        """The gradients of all ``f_i`` in one vector, shape (N,), without that of U."""
        out = np.zeros(x.size)
        for m in self.members:
            out[m.fleet.columns] += m.objective.pullback(m.fleet.select(x), np.ones((1, 1))).ravel()
        return out

    def objective_hessian(self, x: Array) -> Matrix:
        """Second derivatives of the objective, a sparse array (N, N)."""
        one = np.ones((1, 1))
        entries = (e for m in self.members for e in m.hessian(m.objective, x, one))
        return _assembled(entries, (x.size, x.size))

    def constraints(self, x: Array) -> Array:
        """``g(x)``, one number per row."""
        out = np.zeros(self.equality.size)
        out[: self.rows] = self.offset
        for m in self.members:
            if m.parts:
                values = m.terms.values(m.fleet.select(x))
                for part in m.parts:
                    out[part.rows] += part.gather(values[part.terms.start : part.terms.stop])
        return out

    def pullback(self, x: Array, mu: Array) -> Array:
        """``(dg/dx)' mu``, the gradient of ``mu' g``, shape (N,)."""
        out = np.zeros(x.size)
        for m in self.members:
            if m.parts:
                out[m.fleet.columns] += m.terms.pullback(m.fleet.select(x), m.spread(mu)).ravel()
        return out

    def constraint_hessian(self, x: Array, mu: Array) -> Matrix:
        """Second derivatives of ``mu' g``, a sparse array (N, N)."""
        adding = (m for m in self.members if m.parts)
        entries = (e for m in adding for e in m.hessian(m.terms, x, m.spread(mu)))
        return _assembled(entries, (x.size, x.size))

    def lagrangian(self, x: Array, mu: Array) -> float:
        """``L = sum_i f_i + mu' g`` at (x, mu)."""
        with np.errstate(all="ignore"):
            return self.objective(x) + float(mu @ self.constraints(x))

    def lagrangian_gradient(self, x: Array, mu: Array) -> Array:
        """The gradient of ``L = sum_i f_i + mu' g`` in x, shape (N,)."""
        return self.objective_gradient(x) + self.pullback(x, mu)

    def lagrangian_hessian(self, x: Array, mu: Array) -> Matrix:
        """Second derivatives of ``L`` in x, a sparse array (N, N)."""
        return self.objective_hessian(x) + self.constraint_hessian(x, mu)

    def jacobian(self, x: Array) -> Matrix:
        """``dg/dx`` at x, a compressed sparse row array (rows, N)."""
        shape = (self.equality.size, self.size)
        if self._constant is None:
            fixed = (m for m in self.members if m.terms.constant)
            self._constant = _assembled((e for m in fixed for e in m.jacobian(x)), shape)
        moving = [m for m in self.members if not m.terms.constant]
        if not moving:
            return self._constant
        return self._constant + _assembled((e for m in moving for e in m.jacobian(x)), shape)

    def label(self, row: int) -> str:
        """The label of a row."""
        labels = row_labels(self.families)
        if row < len(labels):
            return labels[row]
        row -= len(labels)
        for group, local in zip(self.groups, self._sets, strict=False):
            if row < group.count * local.rows:
                return f"{local.labels[row % local.rows]} of {group.name}"
            row -= group.count * local.rows
        raise IndexError(row)

    def residual(self, x: Array, mu: Array) -> float:
        """The natural residual of the saddle-point conditions, 0 at a saddle point only.

        ``max(|x - P_X(x - dL/dx)|, |mu - max(mu + g, 0)|)`` over all components, ``|g|`` for the
        rows that must be 0.
        """
        moved = np.clip(x - self.lagrangian_gradient(x, mu), self.lower, self.upper)
        raised = mu + self.constraints(x)
        raised = np.where(self.equality, raised, np.maximum(raised, 0.0))
        return float(max(np.max(np.abs(x - moved)), np.max(np.abs(mu - raised))))
