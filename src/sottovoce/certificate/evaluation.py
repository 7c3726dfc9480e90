"""How far a float64 evaluation of what is released can be off, for every point of the domain.

Noise hides a number only if adjacent inputs move it by no more than the sensitivity; what rounding
adds to that movement is bounded here and paid for in the plan.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sparse

from sottovoce.certificate.gradients import GradientEntry
from sottovoce.formula.enclosure import UNDERFLOW, UNIT, UP, evaluate, evaluation_error
from sottovoce.formula.intervals import Interval
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.constraints import FleetSum
from sottovoce.problem.problem import CloudView

_SUM_UP = 1.0 + 2.0**-20  # more than the roundings of sums over a fleet of billions


def evaluation_errors(
    cloud: CloudView, domain: Sequence[Group], released: Sequence[GradientEntry]
) -> tuple[Array, Array]:
    """Bound the evaluation error and the size of every output over the domain.

    Returns:
        For the rows of g and then the released gradients, how far float64 may be off, and the
        largest absolute value that it may compute.
    """
    boxes = {group.name: group for group in domain}
    named = {
        s: Interval(lower=g.lower[:, c], upper=g.upper[:, c])
        for g in domain
        if g.count == 1
        for c, s in enumerate(g.symbols)
    }
    errors: list[float] = []
    sizes: list[float] = []
    for family in cloud.constraints:
        total = np.abs(family.offset) * UNIT * 2 + UNDERFLOW
        size = np.abs(family.offset)
        for row, g in enumerate(family.named):
            total[row] += float(evaluation_error(g, named).max())
            size[row] += float(evaluate(g, named)[g].magnitude.max())
        for part in family.sums:
            part_error, part_size, terms = _of_sum(part, boxes[part.group.name])
            total += part_error + terms * (UNIT * part_size + UNDERFLOW)
            size += part_size
        if family.sums:
            total += (len(family.sums) + 2) * (UNIT * size + UNDERFLOW)
        errors += list(total * UP)
        sizes += list(size)
    for e in released:
        errors.append(float(evaluation_error(e.formula, named).max()))
        sizes.append(float(evaluate(e.formula, named)[e.formula].magnitude.max()))
    bound = np.array(errors)
    return bound, np.asarray((np.array(sizes) + bound) * _SUM_UP)


def _of_sum(part: FleetSum, group: Group) -> tuple[Array, Array, int]:
    """Errors and magnitudes of the summands added up per row, and how many there are."""
    errors, sizes = [], []
    for h in part.terms:
        box = {
            s: Interval(lower=group.lower[:, c], upper=group.upper[:, c])
            for c, s in enumerate(group.symbols)
            if s in h.symbols
        } | {s: Interval(lower=a, upper=a) for s, a in group.parameters.items()}
        size = evaluate(h, box)[h].magnitude
        errors.append(np.broadcast_to(evaluation_error(h, box) + 2 * UNIT * size, (group.count,)))
        sizes.append(np.broadcast_to(size, (group.count,)))
    if part.weights is None:
        return np.array([e.sum() for e in errors]), np.array([s.sum() for s in sizes]), group.count
    weights = abs(part.weights) if sparse.issparse(part.weights) else np.abs(part.weights)
    totals = [np.stack([weights @ v for v in values], axis=1).ravel() for values in (errors, sizes)]
    return totals[0], totals[1], group.count
