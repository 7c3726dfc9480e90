"""How privacy figures are printed: rounded towards the worse, never to nearest.

``up`` is for what may be as large as said (epsilon, delta, mu, a sensitivity, an attacker's
advantage), ``down`` for what must be at least as large as said (sigma, what is hidden, an
attacker's error rate). Reading the text back never gives a better number than the one printed.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal


def up(value: float, digits: int = 6) -> str:
    """Write ``value`` with so many significant digits, rounded up."""
    return _written(value, digits, ROUND_CEILING)


def down(value: float, digits: int = 6) -> str:
    """Write ``value`` with so many significant digits, rounded down."""
    return _written(value, digits, ROUND_FLOOR)


def percent_down(share: float, places: int = 1) -> str:
    """Write a share as a percentage with so many decimal places, rounded down."""
    step = Decimal(1).scaleb(-places)
    cut = (100 * Decimal(repr(float(share)))).quantize(step, rounding=ROUND_FLOOR)
    return f"{float(cut):g}%"


def _written(value: float, digits: int, rounding: str) -> str:
    if not math.isfinite(value):
        return f"{value:g}"
    # The shortest text that reads back as this double: 0.05 stays 0.05.
    cut = Context(prec=digits, rounding=rounding).create_decimal(repr(float(value)))
    return f"{float(cut):,.{max(digits, 6)}g}"
