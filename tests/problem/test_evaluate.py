"""A problem at a point, against the formulas written out by hand."""

from __future__ import annotations

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.problem.code import Objective
from sottovoce.problem.constraints import total
from sottovoce.problem.problem import Problem


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
        problem = Problem(agents=x, objectives=[x[0] ** 2, code], constraints=[x[0] + x[1] <= 1])
        return problem.evaluate([0.5, 1.0]).objective

    told = Objective(gradient=lambda s: 2 * s, value=lambda s: float(s @ s))
    assert stated(told) == pytest.approx(1.25)
    assert np.isnan(stated(Objective(gradient=lambda s: 2 * s)))
