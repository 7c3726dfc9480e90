"""What a solve was asked to do, checked and turned into arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.algorithm.algorithm import Algorithm, GradientSteps
from sottovoce.arguments import array, whole
from sottovoce.errors import InputError
from sottovoce.formula.canonical import add
from sottovoce.formula.expression import Expression, number
from sottovoce.kernels.cloud import PublicSum
from sottovoce.privacy.feasibility import answer_shares
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.problem import Problem
from sottovoce.simulation.layout import public_sums
from sottovoce.simulation.own_set import own_domain

if TYPE_CHECKING:
    from sottovoce.privacy.noise_plan import NoisePlan

_FINEST = 2.0**-60
_RECORDS = 1000
_TRANSCRIPT_LIMIT = 100_000_000
_COMPARED = 100_000  # rounds of an algorithm whose weights are looked at

QUANTITIES = (
    "error_x", "error_price", "violation", "residual", "objective", "last_error_x",
    "last_error_price",
)  # fmt: skip
"""What is measured at every recorded round, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Noise:
    """Which released numbers are noisy; the standard deviations come as data.

    Attributes:
        rows: the noisy sums, or rows of g, whose normals come first, in order.
        entries: the released gradient entries by (row, column), with the number of their normal.
    """

    rows: tuple[int, ...]
    entries: Mapping[tuple[int, int], int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setting:
    """A checked request.

    Attributes:
        rounds: how many rounds to run.
        runs: how many runs.
        seed: run r depends on (seed, r) alone.
        first: the number of the first run, from 0.
        start: x at the start, per group (count, d), before projection onto the domain.
        price0: prices, or multipliers, at the start.
        domain: the groups with the bounds that their agents keep to.
        noise: which released numbers are noisy.
        sigma: their standard deviations.
        grid: the public grid of each sum; empty if nothing is rounded to one.
        public: what is public of the sums: units, noise and what of C is aimed at.
        limits: the least and the largest value that C, as it was stated, allows every sum.
        stated: constraints over named agents whose sums do not show how much they are violated.
        saddle: x_hat and the prices there, if known.
        marks: after how many rounds to measure, in order.
        transcript: whether to keep every released number.
    """

    rounds: int
    runs: int
    seed: int
    first: int
    start: tuple[Array, ...]
    price0: Array
    domain: tuple[Group, ...]
    noise: Noise
    sigma: Array
    grid: Array
    public: PublicSum
    limits: tuple[Array, Array]
    stated: tuple[Expression, ...]
    saddle: tuple[Array, Array] | None
    marks: NDArray[np.int64]
    transcript: bool

    @property
    def numbers(self) -> range:
        """The numbers of the runs."""
        return range(self.first, self.first + self.runs)

    @property
    def released(self) -> int:
        """How many numbers a round releases."""
        return int(self.price0.size) + len(self.noise.entries)

    @property
    def gridded(self) -> bool:
        """Whether contributions are rounded to the public grid, as agents send them."""
        return self.grid.size > 0

    @property
    def row_sigma(self) -> Array:
        """The standard deviation of every sum, or row of g; 0 for none."""
        sigma = np.zeros(self.price0.size)
        sigma[list(self.noise.rows)] = self.sigma[: len(self.noise.rows)]
        return sigma

    def records(self, done: int, until: int) -> tuple[int, int]:
        """Which marks belong to rounds ``done + 1 .. until``; the start belongs to the first."""
        first, last = np.searchsorted(self.marks, [done, until], side="right")
        return (0 if done == 0 else int(first)), int(last)


class _Planned(NamedTuple):
    """What is the same in all solves of a problem with one plan, or with none."""

    domain: tuple[Group, ...]
    noise: Noise
    sigma: Array
    public: PublicSum


_known: WeakKeyDictionary[Problem, WeakKeyDictionary[NoisePlan | Problem, _Planned]]
_known = WeakKeyDictionary()


def setting(
    problem: Problem,
    plan: NoisePlan | None,
    algorithm: Algorithm,
    *,
    rounds: int,
    runs: int,
    seed: int,
    x0: ArrayLike | None,
    mu0: ArrayLike | None,
    record: ArrayLike | None,
    transcript: bool,
    saddle: tuple[Array, Array] | None,
) -> Setting:
    """Check what ``simulate`` was given; its docstring says what the arguments mean."""
    rounds, runs = whole("rounds", rounds, least=1), whole("runs", runs, least=1)
    seed = whole("seed", seed)
    if plan is not None and plan.fingerprint != problem.cloud.fingerprint:
        raise InputError(
            "plan must be made for this problem's constraints and boxes, got one for another "
            f"problem (fingerprints {plan.fingerprint} and {problem.cloud.fingerprint}): "
            "certify this problem and plan again"
        )
    if plan is not None and rounds > plan.rounds:
        raise InputError(
            f"rounds must be at most what the plan covers ({plan.rounds:,}), got {rounds:,}: plan "
            "again with rounds="
        )
    gradient = isinstance(algorithm, GradientSteps)
    _check_release(problem, plan, gradient=gradient)
    if plan is not None and plan.feasible is not None:
        _check_answer(plan, algorithm, rounds)
    planned = _planned(problem, plan)
    request = Setting(
        rounds=rounds,
        runs=runs,
        seed=seed,
        first=0,
        start=_start(problem, x0),
        price0=_multipliers(problem, mu0, gradient=gradient),
        domain=planned.domain,
        noise=planned.noise,
        sigma=planned.sigma,
        grid=np.zeros(0) if gradient or plan is None else _grids(plan),
        public=planned.public,
        limits=(np.array(problem.cloud.sums.lower), np.array(problem.cloud.sums.upper)),
        stated=() if gradient else _stated(problem),
        saddle=saddle,
        marks=_marks(record, rounds),
        transcript=transcript,
    )
    if transcript and rounds * runs * request.released > _TRANSCRIPT_LIMIT:
        raise InputError(
            f"transcript must have at most {_TRANSCRIPT_LIMIT:,} numbers, got rounds x runs x "
            f"outputs = {rounds} x {runs} x {request.released}: ask for fewer rounds or runs"
        )
    return request


def _check_release(problem: Problem, plan: NoisePlan | None, *, gradient: bool) -> None:
    """Refuse a plan that releases other numbers than the algorithm works with."""
    if gradient and any(family.equality for family in problem.constraints):
        raise InputError("gradient steps know no equalities, got one: use the default algorithm")
    if plan is None:
        return
    if gradient and plan.release is None and not problem.cloud.sums.free:
        raise InputError(
            "gradient steps need values and gradients of constraints that mix agents, got a plan "
            "that releases sums: use sv.paper.plan, or the default algorithm"
        )
    if not gradient and plan.release is not None:
        raise InputError(
            "the default algorithm works with sums, got a plan that releases values and gradients "
            "of constraints: use sv.plan, or sv.paper.Tikhonov()"
        )


def _check_answer(plan: NoisePlan, algorithm: Algorithm, rounds: int) -> None:
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


def _grids(plan: NoisePlan) -> Array:
    """The grid of every sum; one that nobody moves, and that has no noise, is hardly rounded."""
    return np.array([o.grid if o.grid > 0 else _FINEST for o in plan.outputs])


def _stated(problem: Problem) -> tuple[Expression, ...]:
    found = zip(problem.constraints, problem.cloud.sums.origins, strict=True)
    return tuple(
        add(family.rest[0], number(float(family.offset[0])))
        for family, origin in found
        if not (family.sums or origin.as_stated)
    )


def _planned(problem: Problem, plan: NoisePlan | None) -> _Planned:
    """What a plan makes of a problem, worked out for the first of its solves."""
    known = _known.setdefault(problem, WeakKeyDictionary())
    key = problem if plan is None else plan
    if key not in known:
        domain = problem.groups if plan is None else plan.domain
        noise, sigma = _noise(plan)
        known[key] = _Planned(
            domain=own_domain(problem.groups, domain, problem.local),
            noise=noise,
            sigma=sigma,
            public=public_sums(
                problem.cloud.sums,
                domain,
                None if plan is None else plan.released_sigma,
                None if plan is None or plan.feasible is None else plan.feasible.target,
            ),
        )
    return known[key]


def _noise(plan: NoisePlan | None) -> tuple[Noise, Array]:
    if plan is None:
        return Noise(rows=(), entries={}), np.zeros(0)
    rows = [o.row for o in plan.outputs if o.kind != "gradient" and o.sigma > 0]
    entries = [(o.row, o.column) for o in plan.outputs if o.column is not None]
    noise = Noise(
        rows=tuple(rows), entries={entry: len(rows) + e for e, entry in enumerate(entries)}
    )
    return noise, plan.released_sigma[plan.sigma > 0]


def _start(problem: Problem, x0: ArrayLike | None) -> tuple[Array, ...]:
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


def _multipliers(problem: Problem, mu0: ArrayLike | None, *, gradient: bool) -> Array:
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


def _marks(record: Any, rounds: int) -> NDArray[np.int64]:
    if record is None:
        return _spaced(rounds).copy()
    given = np.unique(array("record", record, f"a list of rounds in 0..{rounds}"))
    wrong = ~((given >= 0) & (given <= rounds) & (given == np.floor(given)))  # NaN is wrong too
    if np.any(wrong):
        raise InputError(
            f"record must list whole numbers of rounds in 0..{rounds}, got {given[wrong][0]:g}"
        )
    return given.astype(np.int64)


@lru_cache(maxsize=32)
def _spaced(rounds: int) -> NDArray[np.int64]:
    spaced = np.geomspace(1, rounds, _RECORDS)
    return np.unique(np.concatenate([[0], np.round(spaced)]).astype(np.int64))
