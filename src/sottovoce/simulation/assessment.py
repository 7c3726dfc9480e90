"""What a result means for its problem: objective, constraints, accuracy and what was promised."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.problem.agents import Array, read_only
from sottovoce.problem.constraints import equalities
from sottovoce.problem.problem import Problem

if TYPE_CHECKING:
    from sottovoce.privacy.noise_plan import NoisePlan

SADDLE_STATES = 3000
"""States of a problem up to which its saddle point is worked out for nothing but comparison."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assessment:
    """What the answers of all runs are worth; small values that are public, and the answers' own.

    Attributes:
        groups: name, number of agents and components of each group of agents.
        row_labels: what people call the constraints.
        equality: which of them must be 0.
        scale: what a violation of each is measured against (``certify.scales``).
        rows: ``g_j`` of the answer, shape (runs, m).
        objective: ``sum_i f_i`` of the answer, shape (runs,).
        best: the objective at the saddle point; not a number if that is not known.
        price_labels: what people call what has a price: the sums, or with gradient steps the
            constraints.
        output_labels: what people call the released numbers.
        sigma: the standard deviation of their noise, empty without noise.
        deviation: the standard deviation of every component of x, from sigma and T at the saddle
            point (``privacy.limit``), not a number where no curvature holds a component; empty if
            the saddle point is not known or there is no noise.
        promise: what the worst-off agent is promised where the plan is carried out with secure
            noise; empty without a plan.
    """

    groups: tuple[tuple[str, int, int], ...]
    row_labels: tuple[str, ...]
    equality: NDArray[np.bool_]
    scale: Array
    rows: Array
    objective: Array
    best: float
    price_labels: tuple[str, ...]
    output_labels: tuple[str, ...]
    sigma: Array
    deviation: Array
    promise: str

    def state_labels(self) -> Iterator[str]:
        """What people call the components of x, in order."""
        for name, count, dim in self.groups:
            for agent in range(count):
                own = name if count == 1 else f"{name}{agent + 1}"
                yield from ([own] if dim == 1 else (f"{own}[{c + 1}]" for c in range(dim)))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its arrays, for a file."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {k: v for k, v in values.items() if isinstance(v, np.ndarray)}

    def facts(self) -> dict[str, Any]:
        """The rest of it, as JSON has it."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.arrays()}

    @staticmethod
    def read(facts: dict[str, Any], arrays: dict[str, Any]) -> Assessment:
        """Return it from what ``facts`` and ``arrays`` gave."""
        listed: dict[str, Any] = {
            name: tuple(tuple(e) if isinstance(e, list) else e for e in value)
            if isinstance(value, list)
            else value
            for name, value in facts.items()
        }
        return Assessment(**listed, **arrays)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Origin:
    """What a result came from, as long as it has not left its process.

    Attributes:
        problem: what was solved.
        plan: its noise.
        gradient: whether by gradient steps, whose prices are the constraints' multipliers.
    """

    problem: Problem
    plan: NoisePlan | None
    gradient: bool


def assess(origin: Origin, x: Array, rounds: int) -> Assessment:
    """Return what answers x of all runs, shape (runs, N), mean after so many rounds."""
    from sottovoce.certificate.contributions import row_scales
    from sottovoce.problem.numeric import Numeric

    problem, plan, sums = origin.problem, origin.plan, origin.problem.cloud.sums
    at = Numeric(problem)
    best, deviation = _accuracy(problem, plan, rounds)
    worst = None if plan is None else plan.guarantee()
    return Assessment(
        groups=tuple((g.name, g.count, g.dim) for g in problem.groups),
        row_labels=tuple(problem.cloud.row_labels()),
        equality=equalities(problem.constraints),
        scale=row_scales(problem.cloud),
        rows=read_only([at.constraints(one) for one in x]),
        objective=read_only([at.objective(one) for one in x]),
        best=best,
        price_labels=tuple(problem.cloud.row_labels() if origin.gradient else sums.labels()),
        output_labels=() if plan is None else tuple(o.name for o in plan.outputs),
        sigma=np.zeros(0) if plan is None else read_only(plan.released_sigma),
        deviation=deviation,
        promise="" if worst is None else str(worst),
    )


def _accuracy(problem: Problem, plan: NoisePlan | None, rounds: int) -> tuple[float, Array]:
    """The best objective, and the standard deviation of the answer, where they are known."""
    from sottovoce.certificate.optimum import known_saddle
    from sottovoce.privacy.limit import accuracy_limit

    saddle = known_saddle(problem, most=SADDLE_STATES)
    if saddle is None:
        return np.nan, np.zeros(0)
    if plan is None or not np.any(plan.sigma):
        return saddle.objective, np.zeros(0)
    least = accuracy_limit(problem, plan, max(rounds, 1), saddle=saddle)
    deviation = np.array(least.x_each)
    deviation[list(least.flat)] = np.nan
    return saddle.objective, deviation
