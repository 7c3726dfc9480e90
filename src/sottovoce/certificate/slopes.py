"""Bounds of ``|dh/dx_i|`` over the boxes of many agents at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sottovoce.certificate.forms import exact
from sottovoce.errors import CertificateError
from sottovoce.formula.derive import gradient
from sottovoce.formula.enclosure import enclose
from sottovoce.formula.expression import Expression, exactly
from sottovoce.formula.intervals import Interval
from sottovoce.problem.agents import Array, Group

UP = 1.0 + 2.0**-50  # more than the rounding of the few products it is applied to


@exactly()
def slope_bounds(h: Expression, group: Group, *, convex: bool) -> tuple[Array, Array]:
    """Bound ``|dh/dx_i|`` over X_i for every agent i of a fleet; upper bounds and values found."""
    derivatives = list(gradient(exact(h), group.symbols).values())
    used = {s for d in derivatives for s in d.symbols}
    states = [(c, s) for c, s in enumerate(group.symbols) if s in used]
    box = {s: Interval(lower=a, upper=a) for s, a in group.parameters.items() if s in used}

    def norm(lower: Array, upper: Array) -> Array:
        local = {s: Interval(lower=lower[:, c], upper=upper[:, c]) for c, s in states}
        return _norm(derivatives, {**box, **local}, group.count)

    low = norm(group.lower, group.lower)
    if not states:
        return low, low
    found = np.maximum(low, norm(group.upper, group.upper))
    if convex and len(derivatives) == len(states) == 1:
        # A convex function of one variable has its steepest slopes at the ends of its interval.
        return found, found
    return norm(group.lower, group.upper), found


def _norm(
    derivatives: Sequence[Expression], box: Mapping[Expression, Interval], count: int
) -> Array:
    squares = np.zeros(1)
    for derivative in derivatives:
        bound = enclose(derivative, box)
        squares = squares + np.square(np.maximum(np.abs(bound.lower), np.abs(bound.upper))) * UP
    norm = np.sqrt(squares) * (1.0 + (len(derivatives) + 8) * 2.0**-52)
    if not np.all(np.isfinite(norm)):
        raise CertificateError(
            f"the slope of {derivatives[0]} has no finite bound on the fleet's boxes: tighten the "
            "bounds so that every formula stays defined and finite"
        )
    return np.asarray(np.broadcast_to(norm, (count,)))
