"""Economic dispatch: generators that must add up to a demand, an equality.

A. J. Wood and B. F. Wollenberg, "Power Generation, Operation, and Control", Wiley, example 3A:
three thermal units, 850 MW. The book prints 393.2, 334.6 and 122.2 MW at 9.148 $/MWh.
"""

from __future__ import annotations

from sottovoce.problem.agents import states
from sottovoce.problem.gallery.optimum import KnownOptimum
from sottovoce.problem.problem import Problem

DEMAND = 850
UNITS = (
    (150, 600, 561, 7.92, 0.001562),
    (100, 400, 310, 7.85, 0.00194),
    (50, 200, 78, 7.97, 0.00482),
)
"""Per unit its least and largest power in MW, and the cost a + b p + c p^2 in $/h."""


def dispatch() -> Problem:
    """Return ``min sum_i a_i + b_i p_i + c_i p_i^2`` subject to ``sum_i p_i = 850``."""
    lower, upper, *_ = zip(*UNITS, strict=True)
    p = states(len(UNITS), lower=lower, upper=upper, names=["coal", "oil", "gas"])
    return Problem(
        states=p,
        objectives=[a + b * s + c * s**2 for (*_, a, b, c), s in zip(UNITS, p, strict=True)],
        constraints={"balance": sum(p) == DEMAND},
        start=[400, 300, 150],
    )


def _known() -> KnownOptimum:
    """Equal incremental costs, ``b_i + 2 c_i p_i = price``, with the price that meets demand."""
    price = DEMAND + sum(b / (2.0 * c) for *_, b, c in UNITS)
    price /= sum(1.0 / (2.0 * c) for *_, c in UNITS)
    p = tuple((price - b) / (2.0 * c) for *_, b, c in UNITS)
    return KnownOptimum(
        objective=sum(a + b * s + c * s**2 for (*_, a, b, c), s in zip(UNITS, p, strict=True)),
        x=p,
        mu=(-price,),
        tolerance=1e-9,
        source="Wood and Wollenberg, example 3A, with more digits from equal incremental costs",
    )


KNOWN = _known()
