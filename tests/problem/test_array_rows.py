"""Matrices and totals in rows of a problem; values are in ``behaviour/test_array_habits.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv

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
