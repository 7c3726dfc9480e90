"""Lines of a kernel for agents stated one by one: evaluate, step and measure one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import sympy as sp

from sottovoce.algorithm.algorithm import Algorithm
from sottovoce.engine.emit import Emitter
from sottovoce.engine.formulas import Named
from sottovoce.engine.source import Noise, call

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
        """How many rows g has."""
        return len(self.named.constraints)

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

    def slopes(
        self, page: Emitter, normal: Normal | None = None
    ) -> tuple[list[str], dict[int, str]]:
        """``df_i/dx_i + sum_j mu_j Y_ji`` per state, and the released Y by number of the normal.

        Without ``normal`` all Y are exact.
        """
        released: dict[int, str] = {}
        slopes = []
        for df, dg, column in zip(
            self.named.gradient, self.named.jacobian, self.named.columns, strict=True
        ):
            terms = [page.value(df)]
            for j in range(self.rows):
                order = None if normal is None else self.noise.entries.get((j, column))
                if normal is not None and order is not None:
                    exact = page.value(dg.get(j, sp.S.Zero))
                    released[order] = page.assign(f"{exact} + {normal(order)}")
                    terms.append(page.assign(f"mu{j} * {released[order]}"))
                elif j in dg:
                    terms.append(page.times(f"mu{j}", dg[j]))
            slopes.append(page.fold("+", terms))
        return slopes, released

    def agents(self, page: Emitter, slopes: Sequence[str]) -> list[str]:
        """x(k+1), one name per state."""
        scalars = {name: name for name in self.algorithm.scalars}
        step = self.algorithm.agent_step
        return [
            page.assign(
                call(
                    "agent",
                    step,
                    {
                        "x": f"x{i}",
                        "slope": slope,
                        "lower": f"lower{i}",
                        "upper": f"upper{i}",
                        **scalars,
                    },
                )
            )
            for i, slope in enumerate(slopes)
        ]

    def residuals(self, page: Emitter) -> list[str]:
        """``(x - P_X[x - dL/dx])^2`` per state."""
        slopes, _ = self.slopes(page)
        return [
            page.assign(f"(x{i} - project(x{i} - {slope}, lower{i}, upper{i})) ** 2")
            for i, slope in enumerate(slopes)
        ]

    def objective(self, page: Emitter) -> str:
        """``sum_i f_i``."""
        return page.value(sp.Add(*self.named.objectives))
