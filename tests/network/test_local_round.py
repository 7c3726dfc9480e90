"""Rounds at home: what agents, alone or behind a gateway, compute is what ``simulate`` computes."""

from __future__ import annotations

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
from sottovoce.problem import gallery
from sottovoce.problem.files.save import save_problem
from sottovoce.problem.numeric import Numeric
from sottovoce.problem.problem import Problem


@pytest.mark.parametrize("which", ["coupled", "every"])
def test_the_papers_steps_take_from_the_cloud_what_it_sends_and_work_out_the_rest(
    which: str,
) -> None:
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
        agents=x,
        objectives=[-sv.log(x[0]) - x[0] ** 0.75 + sv.exp(1000 * x[0]), x[1] ** 2],
        constraints=[x[0] ** 2 + x[1] <= 1.5],
    )
    local = alone(AgentGroup.of_problem(problem, [0]), DualAveraging())
    after = local(1, np.zeros(1), np.zeros(1), np.zeros(problem.cloud.sums.count), np.zeros(0))
    assert 0.0 < after.x[0] < 1.0
