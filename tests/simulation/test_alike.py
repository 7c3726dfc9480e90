"""Named agents of one form share one kernel, and one by itself computes the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from formula_values import evaluate
from sottovoce.kernels.fleet import Fleet as States
from sottovoce.simulation.alike import alike
from sottovoce.simulation.formulas import Fleet, named_fleets
from sottovoce.simulation.layout import agents_of, fleet_kernel


def scalars(n: int = 40) -> sv.Problem:
    """Quadratics under dense rows and a row of squares."""
    rng = np.random.default_rng(1)
    x = sv.states(n, lower=-5, upper=5)
    a, c, w = rng.uniform(0.5, 2, n), rng.uniform(-3, 3, n), rng.uniform(0.1, 1, n)
    rows = rng.uniform(-1, 1, (8, n)) @ x <= np.ones(8)
    squares = sum(float(q) * s**2 for q, s in zip(w, x, strict=True))
    f = [float(p) * (s - float(q)) ** 2 for p, q, s in zip(a, c, x, strict=True)]
    return sv.Problem(states=x, objectives=f, constraints=[rows, squares <= 100])


def vectors(n: int = 6, d: int = 6) -> sv.Problem:
    """Rows on one component of every agent, and rows that mix components."""
    rng = np.random.default_rng(2)
    x = sv.states(n, lower=-5, upper=5, dim=d)
    single = np.zeros((12, n * d))
    for r in range(12):
        single[r, np.arange(n) * d + r % d] = rng.uniform(-1, 1, n)
    mixed = rng.uniform(-1, 1, (2, n * d))
    f = [
        sum(float(rng.uniform(0.5, 2)) * (c - float(rng.uniform(-3, 3))) ** 2 for c in s)
        + (s[0] + s[1]) ** 2
        for s in x
    ]
    rows = [single @ x <= np.ones(12), mixed @ x <= np.ones(2)]
    return sv.Problem(states=x, objectives=f, constraints=rows)


def fleets(problem: sv.Problem) -> list[Fleet]:
    return alike(named_fleets(problem, problem.cloud.sums.families))


@pytest.mark.parametrize("made", [scalars, vectors])
def test_agents_that_differ_in_numbers_are_one_fleet(made: Any) -> None:
    problem = made()
    (one,) = fleets(problem)
    assert one.places == tuple(range(problem.agents))
    x = np.random.default_rng(0).uniform(-1, 1, problem.size).reshape(problem.agents, -1)
    for i in (0, problem.agents - 1):
        here = dict(zip(one.group.symbols, x[i], strict=True))
        here |= {s: float(p[i]) for s, p in one.group.parameters.items()}
        own = dict(zip(problem.groups[i].symbols, x[i], strict=True))
        stated = float(evaluate(problem.objectives[i], own))
        assert float(evaluate(one.objective, here)) == pytest.approx(stated, rel=1e-13)


def test_other_forms_and_rows_make_other_fleets() -> None:
    x = sv.states(40, lower=0.1, upper=5)
    f = [(s - 1.5) ** 2 if i % 2 else 2.5 * s + s**4 for i, s in enumerate(x)]
    bent = sum(0.5 * s**2 for s in x[:10])
    problem = sv.Problem(states=x, objectives=f, constraints=[sum(x) <= 30, bent <= 20])
    assert sorted(one.group.count for one in fleets(problem)) == [5, 5, 15, 15]


@pytest.mark.parametrize("made", [scalars, vectors])
def test_an_agent_by_itself_has_the_bits_of_its_fleet(made: Any) -> None:
    problem = made()
    families, rng = problem.cloud.sums.families, np.random.default_rng(3)
    grid = rng.uniform(1e-7, 2e-7, problem.cloud.sums.count)
    (one,) = fleets(problem)
    lower, upper = one.group.lower, one.group.upper
    x = rng.uniform(lower, upper)
    together, alone = States(fleet_kernel(one, lower, upper), x), []
    for i, place in enumerate(one.places):
        own = agents_of(problem.groups, families, place, problem.objectives[place])
        here = slice(i, i + 1)
        alone.append(States(fleet_kernel(own, lower[here], upper[here]), x[here]))
    for k in range(1, 6):
        price = rng.normal(size=grid.size)
        sums = together.round(k, price, theta=0.5, share=0.5, grid=grid)
        found = [agent.round(k, price, theta=0.5, share=0.5, grid=grid) for agent in alone]
        np.testing.assert_array_equal(
            np.concatenate([agent.states for agent in alone]), together.states
        )
        np.testing.assert_array_equal(sum(found), sums)
