"""Where the numbers of an agent lie while it minimises, and operations on them without a branch.

What is written with these for one agent serves many side by side: compiled, every number stands for
one of each agent of a block, and nothing that happens to one depends on another.
"""

from __future__ import annotations

from typing import Any

import numpy as np

POINT, SLOPE, CURVATURE, LOWER, UPPER, FREE, ROW, STEP, OTHER, SIDEWAYS, START, ONE, TWO = range(13)
"""Vectors of an agent, each d numbers long.

p, the slope g and the curvature w there, the box; ``p - g/w``, where answers are put in the end;
the row a and ``a/w``; the second row and ``a/w`` of it; what two rows keep besides.
"""

VECTORS = 13

LEAST, MOST, GIVE, NU, GOAL, LEFT, RIGHT, F_LEFT, F_RIGHT, OPEN, SUM, FALL, EXACT = range(13)
"""Numbers of a row, after the vectors; those of the second row follow the first's."""

NUMBERS = 13


def load(work: Any, row: Any) -> Any:
    """Number ``row`` of the agent."""
    return work[row]


def store(work: Any, row: Any, value: Any) -> None:
    """Set number ``row`` of the agent."""
    work[row] = value


def every(value: Any) -> Any:
    """A constant as a number of the agent."""
    return value


def select(truth: Any, one: Any, other: Any) -> Any:
    """``one if truth else other``."""
    return one if truth else other


def rint(value: Any) -> Any:
    """The nearest whole number, the even one of two."""
    return np.rint(value)


def some(truth: Any) -> Any:
    """Whether anything is left to do."""
    return truth


def inside(value: Any, lower: Any, upper: Any) -> Any:
    """The nearest number in an interval; NaN stays NaN."""
    raised = select(value < lower, lower, value)
    return select(raised > upper, upper, raised)


def larger(a: Any, b: Any) -> Any:
    """The larger of two numbers; the first if the second is NaN."""
    return select(b > a, b, a)
