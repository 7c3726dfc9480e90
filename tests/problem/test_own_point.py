"""What agents apply without an answer: said in Python or in files, and checked to be theirs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.problem.files.load import load_problem
from sottovoce.problem.files.save import save_problem


def stated(**given: Any) -> sv.Problem:
    a, b = x = sv.agents(["a", "b"], lower=0, upper=5, dim=[1, 2])
    ev = sv.agents(3, lower=0, upper=2, name="ev", parameters={"need": np.array([0.5, 1.0, 1.5])})
    return sv.Problem(
        agents=[x, ev],
        objectives=[a**2, b[0] ** 2 + b[1] ** 2, (ev.x - 1) ** 2],
        constraints={"all": sv.total(ev.x) + a + b[0] <= 6},
        local=[b[0] + b[1] >= 1, b[0] == b[1], ev.x >= ev["need"]],
        **given,
    )


def test_fallbacks_are_kept_per_agent_and_none_is_where_it_starts(tmp_path: Path) -> None:
    points = [[0.5], None, [[0.75], [1.0], [1.75]]]
    problem = stated(fallback=points)
    assert problem.fallback[1] is None
    save_problem(problem, tmp_path)
    read = load_problem(tmp_path)
    for mine, theirs in zip(read.fallback, problem.fallback, strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or np.array_equal(mine, theirs)  # type: ignore[arg-type]
    view = load_problem(tmp_path, agents=[1]).agent(0)
    assert view.fallback is not None
    assert view.fallback.tolist() == [0.5]
    house = sv.network.AgentGroup.of_folder(tmp_path, [2, 4])
    assert np.isnan(house.fallback[:2]).all()
    assert house.fallback[2:].tolist() == [1.0]


@pytest.mark.parametrize(
    ("fallback", "words"),
    [
        ([[9.0], None, None], "fallback of a must lie in its own set"),
        ([None, [0.25, 0.25], None], "fallback of b must lie in its own set"),
        ([None, [1.0, 2.0], None], "fallback of b must lie in its own set"),
        ([None, None, 1.25], "fallback of ev3 must lie in its own set"),
        ([None, [1.0, 1.0, 1.0], None], r"fallback of b must be numbers of the shape \(1, 2\)"),
        ([None, None, [np.nan]], "fallback of ev1 must lie in its own set"),
        ([None], "fallback must have one entry per agent or fleet"),
        (7, "fallback must be a list"),
    ],
)
def test_a_state_that_is_not_the_agents_own_is_refused(fallback: Any, words: str) -> None:
    with pytest.raises(sv.SottovoceError, match=words) as refusal:
        stated(fallback=fallback)
    assert "9" not in str(refusal.value)


def test_an_agent_with_code_says_its_fallback_too() -> None:
    cloud = stated().cloud
    house = sv.network.AgentGroup.of_gradient(cloud, 0, lambda x: 2 * x, fallback=[0.5])
    assert house.fallback.tolist() == [0.5]
    with pytest.raises(sv.errors.ProblemError, match="fallback of a must lie in its own set"):
        sv.network.AgentGroup.of_gradient(cloud, 0, lambda x: 2 * x, fallback=[7.0])
