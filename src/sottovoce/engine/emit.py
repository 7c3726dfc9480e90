"""SymPy formulas as straight-line Python: one assignment per distinct subexpression."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, final

import sympy as sp

from sottovoce.errors import ProblemError
from sottovoce.problem import kinks

_FUNCTIONS = {sp.exp: "math.exp", sp.log: "math.log"}


@final
class Emitter:
    """Writes the lines that compute formulas, each subexpression once.

    Args:
        names: what the symbols are called in the code.
    """

    def __init__(self, names: Mapping[sp.Symbol, str]) -> None:
        self.lines: list[str] = []
        self._known: dict[Any, str] = dict(names)

    def value(self, expr: sp.Expr) -> str:
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

    def times(self, name: str, expr: sp.Expr) -> str:
        """Return the name of ``name * expr``."""
        return name if expr == 1 else self.assign(f"{name} * {self.value(expr)}")

    def _write(self, expr: sp.Expr) -> str:
        if expr.is_number:
            return repr(float(expr))
        if isinstance(expr, sp.Add):
            return self._sum(expr)
        if isinstance(expr, sp.Mul):
            return self._product(expr)
        if isinstance(expr, sp.Pow):
            return self._power(expr.base, expr.exp)
        if type(expr) in _FUNCTIONS:
            return self.assign(f"{_FUNCTIONS[type(expr)]}({self.value(expr.args[0])})")
        if isinstance(expr, sp.Function):
            return self._kink(expr)
        raise ProblemError(f"a formula may use sums, products, powers, exp and log, got {expr}")

    def _kink(self, expr: sp.Expr) -> str:
        """Kinks and their slopes by comparisons, in the order that every evaluation keeps."""
        values = [self.value(a) for a in expr.args]
        if isinstance(expr, kinks.absolute):
            return self.assign(f"abs({values[0]})")
        if isinstance(expr, kinks.sgn):
            (a,) = values
            return self.assign(f"1.0 if {a} > 0.0 else (-1.0 if {a} < 0.0 else 0.0)")
        if isinstance(expr, kinks.maximum):
            a, b = values
            return self.assign(f"{a} if {a} > {b} else {b}")
        if isinstance(expr, kinks.chosen):
            d, yes, no = values
            return self.assign(f"{yes} if {d} > 0.0 else {no}")
        if isinstance(expr, kinks.huber):
            a, m = values
            size = self.assign(f"abs({a})")
            return self.assign(f"{a} * {a} if {size} <= {m} else {m} * (2.0 * {size} - {m})")
        if isinstance(expr, kinks.norm):
            return self._length(values)
        if isinstance(expr, kinks.along):
            half = len(values) // 2
            pairs = zip(values[:half], values[half:], strict=True)
            top = self.fold("+", [self.assign(f"{a} * {b}") for a, b in pairs])
            length = self._length(values[:half])
            return self.assign(f"{top} / {length} if {length} > 0.0 else 0.0")
        raise ProblemError(f"a formula may use sums, products, powers, exp and log, got {expr}")

    def _length(self, values: list[str]) -> str:
        total = self.fold("+", [self.assign(f"{a} * {a}") for a in values])
        return self.assign(f"math.sqrt({total})")

    def _sum(self, expr: sp.Add) -> str:
        # SymPy writes 2 (a + b + c) as 2 a + 2 b + 2 c: take the common factor out again.
        factor, rest = expr.primitive()
        if factor != 1:
            return self.assign(f"{float(factor)!r} * {self.value(rest)}")
        return self.fold("+", [self.value(term) for term in expr.args])

    def _product(self, expr: sp.Mul) -> str:
        below = [a for a in expr.args if isinstance(a, sp.Pow) and a.exp.is_negative]
        above = [self.value(a) for a in expr.args if a not in below] or ["1.0"]
        top = self.fold("*", above)
        if not below:
            return top
        return self.assign(f"{top} / {self.fold('*', [self.value(1 / a) for a in below])}")

    def _power(self, base: sp.Expr, exponent: sp.Expr) -> str:
        if exponent.is_negative:
            return self.assign(f"1.0 / {self.value(base**-exponent)}")
        x = self.value(base)
        if exponent == sp.S.Half:
            return self.assign(f"math.sqrt({x})")
        if exponent.is_Integer:
            half = self.value(base ** (exponent // 2))
            even = self.assign(f"{half} * {half}")
            return even if exponent % 2 == 0 else self.assign(f"{even} * {x}")
        return self.assign(f"{x} ** {self.value(exponent)}")
