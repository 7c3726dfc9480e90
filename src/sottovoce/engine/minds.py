"""Named agents who minimise at home, compiled, for many runs at once and one round at a time."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from sottovoce.algorithm.algorithm import Algorithm
from sottovoce.engine.compile import load_kernel
from sottovoce.engine.formulas import formulas
from sottovoce.engine.home_text import HomeText
from sottovoce.engine.named_text import NamedText
from sottovoce.engine.setting import coupled_slopes
from sottovoce.engine.source import OPTIONS, Noise, block, head, steps_of
from sottovoce.privacy.plan import NoisePlan
from sottovoce.problem.agents import Array, lower_bounds, upper_bounds
from sottovoce.problem.problem import Problem

_SIGNATURE = ", ".join(["float64[:, ::1]"] * 3 + ["float64[::1]"] * 3)


@final
class Minds:
    """``(x(k), mu(k+1), Y(k)) -> x(k+1)`` of all agents of a problem without fleets.

    For whoever must look into a round, as an audit does; ``solve`` runs whole rounds compiled.

    Attributes:
        entries: the gradient entries (row, column) that agents need from the cloud.
    """

    def __init__(self, problem: Problem, plan: NoisePlan, algorithm: Algorithm) -> None:
        slopes = coupled_slopes(problem, plan)
        self.entries = list(slopes)
        self._slopes = np.array(list(slopes.values()), dtype=np.float64)
        text = NamedText(
            named=formulas(problem).named,
            noise=Noise(rows=(), entries={}),
            algorithm=algorithm,
            coupled={entry: e for e, entry in enumerate(self.entries)},
        )
        source = _source(HomeText(text=text, lanes=1))
        self._think = load_kernel(source, *steps_of(algorithm)).think_all
        lower = lower_bounds(plan.domain)
        upper = upper_bounds(plan.domain)
        self._bounds = np.concatenate([lower, upper])

    def __call__(self, x: Array, mu: Array, entries: Array, numbers: Any) -> Array:
        """Return x(k+1), one row per run.

        Args:
            x: x(k), shape (runs, N).
            mu: mu(k+1), shape (runs, m).
            entries: Y(k) of the ``entries``, shape (runs, entries).
            numbers: the algorithm's numbers of the round.
        """
        after = np.array(x, dtype=np.float64, order="C")
        arrays = [np.ascontiguousarray(a, dtype=np.float64) for a in (mu, entries)]
        numbers = np.ascontiguousarray(numbers, dtype=np.float64)
        self._think(after, *arrays, self._slopes, self._bounds, numbers)
        return after


def _source(home: HomeText) -> str:
    text = home.text
    n, m, scalars = text.size, text.rows, text.algorithm.scalars
    released = {entry: f"entries[run, {at}]" for entry, at in text.coupled.items()}
    numbers = ", ".join(f"numbers[{s}]" for s in range(len(scalars)))
    return "\n".join(
        [
            *head(text.algorithm),
            home.source(),
            f'\n\n@njit("void({_SIGNATURE})", nogil=True, cache=CACHE, {OPTIONS})',
            "def think_all(x, mu, entries, slopes, bounds, numbers):",
            f"    state = np.empty({n + m})",
            f"    linear, coupling = np.zeros({n}), np.zeros({n})",
            "    for run in range(x.shape[0]):",
            f"        state[:{n}] = x[run]",
            f"        state[{n}:] = mu[run]",
            block([f"mu{j} = mu[run, {j}]" for j in range(m)], 2),
            block(home.priced(released) or ["pass"], 2),
            f"        think(0, state, bounds, linear, coupling, {numbers})",
            f"        x[run] = state[:{n}]",
            "",
        ]
    )
