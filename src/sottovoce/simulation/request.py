"""What a simulation is asked to do, checked and turned into arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.algorithm.algorithm import Algorithm, GradientSteps, require_release
from sottovoce.algorithm.dual_averaging import steering
from sottovoce.algorithm.public_sum import PublicSum, public_sums
from sottovoce.arguments import array, entries
from sottovoce.errors import InputError
from sottovoce.formula.canonical import add
from sottovoce.formula.expression import Expression, number
from sottovoce.privacy.feasibility import answer_shares
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.feasible import own_domain
from sottovoce.problem.fingerprint import fingerprint
from sottovoce.problem.local import require_no_rows
from sottovoce.problem.problem import Problem
from sottovoce.simulation.result import SADDLE_STATES

if TYPE_CHECKING:
    from sottovoce.privacy.noise_plan import NoisePlan

_FINEST = 2.0**-60
_RECORDS = 1000
_TRANSCRIPT_LIMIT = 100_000_000
_COMPARED = 100_000  # rounds of an algorithm whose weights are looked at


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Planned:
    """What is the same in all simulations of a problem with one plan, or with none.

    Attributes:
        domain: the groups with the bounds that their agents keep to.
        sigma: the standard deviation of noisy sums, or rows of g, by number.
        entries: those of the released gradient entries by (row, column).
        grid: the public grid of each sum; None if nothing is rounded to one.
        public: what is public of the sums: units, noise and what of C is aimed at.
    """

    domain: tuple[Group, ...]
    sigma: Mapping[int, float]
    entries: Mapping[tuple[int, int], float]
    grid: Array | None
    public: PublicSum


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulationRequest:
    """A checked request with all that it is about, ready to be sent anywhere.

    Attributes:
        problem: what to solve.
        plan: its noise; None for none.
        planned: what the plan makes of the problem.
        algorithm: whose rounds to take.
        rounds: how many.
        runs: how many runs.
        seed: run r depends on (seed, r) alone.
        first: the number of the first run, from 0.
        start: x at the start, per group (count, d), before projection onto the domain.
        price0: prices, or multipliers, at the start.
        saddle: x_hat and the prices there, if known.
        marks: after how many rounds to measure, in order.
        transcript: whether to keep every released number.
    """

    problem: Problem
    plan: NoisePlan | None
    planned: Planned
    algorithm: Algorithm
    rounds: int
    runs: int
    seed: int
    first: int = 0
    start: tuple[Array, ...]
    price0: Array
    saddle: tuple[Array, Array] | None
    marks: NDArray[np.int64]
    transcript: bool

    def __post_init__(self) -> None:
        if self.transcript and self.rounds * self.runs * self.released > _TRANSCRIPT_LIMIT:
            raise InputError(
                f"transcript must have at most {_TRANSCRIPT_LIMIT:,} numbers, got rounds x runs x "
                f"outputs = {self.rounds} x {self.runs} x {self.released}: ask for fewer rounds or "
                "runs"
            )

    @property
    def gradient(self) -> bool:
        """Whether by gradient steps, whose prices are the constraints' multipliers."""
        return isinstance(self.algorithm, GradientSteps)

    @property
    def released(self) -> int:
        """How many numbers a round releases."""
        return int(self.price0.size) + len(self.planned.entries)

    @property
    def gridded(self) -> bool:
        """Whether contributions are rounded to the public grid, as agents send them."""
        return self.plan is not None and not self.gradient

    @property
    def grid(self) -> Array | None:
        """The public grid of each sum; None if contributions are not rounded."""
        return self.planned.grid if self.gridded else None

    @property
    def sigma(self) -> Array:
        """The standard deviation of every sum, or row of g; 0 for none."""
        sigma = np.zeros(self.price0.size)
        sigma[list(self.planned.sigma)] = list(self.planned.sigma.values())
        return sigma

    @property
    def stated(self) -> tuple[Expression, ...]:
        """Constraints over named agents whose sums do not show how much they are violated."""
        problem = self.problem
        if self.gradient:
            return ()
        return tuple(
            add(family.rest[0], number(float(family.offset[0])))
            for family, origin in zip(problem.constraints, problem.cloud.sums.origins, strict=True)
            if not (family.sums or origin.as_stated)
        )

    def steps(self, k: NDArray[np.int64]) -> Array:
        """The numbers of rounds k, a row each: the answer's weight and the gain of steering.

        Of gradient steps the step and the regularisation.
        """
        if isinstance(self.algorithm, GradientSteps):
            return self.algorithm.schedule(k)
        share = self.algorithm.share(k, self.rounds, noisy=self.gridded)
        steered = self.plan is not None and self.plan.feasible is not None
        steer = steering(k, self.rounds) if steered else np.zeros(share.shape)
        return np.stack([share, steer], axis=1)

    def records(self, done: int, until: int) -> tuple[int, int]:
        """Which marks belong to rounds ``done + 1 .. until``; the start belongs to the first."""
        first, last = np.searchsorted(self.marks, [done, until], side="right")
        return (0 if done == 0 else int(first)), int(last)

    def identity(self) -> str:
        """A hash of everything that results depend on."""
        planned, public = self.planned, self.planned.public
        return fingerprint(
            self.problem.fingerprint,
            repr(self.algorithm),
            (self.rounds, self.runs, self.first, self.seed, self.transcript),
            (np.array(list(planned.entries), dtype=np.int64), list(planned.entries.values())),
            (self.start, self.price0, planned.domain, self.sigma, self.saddle, self.marks),
            (public.lower, public.upper, public.unit, public.noisy),
        )


_known: WeakKeyDictionary[Problem, WeakKeyDictionary[NoisePlan | Problem, Planned]]
_known = WeakKeyDictionary()


def planned_rounds(plan: NoisePlan | None) -> int:
    """Return how many rounds to take by default: those that the plan names."""
    if plan is None:
        raise InputError("rounds must be given without a plan, got none: say rounds=1000")
    return plan.named_rounds()


def require_simulable(
    problem: Problem, plan: NoisePlan | None, algorithm: Algorithm, rounds: int
) -> None:
    """Refuse an algorithm or a plan that does not fit the problem, or each other."""
    if isinstance(algorithm, GradientSteps):
        require_no_rows(problem.local)
        if any(family.equality for family in problem.constraints):
            raise InputError(
                "gradient steps know no equalities, got one: use the default algorithm"
            )
        if any(code is not None for code in problem.code):
            raise InputError(
                "an objective that is code needs an algorithm with prices, got gradient steps: use "
                "the default algorithm"
            )
    if plan is None:
        return
    plan.require_problem(problem)
    if rounds > plan.rounds:
        raise InputError(
            f"rounds must be at most what the plan covers ({plan.rounds:,}), got {rounds:,}: plan "
            "again with rounds="
        )
    require_release(plan, algorithm, simulated=True)
    if plan.feasible is not None:
        _require_answer(plan, algorithm, rounds)


def _require_answer(plan: NoisePlan, algorithm: Algorithm, rounds: int) -> None:
    """Refuse answers that are other averages than the plan's margins are for."""
    if rounds != plan.rounds:
        raise InputError(
            f"rounds must be what the plan covers ({plan.rounds:,}) with feasible, whose margins "
            f"are for an average of so many, got {rounds:,}: plan again with rounds="
        )
    if isinstance(algorithm, GradientSteps):
        raise InputError(
            "feasible needs an algorithm with prices, whose answer is an average of what was "
            "released, got gradient steps: use the default algorithm"
        )
    first = np.arange(1, min(rounds, _COMPARED) + 1)
    if not np.array_equal(algorithm.share(first, rounds, noisy=True), answer_shares(first, rounds)):
        raise InputError(
            "feasible needs the weights that sottovoce.privacy.feasibility gives to rounds, got an "
            f"algorithm with others: let share of {type(algorithm).__name__} return answer_shares"
        )


def planned(problem: Problem, plan: NoisePlan | None) -> Planned:
    """Return what a plan makes of a problem, computed for the first of its simulations."""
    known = _known.setdefault(problem, WeakKeyDictionary())
    key = problem if plan is None else plan
    if key not in known:
        domain = problem.groups if plan is None else plan.domain
        outputs = [] if plan is None else list(zip(plan.outputs, plan.released_sigma, strict=True))
        target = None if plan is None or plan.feasible is None else plan.feasible.target
        sigma = None if plan is None else plan.released_sigma
        known[key] = Planned(
            domain=own_domain(problem.groups, domain, problem.local),
            sigma={o.row: float(s) for o, s in outputs if o.kind != "gradient" and o.sigma > 0},
            entries={(o.row, o.column): float(s) for o, s in outputs if o.column is not None},
            # A sum that no agent moves, and that has no noise, is hardly rounded.
            grid=None if plan is None else np.array([o.grid or _FINEST for o, _ in outputs]),
            public=public_sums(problem.cloud.sums, domain, sigma, target),
        )
    return known[key]


def known_pair(
    problem: Problem, given: tuple[ArrayLike, ArrayLike] | None, *, gradient: bool
) -> tuple[Array, Array] | None:
    """Return x_hat and the prices there: the pair given, or computed for problems not too large."""
    if given is None:
        from sottovoce.certificate.optimum import known_saddle, saddle_prices

        found = known_saddle(problem, most=SADDLE_STATES)
        if found is None:
            return None
        prices = found.mu if gradient else saddle_prices(problem, found)
        return np.array(found.x), np.array(prices)
    rows = problem.rows if gradient else problem.cloud.sums.count
    wanted = f"a pair of {problem.size} states and {rows} prices"
    pair = entries("saddle", given, wanted)
    if len(pair) != 2:
        raise InputError(f"saddle must be {wanted}, got {len(pair)} entries")
    x, prices = (array("saddle", part, wanted) for part in pair)
    if x.shape != (problem.size,) or prices.shape != (rows,):
        raise InputError(
            f"saddle must be a pair of {problem.size} states and {rows} prices, got shapes "
            f"{x.shape} and {prices.shape}"
        )
    return x, prices


def start_states(problem: Problem, x0: ArrayLike | None) -> tuple[Array, ...]:
    """Return x at the start, per group, of one vector of all states; by default the problem's."""
    if x0 is None:
        return problem.start
    flat = array("x0", x0, f"one vector of all {problem.size} states")
    if flat.shape != (problem.size,):
        raise InputError(
            f"x0 must be one vector of all {problem.size} states, got shape {flat.shape}"
        )
    ends = np.cumsum([g.count * g.dim for g in problem.groups])
    parts = np.split(flat, ends[:-1])
    start = []
    for group, part in zip(problem.groups, parts, strict=True):
        own = part.reshape(group.count, group.dim)
        inside = (own >= group.lower) & (own <= group.upper)
        if not inside.all():
            agent = int(np.argmin(inside.all(axis=1)))
            raise InputError(
                f"x0 must lie in X, got a state of {group.label(agent)} outside its bounds: "
                "move it inside"
            )
        start.append(own)
    return tuple(start)


def start_prices(problem: Problem, mu0: ArrayLike | None, *, gradient: bool) -> Array:
    """Return the prices at the start, which are 0, or the multipliers of gradient steps."""
    if mu0 is not None and not gradient:
        raise InputError(
            "mu0 must be left out unless the algorithm is sv.paper.Tikhonov(): prices start at 0"
        )
    if not gradient:
        return np.zeros(problem.cloud.sums.count)
    mu = np.zeros(problem.rows) if mu0 is None else array("mu0", mu0, "plain numbers")
    if mu.shape != (problem.rows,):
        raise InputError(
            f"mu0 must be {problem.rows} numbers, one per constraint, got shape {mu.shape}"
        )
    if not np.all((mu >= 0) & np.isfinite(mu)):
        raise InputError(f"mu0 must be finite and not negative, got {mu.min():g}")
    return mu


def recorded_rounds(record: ArrayLike | None, rounds: int) -> NDArray[np.int64]:
    """Return after how many rounds to measure, in order; by default about 1,000, log-spaced."""
    if record is None:
        return _spaced(rounds).copy()
    given = np.unique(array("record", record, f"a list of rounds in 0..{rounds}"))
    wrong = ~((given >= 0) & (given <= rounds) & (given == np.floor(given)))  # NaN is wrong too
    if np.any(wrong):
        raise InputError(
            f"record must list rounds as integers in 0..{rounds}, got {given[wrong][0]:g}"
        )
    return given.astype(np.int64)


@lru_cache(maxsize=32)
def _spaced(rounds: int) -> NDArray[np.int64]:
    spaced = np.geomspace(1, rounds, _RECORDS)
    return np.unique(np.concatenate([[0], np.round(spaced)]).astype(np.int64))
