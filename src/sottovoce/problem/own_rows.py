"""Public constraints on one component of one state: bounds in another guise.

Such a constraint couples nobody, so it needs no multiplier and no release: it shrinks the box of
its agent. ``{t : g(t) <= 0}`` of a convex g is an interval, found to the last float inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import sympy as sp

from sottovoce.errors import ProblemError
from sottovoce.problem.agents import Array, Group, read_only
from sottovoce.problem.constraints import Constraint
from sottovoce.problem.shape import shape

_SHRINK = 200  # a bracket is cut by a third so often: below the spacing of floats
_GOLDEN = (3.0 - 5.0**0.5) / 2.0


def absorbed(
    groups: tuple[Group, ...], constraints: Sequence[Constraint]
) -> tuple[tuple[Group, ...], tuple[Constraint, ...], tuple[Constraint, ...]]:
    """Turn constraints on one component of one named agent into bounds.

    Returns:
        The agents with their smaller boxes, the constraints that remain, and those that went.

    Raises:
        ProblemError: if no point of an agent's box meets one of them.
    """
    boxes = {group.name: group for group in groups}
    owner = {s: (g.name, c) for g in groups if g.count == 1 for c, s in enumerate(g.symbols)}
    kept: list[Constraint] = []
    gone: list[Constraint] = []
    for constraint in constraints:
        symbols = constraint.rest[0].free_symbols if len(constraint.rest) == 1 else set()
        bent = shape(constraint.rest[0]) if len(symbols) == 1 and not constraint.sums else None
        if bent == "affine" or (bent == "convex" and not constraint.equality):
            (symbol,) = symbols
            name, c = owner[symbol]
            boxes[name] = _shrunk(boxes[name], c, constraint, symbol)
            gone.append(constraint)
        else:
            kept.append(constraint)
    return tuple(boxes.values()), tuple(kept), tuple(gone)


def _shrunk(group: Group, c: int, constraint: Constraint, symbol: sp.Symbol) -> Group:
    low, high = float(group.lower[0, c]), float(group.upper[0, c])
    g = constraint.rest[0] + sp.Float(float(constraint.offset[0]))
    if constraint.equality:
        at = float(sp.solve(g, symbol)[0])
        found = (at, at) if low <= at <= high else None
    else:
        value = sp.lambdify(symbol, g, modules="math")
        found = _sublevel(value, low, high)
    if found is None:
        raise ProblemError(
            f"constraint {constraint.name} must hold somewhere between the bounds of {symbol}, "
            f"{low:g} and {high:g}, got none: relax it or widen them"
        )
    return replace(
        group,
        lower=_with(group.lower, c, found[0]),
        upper=_with(group.upper, c, found[1]),
    )


def _with(bounds: Array, c: int, value: float) -> Array:
    changed = np.array(bounds)
    changed[0, c] = value
    return read_only(changed)


def _sublevel(
    value: Callable[[float], float], low: float, high: float
) -> tuple[float, float] | None:
    """The floats with ``value <= 0`` between low and high, an interval because value is convex."""

    def holds(t: float) -> bool:
        return _safely(value, t) <= 0.0

    inside = next((t for t in (low, high, _lowest(value, low, high)) if holds(t)), None)
    if inside is None:
        return None
    return _edge(holds, low, inside), _edge(holds, high, inside)


def _edge(holds: Callable[[float], bool], outside: float, inside: float) -> float:
    """The float nearest to ``outside`` that still holds."""
    if holds(outside):
        return outside
    while True:
        middle = outside / 2.0 + inside / 2.0
        if middle in (outside, inside):
            return inside
        if holds(middle):
            inside = middle
        else:
            outside = middle


def _lowest(value: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(_SHRINK):
        a, b = low + _GOLDEN * (high - low), high - _GOLDEN * (high - low)
        if _safely(value, a) <= _safely(value, b):
            high = b
        else:
            low = a
    return low / 2.0 + high / 2.0


def _safely(value: Callable[[float], float], t: float) -> float:
    try:
        return float(value(t))
    except (ValueError, OverflowError, ZeroDivisionError):
        return np.inf  # outside the domain of a logarithm, say, nothing holds
