"""x(k) to x(k+1) of all agents behind a connection, and what they send to the cloud.

Nothing private may stop a run, because that tells everybody something of it:

- An agent whose set misses the public domain of the run takes part with the public point nearest to
  its set in all rounds, and applies its fallback.
- An agent whose code fails goes on with a substitute for its state. What it takes, and contributes
  or sends as such, is part of its behaviour, of which the plan says what is hidden:

    offset, everything    the state before: in rounds that fail under two behaviours that must look
                          alike it differs no more than then
    trajectory            the middle of its bounds, which is public: a repeated difference would
                          count again, this one is none
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithm.algorithm import Algorithm, GradientSteps, RoundValues, noisy_shares
from sottovoce.errors import ProblemError
from sottovoce.formula.expression import ZERO
from sottovoce.kernels.fleet_kernel import FleetKernel, FleetStates, to_lanes
from sottovoce.network.agent_group import AgentGroup, LocalGroup
from sottovoce.network.config import algorithm_of, read_config
from sottovoce.network.observe.logs import note
from sottovoce.network.protocol.codec import Integers, middle, unpack, unpack_whole
from sottovoce.network.protocol.messages import Welcome
from sottovoce.privacy.adjacency import Everything, Offset
from sottovoce.privacy.releases import release_of
from sottovoce.problem.agents import Array
from sottovoce.problem.feasible import own_bounds
from sottovoce.problem.fleet import Fleet
from sottovoce.problem.fleets import in_template

_STEPS = 200  # between the two sets; without rows one is exact


def apart(fleet: Fleet, lower: Array, upper: Array) -> NDArray[np.bool_]:
    """Return which agents have no point of their own set between public bounds, (count, d) each."""
    count = fleet.group.count
    if not _misses(fleet, lower, upper):
        return np.zeros(count, dtype=np.bool_)
    alone = (fleet.some(np.array([place])) for place in range(count))
    ends = zip(alone, lower[:, np.newaxis], upper[:, np.newaxis], strict=True)
    return np.array([_misses(*one) for one in ends])


def nearest_points(fleet: Fleet, lower: Array, upper: Array, *, boxes: bool) -> tuple[Array, Array]:
    """Return the public point nearest to an agent's own set, and that set's nearest to it.

    Projections onto one convex set and the other in turn come to the nearest points of both.

    Args:
        fleet: the agent, a fleet of one with a set of its own.
        lower: public bounds, shape (1, d).
        upper: likewise.
        boxes: whether agents keep to boxes, whatever rows they have, as gradient steps do.
    """
    own = fleet.local
    assert own is not None  # noqa: S101  a public box cannot miss itself
    if boxes or not own.rows:
        middle = np.clip(lower / 2.0 + upper / 2.0, own.lower, own.upper)
        public = np.clip(middle, lower, upper)
        return public, np.clip(public, own.lower, own.upper)
    private = FleetKernel(replace(fleet, objective=ZERO, sums=()), own.lower, own.upper)
    public = lower / 2.0 + upper / 2.0
    for _ in range(_STEPS):
        point = FleetStates(private, public).states
        before, public = public, np.clip(point, lower, upper)
        if np.array_equal(before, public):
            break
    return public, point


def _misses(fleet: Fleet, lower: Array, upper: Array) -> bool:
    if fleet.local is None:
        return False
    try:
        own_bounds(fleet.group, fleet.local, lower, upper)
    except ProblemError:
        return True
    return False


REPEATING: Final = frozenset({Offset.kind, Everything.kind})
"""What is hidden where a state may count in more than one round."""


@final
class Substitute:
    """Replaces the state of every agent whose step gave no numbers, and of no other.

    Args:
        sizes: how many numbers each agent's state has.
        lower: bounds from the cloud, one after the other.
        upper: likewise.
        promise: of the run's configuration; where it does not say what is hidden, nothing is
            repeated.
    """

    def __init__(
        self, sizes: Sequence[int], lower: Array, upper: Array, promise: Mapping[str, Any]
    ) -> None:
        self._owner = np.repeat(np.arange(len(sizes)), sizes)
        self._middle = middle(lower, upper)
        self._repeats = promise.get("hide") in REPEATING

    def failed(self, x: Array) -> NDArray[np.int64]:
        """The places, from 0, of the agents whose step is not finite."""
        return np.unique(self._owner[~np.isfinite(x)])

    def state(self, x: Array, before: Array) -> Array:
        """x, and for agents that failed what they take for their state instead.

        Args:
            x: x(k+1) as the round gave it.
            before: x(k).
        """
        return self.kept(x, x, before if self._repeats else self._middle)

    def kept(self, x: Array, values: Array, instead: Array) -> Array:
        """``values``, and ``instead`` where they belong to an agent whose step x is not finite."""
        return np.where(self.of(x), instead, values)

    def of(self, x: Array) -> NDArray[np.bool_]:
        """Which numbers of a state belong to an agent whose step x is not finite."""
        return np.isin(self._owner, self.failed(x))


Which = Literal["fallback", "average", "answer"]
"""What a setpoint is: see ``agent.OnState``."""

_NOBODY: Final = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalStep:
    """What a round came to at home.

    Attributes:
        x: x(k+1) of all agents, one after the other.
        answer: their answers so far.
        values: their contributions in steps of the grid, added up; None where states are sent.
        failed: the places, from 0, of agents whose own code failed.
    """

    x: Array
    answer: Array
    values: Integers | None
    failed: NDArray[np.int64]


@final
class LocalRound:
    """The rounds of a group in the run that a cloud describes.

    Args:
        group: the agents.
        welcome: the cloud's description.
    """

    def __init__(self, group: AgentGroup, welcome: Welcome) -> None:
        config = read_config(welcome.config)
        self._algorithm: Algorithm = algorithm_of(config.algorithm)
        self._rounds = config.rounds
        self._shares: RoundValues[float] | None = None
        if not isinstance(self._algorithm, GradientSteps):
            self._shares = noisy_shares(self._algorithm, self._rounds)
        self._welcome, self._cloud = welcome, group.cloud
        self._sums = np.array(welcome.sums, dtype=np.int64)
        self._least, self._most = unpack_whole(welcome.least), unpack_whole(welcome.most)
        lower, upper = unpack(welcome.lower), unpack(welcome.upper)
        self._substitute = Substitute(group.sizes, lower, upper, config.promise)
        self._parts: list[tuple[slice | Integers, tuple[int, int], Any]] = []
        self._raised = False
        self._stood_in: NDArray[np.bool_] | None = None
        self.keeps = config.promise.get("feasible") is not None
        """Whether the run keeps constraints: then nothing is applied before it is confirmed."""
        self._bounds = (np.array(lower), np.array(upper))
        self._apart = np.zeros(lower.size, dtype=np.bool_)
        nearest, begin = np.zeros(lower.size), 0
        for own in group.groups:
            here = slice(begin, begin + own.size)
            nearest[here] = self._add(own, lower[here], upper[here], begin)
            begin = here.stop
        self.apart = np.unique(np.repeat(group.agents, group.sizes)[self._apart]).tolist()
        """Agents whose own sets miss the public bounds: they apply their fallbacks in any case."""
        start = np.where(self._apart, nearest, self.begin(np.clip(group.start, lower, upper)))
        self._fallback = np.where(np.isnan(group.fallback), start, group.fallback)
        self._agents = group.agents

    def applied(self, answer: Array, confirmed: bool | None) -> tuple[Array, Which]:
        """Return what is to be applied, given the answer so far and whether it was confirmed."""
        if (self.keeps and not confirmed) or self._apart.all():
            return self._fallback, "fallback"
        setpoint = np.where(self._apart, self._fallback, answer) if self.apart else answer
        return setpoint, "answer" if confirmed else "average"

    def unsafe(self) -> list[int]:
        """Return the agents whose fallback, beside answers of others, is not shown to be safe."""
        # Rounds need none of it, and a device has little memory.
        from sottovoce.network.setup import with_bounds
        from sottovoce.privacy.feasibility import unsafe_fallbacks

        groups, places = self._cloud.groups, np.array(self._agents) - 1
        can = tuple(with_bounds(groups, places, *self._bounds))
        fixed = tuple(with_bounds(groups, places, self._fallback, self._fallback))
        found = unsafe_fallbacks(self._cloud.sums, can, fixed)
        return [agent for agent in self._agents if found[agent - 1]]

    def begin(self, x: Array) -> Array:
        """The points of the agents' own sets nearest to x, which lies in the public bounds."""
        nearest = np.array(x)
        for here, shape, part in self._parts:
            nearest[here] = part.begin(x[here].reshape(shape)).ravel()
        return nearest

    def contributions(self, x: Array) -> Integers | None:
        """What states x add to the sums that the cloud asked for; None where states are sent."""
        if self._welcome.states:
            return None
        total = np.zeros(self._welcome.prices)
        for here, shape, part in self._parts:
            total += part.contributions(x[here].reshape(shape))
        return self._asked(total)

    def __call__(
        self, k: int, x: Array, answer: Array, price: Array, y: Array, *, since: int | None = None
    ) -> LocalStep:
        """Take round k from x(k), with what the cloud released in it.

        Args:
            k: the round.
            x: x(k), what was last contributed.
            answer: the answer so far.
            price: what the round says.
            y: likewise, the gradient entries of a release that has them.
            since: the first round in which x may have counted; k unless rounds were missed.
        """
        after, total = np.empty(x.size), np.zeros(self._welcome.prices)
        for here, shape, part in self._parts:
            own, added = self._tried(part, k, x[here].reshape(shape), price, y)
            after[here] = own.ravel()
            total += added
        if np.isfinite(after).all():
            values = None if self._welcome.states else self._asked(total)
            averaged = self._averaged((since or k, k), answer, x, after)
            self._stood_in = None
            return LocalStep(x=after, answer=averaged, values=values, failed=_NOBODY)
        # Stopping would stop the run, which tells something of the state. The device stays put.
        failed = self._substitute.failed(after)
        last = self._substitute.kept(after, after, answer)
        averaged = self._averaged((since or k, k), answer, x, last)
        self._stood_in = self._substitute.of(after)
        state = self._substitute.state(after, x)
        return LocalStep(x=state, answer=averaged, values=self.contributions(state), failed=failed)

    def _averaged(self, rounds: tuple[int, int], answer: Array, x: Array, after: Array) -> Array:
        """The answer with x(k), whose contribution was released; of gradient steps the last.

        In missed rounds the cloud reused the last contribution; x approximates it and the cloud's
        margin covers the difference.
        """
        if self._shares is None:
            return after
        averaged = answer
        for k in range(rounds[0], rounds[1] + 1):
            averaged = averaged + self._shares[k] * (x - averaged)
        if self._stood_in is not None and not self.keeps:
            return np.where(self._stood_in, answer, averaged)  # no device follows a substitute
        return averaged

    def _asked(self, total: Array) -> Integers:
        """The whole numbers of the sums that the cloud asked for, in their certified range."""
        whole = total[self._sums].astype(np.int64)
        return np.minimum(np.maximum(whole, self._least), self._most)

    def _tried(self, part: Any, k: int, x: Array, price: Array, y: Array) -> tuple[Array, Array]:
        """One part's round: nobody else's may depend on whether its code fails."""
        try:
            if self._welcome.states:
                return part(k, x, price, y), np.zeros(price.size)
            own, added = part(k, x, price)
        except Exception as error:
            # Its text could quote the state; where it was raised cannot.
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{last.filename}:{last.lineno}"
            level = logging.DEBUG if self._raised else logging.ERROR
            note("own code failed", level=level, error=type(error).__name__, where=where)
            self._raised = True
            return np.full(x.shape, np.nan), np.zeros(price.size)
        return own, added

    def _add(self, own: LocalGroup, lower: Array, upper: Array, begin: int) -> Array:
        """Get a group ready; return the nearest points of sets that miss the public bounds."""
        fleet, shape = own.fleet, (own.fleet.group.count, own.fleet.group.dim)
        ends = (lower.reshape(shape), upper.reshape(shape))
        columns = begin + np.arange(own.size).reshape(shape)
        missing, nearest = apart(fleet, *ends), np.zeros(shape)
        if not missing.all():
            kept = np.flatnonzero(~missing)
            those = own if not missing.any() else replace(own, fleet=fleet.some(kept))
            self._append(those, columns[kept], ends[0][kept], ends[1][kept])
        boxes = isinstance(self._algorithm, GradientSteps)
        for place in np.flatnonzero(missing):
            one, here = fleet.some(np.array([place])), slice(place, place + 1)
            public, nearest[here] = nearest_points(one, ends[0][here], ends[1][here], boxes=boxes)
            still = LocalGroup(fleet=replace(one, objective=ZERO, local=None))
            self._append(still, columns[here], public, public)
            self._apart[columns[here]] = True
        return nearest.ravel()

    def _append(self, own: LocalGroup, columns: Integers, lower: Array, upper: Array) -> None:
        if own.fleet.local is not None:
            lower, upper = own_bounds(own.fleet.group, own.fleet.local, lower, upper)
        first, last = int(columns[0, 0]), int(columns[-1, -1])
        whole = last - first + 1 == columns.size
        here = slice(first, last + 1) if whole else columns.ravel()
        self._bounds[0][here], self._bounds[1][here] = lower.ravel(), upper.ravel()
        self._parts.append((here, columns.shape, self._part(own, lower, upper, first)))

    def _part(self, own: LocalGroup, lower: Array, upper: Array, begin: int) -> Any:
        algorithm = self._algorithm
        if isinstance(algorithm, GradientSteps):
            return release_of(algorithm.release).contribution(
                self._cloud, own, algorithm,
                welcome=self._welcome, begin=begin, bounds=(lower, upper),
            )  # fmt: skip
        grid = np.ones(self._welcome.prices)
        grid[self._sums] = unpack(self._welcome.grid)
        named = self._cloud.groups[own.fleet.places[0]].count == 1
        fleet = in_template(own.fleet) if named else own.fleet
        kernel = FleetKernel(fleet, lower, upper, gradient=own.gradient)
        return FleetStep(kernel, theta=algorithm.theta, grid=grid)


@final
class FleetStep:
    """``x(k) -> x(k+1)`` of a fleet's agents, and what they add to the sums.

    Args:
        kernel: the agents' formulas, parameters, weights and bounds.
        theta: the weight of the damping.
        grid: the grid of every sum, shape (p,).
    """

    def __init__(self, kernel: FleetKernel, *, theta: float, grid: Array) -> None:
        self._kernel, self._theta, self._grid = kernel, theta, np.array(grid)
        self._fleet = FleetStates(kernel, kernel.lower)

    def __call__(self, k: int, x: Array, price: Array) -> tuple[Array, Array]:
        """Return x(k+1), shape (count, d), and its contributions in grid steps, shape (p,)."""
        self._place(x)
        told = np.array(price)  # what came from a message is read-only
        total = self._fleet.round(k, told, theta=self._theta, share=0.0, grid=self._grid)
        return self._fleet.states, total

    def begin(self, x: Array) -> Array:
        """The points of the agents' own sets nearest to x, shape (count, d)."""
        return FleetStates(self._kernel, x).states

    def contributions(self, x: Array) -> Array:
        """What states x, shape (count, d), add to the sums, in grid steps."""
        self._place(x)
        return self._fleet.contributions(self._grid.size, self._grid)

    def _place(self, x: Array) -> None:
        self._fleet.x[:] = to_lanes(x, self._kernel.width)
