"""The canonical form: same value, one node for one formula, no limit but depth."""

from __future__ import annotations

import copy
import math
import pickle
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from random_formulas import NAMES, OURS, any_formula, ours, points, value

from formula_values import evaluate
from sottovoce.errors import ProblemError
from sottovoce.formula import expression
from sottovoce.formula.canonical import canonical, expand, rebuild, substitute
from sottovoce.formula.derive import connected
from sottovoce.formula.expression import Expression, Op, interned, nodes, number, symbol
from sottovoce.formula.functions import (
    exp,
    huber,
    log,
    logsumexp,
    maximum,
    minimum,
    norm,
    pos,
    sqrt,
    sum_squares,
)
from sottovoce.formula.order import digest

x, y, z = symbol("x"), symbol("y"), symbol("z")


def form(recipe: Any, *, reverse: bool = False) -> Expression:
    try:
        return canonical(ours(recipe, reverse=reverse))
    except ProblemError:
        assume(False)
        raise


@settings(max_examples=300, deadline=None)
@given(any_formula, points)
@example(("pow", [("pow", ["x1"], 2)], 0.5), (0.0625, 1.0, 1.0, 1.0))
@example(("mul", ["x1", ("pow", [("mul", ["x1", "x2"])], 0.5)] * 2), (0.5, 2.0, 1.0, 1.0))
@example(("huber", [("sub", [1, "x1"]), 0]), (2.0, 1.0, 1.0, 1.0))
def test_a_formula_keeps_its_value(recipe: Any, at: tuple[float, ...]) -> None:
    point = dict(zip(NAMES, at, strict=True))
    try:
        expected = value(recipe, point)
    except (ValueError, ZeroDivisionError, OverflowError):
        assume(False)
    assume(abs(expected) < 1e6)
    result = float(evaluate(form(recipe), {OURS[n]: v for n, v in point.items()}))
    assume(math.isfinite(result) or not _cancels(recipe, point))
    assert result == pytest.approx(expected, rel=1e-6, abs=1e-6)


def _cancels(recipe: Any, point: dict[str, float]) -> bool:
    """Whether a value hangs on the last bits of a number: at the border of a root or logarithm."""
    if not isinstance(recipe, tuple):
        return False
    inner = [value(a, point) for a in recipe[1]]
    edge = recipe[0] in ("pow", "log", "div") and any(abs(v) < 1e-6 for v in inner)
    return edge or any(_cancels(a, point) for a in recipe[1])


@settings(max_examples=300, deadline=None)
@given(any_formula)
def test_one_formula_is_one_node(recipe: Any) -> None:
    expr = form(recipe)
    assert canonical(expr) is expr
    assert form(recipe, reverse=True) is expr
    assert pickle.loads(pickle.dumps(ours(recipe))) is expr  # noqa: S301
    assert copy.deepcopy(expr) is expr
    for part in nodes((expr,)):
        assert not part.args or rebuild(part, part.args) is part
        assert interned(part.op, part.args, part.value) is part
    renamed = {s: symbol(f"{s.name} other") for s in expr.symbols}
    other = substitute(expr, renamed)
    assert substitute(other, {b: a for a, b in renamed.items()}) is expr
    assert digest(other) != digest(expr) or not renamed


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (x + y + x - 3 + y, "2*x + 2*y - 3"),
        (2 * (x + 1) - 2 * x, "2"),
        (0.1 * x + 0.2 * x + 0.3 * x, "0.6*x"),
        (x * x**2 / x, "x**2"),
        ((x**2) ** 0.5, "sqrt(x**2)"),  # |x|, not x
        (sqrt(x) ** 2, "sqrt(x)**2"),  # x has values below 0
        (x * sqrt(x**2) * sqrt(x**2), "x**3"),
        (x * sqrt(x * y) * sqrt(x * y), "x*sqrt(x*y)**2"),
        (sqrt(4 * x), "2*sqrt(x)"),
        (sqrt(-4 * x), "sqrt(-4*x)"),
        ((x * y) ** 3, "x**3*y**3"),
        (exp(x) * exp(y - x), "exp(y)"),
        (exp(x) ** 0.5, "exp(x/2)"),
        (log(exp(x)), "x"),
        (exp(2 * log(x) + y), "sqrt(x)**4*exp(y)"),
        (2**x, "exp(0.6931471805599453*x)"),
        (abs(-2 * x), "2*abs(x)"),
        (abs(y - x) - abs(x - y), "0"),
        (abs(exp(x)), "exp(x)"),
        (maximum(x, x + 1, maximum(y, 3), 2), "max(x + 1, y, 3)"),
        (minimum(x, 1), "min(x, 1)"),
        (pos(x), "max(x, 0)"),
        (norm(y, 0, -x), "norm(x, y)"),
        (norm(-x, 0), "abs(x)"),
        (norm(number(3), 4), "5"),
        (huber(1 - x, 2), "huber(x - 1, 2)"),
        (huber(number(3), 2), "8"),
        (logsumexp(y, x - 1), "logsumexp(x - 1, y)"),
        (sum_squares(x, y), "x**2 + y**2"),
        (number(2) / 3 * x, "2*x/3"),
        (x * Fraction(1, 3) + x * Fraction(2, 3), "x"),
        (3.0 * x, "3*x"),
        (x**0.5, "sqrt(x)"),
        (symbol("x10") - symbol("x2"), "-x2 + x10"),
    ],
)
def test_forms_are_these(formula: Expression, text: str) -> None:
    assert str(formula) == text


def test_asking_for_the_form_of_a_part_does_not_change_the_whole() -> None:
    part, same = 3 * (x + 1), 3 * (x + 1)
    repr(part)
    assert canonical(part * z) is canonical(same * z)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: 1 / (x - x), "divides by zero"),
        (lambda: (x - x) / (x - x), "divides by zero"),
        (lambda: sqrt(number(-2)), "negative number under a root"),
        (lambda: log(number(-2)), "logarithm must be of a positive number, got -2"),
        (lambda: x**y, r"needs a positive constant base, got \(x\)\*\*\(y\)"),
        (lambda: (-2) ** x, "needs a positive constant base"),
        (lambda: x**2000, r"exponents must lie in \[-1000, 1000\], got 2000"),
        (lambda: (x**100) ** 100, "exponents must lie in"),
        (lambda: x * math.inf, "must be finite"),
        (lambda: x * math.nan, "must be finite"),
        (lambda: x * 1e200 * 1e201, "must be finite"),
        (lambda: x + 1e308 + 1.1e308, "too large"),
        (lambda: x * 1e-200 * 1e-201, "too close to zero"),
        (lambda: x * 1e-320, "too close to zero"),
        (lambda: x * Fraction(1, 2) ** 1200 * Fraction(1, 2) ** 400, "too close to zero"),
        (lambda: exp(number(1000)), r"exp\(1000\) is too large"),
        (lambda: exp(number(-1000)), r"exp\(-1000\) is too close to zero"),
        (lambda: exp(x + 10**12 * log(y)), "exponents must lie in"),
    ],
)
def test_constants_without_a_finite_value_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        canonical(make())


def test_long_sums_and_products_work() -> None:
    terms = [symbol(f"t{k}") for k in range(100_000)]
    total: Any = 0
    for term in terms:
        total = total + term * 0.3
    whole = canonical(total)
    assert len(whole.args) == len(whole.symbols) == 100_000
    assert float(evaluate(whole, dict.fromkeys(terms, 1.0))) == pytest.approx(30_000)
    product: Any = 1
    for term in terms[:1000]:
        product = product * term
    assert len(canonical(product).args) == 1000


def test_shared_parts_are_counted_not_repeated() -> None:
    double, square = x, x
    for _ in range(100):
        double = double + double
    for _ in range(9):
        square = square * square
    assert canonical(double) is canonical(2**100 * x)
    assert canonical(square) is canonical(x**512)


def test_text_of_a_formula_with_shared_parts_stays_short() -> None:
    tower = x
    for _ in range(24):
        tower = (tower + 1) * (tower + 2)
    assert "at most 1000000 operations" in repr(tower)


@pytest.mark.parametrize(
    "layer",
    [
        exp,
        lambda e: log(2 + e),
        lambda e: (2 * e + 1) ** 2,
        lambda e: 1 / (1 + e),
        lambda e: abs(e - 1),
        lambda e: maximum(e**2, y),
    ],
)
def test_deep_nesting_is_refused_and_not_recursed_into(layer: Any) -> None:
    deep: Any = x
    for _ in range(20_000):
        deep = layer(deep)
    with pytest.raises(ProblemError, match="nested at most 50 levels deep, got more: split it"):
        canonical(deep)
    assert "nested" in repr(deep)


def test_expansion_multiplies_out_and_stops_in_time() -> None:
    assert str(expand(canonical((x + y) ** 2 * x))) == "x**3 + 2*x**2*y + x*y**2"
    assert expand(canonical((x + y + z) ** 900)).op == Op.POW


def test_formulas_made_in_threads_are_one_node() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def make(_: int) -> list[Expression]:
        return [canonical(symbol(f"s{k}") * 2 + 1) for k in range(500)]

    with ThreadPoolExecutor(8) as pool:
        first, *others = list(pool.map(make, range(8)))
    assert all(a is b for other in others for a, b in zip(first, other, strict=True))


def test_formulas_without_references_are_forgotten() -> None:
    formula = canonical(symbol("referenced") * 7 + 1)
    before = len(expression._interned)
    for k in range(250_000):
        number(k + 0.5)
    assert len(expression._interned) < before + 200_000
    assert canonical(symbol("referenced") * 7 + 1) is formula


NODES = 8
EDGES = st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)))


@given(EDGES)
def test_labels_are_equal_where_a_path_joins_nodes(edges: list[tuple[int, int]]) -> None:
    reached = [{node} for node in range(NODES)]
    for _ in range(NODES):
        for a, b in edges:
            reached[a] = reached[b] = reached[a] | reached[b]
    firsts = [min(nodes) for nodes in reached]
    labels = connected(NODES, [a for a, _ in edges], [b for _, b in edges]).tolist()
    assert labels == [sorted(set(firsts)).index(first) for first in firsts]
