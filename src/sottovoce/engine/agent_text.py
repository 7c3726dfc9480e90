"""One agent's formulas as Python functions, from the text that kernels of fleets are made of.

So an agent by itself needs no compiler, and computes to the same bits what it would in a fleet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from sottovoce.algorithm.dual_search import softness
from sottovoce.algorithm.home_block import select
from sottovoce.algorithm.round import home_damping
from sottovoce.engine.emit import Emitter
from sottovoce.engine.formulas import Fleet
from sottovoce.engine.slopes import names_in, slopes_of
from sottovoce.engine.source import block
from sottovoce.formula.expression import Expression


@final
class Lenient:
    """The functions of a formula as compiled code has them: infinity or NaN, no exceptions."""

    @staticmethod
    def exp(x: Any) -> Any:
        """``e^x``, infinite where it is too large."""
        try:
            return np.float64(math.exp(x))
        except OverflowError:
            return np.float64(math.inf)

    @staticmethod
    def log(x: Any) -> Any:
        """The natural logarithm, minus infinity at 0 and NaN below."""
        if x > 0.0:
            return np.float64(math.log(x))
        return np.float64(-math.inf if x == 0.0 else math.nan)

    @staticmethod
    def sqrt(x: Any) -> Any:
        """The square root, NaN below 0."""
        return np.float64(math.sqrt(x) if x >= 0.0 else math.nan)


@final
class AgentFunction:
    """A function of Python's numbers that gives a list of them, by the rules of compiled code.

    Python's own numbers are ten times as fast as NumPy's, and refuse what compiled code does not:
    where they do, NumPy's take over.

    Args:
        name: of the function.
        text: the module that defines it.
    """

    def __init__(self, name: str, text: str) -> None:
        self._safe = _defined(name, text, Lenient)
        # A power of a negative number would be complex instead of NaN.
        self._fast = None if "**" in text else _defined(name, text, math)

    def __call__(self, *numbers: float) -> list[float]:
        """Evaluate."""
        if self._fast is not None:
            try:
                return self._fast(*numbers)  # type: ignore[no-any-return]
            except (ArithmeticError, ValueError):
                pass
        with np.errstate(all="ignore"):
            return [float(value) for value in self._safe(*map(np.float64, numbers))]


def slope_of(fleet: Fleet, *, objective: bool) -> AgentFunction:
    """Return ``(x, parameters, m) -> df/dx + sum_t m_t dh_t/dx``, one number per component.

    Args:
        fleet: an agent's formulas; m has one number for every term of every sum.
        objective: whether f is part of it.
    """
    prices = prices_of(fleet)
    page = Emitter(names_in(fleet))
    slopes = list(slopes_of(page, fleet, prices, objective=objective))
    names = [*names_in(fleet).values(), *(m for part in prices for m in part)]
    return function_of(page, names, slopes)


def prices_of(fleet: Fleet) -> list[list[str]]:
    """The name of the multiplier of every term of every sum of an agent."""
    return [[f"m{s}_{t}" for t in range(len(p.terms))] for s, p in enumerate(fleet.sums)]


def values_of(fleet: Fleet, exprs: Sequence[Expression]) -> AgentFunction:
    """Return ``(x, parameters) -> values`` of formulas in an agent's own state."""
    page = Emitter(names_in(fleet))
    values = [page.value(expr) for expr in exprs]
    return function_of(page, [*names_in(fleet).values()], values)


def function_of(page: Emitter, names: Sequence[str], values: Sequence[str]) -> AgentFunction:
    """Return the function of ``names`` that a page computes."""
    lines = [*page.lines, f"return [{', '.join(values)}]"]
    return AgentFunction("own", f"def own({', '.join(names)}):\n{block(lines, 1)}\n")


def _defined(name: str, text: str, functions: Any) -> Any:
    module: dict[str, Any] = {"math": functions, "select": select}
    module |= {"home_damping": home_damping, "softness": softness}
    exec(text, module)  # noqa: S102  text of our own making
    return module[name]
