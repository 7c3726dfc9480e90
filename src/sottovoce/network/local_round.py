"""x(k) to x(k+1) of all agents behind a connection, and what they send to the cloud.

Nothing private may stop a run, because stopping reveals something of it to all:

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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
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
from sottovoce.network.protocol.actions import LocalStep
from sottovoce.network.protocol.codec import NOTHING, Integers, middle, unpack, unpack_whole
from sottovoce.network.protocol.messages import Welcome
from sottovoce.privacy.adjacency import Everything, Offset
from sottovoce.privacy.averaging import weights_norm
from sottovoce.privacy.feasibility import default_fallbacks, unsafe_fallbacks
from sottovoce.privacy.releases import release_of
from sottovoce.privacy.sampler import STEPS
from sottovoce.problem.feasible import own_bounds
from sottovoce.problem.fleets import Fleet
from sottovoce.problem.groups import Array
from sottovoce.problem.local import box_of
from sottovoce.problem.numeric import Formulas
from sottovoce.problem.sums import agents_of

_STEPS = 200  # between the two sets; without rows one is exact
_FLAT = 1e-12  # curvature, as a share of the largest, that keeps a system solvable
_AT_BOUND = 1e-9  # of a box's width: an answer so near a bound has it active

REPEATING: Final = frozenset({Offset.kind, Everything.kind})
"""What is hidden where a state may count in more than one round."""

Which = Literal["fallback", "average", "answer"]
"""What a setpoint is: see ``agent.OnState``."""


def substitute_state(promise: Mapping[str, Any], lower: Array, upper: Array) -> Array | None:
    """Return the state of an agent whose step failed, None for the state before.

    Where the promise of the run's configuration does not name what is hidden, nothing is repeated.
    """
    return None if promise.get("hide") in REPEATING else middle(lower, upper)


@final
class LocalRound:
    """The rounds of a group in the run that a cloud describes."""

    def __init__(self, group: AgentGroup, welcome: Welcome) -> None:
        config = read_config(welcome.config)
        lower, upper = unpack(welcome.lower), unpack(welcome.upper)
        self._group, self._welcome, self._config = group, welcome, config
        self._algorithm: Algorithm = algorithm_of(config.algorithm)
        self._shares: RoundValues[float] | None = None
        if not isinstance(self._algorithm, GradientSteps):
            self._shares = noisy_shares(self._algorithm, config.rounds)
        self._sums = np.array(welcome.sums, dtype=np.int64)
        self._least, self._most = unpack_whole(welcome.least), unpack_whole(welcome.most)
        self._owner = np.repeat(np.arange(len(group.sizes)), group.sizes)
        self._substitute = substitute_state(config.promise, lower, upper)
        self._substituted: NDArray[np.bool_] | None = None
        self._raised = False
        self._bounds = (np.array(lower), np.array(upper))
        self._outside = np.zeros(lower.size, dtype=np.bool_)
        self._parts: list[tuple[slice | Integers, tuple[int, int], Any]] = []
        nearest = self._prepare(lower, upper)
        # Where the run keeps constraints, nothing is applied before it is confirmed.
        self.keeps = config.promise.get("feasible") is not None
        # Agents whose own sets miss the public bounds apply their fallbacks in any case.
        self.outside = np.unique(np.array(group.agents)[self._owner[self._outside]]).tolist()
        start = np.where(self._outside, nearest, self.begin(np.clip(group.start, lower, upper)))
        self._fallback = np.where(np.isnan(group.fallback), start, group.fallback)

    def applied(self, answer: Array, confirmed: bool | None) -> tuple[Array, Which]:
        """Return what is to be applied, given the answer so far and whether it was confirmed."""
        if (self.keeps and not confirmed) or self._outside.all():
            return self._fallback, "fallback"
        setpoint = np.where(self._outside, self._fallback, answer) if self.outside else answer
        return setpoint, "answer" if confirmed else "average"

    def unsafe(self) -> tuple[list[int], list[int]]:
        """Return the agents whose fallback is not shown to be safe.

        First beside answers of others; then in place of the public fallback, which the cloud counts
        for an agent that is absent, while the device applies the agent's own.
        """
        from sottovoce.network.setup import with_bounds  # rounds need none of it

        cloud, agents = self._group.cloud, self._group.agents
        places, bounds = np.array(agents) - 1, (self._welcome.lower, self._welcome.upper)
        can = tuple(with_bounds(cloud.groups, places, *self._bounds))
        public = tuple(with_bounds(cloud.groups, places, *map(unpack, bounds)))
        fixed = tuple(with_bounds(cloud.groups, places, self._fallback, self._fallback))
        beside, absent = (
            unsafe_fallbacks(cloud.sums, others, fixed)
            for others in (can, default_fallbacks(public))
        )
        return [a for a in agents if beside[a - 1]], [a for a in agents if absent[a - 1]]

    def begin(self, x: Array) -> Array:
        """The points of the agents' own sets nearest to x, which lies in the public bounds."""
        nearest = np.array(x)
        for columns, shape, step in self._parts:
            nearest[columns] = step.begin(x[columns].reshape(shape)).ravel()
        return nearest

    def contributions(self, x: Array) -> Integers | None:
        """What states x add to the sums that the cloud asked for; None where states are sent."""
        if self._welcome.states:
            return None
        total = np.zeros(self._welcome.prices)
        for columns, shape, step in self._parts:
            total += step.contributions(x[columns].reshape(shape))
        return self._asked(total)

    def __call__(
        self,
        k: int,
        x: Array,
        answer: Array,
        price: Array,
        y: Array,
        *,
        proximal: Array = NOTHING,
        since: int | None = None,
    ) -> LocalStep:
        """Take round k from x(k), what was last contributed, with what the cloud released in it.

        ``proximal`` is what the proximal terms remember, nothing before round 1; ``since`` the
        first round in which x may have counted, k unless rounds were missed.
        """
        memory = np.array(proximal if proximal.size else [x, np.zeros(x.size)]).reshape(2, -1)
        after, total = np.empty(x.size), np.zeros(self._welcome.prices)
        for columns, shape, local_step in self._parts:
            before = x[columns].reshape(shape), memory[:, columns].reshape(2, *shape)
            moved, remembered, added = self._tried(local_step, k, *before, price, y)
            after[columns], memory[:, columns] = moved.ravel(), remembered.reshape(2, -1)
            total += added
        rounds = range(since or k, k + 1)
        failed = self._owner[~np.isfinite(after)]
        if not failed.size:
            values = None if self._welcome.states else self._asked(total)
            averaged = self._averaged(rounds, answer, x, after)
            self._substituted = None
        else:
            # Stopping would stop the run, which tells something of the state. The device stays put.
            failed = np.unique(failed)
            lost = np.isin(self._owner, failed)
            averaged = self._averaged(rounds, answer, x, np.where(lost, answer, after))
            self._substituted = lost
            after = np.where(lost, x if self._substitute is None else self._substitute, after)
            values = self.contributions(after)
        return LocalStep(
            x=after,
            answer=averaged,
            proximal=NOTHING if self._shares is None else memory.ravel(),
            values=values,
            failed=failed,
        )

    def _averaged(self, rounds: range, answer: Array, x: Array, after: Array) -> Array:
        """The answer with x(k), whose contribution was released; of gradient steps the last.

        In missed rounds the cloud reused the last contribution; x approximates it and the cloud's
        margin covers the difference.
        """
        if self._shares is None:
            return after
        averaged = answer
        for k in rounds:
            averaged = averaged + self._shares[k] * (x - averaged)
        if self._substituted is not None and not self.keeps:
            return np.where(self._substituted, answer, averaged)  # no device follows a substitute
        return averaged

    def _asked(self, total: Array) -> Integers:
        """The integers of the sums that the cloud asked for, in their certified range."""
        steps = total[self._sums].astype(np.int64)
        return np.minimum(np.maximum(steps, self._least), self._most)

    def _tried(
        self, local_step: Any, k: int, x: Array, memory: Array, price: Array, y: Array
    ) -> tuple[Array, Array, Array]:
        """One part's round; no other part's may depend on whether its code fails."""
        try:
            if self._welcome.states:
                return local_step(k, x, price, y), memory, np.zeros(price.size)
            result: tuple[Array, Array, Array] = local_step(k, x, memory, price)
            return result
        except Exception as error:
            # Its text could quote the state; where it was raised cannot.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{frame.filename}:{frame.lineno}"
            level = logging.DEBUG if self._raised else logging.ERROR
            note("step-failed", level=level, error=type(error).__name__, where=place)
            self._raised = True
            return np.full(x.shape, np.nan), memory, np.zeros(price.size)

    def _prepare(self, lower: Array, upper: Array) -> Array:
        """Get all groups ready; return the nearest points of sets that miss the public bounds."""
        nearest, begin = np.zeros(lower.size), 0
        boxes = isinstance(self._algorithm, GradientSteps)
        for group in self._group.groups:
            fleet = group.fleet
            columns = begin + np.arange(group.size).reshape(fleet.group.count, fleet.group.dim)
            begin += group.size
            missing = _misses_domain(fleet, lower[columns], upper[columns])
            if not missing.all():
                rows = np.flatnonzero(~missing)
                inside = group if not missing.any() else replace(group, fleet=fleet.some(rows))
                self._append(inside, columns[rows], lower[columns[rows]], upper[columns[rows]])
            for place in np.flatnonzero(missing):
                agent, span = fleet.some(np.array([place])), columns[place : place + 1]
                public, nearest[span] = nearest_points(agent, lower[span], upper[span], boxes=boxes)
                box = box_of(agent.group)
                public_group = LocalGroup(fleet=replace(agent, objective=ZERO, local=box))
                self._append(public_group, span, public, public)
                self._outside[span] = True
        return nearest

    def _append(self, group: LocalGroup, columns: Integers, lower: Array, upper: Array) -> None:
        lower, upper = own_bounds(group.fleet.group, group.fleet.local, lower, upper)
        first, last = int(columns[0, 0]), int(columns[-1, -1])
        contiguous = last - first + 1 == columns.size
        index = slice(first, last + 1) if contiguous else columns.ravel()
        self._bounds[0][index], self._bounds[1][index] = lower.ravel(), upper.ravel()
        self._parts.append((index, columns.shape, self._part(group, lower, upper, first)))

    def _part(self, group: LocalGroup, lower: Array, upper: Array, begin: int) -> Any:
        algorithm, cloud, welcome = self._algorithm, self._group.cloud, self._welcome
        if isinstance(algorithm, GradientSteps):
            return release_of(algorithm.release).contribution(
                cloud, group, algorithm, welcome=welcome, begin=begin, bounds=(lower, upper)
            )
        grid = np.ones(welcome.prices)
        grid[self._sums] = unpack(welcome.grid)
        kernel = FleetKernel(group.fleet, lower, upper, gradient=group.gradient)
        return FleetStep(kernel, theta=algorithm.theta, grid=grid)

    def deviation(self, x: Array, price: Array) -> Array:
        """Return the standard deviation of every component of the setpoints x, shape of x.

        The released noise of sum o has, averaged into the answer, the standard deviation
        ``sigma_o |w|``. Prices answer to it so that the sums keep to their bounds, and an agent
        answers to a price by ``-B s_o``, with ``s_o`` the slopes of its contribution and B the
        inverse of the Hessian of ``f_i + lambda'h_i`` over the components without an active bound.
        **Assumed**: the ``n_o`` agents of a sum answer to its price alike, so that one of them
        takes ``B s_o / (n_o s_o' B s_o)`` of the noise, and different sums move it independently.
        Local rows do not count. An objective that is code counts as curved alike in all components.
        Nothing is larger than half the width of the box, which is the most that it can be. NaN
        with gradient steps, whose answers are no averages, and before any price is known.
        """
        welcome, sums = self._welcome, self._group.cloud.sums
        deviation = np.full(x.size, np.nan)
        if self._shares is None or price.size != welcome.prices:
            return deviation
        noise = np.zeros(welcome.prices)
        halves = 2.0 if self._config.split else 1.0
        noise[welcome.sums] = unpack(welcome.grid) * STEPS * np.sqrt(halves)
        averaged = noise * weights_norm(self._config.rounds)
        share = averaged / np.maximum(agents_of(sums, self._group.cloud.groups), 1)
        box, begin = (unpack(welcome.lower), unpack(welcome.upper)), 0
        for group in self._group.groups:
            shape = (group.fleet.group.count, group.fleet.group.dim)
            index = slice(begin, begin + group.size)
            lower, upper, state = (v[index].reshape(shape) for v in (*box, x))
            # The answer is there: a formula without curvature at that point must not take it away.
            with suppress(ArithmeticError, np.linalg.LinAlgError), np.errstate(all="ignore"):
                deviation[index] = _deviation(group, state, price, share, (lower, upper)).ravel()
            begin = index.stop
        return deviation


@final
class FleetStep:
    """``x(k) -> x(k+1)`` of a fleet's agents, and what they add to the sums, shape (p,)."""

    def __init__(self, kernel: FleetKernel, *, theta: float, grid: Array) -> None:
        self._kernel, self._theta, self._grid = kernel, theta, np.array(grid)
        self._fleet = FleetStates(kernel, kernel.lower)

    def __call__(self, k: int, x: Array, memory: Array, price: Array) -> tuple[Array, Array, Array]:
        """Take x(k), shape (count, d), and z and W, shape (2, count, d), a round on.

        Also returned are the contributions in grid steps, shape (p,).
        """
        fleet, d = self._fleet, x.shape[1]
        fleet.memory = np.concatenate((x, memory[0], memory[1, :, :1]), axis=1)
        price = np.array(price)  # what came from a message is read-only
        total = fleet.round(k, price, theta=self._theta, share=0.0, grid=self._grid)
        after = fleet.memory
        memory[0], memory[1] = after[:, d:-1], after[:, -1:]
        return after[:, :d], memory, total

    def begin(self, x: Array) -> Array:
        """The points of the agents' own sets nearest to x, shape (count, d)."""
        return FleetStates(self._kernel, x).states

    def contributions(self, x: Array) -> Array:
        """What states x, shape (count, d), add to the sums, in grid steps."""
        self._fleet.x[:] = to_lanes(x, self._kernel.width)
        return self._fleet.contributions(self._grid.size, self._grid)


def _misses_domain(fleet: Fleet, lower: Array, upper: Array) -> NDArray[np.bool_]:
    """Which agents have no point of their own set between public bounds, (count, d) each."""

    def misses(places: slice) -> bool:
        chosen = fleet if places.stop is None else fleet.some(np.array([places.start]))
        try:
            own_bounds(chosen.group, chosen.local, lower[places], upper[places])
        except ProblemError:
            return True
        return False

    count = fleet.group.count
    if not misses(slice(None)):
        return np.zeros(count, dtype=np.bool_)
    return np.array([misses(slice(place, place + 1)) for place in range(count)])


def nearest_points(fleet: Fleet, lower: Array, upper: Array, *, boxes: bool) -> tuple[Array, Array]:
    """Return the public point nearest to an agent's own set, and that set's nearest to it.

    Projections onto one convex set and the other in turn come to the nearest points of both. The
    agent is a fleet of one, bounds have shape (1, d); with ``boxes``, as for gradient steps, agents
    keep to boxes whatever rows they have.
    """
    private_set = fleet.local
    public = lower / 2.0 + upper / 2.0
    if boxes or not private_set.rows:
        public = np.clip(np.clip(public, private_set.lower, private_set.upper), lower, upper)
        return public, np.clip(public, private_set.lower, private_set.upper)
    private = FleetKernel(
        replace(fleet, objective=ZERO, sums=()), private_set.lower, private_set.upper
    )
    for _ in range(_STEPS):
        point = FleetStates(private, public).states
        before, public = public, np.clip(point, lower, upper)
        if np.array_equal(before, public):
            break
    return public, point


def _deviation(
    group: LocalGroup, x: Array, price: Array, share: Array, box: tuple[Array, Array]
) -> Array:
    lower, upper = box
    width = upper - lower
    free = (x > lower + _AT_BOUND * width) & (x < upper - _AT_BOUND * width)
    inverse = _inverse(_hessian(group, x, price), free)
    total = np.zeros(x.shape)
    slopes = _slopes(group.fleet, x, price.size)
    for row in np.flatnonzero((price != 0.0) & (share != 0.0)):
        slope = slopes[row]
        moved = np.einsum("iab,ib->ia", inverse, slope)
        response = np.einsum("ia,ia->i", slope, moved)
        step = np.where(response[:, np.newaxis] > 0, moved / response[:, np.newaxis], 0.0)
        total += np.square(share[row] * step)
    return np.minimum(np.sqrt(total), 0.5 * width)


def _inverse(hessian: Array, free: NDArray[np.bool_]) -> Array:
    """The inverse over the free components, 0 for the others."""
    identity = np.eye(hessian.shape[1])
    mask = free[:, :, np.newaxis] * free[:, np.newaxis, :]
    size = np.max(np.abs(hessian), axis=(1, 2), keepdims=True)
    masked = np.where(mask, hessian, 0.0) + identity * np.where(size > 0, _FLAT * size, 1.0)
    masked = masked + identity * np.where(free[:, np.newaxis, :], 0.0, 1.0)
    return np.asarray(np.where(mask, np.linalg.inv(masked), 0.0))


def _hessian(local: LocalGroup, x: Array, price: Array) -> Array:
    """Second derivatives of ``f_i + lambda'h_i``, shape (count, d, d)."""
    fleet, group = local.fleet, local.fleet.group
    out = np.zeros((group.count, group.dim, group.dim))
    if local.gradient is None:
        for a, b, entry in Formulas([fleet.objective], group).curvatures(x, np.ones((1, 1))):
            out[:, a, b] += entry
    else:
        out += np.eye(group.dim)
    nu = np.zeros((group.count, len(fleet.terms)))
    for part in fleet.parts():
        nu[:, part.terms] += part.spread(price)
    for a, b, entry in Formulas(fleet.terms, group).curvatures(x, nu):
        out[:, a, b] += entry
    return out


def _slopes(fleet: Fleet, x: Array, sums: int) -> Array:
    """The slopes of every agent's contribution to every sum, shape (p, count, d)."""
    slopes = Formulas(fleet.terms, fleet.group).gradients(x)
    totals = np.zeros((sums, *x.shape))
    for part in fleet.parts():
        for t, row, agent, weight in part.entries(fleet.group.count):
            np.add.at(totals, (row, agent), weight[:, np.newaxis] * slopes[agent, t])
    return totals
