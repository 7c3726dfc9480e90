"""Rows taken apart: one weight matrix, and terms of one form together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse

import sottovoce as sv
from formula_values import evaluate
from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import canonical
from sottovoce.formula.expression import symbol
from sottovoce.formula.tape import tape
from sottovoce.problem.form import form_of, key_of
from sottovoce.problem.terms import named_rows_of

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
    formulas = [canonical(left), canonical(right)]
    keys = [key_of(formula, {X: 0}) for formula in formulas]
    assert (keys[0][0] is keys[1][0]) is same
    for (key, numbers), formula in zip(keys, formulas, strict=True):
        form = form_of((key,), 1)
        (value,) = tape(form.formulas, (*form.symbols, *form.parameters))(0.3, *numbers)
        assert value == pytest.approx(evaluate(formula, {X: 0.3}), rel=1e-14)


def test_formulas_of_one_form_keep_their_numbers_apart() -> None:
    formulas = [canonical(2.5 * X**2 + 0.5), canonical((X - 3) ** 2), canonical(7.0 * X)]
    read = [key_of(formula, {X: 0}) for formula in formulas]
    form = form_of(tuple(key for key, _ in read), 1)
    numbers = [value for _, values in read for value in values]
    found = tape(form.formulas, (*form.symbols, *form.parameters))(0.3, *numbers)
    assert found == pytest.approx([evaluate(formula, {X: 0.3}) for formula in formulas])


def test_rows_become_weights_and_terms_by_form() -> None:
    x = sv.states(4, lower=-5, upper=5)
    problem = sv.Problem(
        states=x,
        objectives=[(s - 1) ** 2 for s in x],
        constraints=[
            x[0] + 2.5 * x[1] <= 3,
            0.5 * x[0] ** 2 + 0.25 * x[1] ** 2 + x[3] <= 4,
            (x[2] + x[3]) ** 2 + sv.exp(x[2]) <= 9,
        ],
    )
    rows = named_rows_of(problem.groups, problem.constraints)
    assert rows.linear.toarray()[0].tolist() == [1.0, 2.5, 0.0, 0.0]
    sizes = sorted(terms.rows.size for terms in rows.terms)
    assert sizes == [1, 1, 2]  # the row that mixes x3 and x4, x4 in row 2, and the two squares
    assert sorted(len(unit.agents) for unit in rows.units) == [1, 1, 2]


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array, sparse.coo_array])
def test_a_matrix_times_states_is_the_same_rows_written_out(kind: Any) -> None:
    x = sv.states(3, lower=-5, upper=5, dim=[1, 2, 1])
    A = np.array([[1.0, 0.0, 2.5, 0.0], [0.0, -1.0, 0.0, 3.0]])
    flat = [x[0], *x[1], x[2]]
    objectives = [(x[0] - 1) ** 2, x[1][0] ** 2 + x[1][1] ** 2, x[2] ** 2]
    matrix = sv.Problem(states=x, objectives=objectives, constraints={"g": kind(A) @ x <= [1, 2]})
    rows = [
        sum(w * s for w, s in zip(row, flat, strict=True)) <= b
        for row, b in zip(A, (1, 2), strict=True)
    ]
    written = sv.Problem(states=x, objectives=objectives, constraints=rows)
    assert matrix.cloud.row_labels() == ["g[1]", "g[2]"]
    sums, same = matrix.cloud.sums, written.cloud.sums
    assert (sums.upper.tolist(), sums.count) == (same.upper.tolist(), same.count)
    left, right = sv.certify(matrix), sv.certify(written)
    np.testing.assert_array_equal(left.sensitivity.dense(), right.sensitivity.dense())
    assert (
        sv.Problem(states=x, objectives=objectives, constraints=[kind(A) @ x == [1, 2]])
        .constraints[0]
        .equality
    )


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones((2, 3)), "one column per component"),
        (np.array([[1.0, np.nan]]), "must be finite"),
        (np.array([[1.0, 1.0], [0.0, 0.0]]), "constraint g1: every .* row 2 with none"),
    ],
)
def test_a_matrix_that_does_not_fit_is_refused(weights: Any, message: str) -> None:
    x = sv.states(2, lower=0, upper=1)
    with pytest.raises(ProblemError, match=message):
        sv.Problem(states=x, objectives=[x[0], x[1]], constraints=[weights @ x <= 1])


def test_many_agents_are_certified_by_their_forms() -> None:
    rng, n = np.random.default_rng(0), 120
    x = sv.states(n, lower=-5, upper=5)
    curvature, centre = rng.uniform(0.5, 2, n), rng.uniform(-3, 3, n)
    A = rng.uniform(0, 1, (6, n))
    f = [float(a) * (s - float(c)) ** 2 for a, c, s in zip(curvature, centre, x, strict=True)]
    problem = sv.Problem(states=x, objectives=f, constraints=[A @ x <= np.full(6, 10.0)])
    found = sv.certify(problem)
    assert found.holds
    assert len(found.assumptions) == 1 + 2 * 6 + 1 + 2 * n + 1
    np.testing.assert_array_equal(found.sensitivity.dense(), A)
    saddle = sv.reference_optimum(problem)
    assert saddle is sv.reference_optimum(problem)  # kept with the problem
    slope = 2 * curvature * (saddle.x - centre) + A.T @ saddle.mu
    assert np.max(np.abs(slope[np.abs(saddle.x) < 5])) < 1e-8
