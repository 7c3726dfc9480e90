"""A problem whose constraints mix agents: their gradients cannot be worked out at home."""

from __future__ import annotations

from sottovoce.formula.functions import exp, log, sqrt
from sottovoce.problem.agents import states
from sottovoce.problem.problem import Problem


def coupled() -> Problem:
    """Return two vehicles in the plane, a mast and a generator under coupled constraints.

    The vehicles p and q head for opposite corners but must stay in radio range,
    ``sqrt(1 + |p - q|^2) <= 3``; the mast h and the generator s share a stiff joint,
    ``(h + 10 s)^2 + p_1^2 <= 9``; and the soft maximum of loads, ``log(e^p_2 + e^q_1 + e^h) <= 2``,
    is bounded. At 0 all constraints hold strictly, and every objective is strongly convex, so the
    saddle point is unique.
    """
    x = states(4, lower=-5, upper=5, dim=[2, 2, 1, 1], names=["p", "q", "h", "s"])
    p, q, h, s = x
    return Problem(
        states=x,
        objectives=[
            (p[0] - 3) ** 2 + (p[1] - 2) ** 2,
            (q[0] + 2) ** 2 + 2 * (q[1] + 1) ** 2 + q[0] * q[1],
            (h - 2) ** 2,
            (s - 1) ** 2 / 2 + s / 4,
        ],
        constraints={
            "range": sqrt(1 + (p[0] - q[0]) ** 2 + (p[1] - q[1]) ** 2) <= 3,
            "joint": (h + 10 * s) ** 2 + p[0] ** 2 <= 9,
            "load": log(exp(p[1]) + exp(q[0]) + exp(h)) <= 2,
        },
    )
