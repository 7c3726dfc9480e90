"""Convex test problems of Hock and Schittkowski, one agent per variable where the objective allows.

W. Hock and K. Schittkowski, "Test Examples for Nonlinear Programming Codes", Lecture Notes in
Economics and Mathematical Systems 187, Springer, 1981. Constraints are turned round to
``g_j(x) <= 0``, and constants of the objective belong to the first agent. Variables that meet in a
term of the objective (48, 51, 52 and 53) are components of one agent's state. Problems 10, 11, 22,
43, 48, 51 and 52 have no bounds in the book: here each variable lies in [-10, 10], which holds the
book's start and the optimum with room to spare, so the optimum stays the book's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import log, sqrt

from sottovoce.errors import ProblemError
from sottovoce.formula.functions import exp
from sottovoce.problem.agents import states
from sottovoce.problem.gallery.optimum import KnownOptimum
from sottovoce.problem.problem import Problem

NUMBERS = (10, 11, 21, 22, 34, 43, 48, 51, 52, 53, 66, 72)


def hock_schittkowski(number: int) -> Problem:
    """Return problem ``number`` of the book, one of those in ``NUMBERS``."""
    if not isinstance(number, int) or number not in NUMBERS:
        raise ProblemError(
            f"number must be one of {', '.join(map(str, NUMBERS))}, got {number}: "
            "the other problems are not convex, or not in this gallery"
        )
    return _PROBLEMS[number]()


def _hs10() -> Problem:
    x = states(2, lower=-10, upper=10)
    return Problem(
        states=x,
        objectives=[x[0], -x[1]],
        constraints=[3 * x[0] ** 2 - 2 * x[0] * x[1] + x[1] ** 2 <= 1],
        start=[-10, 10],
    )


def _hs11() -> Problem:
    x = states(2, lower=-10, upper=10)
    return Problem(
        states=x,
        objectives=[(x[0] - 5) ** 2 - 25, x[1] ** 2],
        constraints=[x[0] ** 2 - x[1] <= 0],
        start=[4.9, 0.1],
    )


def _hs21() -> Problem:
    x = states(2, lower=[2, -50], upper=[50, 50])
    return Problem(
        states=x,
        objectives=[x[0] ** 2 / 100 - 100, x[1] ** 2],
        constraints=[10 * x[0] - x[1] >= 10],
        start=[2, -1],
    )


def _hs22() -> Problem:
    x = states(2, lower=-10, upper=10)
    return Problem(
        states=x,
        objectives=[(x[0] - 2) ** 2, (x[1] - 1) ** 2],
        constraints=[x[0] + x[1] <= 2, x[0] ** 2 - x[1] <= 0],
        start=[2, 2],
    )


def _hs34() -> Problem:
    x = states(3, lower=0, upper=[100, 100, 10])
    return Problem(
        states=x,
        objectives=[-x[0], 0, 0],
        constraints=[exp(x[0]) - x[1] <= 0, exp(x[1]) - x[2] <= 0],
        start=[0, 1.05, 2.9],
    )


def _hs43() -> Problem:
    x = states(4, lower=-10, upper=10)
    a, b, c, d = x
    return Problem(
        states=x,
        objectives=[a**2 - 5 * a, b**2 - 5 * b, 2 * c**2 - 21 * c, d**2 + 7 * d],
        constraints=[
            a**2 + b**2 + c**2 + d**2 + a - b + c - d <= 8,
            a**2 + 2 * b**2 + c**2 + 2 * d**2 - a - d <= 10,
            2 * a**2 + b**2 + c**2 + 2 * a - b - d <= 5,
        ],
        start=[0, 0, 0, 0],
    )


def _hs48() -> Problem:
    x = states(3, lower=-10, upper=10, dim=[1, 2, 2])
    a, (b, c), (d, e) = x
    return Problem(
        states=x,
        objectives=[(a - 1) ** 2, (b - c) ** 2, (d - e) ** 2],
        constraints=[a + b + c + d + e == 5, c - 2 * (d + e) == -3],
        start=[3, [5, -3], [2, -2]],
    )


def _with_three_equalities(slope: int, right: int, start: list[float]) -> Problem:
    """Problems 51, 52 and 53: one form, two numbers and a start apart."""
    x = states(3, lower=-10, upper=10, dim=[3, 1, 1])
    (a, b, c), d, e = x
    return Problem(
        states=x,
        objectives=[(slope * a - b) ** 2 + (b + c - 2) ** 2, (d - 1) ** 2, (e - 1) ** 2],
        constraints=[a + 3 * b == right, c + d - 2 * e == 0, b - e == 0],
        start=[start[:3], start[3], start[4]],
    )


def _hs66() -> Problem:
    x = states(3, lower=0, upper=[100, 100, 10])
    return Problem(
        states=x,
        objectives=[-4 * x[0] / 5, 0, x[2] / 5],
        constraints=[exp(x[0]) - x[1] <= 0, exp(x[1]) - x[2] <= 0],
        start=[0, 1.05, 2.9],
    )


def _hs72() -> Problem:
    x = states(4, lower=0.001, upper=[4e5, 3e5, 2e5, 1e5])
    return Problem(
        states=x,
        objectives=[1 + x[0], x[1], x[2], x[3]],
        constraints=[
            4 / x[0] + 2.25 / x[1] + 1 / x[2] + 0.25 / x[3] <= 0.0401,
            0.16 / x[0] + 0.36 / x[1] + 0.64 / x[2] + 0.64 / x[3] <= 0.010085,
        ],
        start=[1, 1, 1, 1],
    )


_BOOK = "Hock and Schittkowski (1981), problem {}; multipliers from the conditions of optimality"


def _known() -> dict[int, KnownOptimum]:
    root = (7.5 * sqrt(6.0) + sqrt(338.5)) ** (1.0 / 3.0)
    a = (root - 1.0 / root) / sqrt(6.0)
    ten = log(10.0)
    found = {
        10: (-1.0, (0.0, 1.0), (0.5,), 1e-9),
        11: (-8.498464223, (a, a**2), (2.0 * a**2,), 1e-9),
        21: (-99.96, (2.0, 0.0), (0.0,), 1e-9),
        22: (1.0, (1.0, 1.0), (2.0 / 3.0, 2.0 / 3.0), 1e-9),
        34: (-log(ten), (log(ten), ten, 10.0), (1.0 / ten, 0.1 / ten), 1e-9),
        43: (-44.0, (0.0, 1.0, 2.0, -1.0), (1.0, 0.0, 2.0), 1e-9),
        48: (0.0, (1.0,) * 5, (0.0, 0.0), 1e-9),
        51: (0.0, (1.0,) * 5, (0.0, 0.0, 0.0), 1e-9),
        52: (
            1859 / 349,
            (-33 / 349, 11 / 349, 180 / 349, -158 / 349, 11 / 349),
            (1144 / 349, 1014 / 349, -2704 / 349),
            1e-9,
        ),
        53: (
            176 / 43,
            (-33 / 43, 11 / 43, 27 / 43, -5 / 43, 11 / 43),
            (88 / 43, 96 / 43, -256 / 43),
            1e-9,
        ),
        66: (
            0.5181632741,
            (0.1841264879, 1.202167873, 3.327322322),
            (0.2 * 3.327322322, 0.2),
            1e-9,
        ),
        # The book's x is good to six digits only.
        72: (
            727.67937,
            (193.4071, 179.5475, 185.0186, 168.7062),
            (7692.936528, 41466.792563),
            5e-6,
        ),
    }
    return {
        number: KnownOptimum(
            objective=f, x=x, mu=mu, tolerance=tolerance, source=_BOOK.format(number)
        )
        for number, (f, x, mu, tolerance) in found.items()
    }


KNOWN = _known()

_PROBLEMS: dict[int, Callable[[], Problem]] = {
    10: _hs10,
    11: _hs11,
    21: _hs21,
    22: _hs22,
    34: _hs34,
    43: _hs43,
    48: _hs48,
    51: partial(_with_three_equalities, 1, 4, [2.5, 0.5, 2.0, -1.0, 0.5]),
    52: partial(_with_three_equalities, 4, 0, [2.0] * 5),
    53: partial(_with_three_equalities, 1, 0, [2.0] * 5),
    66: _hs66,
    72: _hs72,
}
