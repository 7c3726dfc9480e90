"""Which fallbacks are safe beside answers: agents do not all get their answers at the same moment.

Where a sum must not be too large, any mixture of fallbacks and answers that keep the constraint
keeps it if every fallback contributes the least that its agent can; where it must not be too small,
the most. Where it has both limits, or the constraint weighs several sums against each other, both
must be the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from sottovoce.certificate.contributions import block_ranges
from sottovoce.privacy.feasibility import may_fall
from sottovoce.problem.agents import Group, read_only
from sottovoce.problem.sums import Sums

_CLOSE = 1e-9  # what rounding may be off by, relative


def unsafe_fallbacks(
    sums: Sums, domain: Sequence[Group], fallbacks: Sequence[Group]
) -> NDArray[np.bool_]:
    """Return, for every agent, whether its fallback is not shown to be safe beside any answers.

    Args:
        sums: what couples agents.
        domain: where each agent can be: boxes.
        fallbacks: the same groups with a fallback for both bounds.
    """
    least, most = _sides(sums)
    found = np.zeros(sum(group.count for group in domain), dtype=np.bool_)
    blocks = zip(block_ranges(sums, domain), block_ranges(sums, fallbacks), strict=True)
    for (rows, first, low, high, error), (_, _, down, up, off) in blocks:
        room = error + off + _CLOSE * (abs(low) + abs(high))
        for needed, beyond in ((least, up - low - room), (most, high - down - room)):
            at: Any = sparse.coo_array(beyond)
            row, agent = at.coords
            found[first + agent[needed[rows[row]] & ~(at.data <= 0.0)]] = True
    return found


def nearest_zero(domain: Sequence[Group]) -> tuple[Group, ...]:
    """Return the fallbacks of agents that state neither a fallback nor a start: a public matter."""
    points = [read_only(np.clip(0.0, group.lower, group.upper)) for group in domain]
    return tuple(
        replace(group, lower=point, upper=point)
        for group, point in zip(domain, points, strict=True)
    )


def _sides(sums: Sums) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of which sums a fallback must contribute the least, and of which the most."""
    least, most = np.isfinite(sums.upper), np.isfinite(sums.lower)
    for region in sums.regions:
        rows = np.array(region.rows)
        least[rows] = True
        most[rows] |= ~np.array(may_fall(region, sums))
    return least, most
