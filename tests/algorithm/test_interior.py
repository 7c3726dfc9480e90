"""The interior-point method at home: against Clarabel, for curved rows, and at the box's edge."""

from __future__ import annotations

from typing import Any

import cvxpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.algorithm.interior import interior_minimum

cp: Any = cvxpy  # it has no types


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), ball=st.booleans())
def test_quadratics_over_rows_are_minimised_as_clarabel_does(seed: int, ball: bool) -> None:
    rng = np.random.default_rng(seed)
    d, q = int(rng.integers(2, 8)), int(rng.integers(0, 2))
    lower, upper = -rng.uniform(0, 2, d), rng.uniform(0, 2, d)
    lower[rng.uniform(size=d) < 0.15] = 0.0
    upper[lower == 0.0] = 0.0
    half = rng.normal(size=(d, d))
    hessian, slope = half @ half.T, rng.normal(size=d) * 10 ** rng.uniform(-1, 1)
    weight, anchor = rng.uniform(0.1, 1, d), rng.uniform(lower, upper)
    inside, m = rng.uniform(lower, upper), int(rng.integers(0, 2 * d))
    A = rng.normal(size=(m, d)) * (rng.uniform(size=(m, d)) < 0.5)
    b = A @ inside + rng.uniform(0, 0.5, m)
    E = rng.normal(size=(q, d))
    e, radius = E @ inside, float(inside @ inside) + 0.1

    def derive(context: Any, x: Any, price: Any, gradient: Any, values: Any, *both: Any) -> None:
        jacobian, bent = both
        gradient[:] = hessian @ x + slope
        bent += hessian
        values[:m], jacobian[:m] = A @ x - b, A
        if ball:
            values[m], jacobian[m] = x @ x - radius, 2 * x
            bent += 2 * price[m] * np.eye(d)
        values[m + ball :], jacobian[m + ball :] = E @ x - e, E

    x = interior_minimum(derive, None, anchor, weight, lower, upper, (m + ball, q))
    y = cp.Variable(d)
    cost = cp.quad_form(y, cp.psd_wrap(hessian)) / 2 + slope @ y
    cost += cp.sum(cp.multiply(weight / 2, cp.square(y - anchor)))
    kept = [y >= lower, y <= upper] + ([A @ y <= b] if m else []) + ([E @ y == e] if q else [])
    kept += [cp.sum_squares(y) <= radius] if ball else []
    tight = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}
    cp.Problem(cp.Minimize(cost), kept).solve(solver="CLARABEL", **tight)
    np.testing.assert_allclose(x, y.value, atol=1e-5)
    assert np.all((x >= lower) & (x <= upper))
    assert np.all(A @ x <= b + 1e-9)
    assert np.all(np.abs(E @ x - e) <= 1e-9)
    assert not ball or x @ x <= radius + 1e-9


def linear(cost: Any, total: float) -> Any:
    """Cost of a vector whose sum is given."""

    def derive(context: Any, x: Any, price: Any, gradient: Any, values: Any, *both: Any) -> None:
        gradient[:] = cost
        values[0], both[0][0] = x.sum() - total, 1.0

    return derive


def test_components_end_at_their_bounds_to_1e_9_of_the_box() -> None:
    cost, d = np.array([1.0, 2.0, 3.0, 4.0]), 4
    bounds = (np.zeros(d), np.array([1.0, 1e-3, 1e3, 1.0]))
    x = interior_minimum(linear(cost, 2.001), None, np.zeros(d), np.zeros(d), *bounds, (0, 1))
    np.testing.assert_allclose(x / bounds[1], [1.0, 1.0, 1e-3, 0.0], atol=1e-9)


def test_units_do_not_matter() -> None:
    cost, bounds = np.array([1.0, 2.0, 0.5]), (np.zeros(3), np.array([1.0, 2.0, 3.0]))
    weight, anchor = np.array([0.1, 0.2, 0.3]), np.array([0.5, 0.5, 0.5])
    x = interior_minimum(linear(cost, 2.5), None, anchor, weight, *bounds, (0, 1))
    unit = 2.0**20
    large = (bounds[0] * unit, bounds[1] * unit)
    derive = linear(cost / unit * 8.0, 2.5 * unit)
    y = interior_minimum(derive, None, anchor * unit, weight / unit**2 * 8.0, *large, (0, 1))
    np.testing.assert_allclose(x, y / unit, rtol=0, atol=1e-12)


def test_no_number_is_an_answer_where_there_is_none() -> None:
    nothing = np.full(2, np.nan)
    x = interior_minimum(linear(nothing, 1.0), None, nothing * 0, np.ones(2), np.zeros(2),
                         np.ones(2), (0, 1))  # fmt: skip
    assert np.isnan(x).all()


@pytest.mark.parametrize("total", [0.0, 2.0])
def test_a_set_of_one_point_is_found(total: float) -> None:
    cost = np.array([1.0, 2.0])
    x = interior_minimum(linear(cost, total), None, np.full(2, 0.3), np.zeros(2), np.zeros(2),
                         np.ones(2), (0, 1))  # fmt: skip
    np.testing.assert_allclose(x, total / 2, atol=1e-6)
