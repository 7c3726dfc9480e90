"""What an expression may be, and the functions people build expressions with.

Sums, products, powers, exp and log of real numbers and symbols, and the kinks of
``problem.kinks``; small enough that SymPy answers at once. SymPy evaluates while it builds
(2**10**9 would not return), so every function here checks sizes before SymPy starts and the result
after it ends.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import sympy

from sottovoce.arguments import without_deep_recursion
from sottovoce.errors import ProblemError
from sottovoce.problem import kinks
from sottovoce.problem.entries import entrywise

MAX_DEPTH = 50
MAX_EXPONENT = 1000
MAX_BITS = 128
MAX_CONSTANT = 50

_TOO_MANY_BITS = f"integers and fractions must stay below 2**{MAX_BITS}; write a decimal like 1e40"
_REMEDIES = {
    "maximum": "the largest of several is written max(a, b) in text",
    "minimum": "the smallest of several is written min(a, b) in text",
    "piecewise": "a piecewise function is written as the largest of its convex pieces, "
    "sv.maximum(a, b, ...) or max(a, b, ...)",
    "heaviside": "a step has no convex replacement",
    "sign": "a sign has no convex replacement",
    "pow": "pow is written x**2",
}

_UNBOUNDED = tuple(type(number) for number in (sympy.oo, -sympy.oo, sympy.nan))

_KNOWN = "exp, log, sqrt, logsumexp, abs, max, min, pos, norm, huber and powers"

# A constant is evaluated in double precision beside the exact tree, to refuse what no double holds.
_EVALUATE: dict[Any, Callable[[Sequence[float]], float]] = {
    sympy.Add: math.fsum,
    sympy.Mul: math.prod,
    sympy.Pow: lambda values: math.pow(*values),
    sympy.exp: lambda values: math.exp(*values),
    sympy.log: lambda values: math.log(*values),
    kinks.absolute: lambda values: abs(*values),
    kinks.maximum: max,
    kinks.norm: lambda values: math.hypot(*values),
    kinks.huber: lambda values: float(kinks.NUMPY["huber"](*values)),
}


@without_deep_recursion
def check_expression(expr: object, allowed: Collection[sympy.Symbol], where: str) -> sympy.Expr:
    """Return the expression in the form that files keep, or refuse it.

    Allowed are Add, Mul, exp, log, x**c with a real constant c, absolute values, maxima, minima,
    norms and Huber's function, finite numbers, pi and e.
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


@entrywise()
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


@entrywise()
@without_deep_recursion
def log(argument: object) -> sympy.Expr:
    """The natural logarithm ln a, with a -> argument; concave, defined for a > 0."""
    return _inspected(sympy.log(sympified(argument)))


@entrywise()
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


@entrywise()
@without_deep_recursion
def absolute(argument: object) -> sympy.Expr:
    """The absolute value |a|, with a -> argument; convex. Python's ``abs`` is the same."""
    return _inspected(kinks.absolute(_inspected(sympified(argument))))


@entrywise(least=2)
@without_deep_recursion
def maximum(*terms: object) -> sympy.Expr:
    """The largest of a_1, ..., a_r, with a_1, ..., a_r -> terms; convex if they are.

    A piecewise-linear cost is the maximum of its pieces. Python's ``max`` cannot be used: it asks
    formulas which one is larger.
    """
    given = [_inspected(sympified(term)) for term in _spread("maximum", terms)]
    flat = {piece for tree in given for piece in kinks.pieces_of(tree)}
    trees = sorted(flat, key=sympy.default_sort_key)
    while len(trees) > 1:  # a balanced tree, so that many pieces nest a few levels only
        pairs = [trees[k : k + 2] for k in range(0, len(trees), 2)]
        trees = [kinks.maximum(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return _inspected(trees[0])


@entrywise(least=2)
@without_deep_recursion
def minimum(*terms: object) -> sympy.Expr:
    """The smallest of a_1, ..., a_r, with a_1, ..., a_r -> terms; concave if they are.

    It is written -max(-a_1, ..., -a_r).
    """
    return -maximum(*(-sympified(term) for term in _spread("minimum", terms)))


@entrywise()
@without_deep_recursion
def pos(argument: object) -> sympy.Expr:
    """The positive part max(a, 0), with a -> argument; convex if a is."""
    return maximum(argument, 0)


@without_deep_recursion
def norm(*terms: object) -> sympy.Expr:
    """The Euclidean norm sqrt(a_1^2 + ... + a_r^2), with a_1, ..., a_r -> terms or an array."""
    trees = [_inspected(sympified(term)) for term in _spread("norm", terms)]
    return _inspected(kinks.norm(*trees))


@entrywise()
@without_deep_recursion
def huber(argument: object, width: object = 1) -> sympy.Expr:
    """Huber's function: a^2 where |a| <= M, M (2 |a| - M) beyond; a -> argument, M -> width."""
    m = sympified(width)
    if not (m.is_number and _facts(m).value is not None and float(m) > 0.0):
        raise ProblemError(f"the width of huber must be a positive number, got {width}")
    return _inspected(kinks.huber(_inspected(sympified(argument)), m))


def _spread(name: str, terms: Sequence[Any]) -> list[Any]:
    """The terms of a call, one by one or in an array."""
    alone = len(terms) == 1 and isinstance(terms[0], Iterable)
    listed = list(np.ravel(np.array(list(terms[0]), dtype=object))) if alone else list(terms)
    if not listed:
        raise ProblemError(f"{name} takes at least one argument, got none")
    return listed


def unknown_function(name: str) -> str:
    """Say what to use instead of a function that expressions do not have."""
    advice = f"unknown function {name:.40}: use {_KNOWN}"
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
    kinks.absolute: absolute,
    kinks.maximum: maximum,
    kinks.norm: norm,
    kinks.huber: huber,
}


_FOREIGN: dict[Any, Callable[..., sympy.Expr]] = {
    sympy.Abs: absolute,
    sympy.Max: maximum,
    sympy.Min: minimum,
    # How SymPy writes abs(exp(x)) of a complex x; ours are real.
    sympy.re: lambda argument: argument,
    sympy.im: lambda argument: sympy.Integer(0),
}


def _rebuild(node: sympy.Basic, depth: int) -> sympy.Expr:
    """The same expression, built again from its leaves by the functions above."""
    _check_depth(depth)
    if not node.args:
        _facts(node)
        # A double stays itself: SymPy keeps what it has found out about a number beside it.
        wide = isinstance(node, sympy.Float) and node._prec != sys.float_info.mant_dig
        return sympy.Float(float(node)) if wide else node
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
    # Not is_finite and is_zero: SymPy would deduce everything else about the number as well.
    if isinstance(number, _UNBOUNDED):
        raise ProblemError(f"numbers must be finite, got {number}")
    value = float(number)
    if not math.isfinite(value):
        raise ProblemError("a number is too large for double precision")
    if bool(number) and abs(value) < sys.float_info.min:
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
    strangers = expr.free_symbols.difference(allowed)  # without a copy of all that is allowed
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
    if isinstance(tree, sympy.Symbol | sympy.Number):
        return tree
    if isinstance(tree, sympy.core.relational.Relational):
        raise ProblemError(f"an expression must not be a comparison, got {_shown(tree)}")
    if not isinstance(tree, sympy.Expr):
        raise ProblemError(
            f"an expression must be a number or made of states, got {type(expr).__name__}"
        )
    return _own_kinks(tree) if tree.has(*_FOREIGN) else tree


def _own_kinks(tree: sympy.Expr) -> sympy.Expr:
    """Write SymPy's Abs, Max and Min, as Python's operators make them, with our own functions."""
    if not tree.args:
        return tree
    inner = [_own_kinks(arg) for arg in tree.args]
    build = _FOREIGN.get(tree.func, tree.func)
    return build(*inner)


def _not_allowed(node: sympy.Basic) -> str:
    if node is sympy.zoo:
        return "the expression divides by zero or takes the logarithm of zero"
    if node is sympy.I:
        return "the expression has a negative number under a root or a logarithm"
    if isinstance(node, sympy.Function) or type(node).__name__.lower() in _REMEDIES:
        return unknown_function(type(node).__name__)
    return f"{type(node).__name__} is not allowed: use {_KNOWN}"


def _shown(node: sympy.Basic) -> str:
    text = str(node)
    return text if len(text) <= 60 else f"{text[:57]}..."
