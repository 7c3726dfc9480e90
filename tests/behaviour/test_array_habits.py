"""NumPy's habits, operators, non-smooth functions and names give the formulas that are meant."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import problems as p
import pytest
import scipy.sparse as sparse

import sottovoce as sv

pytestmark = pytest.mark.core

A = np.array([[1.0, -2.0], [0.5, 3.0], [1.0, 1.0]])


def value(make: Any, at: tuple[float, float] = (1.5, 2.5)) -> float:
    """The value of a formula of two states at a point, through a constraint."""
    x = sv.agents(2, lower=0.1, upper=5)
    stated = [make(x) <= 50, x[0] + x[1] <= 9]
    problem = sv.Problem(objectives=[x[0] ** 2, x[1] ** 2], constraints=stated)
    *rows, _ = problem.evaluate(at).rows  # a maximum that mixes agents is several rows
    return float(max(rows)) + 50


FORMULAS: dict[str, tuple[Any, float]] = {
    "np.log": (lambda x: np.log(x[0] + x[1]), math.log(4.0)),
    "np.exp": (lambda x: np.exp(x[0] - x[1]), math.exp(-1.0)),
    "np.sqrt": (lambda x: -np.sqrt(x[0] + x[1]), -2.0),
    "np.abs": (lambda x: np.abs(x[0] - x[1]), 1.0),
    "np.maximum": (lambda x: np.maximum(x[0], 2) + x[1], 4.5),
    "np.minimum": (lambda x: x[1] - np.minimum(x[0], 2), 1.0),
    "np.hypot": (lambda x: np.hypot(x[0] - 1, x[1]), math.hypot(0.5, 2.5)),
    "np.square": (lambda x: np.square(x[0] - x[1]), 1.0),
    "np.float64 on the left": (lambda x: np.float64(2.0) * x[0] + x[1], 5.5),
    "np.int64 powers": (lambda x: x[0] ** np.int64(2) + x[1], 4.75),
    "np.sum": (lambda x: np.sum(2 * x + 1) / 2, 5.0),
    "sum": (lambda x: sum(x), 4.0),
    "sum of an array": (lambda x: (2 * x + 1).sum(), 10.0),
    "a dot product": (lambda x: np.array([1.0, 2.0]) @ np.array(x[:]), 6.5),
    "a quadratic form": (lambda x: x @ np.diag([1.0, 2.0]) @ x, 14.75),
    "a row of a matrix": (lambda x: (A @ x)[1], 8.25),
    "a norm of a matrix": (lambda x: sv.norm(A @ x), math.sqrt(3.5**2 + 8.25**2 + 4**2)),
    "a norm of a sparse matrix": (
        lambda x: sv.norm(sparse.csr_array(A) @ x), math.sqrt(3.5**2 + 8.25**2 + 4**2)
    ),
    "a maximum of a matrix": (lambda x: sv.maximum(A @ x), 8.25),
    "positive parts": (lambda x: sum(sv.pos(x - 2)), 0.5),
    "maxima entry by entry": (lambda x: sum(sv.maximum(x, 2)), 4.5),
    "minima": (lambda x: x[1] - sv.minimum(x[0], 3, 2), 1.0),
    "huber inside": (lambda x: sv.huber(x[0] - 1, 2) + x[1], 2.75),
    "huber outside": (lambda x: sv.huber(x[0] + 1, 1) + x[1], 6.5),
    "a soft maximum": (lambda x: sv.logsumexp(x[0], x[1]), math.log(math.exp(1.5) + math.exp(2.5))),
    "exp and log": (lambda x: sv.exp(x[0]) - sv.log(x[1]), math.exp(1.5) - math.log(2.5)),
    "a quotient": (lambda x: 1 / x[0] + x[1] / 4, 1 / 1.5 + 0.625),
    "a power that is a fraction": (lambda x: x[0] ** 1.5 + x[1], 1.5**1.5 + 2.5),
    "a base that is a number": (lambda x: 2 ** x[0] + x[1], 2**1.5 + 2.5),
    "signs": (lambda x: -(3 - x[0]) + +x[1], 1.0),
    "numbers on the left": (lambda x: 3 - 2 * x[0] + 1 * x[1], 2.5),
    "abs": (lambda x: abs(x[0] - 4) + abs(x[1]), 5.0),
    "a slice": (lambda x: sum(x[0:2]), 4.0),
    "a negative index": (lambda x: x[-1] + x[0], 4.0),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_has_the_value_that_is_written(name: str) -> None:
    make, expected = FORMULAS[name]
    assert value(make) == pytest.approx(expected, rel=1e-12, abs=1e-12)


ROWS: dict[str, Any] = {
    "A @ x <= b": (lambda a, x: a @ x <= [1.0, 9.0, 3.0], [-4.5, -0.75, 1.0]),
    "A @ x >= b": (lambda a, x: a @ x >= [-9.0, 1.0, 2.0], [-5.5, -7.25, -2.0]),
    "one bound for all": (lambda a, x: a @ x <= 9, [-12.5, -0.75, -5.0]),
    "a multiple": (lambda a, x: 2 * (a @ x) - 1 <= 17, [-25.0, -1.5, -10.0]),
    "absolute values": (lambda a, x: abs(a @ x) <= [4.0, 9.0, 5.0], [-0.5, -0.75, -1.0]),
    "np.abs": (lambda a, x: np.abs(a @ x) <= 9, [-5.5, -0.75, -5.0]),
    "squares": (lambda a, x: (a @ x) ** 2 <= 100, [-87.75, -31.9375, -84.0]),
}


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array, sparse.coo_array])
@pytest.mark.parametrize("name", ROWS)
def test_rows_of_a_matrix_dense_or_sparse_are_constraints(name: str, kind: Any) -> None:
    make, expected = ROWS[name]
    x = sv.agents(2, lower=0.1, upper=5)
    problem = sv.Problem(objectives=[x[0] ** 2, x[1] ** 2], constraints=[make(kind(A), x)])
    np.testing.assert_allclose(problem.evaluate([1.5, 2.5]).rows, expected, atol=1e-12)


def test_equal_rows_of_a_matrix_are_equalities() -> None:
    x = sv.agents(2, lower=0, upper=5)
    problem = sv.Problem(
        objectives=[x[0] ** 2, x[1] ** 2], constraints=[(A[:2] @ x == [-1.0, 6.0])]
    )
    best = sv.reference_optimum(problem)
    np.testing.assert_allclose(A[:2] @ best.x, [-1.0, 6.0], atol=1e-8)
    assert max(problem.evaluate([1.5, 2.5]).violation) > 0


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_a_matrix_times_a_fleet_is_its_weighted_sums(kind: Any) -> None:
    ev = sv.agents(3, dim=2, lower=0, upper=1, name="ev")
    weights = np.array([[1.0, 0.0, 2.0], [0.0, -1.0, 1.0]])
    problem = sv.Problem(
        objectives=sum(s**2 for s in ev.x), constraints=[kind(weights) @ ev <= [1.0, 2.0, 3.0, 4.0]]
    )
    x = np.arange(6.0).reshape(3, 2) / 10
    expected = (weights @ x).ravel() - [1.0, 2.0, 3.0, 4.0]
    np.testing.assert_allclose(problem.evaluate(x.ravel()).rows, expected, atol=1e-12)


def test_totals_add_up_with_each_other_and_with_named_agents() -> None:
    battery = sv.agents(["battery"], lower=-5, upper=5)
    ev = sv.agents(3, lower=0, upper=2, name="ev")
    van = sv.agents(2, lower=0, upper=3, name="van")
    problem = sv.Problem(
        agents=[battery, ev, van],
        objectives=[battery[0] ** 2, (ev.x - 1) ** 2, (van.x - 2) ** 2],
        constraints={"feeder": sv.total(ev) / 2 + 2 * sv.total(van) - battery[0] <= 6},
    )
    x = [1.0, 0.5, 1.0, 1.5, 2.0, 0.5]
    assert problem.evaluate(x).rows[0] == pytest.approx(1.5 + 5.0 - 1.0 - 6.0)
    assert sv.reference_optimum(problem).objective >= 0


def test_arrays_of_states_compare_entry_by_entry() -> None:
    ev = sv.agents(2, dim=2, lower=0, upper=9, name="ev", parameters={"cap": [[1, 2], [3, 4]]})
    r = ev.x
    problem = sv.Problem(
        objectives=sv.sum_squares(r - 5), constraints=[sv.total(ev) <= 99], local=[r <= ev["cap"]]
    )
    np.testing.assert_allclose(sv.reference_optimum(problem).x, [1, 2, 3, 4], atol=1e-6)


def test_vector_states_have_components_and_columns() -> None:
    x = sv.agents(["left", "right"], dim=2, lower=-1, upper=1)
    problem = sv.Problem(
        objectives=[x[0] @ x[0], (x[1] ** 2).sum()],
        constraints=[sum(x[:, 0]) <= 1, x[0][1] + x[1][1] <= 0.5],
    )
    g = problem.evaluate([0.5, 0.25, 0.25, 0.5]).rows
    np.testing.assert_allclose(g, [-0.25, 0.25])


def test_constraints_take_names_and_count_without_them() -> None:
    x = sv.agents(2, lower=0, upper=1)
    rows = [x[0] + x[1] <= 1, x[0] - x[1] <= 0.5]
    wishes = [x[0] ** 2, x[1] ** 2]
    plain = sv.Problem(objectives=wishes, constraints=rows)
    named = sv.Problem(objectives=wishes, constraints={"sum": rows[0], "gap": rows[1]})
    assert plain.cloud.sums.labels == ("g1", "g2")
    assert named.cloud.sums.labels == ("sum", "gap")
    assert "gap" in str(named.evaluate([1.0, 0.0]))


def test_evaluate_reports_objective_values_and_violations() -> None:
    at = p.readme().evaluate([1.0, 2.0, 3.0])
    assert at.objective == pytest.approx(64 + 1296 + 4)
    np.testing.assert_allclose(at.rows, [3, -7])
    np.testing.assert_allclose(at.violation, [3, 0])
    for word in ("objective", "1364", "g1", "g2"):
        assert word in str(at)
