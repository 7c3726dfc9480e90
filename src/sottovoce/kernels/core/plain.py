"""What ``cython`` and the C library are where the kernels run uncompiled."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import numpy as np

compiled = False
nogil = nullcontext()
inf, nan = math.inf, math.nan
fabs, rint, sqrt = np.abs, np.rint, np.sqrt  # IEEE's answers where Python's own would raise


class _Array:
    """``double[n]`` as ``cython.declare`` takes it."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def __getitem__(self, size: int) -> Any:
        return lambda: np.zeros(size, dtype=self._kind)


double, uint64_t = _Array(np.float64), _Array(object)


def declare(kind: Any) -> Any:
    """A local array, or a struct."""
    return kind()


def address(struct: Any) -> Any:
    """A pointer to a struct is the struct."""
    return struct


class Struct:
    """A C struct: fields are attributes."""


def pow(x: float, y: float) -> float:  # noqa: A001  the C library's name
    """``x^y`` with IEEE's answers where Python raises."""
    try:
        return math.pow(x, y)
    except OverflowError:
        return -inf if x < 0.0 and y % 2.0 == 1.0 else inf
    except ValueError:
        if x == 0.0:
            return math.copysign(inf, x) if y % 2.0 == 1.0 else inf
        return nan
