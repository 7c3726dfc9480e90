"""Agents: one value for named agents and fleets; problems find them from formulas."""

from __future__ import annotations

import numpy as np
import problems as p
import pytest

import sottovoce as sv
from sottovoce.errors import ProblemError

NEED = np.array([3.0, 4.0, 1.5])


def test_a_problem_finds_its_named_agents() -> None:
    problem = p.readme(["mill", "hill", "dam"])
    assert problem.cloud.agent_labels() == ["mill", "hill", "dam"]
    assert problem.evaluate([1.0, 2.0, 3.0]).rows.tolist() == [3.0, -7.0]


def test_a_fleet_and_its_agents_one_by_one_have_one_optimum() -> None:
    ev = sv.agents(3, dim=2, lower=0, upper=3, name="ev", parameters={"need": NEED})
    fleet = sv.Problem(
        objectives=(ev.x.sum() - ev["need"]) ** 2 + sv.sum_squares(ev.x) / 10,
        constraints=[sv.total(ev.x) <= [2.0, 3.0]],
        local=[ev.x[0] <= 0.5 * ev["need"]],
    )
    x = sv.agents(3, dim=2, lower=0, upper=3)
    alone = sv.Problem(
        objectives=[
            (s.sum() - n) ** 2 + sv.sum_squares(s) / 10 for s, n in zip(x, NEED, strict=True)
        ],
        constraints=[sv.total(x) <= [2.0, 3.0]],
        local=[s[0] <= 0.5 * n for s, n in zip(x, NEED, strict=True)],
    )
    assert (len(fleet.groups), len(alone.groups)) == (1, 3)
    best = [sv.reference_optimum(problem).x for problem in (fleet, alone)]
    np.testing.assert_allclose(best[0], best[1], atol=1e-7)


def test_named_agents_may_share_a_formula() -> None:
    z = sv.agents(["a", "b"], lower=0, upper=1, parameters={"c": [1.0, 2.0]})
    problem = sv.Problem(
        objectives=(z.x - z["c"]) ** 2, constraints=[sv.total(z) <= 1], local=[4 * z.x <= z["c"]]
    )
    assert problem.cloud.agent_labels() == ["a", "b"]
    assert problem.evaluate([0.25, 0.5]).objective == pytest.approx(0.75**2 + 1.5**2)
    np.testing.assert_allclose(sv.reference_optimum(problem).x, [0.25, 0.5], atol=1e-6)


def test_agents_of_one_name_from_two_calls_keep_their_own_bounds() -> None:
    x, y = (sv.agents(2, lower=0, upper=top) for top in (1, 5))
    problems = [
        sv.Problem(objectives=[-s[0], -s[1]], constraints=[s[0] + s[1] <= 9]) for s in (x, y)
    ]
    assert [each.cloud.upper().tolist() for each in problems] == [[1, 1], [5, 5]]


def test_agents_that_nothing_names_belong_to_their_value() -> None:
    x = sv.agents(["a", "b", "idle"], lower=0, upper=1)
    problem = sv.Problem(objectives=[x[0], x[1], 0], constraints=[x[0] + x[1] >= 1])
    assert problem.agents == 3


def test_text_names_agents_that_are_given() -> None:
    x = sv.agents(2, lower=0, upper=1)
    rows = ["x1 + x2 >= 1"]
    assert sv.Problem(agents=x, objectives=["x1**2", "x2"], constraints=rows).agents == 2
    with pytest.raises(ProblemError, match="agents="):
        sv.Problem(objectives=["x1**2", "x2"], constraints=rows)


def test_bounds_that_could_be_meant_per_agent_or_per_component_are_refused() -> None:
    with pytest.raises(ProblemError, match="one row per agent"):
        sv.agents(2, dim=2, lower=[0, 1], upper=3)
    wide = sv.agents(3, dim=2, lower=[0, 1, 2], upper=3)
    assert wide.fleet.lower.tolist() == [[0, 0], [1, 1], [2, 2]]
