"""Text to formulas and back."""

from __future__ import annotations

import ast
import contextlib
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from random_formulas import OURS, any_formula, ours

from sottovoce.errors import ProblemError
from sottovoce.formula import parse as parse_module
from sottovoce.formula.canonical import canonical
from sottovoce.formula.derive import derivative
from sottovoce.formula.expression import Expression, number, symbol
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
from sottovoce.formula.parse import (
    check_expression,
    check_name,
    parse_constraint,
    parse_expression,
    parse_number,
)
from sottovoce.formula.write import latex, readable, write_constraint, write_expression

NAMES = [*(f"x{i}" for i in range(1, 8)), "v[1]", "v[2]"]
SYMBOLS = {name: symbol(name) for name in NAMES}
x1, x2, x3, x4, x5, x6, x7, v1, v2 = SYMBOLS.values()


def read(text: str) -> Expression:
    return parse_expression(text, SYMBOLS, where="problem.toml, line 12")


def refusal(text: Any, parse: Callable[..., object] = parse_expression) -> str:
    with pytest.raises(ProblemError) as caught:
        parse(text, SYMBOLS, where="problem.toml, line 12")
    message = str(caught.value)
    assert message.startswith("problem.toml, line 12: ")
    return message.removeprefix("problem.toml, line 12: ")


# Reading


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(x1 - 9)**2 + x1", (x1 - 9) ** 2 + x1),
        ("x5**2 + x6^4/12", x5**2 + x6**4 / number(12)),
        ("1/12", number(Fraction(1, 12))),
        ("2**-1", number(Fraction(1, 2))),
        ("-x1**2", -(x1**2)),
        ("2**3**2", number(512)),
        ("2**-x1**2", exp(-(x1**2) * log(2))),
        ("--x1 - -x2 + +x3 +-+- x4", x1 + x2 + x3 + x4),
        ("2*-x1", -2 * x1),
        ("x1/x2/x3", x1 / (x2 * x3)),
        ("x1 - x2 - x3", x1 - x2 - x3),
        ("-(x1 + 1)*x2", -(x1 + 1) * x2),
        (".5 + 1. + 1e-3 + 2E2", number(0.5 + 1.0 + 1e-3 + 2e2)),
        ("007", number(7)),
        ("pi*x1", 3.141592653589793 * x1),
        ("ln(x1) + log(x2)", log(x1) + log(x2)),
        ("sqrt(1 + x1**2)", sqrt(1 + x1**2)),
        ("logsumexp(x1, x2 + 1, 0)", logsumexp(x1, x2 + 1, 0)),
        ("abs(x1) + max(x1, 2*x2, 0)", abs(x1) + maximum(x1, 2 * x2, 0)),
        ("min(x1, 1) + pos(x2 - 1)", minimum(x1, 1) + pos(x2 - 1)),
        ("norm(x1, x2) + huber(x1) + huber(x2, 2)", norm(x1, x2) + huber(x1) + huber(x2, 2)),
        ("sum_squares(x1, x2)", sum_squares(x1, x2)),
        ("sum(v) + v[1]*v[ 2 ]", v1 + v2 + v1 * v2),
        (" x1\n\t+ x2\r\n", x1 + x2),
        ("(" * 100 + "x1" + ")" * 100, x1),
        ("-" * 4_998 + "x1", x1),
        ("x1+" * 2_499 + "x1", 2_500 * x1),
    ],
)
def test_text_reads_as_the_mathematics_it_shows(text: str, expected: Expression) -> None:
    assert read(text) is canonical(expected)


@pytest.mark.parametrize(
    ("text", "g", "equality"),
    [
        ("x1 + x2 + x3 <= 3", x1 + x2 + x3 - 3, False),
        ("x1 >= 3", 3 - x1, False),
        ("exp(x1) <= 2*exp(x2)", exp(x1) - 2 * exp(x2), False),
        ("x1 + x2 == 3*x3 - 1", x1 + x2 - 3 * x3 + 1, True),
    ],
)
def test_a_constraint_reads_as_g_at_most_zero(text: str, g: Expression, equality: bool) -> None:
    form, sign = parse_constraint(text, SYMBOLS)
    assert form is canonical(g)
    assert sign == equality


def test_totals_take_terms_of_their_own_names() -> None:
    inside = {name: symbol(name) for name in ("ev[1]", "ev[2]")}
    totals: list[Sequence[Expression]] = []

    def total(terms: Sequence[Expression]) -> Expression:
        if not any(term.symbols for term in terms):
            raise ProblemError("total must be over one fleet")
        totals.append(terms)
        return symbol(f"t{len(totals)}")

    text = "2*total(ev) + x1 - total(ev[1]**2, 2*ev[2]) <= 3"
    g, _ = parse_constraint(text, SYMBOLS, total=total, inside=inside)
    assert g is canonical(2 * symbol("t1") + x1 - symbol("t2") - 3)
    shown = [list(map(str, terms)) for terms in totals]
    assert shown == [["ev[1]", "ev[2]"], ["ev[1]**2", "2*ev[2]"]]
    for bad, message in {
        "total(x1) <= 1": "unknown name 'x1'",
        "ev[1] <= 1": "unknown name 'ev",
        "total(1) <= 1": "over one fleet",
        "total(total(ev)) <= 1": "unknown function total",
    }.items():
        with pytest.raises(ProblemError, match=message):
            parse_constraint(bad, SYMBOLS, total=total, inside=inside)
    assert "unknown function total" in refusal("total(x1) <= 1", parse_constraint)


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
    assert parse_expression(text, {}).value == pytest.approx(expected, rel=1e-15)


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False))
def test_decimals_are_the_doubles_of_python(value: float) -> None:
    assert parse_number(repr(value)) == value


# Refusing


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("x1 + y1", "unknown name 'y1': this problem has x1, x2, ..., v[2]", 6),
        ("x1 + v", "v is unknown: v has the components v[1], v[2]", 6),
        ("v[0]", "v[0] is unknown: v has the components v[1], v[2]", 1),
        ("x1[1]", "x1 is a number, without components", 1),
        ("v[1.5]", "a component is an integer as in x3[2], got '1.5'", 3),
        ("v[x1]", "got 'x1'", 3),
        ("v[1", "expected ']', got the end", 4),
        ("2*sin(x1)", "unknown function sin: use exp, log, sqrt, logsumexp, abs, max, min, pos", 3),
        ("abs(x1, x2)", "abs takes one argument, got 2", 1),
        ("huber(x1, 2, 3)", "huber takes at most 2 arguments, got 3", 1),
        ("huber(x1, 0)", "width of huber must be a positive number, got 0", 1),
        ("sign(x1)", "a sign has no convex replacement", 1),
        ("pow(x1, 2)", "pow is written x**2", 1),
        ("x1(3)", "x1 is not a function: write * to multiply", 1),
        ("x1 + e**2", "write exp(1)", 6),
        ("exp + 1", "exp is a function: write exp(...)", 1),
        ("sqrt()", "expected a number, a name, a function or '(', got ')'", 6),
        ("max(x1,)", "expected a number, a name, a function or '(', got ')'", 8),
        ("2x1", "expected an operator before 'x1': write * to multiply", 2),
        ("2 (x1)", "expected an operator before '('", 3),
        ("(x1)(x2)", "expected an operator before '('", 5),
        ("x1 and x2", "expected an operator before 'and'", 4),
        ("(x1 + 2", "expected ')', got the end", 8),
        ("(x1, x2)", "expected ')', got ','", 4),
        ("x1, x2", "expected the end, got ','", 3),
        ("x1 + 2)", "expected the end, got ')'", 7),
        ("x1 +", "expected a number, a name, a function or '(', got the end", 5),
        ("x1 // 2", "got '/'", 5),
        ("x1 <= 3", "an expression must not hold a comparison", 4),
        ("x1 \N{MINUS SIGN} 3", "write -", 4),
        ("x1\N{SUPERSCRIPT TWO}", "write **2", 3),
        ("2\N{NO-BREAK SPACE}*x1", "U+00A0 (NO-BREAK SPACE): use plain ASCII", 2),
        ("x1 \N{GRINNING FACE}", "GRINNING FACE", 4),
        ("x1\0", "U+0000", 3),
        ("\ud800", "U+D800", 1),
        ("1/0", "divides by zero", 2),
        ("0/0", "divides by zero", 2),
        ("x1 + (1)/(x2 - x2)", "divides by zero", 9),
        ("log(0)", "logarithm must be of a positive number, got 0", 1),
        ("2 + sqrt(-2)", "negative number under a root", 5),
        ("exp(exp(exp(exp(10))))", "too large", 9),
        ("x1**x2", "needs a positive constant base", 1),
        ("2**10000000", "exponents must lie in [-1000, 1000], got 1e+07", 1),
        ("1e999", "between 2.3e-308 and 1.7e308", 1),
        ("1 + 0.1e-999", "between 2.3e-308 and 1.7e308", 5),
    ],
)
def test_a_refusal_says_why_and_points_at_the_place(text: str, message: str, column: int) -> None:
    first, shown, caret = refusal(text).split("\n")
    assert message in first
    assert caret.endswith(f"^ column {column}")
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


HOSTILE = {
    "Python internals": ("__import__('os').system('true')", 'unexpected "\'"'),
    "a function of Python": ("__import__(x1)", "unknown function __import__"),
    "a dunder name": ("__builtins__", "unknown name '__builtins__'"),
    "an attribute": ("x1.real", "a dot belongs inside a number"),
    "an attribute of a number": ("1.real", "expected an operator before 'real'"),
    "a lambda": ("lambda: x1", "unexpected ':'"),
    "a walrus": ("(x1 := 3)", "unexpected ':'"),
    "a comprehension": ("[x1 for x1 in v]", "got '['"),
    "an f-string": ("f'{x1}'", 'unexpected "\'"'),
    "a statement": ("x1; x2", "unexpected ';'"),
    "a comment": ("x1 # + 1", "unexpected '#'"),
    "a continued line": ("x1 \\\n + 1", "unexpected '\\\\'"),
    "a conditional": ("x1 if x2 else x3", "expected an operator before 'if'"),
    "a keyword": ("not x1", "expected an operator before 'x1'"),
    "a star": ("max(*v)", "got '*'"),
    "a keyword argument": ("huber(x1, width=2)", "expected ')', got '='"),
    "underscored digits": ("1_000", "expected an operator before '_000'"),
    "hexadecimal": ("0x10", "expected an operator before 'x10'"),
    "a complex number": ("1j", "expected an operator before 'j'"),
    "our own placeholder": ("_0", "unknown name '_0'"),
    "a full-width digit": ("\N{FULLWIDTH DIGIT ONE}", "FULLWIDTH DIGIT ONE"),
    "a look-alike": ("x1 + \N{CYRILLIC SMALL LETTER HA}1", "CYRILLIC SMALL LETTER HA"),
    "a letter that NFKC folds": ("\N{MATHEMATICAL ITALIC SMALL X}1", "MATHEMATICAL ITALIC SMALL X"),
    "depth": ("(" * 100_000 + "x1" + ")" * 100_000, "at most 10000 characters, got 200002"),
    "brackets": ("(" * 101 + "x1" + ")" * 101, "more than 100 brackets inside each other"),
    "calls": ("exp(" * 2_000, "more than 100 brackets inside each other"),
    "levels": ("((" * 40 + "x1" + "+1)**2/3+1)*x2" * 40, "nested at most 50 levels deep"),
    "10^7 terms": ("x1+" * 10_000_000 + "x1", "at most 10000 characters, got 30000002"),
    "many terms": ("x1+" * 2_500 + "x1", "at most 5000 numbers, names and signs, got 5001"),
    "many digits": ("1" * 9_999, "at most 40 digits"),
    "a huge power": ("9**9**9", "exponents must lie in [-1000, 1000]"),
    "a tower": ("2**" * 1_600 + "2", "exponents must lie in [-1000, 1000]"),
    "powers of powers": ("x1" + "**2" * 2_000, "exponents must lie in"),
    "nested powers": ("(" * 90 + "2*x1" + ")**999" * 90, "too large for double precision"),
    "nothing": (" \n", "the text is empty"),
    "no text": (3, "must be text in quotes, got 3"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_texts_are_refused(kind: str) -> None:
    text, message = HOSTILE[kind]
    tracemalloc.start()
    assert message in refusal(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6


@pytest.mark.parametrize(
    "text",
    [
        " + ".join(f"1/{p}**9" for p in range(10_007, 11_000)),
        "*".join(f"sqrt({2**128 - 1 - i}*x1)" for i in range(180)),
        "exp(" * 90 + "x1" + "*999*log(2))" * 90,
        "(" * 49 + "+".join(f"x1*{i}*x2" for i in range(400)) + "+x1)**2" * 49,
        "1e" * 4_999,
        "." * 9_999,
    ],
)
@pytest.mark.timeout(30)
def test_no_text_keeps_the_reader_busy(text: str) -> None:
    with contextlib.suppress(ProblemError):
        read(text)


def test_a_refusal_shows_only_the_place_in_a_long_text() -> None:
    _, shown, caret = refusal("x1 + " * 500 + "y1" + " + x1" * 500).split("\n")
    assert shown == "    ..." + "x1 + " * 6 + "y1" + " + x1" * 5 + " + ..."
    assert shown[caret.index("^") :].startswith("y1")


def test_errors_without_a_place_have_no_prefix() -> None:
    with pytest.raises(ProblemError, match=r"^unknown name 'x1': this problem has numbers only"):
        parse_number("x1")


def test_the_parser_calls_nothing_that_executes_text() -> None:
    tree = ast.parse(Path(parse_module.__file__).read_text(encoding="utf-8"))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not names & {"eval", "exec", "compile", "getattr", "globals"}


@pytest.mark.parametrize("name", ["x1", "load", "_a", "_0", "X_10", "pie", "lambda", "None"])
def test_words_may_be_names(name: str) -> None:
    check_name(name)
    assert parse_expression(f"2*{name}", {name: x1}) is canonical(2 * x1)


@pytest.mark.parametrize(
    "name", ["", "1x", "x 1", "x-1", "x[1]", "caf\u00e9", "e", "pi", "exp", "ln", "sum_squares"]
)
def test_what_expressions_cannot_name_is_no_name(name: str) -> None:
    with pytest.raises(ProblemError, match=r"^agent 2: "):
        check_name(name, where="agent 2")


signs = ["**", "<=", ">=", "==", "'", "__class__", "\N{MINUS SIGN}", *"+-*/^()[],<>=.123450eE \n"]
words = [*NAMES, "pi", "exp(", "log(", "sqrt(", "max(", "1e300", "1e-300", "999", "1/3", "sum(v"]


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.lists(st.sampled_from([*signs, *words]), max_size=40).map("".join)))
@example("x1\x1f")
def test_only_problem_errors_come_out_of_any_text(text: str) -> None:
    for parse in (parse_expression, parse_constraint):
        try:
            parse(text, SYMBOLS)
        except ProblemError as error:
            str(error).encode("utf-8")


# Writing


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (x1 + x2 + x3 - 3, "x1 + x2 + x3 - 3"),
        (x5**2 + x6**4 / number(12), "x5**2 + x6**4/12"),
        ((x1 - 9) ** 2 + x1, "(x1 - 9)**2 + x1"),
        (6 + x4 + x4**2, "x4**2 + x4 + 6"),
        (-2 * x1 * (x1 + 1) / 3, "-2*x1*(x1 + 1)/3"),
        (1 / sqrt(1 + x1**2), "1/sqrt(x1**2 + 1)"),
        (x1 / (2 * x2 + 2) / 12, "x1/12/(2*x2 + 2)"),
        (x1 ** Fraction(-2, 3), "1/x1**(2/3)"),
        (0.1 * x1 - 0.5, "0.1*x1 - 0.5"),
        (1e-20 * x1, "1e-20*x1"),
        (-x1 - Fraction(1, 3), "-x1 - 1/3"),
        ((-x1) ** Fraction(1, 3), "(-x1)**(1/3)"),
        ((x1**2) ** 0.3, "(x1**2)**0.3"),
        (logsumexp(x1, x2 - 1), "logsumexp(x1, x2 - 1)"),
        (-2 * maximum(-x1, 3 - x2, 1), "2*min(x1, x2 - 3, -1)"),
        (x1 - maximum(x2, 0), "x1 - max(x2, 0)"),
        (huber(x1, 2) * abs(x2), "huber(x1, 2)*abs(x2)"),
        (v1 * v2, "v[1]*v[2]"),
        (number(2.0), "2"),
        (number(-2), "-2"),
    ],
)
def test_formulas_are_written_as_people_write_them(expr: Expression, text: str) -> None:
    assert write_expression(expr) == text == str(expr)


@pytest.mark.parametrize(
    ("g", "text"),
    [
        (x1 + x2 + x3 - 3, "x1 + x2 + x3 <= 3"),
        (3 - x1, "-x1 <= -3"),
        (x1 - x2, "x1 - x2 <= 0"),
        (x1 + 0.1, "x1 <= -0.1"),
        (number(-2), "0 <= 2"),
    ],
)
def test_constraints_are_written_with_the_constant_on_the_right(g: Expression, text: str) -> None:
    assert write_constraint(g) == text


@settings(max_examples=300, deadline=None)
@given(any_formula)
def test_reading_what_was_written_gives_the_same_node(recipe: Any) -> None:
    try:
        form = canonical(ours(recipe))
    except ProblemError:
        assume(False)
    assert parse_expression(write_expression(form), OURS) is form
    for equality in (False, True):
        g, sign = parse_constraint(write_constraint(form, equality=equality), OURS)
        assert g is form
        assert sign == equality
    assert latex(form).count("{") == latex(form).count("}")


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        (symbol("x 1"), "unknown name 'x'|expected an operator"),
        (symbol("exp"), "exp is a function"),
        (sum(symbol(f"x{i}") for i in range(3000)), "at most 10000 characters"),
        (derivative(canonical(abs(x1)), x1), "a sign has no convex replacement"),
    ],
)
def test_what_would_not_read_back_is_not_written(expr: Any, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        write_expression(expr)


def test_messages_name_derivatives_and_formulas_without_a_value() -> None:
    assert readable(derivative(canonical(abs(x1)), x1)) == "sign(x1)"
    assert readable(derivative(canonical(maximum(x1, x2)), x1)) == "where(x1 - x2, 1, 0)"
    assert readable(derivative(canonical(norm(x1, x2)), x1)) == "norm_slope(x1, x2, 1, 0)"
    assert "divides by zero" in repr(x1 / (x2 - x2))


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (x6**4 / number(12) - 0.5 * x7, r"\frac{x_{6}^{4}}{12} - 0.5 x_{7}"),
        (sqrt(x1) / exp(-x2), r"\sqrt{x_{1}} e^{x_{2}}"),
        (symbol("max_load") * symbol("x3[2]"), r"\mathrm{max\_load} x_{3,2}"),
        (abs(x1) + norm(x1, x2), r"\left|x_{1}\right| + \left\|\left(x_{1}, x_{2}\right)\right\|"),
        (minimum(x1, 1e-9), r"\min\left(x_{1}, 1 \cdot 10^{-9}\right)"),
        (huber(x1, 2) ** 2, r"\mathrm{huber}_{2}\left(x_{1}\right)^{2}"),
    ],
)
def test_latex_is_this(expr: Expression, text: str) -> None:
    assert latex(expr) == text
    assert expr._repr_latex_() == f"${latex(expr)}$"


def test_the_text_does_not_depend_on_the_hash_seed() -> None:
    program = (
        "from sottovoce.formula.expression import symbol; from sottovoce.formula.functions import"
        " exp; x = [symbol(f'x{k}') for k in range(1, 9)];"
        "print(sum((y - i)**2*exp(z) + exp(z)*exp(-y) for i, y in enumerate(x) for z in x[:3]))"
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


# Checking


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        (symbol("z"), "unknown symbol z: this expression may use x1, x2, ..., v[2]"),
        (x1 <= 3, "must not be a comparison, got x1 <= 3"),
        ("x1 + 1", "made of states, got str"),
        (None, "got NoneType"),
        ([x1], "got list"),
        (True, "got bool"),
        (1j, "real numbers, got 1j"),
        (float("inf"), "must be finite"),
        (1 / (x1 - x1), "divides by zero"),
    ],
)
def test_anything_but_a_formula_in_known_symbols_is_refused(expr: Any, message: str) -> None:
    with pytest.raises(ProblemError) as caught:
        check_expression(expr, SYMBOLS.values(), "constraint 1")
    assert str(caught.value).startswith("constraint 1: ")
    assert message in str(caught.value)


def test_a_checked_formula_is_canonical() -> None:
    assert check_expression(2 * (x1 + 1), [x1], "") is canonical(2 * x1 + 2)
    assert check_expression(3, [], "") is number(3)
