"""Functions that bend at once: absolute value, maximum, Euclidean norm, Huber's function.

They are exact, not smoothed. Where a slope jumps, its formula names one of the slopes on either
side, so that every derivative of a convex formula is a subgradient:

    |a|' = sgn(a) a'                       sgn(0) = 0
    max(a, b)' = a' if a > b else b'       ``chosen(a - b, a', b')``
    ||a||' = sum_k a_k a_k' / ||a||        ``along(a, a')``, 0 at a = 0
    huber(a; M) = a^2 where |a| <= M, M (2 |a| - M) beyond; its slope does not jump

SymPy's own Abs and Max differentiate into complex parts and distributions, hence these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import sympy as sp


class absolute(sp.Function):  # type: ignore[misc]  # noqa: N801  lower case, as SymPy's own
    """``|a|``."""

    nargs = 1

    @classmethod
    def eval(cls, a: sp.Expr) -> sp.Expr | None:
        """Numbers at once; factors and signs come out."""
        if not a.free_symbols:
            return sp.Abs(a)
        factor, rest = a.as_coeff_Mul()
        if factor != 1:
            return sp.Abs(factor) * cls(rest)
        return cls(-a) if a.could_extract_minus_sign() else None

    def _eval_derivative(self, s: sp.Symbol) -> sp.Expr:
        return sgn(self.args[0]) * sp.diff(self.args[0], s)


class sgn(sp.Function):  # type: ignore[misc]  # noqa: N801
    """The sign of a formula, 0 at 0."""

    nargs = 1

    @classmethod
    def eval(cls, a: sp.Expr) -> sp.Expr | None:
        """Numbers at once; factors and signs come out."""
        if not a.free_symbols:
            return sp.sign(a)
        factor, rest = a.as_coeff_Mul()
        if factor != 1:
            return sp.sign(factor) * cls(rest)
        return -cls(-a) if a.could_extract_minus_sign() else None

    def _eval_derivative(self, s: sp.Symbol) -> sp.Expr:
        return sp.Integer(0)


class maximum(sp.Function):  # type: ignore[misc]  # noqa: N801
    """``max(a, b)``; more arguments are nested."""

    nargs = 2

    @classmethod
    def eval(cls, a: sp.Expr, b: sp.Expr) -> sp.Expr | None:
        """What is decided already; otherwise the arguments in one order."""
        difference = a - b
        if difference.is_number:
            return a if difference >= 0 else b
        first, second = sorted((a, b), key=sp.default_sort_key)
        return cls(first, second) if (first, second) != (a, b) else None

    def _eval_derivative(self, s: sp.Symbol) -> sp.Expr:
        a, b = self.args
        return chosen(a - b, sp.diff(a, s), sp.diff(b, s))


class chosen(sp.Function):  # type: ignore[misc]  # noqa: N801
    """``yes`` where ``d > 0``, ``no`` elsewhere."""

    nargs = 3

    @classmethod
    def eval(cls, d: sp.Expr, yes: sp.Expr, no: sp.Expr) -> sp.Expr | None:
        """What is decided already."""
        if yes == no:
            return yes
        if d.is_number:
            return yes if d > 0 else no
        return None

    def _eval_derivative(self, s: sp.Symbol) -> sp.Expr:
        d, yes, no = self.args
        return chosen(d, sp.diff(yes, s), sp.diff(no, s))


class norm(sp.Function):  # type: ignore[misc]  # noqa: N801
    """``sqrt(a_1^2 + ... + a_n^2)``."""

    @classmethod
    def eval(cls, *a: sp.Expr) -> sp.Expr | None:
        """Numbers at once; one formula alone is an absolute value; zeros go."""
        kept = [part for part in a if part != 0]
        if not any(part.free_symbols for part in kept):
            return sp.sqrt(sp.Add(*(part**2 for part in kept)))
        if len(kept) == 1:
            return absolute(kept[0])
        return cls(*kept) if len(kept) < len(a) else None

    def _eval_derivative(self, s: sp.Symbol) -> sp.Expr:
        return along(*self.args, *(sp.diff(a, s) for a in self.args))


class along(sp.Function):  # type: ignore[misc]  # noqa: N801
    """``sum_k a_k b_k / ||a||`` of (a_1, ..., a_n, b_1, ..., b_n), 0 at a = 0."""

    @classmethod
    def eval(cls, *both: sp.Expr) -> sp.Expr | None:
        """Nothing moves: 0."""
        n = len(both) // 2
        return sp.Integer(0) if all(b == 0 for b in both[n:]) else None

    def _eval_derivative(self, s: sp.Symbol) -> sp.Expr:
        n = len(self.args) // 2
        a, b = self.args[:n], self.args[n:]
        da, db = ([sp.diff(part, s) for part in half] for half in (a, b))
        turning = sp.Add(*(x * y for x, y in zip(da, b, strict=True))) - self * along(*a, *da)
        return along(*a, *db) + turning / norm(*a)


class huber(sp.Function):  # type: ignore[misc]  # noqa: N801
    """``a^2`` where ``|a| <= M``, ``M (2 |a| - M)`` beyond."""

    nargs = 2

    @classmethod
    def eval(cls, a: sp.Expr, m: sp.Expr) -> sp.Expr | None:
        """Numbers at once."""
        if a.free_symbols:
            return cls(-a, m) if a.could_extract_minus_sign() else None
        return a**2 if sp.Abs(a) <= m else m * (2 * sp.Abs(a) - m)

    def _eval_derivative(self, s: sp.Symbol) -> sp.Expr:
        a, m = self.args
        return (absolute(a + m) - absolute(a - m)) * sp.diff(a, s)


CONVEX: tuple[Any, ...] = (absolute, maximum, norm, huber)
"""What people write; sgn, chosen and along are their slopes."""

SLOPES: tuple[Any, ...] = (sgn, chosen, along)


def pieces_of(expr: sp.Expr) -> list[sp.Expr]:
    """The arguments of nested maxima; of anything else, itself."""
    if not isinstance(expr, maximum):
        return [expr]
    return [piece for a in expr.args for piece in pieces_of(a)]


def bent(expr: sp.Expr) -> bool:
    """Whether a formula has a kink, or a slope that jumps."""
    return bool(expr.has(*CONVEX, *SLOPES))


def _norm(*a: Any) -> Any:
    total = a[0] * a[0]
    for part in a[1:]:
        total = total + part * part
    return np.sqrt(total)


def _along(*both: Any) -> Any:
    n = len(both) // 2
    a, b = both[:n], both[n:]
    top = a[0] * b[0]
    for x, y in zip(a[1:], b[1:], strict=True):
        top = top + x * y
    length = _norm(*a)
    with np.errstate(all="ignore"):
        return np.where(length > 0.0, top / length, 0.0)


def _huber(a: Any, m: Any) -> Any:
    size = np.abs(a)
    return np.where(size <= m, a * a, m * (2.0 * size - m))


NUMPY: dict[str, Callable[..., Any]] = {
    "absolute": np.abs,
    "sgn": np.sign,
    "maximum": np.maximum,
    "chosen": lambda d, yes, no: np.where(d > 0.0, yes, no),
    "norm": _norm,
    "along": _along,
    "huber": _huber,
}
"""The functions in float64, by the names that ``sympy.lambdify`` writes."""
