"""x(k) to x(k+1) at home: the algorithm's step for everybody who lives behind a connection."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from sottovoce.algorithm.algorithm import Algorithm, by_name
from sottovoce.network.config import algorithm_of, read_config
from sottovoce.network.home import Household, Several, Single
from sottovoce.network.logs import note
from sottovoce.network.own_slope import OwnSlope, entries_of
from sottovoce.network.protocol.codec import unpack
from sottovoce.network.protocol.messages import Welcome
from sottovoce.network.schedule import Schedule
from sottovoce.problem.agents import Array
from sottovoce.problem.problem import CloudView


@final
class HomeStep:
    """The step of a household, for one run.

    Args:
        household: the agents.
        algorithm: gives the agents' step.
        rounds: T.
        lower: bounds from the cloud, one after the other.
        upper: likewise.
        rows: the constraint of each entry the cloud will send.
        columns: its component of the household's state.
        slopes: how fast each entry can change when all agents move.
    """

    def __init__(
        self,
        household: Household,
        algorithm: Algorithm,
        *,
        rounds: int,
        lower: Array,
        upper: Array,
        rows: Sequence[int],
        columns: Sequence[int],
        slopes: Sequence[float],
    ) -> None:
        self._schedule = Schedule(algorithm, rounds)
        self._raised = False
        entries = list(zip(rows, columns, slopes, strict=True))
        self._parts: list[tuple[slice, Any]] = []
        begin = 0
        for member in household.members:
            here = slice(begin, begin + member.size)
            box = (lower[here], upper[here])
            own = [(e, r, c - begin, s) for e, (r, c, s) in enumerate(entries)
                   if begin <= c < here.stop]  # fmt: skip
            part = (
                _Alone(household.cloud, member, algorithm, box, own)
                if isinstance(member, Single)
                else _together(household.cloud, member, algorithm, box)
            )
            self._parts.append((here, part))
            begin = here.stop

    @staticmethod
    def of_welcome(household: Household, welcome: Welcome) -> HomeStep:
        """Return the step of the run that a cloud describes."""
        config = read_config(welcome.config)
        return HomeStep(
            household,
            algorithm_of(config.algorithm),
            rounds=config.rounds,
            lower=unpack(welcome.lower),
            upper=unpack(welcome.upper),
            rows=welcome.rows,
            columns=welcome.columns,
            slopes=unpack(welcome.slopes).tolist(),
        )

    def __call__(self, k: int, x: Array, mu: Array, y: Array) -> Array:
        """Take the step of round k; not a number for whoever's own code fails."""
        numbers = self._schedule[k]
        if len(self._parts) == 1:
            return self._tried(self._parts[0][1], numbers, x, mu, y)
        return np.concatenate(
            [self._tried(part, numbers, x[here], mu, y) for here, part in self._parts]
        )

    def averaged(self, k: int, answer: Array, x: Array) -> Array:
        """The answer after round k, in which the state became x."""
        share = self._schedule.share(k)
        return x if share == 1.0 else answer + share * (x - answer)

    def _tried(self, part: Any, numbers: Sequence[float], x: Array, mu: Array, y: Array) -> Array:
        """One member's step: nobody else's may depend on whether its code fails."""
        try:
            return np.asarray(part(numbers, x, mu, y))
        except Exception as error:
            # Its text could quote the state; where it was raised cannot.
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{last.filename}:{last.lineno}"
            level = logging.DEBUG if self._raised else logging.ERROR
            note("own code failed", level=level, error=type(error).__name__, where=where)
            self._raised = True
            return np.full(x.shape, np.nan)


@final
class _Alone:
    """One agent's step; ``entries`` are those it gets: number, row, component and slope."""

    def __init__(
        self,
        cloud: CloudView,
        single: Single,
        algorithm: Algorithm,
        box: tuple[Array, Array],
        entries: list[tuple[int, int, int, float]],
    ) -> None:
        self._thinks, self._dim = algorithm.thinks, single.size
        self._entries = entries
        known = list(entries_of(cloud, single))
        if algorithm.thinks:
            # What it can work out itself, it does, whatever else was released.
            needed = {(e.row, e.component) for e in known if e.released}
            self._entries = [e for e in entries if (e[1], e[2]) in needed]
        sent = {(row, component) for _, row, component, _ in self._entries}
        self._own = OwnSlope(single, known, sent)
        scalar = single.size == 1
        self._step = algorithm.agent_step if scalar else algorithm.vector_step
        self._scalars = algorithm.scalars
        self._lower, self._upper = (float(b[0]) if scalar else b for b in box)

    def __call__(self, numbers: Sequence[float], x: Array, mu: Array, y: Array) -> Array:
        pull, hold = self._priced(mu, y)
        prices = self._own.prices(mu)
        scalar = self._dim == 1
        at: Any = float(x[0]) if scalar else x
        context: Any = (prices, float(pull[0]) if scalar else pull)
        slope: Any = self._own.slope if scalar else self._own.gradient
        values: dict[str, Any] = dict(zip(self._scalars, numbers, strict=True))
        values |= {"x": at, "lower": self._lower, "upper": self._upper}
        if self._thinks:
            coupling = float(hold[0]) if scalar else hold
            values |= {"slope": slope, "context": context, "coupling": coupling}
        else:
            values["slope"] = slope(context, at)
        after = by_name(self._step, values)
        return np.array([after], dtype=np.float64) if scalar else np.asarray(after)

    def _priced(self, mu: Array, y: Array) -> tuple[Any, Any]:
        """``sum mu_j Y_ji`` and ``sum mu_j L_ji`` over the entries that it uses, per component."""
        pull, hold = [0.0] * self._dim, [0.0] * self._dim
        for e, row, component, slope in self._entries:
            pull[component] += float(mu[row]) * float(y[e])
            hold[component] += float(mu[row]) * slope
        return (pull, hold) if self._dim == 1 else (np.array(pull), np.array(hold))


def _together(
    cloud: CloudView, several: Several, algorithm: Algorithm, box: tuple[Array, Array]
) -> Any:
    """Agents of a fleet step by the pass that the engine compiles for them."""
    from sottovoce.engine.hosted import Hosted  # an agent by itself needs no compiler

    group = several.fleet.group
    lower, upper = (np.ascontiguousarray(b.reshape(group.count, group.dim)) for b in box)
    hosted = Hosted(several.fleet, algorithm, lower=lower, upper=upper, rows=cloud.rows)

    def step(numbers: Sequence[float], x: Array, mu: Array, y: Array) -> Array:
        return hosted(x.reshape(group.count, group.dim), mu, numbers).ravel()

    return step
