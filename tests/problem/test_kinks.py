"""Kinks: exact values, subgradients, text, and constraints made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from sottovoce.engine.agent_text import Lenient
from sottovoce.engine.emit import Emitter
from sottovoce.errors import CertificateError, ConvexityError, ProblemError
from sottovoce.problem import kinks
from sottovoce.problem.expressions import check_expression
from sottovoce.problem.printer import write_expression
from sottovoce.problem.shape import shape
from sottovoce.problem.text import parse_expression

X, Y = sp.symbols("x y")
FORMULAS: list[Any] = [
    abs(X - 3) + 2 * abs(-2 * X + Y),
    sp.Max(X, 0, 2 * X - 1),
    -sv.minimum(X, 3 - Y),
    sv.norm(X - 1, Y, 2 * X),
    sv.huber(X - Y, 1.5),
    sv.pos(X) ** 2 + sv.exp(abs(Y)),
    sv.maximum(abs(X), abs(Y), 1),
    sv.norm(abs(X), sv.pos(Y - 1)),
    sv.maximum([X, Y, -X - Y]) * 3,
]


def checked(formula: Any) -> Any:
    return check_expression(formula, [X, Y], "f")


def value_of(expr: Any) -> Any:
    return sp.lambdify([X, Y], expr, modules=[kinks.NUMPY, "numpy"])


@pytest.mark.parametrize("formula", FORMULAS)
def test_text_reads_back_what_was_written(formula: Any) -> None:
    expr = checked(formula)
    assert parse_expression(write_expression(expr), {"x": X, "y": Y}) == expr
    assert shape(expr) == "convex"
    assert shape(-expr) == "concave"


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(FORMULAS),
    *(st.integers(-16, 16).map(lambda k: k / 4) for _ in range(4)),
)
def test_slopes_are_subgradients(formula: Any, x: float, y: float, u: float, v: float) -> None:
    expr = checked(formula)
    f, g = value_of(expr), value_of([sp.diff(expr, X), sp.diff(expr, Y)])
    dx, dy = (float(s) for s in g(x, y))
    assert f(u, v) >= f(x, y) + dx * (u - x) + dy * (v - y) - 1e-9


@pytest.mark.parametrize("formula", FORMULAS)
def test_code_computes_what_numpy_does(formula: Any) -> None:
    expr = checked(formula)
    for target in (expr, sp.diff(expr, X), sp.diff(expr, Y)):
        page = Emitter({X: "x", Y: "y"})
        result = page.value(target)
        text = "def own(x, y):\n" + "".join(f"    {line}\n" for line in page.lines)
        module: dict[str, Any] = {"math": Lenient}
        exec(f"{text}    return {result}\n", module)  # noqa: S102  text of our own making
        for x in (-2.0, 0.0, 0.75, 1.0, 3.0):
            for y in (-1.0, 0.0, 2.0):
                expected = float(value_of(target)(x, y))
                assert module["own"](x, y) == pytest.approx(expected, rel=1e-14, abs=1e-14)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("abs(x)", abs(X)),
        ("max(x, 2*x, 0)", sp.Max(X, 2 * X, 0)),
        ("min(x, 1)", sv.minimum(X, 1)),
        ("pos(x - 1)", sv.pos(X - 1)),
        ("norm(x, y)", sv.norm(X, Y)),
        ("huber(x)", sv.huber(X)),
        ("huber(x, 2)", sv.huber(X, 2)),
    ],
)
def test_text_knows_them(text: str, expected: Any) -> None:
    assert parse_expression(text, {"x": X, "y": Y}) == checked(expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: parse_expression("huber(x, 0)", {"x": X}), "width of huber must be a positive"),
        (lambda: parse_expression("abs(x, 2)", {"x": X}), "abs takes one argument, got 2"),
        (lambda: parse_expression("sign(x)", {"x": X}), "a sign has no convex replacement"),
        (lambda: checked(sp.Piecewise((X, X > 0), (0, True))), "the largest of its convex pieces"),
        (lambda: sv.maximum(), "at least one argument"),
    ],
)
def test_what_they_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        make()


def test_huber_is_a_square_and_then_a_line() -> None:
    f = value_of(sv.huber(X, 2))
    assert [float(f(x, 0)) for x in (-1.0, 2.0, 3.0)] == [1.0, 4.0, 8.0]


def states() -> Any:
    return sv.states(3, lower=-5, upper=5, dim=[1, 1, 2])


def stated(constraint: Any, **more: Any) -> sv.Problem:
    x = states()
    return sv.Problem(
        states=x,
        objectives=[x[0] ** 2, x[1] ** 2, x[2][0] ** 2 + x[2][1] ** 2],
        constraints=[constraint(x)],
        **more,
    )


def test_kinks_that_mix_agents_become_bounds_balls_and_rows() -> None:
    between = stated(lambda x: abs(x[0] - x[1]) <= 2).cloud.sums
    assert (between.lower.tolist(), between.upper.tolist()) == ([-2.0], [2.0])
    ball = stated(lambda x: sv.norm(x[0] - x[1], x[2][0]) <= 2).cloud.sums
    assert len(ball.regions) == 1
    rows = stated(lambda x: sv.maximum(x[0] + x[1], 2 * x[1] - x[2][0]) + x[2][1] <= 2)
    assert rows.cloud.row_labels() == ["g1[1]", "g1[2]"]
    two = stated(lambda x: 3 * abs(x[0] - x[1]) + x[2][0] <= 2)
    assert {str(c.formulas[0]) for c in two.constraints} == {
        "3*x1 - 3*x2 + x3[1] - 2",
        "-3*x1 + 3*x2 + x3[1] - 2",
    }


def test_kinks_of_one_agent_each_stay_one_sum() -> None:
    sums = stated(lambda x: abs(x[0]) + sv.pos(x[1]) + sv.norm(*x[2]) <= 2).cloud.sums
    assert sums.count == 1
    assert sums.regions == ()


def test_a_norm_over_agents_beside_other_terms_is_refused() -> None:
    with pytest.raises(ProblemError, match="bound the norm by itself"):
        stated(lambda x: sv.norm(x[0], x[1]) + x[2][0] <= 2)


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        (lambda x: -abs(x[2][0]) + x[2][1] <= 1, "is concave"),
        (lambda x: x[2][1] ** 2 - abs(x[2][0]) <= 1, "must add convex terms only, got -abs"),
        (lambda x: sv.minimum(x[2][0], x[2][1]) <= 1, "is concave"),
        (
            lambda x: sv.maximum(-(x[2][0] ** 2), x[2][1]) <= 1,
            r"max takes convex formulas, got -x3",
        ),
        (lambda x: abs(x[2][0] ** 2 - 1) + x[2][1] <= 1, "abs takes affine formulas"),
        (lambda x: sv.norm(-(x[2][0] ** 2), x[2][1]) <= 30, None),
    ],
)
def test_a_use_that_is_not_convex_is_refused_with_the_rule(row: Any, rule: str | None) -> None:
    if rule is None:
        stated(lambda x: x[0] + x[1] <= 2, local=[row(states())])
        return
    with pytest.raises(ConvexityError, match=rule):
        stated(lambda x: x[0] + x[1] <= 2, local=[row(states())])


@pytest.mark.parametrize(
    ("formula", "rule"),
    [
        (lambda x: -abs(x), r"-abs\(x1\).* is concave"),
        (lambda x: -(x**2), r"-x1\*\*2.* is concave"),
        (lambda x: x**4 - x**2, r"a sum must add convex terms only, got -x1\*\*2"),
        (lambda x: x**3, r"a power must bend one way over the box, got x1\*\*3 with x1 in \["),
        (lambda x: x * sv.exp(x), "a product must have one factor that names the state, got 2"),
        (lambda x: sv.maximum(-(x**2), x), "max takes convex formulas, got -x1"),
        (lambda x: abs(x**2 - 1), r"abs takes affine formulas, got x1\*\*2 - 1, which is convex"),
        (lambda x: abs(x) ** 0.5, "a power must bend one way"),  # its slope has no bound either
    ],
)
@pytest.mark.parametrize("place", ["objective", "constraint"])
def test_a_formula_that_is_not_convex_fails_with_the_rule(
    formula: Any, rule: str, place: str
) -> None:
    x = sv.states(2, lower=-3, upper=3)
    bad, fine = formula(x[0]), x[0] ** 2
    objective, row = (bad, fine) if place == "objective" else (fine, bad)
    stated = sv.Problem(states=x, objectives=[objective, x[1] ** 2], constraints=[row + x[1] <= 2])
    # A constraint whose slope has no bound is no certificate at all, and says both.
    kinds = (ConvexityError, CertificateError)
    with pytest.raises(kinds, match=f"must be convex, got .*{rule}.*; restate it"):
        sv.certify(stated).require()


def test_kinks_survive_a_folder(tmp_path: Path) -> None:
    problem = stated(lambda x: abs(x[0]) + sv.pos(x[1]) <= 2, local=["norm(x3[1], x3[2]) <= 3"])
    sv.save_problem(problem, tmp_path / "p")
    assert sv.load_problem(tmp_path / "p").fingerprint == problem.fingerprint


def test_arrays_of_states_take_numpys_sizes() -> None:
    ev = sv.fleet(3, dim=2, lower=-1, upper=1, name="ev")
    assert list(np.abs(ev.state)) == [kinks.absolute(s) for s in ev.state]
