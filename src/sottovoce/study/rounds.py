"""How many rounds to ask for: as few as converge, or as many as an accuracy takes."""

from __future__ import annotations

import math

from sottovoce.privacy.adjacency import TRAJECTORY_ROUNDS, Kind

FEWEST = 200
"""Rounds after which the default algorithm is about as near as the statistical limit.

Measured in x on six problems with noise from 0.5 to 5% of the constraints' scales, 200 runs each:
at most 1.12 times what is predicted after 200 rounds, 1.16 after 100, 1.6 after 50. With noise
below 0.1%, chargers were still many times off after 1,000.
"""

_CALM = (0.005, 0.05)  # noise, as a share of a constraint's scale, at which so many rounds suffice
_LONGEST = 2_000  # of what converges: noisier answers are useless, whatever the number of rounds


def converging_rounds(noise: float) -> int:
    """Return the fewest rounds that converge, for an answer with so much noise.

    A rule of thumb: where noise is large, prices are hard to find in it; where it is very small,
    what is left of the start counts beside it. ``advise(..., simulate=True)`` measures instead.

    Args:
        noise: the standard deviation of the noisiest constraint at the answer over its scale.
    """
    calm, loud = _CALM
    longer = max(1.0, noise / loud, math.sqrt(calm / max(noise, calm * 1e-4)))
    return _rounded(min(FEWEST * longer, _LONGEST))


def rounds_for(kind: Kind, noise: float, error: float, rounds: int, accuracy: float) -> int:
    """Return the rounds to ask for.

    To hide an offset or everything, noise grows as the root of their number and averages away
    again, so the fewest that converge are best. To hide a trajectory they are free, and the error
    falls as ``1 / sqrt(T)``: so many that it comes down to ``accuracy``.

    Args:
        kind: what is hidden.
        noise: of the noisiest constraint over its scale, after ``rounds`` rounds.
        error: the expected error after ``rounds`` rounds, as a share of 1.
        rounds: T.
        accuracy: the error that is good enough, likewise.
    """
    if kind != "trajectory":
        return converging_rounds(noise)
    wanted = rounds * (error / accuracy) ** 2
    return _rounded(min(max(wanted, converging_rounds(min(noise, accuracy))), TRAJECTORY_ROUNDS))


def _rounded(count: float) -> int:
    """Up to two digits, which are easier to say."""
    step = 10 ** max(math.floor(math.log10(count)) - 1, 0)
    return int(math.ceil(count / step - 1e-9) * step)
