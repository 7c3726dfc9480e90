"""Agents of one fleet and their step, compiled: what a gateway hosts by the hundred."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from sottovoce.algorithm.algorithm import Algorithm, averages
from sottovoce.engine.compile import load_kernel
from sottovoce.engine.fleet_text import WIDTH
from sottovoce.engine.formulas import Fleet
from sottovoce.engine.member import member, packed, unpack
from sottovoce.engine.source import OPTIONS, head, steps_of
from sottovoce.problem.agents import Array


@final
class Hosted:
    """``x(k) -> x(k+1)`` of a fleet's agents, by the pass that ``solve`` compiles for fleets.

    Args:
        fleet: the hosted agents' formulas, parameters and weights.
        algorithm: whose steps they take.
        lower: their bounds, shape (count, d).
        upper: likewise.
        rows: how many rows g has.
    """

    def __init__(
        self, fleet: Fleet, algorithm: Algorithm, *, lower: Array, upper: Array, rows: int
    ) -> None:
        self._member = member(fleet, algorithm, lower, upper, rows=rows)
        text = self._member.text
        kernel = load_kernel(_source(text, algorithm), *steps_of(algorithm))
        self._step = kernel.step
        self._averages = averages(algorithm)
        self._part = np.zeros(rows)
        self._work = np.empty(WIDTH * text.layout()["end"])

    def __call__(self, x: Array, mu: Array, numbers: Any) -> Array:
        """Take the step with the multipliers mu and the algorithm's numbers of the round."""
        own = packed(x)
        mean = own.copy() if self._averages else None
        arrays = self._member.arrays(own, mean)
        self._part[:] = 0.0
        # Copies: what came from a message cannot be written to, and kernels take no such array.
        prices, scalars = np.array(mu), np.array(numbers, dtype=np.float64)
        self._step(prices, self._part, self._work, scalars, *arrays)
        after = np.empty_like(x)
        unpack(own, after)
        return after


def _source(text: Any, algorithm: Algorithm) -> str:
    blocks = -(-text.fleet.group.count // WIDTH)
    arguments = [("mu", "float64[::1]"), ("part", "float64[::1]"), ("work", "float64[::1]")]
    arguments += [("numbers", "float64[::1]"), *text.arguments()]
    signature = ", ".join(kind for _, kind in arguments)
    numbers = ", ".join(f"numbers[{s}]" for s in range(len(algorithm.scalars)))
    shared = ", ".join(name for name, _ in text.arguments())
    return "\n".join(
        [
            *head(algorithm),
            text.source(),
            f'\n\n@njit("void({signature})", nogil=True, cache=CACHE, {OPTIONS})',
            f"def step({', '.join(name for name, _ in arguments)}):",
            f"    pass0(0, {blocks}, mu, part, work, mu, mu, {numbers}, {shared})",
            "",
        ]
    )
