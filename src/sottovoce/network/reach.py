"""Whether the sampler can release every value an output may take, asked before the first round.

A refusal in the middle of a run would tell that a value was unusually large.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sparse
import sympy as sp

from sottovoce.certify.interval import Interval, evaluate
from sottovoce.errors import PrivacyError
from sottovoce.network.outputs import released_formulas
from sottovoce.privacy.plan import NoisePlan
from sottovoce.privacy.sampler import reach_of
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.constraints import FleetSum


def check_reach(plan: NoisePlan) -> None:
    """Refuse a plan under which ``|g_j|`` or a released gradient could exceed the sampler's reach.

    Raises:
        PrivacyError: an output may lie more than 2^25 sigma from zero.
    """
    size = np.concatenate([_rows(plan), _entries(plan)])
    sigma = plan.sigma
    noisy = sigma > 0
    wrong = np.zeros(size.size, dtype=bool)
    wrong[noisy] = ~(size[noisy] <= reach_of(sigma[noisy]))
    if wrong.any():
        raise PrivacyError(
            f"every output must lie within 2^25 sigma of zero, output {int(np.argmax(wrong)) + 1} "
            "may not: its noise is too small for its size; shift or scale the constraint"
        )


def _rows(plan: NoisePlan) -> Array:
    boxes = {group.name: group for group in plan.domain}
    named = _named(plan)
    sizes: list[float] = []
    for family in plan.cloud.constraints:
        size = np.abs(family.offset)
        for row, g in enumerate(family.rest):
            size[row] += _magnitude(g, named)
        for part in family.sums:
            size += _of_sum(part, boxes[part.group.name])
        sizes += size.tolist()
    return np.array(sizes)


def _entries(plan: NoisePlan) -> Array:
    named = _named(plan)
    return np.array([_magnitude(e, named) for e in released_formulas(plan)], dtype=np.float64)


def _named(plan: NoisePlan) -> dict[sp.Symbol, Interval]:
    return {
        s: Interval(lower=g.lower[:, c], upper=g.upper[:, c])
        for g in plan.domain
        if g.count == 1
        for c, s in enumerate(g.symbols)
    }


def _magnitude(expr: sp.Expr, box: dict[sp.Symbol, Interval]) -> float:
    return float(evaluate(expr, box)[expr].magnitude.max())


def _of_sum(part: FleetSum, group: Group) -> Array:
    box = {
        s: Interval(lower=group.lower[:, c], upper=group.upper[:, c])
        for c, s in enumerate(group.symbols)
    } | {s: Interval(lower=a, upper=a) for s, a in group.parameters.items()}
    each = np.stack(
        [np.broadcast_to(evaluate(h, box)[h].magnitude, (group.count,)) for h in part.terms]
    )
    if part.weights is None:
        return np.asarray(each.sum(axis=1))
    weights = abs(part.weights) if sparse.issparse(part.weights) else np.abs(part.weights)
    return np.asarray(weights @ each.T).ravel()
