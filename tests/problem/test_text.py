"""Text to expressions and back."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import mpmath
import pytest
import sympy
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from sympy import Rational, exp, log, pi, sqrt

from sottovoce.errors import ProblemError
from sottovoce.problem import text as text_module
from sottovoce.problem import tokens as tokens_module
from sottovoce.problem.expressions import check_expression
from sottovoce.problem.printer import write_constraint, write_expression
from sottovoce.problem.text import check_name, parse_constraint, parse_expression, parse_number

NAMES = [*(f"x{i}" for i in range(1, 8)), "v[1]", "v[2]"]
SYMBOLS = {name: sympy.Symbol(name) for name in NAMES}
x1, x2, x3, x4, x5, x6, x7, v1, v2 = SYMBOLS.values()


def read(text: str) -> sympy.Expr:
    return parse_expression(text, SYMBOLS, where="problem.toml, line 12")


def refusal(text: str, parse: Callable[..., object] = parse_expression) -> str:
    with pytest.raises(ProblemError) as caught:
        parse(text, SYMBOLS, where="problem.toml, line 12")
    message = str(caught.value)
    assert message.startswith("problem.toml, line 12: ")
    return message.removeprefix("problem.toml, line 12: ")


# Reading


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x1 + x2 + x3 - 3", x1 + x2 + x3 - 3),
        ("(x1 - 9)**2 + x1", (x1 - 9) ** 2 + x1),
        ("x5**2 + x6^4/12", x5**2 + x6**4 / 12),
        ("1/12", Rational(1, 12)),
        ("2**-1", Rational(1, 2)),
        ("-x1**2", -(x1**2)),
        ("2**3**2", sympy.Integer(512)),
        ("2**-x1**2", exp(-(x1**2) * log(2))),
        ("--x1 - -x2 + +x3", x1 + x2 + x3),
        ("2*-x1", -2 * x1),
        ("x1/x2/x3", x1 / (x2 * x3)),
        ("x1 - x2 - x3", x1 - x2 - x3),
        ("-(x1 + 1)*x2", sympy.Mul(-1, x1 + 1, x2)),
        ("0.1*x1", sympy.Float(0.1) * x1),
        (".5 + 1. + 1e-3 + 2E2", sympy.Float(0.5 + 1.0 + 1e-3 + 2e2)),
        ("pi*x1", pi * x1),
        ("exp(1)", sympy.E),
        ("ln(x1) + log(x2)", log(x1) + log(x2)),
        ("sqrt(1 + x1**2)", sqrt(1 + x1**2)),
        ("logsumexp(x1, x2 + 1, 0)", log(exp(x1) + exp(x2 + 1) + 1)),
        ("v[1]*v[ 2 ]", v1 * v2),
        (" x1\n\t+ x2\r\n", x1 + x2),
        ("(" * 100 + "x1" + ")" * 100, x1),
        ("-" * 4_998 + "x1", x1),
    ],
)
def test_text_reads_as_the_mathematics_it_shows(text: str, expected: sympy.Expr) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    ("text", "g"),
    [
        ("x1 + x2 + x3 <= 3", x1 + x2 + x3 - 3),
        ("x1 >= 3", 3 - x1),
        ("3 >= x1 + x2", x1 + x2 - 3),
        ("x5**2 + x6**4/12 + x7**4/12 <= 20", x5**2 + x6**4 / 12 + x7**4 / 12 - 20),
        ("exp(x1) <= 2*exp(x2)", exp(x1) - 2 * exp(x2)),
    ],
)
def test_a_constraint_reads_as_g_at_most_zero(text: str, g: sympy.Expr) -> None:
    assert parse_constraint(text, SYMBOLS) == (g, False)
    assert parse_constraint(re.sub("[<>]=", "==", text), SYMBOLS) in ((g, True), (-g, True))


def test_an_equality_reads_as_left_minus_right() -> None:
    assert parse_constraint("x1 + x2 == 3*x3 - 1", SYMBOLS) == (x1 + x2 - 3 * x3 + 1, True)


digit = st.integers(0, 9).map(str)
raised = st.sampled_from(["**2", "**-1", "**-2", "**1**2", "**2**-1", "**--2**1", "**-1**2"])
arithmetic = st.recursive(
    digit,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(" - ".join),
        st.lists(inner, min_size=2, max_size=3).map("/".join),
        st.tuples(inner, st.sampled_from([" + ", "*", "*-", " - -"]), inner).map("".join),
        st.tuples(st.one_of(digit, inner.map("({})".format)), raised).map("".join),
        inner.map("-{}".format),
        inner.map("({})".format),
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(arithmetic)
@example("-2**2")
@example("2/3*4 - 5 - 6")
def test_precedence_is_that_of_python(text: str) -> None:
    oracle = "".join(f"Fraction({char})" if char.isdigit() else char for char in text)
    try:
        expected = eval(oracle, {"Fraction": Fraction})  # noqa: S307
    except (ZeroDivisionError, OverflowError):
        assume(False)
    assume(isinstance(expected, Fraction))
    assume(max(abs(expected.numerator), expected.denominator) < 2**40)
    try:
        value = parse_expression(text, {})
    except ProblemError as error:
        assert "2**128" in str(error)  # noqa: PT017
    else:
        assert Fraction(int(value.p), int(value.q)) == expected


normal_doubles = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)


@settings(deadline=None)
@given(normal_doubles)
def test_decimals_are_the_doubles_of_python(value: float) -> None:
    assert float(read(repr(value))) == value
    assert parse_number(repr(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ln(3)", lambda: mpmath.log(3)),
        ("1/3", lambda: mpmath.mpf(1) / 3),
        ("1e-6", lambda: mpmath.mpf(1e-6)),
        ("sqrt(2)*exp(-1/7)", lambda: mpmath.sqrt(2) * mpmath.exp(mpmath.mpf(-1) / 7)),
    ],
)
def test_a_number_is_the_nearest_double(text: str, value: Callable[[], mpmath.mpf]) -> None:
    with mpmath.workdps(50):
        assert parse_number(text) == float(value())


# Refusing


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("x1 + y1", "unknown name 'y1': this problem has x1, x2, ..., v[2]", 6),
        ("x1 + v", "v is unknown: v has the components v[1], v[2]", 6),
        ("v[0]", "v[0] is unknown: v has the components v[1], v[2]", 1),
        ("v[3]", "v[3] is unknown", 1),
        ("x1[1]", "x1 is a number, without components", 1),
        ("v[1.5]", "a component is a whole number as in x3[2], got '1.5'", 3),
        ("v[x1]", "got 'x1'", 3),
        ("v[1", "expected ']', got the end", 4),
        ("2*sin(x1)", "unknown function sin: use exp, log, sqrt, logsumexp, abs, max, min, pos", 3),
        ("abs(x1, x2)", "abs takes one argument, got 2", 1),
        ("sign(x1)", "a sign has no convex replacement", 1),
        ("pow(x1, 2)", "pow is written x**2", 1),
        ("x1(3)", "x1 is not a function: write * to multiply", 1),
        ("x1 + e**2", "write exp(1)", 6),
        ("E", "write exp(1)", 1),
        ("exp + 1", "exp is a function: write exp(...)", 1),
        ("log(x1, 2)", "log takes one argument, got 2", 1),
        ("sqrt()", "expected a number, a name, a function or '(', got ')'", 6),
        ("2x1", "expected an operator before 'x1': write * to multiply", 2),
        ("2 (x1)", "expected an operator before '('", 3),
        ("x1 and x2", "expected an operator before 'and'", 4),
        ("(x1 + 2", "expected ')', got the end", 8),
        ("(x1, x2)", "expected ')', got ','", 4),
        ("x1 + 2)", "expected the end, got ')'", 7),
        ("x1 +", "expected a number, a name, a function or '(', got the end", 5),
        ("x1 // 2", "got '/'", 5),
        ("x1 <= 3", "an expression must not hold a comparison", 4),
        ("x1 \N{MINUS SIGN} 3", "write -", 4),
        ("x1\N{SUPERSCRIPT TWO}", "write **2", 3),
        ("2\N{NO-BREAK SPACE}*x1", "U+00A0 (NO-BREAK SPACE): use plain ASCII", 2),
        ("\N{GREEK SMALL LETTER ALPHA}", "GREEK SMALL LETTER ALPHA", 1),
        ("x1 \N{GRINNING FACE}", "GRINNING FACE", 4),
        ("x1\0", "U+0000", 3),
        ("\ud800", "U+D800", 1),
        ("\N{FULLWIDTH DIGIT ONE}", "FULLWIDTH DIGIT ONE", 1),
        ("x1.real", "a dot belongs inside a number", 3),
        ("__import__('os')", 'unexpected "\'"', 12),
        ("__import__(x1)", "unknown function __import__", 1),
        ("lambda: x1", "unexpected ':'", 7),
        ("[x1 for x1 in v]", "got '['", 1),
        ("x1; x2", "unexpected ';'", 3),
        ("x1 if x2 else x3", "expected an operator before 'if'", 4),
        ("1/0", "divides by zero", 2),
        ("x1 + 1/(x2 - x2)", "divides by zero", 7),
        ("log(0)", "logarithm of zero", 1),
        ("sqrt(-2)", "negative number under a root", 1),
        ("x1**x2", "needs a positive constant base", 1),
        ("9**9**9", "exponents must lie in [-1000, 1000]", 1),
        ("2**10000000", "exponents must lie in [-1000, 1000], got 1e+07", 1),
        ("1e999", "between 2.3e-308 and 1.7e308", 1),
        ("1 + 0.1e-999", "between 2.3e-308 and 1.7e308", 5),
        ("1" * 5_000, "at most 40 digits", 1),
    ],
)
def test_a_refusal_says_why_and_points_at_the_place(text: str, message: str, column: int) -> None:
    first, shown, caret = refusal(text).split("\n")
    assert message in first
    assert caret.endswith(f"^ column {column}")
    if len(text) < 30:
        assert shown == "    " + "".join(char if char.isprintable() else " " for char in text)
        assert caret.index("^") == 4 + column - 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x1 < 3", "must include its border: write <="),
        ("x1 > 3", "must include its border: write >="),
        ("x1 = 3", "an equality is written with =="),
        ("x1 != 3", "not convex"),
        ("1 <= x1 <= 3", "write two constraints"),
        ("x1 == x2 == 3", "write two constraints"),
        ("x1 + 3", "expected <=, >= or ==, got the end"),
        ("x1 3 <= 3", "expected an operator before '3'"),
        ("x1 <=", "got the end"),
        ("<= 3", "got '<='"),
        ("(x1 <= 3)", "expected ')', got '<='"),
    ],
)
def test_what_is_no_single_comparison_is_refused(text: str, message: str) -> None:
    assert message in refusal(text, parse_constraint)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text is empty"),
        (" \n", "the text is empty"),
        ("x1 + " * 20_000 + "x1", "at most 10000 characters, got 100002"),
        ("x1+" * 2_500 + "x1", "at most 5000 numbers, names and signs, got 5001"),
        ("(" * 101 + "x1" + ")" * 101, "more than 100 brackets inside each other"),
        ("exp(" * 2_000, "more than 100 brackets inside each other"),
        ("((" * 40 + "x1" + "+1)**2/3+1)*x2" * 40, "nested more than 50 levels deep"),
        ("sqrt(1+" * 90 + "2" + ")" * 90, "a constant has more than 50 parts"),
    ],
)
def test_texts_beyond_the_limits_are_refused(text: str, message: str) -> None:
    assert message in refusal(text)


def test_a_refusal_shows_only_the_place_in_a_long_text() -> None:
    _, shown, caret = refusal("x1 + " * 500 + "y1" + " + x1" * 500).split("\n")
    assert shown == "    ..." + "x1 + " * 6 + "y1" + " + x1" * 5 + " + ..."
    assert shown[caret.index("^") :].startswith("y1")


def test_values_that_are_no_text_are_refused() -> None:
    assert refusal(3) == "must be text in quotes, got 3"  # type: ignore[arg-type]


def test_errors_without_a_place_have_no_prefix() -> None:
    with pytest.raises(ProblemError, match=r"^unknown name 'x1': this problem has numbers only"):
        parse_number("x1")


@pytest.mark.parametrize("module", [text_module, tokens_module])
def test_the_parser_calls_nothing_that_executes_text(module: object) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))  # type: ignore[attr-defined]
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} - {"compile"}
    assert not used & {"eval", "exec", "compile", "sympify", "parse_expr", "S", "getattr"}


@pytest.mark.parametrize("name", ["x1", "load", "_a", "X_10", "pie", "lambda"])
def test_words_may_be_names(name: str) -> None:
    check_name(name)
    assert parse_expression(f"2*{name}", {name: x1}) == 2 * x1


@pytest.mark.parametrize(
    "name", ["", "1x", "x 1", "x-1", "x[1]", "caf\u00e9", "e", "pi", "exp", "ln"]
)
def test_what_expressions_cannot_name_is_no_name(name: str) -> None:
    with pytest.raises(ProblemError, match=r"^agent 2: "):
        check_name(name, where="agent 2")


# Robustness

signs = [
    "**",
    "<=",
    ">=",
    "==",
    "'",
    "__class__",
    "\N{MINUS SIGN}",
    *"+-*/^()[],<>=.1234567890eE \n",
]
words = [*NAMES, "pi", "exp(", "log(", "sqrt(", "logsumexp(", "1e300", "1e-300", "999", "1/3"]
fragments = st.sampled_from([*signs, *words, "0.5", "0.0"])


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.lists(fragments, max_size=40).map("".join)))
@example("x1\x1f")
def test_only_problem_errors_come_out_of_any_text(text: str) -> None:
    for parse in (parse_expression, parse_constraint):
        try:
            result = parse(text, SYMBOLS)
        except ProblemError as error:
            str(error).encode("utf-8")
        else:
            tree, equality = result if isinstance(result, tuple) else (result, False)
            assert isinstance(tree, sympy.Expr)
            assert isinstance(equality, bool)


@pytest.mark.parametrize(
    "text",
    [
        " + ".join(f"1/{p}**{126 // int(p).bit_length()}" for p in sympy.primerange(2, 4_000)),
        "*".join(f"sqrt({2**128 - 1 - i}*x1)" for i in range(180)),
        "*".join(f"sqrt({p})" for p in sympy.primerange(2, 5_000)),
        "(" * 90 + "2*x1" + ")**999" * 90,
        "2**" * 1_600 + "2",
        "exp(" * 90 + "x1" + "*999*log(2))" * 90,
        "log(" * 6 + "sqrt(5+2*sqrt(6))-sqrt(2)-sqrt(3)" + ")" * 6,
        "(" * 49 + "+".join(f"x1*{i}*x2" for i in range(400)) + "+x1)**2" * 49,
        "1e" * 4_999,
        "." * 9_999,
    ],
)
def test_no_text_keeps_the_reader_busy(text: str) -> None:
    start = time.process_time()
    with contextlib.suppress(ProblemError):
        read(text)
    assert time.process_time() - start < 8


# Writing


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (x1 + x2 + x3 - 3, "x1 + x2 + x3 - 3"),
        (x5**2 + x6**4 / 12, "x5**2 + x6**4/12"),
        ((x1 - 9) ** 2 + x1, "(x1 - 9)**2 + x1"),
        (x4**2 + x4 + 6, "x4**2 + x4 + 6"),
        (sympy.Symbol("x10") - x2, "-x2 + x10"),
        (-2 * x1 * (x1 + 1) / 3, "-2*x1*(x1 + 1)/3"),
        (1 / sqrt(1 + x1**2), "1/sqrt(x1**2 + 1)"),
        (x1 / (2 * x2 + 2) / 12, "x1/12/(2*x2 + 2)"),
        (x1 ** Rational(-2, 3), "1/x1**(2/3)"),
        (0.1 * x1 - 0.5, "0.1*x1 - 0.5"),
        (sympy.Float(1e-20) * x1, "1e-20*x1"),
        (-x1 - Rational(1, 3), "-x1 - 1/3"),
        ((-x1) ** Rational(1, 3), "(-x1)**(1/3)"),
        ((x1**2) ** 0.3, "(x1**2)**0.3"),
        (2 * pi * x1 * log(2), "2*log(2)*pi*x1"),
        (Rational(2, 3) ** (-pi), "(2/3)**(-pi)"),
        (sympy.E + exp(-x1), "exp(-x1) + exp(1)"),
        (log(exp(x1) + exp(x2 - 1)), "logsumexp(x1, x2 - 1)"),
        (v1 * v2, "v[1]*v[2]"),
        (sympy.Float(2.0), "2.0"),
        (sympy.Integer(-2), "-2"),
    ],
)
def test_expressions_are_written_as_people_write_them(expr: sympy.Expr, text: str) -> None:
    assert write_expression(expr) == text


@pytest.mark.parametrize(
    ("g", "text"),
    [
        (x1 + x2 + x3 - 3, "x1 + x2 + x3 <= 3"),
        (3 - x1, "-x1 <= -3"),
        (x1 - x2, "x1 - x2 <= 0"),
        (x1 - log(3) - 1, "x1 <= 1 + log(3)"),
        (x1 + 0.1, "x1 <= -0.1"),
        (sympy.Integer(-2), "0 <= 2"),
    ],
)
def test_constraints_are_written_with_the_constant_on_the_right(g: sympy.Expr, text: str) -> None:
    assert write_constraint(g) == text


def trees(symbols: list[sympy.Symbol]) -> st.SearchStrategy[sympy.Expr]:
    """Random expressions built with SymPy's own operators."""
    number = st.one_of(
        st.integers(-12, 12).map(sympy.Integer),
        st.fractions(-3, 3, max_denominator=12).map(lambda q: Rational(q.numerator, q.denominator)),
        st.floats(-4, 4, allow_subnormal=False).filter(lambda a: a == 0 or abs(a) > 1e-9),
        st.sampled_from([pi, sympy.E, sqrt(2), log(3), exp(Rational(1, 3))]),
    )
    exponent = st.sampled_from([2, 3, -1, -2, Rational(1, 2), Rational(-2, 3), 0.5, -1.5, pi])
    leaf = st.one_of(st.sampled_from(symbols), number.map(sympy.sympify))
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda pair: pair[0] + pair[1]),
            st.tuples(inner, inner).map(lambda pair: pair[0] - pair[1]),
            st.tuples(inner, inner).map(lambda pair: pair[0] * pair[1]),
            st.tuples(inner, inner).map(lambda pair: pair[0] * pair[1] ** -1),
            st.tuples(inner, exponent).map(lambda pair: pair[0] ** pair[1]),
            # SymPy would evaluate towers of constants, and run out of memory.
            st.tuples(st.sampled_from([2, 0.5, Rational(1, 3), sympy.E]), inner).map(
                lambda pair: pair[0] ** pair[1] if pair[1].free_symbols else pair[1]
            ),
            inner.map(log),
        ),
        max_leaves=10,
    )


PLAIN = [x1, x2, v1, sympy.Symbol("x10")]
REAL = [sympy.Symbol(symbol.name, real=True) for symbol in PLAIN]


@settings(max_examples=300, deadline=None)
@given(st.one_of(trees(PLAIN), trees(REAL)))
def test_reading_what_was_written_gives_the_same_tree(expr: sympy.Expr) -> None:
    names = {symbol.name: symbol for symbol in expr.free_symbols}
    try:
        kept = check_expression(expr, names.values(), "")
    except ProblemError:
        assume(False)
    assert sympy.srepr(parse_expression(write_expression(kept), names)) == sympy.srepr(kept)
    for equality in (False, True):
        read_back, sign = parse_constraint(write_constraint(kept, equality=equality), names)
        assert sympy.srepr(read_back) == sympy.srepr(kept)
        assert sign == equality


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        (sympy.Mul(2, x1 + 1, evaluate=False), "must read back unchanged"),
        (2**x1, "must read back unchanged"),
        (x1 + sympy.Symbol("x1", real=True), "must read back unchanged"),
        (sympy.Symbol("x 1"), "unknown name 'x'"),
        (sympy.Symbol("exp"), "exp is a function"),
        (sympy.Add(*sympy.symbols("x1:3000")), "at most 10000 characters"),
        (sympy.sin(x1), "unknown function sin"),
    ],
)
def test_what_would_not_read_back_is_not_written(expr: sympy.Expr, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        write_expression(expr)


def test_the_text_does_not_depend_on_the_hash_seed() -> None:
    program = (
        "import sympy; from sottovoce.problem.printer import write_expression as w;"
        "x = sympy.symbols('x1:9'); print(w(sum((y - i)**2*sympy.exp(z) for i, y in enumerate(x)"
        " for z in x[:3])))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1
    assert "(x8 - 7)**2" in texts.pop()
