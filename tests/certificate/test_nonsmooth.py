"""Kinks in certificates, saddle points and rounds, against other ways to compute them."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from formula_values import evaluate
from sottovoce.certificate.convexity import convexity, smoothness
from sottovoce.certificate.domain import contract
from sottovoce.formula.canonical import canonical, negate, sign_of
from sottovoce.formula.derive import gradient, is_smooth
from sottovoce.formula.enclosure import enclose, enclose_with_gradient, evaluation_error
from sottovoce.formula.expression import symbol
from sottovoce.formula.intervals import interval
from sottovoce.problem.epigraph import epigraph_form
from sympy_oracle import sympy_of, sympy_symbol

cp: Any = import_module("cvxpy")  # its type hints do not name what it exports
X, Y = symbol("x"), symbol("y")
FORMULAS = [
    canonical(f)
    for f in (
        abs(X - 1) + sv.maximum(X, 2 * Y, -1),
        sv.norm(X, Y - 1) + sv.huber(X + Y, 1),
        sv.pos(X - Y) ** 2 + 3 * sv.norm(2 * X, X + Y, 1),
        sv.maximum(abs(X), abs(Y)) - sv.minimum(X, 1),
    )
]


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(FORMULAS),
    *(st.floats(-3, 3) for _ in range(2)),
    *(st.floats(0, 2) for _ in range(2)),
    st.integers(0, 10**6),
)
def test_enclosures_hold_values_slopes_and_jumps(
    expr: Any, x: float, y: float, wide: float, high: float, seed: int
) -> None:
    box = {X: interval(x, x + wide), Y: interval(y, y + high)}
    value, slope = enclose_with_gradient(expr, box, (X, Y))
    rng = np.random.default_rng(seed)
    points = rng.random((20, 2)) * [wide, high] + [x, y]
    derivatives = gradient(expr, (X, Y))

    def f(a: float, b: float) -> float:
        return float(evaluate(expr, {X: a, Y: b}))

    for a, b in points:
        assert value.lower - 1e-12 <= f(a, b) <= value.upper + 1e-12
        for k, s in enumerate((X, Y)):
            found = enclose(derivatives[s], {X: interval(a, a), Y: interval(b, b)})
            assert slope.lower[k] - 1e-12 <= found.upper
            assert found.lower <= slope.upper[k] + 1e-12
    # the mean-value property, which a jump of the function itself would break
    for (a, b), (c, d) in zip(points[:10], points[10:], strict=True):
        low = sum(min(slope.lower[k] * e, slope.upper[k] * e) for k, e in enumerate((c - a, d - b)))
        high_end = sum(
            max(slope.lower[k] * e, slope.upper[k] * e) for k, e in enumerate((c - a, d - b))
        )
        assert low - 1e-9 <= f(c, d) - f(a, b) <= high_end + 1e-9


def test_a_slope_that_jumps_has_no_finite_slope() -> None:
    _, slope = enclose_with_gradient(sign_of(X), {X: interval(-1.0, 1.0)}, (X,))
    assert slope.lower[0] == -np.inf
    assert slope.upper[0] == np.inf
    _, apart = enclose_with_gradient(sign_of(X), {X: interval(0.5, 1.0)}, (X,))
    assert (apart.lower[0], apart.upper[0]) == (0.0, 0.0)


@pytest.mark.parametrize("expr", FORMULAS)
def test_their_convexity_is_proven_and_their_negatives_fail(expr: Any) -> None:
    box = {X: (-2.0, 2.0), Y: (-1.0, 3.0)}
    assert convexity(expr, box).status == "proven"
    assert smoothness(expr, box).status == "note"
    assert convexity(negate(expr), box).status == "fails"


def test_second_derivatives_never_prove_a_kink_convex() -> None:
    # |x| bends nowhere but at 0: an interval Hessian of -|x| + x^2/100 would not see the kink
    found = convexity(canonical(X**2 / 100 - abs(X)), {X: (-1.0, 1.0)})
    assert found.status == "fails"
    assert "abs" in found.detail or "absolute" in found.detail


@pytest.mark.parametrize("expr", FORMULAS)
def test_evaluation_errors_bound_what_doubles_do(expr: Any) -> None:
    rng = np.random.default_rng(1)
    oracle, places = sympy_of(expr), (sympy_symbol(X), sympy_symbol(Y))
    for x, y in rng.uniform(-2, 2, (20, 2)):
        bound = float(np.max(evaluation_error(expr, {X: interval(x, x), Y: interval(y, y)})))
        at = (sp.Rational(float(x)), sp.Rational(float(y)))
        exact = oracle.subs(dict(zip(places, at, strict=True))).evalf(40)
        found = float(evaluate(expr, {X: np.float64(x), Y: np.float64(y)}))
        assert abs(sp.Rational(found) - exact) <= bound < 1e-12


def test_domains_shrink_by_what_kinks_imply() -> None:
    found = contract(
        canonical(abs(X) + sv.norm(X, Y) - 2), {X: interval(-9.0, 9.0), Y: interval(-9.0, 9.0)}
    )
    assert found[X].upper <= 2.0 + 1e-12
    assert found[Y].lower >= -2.0 - 1e-12


def problem() -> sv.Problem:
    x = sv.agents(3, lower=-5, upper=5)
    return sv.Problem(
        objectives=[
            abs(x[0] - 2) + 0.1 * x[0] ** 2,
            sv.huber(x[1] - 1, 0.5),
            sv.maximum(x[2], -2 * x[2], x[2] ** 2 / 4 - 1),
        ],
        constraints=[
            abs(x[0]) + x[1] + sv.pos(x[2]) <= 1.5,
            abs(x[0] - x[1]) <= 1,
            sv.norm(x[1], x[2] + 1) <= 3,
        ],
    )


def test_the_saddle_point_is_that_of_another_solver_and_rounds_go_there() -> None:
    z = cp.Variable(3)
    rows = [
        cp.abs(z[0]) + z[1] + cp.pos(z[2]) <= 1.5,
        cp.abs(z[0] - z[1]) <= 1,
        cp.norm(cp.hstack([z[1], z[2] + 1])) <= 3,
    ]
    cost = cp.abs(z[0] - 2) + 0.1 * cp.square(z[0]) + cp.huber(z[1] - 1, 0.5)
    cost += cp.maximum(z[2], -2 * z[2], cp.square(z[2]) / 4 - 1)
    cp.Problem(cp.Minimize(cost), rows).solve(solver="CLARABEL")
    found = sv.reference_optimum(problem())
    np.testing.assert_allclose(found.x, z.value, atol=1e-6)
    np.testing.assert_allclose(found.mu, [float(r.dual_value) for r in rows], atol=1e-6)
    result = sv.simulate(problem(), rounds=1500)
    np.testing.assert_allclose(result.x[0], found.x, atol=1e-4)


def test_sensitivities_are_the_steepest_slopes_at_kinks() -> None:
    x = sv.agents(2, lower=-3, upper=3)
    stated = sv.Problem(
        objectives=[x[0] ** 2, x[1] ** 2],
        constraints=[sv.maximum(x[0], -3 * x[0]) + 2 * abs(x[1] - 1) <= 40],
    )
    np.testing.assert_allclose(sv.certify(stated).sensitivity.dense(), [[3.0, 2.0]], rtol=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_the_form_for_vectors_has_the_same_minimum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b, c, d = rng.uniform(-2, 2, 4)
    x = sv.agents(2, lower=-3, upper=3, dim=[2, 1])
    u, v = x[0]
    objective = abs(u - a) + sv.huber(v - b, 0.5) + 2 * sv.norm(u - c, v - d) + sv.pos(u + v) ** 2
    stated = sv.Problem(objectives=[objective, x[1] ** 2], constraints=[u + x[1] <= 9])
    assert stated.objectives[0] is not None
    first = stated.groups[0]
    term = abs(first.symbols[0])
    form = epigraph_form(first, stated.objectives[0], [term], stated.local[0])
    assert all(is_smooth(e) for e in (form.objective, *form.inequalities))
    z = cp.Variable(2)
    cost = cp.abs(z[0] - a) + cp.huber(z[1] - b, 0.5) + cp.square(cp.pos(z[0] + z[1]))
    cost += 2 * cp.norm(z - np.array([c, d]))
    cp.Problem(cp.Minimize(cost), [z >= -3, z <= 3]).solve(solver="CLARABEL")
    np.testing.assert_allclose(sv.reference_optimum(stated).x[:2], z.value, atol=2e-4)


def test_a_maximum_that_never_moves_has_a_saddle_point() -> None:
    ev = sv.agents(3, lower=0, upper=1, parameters={"p": [0.5, 5.0, 5.0]})
    row = sv.total(sv.maximum(ev.x, ev["p"])) <= 11
    problem = sv.Problem(objectives=[(ev.x - 1) ** 2], constraints=[row])
    np.testing.assert_allclose(sv.reference_optimum(problem).x, 1.0, atol=1e-9)


def test_weights_of_0_leave_a_term_out_whatever_its_curvature() -> None:
    ev = sv.agents(3, lower=0, upper=1, name="ev")
    heat = sv.agents(3, lower=0, upper=1, name="heat")
    nothing = sv.total(sv.sqrt(heat.x + 1), weights=np.zeros((1, 3)))
    problem = sv.Problem(
        objectives=[ev.x**2, heat.x**2], constraints=[sv.total(ev.x) + nothing <= 2]
    )
    assert sv.certify(problem).holds


@pytest.mark.parametrize(
    ("norm", "steepest"),
    [
        (lambda x: sv.norm(x), 1.0),
        (lambda x: 3 * sv.norm(2 * x[0], x[1] + 0.2, x[2], x[3]), 6.0),
        (lambda x: sv.norm(x[0], x[1]) + sv.norm(x[2], x[3]), np.sqrt(2)),
    ],
)
def test_the_slope_of_a_norm_of_four_terms_is_tight_in_2_s(norm: Any, steepest: float) -> None:
    ev = sv.agents(50, lower=-1, upper=1, dim=4)
    problem = sv.Problem(
        objectives=[sv.sum_squares(ev.x)], constraints=[sv.total(norm(ev.x)) <= 100]
    )
    start = time.perf_counter()
    largest = sv.certify(problem.cloud).sensitivity.largest()
    assert time.perf_counter() - start < 2.0
    assert steepest <= largest <= 1.01 * steepest
