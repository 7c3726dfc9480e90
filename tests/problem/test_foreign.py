"""NumPy's functions, arrays and Python's chains on states: they work, or say what to write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
import sympy as sp

import sottovoce as sv
from sottovoce.errors import ProblemError
from sottovoce.problem.expressions import check_expression

X = sv.states(2, lower=0.1, upper=5)
EV = sv.fleet(3, dim=2, lower=0, upper=1, name="ev", parameters={"cap": [[1, 2], [3, 4], [5, 6]]})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (lambda: np.log(X[0] + 1), sv.log(X[0] + 1)),
        (lambda: np.exp(X[0] ** 2), sv.exp(X[0] ** 2)),
        (lambda: np.sqrt(X[0]), sv.sqrt(X[0])),
        (lambda: np.abs(X[0] - 1), check_expression(abs(X[0] - 1), [X[0]], "")),
        (lambda: np.maximum(X[0], 0), sv.pos(X[0])),
        (lambda: np.minimum(X[0], X[1]), sv.minimum(X[0], X[1])),
        (lambda: np.hypot(X[0], X[1]), sv.norm(X[0], X[1])),
        (lambda: np.float64(2.0) * X[0], 2.0 * X[0]),
        (lambda: np.square(X[0] - 1), (X[0] - 1) ** 2),
    ],
)
def test_numpys_functions_give_formulas(given: Any, meant: Any) -> None:
    found = given()
    assert isinstance(found, sp.Expr)
    assert sp.expand(found - meant) == 0


def test_functions_and_comparisons_of_arrays_go_entry_by_entry() -> None:
    assert list(np.log(EV.state)) == [sv.log(s) for s in EV.state]
    assert list(np.array([1.0, 2.0]) * X[0]) == [1.0 * X[0], 2.0 * X[0]]
    rows = EV.state <= EV.parameter("cap")
    assert [str(row) for row in rows] == ["ev[1] <= cap[1]", "ev[2] <= cap[2]"]
    assert [str(row) for row in X[0] >= np.array([1, 2])] == ["1 <= x1", "2 <= x1"]


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (lambda: np.log1p(X[0]), ProblemError, r"write sv.log\(1 \+ x\)"),
        (lambda: np.sin(X[0]), ProblemError, r"np.sin knows numbers only, got a formula"),
        (lambda: EV.state < 1, ProblemError, "must include its border.* write <="),
        (lambda: 1 <= X[0] <= 5, TypeError, "two rows 1 <= x and x <= 5"),
        (lambda: max(X[0], 0), TypeError, r"max\(x, y\) as sv.maximum\(x, y\)"),
        (lambda: bool(X[0] <= 1), TypeError, "cannot determine truth value of Relational"),
    ],
)
def test_what_cannot_work_says_what_to_write(given: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        given()


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array, sparse.coo_array])
def test_a_matrix_times_a_fleet_is_its_weighted_sums(kind: Any) -> None:
    weights = kind(np.array([[1.0, 0.0, 2.0], [0.0, -1.0, 1.0]]))
    stated = sv.Problem(
        states=EV, objectives=EV.state[0] ** 2, constraints=[weights @ EV <= [1, 2, 3, 4]]
    )
    same = sv.Problem(
        states=EV,
        objectives=EV.state[0] ** 2,
        constraints=[sv.total(EV, EV.state, weights=weights) <= [1, 2, 3, 4]],
    )
    assert stated.fingerprint == same.fingerprint
