"""Runs in which some agents' objectives are code: rounds in Python between compiled parts.

Agents with formulas take their compiled rounds, the cloud its compiled half, and an agent with code
minimises in Python with the gradients that its code gives, as it would on the network. So a round
costs what Python costs, a tenth of a millisecond and more, instead of microseconds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, final

import numpy as np

from sottovoce.algorithm.algorithm import PriceRounds
from sottovoce.engine.agent_round import AgentRound
from sottovoce.engine.alike import by_form, in_form
from sottovoce.engine.drive import Final, Task
from sottovoce.engine.fleet_round import FleetRound
from sottovoce.engine.formulas import Fleet, local_fleet
from sottovoce.engine.normals import fill_pairs, stream_seeds
from sottovoce.engine.setting import Setting
from sottovoce.engine.source import QUANTITIES
from sottovoce.engine.turn import load_turn
from sottovoce.formula.expression import ZERO, Expression
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.code import Objective, Watched
from sottovoce.problem.evaluate import value_of
from sottovoce.problem.problem import Problem

_FINEST = 2.0**-60  # the grid of sums that have none: finer than float64 resolves


@final
class CodeRuns:
    """The states of all runs, and what advances them."""

    def __init__(self, problem: Problem, algorithm: PriceRounds, setting: Setting) -> None:
        s = setting
        self._setting, self._problem = s, problem
        sums = problem.cloud.sums.count
        self._grid = s.grid if s.gridded else np.full(sums, _FINEST)
        self._parts: list[tuple[slice, tuple[int, int], Any]] = []
        self._valued: list[tuple[Any, Callable[[Array], float]]] = []
        begin = 0
        for index, (group, code) in enumerate(zip(s.domain, problem.code, strict=True)):
            here = slice(begin, begin + group.count * group.dim)
            part = _part(problem, index, group, code, algorithm, self._grid)
            self._parts.append((here, (group.count, group.dim), part))
            self._valued.append((self._parts[-1], value_of(problem, index, code)))
            begin = here.stop
        turn = load_turn(algorithm, s.regions)
        constants = np.array(algorithm.constants, dtype=np.float64)
        self._compiled, self._turn = turn, turn.turn
        self._public = (constants, *s.rows[:2], *s.rows.public, *turn.phi)
        self._seeds = stream_seeds(s.seed, s.numbers)
        flat = [part.begin(x).ravel() for x, (_, _, part) in zip(s.start, self._parts, strict=True)]
        self._x = np.tile(np.concatenate(flat), (s.runs, 1))
        self._answer = self._x.copy()
        self._price = np.zeros((s.runs, sums))
        self._price_answer = np.zeros((s.runs, sums))
        self._averaged = np.zeros((s.runs, sums))
        self._memory = np.zeros((s.runs, algorithm.memory_size(sums)))
        self._failed = np.zeros(s.runs, dtype=np.int64)
        self._trace = np.full((s.runs, s.marks.size, len(QUANTITIES)), np.nan)
        self._transcript = np.zeros((s.runs, s.rounds if s.transcript else 0, s.released))

    def tasks(self, done: int, until: int, steps: Array) -> list[Task]:
        """What takes all runs through rounds ``done + 1 .. until``; code may mind threads: one."""
        return [partial(self._advance, done, until, steps)]

    def _advance(self, done: int, until: int, steps: Array) -> None:
        for run in range(self._setting.runs):
            if done == 0:
                self._measured(run, 0)
            added = self._added(self._x[run])
            for k in range(done + 1, until + 1):
                if not self._failed[run]:
                    share, steer = steps[2 * (k - done - 1) :][:2].tolist()
                    added = self._round(run, k, (share, steer), added)
                self._measured(run, k)

    def _round(self, run: int, k: int, numbers: tuple[float, float], added: Array) -> Array:
        """Take round k, whose contributions are ``added``, and return those of the next."""
        share, steer = numbers
        s = self._setting
        y = added * self._grid
        pairs = s.noise.pairs
        if pairs:
            z = np.empty(2 * pairs)
            fill_pairs(self._seeds[run], k - 1, pairs, 0, pairs, z)
            y[list(s.noise.rows)] += s.sigma * z[: s.sigma.size]
        if s.transcript:
            self._transcript[run, k - 1] = y
        price = self._price[run]
        if s.gridded:
            self._average(run, share)
            y = self._steered(run, y, share, steer)
        if not self._turn(k, y, price, self._memory[run], *self._public):
            self._failed[run] = k
            return added
        total = np.zeros(self._grid.size)
        for here, shape, part in self._parts:
            after, own = part(k, self._x[run, here].reshape(shape), price)
            self._x[run, here] = after.ravel()
            total += own
        if not s.gridded:
            self._average(run, share)
        return total

    def _average(self, run: int, share: float) -> None:
        """Take states and prices into the answer: what is released, or without a plan the last."""
        self._answer[run] += share * (self._x[run] - self._answer[run])
        self._price_answer[run] += share * (self._price[run] - self._price_answer[run])

    def _steered(self, run: int, y: Array, share: float, steer: float) -> Array:
        """Average the releases, and take off what that average has too much of."""
        released = self._averaged[run]
        released += share * (y - released)
        if steer == 0.0:
            return y
        inside = self._compiled.point(released, self._setting.rows.public)
        return np.asarray(y + steer * (released - inside))

    def _added(self, x: Array) -> Array:
        """What states x add to the sums, in grid steps."""
        total = np.zeros(self._grid.size)
        for here, shape, part in self._parts:
            total += part.contributions(x[here].reshape(shape))
        return total

    def _measured(self, run: int, k: int) -> None:
        """Write what is known down at a recorded round; slopes of code are nobody's to measure."""
        s = self._setting
        at = int(np.searchsorted(s.marks, k))
        if at == s.marks.size or s.marks[at] != k:
            return
        g, (least, most) = self._added(self._answer[run]) * self._grid, s.limits
        over = np.maximum(g - most, least - g)
        found = dict.fromkeys(QUANTITIES, np.nan)
        found["violation"] = float(np.max(over, initial=0.0))
        found["objective"] = self._objective(self._answer[run])
        if s.saddle is not None:
            x_hat, price_hat = s.saddle
            found["error_x"] = float(np.linalg.norm(self._answer[run] - x_hat))
            found["last_error_x"] = float(np.linalg.norm(self._x[run] - x_hat))
            found["error_price"] = float(np.linalg.norm(self._price_answer[run] - price_hat))
            found["last_error_price"] = float(np.linalg.norm(self._price[run] - price_hat))
        self._trace[run, at] = [found[name] for name in QUANTITIES]

    def _objective(self, x: Array) -> float:
        """The sum of all objectives, not a number unless every code tells its value."""
        return float(sum(value(x[here]) for (here, _, _), value in self._valued))

    def arrays(self) -> dict[str, Any]:
        """Everything that rounds change, for a checkpoint."""
        return {
            "x": self._x,
            "answer": self._answer,
            "price": self._price,
            "price_answer": self._price_answer,
            "averaged": self._averaged,
            "memory": self._memory,
            "failed": self._failed,
            "trace": self._trace,
            "transcript": self._transcript,
        }

    def final(self) -> Final:
        """Where every run ended."""
        return Final(
            x=self._answer.copy(),
            price=self._price_answer.copy(),
            last_x=self._x.copy(),
            last_price=self._price.copy(),
            released=self._averaged.copy() if self._setting.gridded else None,
            failed=self._failed.copy(),
        )

    def trace(self, records: int) -> dict[str, Array]:
        """What was measured at the first ``records`` marks, arrays of shape (runs, records)."""
        return {name: self._trace[:, :records, q].copy() for q, name in enumerate(QUANTITIES)}

    def released(self, rounds: int) -> Array:
        """The released numbers, shape (runs, rounds, rows)."""
        return self._transcript[:, :rounds]


def _part(
    problem: Problem,
    index: int,
    group: Group,
    code: Objective | None,
    algorithm: PriceRounds,
    grid: Array,
) -> Any:
    """The rounds of one group at home."""
    settings = {"lower": group.lower, "upper": group.upper, "grid": grid}
    if code is None:
        fleet = _fleet(problem, index, problem.objectives[index])
        if group.count == group.dim == 1 and not (group.parameters or problem.local[index].rows):
            return AgentRound(fleet, None, algorithm, **settings)  # nothing to compile
        return FleetRound(fleet, algorithm, **settings)

    def report() -> None:
        warnings.warn(
            f"the gradient of {group.name} is not monotone: its objective is not convex, and the "
            "answer need not be the minimum",
            stacklevel=2,
        )

    fleet = _fleet(problem, index, ZERO)
    gradient = Watched(group.name, code.gradient, group.dim, report)
    return AgentRound(fleet, gradient, algorithm, **settings)


def _fleet(problem: Problem, index: int, objective: Expression) -> Fleet:
    """One group's agents as they are on the network."""
    own = (objective, problem.local[index])
    fleet = local_fleet(problem.groups, problem.cloud.sums.families, index, *own)
    named = problem.groups[index].count == 1
    return in_form(fleet) if named and by_form(problem.cloud) else fleet
