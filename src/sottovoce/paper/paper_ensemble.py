"""Runs of Algorithm 1 of named agents, side by side in the lanes of vector registers."""

from __future__ import annotations

from functools import partial
from typing import final

import numpy as np
from numpy.typing import NDArray

from sottovoce.formula.canonical import add
from sottovoce.formula.derive import gradient
from sottovoce.formula.expression import ZERO, number
from sottovoce.formula.tape import tape
from sottovoce.kernels.run_kernel import Ensemble, GradientProblem, stream_seed
from sottovoce.problem.agents import Array, lower_bounds, upper_bounds
from sottovoce.problem.problem import Problem
from sottovoce.simulation.drive import Task
from sottovoce.simulation.formulas import named_agents
from sottovoce.simulation.request import SimulationRequest
from sottovoce.simulation.result import QUANTITIES


@final
class EnsembleRuns:
    """Blocks of runs; which block a run is in changes nothing.

    Args:
        problem: of named agents alone.
        request: what to run.
    """

    def __init__(self, problem: Problem, request: SimulationRequest) -> None:
        s = self._request = request
        named = named_agents(problem, problem.constraints)
        offset = np.concatenate([family.offset for family in problem.constraints])
        rows = zip(named.rows, offset.tolist(), strict=True)
        self._problem = GradientProblem(
            states=named.symbols,
            objective=named.objective,
            rows=tuple(add(h, number(constant)) for h, constant in rows),
            lower=lower_bounds(s.domain),
            upper=upper_bounds(s.domain),
            sigma=s.sigma,
            entries=s.entries,
        )
        start = np.concatenate([part.ravel() for part in s.start])
        x0 = np.clip(start, self._problem.lower, self._problem.upper)
        seeds = [stream_seed(s.seed, run) for run in range(s.first, s.first + s.runs)]
        self._ensemble = Ensemble(self._problem, x0, s.price0, seeds)
        blocks, width = self._ensemble.blocks, self._ensemble.width
        self._trace = np.full((blocks, s.marks.size, len(QUANTITIES), width), np.nan)
        kept = s.rounds if s.transcript else 0
        self._transcript = np.zeros((blocks, kept, s.released, width))
        self._measure = _Measure(self._problem, s.saddle)

    def tasks(self, done: int, until: int, steps: Array) -> list[Task]:
        """What takes the blocks through rounds ``done + 1 .. until``, one each."""
        blocks = range(self._ensemble.blocks)
        return [partial(self._advance, block, done, until, steps) for block in blocks]

    def _advance(self, block: int, done: int, until: int, steps: Array) -> None:
        s, own = self._request, self._ensemble
        first, last = s.records(done, until)
        raw = np.empty((last - first, own.n + own.m, own.width))
        transcript = self._transcript[block, done:until] if s.transcript else None
        own.advance_block(block, done, until, steps, s.marks[first:last], raw, transcript)
        if last > first:
            self._trace[block, first:last] = self._measure(raw)

    def arrays(self) -> dict[str, Array]:
        """Everything that rounds change, for a checkpoint."""
        state = {f"state{i}": array for i, array in enumerate(self._ensemble.arrays)}
        return {**state, "trace": self._trace, "transcript": self._transcript}

    def final(self) -> dict[str, NDArray[np.generic]]:
        """Where every run ended, as a ``Result`` has it."""
        x, mu = self._ensemble.x, self._ensemble.mu
        ends = {"x": x, "price": mu, "last_x": x.copy(), "last_price": mu.copy()}
        return {**ends, "failed": self._ensemble.failed}

    def trace(self, records: int) -> dict[str, Array]:
        """What was measured at the first ``records`` marks, arrays of shape (runs, records)."""
        flat = self._by_run(self._trace[:, :records])
        return {name: flat[:, :, q].copy() for q, name in enumerate(QUANTITIES)}

    def released(self, rounds: int) -> Array:
        """The released numbers, shape (runs, rounds, rows of g and gradient entries)."""
        return self._by_run(self._transcript[:, :rounds])

    def _by_run(self, blocks: Array) -> Array:
        moved = np.moveaxis(blocks, -1, 1)
        runs = moved.shape[0] * moved.shape[1]
        return moved.reshape(runs, *moved.shape[2:])[: self._request.runs]


@final
class _Measure:
    """``QUANTITIES`` of x and mu, arrays (marks, n + m, width), from formulas."""

    def __init__(self, problem: GradientProblem, saddle: tuple[Array, Array] | None) -> None:
        states, self._problem = problem.states, problem
        own, slopes = (
            gradient(problem.objective, states),
            [gradient(g, states) for g in problem.rows],
        )
        self._entries = [
            (i, j) for i, s in enumerate(states) for j, dg in enumerate(slopes) if s in dg
        ]
        entries = [slopes[j][states[i]] for i, j in self._entries]
        fs = [own.get(s, ZERO) for s in states]
        self._tape = tape([problem.objective, *problem.rows, *fs, *entries], states)
        n, m = len(states), len(problem.rows)
        self._hat = np.full(n + m, np.nan) if saddle is None else np.concatenate(saddle)

    def __call__(self, raw: Array) -> Array:
        n, m = len(self._problem.states), len(self._problem.rows)
        x, mu = raw[:, :n], raw[:, n:]
        columns = [x[:, i] for i in range(n)]
        objective, *found = self._tape.arrays(columns, (raw.shape[0], raw.shape[2]))
        g = np.stack(found[:m], axis=1) if m else np.zeros_like(mu)
        slope = np.stack(found[m : m + n], axis=1)
        with np.errstate(all="ignore"):
            for (i, j), value in zip(self._entries, found[m + n :], strict=True):
                slope[:, i] += mu[:, j] * value
            lower, upper = self._problem.lower[:, None], self._problem.upper[:, None]
            residual = np.sum((x - np.clip(x - slope, lower, upper)) ** 2, axis=1)
            residual += np.sum((mu - np.maximum(mu + g, 0.0)) ** 2, axis=1)
            off = (raw - self._hat[:, None]) ** 2
            errors = [np.sqrt(part.sum(axis=1)) for part in (off[:, :n], off[:, n:])]
            worst = np.fmax.reduce(g, axis=1, initial=0.0)
            values = (*errors, worst, np.sqrt(residual), objective, *errors)
        return np.stack(values, axis=1)
