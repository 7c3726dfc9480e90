"""What an expression may be."""

from __future__ import annotations

import math
import time

import mpmath
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.errors import ProblemError
from sottovoce.problem.expressions import check_expression, exp, log, logsumexp, power, sqrt

X, Y = sympy.symbols("x1 x2")
R = sympy.Symbol("r", real=True)


def check(expr: object) -> sympy.Expr:
    return check_expression(expr, [X, Y, R], "constraint 1")


@pytest.mark.parametrize(
    "expr",
    [
        X + Y - 3,
        (X - 9) ** 2 + X,
        X**4 / 12,
        0.1 * X,
        sympy.exp(-X) * Y,
        sympy.log(1 + X**2),
        sympy.sqrt(1 + X**2 + Y**2),
        X**sympy.pi,
        sympy.sqrt(2) * X / sympy.pi,
        sympy.E * X,
        X**-1.5,
        sympy.Integer(7),
    ],
)
def test_a_whitelisted_expression_comes_back_unchanged(expr: sympy.Expr) -> None:
    assert check(expr) == expr


@pytest.mark.parametrize(
    ("given_", "kept"),
    [
        (3, sympy.Integer(3)),
        (0.1, sympy.Float(0.1)),
        (2**X, sympy.exp(X * sympy.log(2))),
        (1 + sympy.Rational(1, 3) ** (X + Y), 1 + sympy.exp(-sympy.log(3) * (X + Y))),
        (sympy.E**X, sympy.exp(X)),
        (X + sympy.Rational(1, 3) ** sympy.pi, X + 3**-sympy.pi),
        (sympy.Mul(2, X + 1, evaluate=False), 2 * X + 2),
        (sympy.Float("0.1", 40) * X, 0.1 * X),
    ],
)
def test_an_expression_is_brought_to_the_form_that_files_keep(
    given_: object, kept: sympy.Expr
) -> None:
    assert check(given_) == kept


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        (sympy.sin(X), "unknown function sin: use exp, log, sqrt, logsumexp, abs, max, .* powers"),
        (sympy.Function("f")(X), "unknown function f"),
        (sympy.sign(X), "a sign has no convex replacement"),
        (sympy.Heaviside(X), "a step has no convex replacement"),
        (sympy.Piecewise((X, X > 0), (0, True)), "the largest of its convex pieces"),
        (sympy.Integral(X, X), "Integral is not allowed"),
        (sympy.GoldenRatio * X, "GoldenRatio is not allowed"),
        (X**Y, r"needs a positive constant base, got \(x1\)\*\*\(x2\)"),
        ((-2) ** X, "needs a positive constant base"),
        (sympy.I * X, "negative number under a root"),
        (sympy.sqrt(-2) * X, "negative number under a root"),
        (X * (-2) ** sympy.pi, "is not a real number"),
        (sympy.zoo, "divides by zero"),
        (sympy.nan, "numbers must be finite, got nan"),
        (X + sympy.oo, "numbers must be finite, got oo"),
        (math.inf, "numbers must be finite"),
        (sympy.Float("1e300") * sympy.Float("1e300"), "too large for double precision"),
        (sympy.Float("1e-400"), "too close to zero"),
        (sympy.exp(1000), r"exp\(1000\) is too large for double precision"),
        (X * sympy.pi**-900, "too close to zero"),
        (sympy.Integer(2) ** 200, "below 2\\*\\*128; write a decimal"),
        (X**2000, r"exponents must lie in \[-1000, 1000\], got 2000"),
        (sympy.Symbol("z"), "unknown symbol z: this expression may use x1, x2, r"),
        (sympy.Symbol("x1", real=True), "another symbol of the same name"),
        (sympy.Le(X, 3), "must not be a comparison, got x1 <= 3"),
        ("x1 + 1", "got str"),
        (None, "got NoneType"),
        ([X], "got list"),
        (True, "got bool"),
    ],
)
def test_anything_else_is_refused_with_its_own_message(expr: object, message: str) -> None:
    with pytest.raises(ProblemError, match=message) as caught:
        check(expr)
    assert str(caught.value).startswith("constraint 1: ")


def test_text_is_never_handed_to_sympy() -> None:
    with pytest.raises(ProblemError, match="got str"):
        exp("__import__('os').abort()")


def test_deep_trees_are_refused_before_they_exhaust_the_stack() -> None:
    tree = X
    for _ in range(60):
        tree = (tree + 1) ** 2
    with pytest.raises(ProblemError, match="nested more than 50 levels deep"):
        check(tree)


def test_the_message_lists_few_names_of_many() -> None:
    many = sympy.symbols("x1:10")
    with pytest.raises(ProblemError, match=r"may use x1, x2, \.\.\., x9$"):
        check_expression(sympy.Symbol("z"), many, "")


@pytest.mark.parametrize(
    "build",
    [
        lambda: power(9, power(9, 9)),
        lambda: power(2, 10**9),
        lambda: exp(10**12 * log(2 * X)),
        lambda: exp(X + 10**12 * log(1 + sympy.Rational(1, 10**12))),
        lambda: exp(exp(exp(exp(10.0)))),
        lambda: power(power(power(power(2 * X, 999), 999), 999), 999),
    ],
)
def test_numbers_too_large_to_build_are_refused_at_once(build: object) -> None:
    start = time.perf_counter()
    with pytest.raises(ProblemError):
        build()  # type: ignore[operator]
    assert time.perf_counter() - start < 1


finite = st.floats(min_value=-20, max_value=20)


@settings(deadline=None)
@given(finite, finite)
def test_functions_have_their_values(a: float, b: float) -> None:
    at = {X: a, Y: b}
    with mpmath.workdps(50):
        smooth_maximum = mpmath.log(mpmath.exp(a) + mpmath.exp(b))
        cases = [
            (exp(X), mpmath.exp(a)),
            (log(1 + X**2), mpmath.log(1 + mpmath.mpf(a) ** 2)),
            (sqrt(1 + X**2), mpmath.sqrt(1 + mpmath.mpf(a) ** 2)),
            (power(3, X), mpmath.mpf(3) ** a),
            (logsumexp(X, Y), smooth_maximum),
        ]
        for expr, value in cases:
            error = mpmath.mpf(str(expr.evalf(40, subs=at))) - value
            assert abs(error) <= 1e-30 * (1 + abs(value))
        assert max(a, b) <= smooth_maximum <= max(a, b) + math.log(2) * (1 + 1e-15)


def test_functions_take_what_python_writes_for_powers_of_constants() -> None:
    assert check(log(1 + 2**X)) == sympy.log(1 + sympy.exp(X * sympy.log(2)))


def test_logsumexp_of_nothing_is_refused() -> None:
    with pytest.raises(ProblemError, match="at least one argument"):
        logsumexp()
