"""Numbers from formulas, against 50 digits and against the same problem stated agent by agent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
import sympy as sp

import sottovoce as sv
from sottovoce.formula.canonical import canonical, substitute
from sottovoce.formula.expression import number
from sottovoce.formula.functions import exp, log
from sottovoce.problem import gallery
from sottovoce.problem import numeric as numeric_module
from sottovoce.problem.constraints import total
from sottovoce.problem.numeric import Numeric
from sottovoce.problem.problem import Problem
from sympy_oracle import sympy_of, sympy_symbol

SMALL = ("paper", "hs10", "hs34", "hs43", "hs72", "coupled")


def inner_point(numeric: Numeric, seed: int) -> Any:
    share = np.random.default_rng(seed).uniform(0.1, 0.4, numeric.lower.size)
    return numeric.lower + share * (numeric.upper - numeric.lower)


def assert_close(actual: Any, desired: Any) -> None:
    np.testing.assert_allclose(actual, desired, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", SMALL)
def test_values_and_derivatives_agree_with_50_digits(name: str) -> None:
    problem = gallery.get(name)
    numeric = Numeric(problem)
    x = inner_point(numeric, seed=1)
    mu = np.random.default_rng(2).uniform(0.0, 2.0, problem.rows)
    symbols = [sympy_symbol(s) for group in problem.groups for s in group.symbols]
    at = {s: sp.Rational(*float(v).as_integer_ratio()) for s, v in zip(symbols, x, strict=True)}

    def exact(expr: Any) -> float:
        return float(expr.subs(at).evalf(50))

    f = sp.Add(*(sympy_of(e) for e in problem.objectives if e is not None))
    g = [sympy_of(e) for family in problem.constraints for e in family.formulas]
    weights = [sp.Rational(*float(v).as_integer_ratio()) for v in mu]
    lagrangian = f + sp.Add(*(w * e for w, e in zip(weights, g, strict=True)))
    assert_close(numeric.objective(x), exact(f))
    assert_close(numeric.constraints(x), [exact(e) for e in g])
    assert_close(numeric.lagrangian(x, mu), exact(lagrangian))
    assert_close(numeric.objective_gradient(x), [exact(sp.diff(f, s)) for s in symbols])
    assert_close(
        numeric.lagrangian_gradient(x, mu), [exact(sp.diff(lagrangian, s)) for s in symbols]
    )
    assert_close(
        numeric.jacobian(x).toarray(), [[exact(sp.diff(e, s)) for s in symbols] for e in g]
    )
    assert_close(
        numeric.lagrangian_hessian(x, mu).toarray(),
        [[exact(sp.diff(lagrangian, a, b)) for a in symbols] for b in symbols],
    )


def test_a_constant_reaches_the_tape_bit_by_bit() -> None:
    x = sv.agents(2, lower=0, upper=2)
    constant = 0.1 + 0.2  # not 0.3
    problem = Problem(agents=x, objectives=[constant * x[0], 0], constraints=[x[0] + x[1] <= 1])
    assert Numeric(problem).objective(np.ones(2)) == constant


def test_where_a_formula_is_undefined_the_answer_is_not_finite_and_no_warning_appears() -> None:
    x = sv.agents(2, lower=-1, upper=3)
    problem = Problem(agents=x, objectives=[-log(x[0]), x[1]], constraints=[1 / x[0] + x[1] <= 9])
    numeric = Numeric(problem)
    assert not np.isfinite(numeric.objective(np.array([-1.0, 0.0])))
    assert not np.isfinite(numeric.constraints(np.array([0.0, 0.0]))).any()


def two_statements(weights: Any, seed: int) -> tuple[Problem, Problem]:
    """A fleet between two named agents, and the same agents all named."""
    n, d = 5, 2
    rng = np.random.default_rng(seed)
    upper = rng.uniform(1.0, 2.0, (n, d))
    p, q = rng.uniform(0.5, 1.5, n), rng.normal(size=(n, 2))
    ends = [sv.agents([name], lower=-1, upper=1) for name in "ab"]
    a, b = (end[0] for end in ends)
    ev = sv.agents(n, lower=0, upper=upper, dim=d, name="ev", parameters={"p": p, "q": q})
    terms = [ev.x[0] ** 2 * ev["p"] + ev.x[1], exp(ev.x[1])]
    objective = ev["p"] * ev.x[0] * ev.x[1] + ev["q"][1] * ev.x[0]
    matrix = np.ones((1, n)) if weights is None else weights
    rows = matrix.shape[0] * 2
    bound = np.arange(1.0, rows + 1.0)
    fleet_problem = Problem(
        agents=[ends[0], ev, ends[1]],
        objectives=[a**2, objective, exp(b)],
        constraints=[
            total(terms, weights=weights) + a * b <= bound,
            a + b**4 <= 1,
            total(ev.x[0]) <= 3,
        ],
    )
    names = ["a", *(f"ev{i + 1}" for i in range(n)), "b"]
    low = [[-1.0], *([0.0, 0.0] for _ in range(n)), [-1.0]]
    x = sv.agents(names, lower=low, upper=[[1.0], *upper.tolist(), [1.0]], dim=[1, *[d] * n, 1])
    a, b = x[0], x[n + 1]
    dense = matrix if isinstance(matrix, np.ndarray) else matrix.toarray()

    def of(expr: Any, i: int) -> Any:
        mine = dict(zip((ev["p"], *ev["q"]), (p[i], *q[i]), strict=True))
        values = {s: number(v) for s, v in mine.items()}
        return substitute(canonical(expr), values | dict(zip(ev.x, x[i + 1], strict=True)))

    sums = [
        sum(dense[r, i] * of(h, i) for i in range(n)) + a * b - bound[r * 2 + t]
        for r in range(dense.shape[0])
        for t, h in enumerate(terms)
    ]
    named_problem = Problem(
        agents=x,
        objectives=[a**2, *(of(objective, i) for i in range(n)), exp(b)],
        constraints=[
            *(e <= 0 for e in sums),
            a + b**4 <= 1,
            sum(x[i + 1][0] for i in range(n)) <= 3,
        ],
    )
    return fleet_problem, named_problem


def some_weights(kind: str) -> Any:
    dense = np.random.default_rng(7).uniform(0.1, 1.0, (3, 5))
    dense[0, 1] = dense[2, 3] = 0.0
    return {"none": None, "dense": dense, "sparse": sparse.csr_array(dense)}[kind]


@pytest.mark.parametrize("piece", [numeric_module.PIECE, 2])  # larger and smaller than the fleet
@pytest.mark.parametrize("kind", ["none", "dense", "sparse"])
def test_a_fleet_gives_the_numbers_of_the_same_agents_stated_one_by_one(
    kind: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numeric_module, "PIECE", piece)
    left, right = (Numeric(p) for p in two_statements(some_weights(kind), seed=3))
    x = inner_point(left, seed=4)
    mu = np.random.default_rng(5).uniform(0.0, 1.0, left.rows)
    np.testing.assert_array_equal(left.upper, right.upper)
    np.testing.assert_allclose(left.objective(x), right.objective(x), rtol=1e-14)
    np.testing.assert_allclose(left.objective_gradient(x), right.objective_gradient(x), rtol=1e-13)
    np.testing.assert_allclose(left.constraints(x), right.constraints(x), rtol=1e-13)
    np.testing.assert_allclose(left.pullback(x, mu), right.pullback(x, mu), rtol=1e-13)
    slopes = right.jacobian(x).toarray()
    np.testing.assert_allclose(left.jacobian(x).toarray(), slopes, rtol=1e-13, atol=1e-15)
    hessian = right.lagrangian_hessian(x, mu).toarray()
    np.testing.assert_allclose(
        left.lagrangian_hessian(x, mu).toarray(), hessian, rtol=1e-13, atol=1e-15
    )
