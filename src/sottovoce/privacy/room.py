"""Whether margins leave room: an answer inside C with its edges moved in, or what would help."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from sottovoce.certificate.slater import slater_point
from sottovoce.errors import PrivacyError
from sottovoce.privacy.figures import down, up
from sottovoce.privacy.gaussian import epsilon_of, mu_of
from sottovoce.privacy.hide import Everything, Hide, Trajectory
from sottovoce.privacy.narrowed import narrowed
from sottovoce.privacy.target import Target
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.ball import ball_of
from sottovoce.problem.problem import CloudView

_STEPS = 10  # halvings in the search for how much noise would leave room
_SAFE = 0.98  # of what was found, to be on the safe side of rounding


def require_room(
    cloud: CloudView,
    domain: tuple[Group, ...],
    target: Callable[[float], Target],
    advice: Callable[[float], Iterator[str]],
) -> None:
    """Refuse margins that leave no interior, with what would help.

    Args:
        cloud: the problem.
        domain: the boxes in which states are kept.
        target: what is aimed at with so many times the noise.
        advice: what would make the noise so many times smaller, each with its number.

    Raises:
        PrivacyError: no point of X lies inside what is aimed at.
    """
    if _has_room(cloud, domain, target(1.0)):
        return
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _has_room(cloud, domain, target(middle)) else (low, middle)
    none = "no point of X keeps every constraint with its margin"
    if low == 0.0:
        raise PrivacyError(
            f"feasible must leave room: {none}, and {2**_STEPS:,} times less noise would not do: "
            "relax the constraints"
        )
    what = "; ".join(advice(_SAFE * low))
    raise PrivacyError(
        f"feasible must leave room: {none}; {down(_SAFE * low, 2)} times the noise would. What "
        f"would do, each by itself: {what}"
    )


def advice(
    hide: Hide, epsilon: Array, delta: Array, agents: int, smaller: Callable[[float], str | None]
) -> Callable[[float], Iterator[str]]:
    """Return what makes noise ``share`` times as large, each with its number.

    Args:
        hide: what is hidden now.
        epsilon: per agent.
        delta: likewise.
        agents: their number.
        smaller: what less could be hidden with so many times the noise, in words, if anything.
    """

    def listed(share: float) -> Iterator[str]:
        if not isinstance(hide, Everything):
            least = float(np.max(np.asarray(hide.radius, dtype=float))) * share
            yield f"a radius of {down(least, 3)}"
        mu = mu_of(epsilon, delta) / share
        pairs = {(float(m), float(d)) for m, d in zip(mu[:1000], delta[:1000], strict=True)}
        yield f"epsilon = {up(max(epsilon_of(m, d) for m, d in pairs), 3)}"
        if isinstance(hide, Trajectory):
            yield f"{int(np.ceil(hide.rounds / share**2)):,} rounds"
        elif (other := smaller(share)) is not None:
            yield other
        more = int(np.ceil(agents / share))
        yield f"{more:,} agents of the same kind, if bounds grow with their number"

    return listed


def _has_room(cloud: CloudView, domain: tuple[Group, ...], target: Target) -> bool:
    if not target.nonempty:
        return False
    balls = zip(cloud.sums.regions, target.moved, strict=True)
    if any(ball is not None and ball[1] <= m for ball, m in ((ball_of(r), m) for r, m in balls)):
        return False
    return slater_point(narrowed(cloud, target), domain).status != "fails"
