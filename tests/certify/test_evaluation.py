from __future__ import annotations

import mpmath
import numpy as np
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from sottovoce.certify.certificate import certify
from sottovoce.certify.evaluation import evaluation_error
from sottovoce.certify.interval import Interval

X, Y = sp.symbols("x y")
FORMULAS = [
    X + Y / 3 - sp.Float(0.1),
    X**4 / 12 + Y**3 / 7,
    sp.exp(X - Y) + sp.log(sp.exp(X) + sp.exp(Y)),
    sp.sqrt(1 + X**2 + Y**2) * (X - Y),
    1 / (X + 5) + (Y + 4) ** sp.Rational(3, 2),
]


@settings(max_examples=150, deadline=None)
@given(
    index=st.integers(0, len(FORMULAS) - 1),
    x=st.floats(-3, 3),
    y=st.floats(-3, 3),
)
def test_float_evaluation_never_errs_by_more_than_the_bound(index: int, x: float, y: float) -> None:
    expr = FORMULAS[index]
    box = {s: Interval(lower=np.array([-3.0]), upper=np.array([3.0])) for s in (X, Y)}
    bound = float(evaluation_error(expr, box)[0])
    with mpmath.workdps(50):
        exact = sp.lambdify([X, Y], expr, "mpmath")(mpmath.mpf(x), mpmath.mpf(y))
        computed = float(sp.lambdify([X, Y], expr, "numpy")(np.float64(x), np.float64(y)))
        assert abs(mpmath.mpf(computed) - exact) <= bound
    assert bound < 1e-10


def test_the_bound_is_larger_than_errors_that_cancellation_causes() -> None:
    expr = (X + sp.Integer(2) ** 50) - sp.Integer(2) ** 50 * Y
    box = {s: Interval(lower=np.array([0.0]), upper=np.array([1.0])) for s in (X, Y)}
    # x + 2^50 rounds x to multiples of 2^-2: the bound must know it.
    assert evaluation_error(expr, box)[0] >= 0.125


def test_sums_over_fleets_count_every_summand() -> None:
    def problem(n: int) -> sv.Problem:
        ev = sv.fleet(n, lower=0.0, upper=1.0)
        return sv.Problem(
            states=ev, objectives=ev.state, constraints=[sv.total(ev, ev.state / 3) <= n]
        )

    small, large = (float(certify(problem(n)).evaluation_error[0]) for n in (10, 1000))
    assert large >= 100 * small > 0
