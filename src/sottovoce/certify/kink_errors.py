"""How far a float64 evaluation of a kink, or of its slope, can be off."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import sympy as sp

from sottovoce.certify.arithmetic import Interval
from sottovoce.certify.kink_intervals import is_kink
from sottovoce.problem import kinks
from sottovoce.problem.agents import Array

__all__ = ["is_kink", "kink_error"]

_UNIT = 2.0**-53
_UNDERFLOW = 2.0**-1022
_SHORT = 2.0**-500  # more than the root of what squares may lose to underflow


def kink_error(node: sp.Expr, size: Array, inner: Sequence[tuple[Interval, Array]]) -> Array:
    """Bound ``|fl(node) - node|``, given ranges and errors of its arguments, and its magnitude.

    Sizes and maxima are exact operations that pass errors on. A slope that jumps is off by its
    whole jump where rounding may decide on which side of it the argument lies.
    """
    errors = [error for _, error in inner]
    if isinstance(node, kinks.absolute):
        return errors[0]
    if isinstance(node, kinks.maximum):
        return np.maximum(*errors)
    if isinstance(node, kinks.sgn):
        return np.where(_doubtful(*inner[0]), 2.0, 0.0)
    if isinstance(node, kinks.chosen):
        (_, yes), (_, no) = inner[1:]
        apart = inner[1][0].magnitude + inner[2][0].magnitude
        return np.where(_doubtful(*inner[0]), apart, 0.0) + np.maximum(yes, no)
    if isinstance(node, kinks.norm):
        k = len(inner)
        return np.asarray(sum(errors) + (k + 4) * _UNIT * (size + sum(errors)) + k * _SHORT)
    if isinstance(node, kinks.along):
        half = inner[len(inner) // 2 :]
        most = sum(value.magnitude + error for value, error in half)
        return np.asarray(2.0 * most)
    value, error = inner[0]
    steep = 2.0 * np.minimum(value.magnitude + error, inner[1][0].magnitude)
    return np.asarray(steep * error + 8.0 * _UNIT * (size + steep * error) + 4.0 * _UNDERFLOW)


def _doubtful(value: Interval, error: Array) -> Array:
    return np.asarray((value.lower - error <= 0.0) & (value.upper + error >= 0.0))
