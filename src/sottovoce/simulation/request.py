"""What a simulation is asked to do, checked and turned into arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias, final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.algorithm.algorithm import Algorithm, GradientSteps, require_release
from sottovoce.algorithm.dual_averaging import steering
from sottovoce.arguments import array, entries
from sottovoce.errors import InputError
from sottovoce.privacy.feasibility import answer_shares
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.agents import Array
from sottovoce.problem.feasible import own_domain
from sottovoce.problem.local import require_no_rows
from sottovoce.problem.problem import Problem
from sottovoce.simulation.result import SADDLE_STATES

Saddle: TypeAlias = tuple[Array, Array]
_RECORDS = 1000
_TRANSCRIPT_LIMIT = 100_000_000
_COMPARED = 100_000  # rounds of an algorithm whose weights are looked at


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulationRequest:
    """A checked request with all that it is about, ready to be sent anywhere.

    Attributes:
        first: the number of the first run, from 0; run r depends on (seed, r) alone.
        start: x at the start, per group (count, d), before projection onto the domain.
        price0: prices, or multipliers, at the start.
        saddle: x_hat and the prices there, if known.
        marks: after how many rounds to measure, in order.
    """

    problem: Problem
    plan: NoisePlan | None
    algorithm: Algorithm
    rounds: int
    runs: int
    seed: int
    first: int = 0
    start: tuple[Array, ...]
    price0: Array
    saddle: Saddle | None
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
        return int(self.price0.size) if self.plan is None else len(self.plan.outputs)

    def steps(self, k: NDArray[np.int64]) -> Array:
        """The numbers of rounds k, a row each: the answer's weight and the gain of steering.

        Of gradient steps the step and the regularisation.
        """
        if isinstance(self.algorithm, GradientSteps):
            return self.algorithm.schedule(k)
        share = self.algorithm.share(k, self.rounds, noisy=self.plan is not None)
        steered = self.plan is not None and self.plan.feasible is not None
        steer = steering(k, self.rounds) if steered else np.zeros(share.shape)
        return np.stack([share, steer], axis=1)

    def records(self, done: int, until: int) -> tuple[int, int]:
        """Which marks belong to rounds ``done + 1 .. until``; the start belongs to the first."""
        first, last = np.searchsorted(self.marks, [done, until], side="right")
        return (0 if done == 0 else int(first)), int(last)


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
        require_steppable(problem)
    if plan is None:
        return
    plan.require_problem(problem)
    if rounds > plan.rounds:
        raise InputError(
            f"rounds must be at most what the plan covers ({plan.rounds:,}), got {rounds:,}: plan "
            "again with rounds="
        )
    require_release(plan, algorithm, simulated=True)
    own_domain(problem.groups, plan.domain, problem.local)  # refuses sets that miss the domain
    if plan.feasible is not None:
        _require_answer(plan, algorithm, rounds)


def require_steppable(problem: Problem) -> None:
    """Refuse gradient steps where the paper's algorithm has none: local rows, equalities, code."""
    require_no_rows(problem.local)
    if any(family.equality for family in problem.constraints):
        raise InputError("gradient steps know no equalities, got one: use the default algorithm")
    if any(code is not None for code in problem.code):
        raise InputError(
            "an objective that is code needs an algorithm with prices, got gradient steps: use "
            "the default algorithm"
        )


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


# The saddle point belongs to the problem, with prices or with multipliers.
_saddles: WeakKeyDictionary[Problem, dict[bool, Saddle | None]] = WeakKeyDictionary()


def known_pair(
    problem: Problem, pair: tuple[ArrayLike, ArrayLike] | None, *, gradient: bool
) -> Saddle | None:
    """Return x_hat and the prices there: the pair given, or computed for problems not too large."""
    if pair is None:
        known = _saddles.setdefault(problem, {})
        if gradient not in known:
            known[gradient] = _computed_pair(problem, gradient=gradient)
        return known[gradient]
    rows = problem.rows if gradient else problem.cloud.sums.count
    wanted = f"a pair of {problem.size} states and {rows} prices"
    both = entries("saddle", pair, wanted)
    if len(both) != 2:
        raise InputError(f"saddle must be {wanted}, got {len(both)} entries")
    x, prices = (array("saddle", part, wanted) for part in both)
    if x.shape != (problem.size,) or prices.shape != (rows,):
        raise InputError(f"saddle must be {wanted}, got shapes {x.shape} and {prices.shape}")
    return x, prices


def _computed_pair(problem: Problem, *, gradient: bool) -> Saddle | None:
    from sottovoce.certificate.optimum import known_saddle, saddle_prices

    saddle = known_saddle(problem, most=SADDLE_STATES)
    if saddle is None:
        return None
    prices = saddle.mu if gradient else saddle_prices(problem, saddle)
    return np.array(saddle.x), np.array(prices)


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
        states = part.reshape(group.count, group.dim)
        inside = (states >= group.lower) & (states <= group.upper)
        if not inside.all():
            agent = int(np.argmin(inside.all(axis=1)))
            raise InputError(
                f"x0 must lie in X, got a state of {group.label(agent)} outside its bounds: "
                "move it inside"
            )
        start.append(states)
    return tuple(start)


def start_prices(problem: Problem, mu0: ArrayLike | None, *, gradient: bool) -> Array:
    """Return the prices at the start, which are 0, or the multipliers of gradient steps."""
    if mu0 is not None and not gradient:
        raise InputError(
            "mu0 must be left out unless the algorithm is sv.paper.Tikhonov(): prices start at 0"
        )
    if not gradient:
        return np.zeros_like(problem.cloud.sums.lower)
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
    marks = np.unique(array("record", record, f"a list of rounds in 0..{rounds}"))
    wrong = ~((marks >= 0) & (marks <= rounds) & (marks == np.floor(marks)))  # NaN is wrong too
    if np.any(wrong):
        raise InputError(
            f"record must list rounds as integers in 0..{rounds}, got {marks[wrong][0]:g}"
        )
    return marks.astype(np.int64)


@lru_cache(maxsize=32)
def _spaced(rounds: int) -> NDArray[np.int64]:
    spaced = np.geomspace(1, rounds, _RECORDS)
    return np.unique(np.concatenate([[0], np.round(spaced)]).astype(np.int64))
