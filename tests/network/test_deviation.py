"""What an agent knows of its setpoint's error: right where its assumption holds, never absurd."""

from __future__ import annotations

import math

import numpy as np
import pytest
from welcomes import welcome_to

import sottovoce as sv
from sottovoce.algorithm.algorithm import Algorithm
from sottovoce.network.agent_group import AgentGroup
from sottovoce.network.local_round import LocalRound
from sottovoce.privacy.limit import accuracy_limit
from sottovoce.problem.groups import Array
from sottovoce.problem.problem import Problem
from sottovoce.problem.sums import agents_of

ROUNDS = 400


def alike(agents: int, dim: int = 1) -> Problem:
    """Agents of one kind that share a capacity, one by one."""
    x = sv.agents(agents, lower=-3, upper=3, dim=dim)
    parts = [[s] if dim == 1 else list(s) for s in x]
    return Problem(
        agents=x,
        objectives=[sum((c + 1) * (v - 2) ** 2 for c, v in enumerate(s)) for s in parts],
        constraints=[sum(v for s in parts for v in s) <= agents],
    )


def deviation(
    problem: Problem, agents: list[int], *, algorithm: Algorithm | None = None
) -> tuple[Array, Array]:
    """What these agents say, and what the limit says that knows everybody's formulas."""
    hide = sv.Offset(radius=0.01, rounds=ROUNDS)
    plan = sv.plan(sv.certify(problem), epsilon=1, delta=0.01, hide=hide)
    saddle = sv.reference_optimum(problem)
    house = AgentGroup.of_problem(problem, [a - 1 for a in agents])
    welcome = welcome_to(
        problem.cloud, agents, algorithm or sv.DualAveraging(), rounds=ROUNDS,
        grid=np.array([o.grid for o in plan.outputs]), domain=plan.domain,
    )  # fmt: skip
    dim = problem.size // problem.agents
    mine = np.concatenate([np.arange(dim * (a - 1), dim * a) for a in agents])
    found = LocalRound(house, welcome).deviation(saddle.x[mine], saddle.mu)
    return found, accuracy_limit(problem, plan, ROUNDS, saddle=saddle).x_each[mine]


@pytest.mark.parametrize("dim", [1, 2])
def test_among_agents_alike_it_is_the_limit(dim: int) -> None:
    own, known = deviation(alike(4, dim), [2])
    # The answer's weights leave 9% more than equal ones.
    np.testing.assert_allclose(own, 1.09 * known, rtol=0.01)


def test_a_fleet_behind_a_gateway_has_one_each() -> None:
    u = sv.agents(6, lower=0, upper=1, name="u", parameters={"a": [1, 1, 1, 1, 1, 1.0]})
    problem = Problem(
        agents=u,
        objectives=u["a"] * (u.x - 0.9) ** 2,
        constraints=[sv.total(u.x) <= 3],
    )
    own, known = deviation(problem, [2, 3, 4])
    np.testing.assert_allclose(own, 1.09 * known, rtol=0.01)


def test_a_state_at_its_bound_and_a_price_of_zero_move_nothing() -> None:
    x = sv.agents(2, lower=0, upper=1)
    held = Problem(
        agents=x,
        objectives=[(x[0] - 5) ** 2, (x[1] - 1) ** 2],
        constraints=[x[0] + x[1] <= 1.5],
    )
    assert deviation(held, [1])[0].tolist() == [0.0]
    slack = Problem(agents=x, objectives=[s**2 for s in x], constraints=[x[0] + x[1] <= 1.5])
    assert deviation(slack, [1])[0].tolist() == [0.0]


def test_it_never_exceeds_half_the_box() -> None:
    problem = alike(2)
    hide = sv.Everything(rounds=ROUNDS)
    plan = sv.plan(sv.certify(problem), epsilon=0.01, delta=1e-6, hide=hide)
    grid = np.array([o.grid for o in plan.outputs])
    welcome = welcome_to(
        problem.cloud, [1], sv.DualAveraging(), rounds=ROUNDS, grid=grid, domain=plan.domain
    )
    found = LocalRound(AgentGroup.of_problem(problem, [0]), welcome).deviation(
        np.ones(1), np.ones(1)
    )
    width = plan.domain[0].upper[0, 0] - plan.domain[0].lower[0, 0]
    assert found[0] == pytest.approx(width / 2)


def test_code_counts_as_curved_and_the_paper_s_algorithm_tells_nothing() -> None:
    problem = alike(3)
    plan = sv.plan(
        sv.certify(problem), epsilon=1, delta=0.01, hide=sv.Offset(radius=0.01, rounds=ROUNDS)
    )
    grid = np.array([o.grid for o in plan.outputs])
    house = AgentGroup.of_gradient(problem.cloud, 0, lambda s: 2 * (s - 2))
    welcome = welcome_to(
        problem.cloud, [1], sv.DualAveraging(), rounds=ROUNDS, grid=grid, domain=plan.domain
    )
    found = LocalRound(house, welcome).deviation(np.ones(1), np.ones(1))
    np.testing.assert_allclose(found, deviation(problem, [1])[0])
    assert math.isnan(LocalRound(house, welcome).deviation(np.ones(1), np.zeros(0))[0])


def test_every_sum_knows_how_many_agents_it_is_over() -> None:
    x = sv.agents(3, lower=0, upper=1)
    u = sv.agents(4, lower=0, upper=1, name="u")
    weights = np.array([[1.0, 1, 0, 0], [1, 1, 1, 1]])
    problem = Problem(
        agents=[*x.groups, u],
        objectives=[*(s**2 for s in x), u.x**2],
        constraints=[
            x[0] + x[0] ** 2 + x[2] <= 1,
            sv.total(u.x, weights=weights) <= np.array([1.0, 2.0]),
            sv.total(u.x) + x[1] <= 3,
        ],
    )
    assert agents_of(problem.cloud.sums, problem.groups).tolist() == [2, 2, 4, 5]
