"""Matrices and totals in rows of a problem; values are in ``behaviour/test_array_habits.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.errors import CertificateError, ConvexityError
from sottovoce.problem.code import Objective
from sottovoce.problem.constraints import total
from sottovoce.problem.problem import Problem

X = sv.agents(2, lower=0.1, upper=5)
EV = sv.agents(3, dim=2, lower=0, upper=1, name="ev", parameters={"cap": [[1, 2], [3, 4], [5, 6]]})


A = np.array([[1.0, -2.0], [0.5, 3.0], [0.0, 1.0]])


@pytest.mark.parametrize(
    ("stated", "written"),
    [
        (lambda: 3 * (A @ X) - 1 <= 2, lambda: (3 * A) @ X <= 3),
        (lambda: np.float64(3) * (A @ X) <= 3, lambda: (3 * A) @ X <= 3),
        (lambda: sv.total(EV) / 2 + X[0] <= 1, lambda: sv.total(0.5 * EV.x) + X[0] <= 1),
        (lambda: 1 - 2 * sv.total(EV) <= 0, lambda: sv.total(-2 * EV.x) <= -1),
    ],
)
def test_a_total_is_multiplied_by_numbers(stated: Any, written: Any) -> None:
    problems = [
        sv.Problem(agents=[X, EV], objectives=[X[0], X[1], EV.x[0]], constraints=[row()])
        for row in (stated, written)
    ]
    assert problems[0].fingerprint == problems[1].fingerprint


def test_matrix_rows_beside_curved_terms_keep_every_row_and_their_linear_part() -> None:
    x = sv.agents(["a", "b", "c"], lower=-2, upper=3)
    A = np.array([[1.0, 0, 0], [0, 1, 1]])
    objectives = [(s - 3) ** 2 for s in x]
    problem = sv.Problem(objectives=objectives, constraints=[A @ x + 2 * x[0] * x[0] <= [10, 1]])
    point = np.array([1.5, -0.5, 2.0])
    violation = np.maximum(A @ point + 2 * point[0] ** 2 - [10, 1], 0.0)
    assert np.max(problem.evaluate(point).violation) == pytest.approx(violation.max())
    single = sv.Problem(
        objectives=objectives,
        constraints=[np.ones((1, 3)) @ x + x[0] ** 2 <= 1, x[0] + x[1] <= 5.5],
    )
    best = sv.reference_optimum(single).x
    assert best.sum() + best[0] ** 2 == pytest.approx(1.0)


def test_every_weighted_row_of_squares_beside_named_rows_is_a_sum(tmp_path: Path) -> None:
    x = sv.agents(3, lower=-2, upper=3)
    weights = np.array([[1.0, 0, 1], [1, 1, 0]])
    rows = [sv.total(x.x**2, weights=weights) <= [10, 1], x[0] + x[1] + x[2] <= 100]
    problem = sv.Problem(objectives=(x.x - 3) ** 2, constraints=rows)
    assert problem.cloud.sums.count == problem.cloud.rows == 3
    problem.save(tmp_path)
    again = sv.Problem.load(tmp_path)
    assert (again.fingerprint, again.cloud.fingerprint) == (
        problem.fingerprint,
        problem.cloud.fingerprint,
    )


# --- Formulas with kinks in problems: rows made of them, rules that they break, files ---


def states() -> Any:
    return sv.agents(3, lower=-5, upper=5, dim=[1, 1, 2])


def stated(constraint: Any, **more: Any) -> sv.Problem:
    x = states()
    return sv.Problem(
        agents=x,
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


def test_the_norm_of_what_has_one_sign_is_convex() -> None:
    row = sv.norm(-(states()[2][0] ** 2), states()[2][1]) <= 30
    stated(lambda x: x[0] + x[1] <= 2, local=[row])


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
def test_what_is_not_convex_fails_with_the_rule(formula: Any, rule: str, place: str) -> None:
    x = sv.agents(2, lower=-3, upper=3)
    bad, fine = formula(x[0]), x[0] ** 2
    objective, row = (bad, fine) if place == "objective" else (fine, bad)
    stated = sv.Problem(objectives=[objective, x[1] ** 2], constraints=[row + x[1] <= 2])
    # A constraint whose slope has no bound is no certificate at all, and says both.
    kinds = (ConvexityError, CertificateError)
    with pytest.raises(kinds, match=f"must be convex, got .*{rule}.*; restate it"):
        sv.certify(stated).require()


@pytest.mark.parametrize(("threshold", "x"), [(1, [2.0, 3.0]), (3, [2.0, 2.0])])
def test_huber_over_a_range_without_0_has_its_optimum(threshold: int, x: list[float]) -> None:
    agents = sv.agents(["a", "b"], lower=[2, -9], upper=[4, 9])
    a, b = agents
    problem = sv.Problem(
        agents=agents,
        objectives=[(a - 3) ** 2, (b - 6) ** 2],
        constraints=[sv.huber(a, threshold) + b <= 6],
    )
    assert sv.reference_optimum(problem).x == pytest.approx(x, abs=1e-6)


def test_a_vector_agent_minimises_huber_over_a_range_without_zero() -> None:
    agents = sv.agents(["v", "w"], lower=2, upper=4, dim=[2, 1])
    v, w = agents
    own = 3 * sv.huber(v[0], 1) + (v[0] + v[1] - 7) ** 2 + (v[1] - 3) ** 2
    problem = sv.Problem(agents=agents, objectives=[own, (w - 3) ** 2], constraints=[v[0] + w <= 7])
    result = sv.simulate(problem, rounds=100, progress=False)
    assert result.x[0] == pytest.approx([2.0, 4.0, 3.0], abs=1e-5)


# --- A problem at a point, against the formulas written out by hand ---


def test_rows_on_one_agent_are_listed_behind_those_that_couple_agents() -> None:
    ev, y = sv.agents(3, name="ev", lower=-9, upper=9, dim=2), sv.agents(["y"], lower=-9, upper=9)
    problem = Problem(
        objectives=[sv.sum_squares(ev.x), y[0] ** 2],
        constraints={
            "own": y[0] ** 2 <= 4,
            "each": ev.x[0] ** 2 + ev.x[1] ** 2 <= 5,
            "all": total(ev.x[0]) + y[0] <= 1,
        },
    )
    at = problem.evaluate([0, 1, 2, 2, 1, 1, 3])
    assert at.labels == ("all", "own", "each")
    np.testing.assert_allclose(at.rows, [5, 5, 3])  # of the fleet the second agent's, the worst
    np.testing.assert_allclose(at.violation, [5, 5, 3])


def test_code_counts_with_its_value_and_is_unknown_without() -> None:
    x = sv.agents(2, lower=0, upper=1)

    def stated(code: Objective) -> float:
        problem = Problem(objectives=[x[0] ** 2, code], constraints=[x[0] + x[1] <= 1])
        return problem.evaluate([0.5, 1.0]).objective

    told = Objective(gradient=lambda s: 2 * s, value=lambda s: float(s @ s))
    assert stated(told) == pytest.approx(1.25)
    assert np.isnan(stated(Objective(gradient=lambda s: 2 * s)))
