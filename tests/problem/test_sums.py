"""All constraints of a problem as sums and a public set: fleets, mixtures, equalities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from formula_values import evaluate
from sottovoce.errors import CertificateError, ProblemError
from sottovoce.formula.canonical import add, addends, canonical, expand
from sottovoce.formula.expression import ZERO, symbol
from sottovoce.formula.tape import tape
from sottovoce.problem.fleets import Fleet, fleets_of, parametrised
from sottovoce.problem.numeric import Numeric
from sottovoce.problem.sums import contributions


def mixture(seed: int) -> sv.Problem:
    """Named agents inside formulas and beside a fleet, with dense or sparse weights."""
    rng = np.random.default_rng(seed)
    x = sv.agents(["a", "b", "c"], lower=-2, upper=2, dim=[1, 2, 1])
    a, (b, d), c = x
    ev = sv.agents(5, lower=-1, upper=1, name="ev", parameters={"k": rng.uniform(0.5, 2, 5)})
    weights = rng.uniform(0, 1, (2, 5))
    held: Any = sparse.csr_array(weights) if rng.random() < 0.5 else weights
    inner = [(a - b) ** 2, sv.exp(a + c), a * c + a**2 + c**2, sv.sqrt(1 + (a - d) ** 2 + c**2),
             expand(canonical((a + 2 * c) ** 2)), sv.logsumexp(a, b - c) + b**2]  # fmt: skip
    chosen = inner[rng.integers(len(inner))]
    return sv.Problem(
        agents=[x, ev],
        objectives=[a, b + d, c, ev.x],
        constraints={
            "plain": sv.total(ev["k"] * ev.x) + a + c**2 <= rng.uniform(0, 3),
            "mixed": sv.total(ev.x**2) + chosen + d / 2 <= rng.uniform(1, 5),
            "two": sv.total(ev.x, weights=held) + 2**0.5 * (a + b) <= [1.0, 2.0],
        },
    )


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6))
def test_sums_with_fleets_lie_in_the_set_where_and_only_where_constraints_hold(seed: int) -> None:
    problem = mixture(seed)
    sums = problem.cloud.sums
    rows, numeric = Numeric(problem, sums.families), Numeric(problem)
    rng = np.random.default_rng(seed)
    for x in rng.uniform(numeric.lower, numeric.upper, (15, problem.size)):
        g, found = numeric.constraints(x), rows.constraints(x)
        assert found.shape == (sums.count,)
        region = {r.stated: r for r in sums.regions}
        assert set(region) == {1}
        at = dict(zip(region[1].symbols, found[list(region[1].rows)].tolist(), strict=True))
        assert evaluate(region[1].phi, at) == pytest.approx(g[1], abs=1e-9)
        plain, two = sums.origins[0].first, sums.origins[2].first
        assert found[plain] - sums.upper[plain] == pytest.approx(g[0], abs=1e-9)
        assert found[two : two + 2] - sums.upper[two : two + 2] == pytest.approx(g[2:], abs=1e-9)
    assert [origin.as_stated for origin in sums.origins] == [True, False, True]
    for family in sums.families:
        for formula in family.formulas:
            for term in addends(formula):
                assert len({s.name[0] for s in term.symbols}) <= 1


def test_what_an_agent_contributes_is_its_own_terms() -> None:
    problem = mixture(1)
    whole = [ZERO] * problem.cloud.sums.count
    for group in problem.cloud.groups[:3]:
        for o, h in contributions(problem.cloud.sums, group).items():
            assert h.symbols <= set(group.symbols)
            whole[o] = add(whole[o], h)
    stated = [e for f in problem.cloud.sums.families for e in (f.formulas or [ZERO] * f.rows)]
    assert all(w is s for w, s in zip(whole, stated, strict=True))


def test_the_coupled_problem_takes_five_sums() -> None:
    sums = sv.gallery.coupled().cloud.sums
    assert [origin.count for origin in sums.origins] == [2, 2, 1]
    assert [region.stated for region in sums.regions] == [0, 1]
    assert sums.upper[4] == pytest.approx(math.exp(2))
    assert "logarithm" in sums.origins[2].how


# --- equalities ---------------------------------------------------------------------------------


P = sv.agents(["p1", "p2", "p3"], lower=0, upper=10)


def balanced(row: Any) -> sv.Problem:
    objectives = [(k + 1) * s**2 for k, s in enumerate(P)]
    return sv.Problem(agents=P, objectives=objectives, constraints={"balance": row})


@pytest.mark.parametrize(
    "row", [P[0] + P[1] + P[2] == 6, "p1 + p2 + p3 == 6", sum(P) == 6, sv.total(P) == 6]
)
def test_an_equality_is_kept_at_a_point_however_it_is_stated(row: Any) -> None:
    stated = balanced(row)
    sums = stated.cloud.sums
    assert sums.lower.tolist() == sums.upper.tolist() == [6.0]
    assert stated.constraints[0].equality
    assert sv.reference_optimum(stated).x == pytest.approx(np.array([36, 18, 12]) / 11)
    assert stated.fingerprint != balanced(sum(P) <= 6).fingerprint


def test_totals_over_fleets_are_equalities() -> None:
    ev = sv.agents(4, lower=0, upper=10, parameters={"k": [1.0, 2.0, 3.0, 4.0]})
    for row in (sv.total(ev.x) == 6, sv.total(ev["k"] * ev.x) == np.array([6.0])):
        stated = sv.Problem(objectives=ev.x**2, constraints=[row])
        sums = stated.cloud.sums
        assert sums.lower.tolist() == sums.upper.tolist()
        assert sums.free


@pytest.mark.parametrize(
    "row",
    [
        lambda ev, x: sv.total(ev.x**2) == 5,
        lambda ev, x: sv.total(ev["k"] * sv.exp(ev.x)) == 5,
        lambda ev, x: sv.total(ev.x) + x[0] ** 2 == 5,
        lambda ev, x: sv.total(ev.x) + x[0] * x[1] == 5,
    ],
)
def test_an_equality_with_a_fleet_must_be_affine_too(row: Any) -> None:
    ev = sv.agents(3, lower=0, upper=1, name="ev", parameters={"k": [1.0, 2.0, 3.0]})
    x = sv.agents(2, lower=0, upper=1)
    with pytest.raises(ProblemError, match="constraint g1 must be affine to be an equality, got"):
        sv.Problem(
            agents=[x, ev],
            objectives=[*x, ev.x],
            constraints=[row(ev, x), x[0] + x[1] + sv.total(ev.x) <= 3],
        )


# --- Agents by template: formulas that differ in numbers only are one fleet ---


X = symbol("a")


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (0.5 * (X - 3) ** 2, 0.7 * (X + 1.5) ** 2, True),
        (2.0 * X**2 + 3.0 * X, 3.0 * X**2 + 2.0 * X, True),
        (sv.exp(2.5 * X) + X, sv.exp(-0.5 * X) + X, True),
        (0.5 * X**2, 0.5 * X**4, False),
        (X / 3, X / 7, False),  # no float64 is a third
        (sv.maximum(X, 2), sv.maximum(X, 3), False),
    ],
)
def test_formulas_that_differ_in_numbers_have_one_form(left: Any, right: Any, same: bool) -> None:
    templates = [parametrised(canonical(formula), {X: 0}, []) for formula in (left, right)]
    assert (templates[0] is templates[1]) is same


def test_formulas_of_one_template_keep_their_numbers_apart() -> None:
    formulas = [2.5 * X**2 + 0.5, (X - 3) ** 2, 7.0 * X, X / 3, sv.exp(2.5 * X) + sv.maximum(X, 2)]
    numbers: list[float] = []
    templates = [parametrised(canonical(f), {X: 0}, numbers) for f in formulas]
    inputs = [symbol("x[1]"), *(symbol(f"p[{k + 1}]") for k in range(len(numbers)))]
    values = tape(templates, inputs)(0.3, *numbers)
    assert values == pytest.approx([evaluate(f, {X: 0.3}) for f in formulas], rel=1e-14)


def test_ten_thousand_named_agents_are_one_fleet() -> None:
    n, rng = 10_000, np.random.default_rng(0)
    x = sv.agents(n, lower=-5, upper=5)
    a, c = rng.uniform(0.5, 2, n), rng.uniform(-3, 3, n)
    f = [float(p) * (s - float(q)) ** 2 for p, q, s in zip(a, c, x, strict=True)]
    problem = sv.Problem(agents=x, objectives=f, constraints=[np.ones((1, n)) @ x <= 5.0])
    (one,) = fleets_of(problem.groups, problem.cloud.sums.families, problem.objectives)
    assert one.group.count == n


def test_many_agents_are_certified_by_their_forms() -> None:
    rng, n = np.random.default_rng(0), 120
    x = sv.agents(n, lower=-5, upper=5)
    curvature, centre = rng.uniform(0.5, 2, n), rng.uniform(-3, 3, n)
    A = rng.uniform(0, 1, (6, n))
    f = [float(a) * (s - float(c)) ** 2 for a, c, s in zip(curvature, centre, x, strict=True)]
    problem = sv.Problem(agents=x, objectives=f, constraints=[A @ x <= np.full(6, 10.0)])
    found = sv.certify(problem)
    assert found.holds
    assert len(found.assumptions) == 1 + 2 * 6 + 1 + 2 * n + 1
    np.testing.assert_array_equal(found.sensitivity.dense(), A)
    saddle = sv.reference_optimum(problem)
    assert saddle is sv.reference_optimum(problem)  # kept with the problem
    slope = 2 * curvature * (saddle.x - centre) + A.T @ saddle.mu
    assert np.max(np.abs(slope[np.abs(saddle.x) < 5])) < 1e-8


def test_a_message_about_a_fleet_has_the_numbers_that_were_stated() -> None:
    x = sv.agents(2, lower=0, upper=4)
    rows = [-3.5 * sv.sqrt(x[0]) - 4.5 * sv.sqrt(x[1]) <= 3]
    problem = sv.Problem(objectives=[x[0] ** 2, x[1] ** 2], constraints=rows)
    with pytest.raises(CertificateError, match=r"slope of -1.75/sqrt\(x\[1\]\) has no finite"):
        sv.certify(problem)


def fleets(problem: sv.Problem) -> list[Fleet]:
    return fleets_of(problem.groups, problem.cloud.sums.families, problem.objectives)


def test_other_forms_and_rows_make_other_fleets() -> None:
    x = sv.agents(40, lower=0.1, upper=5)
    f = [(s - 1.5) ** 2 if i % 2 else 2.5 * s + s**4 for i, s in enumerate(x)]
    bent = sum(0.5 * s**2 for s in x[:10])
    problem = sv.Problem(agents=x, objectives=f, constraints=[sum(x) <= 30, bent <= 20])
    assert sorted(one.group.count for one in fleets(problem)) == [5, 5, 15, 15]
