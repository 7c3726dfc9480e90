"""A problem at a point, against the formulas written out by hand."""

from __future__ import annotations

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.errors import ProblemError
from sottovoce.problem import gallery
from sottovoce.problem.code import Objective
from sottovoce.problem.constraints import total
from sottovoce.problem.problem import Problem


def test_objective_and_rows_are_those_of_the_formulas() -> None:
    x = sv.agents(3, lower=-10, upper=10)
    problem = Problem(
        agents=x,
        objectives=[(x[0] - 9) ** 2, (x[1] + 4) ** 4, x[2] ** 2],
        constraints={"low": x[0] + x[1] <= 3, "mix": (x[0] + x[2]) ** 2 <= 4,
                     "balance": x[1] + x[2] == 1},
    )  # fmt: skip
    found = problem.evaluate([1.0, -2.0, 3.0])
    assert found.objective == pytest.approx(64 + 16 + 9)
    assert found.labels == ("low", "mix", "balance")
    np.testing.assert_allclose(found.rows, [-4, 12, 0])
    np.testing.assert_allclose(problem.evaluate([1.0, 2.5, -2.0]).violation, [0.5, 0, 0.5])


def test_a_fleet_is_evaluated_with_its_parameters() -> None:
    ev = sv.agents(3, lower=0, upper=1, parameters={"a": [1, 2, 3]})
    problem = Problem(
        agents=ev,
        objectives=ev["a"] * ev.x**2,
        constraints=[total(ev.x) <= 1],
    )
    found = problem.evaluate([1.0, 0.5, 0.0])
    assert (found.objective, found.rows.tolist()) == (1.5, [0.5])


def test_code_counts_with_its_value_and_is_unknown_without() -> None:
    x = sv.agents(2, lower=0, upper=1)

    def stated(code: Objective) -> float:
        problem = Problem(agents=x, objectives=[x[0] ** 2, code], constraints=[x[0] + x[1] <= 1])
        return problem.evaluate([0.5, 1.0]).objective

    told = Objective(gradient=lambda s: 2 * s, value=lambda s: float(s @ s))
    assert stated(told) == pytest.approx(1.25)
    assert np.isnan(stated(Objective(gradient=lambda s: 2 * s)))


def test_a_vector_of_another_length_is_refused() -> None:
    with pytest.raises(ProblemError, match=r"x must be one vector of all 7 states, got shape \(2,"):
        gallery.paper().evaluate([1.0, 2.0])
