"""Random formulas as recipes, which our operators and plain floats carry out."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from typing import Any

from hypothesis import strategies as st

from sottovoce.formula import functions
from sottovoce.formula.expression import number, symbol

NAMES = ("x1", "x2", "x10", "v[1]")
OURS = {name: symbol(name) for name in NAMES}

_leaves = st.one_of(
    st.sampled_from(NAMES),
    st.integers(-4, 4),
    st.fractions(-2, 2, max_denominator=6),
    st.sampled_from([0.1, 0.7, -1.3, 2.5]),
)
_exponents = st.sampled_from([2, 3, -1, -2, Fraction(1, 2), Fraction(-2, 3), 0.5, -1.5, 0.3])


def _recipes(*operations: str) -> Any:
    def extended(inner: Any) -> Any:
        single, pair = (st.lists(inner, min_size=k, max_size=k) for k in (1, 2))
        several = st.lists(inner, min_size=2, max_size=3)
        return st.one_of(
            st.tuples(st.sampled_from(["add", "mul"]), several),
            st.tuples(st.sampled_from(["sub", "div"]), pair),
            st.tuples(st.just("pow"), single, _exponents),
            st.tuples(st.sampled_from(["exp", "log"]), single),
            *(st.tuples(st.just(op), several) for op in operations),
        )

    return st.recursive(_leaves, extended, max_leaves=9)


smooth = _recipes()
any_formula = _recipes("max", "min", "norm", "abs", "huber")
points = st.tuples(*(st.integers(1, 40).map(lambda k: k / 16) for _ in NAMES))


def ours(recipe: Any, *, reverse: bool = False) -> Any:
    """Our operators; the operands of what commutes in either order."""
    if isinstance(recipe, str):
        return OURS[recipe]
    if not isinstance(recipe, tuple):
        return number(recipe)
    op, args = recipe[0], [ours(a, reverse=reverse) for a in recipe[1]]
    if reverse and op in ("add", "mul", "max", "min", "norm"):
        args.reverse()
    operators = {"add": operator.add, "sub": operator.sub, "mul": operator.mul,
                 "div": operator.truediv}  # fmt: skip
    if op in operators:
        return reduce(operators[op], args)
    if op == "pow":
        return args[0] ** recipe[2]
    if op == "abs":
        return abs(args[0])
    if op == "exp":
        return functions.exp(args[0] / 4)
    if op == "huber":
        return functions.huber(args[0], 1.5)
    return getattr(functions, {"max": "maximum", "min": "minimum"}.get(str(op), str(op)))(*args)


def value(recipe: Any, point: dict[str, float]) -> float:
    """The value in plain floats; ValueError where it has none."""
    if isinstance(recipe, str):
        return point[recipe]
    if not isinstance(recipe, tuple):
        return float(recipe)
    op, args = recipe[0], [value(a, point) for a in recipe[1]]
    size = abs(args[0])
    values: dict[str, Callable[[], float]] = {
        "add": lambda: math.fsum(args),
        "mul": lambda: math.prod(args),
        "sub": lambda: args[0] - args[1],
        "div": lambda: args[0] / args[1],
        "pow": lambda: math.pow(args[0], recipe[2]),
        "exp": lambda: math.exp(args[0] / 4),
        "log": lambda: math.log(args[0]),
        "max": lambda: max(args),
        "min": lambda: min(args),
        "abs": lambda: size,
        "norm": lambda: math.hypot(*args),
        "huber": lambda: size * size if size <= 1.5 else 1.5 * (2 * size - 1.5),
    }
    return values[op]()
