from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from network_harness import plan_for

from sottovoce.algorithm.averaging import Averaging
from sottovoce.algorithm.tikhonov import Tikhonov
from sottovoce.errors import InputError, ProblemError
from sottovoce.network.home import Household
from sottovoce.network.home_step import HomeStep
from sottovoce.network.outputs import Outputs
from sottovoce.network.setup import setup_of
from sottovoce.problem import gallery
from sottovoce.problem.agents import fleet
from sottovoce.problem.constraints import total
from sottovoce.problem.folder import read_agent, read_public
from sottovoce.problem.numeric import Numeric
from sottovoce.problem.problem import Problem
from sottovoce.problem.save import save_problem


def weighted_fleet() -> Problem:
    ev = fleet(6, lower=0, upper=2, dim=2, name="ev", parameters={"a": np.arange(1.0, 7.0)})
    x, a = ev.state, ev.parameter("a")
    weights = np.abs(np.random.default_rng(0).normal(size=(3, 6)))
    return Problem(
        states=ev,
        objectives=a * (x[0] - 1) ** 2 + (x[1] - a) ** 2,
        constraints={"net": total(ev, [x[0] + a * x[1], x[0] ** 2], weights=weights) <= np.ones(6)},
    )


@pytest.mark.parametrize("name", ["paper", "coupled", "fleet"])
def test_cloud_and_homes_together_compute_the_lagrangian(name: str) -> None:
    problem = weighted_fleet() if name == "fleet" else getattr(gallery, name)()
    plan = plan_for(problem)
    rng = np.random.default_rng(1)
    x = rng.uniform(problem.cloud.lower(), problem.cloud.upper())
    mu = rng.uniform(0, 2, problem.rows)
    numeric = Numeric(problem)
    g, entries = Outputs(plan)(x)
    np.testing.assert_allclose(g, numeric.constraints(x), rtol=1e-13, atol=1e-12)
    algorithm = Tikhonov(gamma_bar=0.01)
    setup = setup_of(plan, algorithm, "", b"", 1)
    want = x - 0.01 * (numeric.lagrangian_gradient(x, mu) + algorithm.alpha_bar * x)
    want = np.clip(want, setup.lower, setup.upper)
    for agents in ([1], [2, 4], list(range(1, problem.agents + 1))):
        own = np.concatenate([np.arange(setup.offsets[a - 1], setup.offsets[a]) for a in agents])
        mine = np.flatnonzero(np.isin(plan.gradient_columns, own))
        step = HomeStep(
            Household.of_problem(problem, agents),
            algorithm,
            rounds=1,
            lower=setup.lower[own],
            upper=setup.upper[own],
            rows=plan.gradient_rows[mine].tolist(),
            columns=np.searchsorted(own, plan.gradient_columns[mine]).tolist(),
            slopes=plan.gradient_slope[mine].tolist(),
        )
        got = step(1, x[own], mu, entries[mine])
        np.testing.assert_allclose(got, want[own], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("algorithm", [Tikhonov(), Averaging()])
def test_a_gradient_that_nobody_sends_is_an_error_not_a_guess(algorithm: Any) -> None:
    problem = gallery.coupled()
    with pytest.raises(InputError, match="couples"):
        HomeStep(
            Household.of_problem(problem, [1]),
            algorithm,
            rounds=1,
            lower=-np.ones(2),
            upper=np.ones(2),
            rows=[],
            columns=[],
            slopes=[],
        )


def test_the_cloud_reads_its_problem_without_any_agents_file(tmp_path: Path) -> None:
    for problem in (gallery.paper(), gallery.coupled()):
        folder = tmp_path / str(problem.agents)
        save_problem(problem, folder)
        agents = {p: p.read_bytes() for p in (folder / "agents").iterdir()}
        for path in agents:
            path.unlink()
        assert read_public(folder).cloud.fingerprint == problem.cloud.fingerprint


def test_an_agent_reads_its_own_file_and_no_other(tmp_path: Path) -> None:
    problem = gallery.paper()
    save_problem(problem, tmp_path)
    for number in (1, 2, 4, 5, 6, 7):
        (tmp_path / "agents" / f"{number}.toml").unlink()
    cloud, number, view = read_agent(tmp_path / "agents" / "3.toml")
    assert (cloud.fingerprint, number) == (problem.cloud.fingerprint, 3)
    assert view.objective == problem.agent(3).objective
    (tmp_path / "agents" / "1.toml").write_text('agent = "x1"\nobjective = "x2**2"\n')
    with pytest.raises(ProblemError):
        read_agent(tmp_path / "agents" / "1.toml")
    with pytest.raises(ProblemError, match="must exist"):
        read_agent(tmp_path / "agents" / "2.toml")


def alone(house: Household, algorithm: Any) -> HomeStep:
    return HomeStep(
        house,
        algorithm,
        rounds=10,
        lower=np.full(house.start.size, -10.0),
        upper=np.full(house.start.size, 10.0),
        rows=[],
        columns=[],
        slopes=[],
    )


def test_an_objective_may_be_any_code_with_a_gradient() -> None:
    cloud = gallery.paper().cloud
    house = Household.of_gradient(cloud, 4, lambda x: 2 * x + 1, start=[3.0])
    mu = np.array([0.0, 0.0, 0.5, 0.0])
    got = alone(house, Tikhonov(gamma_bar=0.1))(1, np.array([3.0]), mu, np.zeros(0))
    assert got == pytest.approx([3.0 - 0.1 * (7.0 + 0.5 + 0.2 * 3.0)], rel=1e-15)
    # An agent that thinks goes all the way: 2 x + 1 + mu_3 = 0.
    got = alone(house, Averaging())(1, np.array([3.0]), mu, np.zeros(0))
    assert got == pytest.approx([-0.75], abs=1e-12)
    bad = Household.of_gradient(cloud, 4, lambda x: np.array([np.nan]))
    assert np.isnan(alone(bad, Averaging())(1, np.array([3.0]), mu, np.zeros(0)))
    with pytest.raises(InputError, match="finite"):
        Household.of_gradient(cloud, 4, lambda x: x, start=[np.inf])


@pytest.mark.parametrize("algorithm", [Tikhonov(gamma_bar=0.01), Averaging()])
def test_an_agent_of_a_fleet_steps_alone_as_it_does_among_others(algorithm: Any) -> None:
    problem = weighted_fleet()
    cloud = problem.cloud
    mu = np.random.default_rng(1).uniform(0, 2, problem.rows)
    x = np.random.default_rng(2).uniform(0, 2, 12)
    setup = setup_of(plan_for(problem), algorithm, "", b"", 1)

    def step(house: Household, own: slice) -> Any:
        made = HomeStep(
            house, algorithm, rounds=10, lower=setup.lower[own], upper=setup.upper[own], rows=[],
            columns=[], slopes=[],
        )  # fmt: skip
        return made(3, x[own], mu, np.zeros(0))

    together = step(Household.of_problem(problem, [1, 2, 3, 4, 5, 6]), slice(0, 12))
    a = 5.0
    house = Household.of_gradient(
        cloud, 5, lambda v: np.array([2 * a * (v[0] - 1), 2 * (v[1] - a)]), start=x[8:10]
    )
    np.testing.assert_allclose(step(house, slice(8, 10)), together[8:10], rtol=0, atol=1e-12)
    assert np.any(together != x)


def test_the_answer_is_an_average_where_the_algorithm_says_so() -> None:
    house = Household.of_problem(gallery.paper(), [4])
    start, x = np.array([1.0]), np.array([2.0])
    assert alone(house, Tikhonov()).averaged(5, start, x) == x
    share = Averaging().schedule(5, 10)[0, -1]
    assert 0 < share < 1
    assert alone(house, Averaging()).averaged(5, start, x) == start + share * (x - start)
