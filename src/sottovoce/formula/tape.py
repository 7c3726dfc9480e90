"""Evaluation of several canonical formulas, each distinct subexpression once.

``Lowering`` writes canonical formulas as elementary float64 operations. It fixes the operations and
their order, so that every evaluator has the same bits: sums and products from the left; a common
coefficient of all terms after the sum; division by the product of what has negative exponents;
integer powers by squaring, ``x^(2k) = (x^k)^2``; logarithms of sums of exponentials and quotients
by them so that none overflows (``log_sum_exp``). A ``Tape`` carries them out over NumPy arrays;
``sottovoce.kernels.lower`` emits them as register code.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Generic, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.formula.canonical import coefficient, is_integer
from sottovoce.formula.expression import Expression, Op, Scalar
from sottovoce.formula.log_sum_exp import argument_of, exponentials

Array: TypeAlias = NDArray[np.float64]
Values: TypeAlias = Any  # a float64 number or an array of them

_Value = TypeVar("_Value")
_HALF: Final = Fraction(1, 2)


class Lowering(ABC, Generic[_Value]):
    """Writes formulas as ``add, sub, mul, div, sqrt, pow, exp, log, abs, sign, max, where``.

    ``values`` has the value of every symbol that formulas may name.
    """

    def __init__(self, values: Mapping[Expression, _Value]) -> None:
        self._values: dict[Expression, _Value] = dict(values)

    @abstractmethod
    def number(self, value: float) -> _Value:
        """A constant."""

    @abstractmethod
    def operation(self, name: str, *operands: _Value) -> _Value:
        """The result of one elementary operation."""

    def value(self, expr: Expression) -> _Value:
        """The value of a canonical formula; KeyError if it names a symbol without one."""
        if expr not in self._values:
            self._values[expr] = self._lowered(expr)
        return self._values[expr]

    def _lowered(self, expr: Expression) -> _Value:
        if expr.op == Op.NUMBER:
            return self.number(float(expr.value))
        if expr.op == Op.SYMBOL:
            raise KeyError(f"a formula needs a value of {expr.value}, got none")
        if expr.op == Op.ADD:
            return self._sum(expr)
        if expr.op == Op.MUL:
            return self._product(expr.args)
        if expr.op == Op.POW and expr.value < 0:
            return self._product((expr,))
        if expr.op == Op.LOG and exponentials(expr.args[0]):
            m, total = self._scaled_sum(expr.args[0])
            return self.operation("add", m, self.operation("log", total))
        operands = [self.value(a) for a in expr.args]
        if expr.op == Op.POW:
            return self._power(operands[0], expr.value)
        if expr.op == Op.MAX:
            return self.fold("max", operands)
        if expr.op == Op.NORM:
            return self.operation("sqrt", self._dot(operands, operands))
        if expr.op == Op.NORM_SLOPE:
            return self._norm_slope(operands)
        if expr.op == Op.HUBER:
            return self._huber(operands[0], self.number(float(expr.value)))
        return self.operation(expr.op, *operands)

    def fold(self, name: str, values: Sequence[_Value]) -> _Value:
        """``a op b op c ...`` from the left."""
        result = values[0]
        for value in values[1:]:
            result = self.operation(name, result, value)
        return result

    def _sum(self, expr: Expression) -> _Value:
        scale, terms = _common_coefficient(expr)
        total = self.value(terms[0])
        for term in terms[1:]:
            factor, rest = coefficient(term)
            if factor == -1:  # a + (-1) b has the bits of a - b
                total = self.operation("sub", total, self.value(rest))
            else:
                total = self.operation("add", total, self.value(term))
        return total if scale == 1 else self.operation("mul", self.number(float(scale)), total)

    def _product(self, factors: Sequence[Expression]) -> _Value:
        above: list[Expression] = []
        divisors: list[_Value] = []
        shifts: list[_Value] = []
        for factor in factors:
            if factor.op != Op.POW or factor.value > 0:
                above.append(factor)
                continue
            base, exponent = factor.args[0], -factor.value
            if exponentials(base):
                m, total = self._scaled_sum(base)
                scale = self.number(float(exponent))
                shifts.append(m if exponent == 1 else self.operation("mul", scale, m))
            else:
                total = self.value(base)
            divisors.append(self._power(total, exponent))
        numerators = [self.value(f) for f in above if not (shifts and f.op == Op.EXP)]
        if shifts:
            shifted = self.fold("sub", [self.value(argument_of(above)), *shifts])
            numerators.append(self.operation("exp", shifted))
        top = self.fold("mul", numerators) if numerators else self.number(1.0)
        return self.operation("div", top, self.fold("mul", divisors)) if divisors else top

    def _scaled_sum(self, expr: Expression) -> tuple[_Value, _Value]:
        """Scale a sum of exponentials, m and T: see ``sottovoce.formula.log_sum_exp``."""
        terms = exponentials(expr)
        m = self.fold("max", [self.value(a) for _, a in terms])
        scaled = []
        for weight, a in terms:
            power = self.operation("exp", self.operation("sub", self.value(a), m))
            scaled.append(self.operation("mul", self._product(weight), power) if weight else power)
        return m, self.fold("add", scaled)

    def _power(self, base: _Value, exponent: Scalar) -> _Value:
        """A positive power."""
        if exponent == 1:
            return base
        if exponent == _HALF:
            return self.operation("sqrt", base)
        if not is_integer(exponent):
            return self.operation("pow", base, self.number(float(exponent)))
        half = self._power(base, int(exponent) // 2)
        square = self.operation("mul", half, half)
        return square if int(exponent) % 2 == 0 else self.operation("mul", square, base)

    def _dot(self, a: Sequence[_Value], b: Sequence[_Value]) -> _Value:
        return self.fold("add", [self.operation("mul", *pair) for pair in zip(a, b, strict=True)])

    def _norm_slope(self, operands: Sequence[_Value]) -> _Value:
        """``a'b / ||a||``, 0 at a = 0."""
        a, b = operands[: len(operands) // 2], operands[len(operands) // 2 :]
        top, length = self._dot(a, b), self.operation("sqrt", self._dot(a, a))
        below = self.operation("where", length, length, self.number(1.0))
        quotient = self.operation("div", top, below)
        return self.operation("where", length, quotient, self.number(0.0))

    def _huber(self, a: _Value, width: _Value) -> _Value:
        """``M (2 |a| - M)`` where ``|a| - M > 0``, otherwise ``a^2``."""
        size = self.operation("abs", a)
        excess = self.operation("sub", size, width)
        double = self.operation("mul", self.number(2.0), size)
        line = self.operation("mul", width, self.operation("sub", double, width))
        return self.operation("where", excess, line, self.operation("mul", a, a))


def _common_coefficient(expr: Expression) -> tuple[Scalar, tuple[Expression, ...]]:
    """The coefficient that all terms of a sum share, and the terms without it; 1 if none."""
    parts = [coefficient(term) for term in expr.args]
    first = parts[0][0]
    if first != 1 and all(c == first for c, rest in parts) and not expr.args[-1].is_number:
        return first, tuple(rest for _, rest in parts)
    return 1, expr.args


_NUMPY: Final[dict[str, Callable[..., Values]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "sqrt": np.sqrt,
    "pow": np.power,
    "exp": np.exp,
    "log": np.log,
    "abs": np.abs,
    "sign": np.sign,
    "max": lambda a, b: np.where(a > b, a, b),
    "where": lambda condition, yes, no: np.where(condition > 0.0, yes, no),
}


@final
class _Float64(Lowering[Values]):
    """Carries operations out at once."""

    def number(self, value: float) -> Values:
        return value

    def operation(self, name: str, *operands: Values) -> Values:
        return _NUMPY[name](*operands)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tape:
    """Canonical formulas of some symbols, the inputs, in the order of their values."""

    inputs: tuple[Expression, ...]
    formulas: tuple[Expression, ...]

    def __call__(self, *values: Values) -> list[Values]:
        """Evaluate in float64; values broadcast against each other."""
        # NumPy's scalars: Python's raise where IEEE arithmetic gives NaN or infinity.
        numbers = [np.float64(v) if isinstance(v, float | int) else v for v in values]
        evaluation = _Float64(dict(zip(self.inputs, numbers, strict=True)))
        with np.errstate(all="ignore"):
            return [evaluation.value(f) for f in self.formulas]

    def arrays(self, values: Sequence[Values], shape: tuple[int, ...]) -> list[Array]:
        """Evaluate and broadcast every result to one shape."""
        results = self(*values)
        return [np.broadcast_to(np.asarray(v, dtype=np.float64), shape) for v in results]


def tape(formulas: Iterable[Expression], inputs: Iterable[Expression]) -> Tape:
    """Return canonical formulas as a tape over all symbols that they name, and maybe others."""
    return Tape(inputs=tuple(inputs), formulas=tuple(formulas))
