"""What margins cost: the optimum with constraints moved in, less the optimum.

It takes everybody's objectives, so that whoever may see everything can predict it, and a cloud
cannot.
"""

from __future__ import annotations

from dataclasses import dataclass

from sottovoce.certificate.assumptions import SADDLE_LIMIT
from sottovoce.certificate.optimum import reference_optimum
from sottovoce.errors import SottovoceError
from sottovoce.privacy.narrowed import narrowed
from sottovoce.privacy.target import Target
from sottovoce.problem.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What margins are expected to cost.

    Attributes:
        optimum: the objective at the optimum as it was stated.
        more: how much larger it is with the margins.
    """

    optimum: float
    more: float


def margin_cost(problem: Problem | None, target: Target) -> Cost | None:
    """Return the cost of aiming at ``target`` instead of C; None if it cannot be worked out."""
    if problem is None or problem.size > SADDLE_LIMIT:
        return None
    try:
        best = reference_optimum(problem).objective
        kept = reference_optimum(problem.under(narrowed(problem.cloud, target))).objective
    except SottovoceError:
        return None
    return Cost(optimum=best, more=max(0.0, kept - best))
