"""What an audit says is released, against two other evaluations of the same formulas."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sparse

import sottovoce as sv
from plans import planned
from sottovoce.certificate.certificate import certify
from sottovoce.problem import gallery
from sottovoce.problem.constraints import total
from sottovoce.problem.groups import Array
from sottovoce.problem.numeric import Numeric
from sottovoce.problem.problem import Problem
from sottovoce.study.released_outputs import (
    ReleasedOutputs,
    agent_columns,
    agent_outputs,
    released_outputs,
)


def routed(sparsely: bool) -> Problem:
    """A fleet with weights and parameters beside a named agent."""
    ev = sv.agents(
        3, lower=[0, 0, 1], upper=[1, 2, 3], name="ev", parameters={"a": [1.0, 2.0, 0.5]}
    )
    x = sv.agents(["s"], lower=-1, upper=1)
    weights = np.array([[1.0, 0.0, 0.25], [0.0, 2.0, 0.0]])
    used = total(
        [ev["a"] * ev.x, ev.x**2],
        weights=sparse.csr_array(weights) if sparsely else weights,
    )
    return Problem(
        agents=[ev, x],
        objectives=[ev.x**2, x[0] ** 2],
        constraints={"links": used + x[0] <= [5.0, 9.0, 6.0, 9.0]},
    )


def inside(stated: ReleasedOutputs, count: int = 5) -> Array:
    generator = np.random.default_rng(1)
    return generator.uniform(stated.lower, stated.upper, (count, stated.lower.size))


@pytest.mark.parametrize(
    "problem",
    [gallery.get(name) for name in ("paper", "hs10", "coupled", "chargers")]
    + [routed(False), routed(True)],
    ids=["paper", "hs10", "coupled", "chargers", "weights", "sparse weights"],
)
def test_sums_are_contributions_rounded_to_the_grid(problem: Problem) -> None:
    made = planned(certify(problem.cloud))
    stated = released_outputs(made)
    grid = np.array([o.grid for o in made.outputs])
    rows = Numeric(problem, problem.cloud.sums.families)
    points = inside(stated)
    for x, values in zip(points, stated(points), strict=True):
        exact = rows.constraints(x)
        assert np.all(np.abs(values - exact) <= grid * (problem.agents / 2 + 1))
        steps = values / grid
        np.testing.assert_allclose(steps, np.rint(steps), rtol=1e-15)


@pytest.mark.parametrize("problem", [gallery.coupled(), routed(True)], ids=["coupled", "fleet"])
def test_an_agent_moves_sums_by_its_own_contribution(problem: Problem) -> None:
    made = planned(certify(problem.cloud))
    stated = released_outputs(made)
    point = inside(stated, 1)
    for agent in range(1, problem.agents + 1):
        own = agent_columns(problem.cloud, agent)
        alone, mine = agent_outputs(made, agent)
        assert (mine.start, mine.stop) == (0, own.stop - own.start)
        other = point.copy()
        other[:, own] = inside(alone, 2)[1:]
        moved = stated(other) - stated(point)
        np.testing.assert_allclose(
            moved, alone(other[:, own]) - alone(point[:, own]), rtol=1e-12, atol=1e-9
        )


def test_the_papers_release_is_values_and_gradients() -> None:
    problem = gallery.paper()
    made = planned(method="paper")
    stated, numeric = released_outputs(made), Numeric(problem)
    points = inside(stated)
    for x, values in zip(points, stated(points), strict=True):
        slopes = numeric.jacobian(x).toarray()
        gradients = [slopes[o.row, o.column] for o in made.outputs if o.kind == "gradient"]
        expected = np.concatenate([numeric.constraints(x), gradients])
        np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-12)
