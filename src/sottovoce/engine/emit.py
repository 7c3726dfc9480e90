"""Formulas as straight-line Python: one assignment per distinct subexpression."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, final

from sottovoce.formula.canonical import is_integer, power
from sottovoce.formula.expression import Expression, Op
from sottovoce.formula.tape import common_coefficient

_FUNCTIONS = {Op.EXP: "math.exp", Op.LOG: "math.log", Op.ABS: "abs"}


@final
class Emitter:
    """Writes the lines that compute formulas, each subexpression once.

    Args:
        names: what the symbols are called in the code.
    """

    def __init__(self, names: Mapping[Expression, str]) -> None:
        self.lines: list[str] = []
        self._known: dict[Any, str] = dict(names)

    def value(self, expr: Expression) -> str:
        """Return a name or a number for the value of ``expr``, after the lines written so far."""
        if expr not in self._known:
            self._known[expr] = self._write(expr)
        return self._known[expr]

    def assign(self, text: str) -> str:
        """Write ``name = text`` with a fresh name and return the name."""
        name = f"t{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    def fold(self, sign: str, values: Iterable[str]) -> str:
        """Return the name of ``a sign b sign c ...``, from the left."""
        names = iter(values)
        result = next(names)
        for name in names:
            result = self.assign(f"{result} {sign} {name}")
        return result

    def times(self, name: str, expr: Expression) -> str:
        """Return the name of ``name * expr``."""
        return name if expr.is_one else self.assign(f"{name} * {self.value(expr)}")

    def _write(self, expr: Expression) -> str:
        if expr.is_number:
            return repr(float(expr.value))
        if expr.op == Op.ADD:
            return self._sum(expr)
        if expr.op == Op.MUL:
            return self._product(expr)
        if expr.op == Op.POW:
            return self._power(expr.args[0], expr.value)
        values = [self.value(a) for a in expr.args]
        if expr.op in _FUNCTIONS:
            return self.assign(f"{_FUNCTIONS[expr.op]}({values[0]})")
        return self._nonsmooth(expr, values)

    def _nonsmooth(self, expr: Expression, values: list[str]) -> str:
        """Kinks and their slopes by comparisons, in the order that every evaluation keeps."""
        if expr.op == Op.SIGN:
            (a,) = values
            return self.assign(f"1.0 if {a} > 0.0 else (-1.0 if {a} < 0.0 else 0.0)")
        if expr.op == Op.MAX:
            largest = values[0]
            for b in values[1:]:
                largest = self.assign(f"{largest} if {largest} > {b} else {b}")
            return largest
        if expr.op == Op.WHERE:
            d, yes, no = values
            return self.assign(f"{yes} if {d} > 0.0 else {no}")
        if expr.op == Op.HUBER:
            a, m = values[0], repr(float(expr.value))
            size = self.assign(f"abs({a})")
            return self.assign(f"{a} * {a} if {size} <= {m} else {m} * (2.0 * {size} - {m})")
        if expr.op == Op.NORM:
            return self._length(values)
        half = len(values) // 2  # along
        pairs = zip(values[:half], values[half:], strict=True)
        top = self.fold("+", [self.assign(f"{a} * {b}") for a, b in pairs])
        length = self._length(values[:half])
        return self.assign(f"{top} / {length} if {length} > 0.0 else 0.0")

    def _length(self, values: list[str]) -> str:
        total = self.fold("+", [self.assign(f"{a} * {a}") for a in values])
        return self.assign(f"math.sqrt({total})")

    def _sum(self, expr: Expression) -> str:
        scale, terms = common_coefficient(expr)
        total = self.fold("+", [self.value(term) for term in terms])
        return total if scale == 1 else self.assign(f"{float(scale)!r} * {total}")

    def _product(self, expr: Expression) -> str:
        below = [a for a in expr.args if a.op == Op.POW and a.value < 0]
        above = [self.value(a) for a in expr.args if a.op != Op.POW or a.value > 0] or ["1.0"]
        top = self.fold("*", above)
        if not below:
            return top
        bottom = self.fold("*", [self.value(power(a.args[0], -a.value)) for a in below])
        return self.assign(f"{top} / {bottom}")

    def _power(self, base: Expression, exponent: Any) -> str:
        if exponent < 0:
            return self.assign(f"1.0 / {self.value(power(base, -exponent))}")
        x = self.value(base)
        if exponent == 0.5:
            return self.assign(f"math.sqrt({x})")
        if is_integer(exponent):
            half = self.value(power(base, exponent // 2))
            even = self.assign(f"{half} * {half}")
            return even if exponent % 2 == 0 else self.assign(f"{even} * {x}")
        return self.assign(f"{x} ** {float(exponent)!r}")
