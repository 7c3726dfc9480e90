"""What an expression may be, and the functions people build expressions with.

Sums, products, powers, exp and log of real numbers and symbols: smooth wherever they are defined,
and small enough that SymPy answers at once. SymPy evaluates while it builds (2**10**9 would not
return), so every function here checks sizes before SymPy starts and the result after it ends.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sympy

from sottovoce.arguments import without_deep_recursion
from sottovoce.errors import ProblemError

MAX_DEPTH = 50
MAX_EXPONENT = 1000
MAX_BITS = 128
MAX_CONSTANT = 50

_TOO_MANY_BITS = f"integers and fractions must stay below 2**{MAX_BITS}; write a decimal like 1e40"
_REMEDIES = {
    "abs": "abs(x), also as sqrt(x**2), is not smooth; use sqrt(x**2 + 0.01)",
    "max": "max is not smooth; use logsumexp, or one constraint for each argument",
    "min": "min is not smooth; use -logsumexp of the negatives",
    "piecewise": "a piecewise function is not smooth; use one constraint for each piece",
    "sign": "sign is not smooth and has no convex replacement",
    "pow": "pow is written x**2",
}

# A constant is evaluated in double precision beside the exact tree, to refuse what no double holds.
_EVALUATE: dict[Any, Callable[[Sequence[float]], float]] = {
    sympy.Add: math.fsum,
    sympy.Mul: math.prod,
    sympy.Pow: lambda values: math.pow(*values),
    sympy.exp: lambda values: math.exp(*values),
    sympy.log: lambda values: math.log(*values),
}


@without_deep_recursion
def check_expression(expr: object, allowed: Collection[sympy.Symbol], where: str) -> sympy.Expr:
    """Return the expression in the form that files keep, or refuse it.

    Allowed are Add, Mul, exp, log, x**c with a real constant c, finite numbers, pi and e.
    A power b**x of a positive constant b becomes exp(x log b), and trees that SymPy left
    unevaluated are evaluated.

    Args:
        expr: A number or a SymPy expression.
        allowed: The symbols it may name.
        where: What the expression is, put before the message of an error.

    Raises:
        ProblemError: If a node, a number or a symbol is not allowed; the message names it.
    """
    try:
        tree = sympified(expr)
        rebuilt = _rebuild(tree, 0)
        if rebuilt != tree:
            rebuilt = _rebuild(rebuilt, 0)
        _check_symbols(rebuilt, allowed)
    except ProblemError as error:
        raise ProblemError(f"{where}: {error}" if where else str(error)) from None
    return rebuilt


@without_deep_recursion
def exp(argument: object) -> sympy.Expr:
    """The exponential e^a, with a -> argument."""
    tree = _inspected(sympified(argument))
    for term in sympy.Add.make_args(tree):
        factor, rest = term.as_coeff_Mul()
        # SymPy turns exp(c log b) into b**c at once, so c is an exponent.
        if any(isinstance(part, sympy.log) for part in sympy.Mul.make_args(rest)):
            _check_exponent(float(factor))
    return _inspected(sympy.exp(tree))


@without_deep_recursion
def log(argument: object) -> sympy.Expr:
    """The natural logarithm ln a, with a -> argument; concave, defined for a > 0."""
    return _inspected(sympy.log(sympified(argument)))


@without_deep_recursion
def sqrt(argument: object) -> sympy.Expr:
    """The square root a^(1/2), with a -> argument; smooth for a > 0."""
    return power(argument, sympy.Rational(1, 2))


@without_deep_recursion
def logsumexp(*terms: object) -> sympy.Expr:
    """The smooth maximum ln(e^(a_1) + ... + e^(a_r)), with a_1, ..., a_r -> terms; convex.

    It lies between max_i a_i and max_i a_i + ln r.
    """
    if not terms:
        raise ProblemError("logsumexp takes at least one argument, got none")
    return log(add(*(exp(term) for term in terms)))


@without_deep_recursion
def add(*terms: object) -> sympy.Expr:
    """The sum a_1 + ... + a_r, with a_1, ..., a_r -> terms."""
    return _inspected(sympy.Add(*map(sympified, terms)))


@without_deep_recursion
def multiply(*factors: object) -> sympy.Expr:
    """The product a_1 ... a_r, with a_1, ..., a_r -> factors."""
    trees = [sympified(factor) for factor in factors]
    parts = [part.as_base_exp() for tree in trees for part in sympy.Mul.make_args(tree)]
    # SymPy joins roots of integers under one root and looks for factors of what stands there.
    roots = [base for base, exponent in parts if base.is_Rational and not exponent.is_Integer]
    if sum(_bits(root) for root in roots) > 2 * MAX_BITS:
        raise ProblemError(_TOO_MANY_BITS)
    return _inspected(sympy.Mul(*trees))


@without_deep_recursion
def power(base: object, exponent: object) -> sympy.Expr:
    """The power a^c, with a -> base and c -> exponent.

    Either c is constant, or a is a positive constant and the power is written exp(c log a).
    """
    a, c = sympified(base), sympified(exponent)
    _check_power(a, c)
    if _facts(c).value is None:
        return exp(multiply(c, log(a)))
    if a.is_Rational and a.p == 1:
        # Inside a product SymPy writes (1/3)**pi as 3**(-pi); one form, wherever it stands.
        a, c = 1 / a, -c
    return _inspected(sympy.Pow(a, c))


def unknown_function(name: str) -> str:
    """Say what to use instead of a function that expressions do not have."""
    advice = f"unknown function {name:.40}: use exp, log, sqrt, logsumexp and powers"
    return _REMEDIES.get(name.lower(), advice)


def listed(names: Sequence[str]) -> str:
    """Say which names there are, many of them as `x1, x2, ..., x7`."""
    if not names:
        return "numbers only"
    return ", ".join(names if len(names) <= 6 else [*names[:2], "...", names[-1]])


_BUILDERS: dict[Any, Callable[..., sympy.Expr]] = {
    sympy.Add: add,
    sympy.Mul: multiply,
    sympy.Pow: power,
    sympy.exp: exp,
    sympy.log: log,
}


def _rebuild(node: sympy.Basic, depth: int) -> sympy.Expr:
    """The same expression, built again from its leaves by the functions above."""
    _check_depth(depth)
    if not node.args:
        _facts(node)
        return sympy.Float(float(node)) if isinstance(node, sympy.Float) else node
    if node.func not in _BUILDERS:
        raise ProblemError(_not_allowed(node))
    return _BUILDERS[node.func](*[_rebuild(arg, depth + 1) for arg in node.args])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """What is known of a checked expression; one with symbols has no value and no size."""

    height: int
    value: float | None
    size: int


def _inspected(expr: sympy.Expr) -> sympy.Expr:
    _facts(expr)
    return expr


@lru_cache(maxsize=1 << 14)
def _facts(node: sympy.Basic) -> _Facts:
    """Check a node and all below it; cached, because every step of a construction asks again."""
    if isinstance(node, sympy.Symbol):
        return _Facts(height=0, value=None, size=0)
    if isinstance(node, sympy.Number) or node is sympy.pi or node is sympy.E:
        return _Facts(height=0, value=_number_value(node), size=1)
    if node.func not in _EVALUATE:
        raise ProblemError(_not_allowed(node))
    parts = [_facts(arg) for arg in node.args]
    height = 1 + max(part.height for part in parts)
    _check_depth(height)
    size = sum(part.size for part in parts)
    # SymPy searches for hidden relations between constants, at a cost that grows very fast.
    if size > MAX_CONSTANT:
        raise ProblemError(f"a constant has more than {MAX_CONSTANT} parts; write its value")
    if node.func is sympy.Pow:
        _check_power(node.base, node.exp)
    values = [part.value for part in parts if part.value is not None]
    if len(values) < len(parts):
        return _Facts(height=height, value=None, size=0)
    return _Facts(height=height, value=_evaluated(node, values), size=1 + size)


def _evaluated(node: sympy.Basic, values: Sequence[float]) -> float:
    try:
        value = _EVALUATE[node.func](values)
    except OverflowError:
        value = math.inf
    except ValueError:
        raise ProblemError(f"{_shown(node)} is not a real number") from None
    if not math.isfinite(value):
        raise ProblemError(f"{_shown(node)} is too large for double precision")
    # Terms of a sum may cancel; any other zero without a zero inside is an underflow.
    vanished = abs(value) < sys.float_info.min and 0.0 not in values
    if vanished and node.func not in (sympy.Add, sympy.log):
        raise ProblemError(f"{_shown(node)} is too close to zero for double precision")
    return value


def _number_value(number: sympy.Expr) -> float:
    if isinstance(number, sympy.Rational):
        if _bits(number) > MAX_BITS:
            raise ProblemError(_TOO_MANY_BITS)
        return float(number)
    if number.is_finite is not True:
        raise ProblemError(f"numbers must be finite, got {number}")
    value = float(number)
    if not math.isfinite(value):
        raise ProblemError("a number is too large for double precision")
    if not number.is_zero and abs(value) < sys.float_info.min:
        raise ProblemError("a number is too close to zero for double precision; write 0")
    return value


def _bits(number: sympy.Rational) -> int:
    return max(abs(int(number.p)), int(number.q)).bit_length()


def _check_power(base: sympy.Expr, exponent: sympy.Expr) -> None:
    value, base_value = _facts(exponent).value, _facts(base).value
    if value is not None:
        _check_exponent(value)
    elif base_value is None or base_value <= 0:
        raise ProblemError(
            "a power with a variable exponent needs a positive constant base, "
            f"got ({_shown(base)})**({_shown(exponent)})"
        )


def _check_exponent(value: float) -> None:
    if abs(value) > MAX_EXPONENT:
        raise ProblemError(
            f"exponents must lie in [-{MAX_EXPONENT}, {MAX_EXPONENT}], got {value:g}"
        )


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ProblemError(f"the expression is nested more than {MAX_DEPTH} levels deep")


def _check_symbols(expr: sympy.Expr, allowed: Collection[sympy.Symbol]) -> None:
    strangers = expr.free_symbols - set(allowed)
    if not strangers:
        return
    name = min(symbol.name for symbol in strangers)
    known = [symbol.name for symbol in allowed]
    if name in known:
        raise ProblemError(
            f"{name} is another symbol of the same name; use the symbols this problem was given"
        )
    raise ProblemError(f"unknown symbol {name}: this expression may use {listed(known)}")


def sympified(expr: object) -> sympy.Expr:
    """Return a number as a SymPy expression, an expression as it is; text is never evaluated."""
    # Strict: without it SymPy hands a string to Python's eval.
    try:
        tree = sympy.sympify(expr, strict=True)
    except sympy.SympifyError:
        raise ProblemError(
            f"an expression must be a number or made of states, got {type(expr).__name__}"
        ) from None
    if isinstance(tree, sympy.core.relational.Relational):
        raise ProblemError(f"an expression must not be a comparison, got {_shown(tree)}")
    if not isinstance(tree, sympy.Expr):
        raise ProblemError(
            f"an expression must be a number or made of states, got {type(expr).__name__}"
        )
    return tree


def _not_allowed(node: sympy.Basic) -> str:
    if node is sympy.zoo:
        return "the expression divides by zero or takes the logarithm of zero"
    if node is sympy.I:
        return "the expression has a negative number under a root or a logarithm"
    if isinstance(node, sympy.Function) or type(node).__name__.lower() in _REMEDIES:
        return unknown_function(type(node).__name__)
    return f"{type(node).__name__} is not allowed: use exp, log, sqrt, logsumexp and powers"


def _shown(node: sympy.Basic) -> str:
    text = str(node)
    return text if len(text) <= 60 else f"{text[:57]}..."
