"""Arrays of states in rows of a problem: matrices, totals, and what to write instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse

import sottovoce as sv
from sottovoce.errors import ProblemError

X = sv.agents(2, lower=0.1, upper=5)
EV = sv.agents(3, dim=2, lower=0, upper=1, name="ev", parameters={"cap": [[1, 2], [3, 4], [5, 6]]})


def test_comparisons_of_states_go_entry_by_entry() -> None:
    rows = EV.x <= EV["cap"]
    assert [str(row) for row in rows] == ["ev[1] <= cap[1]", "ev[2] <= cap[2]"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EV.x < 1, "must include its border.* write <="),
        (lambda: 1 <= np.ones(2) @ X <= 5, "total >= 1 and total <= 5"),
        (lambda: 1 <= sv.total(EV) <= 5, "total >= 1 and total <= 5"),
        (lambda: sv.total(EV) * np.ones(2), "multiplied by one number, got ndarray"),
        (lambda: sv.agents(2, lower=0, upper=1, dim=[1, 2]) + 1, "one dimension"),
    ],
)
def test_what_cannot_work_says_what_to_write(make: Any, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        make()


A = np.array([[1.0, -2.0], [0.5, 3.0], [0.0, 1.0]])
ROWS = [X[0] - 2 * X[1], 0.5 * X[0] + 3 * X[1], X[1]]


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize(
    ("stated", "written"),
    [
        (
            lambda a: abs(a @ X) <= [1, 2, 3],
            [abs(r) <= b for r, b in zip(ROWS, (1, 2, 3), strict=True)],
        ),
        (lambda a: np.abs(a @ X) <= 2, [abs(r) <= 2 for r in ROWS]),
        (lambda a: (a @ X + 1) ** 2 <= 4, [(r + 1) ** 2 <= 4 for r in ROWS]),
        (lambda a: [sv.norm(a @ X) <= 2], [sv.norm(*ROWS) <= 2]),
        (lambda a: [sv.maximum(a @ X) <= 2], [sv.maximum(*ROWS) <= 2]),
        (lambda a: [(a @ X)[1] <= 2], [ROWS[1] <= 2]),
        (lambda a: [X @ np.diag([1, 2]) @ X <= 3], [X[0] ** 2 + 2 * X[1] ** 2 <= 3]),
        (lambda a: [sum(sv.pos(X - 1)) <= 3], [sum(sv.pos(x - 1) for x in X) <= 3]),
        (lambda a: [sum(sv.maximum(X, 1)) <= 3], [sum(sv.maximum(x, 1) for x in X) <= 3]),
        (lambda a: [np.sum(2 * X + 1) / 2 <= 3], [sum((2 * x + 1) / 2 for x in X) <= 3]),
    ],
)
def test_rows_of_matrices_and_states_are_arrays_of_formulas(
    kind: Any, stated: Any, written: Any
) -> None:
    def fingerprint(rows: Any) -> str:
        couples = [X[0] + X[1] <= 4, *rows]
        found = sv.Problem(agents=X, objectives=[X[0], X[1]], constraints=couples)
        return found.fingerprint

    assert fingerprint(stated(kind(A))) == fingerprint(written)


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


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array, sparse.coo_array])
def test_a_matrix_times_a_fleet_is_its_weighted_sums(kind: Any) -> None:
    weights = kind(np.array([[1.0, 0.0, 2.0], [0.0, -1.0, 1.0]]))
    stated = sv.Problem(
        agents=EV, objectives=EV.x[0] ** 2, constraints=[weights @ EV <= [1, 2, 3, 4]]
    )
    same = sv.Problem(
        agents=EV,
        objectives=EV.x[0] ** 2,
        constraints=[sv.total(EV.x, weights=weights) <= [1, 2, 3, 4]],
    )
    assert stated.fingerprint == same.fingerprint


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


def test_every_weighted_row_of_squares_beside_named_rows_is_a_sum() -> None:
    x = sv.agents(3, lower=-2, upper=3)
    weights = np.array([[1.0, 0, 1], [1, 1, 0]])
    rows = [sv.total(x.x**2, weights=weights) <= [10, 1], x[0] + x[1] + x[2] <= 100]
    problem = sv.Problem(objectives=(x.x - 3) ** 2, constraints=rows)
    assert problem.cloud.sums.count == problem.cloud.rows == 3
