"""Derivatives of long formulas by all symbols at once.

SymPy looks through every term of a sum for every symbol. A quadratic form of 40 agents has 820
terms, each of which names two of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy as sp


def slopes_of(expr: sp.Expr, symbols: Sequence[sp.Symbol]) -> dict[sp.Symbol, sp.Expr]:
    """Return ``df/ds`` for every symbol s that f depends on, those that are 0 left out.

    Args:
        expr: f.
        symbols: what to differentiate by; the answer is in their order.
    """
    found = _slopes(expr, frozenset(symbols))
    return {s: found[s] for s in symbols if s in found and found[s] != 0}


def _slopes(expr: sp.Expr, wanted: frozenset[sp.Symbol]) -> Mapping[sp.Symbol, sp.Expr]:
    """Sums term by term, products and powers by their rules, all else by SymPy."""
    if expr.is_Symbol:
        return {expr: sp.Integer(1)} if expr in wanted else {}
    if not (expr.is_Add or expr.is_Mul or (expr.is_Pow and not expr.exp.free_symbols)):
        return {s: sp.diff(expr, s) for s in expr.free_symbols & wanted}
    if expr.is_Pow:
        outer = expr.exp * expr.base ** (expr.exp - 1)
        return {s: outer * inner for s, inner in _slopes(expr.base, wanted).items()}
    parts: dict[sp.Symbol, list[sp.Expr]] = {}
    for k, part in enumerate(expr.args):
        inside = _slopes(part, wanted)
        rest = sp.Mul(*expr.args[:k], *expr.args[k + 1 :]) if inside and expr.is_Mul else 1
        for s, slope in inside.items():
            parts.setdefault(s, []).append(rest * slope)
    return {s: sp.Add(*terms) for s, terms in parts.items()}
