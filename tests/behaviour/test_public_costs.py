"""Public costs of sums: stated, saved, certified, answered, and what they refuse."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import Refusal, check, listed

import sottovoce
from sottovoce.privacy.gaussian import gdp_mu_of
from sottovoce.problem.numeric import Numeric
from sottovoce.study.prediction import linear_response, predict

sv: Any = sottovoce
RNG = np.random.default_rng(0)
BASE = np.array([60.0, 50.0, 40.0, 40.0, 50.0, 70.0])
EV = sv.agents(50, dim=6, lower=0, upper=3, name="ev", parameters={"need": RNG.uniform(4, 9, 50)})
U = sv.agents(20, lower=0, upper=3, name="u")
X = sv.agents(["a", "b", "c"], lower=-5, upper=5)
SQUARES = sv.total(EV.x**2)
LOAD, WEIGHTS = sv.total(EV.x), RNG.uniform(0, 1, (2, 50))
TARIFF, ROWS = RNG.uniform(0.1, 0.3, 6), RNG.normal(size=(5, 3))
BENT = np.eye(6) + np.cov(RNG.normal(size=(6, 20)))
FLEET = {"objectives": 0.05 * sv.sum_squares(EV.x), "local": [EV.x.sum() == EV["need"]]}
BOTH = FLEET | {"objectives": [0.05 * sv.sum_squares(EV.x), (U.x - 1) ** 2]}
NAMED = {"objectives": [(s - 2) ** 2 for s in X]}

COSTS: dict[str, dict[str, Any]] = {
    "valley": FLEET | {"cost": 0.01 * sv.sum_squares(BASE + LOAD)},
    "peak beside squares": FLEET
    | {
        "constraints": [sv.total(EV.x) <= 70],
        "cost": 0.01 * sv.sum_squares(BASE + LOAD) + 5 * sv.maximum(*(BASE + sv.total(EV.x))),
    },
    "two fleets": BOTH
    | {
        "constraints": [LOAD <= 70],
        "cost": 0.01 * sv.sum_squares(sv.total(EV.x[0], weights=WEIGHTS))
        + 0.1 * (sv.total(EV.x[0], weights=WEIGHTS)[1] + sv.total(U.x)[0]) ** 2
        + abs(LOAD[0] + LOAD[2] - 3)
        + abs(2 * LOAD[1]),
    },
    "norm": BOTH
    | {"cost": sv.norm([LOAD[0] + sv.total(U.x)[0] - 4, LOAD[1] - 3]) / 10
       + sum((sv.total(U.x) - 3) ** 2) / 50},
    "fleet and named": {
        "agents": [EV, X],
        "objectives": [FLEET["objectives"], *NAMED["objectives"]],
        "local": FLEET["local"],
        "cost": sv.huber(LOAD[0] + X[0] + 2 * X[1] - 3) + sv.exp((X[0] + X[2]) / 5),
    },
    "named beside a region": NAMED
    | {
        "constraints": [X[0] + X[1] <= 0.5, X[0] ** 2 + X[1] * X[0] + X[1] ** 2 <= 3],
        "cost": (X[0] + X[1] - 1) ** 2 + 3 * sv.pos(X[0] + 2 * X[2]) + sv.exp(X[0] - X[1] + X[2]),
    },
    "quadratic form": FLEET | {"cost": 0.01 * ((BASE + LOAD) @ BENT @ (BASE + LOAD))},
    "tariff and peak": FLEET | {"cost": TARIFF @ LOAD + 5 * sv.maximum(*(BASE + LOAD))},
    "squares above a level": FLEET | {"cost": 2 * sv.pos(SQUARES[0] - 40)},
    "largest of squares": {
        "objectives": sv.sum_squares(EV.x - EV["need"] / 6),
        "constraints": [sv.total(EV.x[1] ** 2) <= 70],
        "cost": sv.maximum(SQUARES[0], SQUARES[1] - 5, 30) + 0.001 * SQUARES[2] ** 2,
    },
    "named squares": NAMED | {"cost": 3 * sv.pos(X[0] ** 2 + X[1] ** 2 + X[2] ** 2 - 3)},
    "logarithms below a level": FLEET
    | {"cost": 5 * sv.pos(40 - sv.total(sv.log(1 + EV.x[0]))[0])},
    "weighted norm and maximum": NAMED
    | {
        "cost": 0.3 * sv.norm(2 * (X[0] + X[1]) - 1, 3 * (X[1] - X[2]))
        + sv.maximum(2 * (X[0] + X[1]), 3 * (X[1] + X[2]) - 1, 0)
        + abs(X[0] + X[2]) + sv.huber(X[0] - X[1] + X[2]),
    },
    "more sums than agents": NAMED | {"cost": sv.sum_squares(ROWS @ X - 1)},
}  # fmt: skip


def stated(name: str) -> Any:
    return sv.Problem(**COSTS[name])


@pytest.mark.parametrize("name", COSTS)
def test_rounds_without_noise_reach_the_reference_optimum(name: str) -> None:
    problem = stated(name)
    best = sv.reference_optimum(problem)
    answer = sv.simulate(problem, rounds=300)
    assert best.residual <= 1e-9
    assert problem.evaluate(best.x).objective == pytest.approx(best.objective, rel=1e-9)
    assert problem.evaluate(answer.x[0]).objective == pytest.approx(best.objective, rel=1e-6)
    assert answer.trace.objective[0, -1] == pytest.approx(best.objective, rel=1e-6)
    np.testing.assert_allclose(answer.x[0], best.x, atol=1e-6)


@pytest.mark.parametrize("name", COSTS)
def test_the_reference_optimum_beats_every_point_near_it(name: str) -> None:
    problem = stated(name)
    best = sv.reference_optimum(problem)
    rng, local = np.random.default_rng(1), "local" in COSTS[name]
    checked = 0
    for _ in range(200):
        step = 10.0 ** rng.uniform(-3, 0) * rng.normal(size=problem.size)
        if local:  # needs stay met: energy moves between two hours of one car
            car, here, there = rng.integers(50), *rng.choice(6, 2, replace=False)
            energy, step = step[0], step * 0.0
            step[6 * car + here], step[6 * car + there] = energy, -energy
        near = best.x + step
        inside = np.all((near >= problem.cloud.lower()) & (near <= problem.cloud.upper()))
        point = problem.evaluate(near)
        if inside and np.all(point.violation <= 1e-10):  # active rows hold to rounding
            checked += 1
            assert point.objective >= best.objective - 1e-9 * (1 + abs(best.objective))
    assert checked >= 5


@pytest.mark.parametrize("name", COSTS)
def test_files_keep_a_cost(name: str, tmp_path: Path) -> None:
    problem = stated(name)
    problem.save(tmp_path / "problem")
    again = sv.Problem.load(tmp_path / "problem")
    assert again.fingerprint == problem.fingerprint
    assert again.cloud.fingerprint == problem.cloud.fingerprint
    again.save(tmp_path / "again")
    assert (tmp_path / "again/problem.toml").read_text() == (
        tmp_path / "problem/problem.toml"
    ).read_text()
    public = sv.Problem.load(tmp_path / "problem", agents=[])
    assert public.cloud.fingerprint == problem.cloud.fingerprint


@pytest.mark.parametrize(
    "name", ["valley", "peak beside squares", "two fleets", "squares above a level"]
)
def test_noise_keeps_the_answer_near_the_limit_and_the_cost_near_the_prediction(name: str) -> None:
    problem = stated(name)
    plan = sv.plan(problem, epsilon=1, delta=1e-5, hide=sv.Offset(radius=0.1, rounds=500))
    best, runs = sv.reference_optimum(problem), sv.simulate(problem, plan, runs=24, seed=3)
    error = np.sqrt(np.mean(np.sum((runs.x - best.x) ** 2, axis=1)))
    assert 0.7 < error / sv.accuracy_limit(problem, plan).x < 1.4
    more = np.array([problem.evaluate(x).objective for x in runs.x]) - best.objective
    expected = predict(linear_response(problem, best), plan, 500, feasible=0.95).objective
    assert expected is not None
    if "constraints" not in COSTS[name]:
        assert 0.6 < np.sqrt(np.mean(more**2)) / abs(best.objective) / expected < 1.6


def test_the_limit_of_a_cost_alone_is_that_of_states_inside_their_boxes() -> None:
    problem = sv.Problem(**NAMED, cost=(X[0] + X[1]) ** 2)  # lambda = 2 (4 - lambda + w)
    plan = sv.plan(problem, epsilon=1, delta=1e-5, hide=sv.Offset(radius=0.1, rounds=100))
    expected = math.sqrt(2) / 3 * plan.sigma[0] / 10
    assert sv.accuracy_limit(problem, plan).x == pytest.approx(expected, rel=1e-6)


def test_a_sum_that_a_constraint_bounds_already_needs_no_second_noise() -> None:
    with_cost, without = (
        stated("peak beside squares"),
        sv.Problem(**FLEET, constraints=[LOAD <= 70]),
    )
    how: dict[str, Any] = {"epsilon": 1, "delta": 1e-5, "hide": sv.Offset(radius=0.1, rounds=50)}
    assert sv.plan(with_cost, **how).sigma == pytest.approx(sv.plan(without, **how).sigma)
    assert with_cost.cloud.sums.labels == without.cloud.sums.labels


@pytest.mark.parametrize(
    ("name", "sums"),
    [
        ("quadratic form", 6),
        ("tariff and peak", 6),
        ("more sums than agents", 3),
        ("largest of squares", 3),
        ("named squares", 1),
        ("weighted norm and maximum", 3),
    ],
)
def test_a_cost_releases_no_sum_that_follows_from_others(name: str, sums: int) -> None:
    problem = stated(name)
    assert problem.cloud.sums.count == sums
    assert sv.certify(problem).holds


def test_a_quadratic_form_of_sums_is_the_one_that_is_stated() -> None:
    x, load = np.random.default_rng(2).uniform(0, 3, (50, 6)), BASE
    load = load + x.sum(axis=0)
    value = stated("quadratic form").evaluate(x.ravel()).objective
    assert value == pytest.approx(0.05 * np.sum(x**2) + 0.01 * load @ BENT @ load, rel=1e-12)
    x = np.array([1.0, -2.0, 0.5])
    value = stated("more sums than agents").evaluate(x).objective
    assert value == pytest.approx(np.sum((x - 2) ** 2) + np.sum((ROWS @ x - 1) ** 2), rel=1e-12)


def test_a_cost_alone_releases_what_the_same_constraint_would() -> None:
    how: dict[str, Any] = {"epsilon": 1, "delta": 1e-5, "hide": sv.Everything(rounds=50)}
    cost, row = stated("valley"), sv.Problem(**FLEET, constraints=[LOAD <= 140])
    assert sv.plan(cost, **how).sigma == pytest.approx(sv.plan(row, **how).sigma)


@pytest.mark.parametrize(
    ("name", "hours"), [("squares above a level", [0]), ("largest of squares", [1, 0, 2])]
)
def test_no_two_behaviours_of_an_agent_differ_by_more_than_the_promise_bounds(
    name: str, hours: list[int]
) -> None:
    plan = sv.plan(stated(name), epsilon=1, delta=1e-5, hide=sv.Offset(radius=0.5, rounds=50))
    rng, (box,) = np.random.default_rng(3), plan.domain
    x = rng.uniform(box.lower[0], box.upper[0], (20_000, 6))
    step = rng.normal(size=x.shape)
    step *= 0.5 / np.linalg.norm(step, axis=1, keepdims=True)
    step[: len(x) // 2] = 0.5 * np.eye(6)[hours[0]]
    x[: len(x) // 2, hours] = box.upper[0, hours] - 0.5 * (np.arange(len(hours)) == 0)
    other = np.clip(x + step, box.lower[0], box.upper[0])
    moved = (x[:, hours] ** 2 - other[:, hours] ** 2) / plan.sigma
    reached = math.sqrt(50) * np.linalg.norm(moved, axis=1).max()
    assert 0.5 * gdp_mu_of(1.0, 1e-5) < reached <= gdp_mu_of(1.0, 1e-5)


@pytest.mark.parametrize("name", ["named beside a region", "named squares"])
def test_the_audit_plays_a_cost_on_the_deployed_bytes(name: str) -> None:
    problem = stated(name)
    plan = sv.plan(problem, epsilon=1, delta=1e-3, hide=sv.Offset(radius=0.1, rounds=20))
    report = sv.audit(problem, plan, agent="a", runs=100, rounds=20)
    assert report.passed


@pytest.mark.parametrize("network", ["valley", "peak", "soft"])
def test_chargers_that_pay_for_their_load_lower_its_peak(network: str) -> None:
    free = sv.gallery.smart_charging(40)
    headroom = Numeric(free)
    paying = sv.gallery.smart_charging(40, network=network)
    with_cost, without = (
        headroom.constraints(sv.reference_optimum(problem).x) for problem in (paying, free)
    )
    assert with_cost.max() <= without.max() + 1e-6
    assert with_cost.sum() == pytest.approx(without.sum(), abs=1e-6)


def cost(formula: Any, **more: Any) -> Any:
    return sv.Problem(**(FLEET | {"cost": formula} | more))


def planned(formula: Any) -> Any:
    """A plan of the problem with this cost."""
    return sv.plan(cost(formula), epsilon=1, delta=1e-5, hide=sv.Everything(rounds=9))


REFUSED = [
    Refusal("not convex", lambda: planned(-LOAD[0] ** 2), sv.errors.ConvexityError,
            ("public cost", "convex")),
    Refusal("a state of every agent", lambda: cost(EV.x[0] ** 2), sv.errors.ProblemError,
            ("cost", "sums", "sv.total")),
    Refusal("one agent alone", lambda: sv.Problem(**NAMED, cost=(X[0] + X[1]) ** 2 + X[2] ** 2),
            sv.errors.ProblemError, ("cost", "c", "objective")),
    Refusal("a total of curved terms", lambda: cost(SQUARES[0] + LOAD[0] ** 2),
            sv.errors.ProblemError, ("cost", "affine", "objective")),
    Refusal("a cost that falls in a total of curved terms", lambda: planned((SQUARES[0] - 90) ** 2),
            sv.errors.ConvexityError, ("public cost", "rises", "affine")),
    Refusal("a total of terms that bend both ways", lambda: planned(
            sv.pos(sv.total(EV.x[0] ** 2 - EV.x[1] ** 2)[0])),
            sv.errors.ConvexityError, ("public cost", "convex")),
    Refusal("concave of totals", lambda: planned(sv.log(1 + SQUARES[0])),
            sv.errors.ConvexityError, ("public cost", "convex")),
    Refusal("a comparison", lambda: cost(LOAD[0] <= 3), sv.errors.ProblemError,
            ("cost", "formula")),
    Refusal("several rows", lambda: cost(LOAD), sv.errors.ProblemError, ("cost", "one", "total")),
    Refusal("nothing at all", lambda: sv.Problem(**FLEET), sv.errors.ProblemError,
            ("constraint", "public cost")),
    Refusal("gradient steps", lambda: sv.simulate(stated("valley"), rounds=5,
            algorithm=sv.paper.Tikhonov()), sv.errors.InputError, ("gradient steps", "default")),
    Refusal("the paper's plan", lambda: sv.paper.plan(stated("named beside a region"), epsilon=1,
            delta=1e-3, hide=sv.Trajectory(radius=1, rounds=9)), sv.errors.PrivacyError,
            ("public cost", "sv.plan")),
]  # fmt: skip


@pytest.mark.parametrize("row", listed(REFUSED))
def test_a_cost_is_refused_with_the_remedy(row: Refusal) -> None:
    check(row)


def test_a_file_says_where_a_cost_is_wrong(tmp_path: Path) -> None:
    stated("named beside a region").save(tmp_path)
    file = tmp_path / "problem.toml"
    for old, new, words in (
        ("exp(sum1)", "exp(sum9)", ("sum9", "problem.toml, line")),
        ('name = "sum2"', 'name = "sum1"', ("sum1", "twice", "rename")),
        ("[[cost]]\nexpression", "[[cost]]\nformula", ("formula", "expression")),
    ):
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))
        with pytest.raises(sv.errors.ProblemError) as refused:
            sv.Problem.load(tmp_path)
        file.write_text(text)
        assert all(word in str(refused.value) for word in words), str(refused.value)


def test_a_total_of_parameters_alone_is_refused() -> None:
    ev = sv.agents(3, lower=0, upper=1, name="ev", parameters={"a": [1.0, 2.0, 3.0]})
    with pytest.raises(sv.SottovoceError, match=r"got a total of parameters over ev: write its"):
        sv.Problem(objectives=ev.x**2, cost=sv.pos(sv.total([ev["a"]])[0] - 3))


def test_a_total_over_a_fleet_adds_up_with_curved_terms_of_named_agents() -> None:
    ev = sv.agents(4, lower=0, upper=3, name="ev")
    x = sv.agents(["p", "q"], lower=-1, upper=2)
    problem = sv.Problem(
        objectives=[(ev.x - 1) ** 2, *((s - 1) ** 2 for s in x)],
        cost=sv.pos(sv.total(ev.x**2)[0] + x[0] ** 2 - 3),
    )
    assert sv.certify(problem).holds
    # By symmetry ev = p = z with 2 (z - 1) + 2 m z = 0 and 5 z^2 = 3 for a multiplier m below 1.
    best = sv.reference_optimum(problem).x
    assert best == pytest.approx([*[0.6**0.5] * 5, 1.0], abs=1e-5)
