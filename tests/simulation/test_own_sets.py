"""Private sets in ``simulate``: kept at every average, optimal, and an error where empty."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cvxpy
import numpy as np
import pytest

import sottovoce as sv
from formula_values import evaluate
from sottovoce.formula.derive import derivative
from sottovoce.formula.expression import symbol
from sottovoce.kernels.fleet_tapes import SeparableForm, local_form, separable_form
from sottovoce.problem import gallery
from sottovoce.problem.epigraph import EpigraphForm
from sottovoce.problem.fleets import Fleet, agent_fleet, fleets_of
from sottovoce.problem.problem import Problem

cp: Any = cvxpy  # it has no types


def fleet_of(problem: Problem) -> Fleet:
    families = problem.cloud.sums.families
    return fleets_of(problem.groups, families, problem.objectives, problem.local)[0]


def first_agent(problem: Problem) -> Fleet:
    families, local = problem.cloud.sums.families, problem.local[0]
    return agent_fleet(problem.groups, families, 0, problem.objectives[0], local)


def stated(objective: Any, *local: object) -> Problem:
    """One agent with three components, and another so that a constraint couples somebody."""
    states = sv.agents(["x", "y"], lower=-1.0, upper=1.0, dim=[3, 1])
    return Problem(
        agents=states,
        objectives=[objective, states[1] ** 2],
        constraints=[states[0][0] + states[1] <= 0.5],
        local=list(local),
    )


x = [symbol(f"x[{c}]") for c in (1, 2, 3)]


def shapes() -> Iterator[tuple[str, Problem, int | None]]:
    squares = sum((a - 1) ** 2 for a in x)
    yield "box", stated(squares), 0
    yield "sum", stated(squares, sum(x) == 1), 1
    yield "interval", stated(squares, sum(x) <= 1, -sum(x) <= 0.5), 1
    yield "scaled interval", stated(squares, 0.9 * sum(x) <= 1, 0.9 * sum(x) >= -0.5), 1
    yield "two rows", stated(squares, sum(x) <= 1, x[0] - x[2] <= 0.1), 2
    yield "square of a sum", stated(squares + 3 * (sum(x) - 1) ** 2), 1
    yield "written out", stated((x[0] + 1) * (x[0] - 2) + x[1] ** 2 + 0.1 * x[2] ** 2), 0
    yield "three rows", stated(squares, *(x[i] + x[i - 1] <= 0.2 for i in range(3))), None
    yield "quartic", stated(sum(a**4 for a in x), sum(x) == 1), None
    yield "ball", stated(squares, sum(a**2 for a in x) <= 1), None
    yield "kink", stated(squares + abs(x[0] - x[1])), None


@pytest.mark.parametrize(("name", "problem", "rows"), list(shapes()), ids=[s[0] for s in shapes()])
def test_the_structure_is_read_off_the_formulas(
    name: str, problem: Problem, rows: int | None
) -> None:
    shape = local_form(first_agent(problem))
    if rows is None:
        assert isinstance(shape, EpigraphForm)
    else:
        assert isinstance(shape, SeparableForm)
        assert len(shape.rows) == rows


def test_mixed_products_are_not_separable() -> None:
    form = (x[0] + x[1]) ** 2 + (x[1] - x[2]) ** 2 + (x[0] + x[2]) ** 2
    own = first_agent(stated(form))
    assert separable_form(own) is None
    assert local_form(own) is None  # steps in its box


def test_chargers_meet_their_needs_in_their_windows_at_least_cost() -> None:
    problem = gallery.smart_charging(40, hours=9)
    found = sv.simulate(problem, rounds=300, record=[300], threads=1)
    fleet, own = fleet_of(problem), problem.local[0]
    need = next(v for s, v in fleet.group.parameters.items() if s.name == "need")
    x = found.x[0].reshape(40, 9)
    np.testing.assert_allclose(x.sum(axis=1), need, rtol=1e-13)
    assert np.all((x >= own.lower) & (x <= own.upper))
    y = cp.Variable((40, 9))
    f, here = problem.objectives[0], dict.fromkeys(fleet.group.symbols, 0.0)
    price = [float(evaluate(derivative(f, s), here)) for s in fleet.group.symbols]
    cost = cp.sum(y @ np.array(price)) + 0.002 * cp.sum_squares(y)
    kept = [y >= 0, y <= own.upper, cp.sum(y, axis=1) == need]
    kept += [cp.sum(y, axis=0) <= -problem.constraints[0].offset]
    best = cp.Problem(cp.Minimize(cost), kept).solve(solver="CLARABEL")
    assert found.trace.objective[0, -1] == pytest.approx(best, rel=1e-6)
    assert found.trace.residual[0, -1] < 1e-3
    assert found.trace.violation[0, -1] < 1e-6
