"""Objectives that are code, mixed with formulas, in simulation and on the network's machines."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import cvxpy
import numpy as np
import pytest

import sottovoce as sv
from formula_values import evaluate
from sottovoce.errors import InputError, ProblemError
from sottovoce.formula.derive import derivative
from sottovoce.formula.expression import NAN, symbol
from sottovoce.formula.tape import tape
from sottovoce.kernels.fleet_tapes import SeparableForm, local_form, separable_form
from sottovoce.network.protocol.codec import decode_from_cloud, unpack
from sottovoce.network.protocol.messages import Done
from sottovoce.network.round_arithmetic import SimulatedSampler
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem import gallery
from sottovoce.problem.code import Watched
from sottovoce.problem.epigraph import EpigraphForm
from sottovoce.problem.fleets import Fleet, agent_fleet, fleets_of
from sottovoce.problem.problem import Problem
from sottovoce.study.loopback import Loopback


def problem(*, code: bool, gradient: Any = None) -> sv.Problem:
    x = sv.agents(3, lower=-5, upper=5, dim=[1, 2, 1])
    a, (b, c), d = x
    second: Any = (b - 1) ** 2 + (c - 2) ** 2 + b * c / 2
    first: Any = (a - 3) ** 2
    if code:
        slope = gradient or (lambda s: 2 * (s - 3))
        first = sv.Objective(gradient=slope, value=lambda s: float((s[0] - 3) ** 2))
        second = sv.Objective(
            gradient=lambda s: [2 * (s[0] - 1) + s[1] / 2, 2 * (s[1] - 2) + s[0] / 2]
        )
    return sv.Problem(
        agents=x, objectives=[first, second, (d - 2) ** 2], constraints=[a + b + c + d <= 4]
    )


def storages(*, code: bool, empty: bool = False) -> sv.Problem:
    """Two storages over three hours, the first with a need, a ramp and a disc of its own."""
    x = sv.agents(2, lower=0, upper=4, dim=3)
    wear = [1.0, 2.0, 0.5]
    first: Any = sum(w * sv.exp(s / 2) - s for w, s in zip(wear, x[0], strict=True))
    second: Any = sum((s - 1) ** 2 for s in x[1])
    if code:  # nothing is compiled then
        first = sv.Objective(gradient=lambda s: np.array(wear) * np.exp(s / 2) / 2 - 1)
        second = sv.Objective(gradient=lambda s: 2 * (s - 1))
    return sv.Problem(
        agents=x,
        objectives=[first, second],
        constraints=[x[0][t] + x[1][t] <= 2.5 for t in range(3)],
        local=[
            sum(x[0]) == 4,
            x[0][2] - x[0][1] <= 0.4,
            sum(s**2 for s in x[0]) <= (1.0 if empty else 6.5),
            sv.maximum(x[0][0], x[0][1]) <= 1.9,
        ],
    )


def plan(stated: sv.Problem) -> NoisePlan:
    hide = sv.Trajectory(radius=0.1, rounds=40)
    return sv.plan(sv.certify(stated.cloud), epsilon=1.0, delta=1e-3, hide=hide)


def test_code_and_formulas_go_to_the_same_answer() -> None:
    exact = sv.reference_optimum(problem(code=False)).x
    found = sv.simulate(problem(code=True), rounds=300)
    np.testing.assert_allclose(found.x[0], exact, atol=1e-5)
    assert found.saddle_x is None
    assert found.trace.violation[0, -1] < 1e-5
    assert np.isnan(found.trace.objective).all()  # the second agent's code tells no value


def test_code_keeps_local_rows_as_a_formula_does() -> None:
    exact = sv.reference_optimum(storages(code=False)).x
    found = sv.simulate(storages(code=True), rounds=100).x[0]
    np.testing.assert_allclose(found, exact, atol=1e-5)
    assert abs(found[:3].sum() - 4) < 1e-9
    assert found[2] - found[1] < 0.4 + 1e-9  # the ramp holds, and so does the disc
    with pytest.raises(ProblemError, match="the local set of x1 must hold at least one point"):
        storages(code=True, empty=True)
    found_of = {a.name: a.status for a in sv.certify(storages(code=True)).assumptions}
    assert found_of["Slater's condition inside local sets"] == "numerical"


def test_rounds_are_those_of_formulas_up_to_rounding() -> None:
    stated = sv.gallery.paper()
    first = stated.groups[0].symbols[0]
    slope = tape((derivative(stated.objectives[0], first),), (first,))
    code = sv.Problem(
        agents=list(stated.groups),
        objectives=[sv.Objective(gradient=lambda s: slope(s[0])[0]), *stated.objectives[1:]],
        constraints=list(stated.constraints),
    )
    hide = sv.Trajectory(radius=0.1, rounds=40)
    made = sv.plan(sv.certify(stated.cloud), epsilon=1.0, delta=1e-3, hide=hide)
    ours, theirs = (sv.simulate(p, made, rounds=40, seed=3, runs=2) for p in (code, stated))
    np.testing.assert_allclose(ours.x, theirs.x, atol=1e-6)
    np.testing.assert_allclose(ours.price, theirs.price, atol=1e-6)


@pytest.mark.parametrize("stated", [problem(code=True), storages(code=True)])
def test_the_network_computes_the_same_bits(stated: sv.Problem) -> None:
    made = plan(stated)
    sampler = SimulatedSampler(made.sigma[made.sigma > 0], 3)
    loop = Loopback(stated, made, algorithm=sv.DualAveraging(), sampler=sampler, rounds=20, agent=2)
    done = decode_from_cloud(loop.play().frames[-1][1])
    assert isinstance(done, Done)
    here = sv.simulate(stated, made, rounds=20, seed=3)
    assert np.array_equal(unpack(done.price), here.price[0])


def test_a_gradient_that_falls_is_told_its_agent_alone(caplog: pytest.LogCaptureFixture) -> None:
    bad = problem(code=True, gradient=lambda s: 1 - 4 * s)
    with pytest.warns(UserWarning, match="the gradient of x1 is not monotone"):
        sv.simulate(bad, rounds=20)
    made = plan(bad)
    sampler = SimulatedSampler(made.sigma[made.sigma > 0], 3)
    with caplog.at_level(logging.WARNING, logger="sottovoce.network"):
        loop = Loopback(
            bad, made, algorithm=sv.DualAveraging(), sampler=sampler, rounds=20, agent=1
        )
        loop.play()
    assert [r.getMessage() for r in caplog.records] == ["gradient-not-monotone"]
    assert caplog.records[0].fields == {}  # type: ignore[attr-defined]


def test_watching_changes_nothing_and_speaks_once() -> None:
    heard = []
    watched = Watched("x1", lambda x: -x, 2, lambda: heard.append(1))
    for x in ([0.0, 1.0], [1.0, 1.0], [2.0, 0.0]):
        np.testing.assert_array_equal(watched(np.array(x)), -np.array(x))
    assert heard == [1]
    given: list[Any] = [([1.0], "1 of them"), ([np.nan, 0.0], "NaN or infinity")]
    for bad, got in given:

        def broken(x: Any, bad: Any = bad) -> Any:
            return bad

        words = f"the gradient of x1 must return 2 finite numbers, got {got}"
        with pytest.raises(InputError, match=words):
            Watched("x1", broken, 2, lambda: None)(np.zeros(2))


@pytest.mark.parametrize(
    ("dim", "gradient"),
    [
        (1, lambda x: -x),  # stationary where it starts
        (1, lambda x: x + 3 * np.sin(3 * x)),  # falls between its ends
        (2, lambda x: np.array([x[0], -x[1]])),
        (2, lambda x: x[::-1]),
        (3, lambda x: np.array([x[0], x[1] ** 3 - 3 * x[1], x[2]])),
    ],
)
def test_a_gradient_that_falls_anywhere_in_the_box_is_noticed(dim: int, gradient: Any) -> None:
    x = sv.agents(2, lower=-5, upper=5, dim=dim)
    first = [s if dim == 1 else s[0] for s in x]
    stated = sv.Problem(
        agents=x, objectives=[sv.Objective(gradient=gradient), 0], constraints=[sum(first) <= 9]
    )
    group = sv.network.AgentGroup.of_problem(stated, [0])
    watched = group.groups[0].gradient
    assert watched is not None
    stated_group = stated.groups[0]
    watched.probe(stated_group.lower[0], stated_group.upper[0])
    assert not watched.monotone
    with pytest.warns(UserWarning, match="the gradient of x1 is not monotone"):
        sv.simulate(stated, rounds=1)


def test_a_look_around_asks_little_and_forgives_code_that_fails_there() -> None:
    asked: list[Any] = []

    def gradient(x: Any) -> Any:
        asked.append(x)
        return 1 / (x - 5.0) ** 2 if x[0] < 5 else 1 / 0  # grows without bound, and then fails

    watched = Watched("x1", gradient, 1, lambda: None)
    for _ in range(2):
        watched.probe(np.array([0.0]), np.array([10.0]))
    assert watched.monotone
    assert len(asked) == 17


def test_what_needs_a_formula_is_not_checked_of_code() -> None:
    stated = problem(code=True)
    assert stated.objectives[0] is NAN
    found = {a.name: a.status for a in sv.certify(stated).assumptions}
    assert found["convexity of the objective of x1"] == "unchecked"
    assert found["regular and unique saddle point"] == "unchecked"


# --- Private sets in ``simulate``: kept at every average, optimal, and an error where empty ---


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
def test_structure_is_read_off_formulas(name: str, problem: Problem, rows: int | None) -> None:
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
