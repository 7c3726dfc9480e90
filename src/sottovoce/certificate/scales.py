"""What a constraint's violation is measured against: its bound, a public figure."""

from __future__ import annotations

import numpy as np

from sottovoce.certificate.contributions import sum_ranges
from sottovoce.formula.canonical import split_constant
from sottovoce.formula.enclosure import evaluate
from sottovoce.formula.expression import Expression
from sottovoce.formula.intervals import Interval
from sottovoce.problem.agents import Array, read_only
from sottovoce.problem.constraints import Constraint
from sottovoce.problem.problem import CloudView


def row_scales(cloud: CloudView) -> Array:
    """Return the scale of every stated constraint, shape (m,), for figures in percent.

    It is ``|b_j|`` of ``sum_i h_ij(x_i) <= b_j``, and in general the constant of ``g_j``; where the
    bound is 0, the width of the range that the row has over the public boxes.
    """
    bound = np.concatenate([np.abs(_constants(family)) for family in cloud.constraints])
    if np.any(bound == 0.0):
        bound = np.where(bound == 0.0, _widths(cloud), bound)
    fine = np.isfinite(bound) & (bound > 0.0)
    return read_only(np.where(fine, bound, 1.0))


def _constants(family: Constraint) -> Array:
    found = np.array(family.offset)
    for row, formula in enumerate(family.rest):
        found[row] += float(split_constant(formula)[0])
    return found


def _widths(cloud: CloudView) -> Array:
    """How wide the range of every row is over the public boxes."""
    ranges = sum_ranges(cloud.sums, cloud.groups)
    widths: list[float] = []
    for family, origin in zip(cloud.constraints, cloud.sums.origins, strict=True):
        for row in range(family.rows):
            if origin.as_stated or family.sums:
                low, high = ranges[origin.first + row]
            else:
                low, high = _enclosed(cloud, family.formulas[row])
            widths.append(high - low)
    return np.array(widths)


def _enclosed(cloud: CloudView, formula: Expression) -> tuple[float, float]:
    used = formula.symbols
    box = {
        symbol: Interval(lower=group.lower[:1, c], upper=group.upper[:1, c])
        for group in cloud.groups
        for c, symbol in enumerate(group.symbols)
        if symbol in used
    }
    found = evaluate(formula, box)[formula]
    return float(np.min(found.lower)), float(np.max(found.upper))
