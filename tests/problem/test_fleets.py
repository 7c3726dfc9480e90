"""Agents by template: formulas that differ in numbers only, weights, one fleet, the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from formula_values import evaluate
from sottovoce.errors import CertificateError
from sottovoce.formula.canonical import canonical
from sottovoce.formula.expression import symbol
from sottovoce.formula.tape import tape
from sottovoce.problem.fleets import Fleet, fleets_of, parametrised

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
def test_formulas_that_differ_in_numbers_only_have_one_form(
    left: Any, right: Any, same: bool
) -> None:
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
