"""Least and largest values of formulas over boxes: interval arithmetic without outward rounding.

For signs and starting bounds; what a proof rests on is ``sottovoce.certificate``'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np

from sottovoce.formula.canonical import is_even, is_integer
from sottovoce.formula.expression import Expression, Op, nodes

Ends: TypeAlias = tuple[Any, Any]
"""Least and largest value, two numbers or two arrays with one entry per box."""


def value_range(formula: Expression, box: Mapping[Expression, Ends]) -> Ends:
    """Return ends that hold all values of a canonical formula; the whole line if nothing is known.

    Args:
        formula: what to bound.
        box: the ends of every symbol.
    """
    known: dict[Expression, Ends] = dict(box)
    with np.errstate(all="ignore"):
        for part in nodes((formula,)):
            if part.op == Op.NUMBER:
                known[part] = (float(part.value),) * 2
            elif part not in known:
                low, high = _ends(part, [known[a] for a in part.args])
                unknown = np.isnan(low) | np.isnan(high)
                known[part] = np.where(unknown, -np.inf, low), np.where(unknown, np.inf, high)
    return known[formula]


def _ends(expr: Expression, inner: Sequence[Ends]) -> Ends:
    lows, highs = [low for low, _ in inner], [high for _, high in inner]
    low, high = inner[0]
    if expr.op == Op.ADD:
        return sum(lows[1:], low), sum(highs[1:], high)
    if expr.op == Op.MUL:
        for a, b in inner[1:]:
            corners = np.stack(np.broadcast_arrays(low * a, low * b, high * a, high * b))
            low, high = corners.min(axis=0), corners.max(axis=0)
        return low, high
    if expr.op == Op.POW:
        return _power(low, high, expr.value)
    if expr.op == Op.EXP:
        return np.exp(low), np.exp(high)
    if expr.op == Op.LOG:
        return np.log(np.maximum(low, 0.0)), np.log(high)
    if expr.op == Op.MAX:
        return reduce(np.maximum, lows), reduce(np.maximum, highs)
    if expr.op in (Op.ABS, Op.NORM, Op.HUBER):
        least = [np.where((a <= 0) & (b >= 0), 0.0, np.minimum(abs(a), abs(b))) for a, b in inner]
        most = [np.maximum(np.abs(a), np.abs(b)) for a, b in inner]
        return _size(expr, least), _size(expr, most)
    return np.nan, np.nan


def _size(expr: Expression, a: Sequence[Any]) -> Any:
    """An absolute value, a norm or Huber's function of what is at least 0."""
    if expr.op == Op.HUBER:
        m = float(expr.value)
        return np.where(a[0] <= m, a[0] * a[0], m * (2.0 * a[0] - m))
    return np.sqrt(sum(part * part for part in a))


def _power(low: Any, high: Any, p: Any) -> Ends:
    if p < 0:
        below = _power(low, high, -p)
        apart = (below[0] > 0) | (below[1] < 0)
        return np.where(apart, 1.0 / below[1], np.nan), np.where(apart, 1.0 / below[0], np.nan)
    if not is_integer(p):
        low = np.maximum(low, 0.0)  # not defined below
    ends = np.float64(low) ** float(p), np.float64(high) ** float(p)
    if not is_even(p):
        return ends
    turns = (np.asarray(low) <= 0.0) & (np.asarray(high) >= 0.0)
    return np.where(turns, 0.0, np.minimum(*ends)), np.maximum(*ends)
