"""Whole runs over a game: agents and loop compiled here, the cloud's round as users run it."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from benchmarks.problems.games import WHOLE, Agents, slope_h
from benchmarks.problems.responses import force_of, respond, sums_of
from sottovoce.algorithm.dual_averaging import DualAveraging, Rows, damping, memory_size
from sottovoce.compiler.kinds import signature
from sottovoce.engine.compile import load_kernel
from sottovoce.engine.turn import PHI, PUBLIC, load_turn
from sottovoce.formula.canonical import canonical
from sottovoce.formula.expression import symbol
from sottovoce.problem.sums import Region

_U, _V = symbol("u"), symbol("v")
REGIONS = (
    Region(name="disc", stated=0, rows=(0, 1), symbols=(_U, _V), phi=canonical(_U**2 + _V**2 - 8)),
    Region(name="joint", stated=1, rows=(2, 3), symbols=(_U, _V), phi=canonical(_U**2 + _V - 9)),
)
"""The regions of all games that have any, so that one compiled cloud serves all."""


class Cloud(NamedTuple):
    """The cloud's round, and what it takes besides the run's own memory."""

    turn: Any
    phi: Any
    constants: Any
    rows: Any


class Answer(NamedTuple):
    """What a run fills in: the answers of x and price, and, if it has rows, x after each round."""

    x: Any
    price: Any
    trace: Any


def run_rounds(shares: Any, normals: Any, a: Any, cloud: Any, theta: float, answer: Any) -> int:
    """One run, the answer in place; returns the round of failure, 0 if there is none.

    Args:
        shares: the weight of every round in the answer.
        normals: standard normals in the order of use, one for every round and noisy sum.
        a: the agents.
        cloud: the cloud.
        theta: of the algorithm.
        answer: what is filled in, 0 before.
    """
    rows = cloud.rows
    p, n = rows.unit.size, a.lower.size
    x, price, memory = a.start.copy(), np.zeros(p), np.zeros(memory_size(p))
    y, old, eps = np.zeros(p), np.zeros(n), np.zeros(n)
    used = 0
    for k in range(1, shares.size + 1):
        sums_of(a, x, y)
        for o in range(p):
            if rows.noise[o] > 0.0:
                y[o] += rows.unit[o] * rows.noise[o] * normals[used]
                used += 1
        if used > 0:  # what was released is averaged; without noise the answer is the last
            average(shares[k - 1], x, answer.x)
            average(shares[k - 1], price, answer.price)
        if not turned(k, y, price, memory, cloud):
            return k
        for c in range(n):
            old[c] = x[c]
            width = max(a.upper[c] - a.lower[c], 1e-300)
            eps[c] = damping(k, force_of(a, c, x[c], price), width, theta)
        respond(a, price, x, old, eps)
        if used == 0:
            answer.x[:], answer.price[:] = x, price
        if answer.trace.size > 0:
            answer.trace[k - 1] = x
    return 0


def average(share: float, values: Any, mean: Any) -> None:
    for i in range(values.size):
        mean[i] += share * (values[i] - mean[i])


def turned(k: int, y: Any, price: Any, memory: Any, cloud: Any) -> Any:
    rows, public = cloud.rows, cloud.rows.public
    return cloud.turn(
        k, y, price, memory, cloud.constants, rows.unit, rows.noise,
        public.lower, public.upper, public.starts, public.members,
        public.centers, public.radii, public.levels, cloud.phi,
    )  # fmt: skip


def compiled_rounds(
    shares: Any, normals: Any, a: Agents, rows: Rows, algorithm: DualAveraging, answer: Answer
) -> int:
    """The same, compiled."""
    turn = load_turn(algorithm, REGIONS)
    if turn.turn.kind != signature(TURN):
        raise TypeError(f"TURN must be what the cloud's round takes, got {TURN}: follow it")
    cloud = (turn.turn, *turn.phi, np.array(algorithm.constants), rows.unit, rows.noise)
    theta = algorithm.theta
    return int(_kernel()(shares, normals, *a, *cloud, *rows.public, theta, *answer))


_ARRAY = "float64[::1]"
TURN = f"boolean({', '.join(['int64', *[_ARRAY] * 6, *PUBLIC.values(), *PHI.values()])})"
"""What the cloud's round takes."""


@cache
def _kernel() -> Any:
    # The kernel is made of these files; games.py says what the numbers of kinds mean.
    return load_kernel(_source(), run_rounds, respond, slope_h).run


def _source() -> str:
    agents = {f"a_{f}": "int64[::1]" if f in WHOLE else _ARRAY for f in Agents._fields}
    cloud = {"turn": TURN, **PHI, "constants": _ARRAY, "unit": _ARRAY, "noise": _ARRAY}
    answer = {"x": _ARRAY, "price": _ARRAY, "trace": "float64[:, ::1]"}
    kinds = {"shares": _ARRAY, "normals": _ARRAY, **agents, **cloud, **PUBLIC}
    kinds |= {"theta": "float64", **answer}
    return "\n".join(
        [
            "from benchmarks.problems.games import Agents",
            "from benchmarks.problems.rounds import Answer, Cloud, run_rounds",
            "from sottovoce.algorithm.dual_averaging import Rows",
            "from sottovoce.algorithm.projection import PublicSet",
            "from sottovoce.compiler.module import entry",
            f'\n\n@entry("int64({", ".join(kinds.values())})")',
            f"def run({', '.join(kinds)}):",
            f"    agents = Agents({', '.join(agents)})",
            f"    rows = Rows(unit, noise, PublicSet({', '.join(PUBLIC)}))",
            "    cloud = Cloud(turn, phi, constants, rows)",
            f"    answer = Answer({', '.join(answer)})",
            "    return run_rounds(shares, normals, agents, cloud, theta, answer)",
            "",
        ]
    )
