"""Runs of Algorithm 1 of named agents, 16 in lanes or one by one, with the same bits.

``simulation.runs.Runs`` takes gradient steps too, but knows no noise on gradient entries, and costs
53 to 67 ns a run and round in ensembles of the paper's problem without noise, where lanes cost 16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.formula.canonical import add
from sottovoce.formula.derive import gradient
from sottovoce.formula.expression import ZERO, Expression, number
from sottovoce.formula.tape import tape
from sottovoce.kernels.core.plain import LANES
from sottovoce.kernels.lower import TapeBuilder, registers_of
from sottovoce.kernels.run_kernel import Task, advance, stream_seed
from sottovoce.kernels.variant import core
from sottovoce.problem.agents import Array, lower_bounds, upper_bounds
from sottovoce.problem.constraints import named_rows
from sottovoce.simulation.result import QUANTITIES
from sottovoce.simulation.runs import Layout, SimulationRequest, named_objective


@final
class EnsembleRuns:
    """All runs of named agents, with the paper's release of values and gradients."""

    def __init__(self, request: SimulationRequest, layout: Layout) -> None:
        s, problem = request, request.problem
        self._request = request
        pairs = zip(named_rows(problem.constraints), layout.offset.tolist(), strict=True)
        formulas = _Formulas(
            [symbol for group in problem.groups for symbol in group.symbols],
            named_objective(problem),
            [add(h, number(constant)) for h, constant in pairs],
        )
        n, m = self._n, self._m = len(formulas.states), len(formulas.rows)
        # Up to half a block of runs one by one is faster than a block with empty lanes.
        self._width = width = 1 if s.runs <= LANES // 2 else LANES
        blocks = -(-s.runs // width)
        self._arrays, pairs_of_normals = _kernel_arrays(layout, formulas, width)
        lower, upper = lower_bounds(layout.domain), upper_bounds(layout.domain)
        self._arrays |= {"lower": np.array(lower), "upper": np.array(upper)}
        self._sizes = {
            "width": width, "n": n, "m": m, "released": s.released, "pairs": pairs_of_normals,
        }  # fmt: skip
        start = np.concatenate([part.ravel() for part in s.start])
        x0 = np.clip(start, lower, upper)
        first = self._arrays.pop("r").reshape(-1, width)
        first[: n + m] = np.concatenate([x0, s.price0])[:, np.newaxis]
        self._r = np.stack([first] * blocks)
        self._failed = np.zeros((blocks, width))
        runs = np.minimum(np.arange(blocks * width), s.runs - 1)  # empty lanes repeat the last run
        seeds = [stream_seed(s.seed, s.first + run) for run in runs.tolist()]
        self._seeds = np.array(seeds, dtype=np.uint64).reshape(blocks, width)
        self._trace = np.full((blocks, s.marks.size, len(QUANTITIES), width), np.nan)
        self._transcript = np.zeros((blocks, s.rounds if s.transcript else 0, s.released, width))
        self._to_quantities = _trace_function(formulas, lower, upper, s.saddle)

    def tasks(self, done: int, until: int, steps: Array) -> list[Task]:
        """Return what takes the blocks through rounds ``done + 1 .. until``, a task each."""
        blocks = range(len(self._r))
        return [partial(self._advance, block, done, until, steps) for block in blocks]

    def _advance(self, block: int, done: int, until: int, steps: Array) -> None:
        s = self._request
        buffers = {
            "r": self._r[block].reshape(-1), "seeds": self._seeds[block],
            "failed": self._failed[block], "slopes": np.zeros(self._n * self._width),
            "normals": np.zeros(2 * self._sizes["pairs"] * LANES),
        }  # fmt: skip
        first, last = s.records(done, until)
        recorded = np.empty((last - first, self._n + self._m, self._width))
        released = self._transcript[block, done:until].reshape(-1)
        kernel = core().EnsembleCore(self._sizes, self._arrays | buffers)
        marks = s.marks[first:last]
        advance(kernel, done, until, steps.ravel(), marks, recorded.reshape(-1), released)
        if last > first:
            self._trace[block, first:last] = self._to_quantities(recorded)

    def arrays(self) -> dict[str, Array]:
        """Everything that rounds change, for a checkpoint."""
        records = {"trace": self._trace, "transcript": self._transcript}
        return {**records, "registers": self._r, "failed": self._failed}

    def final(self) -> dict[str, NDArray[np.generic]]:
        """Where every run ended, as a ``Result`` has it."""
        ends = self._by_run(self._r[:, : self._n + self._m])
        x, mu = ends[:, : self._n].copy(), ends[:, self._n :].copy()
        failed = self._failed.ravel()[: self._request.runs].astype(np.int64)
        return {"x": x, "price": mu, "last_x": x.copy(), "last_price": mu.copy(), "failed": failed}

    @property
    def trace(self) -> Array:
        """What was measured, shape (runs, marks, ``QUANTITIES``)."""
        return self._by_run(self._trace)

    @property
    def transcript(self) -> Array:
        """The released numbers, shape (runs, rounds, rows of g and gradient entries)."""
        return self._by_run(self._transcript)

    def _by_run(self, blocks: Array) -> Array:
        moved = np.moveaxis(blocks, -1, 1)
        runs = moved.shape[0] * moved.shape[1]
        return moved.reshape(runs, *moved.shape[2:])[: self._request.runs]


@final
class _Formulas:
    """States, objective and rows g, with ``df/dx_i`` and the entries ``dg_j/dx_i`` by (i, j)."""

    def __init__(
        self, states: list[Expression], objective: Expression, rows: list[Expression]
    ) -> None:
        self.states, self.objective, self.rows = states, objective, rows
        of_objective = gradient(objective, states)
        self.slope = [of_objective.get(s, ZERO) for s in states]
        row_slopes = list(enumerate(gradient(g, states) for g in rows))
        self.entries = {
            (i, j): dg[s] for i, s in enumerate(states) for j, dg in row_slopes if s in dg
        }


def _kernel_arrays(
    layout: Layout, formulas: _Formulas, width: int
) -> tuple[dict[str, NDArray[Any]], int]:
    """The arrays of ``EnsembleView``, and how many pairs of normals a round takes."""
    m, entries, sigma = len(formulas.rows), layout.entries, layout.sigma
    builder = TapeBuilder(len(formulas.states) + m, {s: i for i, s in enumerate(formulas.states)})
    outputs = [builder.value(formula) for formula in (*formulas.slope, *formulas.rows)]
    noisy = np.flatnonzero(sigma)
    row_position = np.full(m, -1, dtype=np.int64)
    row_position[noisy] = np.arange(noisy.size)
    position_of = {entry: i for i, entry in enumerate(entries)}
    starts, entry_table = [0], list[tuple[int, int, int]]()
    for i in range(len(formulas.states)):
        for j in range(m):
            if (i, j) in formulas.entries or (j, i) in position_of:
                outputs.append(builder.value(formulas.entries.get((i, j), ZERO)))
                index = position_of.get((j, i))
                position = (-1, -1) if index is None else (noisy.size + index, m + index)
                entry_table.append((j, *position))
        starts.append(len(entry_table))
    code = builder.finish(outputs)
    columns = np.array(entry_table, dtype=np.int64).reshape(-1, 3).T
    names = ("entry_row", "entry_order", "entry_output")
    arrays: dict[str, NDArray[Any]] = {
        "code": code.code,
        "outputs": code.outputs,
        "r": registers_of([code], width),
        "sigma": np.array([*sigma[noisy], *entries.values()], dtype=np.float64),
        "row_order": row_position,
        "entry_start": np.array(starts, dtype=np.int64),
    }
    arrays |= dict(zip(names, map(np.ascontiguousarray, columns), strict=True))
    return arrays, (noisy.size + len(entries) + 1) // 2


def _trace_function(
    formulas: _Formulas, lower: Array, upper: Array, saddle: tuple[Array, Array] | None
) -> Callable[[Array], Array]:
    """Return what gives ``QUANTITIES`` of x and mu, arrays (marks, n + m, width), from formulas."""
    n, m = len(formulas.states), len(formulas.rows)
    of_entries = formulas.entries.values()
    outputs = [formulas.objective, *formulas.rows, *formulas.slope, *of_entries]
    values_of = tape(outputs, formulas.states)
    saddle_point = np.full(n + m, np.nan) if saddle is None else np.concatenate(saddle)

    def quantities(recorded: Array) -> Array:
        x, mu = recorded[:, :n], recorded[:, n:]
        columns = [x[:, i] for i in range(n)]
        objective, *values = values_of.arrays(columns, (recorded.shape[0], recorded.shape[2]))
        g = np.stack(values[:m], axis=1) if m else np.zeros_like(mu)
        slope = np.stack(values[m : m + n], axis=1)
        with np.errstate(all="ignore"):
            for (i, j), value in zip(formulas.entries, values[m + n :], strict=True):
                slope[:, i] += mu[:, j] * value
            inside = np.clip(x - slope, lower[:, np.newaxis], upper[:, np.newaxis])
            residual = np.sum((x - inside) ** 2, axis=1)
            residual += np.sum((mu - np.maximum(mu + g, 0.0)) ** 2, axis=1)
            error_sq = (recorded - saddle_point[:, np.newaxis]) ** 2
            errors = [np.sqrt(part.sum(axis=1)) for part in (error_sq[:, :n], error_sq[:, n:])]
            violation = np.fmax.reduce(g, axis=1, initial=0.0)
        return np.stack((*errors, violation, np.sqrt(residual), objective, *errors), axis=1)

    return quantities
