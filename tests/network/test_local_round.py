"""Rounds at home: what agents, alone or behind a gateway, compute is what ``simulate`` computes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from welcomes import welcome_to

import sottovoce as sv
from plans import coupled_entries
from sottovoce.algorithm.algorithm import Algorithm
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.errors import InputError, ProblemError
from sottovoce.formula.canonical import substitute
from sottovoce.network.agent_group import AgentGroup
from sottovoce.network.local_round import LocalRound
from sottovoce.network.protocol.codec import pack, pack_whole
from sottovoce.paper.tikhonov import Tikhonov
from sottovoce.privacy.limit import accuracy_limit
from sottovoce.problem import gallery
from sottovoce.problem.files.save import save_problem
from sottovoce.problem.groups import Array
from sottovoce.problem.numeric import Numeric
from sottovoce.problem.problem import Problem
from sottovoce.problem.sums import agents_of


@pytest.mark.parametrize("which", ["coupled", "every"])
def test_the_papers_steps_take_what_is_sent_and_work_out_the_rest(which: str) -> None:
    problem = gallery.coupled()
    rng = np.random.default_rng(1)
    cloud, algorithm = problem.cloud, Tikhonov(gamma_bar=0.01)
    x = rng.uniform(cloud.lower(), cloud.upper())
    mu = rng.uniform(0, 2, problem.rows)
    numeric = Numeric(problem)
    jacobian = numeric.jacobian(x).toarray()
    coupled = [(row, column) for row, column, _ in coupled_entries(cloud)]
    every = [(j, c) for j in range(problem.rows) for c in range(problem.size)]
    entries = coupled if which == "coupled" else every
    want = x - 0.01 * (numeric.lagrangian_gradient(x, mu) + algorithm.alpha_bar * x)
    want = np.clip(want, cloud.lower(), cloud.upper())
    ends = np.cumsum([0, *(g.dim for g in cloud.groups)])
    for agents in ([1], [2, 3], list(range(1, problem.agents + 1))):
        own = np.concatenate([np.arange(ends[a - 1], ends[a]) for a in agents])
        welcome = welcome_to(cloud, agents, algorithm, entries=entries)
        local = LocalRound(AgentGroup.of_problem(problem, [a - 1 for a in agents]), welcome)
        assert local.contributions(x[own]) is None
        listed = zip(welcome.rows, welcome.columns, strict=True)
        y = np.array([jacobian[j, own[c]] for j, c in listed])
        after = local(1, x[own], x[own], mu, y)
        assert after.values is None
        np.testing.assert_allclose(after.x, want[own], rtol=1e-12, atol=1e-12)
        assert after.answer.tolist() == after.x.tolist()  # the last state is the answer


def test_a_gradient_that_nobody_sends_is_an_error_not_a_guess() -> None:
    problem = gallery.coupled()
    with pytest.raises(InputError, match="couples"):
        alone(AgentGroup.of_problem(problem, [0]), Tikhonov())


def test_an_agent_reads_its_own_file_and_no_other(tmp_path: Path) -> None:
    problem = gallery.paper()
    save_problem(problem, tmp_path)
    for number in (1, 2, 4, 5, 6, 7):
        (tmp_path / "agents" / f"{number}.toml").unlink()
    own = AgentGroup.of_file(tmp_path / "agents" / "3.toml")
    assert (own.cloud.fingerprint, own.agents) == (problem.cloud.fingerprint, (3,))
    fleet = own.groups[0].fleet
    stated = {fleet.group.symbols[0]: problem.groups[2].symbols[0]}
    objective = substitute(fleet.group.fill(fleet.objective), stated)
    assert objective is problem.agent(2).objective
    (tmp_path / "agents" / "1.toml").write_text('agent = "x1"\nobjective = "x2**2"\n')
    with pytest.raises(ProblemError):
        AgentGroup.of_file(tmp_path / "agents" / "1.toml")
    with pytest.raises(ProblemError, match="must exist"):
        AgentGroup.of_file(tmp_path / "agents" / "2.toml")
    with pytest.raises(ProblemError, match="must be called"):
        AgentGroup.of_file(tmp_path / "agents" / "x.toml")


def alone(house: AgentGroup, algorithm: Algorithm, **changes: Any) -> LocalRound:
    return LocalRound(house, welcome_to(house.cloud, list(house.agents), algorithm, **changes))


def test_an_objective_may_be_any_code_with_a_gradient() -> None:
    cloud = gallery.paper().cloud
    house = AgentGroup.of_gradient(cloud, 3, lambda x: 2 * x + 1, start=[3.0])
    start, price = np.array([3.0]), np.array([0.0, 0.0, 0.5, 0.0])
    local = alone(house, DualAveraging(), rounds=10**6)
    got = local(10**6, start, start, price, np.zeros(0))
    rho = 0.1 * 0.5 * 20 / 20**2  # 2 x + 1 + lambda_3 + rho (x - 3) = 0
    assert got.x == pytest.approx([(3 * rho - 1.5) / (2 + rho)], abs=1e-9)
    assert got.proximal.tolist() == [3.0, 10.0]
    assert got.failed.size == 0
    with pytest.raises(InputError, match="finite"):
        AgentGroup.of_gradient(cloud, 3, lambda x: x, start=[np.inf])


def test_contributions_are_whole_steps_of_the_grid_half_to_even_and_within_their_range() -> None:
    house = AgentGroup.of_problem(gallery.paper(), [3])  # x4 is one term of the third sum
    welcome = welcome_to(house.cloud, [4], DualAveraging(), grid=np.full(4, 0.5))
    welcome = msgspec.structs.replace(
        welcome, sums=[2], grid=pack(np.array([0.5])), least=pack_whole(np.array([-5])),
        most=pack_whole(np.array([5])),
    )  # fmt: skip
    local = LocalRound(house, welcome)
    for x, steps in ((0.0, 0), (0.25, 0), (0.75, 2), (1.25, 2), (-0.3, -1), (9.0, 5), (-9.0, -5)):
        values = local.contributions(np.array([x]))
        assert values is not None
        assert values.dtype == np.int64
        assert values.tolist() == [steps]


def test_a_slope_that_is_not_finite_at_a_bound_gives_a_step_that_is() -> None:
    x = sv.agents(2, lower=0.0, upper=1.0)
    problem = Problem(
        objectives=[-sv.log(x[0]) - x[0] ** 0.75 + sv.exp(1000 * x[0]), x[1] ** 2],
        constraints=[x[0] ** 2 + x[1] <= 1.5],
    )
    local = alone(AgentGroup.of_problem(problem, [0]), DualAveraging())
    after = local(1, np.zeros(1), np.zeros(1), np.zeros(problem.cloud.sums.count), np.zeros(0))
    assert 0.0 < after.x[0] < 1.0


# --- What an agent knows of its setpoint's error ---


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
        agents=u, objectives=u["a"] * (u.x - 0.9) ** 2, constraints=[sv.total(u.x) <= 3]
    )
    own, known = deviation(problem, [2, 3, 4])
    np.testing.assert_allclose(own, 1.09 * known, rtol=0.01)


def test_a_state_at_its_bound_and_a_price_of_zero_move_nothing() -> None:
    x = sv.agents(2, lower=0, upper=1)
    held = Problem(objectives=[(x[0] - 5) ** 2, (x[1] - 1) ** 2], constraints=[x[0] + x[1] <= 1.5])
    assert deviation(held, [1])[0].tolist() == [0.0]
    slack = Problem(objectives=[s**2 for s in x], constraints=[x[0] + x[1] <= 1.5])
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
