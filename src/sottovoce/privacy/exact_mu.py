"""Gaussian-DP parameters as integers, so that sums of squares are exact.

A parameter counts in units of 2^-BITS, its square in units of 4^-BITS. What is charged is rounded
up, what is granted or left is rounded down.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

BITS: Final = 100
"""Binary places of mu in the exact sums; every double above 1e-14 has no more."""


def units_up(mu: Fraction) -> int:
    """Return mu in units of 2^-BITS."""
    return math.ceil(mu * (1 << BITS))


def square_down(mu: float) -> int:
    """Return mu^2 in units of 4^-BITS, mu being rounded down to a multiple of 2^-BITS."""
    return math.floor(math.ldexp(mu, BITS)) ** 2


def root_up(total: int) -> float:
    """Return the least double whose square is at least total."""
    root = math.isqrt(total)
    root += root * root < total
    value = math.ldexp(root, -BITS)
    return value if math.ldexp(value, BITS) >= root else math.nextafter(value, math.inf)


def root_down(total: int) -> float:
    """Return a double whose square is at most total, less than one ulp below the root."""
    root = math.isqrt(total)
    value = math.ldexp(root, -BITS)
    return value if math.ldexp(value, BITS) <= root else math.nextafter(value, 0.0)


def ratio_up(mu: float, radius: float) -> float:
    """Return the least double that is at least mu / radius."""
    value = mu / radius
    exact = Fraction(mu) / Fraction(radius)
    return value if Fraction(value) >= exact else math.nextafter(value, math.inf)
