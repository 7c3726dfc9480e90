"""Lines that differentiate what one agent minimises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from sottovoce.engine.emit import Emitter
from sottovoce.engine.formulas import Fleet
from sottovoce.formula.derive import gradient
from sottovoce.formula.expression import ZERO, Expression
from sottovoce.problem.agents import Array

Prices: TypeAlias = Sequence[Sequence[str]]
"""The name of the multiplier m_t of every term of every sum."""


def names_in(fleet: Fleet) -> dict[Expression, str]:
    """What the states and parameters of an agent are called in the code."""
    names = {symbol: f"x{c}" for c, symbol in enumerate(fleet.group.symbols)}
    return names | {symbol: f"p{q}" for q, symbol in enumerate(used_parameters(fleet))}


def used_parameters(fleet: Fleet) -> dict[Expression, Array]:
    """The parameters that an agent's formulas name; others are in its bounds alone."""
    terms = [h for part in fleet.sums for h in part.terms]
    rows = () if fleet.local is None else (*fleet.local.inequalities, *fleet.local.equalities)
    named = set().union(*(expr.symbols for expr in (fleet.objective, *terms, *rows)))
    return {s: values for s, values in fleet.group.parameters.items() if s in named}


def slopes_of(
    page: Emitter,
    fleet: Fleet,
    prices: Prices,
    variables: Sequence[Expression] | None = None,
    *,
    objective: bool = True,
) -> Iterator[str]:
    """``df/dx_c + sum_t m_t dh_t/dx_c`` for every component c; without f if so asked.

    Args:
        page: takes the lines.
        fleet: the formulas.
        prices: the name of the multiplier m_t of every term of every sum.
        variables: what to differentiate by; the components of the state by default.
        objective: whether f is part of it.
    """
    moving = fleet.group.symbols if variables is None else variables
    own = gradient(fleet.objective, moving)
    priced = [
        (gradient(h, moving), name)
        for part, price in zip(fleet.sums, prices, strict=True)
        for h, name in zip(part.terms, price, strict=True)
    ]
    for symbol in moving:
        terms = [page.value(own.get(symbol, ZERO))] if objective else ["0.0"]
        terms += [page.times(name, dh[symbol]) for dh, name in priced if symbol in dh]
        yield page.fold("+", terms)
