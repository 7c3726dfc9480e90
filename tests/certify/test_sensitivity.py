from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sparse
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from sottovoce.certify.sensitivity import Sensitivity


def certified(problem: sv.Problem) -> Sensitivity:
    return sv.certify(problem.cloud, tighten=False).sensitivity


def test_hours_that_nobody_mixes_cost_no_more_than_one() -> None:
    ev = sv.fleet(5, dim=3, lower=0.0, upper=1.0)
    apart = sv.Problem(
        states=ev, objectives=sum(ev.state), constraints=[sv.total(ev, ev.state) <= [2, 2, 2]]
    )
    np.testing.assert_allclose(certified(apart).loads(np.ones(3)), 1.0, rtol=1e-12)
    mixed = sv.Problem(
        states=ev,
        objectives=sum(ev.state),
        constraints=[
            sv.total(ev, ev.state) <= [2, 2, 2],
            sv.total(ev, sum(ev.state)) <= 4,
        ],
    )
    # One more output that adds all hours up ties them together: 1 + 1 + 1 + sqrt(3)^2.
    np.testing.assert_allclose(certified(mixed).loads(np.ones(4)), 6.0, rtol=1e-12)


def test_a_fleet_of_one_is_tied_together_by_totals_and_formulas_alike() -> None:
    one = sv.fleet(1, dim=2, lower=0.0, upper=1.0)
    x = one.state
    problem = sv.Problem(
        states=one,
        objectives=x[0] + x[1],
        constraints=[sv.total(one, x) <= [1, 1], x[0] + x[1] <= 1.5],
    )
    np.testing.assert_allclose(certified(problem).loads(np.ones(3)), 4.0, rtol=1e-12)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_loads_bound_the_largest_singular_value_everywhere(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dim, rows = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    x = sv.states(1, dim=dim, lower=-1, upper=2)
    own = list(np.atleast_1d(x[0]))
    g = []
    for _ in range(rows):
        chosen = [s for s in own if rng.random() < 0.4] or [own[0]]
        g.append(sum(int(rng.integers(1, 4)) * s**2 + s for s in chosen))
    tie = sum(s / 100 for s in own) if rng.random() < 0.3 else own[0]
    for s in own:
        g.append(s + 0 * tie)
    problem = sv.Problem(states=x, objectives=[sum(own)], constraints=[e <= 90 for e in g])
    precision = rng.uniform(0.1, 3.0, len(g))
    load = certified(problem).loads(precision)[0]
    jacobian = sp.lambdify(own, sp.Matrix([[sp.diff(e, s) for s in own] for e in g]))
    for point in rng.uniform(-1, 2, (50, dim)):
        scaled = np.sqrt(precision)[:, np.newaxis] * np.array(jacobian(*point), dtype=float)
        assert np.linalg.norm(scaled, 2) ** 2 <= load * (1 + 1e-12)


def test_sparse_weights_with_agents_that_cannot_move_have_a_typical_slope() -> None:
    ev = sv.fleet(3, lower=0.0, upper=1.0, parameters={"draw": [2.0, 0.0, 8.0]})
    weights = sparse.csr_array(np.array([[1.0, 1.0, 1.0]]))
    problem = sv.Problem(
        states=ev,
        objectives=ev.state,
        constraints=[sv.total(ev, ev.parameter("draw") * ev.state, weights=weights) <= 5],
    )
    assert certified(problem).typical()[0] == pytest.approx(5.0)
    assert certified(problem).smallest()[0] == pytest.approx(2.0)


def test_decimal_coefficients_are_differentiated_without_rounding() -> None:
    x = sv.states(1, lower=0, upper=1)
    problem = sv.Problem(states=x, objectives=[x[0]], constraints=[0.1 * x[0] ** 3 <= 1])
    bound = certified(problem).dense()[0, 0]
    assert sp.Rational(bound) >= 3 * sp.Rational(0.1)
