"""Sums of exponentials without overflow: their structure, intervals and rounding errors.

    S = sum_k c_k e^(a_k),    m = max_k a_k,    T = sum_k c_k e^(a_k - m)
    ln S = m + ln T,          e^a / S^q = e^(a - q m) / T^q

This is how ``sottovoce.formula.tape`` evaluates logarithms of and quotients by such sums, whatever
their weights c_k; the identities hold for every real m, so that an error of m costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
from operator import add, mul
from typing import NamedTuple, TypeAlias

import numpy as np

from sottovoce.formula.canonical import addends, factors
from sottovoce.formula.expression import ZERO, Expression, Op
from sottovoce.formula.intervals import BoolArray, Interval, constant, unchecked

Values: TypeAlias = Mapping[Expression, Interval]


class Exponential(NamedTuple):
    """A term ``c e^a``; a is 0 for a term without an exponential."""

    weight: tuple[Expression, ...]  # the factors of c
    argument: Expression  # a

    def weight_in(self, values: Values) -> Interval:
        """The range of c."""
        return reduce(mul, (values[f] for f in self.weight), constant(1))

    def argument_in(self, values: Values) -> Interval:
        """The range of a."""
        return constant(0) if self.argument is ZERO else values[self.argument]


def argument_of(parts: Sequence[Expression]) -> Expression:
    """The a of the factor ``e^a`` of a product, of which a canonical one has at most one; 0."""
    return next((f.args[0] for f in parts if f.op == Op.EXP), ZERO)


@lru_cache(maxsize=4096)
def exponentials(expr: Expression) -> tuple[Exponential, ...]:
    """The terms of a sum in which exponentials occur; none of any other formula."""
    if not any(f.op == Op.EXP for term in addends(expr) for f in factors(term)):
        return ()
    return tuple(
        Exponential(tuple(f for f in factors(t) if f.op != Op.EXP), argument_of(factors(t)))
        for t in addends(expr)
    )


def is_proven_positive(expr: Expression, values: Values) -> BoolArray:
    """Where a sum of exponentials is positive because no weight is negative and one positive."""
    least = [term.weight_in(values).lower for term in exponentials(expr)]
    if not least:
        return np.zeros((), dtype=np.bool_)
    return np.asarray((reduce(np.minimum, least) >= 0.0) & (reduce(np.maximum, least) > 0.0))


def logarithm(expr: Expression, values: Values) -> Interval | None:
    """Enclose ``ln S``, which rises with every a_k and c_k; None unless no weight is negative."""
    if not np.all(is_proven_positive(expr, values)):
        return None
    terms = [(t.weight_in(values), t.argument_in(values)) for t in exponentials(expr)]
    ends = []
    for end in ("lower", "upper"):
        points = [(getattr(c, end), getattr(a, end)) for c, a in terms]
        largest = reduce(np.maximum, (a for _, a in points))
        m = np.where(np.isfinite(largest), largest, 0.0)
        T = reduce(
            add, (unchecked(c, c) * (unchecked(a, a) - unchecked(m, m)).exp() for c, a in points)
        )
        ends.append(getattr(T.log() + unchecked(m, m), end))
    return unchecked(*ends)


def is_reciprocal_sum(factor: Expression) -> bool:
    """Whether a factor is a negative power of a sum of exponentials."""
    return factor.op == Op.POW and factor.value < 0 and bool(exponentials(factor.args[0]))


def enclose_softmax(parts: Sequence[Expression], values: Values) -> Interval | None:
    """Enclose a product with ``e^(a_i) / S``, which is ``1 / (c_i + sum_j c_j e^(a_j - a_i))``.

    None unless there is one such quotient and no weight is negative.
    """
    a = argument_of(parts)
    below = [f for f in parts if is_reciprocal_sum(f) and f.value == -1]
    if a is ZERO or len(below) != 1:
        return None
    terms = exponentials(below[0].args[0])
    positive = np.all(is_proven_positive(below[0].args[0], values))
    if not positive or all(t.argument is not a for t in terms):
        return None
    ratios = (
        t.weight_in(values) * (t.argument_in(values) - values[a]).exp()
        if t.argument is not a
        else t.weight_in(values)
        for t in terms
    )
    others = (values[f] for f in parts if f is not below[0] and f.op != Op.EXP)
    return reduce(mul, others, reduce(add, ratios).reciprocal())
