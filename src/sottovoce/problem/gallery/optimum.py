"""Optima that somebody else has published or that follow on paper, to hold solvers against."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownOptimum:
    """A saddle point known in advance.

    Attributes:
        objective: the optimal ``sum_i f_i``.
        x: x-hat, one number per state.
        mu: mu-hat, one number per constraint.
        tolerance: how far, relative to ``1 + |value|``, the figures above may be off because they
            were printed with few digits.
        source: where the figures come from.
    """

    objective: float
    x: tuple[float, ...]
    mu: tuple[float, ...]
    tolerance: float
    source: str
