"""Lines of a kernel for agents stated one by one: evaluate, step and measure one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from sottovoce.algorithm.algorithm import Algorithm, GradientSteps
from sottovoce.engine.emit import Emitter
from sottovoce.engine.formulas import Named
from sottovoce.engine.source import Noise, call
from sottovoce.formula.canonical import add
from sottovoce.formula.expression import ZERO
from sottovoce.problem.agents import Array

Normal = Callable[[int], str]
"""The text that reads normal number ``order`` of the round, times its sigma."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NamedText:
    """Writes the named agents' part of a round; x, mu and bounds have the names x0, mu0, lower0.

    Attributes:
        named: the formulas.
        noise: which numbers get noise.
        algorithm: whose steps to take.
    """

    named: Named
    noise: Noise
    algorithm: Algorithm

    @property
    def size(self) -> int:
        """How many scalar states the named agents have."""
        return len(self.named.symbols)

    @property
    def rows(self) -> int:
        """How many sums, or rows of g, there are."""
        return len(self.named.constraints)

    def layout(self) -> dict[str, int]:
        """Where each part of a run's state begins: x, prices, averages, memory, failure.

        The answer begins at ``mean``: averaged x and, right behind, averaged prices; where nothing
        is averaged it is x and the multipliers themselves. Averaged releases are at ``released``.
        """
        small = self.size + self.rows
        if isinstance(self.algorithm, GradientSteps):
            return {"x": 0, "price": self.size, "mean": 0, "memory": small, "failed": small}
        memory = self.algorithm.memory_size(self.rows)
        return {
            "x": 0,
            "price": self.size,
            "mean": small,
            "released": 2 * small,
            "memory": 2 * small + self.rows,
            "failed": 2 * small + self.rows + memory,
        }

    def emitter(self) -> Emitter:
        """A fresh page on which the states go by the names x0, x1, ..."""
        return Emitter({s: f"x{i}" for i, s in enumerate(self.named.symbols)})

    def bounds(self) -> list[str]:
        """Bounds as scalars: LLVM then knows that no store can change them."""
        return [
            f"{name}{i} = bounds[{side * self.size + i}]"
            for i in range(self.size)
            for side, name in enumerate(("lower", "upper"))
        ]

    def released(self, page: Emitter, normal: Normal) -> dict[tuple[int, int], str]:
        """``dg_j/dx_i`` with its noise, for all entries that the plan releases."""
        found = {}
        for dg, column in zip(self.named.jacobian, self.named.columns, strict=True):
            for j in range(self.rows):
                order = self.noise.entries.get((j, column))
                if order is not None:
                    exact = page.value(dg.get(j, ZERO))
                    found[j, column] = page.assign(f"{exact} + {normal(order)}")
        return found

    def slopes(
        self, page: Emitter, released: Mapping[tuple[int, int], str] | None = None
    ) -> list[str]:
        """``df_i/dx_i + sum_j mu_j Y_ji`` per state; Y is exact where it is not among released."""
        known = released or {}
        slopes = []
        for df, dg, column in zip(
            self.named.gradient, self.named.jacobian, self.named.columns, strict=True
        ):
            terms = [page.value(df)]
            for j in range(self.rows):
                if (j, column) in known:
                    terms.append(page.assign(f"mu{j} * {known[j, column]}"))
                elif j in dg:
                    terms.append(page.times(f"mu{j}", dg[j]))
            slopes.append(page.fold("+", terms))
        return slopes

    def agents(self, page: Emitter, slopes: Sequence[str], steps: GradientSteps) -> list[str]:
        """x(k+1) of agents that take gradient steps, one name per state."""
        shared = {name: name for name in steps.scalars}
        own = [
            {"x": f"x{i}", "slope": slope, "lower": f"lower{i}", "upper": f"upper{i}"}
            for i, slope in enumerate(slopes)
        ]
        return [page.assign(call("agent", steps.agent_step, values | shared)) for values in own]

    def residuals(self, page: Emitter, without: Sequence[int] = ()) -> list[str]:
        """``(x - P_X[x - dL/dx])^2`` per state, of those that only bounds hold."""
        return [
            page.assign(f"(x{i} - project(x{i} - {slope}, lower{i}, upper{i})) ** 2")
            for i, slope in enumerate(self.slopes(page))
            if i not in without
        ]

    def objective(self, page: Emitter) -> str:
        """``sum_i f_i``."""
        return page.value(add(*self.named.objectives))


def first_state(text: NamedText, x: Array, price: Array) -> Array:
    """A run's state before round 1, laid out as ``NamedText.layout`` says."""
    at = text.layout()
    state = np.zeros(at["failed"] + 1)
    for first in (0, at["mean"]):
        state[first : first + x.size] = x
        state[first + x.size : first + x.size + price.size] = price
    return state
