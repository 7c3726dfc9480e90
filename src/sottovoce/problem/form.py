"""Formulas that differ in numbers only have one form, in which the numbers are parameters.

``0.5*(x1 - 3)**2`` and ``0.7*(x2 + 1)**2`` are both ``p1*(x + p2)**2``. Exponents, and numbers that
float64 does not hold to the last bit, are part of the form. The form of a formula depends on that
formula alone, so that an agent by itself computes to the same bits what it would among others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, final

import sympy as sp

from sottovoce.problem.arrays import plain_float

Key: TypeAlias = tuple[Any, ...]
"""A tree of tuples; the same for formulas of the same form."""

_PARAMETER: Key = ("p",)
_PLAIN = {"Add": sp.Add, "Mul": sp.Mul, "Pow": sp.Pow, "exp": sp.exp, "log": sp.log}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Formulas of a state and of numbers that are told apart by their places.

    Attributes:
        formulas: in ``symbols`` and ``parameters``.
        symbols: the components of a state.
        parameters: what the numbers are called.
    """

    formulas: tuple[sp.Expr, ...]
    symbols: tuple[sp.Symbol, ...]
    parameters: tuple[sp.Symbol, ...]


def key_of(formula: sp.Expr, place: Mapping[sp.Symbol, int]) -> tuple[Key, list[float]]:
    """Return what the form of a formula is known by, and its numbers.

    Args:
        formula: in the components of one state.
        place: which component, from 0, each symbol is.
    """
    if formula.is_Symbol:
        return ("x", place[formula]), []
    if formula.is_Number:
        value = plain_float(formula)
        return (("n", sp.srepr(formula)), []) if value is None else (_PARAMETER, [value])
    if formula.is_NumberSymbol or not formula.args:
        return ("n", sp.srepr(formula)), []
    if formula.func not in _PLAIN.values():
        # Functions with kinks look at the signs of numbers, which therefore stay.
        return ("k", formula.xreplace({s: _state(c) for s, c in place.items()})), []
    if formula.is_Pow:
        base, numbers = key_of(formula.base, place)
        return ("Pow", base, ("n", sp.srepr(formula.exp))), numbers
    parts = [key_of(a, place) for a in formula.args]
    if formula.is_Add or formula.is_Mul:
        # SymPy sorts by the numbers too, which must not tell forms apart.
        parts.sort(key=lambda part: (repr(part[0]), part[1]))
    keys = tuple(key for key, _ in parts)
    return (formula.func.__name__, *keys), [value for _, values in parts for value in values]


@lru_cache(maxsize=1 << 10)
def form_of(keys: tuple[Key, ...], dim: int) -> Form:
    """Return the formulas that several keys stand for, their numbers one after the other.

    Args:
        keys: from ``key_of``.
        dim: how many components the state has.
    """
    symbols = tuple(_state(c) for c in range(dim))
    parameters: list[sp.Symbol] = []
    formulas = tuple(_built(key, symbols, parameters) for key in keys)
    return Form(formulas=formulas, symbols=symbols, parameters=tuple(parameters))


def _state(component: int) -> sp.Symbol:
    return sp.Symbol(f"x[{component + 1}]")


def _built(key: Key, symbols: Sequence[sp.Symbol], parameters: list[sp.Symbol]) -> sp.Expr:
    kind = key[0]
    if kind == "x":
        return symbols[key[1]]
    if kind == "p":
        parameters.append(sp.Symbol(f"p[{len(parameters) + 1}]"))
        return parameters[-1]
    if kind == "k":
        return key[1]
    if kind == "n":
        return sp.sympify(key[1])
    return _PLAIN[kind](*(_built(child, symbols, parameters) for child in key[1:]))
