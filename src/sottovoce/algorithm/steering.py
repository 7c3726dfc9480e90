"""Steering: prices are aimed so that the average of all releases, not the last ones, meets C.

The default algorithm forgets how far off the beginning was; the answer does not. With ``Ybar`` the
average of the releases so far and ``P(Ybar)`` the point of C nearest to it, the cloud's round takes

    y(k) + c (Ybar(k) - P(Ybar(k)))        instead of        y(k),

so that what was too much in the average so far is taken off what is aimed at from now on: its
remainder falls as ``k^(-1.25 (1 + c))`` instead of ``k^-1.25``. All of it is public.
"""

from __future__ import annotations

from typing import Any

from sottovoce.privacy.feasibility import counted_rounds
from sottovoce.problem.agents import Array

_GAIN = 2.0
_FIRST = 20.0  # rounds after which the average is worth half as much attention as it ever gets


def steering(k: Any, rounds: int) -> Array:
    """Return c of rounds k of T: 0 while the average is of one release, then growing to 2."""
    counted = counted_rounds(k, rounds)
    return _GAIN * (counted - 1.0) / (counted + _FIRST)
