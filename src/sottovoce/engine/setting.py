"""What a solve was asked to do, checked and turned into arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.arguments import array, whole
from sottovoce.certify.certificate import certify
from sottovoce.certify.gradients import gradient_entries
from sottovoce.engine.source import Noise
from sottovoce.errors import InputError
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.problem import Problem

if TYPE_CHECKING:
    from sottovoce.privacy.plan import NoisePlan

_RECORDS = 1000
_TRANSCRIPT_LIMIT = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setting:
    """A checked request.

    Attributes:
        rounds: how many rounds to run.
        runs: how many runs.
        seed: run r depends on (seed, r) alone.
        start: x at the start, per group (count, d), before projection onto the domain.
        mu0: mu at the start.
        domain: the groups with the boxes that states are projected on.
        noise: which released numbers are noisy.
        sigma: their standard deviations.
        coupled: the gradient entries (row, column) that agents who think need from the cloud, each
            with its place in ``slopes``.
        slopes: how fast those entries can change when all agents move.
        saddle: x_hat and mu_hat, if known.
        marks: after how many rounds to measure, in order.
        transcript: whether to keep every released number.
    """

    rounds: int
    runs: int
    seed: int
    start: tuple[Array, ...]
    mu0: Array
    domain: tuple[Group, ...]
    noise: Noise
    sigma: Array
    coupled: Mapping[tuple[int, int], int]
    slopes: Array
    saddle: tuple[Array, Array] | None
    marks: NDArray[np.int64]
    transcript: bool

    @property
    def released(self) -> int:
        """How many numbers a round releases."""
        return int(self.mu0.size) + len(self.noise.entries)

    def records(self, done: int, until: int) -> tuple[int, int]:
        """Which marks belong to rounds ``done + 1 .. until``; the start belongs to the first."""
        first, last = np.searchsorted(self.marks, [done, until], side="right")
        return (0 if done == 0 else int(first)), int(last)


def setting(
    problem: Problem,
    plan: NoisePlan | None,
    *,
    thinks: bool,
    rounds: int,
    runs: int,
    seed: int,
    x0: ArrayLike | None,
    mu0: ArrayLike | None,
    record: ArrayLike | None,
    transcript: bool,
    saddle: tuple[Array, Array] | None,
) -> Setting:
    """Check what ``solve`` was given; its docstring says what the arguments mean.

    ``thinks`` says whether the algorithm's agents minimise at home.
    """
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
    noise, sigma = _noise(plan)
    slopes = coupled_slopes(problem, plan) if thinks else {}
    request = Setting(
        rounds=rounds,
        runs=runs,
        seed=seed,
        start=_start(problem, x0),
        mu0=_multipliers(problem, mu0),
        domain=problem.groups if plan is None else plan.domain,
        noise=noise,
        sigma=sigma,
        coupled={entry: e for e, entry in enumerate(slopes)},
        slopes=np.array(list(slopes.values()), dtype=np.float64),
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


def _noise(plan: NoisePlan | None) -> tuple[Noise, Array]:
    if plan is None:
        return Noise(rows=(), entries={}), np.zeros(0)
    rows = np.flatnonzero(plan.sigma_g > 0)
    entries = zip(plan.gradient_rows.tolist(), plan.gradient_columns.tolist(), strict=True)
    noise = Noise(
        rows=tuple(rows.tolist()),
        entries={entry: rows.size + e for e, entry in enumerate(entries)},
    )
    return noise, np.concatenate([plan.sigma_g[rows], plan.gradient_sigma])


def coupled_slopes(problem: Problem, plan: NoisePlan | None) -> dict[tuple[int, int], float]:
    """Return ``sum_l S[entry, l]`` of the entries that no agent can work out at home."""
    needed = [(e.row, e.column) for e in gradient_entries(problem.cloud) if e.kind == "released"]
    known: dict[tuple[int, int], float] = {}
    if plan is not None:
        entries = zip(plan.gradient_rows.tolist(), plan.gradient_columns.tolist(), strict=True)
        known = dict(zip(entries, plan.gradient_slope.tolist(), strict=True))
    if not known.keys() >= set(needed):
        certificate = certify(problem.cloud)
        totals = certificate.sensitivity.totals()[problem.rows :].tolist()
        known |= dict(zip(((e.row, e.column) for e in certificate.released), totals, strict=True))
    return {entry: known[entry] for entry in needed}


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


def _multipliers(problem: Problem, mu0: ArrayLike | None) -> Array:
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
        spaced = np.geomspace(1, rounds, _RECORDS)
        return np.unique(np.concatenate([[0], np.round(spaced)]).astype(np.int64))
    given = np.unique(array("record", record, f"a list of rounds in 0..{rounds}"))
    wrong = ~((given >= 0) & (given <= rounds) & (given == np.floor(given)))  # NaN is wrong too
    if np.any(wrong):
        raise InputError(
            f"record must list whole numbers of rounds in 0..{rounds}, got {given[wrong][0]:g}"
        )
    return given.astype(np.int64)
