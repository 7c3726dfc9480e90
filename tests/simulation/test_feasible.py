"""Measured: confirmed answers violate constraints as often as was said, at most."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import stats

import sottovoce as sv
from sottovoce.certificate.certificate import Certificate
from sottovoce.privacy.feasibility import Feasibility
from sottovoce.privacy.margins import bound_averaged_noise, feasibility
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.numeric import Numeric
from sottovoce.simulation.result import Result

CASES = [
    ("paper", "2%", 1000),
    ("dispatch", "2%", 1000),
    ("coupled", "1", 1000),
    ("hs22", "2%", 10_000),
    ("hs43", "2%", 1000),
    ("chargers", "2%", 10_000),
]


@cache
def stated(name: str) -> sv.Problem:
    return sv.gallery.chargers(200, hours=3) if name == "chargers" else sv.gallery.get(name)


@cache
def certified(name: str) -> Certificate:
    return sv.certify(stated(name))


def planned(name: str, radius: str, rounds: int, **more: Any) -> tuple[sv.Problem, NoisePlan]:
    problem = stated(name)
    widths = np.concatenate([(g.upper - g.lower).max(axis=1) for g in problem.groups])
    hide = sv.Trajectory(radius=0.02 * widths if radius == "2%" else 1.0, rounds=rounds)
    settings: dict[str, Any] = {"epsilon": np.log(3), "delta": 0.05, "feasible": 0.95}
    return problem, sv.plan(certified(name), **(settings | {"hide": hide} | more))


def over(problem: sv.Problem, found: Feasibility, result: Result) -> Any:
    """Which answers are over a constraint as stated, or out of an equality's band, run by row."""
    rows, sums = Numeric(problem, problem.constraints), problem.cloud.sums
    g = np.array([rows.constraints(x) for x in result.x])
    band = np.zeros(problem.rows)
    first = 0
    for family, origin in zip(problem.constraints, sums.origins, strict=True):
        if family.equality:
            band[first : first + family.rows] = found.band[origin.first :][: family.rows]
        first += family.rows
    equal = np.concatenate([np.full(f.rows, f.equality) for f in problem.constraints])
    return np.where(equal, np.abs(g), g) > band


def broken(hits: int, runs: int, promised: float) -> bool:
    """Whether so many hits among independent runs contradict a promise; false alarms 1e-4."""
    return bool(stats.binomtest(hits, runs, promised, alternative="greater").pvalue < 1e-4)


def test_confirmed_answers_of_the_papers_problem_keep_its_constraints() -> None:
    problem, made = planned("paper", "2%", 300)
    result = sv.simulate(problem, made, rounds=300, runs=300, record=[300])
    assert made.feasible is not None
    assert result.confirmed is not None
    violated = over(problem, made.feasible, result).any(axis=1)
    assert not broken(int((violated & result.confirmed).sum()), 300, 0.05)
    assert result.confirmed.mean() > 0.9
    released = np.asarray(result.released)
    assert np.array_equal(made.feasible.confirmed(released), result.confirmed)
    plain = sv.simulate(problem, replace(made, feasible=None), rounds=300, runs=300, record=[300])
    assert over(problem, made.feasible, plain).any(axis=1).mean() > 0.5  # what the margin is for
    assert plain.confirmed is None
    assert str(result.summary()).count("confirmed") == 1
    assert f"confirmed={result.confirmed.sum()}" in repr(result)


def test_few_rounds_end_in_fallbacks_rather_than_in_violations() -> None:
    problem, made = planned("paper", "2%", 20, hide=sv.Trajectory(radius=2e-4, rounds=20))
    result = sv.simulate(problem, made, rounds=20, runs=200, record=[20])
    assert made.feasible is not None
    assert result.confirmed is not None
    violated = over(problem, made.feasible, result).any(axis=1)
    assert violated.mean() > 0.3  # noise of next to nothing, and prices that are still searched
    assert not broken(int((violated & result.confirmed).sum()), 200, 0.05)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "radius", "rounds"), CASES)
def test_the_stated_probability_is_kept_and_the_cost_is_the_predicted_one(
    name: str, radius: str, rounds: int
) -> None:
    problem, made = planned(name, radius, rounds)
    runs = 400 if name == "chargers" else 10_000
    found = made.feasible
    assert found is not None
    hits, confirmed, costs, numeric = 0, 0, list[float](), Numeric(problem)
    for first in range(0, runs, 1000):
        some = min(1000, runs - first)
        result = sv.simulate(problem, made, rounds=rounds, runs=some, seed=first, record=[rounds])
        fine = np.asarray(result.confirmed)
        hits += int((over(problem, found, result).any(axis=1) & fine).sum())
        confirmed += int(fine.sum())
        costs += [numeric.objective(x) for x in result.x[fine]]
    assert not broken(hits, runs, 0.05)
    assert confirmed > 0.9 * runs
    if found.cost is not None and found.cost.more > 0.0:
        assert float(np.mean(costs)) - found.cost.optimum == pytest.approx(
            found.cost.more, rel=0.25
        )


@pytest.mark.slow
def test_half_the_margin_breaks_the_promise() -> None:
    """One active row, whose probability is therefore not shared with others."""
    problem, made = planned("dispatch", "2%", 1000)
    found = made.feasible
    assert found is not None
    noise = bound_averaged_noise(certified("dispatch"), made.released_sigma / 2, 1000)
    half = feasibility(problem.cloud.sums, noise, 0.95)
    less = replace(made, feasible=half)
    result = sv.simulate(problem, less, rounds=1000, runs=4000, record=[1000])
    fine = np.asarray(result.confirmed)
    assert broken(int((over(problem, half, result).any(axis=1) & fine).sum()), 4000, 0.05)
