"""A plan and its keys, checked and turned into what a run starts from: configuration and parties.

A party is the agents on a connection, worked out from the plan at their hello.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, final, get_args

import numpy as np

from sottovoce.algorithm.algorithm import Algorithm
from sottovoce.certificate.contributions import block_ranges
from sottovoce.errors import InputError, PrivacyError
from sottovoce.formula.expression import ZERO
from sottovoce.kernels.fleet_kernel import FleetKernel, FleetStates
from sottovoce.network import Straggler
from sottovoce.network.config import Noise, RunConfig, SeriesRun, describe
from sottovoce.network.failures import IdentityError
from sottovoce.network.protocol.actions import Party, Setup
from sottovoce.network.protocol.codec import Box, Integers, MalformedError, unpack
from sottovoce.network.protocol.messages import LONGEST_WAIT, Welcome
from sottovoce.privacy.adjacency import Trajectory
from sottovoce.privacy.feasibility import default_fallbacks
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.sampler import MAX_STEPS
from sottovoce.privacy.trust import SplitCloud
from sottovoce.problem.fingerprint import fingerprint
from sottovoce.problem.fleets import agent_fleet
from sottovoce.problem.groups import Array, Group, lower_bounds, read_only, upper_bounds
from sottovoce.problem.linear_rows import sparse
from sottovoce.problem.problem import CloudView
from sottovoce.problem.sums import Sums

_NONE = np.zeros(0, dtype=np.int64)
_ABSENCES = 64  # sets of absent agents whose contribution is remembered


@final
class Parties:
    """``agents -> Party`` in one run.

    Without ranges of contributions agents send states; entries are the row and the column of every
    released gradient entry.
    """

    def __init__(
        self,
        domain: Sequence[Group],
        ranges: Ranges | None,
        entries: Sequence[tuple[int, int | None]] = (),
    ) -> None:
        dims = np.concatenate([np.full(group.count, group.dim) for group in domain])
        self._offsets: Integers = np.concatenate([[0], np.cumsum(dims)])
        self._lower, self._upper = lower_bounds(domain), upper_bounds(domain)
        self._rows, self._columns = np.array(entries, dtype=np.int64).reshape(-1, 2).T
        self._ranges = ranges

    def __call__(self, agents: tuple[int, ...]) -> Party:
        """Describe agents, numbered from 1, that share a connection."""
        places = np.array(agents, dtype=np.int64) - 1
        spans = [np.arange(self._offsets[i], self._offsets[i + 1]) for i in places]
        columns = np.concatenate(spans)
        entries = np.flatnonzero(np.isin(self._columns, columns))
        lower, upper = self._lower[columns], self._upper[columns]
        states = self._ranges is None
        nothing = (_NONE, np.zeros(0), _NONE, _NONE)
        sums, grid, least, most = nothing if self._ranges is None else self._ranges.of(places)
        return Party(
            agents=agents,
            places=_run(places),
            lower=lower,
            upper=upper,
            sums=sums,
            grid=grid,
            least=least,
            most=most,
            range=Box(lower, upper) if states else Box(least, most),
            columns=_run(columns),
            owners=np.repeat(places + 1, [part.size for part in spans]) if states else None,
            entries=entries,
            rows=self._rows[entries],
            entry_columns=np.searchsorted(columns, self._columns[entries]),
        )


def parties_of(plan: NoisePlan) -> Parties:
    """Return the parties of a plan whose agents together stay in the sampler's reach.

    A refusal in the middle of a run would tell that a sum was unusually large.
    """
    if plan.release is not None:
        entries = [(o.row, o.column) for o in plan.outputs if o.kind == "gradient"]
        return Parties(plan.domain, None, entries)
    ranges = ranges_of(plan)
    sums, _, least, most = ranges.of(np.arange(plan.cloud.agents))
    beyond = (most > MAX_STEPS) | (least < -MAX_STEPS)
    if beyond.any():
        name = plan.outputs[int(sums[beyond][0])].name
        raise PrivacyError(
            f"every sum must stay within 2^25 sigma of zero, got {name}, which may not: its "
            "noise is too small for its size; tighten the boxes or plan with a larger sigma"
        )
    return Parties(plan.domain, ranges)


def parties_below(
    welcome: Welcome, cloud: CloudView, agents: Sequence[int]
) -> tuple[Parties, Fallbacks]:
    """Return the parties and fallbacks of a relay's agents, from 1, as far as its welcome tells."""
    grid = np.zeros(cloud.sums.count)
    if len(welcome.grid) != 8 * len(welcome.sums) or max(welcome.sums, default=0) >= grid.size:
        raise MalformedError("every sum must have a grid")
    grid[welcome.sums] = unpack(welcome.grid)
    ends = (unpack(welcome.lower), unpack(welcome.upper))
    domain = tuple(with_bounds(cloud.groups, np.array(agents) - 1, *ends))
    parties = Parties(domain, Ranges(cloud.sums, domain, grid))
    return parties, Fallbacks(cloud.sums, domain, grid)


@final
class Ranges:
    """The certified ranges of contributions, in steps of the grids, for any agents together.

    The grid is 0 where a sum has no noise, or these agents have no part in it.
    """

    def __init__(self, sums: Sums, domain: Sequence[Group], grid: Array) -> None:
        self._grid = grid
        self._blocks: list[tuple[Any, ...]] = []
        """Per block its sums, its first agent, and (sums x agents) least, most, and who adds."""
        for rows, first, lower, upper, error in block_ranges(sums, domain):
            takes = (abs(lower) + abs(upper) != 0).astype(np.int8)
            ends: Any = (lower - error, upper + error, takes)
            if sparse.issparse(lower):
                ends = map(sparse.csc_array, ends)
            self._blocks.append((rows, first, *ends))

    def of(self, places: Integers) -> tuple[Integers, Array, Integers, Integers]:
        """Return the noisy sums that agents take part in, their grids, and the ends of the range.

        A contribution is off by half a step where it is rounded, and the sum of n ends by less
        than n/4 where it is computed, as no sum reaches 2^51 steps: one step per agent covers both.
        """
        low, high, count = totals = np.zeros((3, self._grid.size))
        for rows, first, *ends in self._blocks:
            inside = (places >= first) & (places < first + ends[0].shape[1])
            if inside.any():
                members = _run(places[inside] - first)
                for total, values in zip(totals, ends, strict=True):
                    total[rows] += values[:, members].sum(axis=1, dtype=np.float64)
        sums = np.flatnonzero((count > 0) & (self._grid > 0))
        grid, outward = self._grid[sums], count[sums]
        least = np.maximum(np.floor(low[sums] / grid) - outward, -2 * MAX_STEPS)
        most = np.minimum(np.ceil(high[sums] / grid) + outward, 2 * MAX_STEPS)
        return sums, grid, least.astype(np.int64), most.astype(np.int64)


def ranges_of(plan: NoisePlan) -> Ranges:
    """Return the ranges of contributions under a plan."""
    return Ranges(plan.cloud.sums, plan.domain, np.array([o.grid for o in plan.outputs]))


@final
class Fallbacks:
    """``agents, from 1 -> what they contribute while they are absent``, in steps of the grids.

    It is that of the point of their public boxes nearest 0, rounded agent by agent like any
    contribution: a constant that nothing private enters. The grid is 0 where a sum has no noise.
    """

    def __init__(self, sums: Sums, domain: Sequence[Group], grid: Array) -> None:
        self._families, self._domain = sums.families, default_fallbacks(domain)
        self._first = np.cumsum([1, *(group.count for group in domain)])
        self._noisy, self._grid = grid > 0, np.where(grid > 0, grid, 1.0)
        self._total = lru_cache(maxsize=_ABSENCES)(self._total_of)

    def __call__(self, agents: frozenset[int]) -> Integers:
        """Return the total of these agents, one integer per sum; 0 for sums without noise."""
        return self._total(agents)

    def _total_of(self, agents: frozenset[int]) -> Integers:
        numbers, total = np.array(sorted(agents), dtype=np.int64), np.zeros(self._grid.size)
        ends = np.searchsorted(numbers, self._first)
        for index, group in enumerate(self._domain):
            places = numbers[ends[index] : ends[index + 1]] - self._first[index]
            if places.size:
                fleet = agent_fleet(self._domain, self._families, index, ZERO).some(places)
                point = group.lower[places]
                states = FleetStates(FleetKernel(fleet, point, point), point)
                total += states.contributions(total.size, self._grid)
        return np.where(self._noisy, total, 0.0).astype(np.int64)


def fallbacks_of(plan: NoisePlan) -> Fallbacks:
    """Return what absent agents contribute under a plan."""
    return Fallbacks(plan.cloud.sums, plan.domain, np.array([o.grid for o in plan.outputs]))


def with_bounds(
    groups: Sequence[Group], places: Integers, lower: Array, upper: Array
) -> Iterator[Group]:
    """Yield groups with the bounds of the agents at ``places``, given one after the other."""
    first = begin = 0
    for group in groups:
        rows_inside = places[(places >= first) & (places < first + group.count)] - first
        end = begin + rows_inside.size * group.dim
        ends = []
        for values, stated in ((lower, group.lower), (upper, group.upper)):
            bounds = np.array(stated)
            span = values[begin:end]
            if span.size != rows_inside.size * group.dim:
                raise MalformedError("bounds must fit the states")
            bounds[rows_inside] = span.reshape(rows_inside.size, group.dim)
            ends.append(read_only(bounds))
        yield replace(group, lower=ends[0], upper=ends[1])
        first, begin = first + group.count, end
    if not begin == lower.size == upper.size:
        raise MalformedError("bounds must fit the states")


def _run(numbers: Integers) -> slice | Integers:
    """The same as a slice if each number follows the one before."""
    if numbers.size and numbers[-1] - numbers[0] + 1 == numbers.size:
        return slice(int(numbers[0]), int(numbers[-1]) + 1)
    return numbers


def make_config(
    plan: NoisePlan,
    algorithm: Algorithm,
    *,
    rounds: int,
    noise: Noise,
    run_id: str,
    warm_start: str | None = None,
    series: SeriesRun | None = None,
) -> RunConfig:
    """Return the configuration of a run under a plan; ``warm_start`` is a fingerprint."""
    worst, goal = plan.guarantee(), plan.feasible
    outputs = [(o.kind, o.row, o.column, o.sigma) for o in plan.outputs]
    margins: tuple[Any, ...] = ()  # what a plan aims at; not what that costs, which is private
    feasible: dict[str, Any] | None = None
    if goal is not None:
        margins = (
            goal.margin,
            goal.band,
            goal.target.lower,
            goal.target.upper,
        )
        feasible = {"probability": goal.probability, "each_row": goal.each_row}
    return RunConfig(
        run_id=run_id,
        problem=plan.fingerprint,
        plan=fingerprint(outputs, plan.gdp_mu, plan.domain, *margins),
        algorithm=describe(algorithm),
        rounds=rounds,
        noise=noise,
        warm_start=warm_start,
        series=series,
        promise={
            "hide": plan.hide.kind,
            "radius": plan.radius(worst.agent),
            "rounds": plan.rounds,
            "agent": worst.name,
            "gdp_mu": worst.gdp_mu,
            "epsilon": worst.epsilon,
            "delta": worst.requested[1],
            "trust": plan.trust.kind,
            "feasible": feasible,
        },
    )


def setup_of(
    plan: NoisePlan,
    config: RunConfig,
    *,
    absent: frozenset[int] = frozenset(),
    again: bool = False,
) -> Setup:
    """Return what the state machine needs to know of a run; refuses what ``parties_of`` does."""
    states = plan.release is not None
    return Setup(
        config=config.text,
        rounds=config.rounds,
        agents=plan.cloud.agents,
        states=states,
        prices=plan.cloud.rows if states else plan.cloud.sums.count,
        party=parties_of(plan),
        split=config.split,
        absent=absent,
        series=config.series is not None,
        again=again,
    )


def check_halves(plan: NoisePlan, *, helper: bool, simulated: bool) -> None:
    """Refuse a plan for two halves where there is one, and the other way round."""
    split = isinstance(plan.trust, SplitCloud)
    if split and not helper:
        raise PrivacyError(
            "plan must trust one cloud, got one for a split cloud: without a helper this cloud "
            "would see every contribution; name the helper, or plan without trust=sv.SplitCloud()"
        )
    if helper and not split:
        words = "its noise is for one cloud"
        if plan.release is not None:
            words = f"its cloud works with every {plan.release.sent}"
        raise InputError(
            f"plan must be for a split cloud with a helper, got one that is not: {words}; "
            "use sv.plan with trust=sv.SplitCloud()"
        )
    if helper and simulated:
        raise InputError("seed must be left out with a helper, got one: its noise has no seed")


def check_request(plan: NoisePlan, rounds: int, straggler: Straggler) -> None:
    """Refuse a run that its plan does not cover."""
    if not 1 <= rounds <= plan.rounds:
        raise InputError(
            f"rounds must lie in 1..{plan.rounds}, which the plan covers, got rounds={rounds}: "
            "plan for more rounds"
        )
    if plan.feasible is not None and rounds != plan.rounds:
        raise InputError(
            f"rounds must be what the plan covers ({plan.rounds:,}) with feasible, whose margins "
            f"are for an average of so many, got rounds={rounds}: plan for these rounds"
        )
    if straggler == "hold" and isinstance(plan.hide, Trajectory):
        # A difference of b in one round, used in h more of them, is one of b sqrt(1 + h).
        raise PrivacyError(
            "straggler must be 'fallback' or 'wait' to hide a trajectory, got 'hold': what was "
            "said counts again in every round, so that differences add up to more than the radius; "
            "take one of the two, or plan with sv.Offset(...) or sv.Everything(...)"
        )
    if not plan.certified:
        raise PrivacyError("plan must keep what it promises; an undernoised plan is for study only")


def round_deadlines(
    straggler: Straggler,
    deadlines: tuple[float | None, float | None],
    defaults: tuple[float, float],
    choices: Sequence[str] = get_args(Straggler),
) -> tuple[float, float]:
    """Return the seconds that the first round of a process waits for agents, and every other one.

    They are infinite with "wait". The first round of a run that holds agents has all of them.
    """
    if straggler not in choices:
        raise InputError(f"straggler must be {' or '.join(map(repr, choices))}, got {straggler!r}")
    first, other = deadlines
    if straggler != "fallback" and first is not None:
        raise InputError(
            "first_deadline must be left out unless straggler='fallback', got "
            f"first_deadline={first} with {straggler!r}"
        )
    if straggler == "wait" and other is not None:
        raise InputError(
            "deadline must be left out with straggler='wait', which waits without end, got "
            f"deadline={other}"
        )
    for name, seconds in (("first_deadline", first), ("deadline", other)):
        if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
            raise InputError(f"{name} must be positive seconds, got {name}={seconds}")
    if straggler == "wait":
        return math.inf, math.inf
    other = defaults[1] if other is None else other
    if straggler == "hold":
        return other, other
    return defaults[0] if first is None else first, other


def require_times(*, apply_after: float, stall: float) -> None:
    """Refuse seconds that a cloud cannot wait."""
    if not 0.0 <= apply_after <= LONGEST_WAIT:  # NaN is refused, too
        raise InputError(
            f"apply_after must be 0 to {LONGEST_WAIT:.0f} seconds, got apply_after={apply_after}"
        )
    if not stall > 0:
        raise InputError(f"stall must be a positive number of seconds, got {stall}")


def round_key(keys: Path) -> bytes:
    """Return the key that signs receipts."""
    try:
        key = (keys / "round.key").read_bytes()
    except OSError:
        key = b""
    if len(key) != 32:
        raise IdentityError(
            f"{keys / 'round.key'} must hold the 32 bytes that identity init wrote: put it back"
        )
    return key
