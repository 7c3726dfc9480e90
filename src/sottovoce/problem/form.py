"""Formulas that differ in numbers only have one form, in which the numbers are parameters.

``0.5*(x1 - 3)**2`` and ``0.7*(x2 + 1)**2`` are both ``p1*(x + p2)**2``. Exponents, and numbers that
float64 does not hold to the last bit, are part of the form. The form of a formula depends on that
formula alone, so that an agent by itself computes to the same bits what it would among others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import final

from sottovoce.formula.canonical import add, multiply, rebuilt, substitute
from sottovoce.formula.expression import NONSMOOTH, SLOPES, Expression, symbol
from sottovoce.problem.linear import exact_float


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Form:
    """Formulas of a state and of numbers that are told apart by their places.

    Attributes:
        formulas: in ``symbols`` and ``parameters``.
        symbols: the components of a state.
        parameters: what the numbers are called.
    """

    formulas: tuple[Expression, ...]
    symbols: tuple[Expression, ...]
    parameters: tuple[Expression, ...]


def key_of(formula: Expression, place: Mapping[Expression, int]) -> tuple[Expression, list[float]]:
    """Return a formula with parameters in place of its numbers, and these numbers.

    Args:
        formula: in the components of one state.
        place: which component, from 0, each symbol is.
    """
    numbers: list[float] = []
    states = {s: _state(c) for s, c in place.items()}

    def written(part: Expression) -> Expression:
        if part.is_symbol:
            return states[part]
        value = exact_float(part.value) if part.is_number else None
        if value is not None:
            numbers.append(value)
            return _parameter(len(numbers))
        if part.op in NONSMOOTH | SLOPES:
            # Functions with kinks look at the signs of numbers, which therefore stay.
            return substitute(part, states)
        return rebuilt(part, [written(a) for a in part.args]) if part.args else part

    return written(formula), numbers


@lru_cache(maxsize=1 << 10)
def form_of(keys: tuple[Expression, ...], dim: int) -> Form:
    """Return the formulas that several keys stand for, their numbers one after the other.

    Args:
        keys: from ``key_of``.
        dim: how many components the state has.
    """
    symbols = tuple(_state(c) for c in range(dim))
    formulas, count = [], 0
    for key in keys:
        own = len(key.symbols.difference(symbols))
        moved = {_parameter(k + 1): _parameter(count + k + 1) for k in range(own if count else 0)}
        formulas.append(substitute(key, moved))
        count += own
    parameters = tuple(_parameter(k + 1) for k in range(count))
    return Form(formulas=tuple(formulas), symbols=symbols, parameters=parameters)


@lru_cache(maxsize=1 << 10)
def linear_form(dim: int) -> Form:
    """Return the form ``p_1 x_1 + ... + p_d x_d``."""
    symbols = tuple(_state(c) for c in range(dim))
    parameters = tuple(_parameter(c + 1) for c in range(dim))
    formula = add(*(multiply(p, x) for p, x in zip(parameters, symbols, strict=True)))
    return Form(formulas=(formula,), symbols=symbols, parameters=parameters)


def _state(component: int) -> Expression:
    return symbol(f"x[{component + 1}]")


def _parameter(place: int) -> Expression:
    return symbol(f"p[{place}]")
