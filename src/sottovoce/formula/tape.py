"""Tapes: several formulas as one list of instructions, each distinct subexpression once.

A tape is data: an operation, its constant and the places of its operands, operands first. It is
evaluated in float64 over arrays here, in interval arithmetic by ``formula.enclosure`` and over
(value, error) pairs by ``formula.enclosure``.

The float64 operations and their order are fixed, so that every evaluator has the same bits: sums
and products from the left; a common coefficient of all terms after the sum; division by the product
of what has negative exponents; integer powers by squaring, ``x^(2k) = (x^k)^2``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.formula.canonical import coefficient, is_integer
from sottovoce.formula.expression import Expression, Op, Scalar, nodes

Array: TypeAlias = NDArray[np.float64]
Values: TypeAlias = Any
"""A float64 number or an array of them."""

_HALF = Fraction(1, 2)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tape:
    """Formulas of some inputs.

    Attributes:
        inputs: the symbols, in the order of their values.
        formulas: the canonical formulas, in the order of the results.
        order: every distinct node, operands first.
    """

    inputs: tuple[Expression, ...]
    formulas: tuple[Expression, ...]
    order: tuple[Expression, ...]

    def __call__(self, *values: Values) -> list[Values]:
        """Evaluate in float64; values broadcast against each other."""
        # NumPy's scalars: Python's raise where IEEE arithmetic gives NaN or infinity.
        numbers = (np.float64(v) if isinstance(v, float | int) else v for v in values)
        known: dict[Expression, Values] = dict(zip(self.inputs, numbers, strict=True))
        with np.errstate(all="ignore"):
            for part in self.order:
                if part not in known:
                    known[part] = _value(part, known)
        return [known[f] for f in self.formulas]

    def arrays(self, values: Sequence[Values], shape: tuple[int, ...]) -> list[Array]:
        """Evaluate and broadcast every result to one shape."""
        results = self(*values)
        return [np.broadcast_to(np.asarray(v, dtype=np.float64), shape) for v in results]


def tape(formulas: Iterable[Expression], inputs: Iterable[Expression]) -> Tape:
    """Return canonical formulas as a tape over some symbols.

    Raises:
        KeyError: when evaluated, if a formula names another symbol.
    """
    listed = tuple(formulas)
    return Tape(inputs=tuple(inputs), formulas=listed, order=tuple(nodes(listed)))


def _value(expr: Expression, known: dict[Expression, Values]) -> Values:
    if expr.op == Op.NUMBER:
        return float(expr.value)
    if expr.op == Op.SYMBOL:
        raise KeyError(f"a formula needs a value of {expr.value}, got none")
    if expr.op == Op.ADD:
        return _sum(expr, known)
    if expr.op == Op.MUL:
        return _product(expr.args, known)
    if expr.op == Op.POW:
        return _power(known[expr.args[0]], expr.value)
    values = [known[a] for a in expr.args]
    if expr.op == Op.HUBER:
        return _huber(values[0], float(expr.value))
    return _FUNCTIONS[expr.op](*values)


def common_coefficient(expr: Expression) -> tuple[Scalar, tuple[Expression, ...]]:
    """The coefficient that all terms of a sum share, and the terms without it; 1 if none."""
    parts = [coefficient(term) for term in expr.args]
    first = parts[0][0]
    if first != 1 and all(c == first for c, rest in parts) and not expr.args[-1].is_number:
        return first, tuple(rest for _, rest in parts)
    return 1, expr.args


def _sum(expr: Expression, known: dict[Expression, Values]) -> Values:
    scale, terms = common_coefficient(expr)
    values = [known[t] if t in known else _product(t.args, known) for t in terms]
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total if scale == 1 else float(scale) * total


def _product(args: Sequence[Expression], known: Mapping[Expression, Values]) -> Values:
    top: Values = None
    below: Values = None
    for factor in args:
        if factor.op == Op.POW and factor.value < 0:
            value = _power(known[factor.args[0]], -factor.value)
            below = value if below is None else below * value
        else:
            value = known[factor] if factor in known else float(factor.value)
            top = value if top is None else top * value
    if below is None:
        return top
    return (1.0 if top is None else top) / below


def _power(base: Values, exponent: Scalar) -> Values:
    if exponent < 0:
        return 1.0 / _power(base, -exponent)
    if exponent == 1:
        return base
    if exponent == _HALF:
        return np.sqrt(base)
    if is_integer(exponent):
        half = _power(base, int(exponent) // 2)
        square = half * half
        return square if int(exponent) % 2 == 0 else square * base
    return np.power(base, float(exponent))


def _huber(a: Values, m: float) -> Values:
    size = np.abs(a)
    return np.where(size <= m, a * a, m * (2.0 * size - m))


def _length(*a: Values) -> Values:
    total = a[0] * a[0]
    for part in a[1:]:
        total = total + part * part
    return np.sqrt(total)


def _along(*both: Values) -> Values:
    half = len(both) // 2
    a, b = both[:half], both[half:]
    top = a[0] * b[0]
    for x, y in zip(a[1:], b[1:], strict=True):
        top = top + x * y
    length = _length(*a)
    return np.where(length > 0.0, top / np.where(length > 0.0, length, 1.0), 0.0)


def _largest(*a: Values) -> Values:
    largest = a[0]
    for part in a[1:]:
        largest = np.where(largest > part, largest, part)
    return largest


_FUNCTIONS: dict[str, Callable[..., Values]] = {
    Op.EXP: np.exp,
    Op.LOG: np.log,
    Op.ABS: np.abs,
    Op.SIGN: np.sign,
    Op.MAX: _largest,
    Op.WHERE: lambda d, yes, no: np.where(d > 0.0, yes, no),
    Op.NORM: _length,
    Op.ALONG: _along,
}
