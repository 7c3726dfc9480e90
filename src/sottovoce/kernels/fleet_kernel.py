"""A fleet's formulas as tapes and its numbers as arrays: what passes over agents read and write.

A named agent is a fleet of one. Simulation, gateway and a device on the network make the same
``FleetKernel`` and so have the same bits; the width of a block changes none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.formula.expression import Expression, symbol
from sottovoce.formula.tape import Array
from sottovoce.kernels import variant
from sottovoce.kernels.core.plain import GRADIENT, INTERIOR, LANES, NEWTON, SCALAR, SEPARABLE
from sottovoce.kernels.fleet_tapes import (
    LocalForm,
    SeparableForm,
    fleet_tapes,
    local_form,
    minimiser,
)
from sottovoce.kernels.lower import registers_of
from sottovoce.problem.code import Watched
from sottovoce.problem.epigraph import EpigraphForm
from sottovoce.problem.fleets import Fleet, FleetContribution
from sottovoce.problem.linear_rows import entries_of

MEASURES: Final = ("objective", "residual", "squared_error", "squared_error_last")
_NUDGE = 2.0**-20  # the distance at which curvature of code is measured, relative to the box


@final
class FleetKernel:
    """Tapes, parameters, bounds and weights of a fleet, constant over rounds.

    Args:
        fleet: formulas, parameters and weights; all formulas canonical.
        lower: bounds that states are kept in, shape (count, d).
        upper: likewise.
        gradient: ``x_i -> df_i/dx_i`` of an agent's objective that is code, both of shape (d,),
            added to that of the fleet's formula.
        gradient_steps: whether agents take Algorithm 1's steps instead of minimising.
        noisy: for steps, which slopes have noise, by term and component.
    """

    def __init__(
        self,
        fleet: Fleet,
        lower: Array,
        upper: Array,
        *,
        gradient: Callable[[Array], Array] | None = None,
        gradient_steps: bool = False,
        noisy: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.fleet, self.lower, self.upper = fleet, lower, upper
        self._noisy = bool(noisy)
        self.count, self.d = lower.shape
        self.local_rows = 0 if gradient_steps else fleet.local.rows
        self._gradient = gradient
        if isinstance(gradient, Watched) and not self.local_rows:
            gradient.probe(lower[0], upper[0])  # with rows the minimiser itself probes
        form = None if gradient_steps else local_form(fleet, coded=gradient is not None)
        self.how = GRADIENT if gradient_steps else minimiser(fleet, form)
        lanes = self.how == SEPARABLE or (self.how in (GRADIENT, SCALAR) and self.count > 1)
        self.width = LANES if lanes and gradient is None else 1
        noise = {symbol(f"noise of slope {e}"): np.zeros(self.count) for e in range(len(noisy))}
        parameters = _used_parameters(fleet) | noise
        coded, with_noise = gradient is not None, dict(zip(noisy, noise, strict=True))
        self.tapes, self._codes = fleet_tapes(
            fleet, list(parameters), form, self.how, coded=coded, noise=with_noise
        )
        self._shared, self._sizes = _weights(fleet.sums, self.count, self.width)
        self._add_layout(list(parameters.values()), form)
        self._work = self._work_size(self._sizes["n"])

    def _add_layout(self, parameters: Sequence[Array], form: LocalForm) -> None:
        """Add the other arrays and sizes of ``FleetView`` that all threads share."""
        columns = [np.asarray(values, dtype=np.float64)[:, None] for values in parameters]
        extra = form if isinstance(form, EpigraphForm) else None
        rows = form.rows if isinstance(form, SeparableForm) else ()
        n = self.d + (len(extra.extra) if extra else 0)
        q, terms = len(parameters), len(self.fleet.terms)
        arrays, sizes = self._shared, self._sizes
        arrays["data"] = to_lanes(np.hstack(columns), self.width) if columns else np.zeros(0)
        for side in ("lower", "upper"):
            bound = getattr(self, side)
            # Bounds that all agents share are kept once.
            shared = bound.strides[0] == 0 or np.all(bound == bound[:1])
            block = np.repeat(bound[0], self.width).astype(np.float64)
            arrays[side] = block if shared else to_lanes(bound, self.width)
            sizes[f"{side}_stride"] = 0 if shared else self.d * self.width
            slack = getattr(extra, side) if extra else np.zeros(0)
            arrays[f"extra_{side}"] = np.array(slack, dtype=np.float64).ravel()
        self._sizes |= {
            "how": self.how, "count": self.count, "d": self.d, "n": n, "width": self.width,
            "terms": terms, "parameters": q, "multiplier": n + q,
            "row_multiplier": n + q + terms,
            "inequalities": len(extra.inequalities) if extra else 0,
            "equalities": len(extra.equalities) if extra else 0,
            "linear_rows": len(rows),
            "hard_rows": sum(row.square is None for row in rows),
            "local_rows": self.local_rows,
        }  # fmt: skip

    @property
    def kernels(self) -> Any:
        """The build in use; an objective that is code needs the plain one."""
        return variant.core() if self._gradient is None else variant.build("plain")

    def _work_size(self, n: int) -> int:
        if self.how == SEPARABLE:
            return int(self.kernels.search_rows(self.d)) * LANES
        if self.how == NEWTON:
            return int(self.d + self.kernels.newton_work(self.d))
        if self.how == INTERIOR:
            m, q = self._sizes["inequalities"], self._sizes["equalities"]
            return int(5 * n + self.kernels.interior_work(n, m, q))
        return 0

    def core(self, states: FleetStates) -> Any:
        """A ``FleetCore`` with registers and scratch of its own: one per thread."""
        arrays = {
            "r": registers_of(self._codes, self.width), "x": states.x, "center": states.center,
            "worth": states.worth, "mean": states.mean, "hat": states.hat,
            "lane_sums": np.zeros(self._sizes["sum_rows"] * self.width),
            "result": np.zeros(self.d * self.width), "work": np.zeros(self._work),
        }  # fmt: skip
        if self._noisy:  # a run writes its noise there
            arrays["data"] = self._shared["data"].copy()
        core = self.kernels.FleetCore(self._sizes, self._shared | arrays, self.tapes)
        if self._gradient is not None:
            code = self._callback(self._gradient)
            core.view.slope.callback = core.view.objective.callback = code
        return core

    def _callback(self, code: Callable[[Array], Array]) -> Callable[[Any], Any]:
        if self.how == INTERIOR:
            return partial(_add_code, code, self.lower[0], self.upper[0])
        return code if self.how == NEWTON else lambda x: float(code(np.array([x]))[0])


@final
class FleetStates:
    """The states of a fleet in one run.

    Args:
        kernel: the constant part.
        x0: where agents start, shape (count, d).
        solution: their part of x-hat, if known.

    Attributes:
        x: the states, in blocks.
        center: z, what proximal terms pull to, in blocks; x itself with gradient steps.
        worth: what the sums are worth to every agent, in lanes.
        mean: the answer, in blocks; x itself with gradient steps.
        hat: their part of x-hat, in blocks; NaN where it is not known.
    """

    def __init__(self, kernel: FleetKernel, x0: Array, *, solution: Array | None = None) -> None:
        self.kernel = kernel
        start = np.clip(x0, kernel.lower, kernel.upper)
        self.x = to_lanes(start, kernel.width)
        unknown = np.full((kernel.count, kernel.d), np.nan)
        self.hat = to_lanes(unknown if solution is None else solution, kernel.width)
        steps = kernel.how == GRADIENT
        self.mean, self.center = (self.x, self.x) if steps else (self.x.copy(), self.x.copy())
        self.worth = np.zeros(self.x.size // kernel.d)
        self.core, self._passes = kernel.core(self), kernel.kernels
        if kernel.local_rows:
            self._passes.run_project_start(self.core)
            self.mean[:] = self.center[:] = self.x

    def copy(self) -> FleetStates:
        """Another run's fleet, with the same states."""
        other = copy(self)
        other.x, other.worth = self.x.copy(), self.worth.copy()
        other.mean, other.center = (
            other.x if values is self.x else values.copy() for values in (self.mean, self.center)
        )
        other.core = other.kernel.core(other)
        return other

    @property
    def states(self) -> Array:
        """x, shape (count, d)."""
        return from_lanes(self.x, self.kernel.count, self.kernel.d, self.kernel.width)

    @property
    def answer(self) -> Array:
        """The answer, shape (count, d)."""
        return from_lanes(self.mean, self.kernel.count, self.kernel.d, self.kernel.width)

    @property
    def memory(self) -> Array:
        """What a round goes on from: x, z and W of every agent, shape (count, 2 d + 1)."""
        d, width = self.kernel.d, self.kernel.width
        parts = (self.x.reshape(-1, d, width), self.center.reshape(-1, d, width))
        blocks = np.concatenate((*parts, self.worth.reshape(-1, 1, width)), axis=1)
        return from_lanes(blocks, self.kernel.count, 2 * d + 1, width)

    @memory.setter
    def memory(self, memory: Array) -> None:
        d, width = self.kernel.d, self.kernel.width
        blocks = to_lanes(memory, width).reshape(-1, 2 * d + 1, width)
        self.x.reshape(-1, d, width)[:] = blocks[:, :d]
        self.center.reshape(-1, d, width)[:] = blocks[:, d:-1]
        self.worth.reshape(-1, 1, width)[:] = blocks[:, -1:]

    def contributions(self, sums: int, grid: Array | None = None) -> Array:
        """What the states add to the sums; in grid steps if there is a grid."""
        total, gridded = np.zeros(sums), grid is not None
        self._passes.run_contribute(self.core, grid if gridded else total, gridded, total)
        return total

    def round(
        self, k: int, price: Array, *, theta: float, share: float, grid: Array | None = None
    ) -> Array:
        """Take x(k) to x(k+1) with lambda(k+1) = ``price`` and return the new contributions.

        ``theta`` weighs the proximal term, ``share`` is the round's weight in the answer, ``grid``
        that of the sums under a plan.
        """
        total, gridded = np.zeros(price.size), grid is not None
        grid = grid if gridded else total  # is not read
        self._passes.run_minimise(self.core, price, grid, gridded, total, k, theta, share)
        return total

    def measure(self, price: Array) -> Array:
        """The sums at the answer, then its ``MEASURES``."""
        total = np.zeros(price.size + len(MEASURES))
        self._passes.run_measure(self.core, price, total)
        return total


def _used_parameters(fleet: Fleet) -> dict[Expression, Array]:
    """The parameters that an agent's formulas name; others are in its bounds alone."""
    rows = (*fleet.local.inequalities, *fleet.local.equalities)
    named = set().union(*(expr.symbols for expr in (fleet.objective, *fleet.terms, *rows)))
    return {s: values for s, values in fleet.group.parameters.items() if s in named}


def _add_code(code: Callable[[Array], Array], lower: Array, upper: Array, point: Any) -> None:
    """Add the gradient of Python code, and its curvature from differences inside the box."""
    d, n = lower.size, point.unit.size - point.bounded.size
    x = point.x[:d].copy()
    point.gradient[:d] += code(x)
    second = np.zeros((d, d))
    for c in np.flatnonzero(upper > lower):
        ahead, back = x.copy(), x.copy()
        nudge = _NUDGE * (upper[c] - lower[c])
        ahead[c], back[c] = min(x[c] + nudge, upper[c]), max(x[c] - nudge, lower[c])
        second[c] = (code(ahead) - code(back)) / (ahead[c] - back[c])
    # A convex function has no negative curvature: differences may, by rounding or if non-smooth.
    sizes, vectors = np.linalg.eigh(0.5 * (second + second.T))
    curvature = point.hessian[: n * n].reshape(n, n)
    curvature[:d, :d] += vectors * np.maximum(sizes, 0.0) @ vectors.T


def to_lanes(values: Array, width: int) -> Array:
    """Lay out (count, c) in blocks, ``[block, c, lane]``, flat; lanes without an agent repeat the
    last one, so that they do nothing that no agent does.
    """  # noqa: D205
    if width == 1:
        return np.array(values, dtype=np.float64, order="C").ravel()
    count, columns = values.shape
    blocks = -(-count // width)
    full = np.empty((blocks * width, columns))
    full[:count], full[count:] = values, values[-1:]
    return np.array(full.reshape(blocks, width, columns).transpose(0, 2, 1), order="C").ravel()


def from_lanes(blocks: Array, count: int, columns: int, width: int) -> Array:
    """Undo ``to_lanes``."""
    shaped = blocks.reshape(-1, columns, width).transpose(0, 2, 1)
    return np.array(shaped.reshape(-1, columns)[:count], order="C")


def _weights(
    sums: Sequence[FleetContribution], count: int, width: int
) -> tuple[dict[str, NDArray[Any]], dict[str, int]]:
    """How terms add to sums; ``sottovoce.kernels.core.fleet_view`` documents the three ways.

    An agent alone takes entries always: it has no lanes to add up, and its tables are short.
    """
    term_row: list[int] = []
    dense: list[tuple[int, int, int, int, int, int]] = []
    blocks: list[Array] = [np.zeros(0)]
    tables: list[tuple[NDArray[Any], ...]] = [(np.zeros(0, dtype=np.int64),) * 3 + (np.zeros(0),)]
    start, sum_rows = 0, sum(len(part.terms) for part in sums)
    for part in sums:
        terms, first = len(part.terms), len(term_row)
        if part.weights is None and count > 1:
            term_row += range(part.row, part.row + terms)
            continue
        term_row += [-1] * terms
        if part.weights is None:
            tables.append(_entries(replace(part, weights=np.ones((1, 1))), first))
        elif part.table or count == 1 or not isinstance(part.weights, np.ndarray):
            tables.append(_entries(part, first))
        else:
            block = to_lanes(np.asarray(part.weights, dtype=np.float64).T, width)
            rows = part.weights.shape[0]
            dense.append((part.row, rows, terms, first, start, sum_rows))
            blocks.append(block)
            start, sum_rows = start + block.size, sum_rows + rows * terms
    names = ("dense_row", "dense_rows", "dense_terms", "dense_first", "dense_start", "dense_sum")
    columns = np.array(dense, dtype=np.int64).reshape(-1, 6).T.copy()
    agent, row, term, weight = map(np.concatenate, zip(*tables, strict=True))
    order = np.argsort(agent, kind="stable")
    arrays: dict[str, NDArray[Any]] = {
        **dict(zip(names, columns, strict=True)),
        "term_row": np.array(term_row, dtype=np.int64),
        "dense_weights": np.concatenate(blocks),
        "entry_start": np.searchsorted(agent[order], np.arange(count + 1)).astype(np.int64),
        "entry_row": row[order].astype(np.int32),
        "entry_term": term[order].astype(np.int32),
        "entry_weight": np.ascontiguousarray(weight[order], dtype=np.float64),
    }
    return arrays, {"dense": len(dense), "entries": row.size, "sum_rows": sum_rows}


def _entries(part: FleetContribution, first: int) -> tuple[NDArray[Any], ...]:
    """Agent, row, term and weight of every entry, agent by agent."""
    terms, (rows, columns, data) = len(part.terms), entries_of(part.weights)
    order = np.lexsort((rows, columns))
    rows, columns, data = rows[order], columns[order], data[order]
    if part.table:
        return columns // terms, part.row + rows, first + columns % terms, data
    agent = np.repeat(columns, terms)
    term = np.tile(np.arange(terms), columns.size)
    row = part.row + np.repeat(rows, terms) * terms + term
    return agent, row, first + term, np.repeat(data, terms)
