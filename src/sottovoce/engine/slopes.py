"""Lines that differentiate what one agent minimises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import sympy as sp

from sottovoce.engine.emit import Emitter
from sottovoce.engine.formulas import Fleet
from sottovoce.problem.agents import Array

Prices: TypeAlias = Sequence[Sequence[str]]
"""The name of the multiplier m_t of every term of every sum."""


def names_in(fleet: Fleet) -> dict[sp.Symbol, str]:
    """What the states and parameters of an agent are called in the code."""
    names = {symbol: f"x{c}" for c, symbol in enumerate(fleet.group.symbols)}
    return names | {symbol: f"p{q}" for q, symbol in enumerate(used_parameters(fleet))}


def used_parameters(fleet: Fleet) -> dict[sp.Symbol, Array]:
    """The parameters that an agent's formulas name; others are in its bounds alone."""
    terms = [h for part in fleet.sums for h in part.terms]
    rows = () if fleet.local is None else (*fleet.local.inequalities, *fleet.local.equalities)
    named = set().union(*(expr.free_symbols for expr in (fleet.objective, *terms, *rows)))
    return {s: values for s, values in fleet.group.parameters.items() if s in named}


def slopes_of(
    page: Emitter,
    fleet: Fleet,
    prices: Prices,
    variables: Sequence[sp.Symbol] | None = None,
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
    for symbol in fleet.group.symbols if variables is None else variables:
        terms = [page.value(fleet.objective.diff(symbol))] if objective else ["0.0"]
        for part, price in zip(fleet.sums, prices, strict=True):
            for h, name in zip(part.terms, price, strict=True):
                if symbol in h.free_symbols:
                    terms.append(page.times(name, h.diff(symbol)))
        yield page.fold("+", terms)
