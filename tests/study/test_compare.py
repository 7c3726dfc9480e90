"""Algorithms and plans against the limit: every figure is what the runs themselves say."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.algorithm.algorithm import Algorithm
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.certificate.certificate import certify
from sottovoce.errors import InputError
from sottovoce.paper.tikhonov import Tikhonov
from sottovoce.privacy.adjacency import Trajectory
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.plan import plan
from sottovoce.problem import gallery
from sottovoce.problem.constraints import total
from sottovoce.problem.problem import Problem
from sottovoce.simulation.simulate import simulate
from sottovoce.study.compare import CompareRow, MethodComparison, compare, curve_rounds
from sottovoce.study.rivals import rival as module
from sottovoce.study.rivals.rival import JOINT, PAPER, PUBLISHED, root_mean_square

TIKHONOV: dict[str, Algorithm] = {"Tikhonov": Tikhonov(gamma_bar=0.05)}
ALGORITHMS: dict[str, Algorithm] = {"DualAveraging": DualAveraging(), **TIKHONOV}
X_HAT, MU_HAT = (0.5, 0.5, -0.5), (1.0, 0.0)


def line() -> Problem:
    """Two agents held by an affine constraint, and a third, held by none, that is flat at -0.5."""
    x = sv.agents(3, lower=-2, upper=2)
    return Problem(
        objectives=[(x[0] - 1) ** 2, (x[1] - 1) ** 2, (x[2] + 0.5) ** 4],
        constraints=[x[0] + x[1] <= 1, x[1] + x[2] <= 3],
    )


def compared(problem: Problem, rounds: Sequence[int], **change: Any) -> MethodComparison:
    asked: dict[str, Any] = {"epsilon": 1.0, "delta": 0.05, "hide": "trajectory", "radius": 0.1}
    settings: dict[str, Any] = {"runs": 12, "seed": 3, "algorithms": ALGORITHMS}
    return compare(problem, rounds=rounds, **(asked | settings | change))


def planned(rounds: int) -> NoisePlan:
    hide = Trajectory(radius=0.1, rounds=rounds)
    return plan(certify(line()), epsilon=1.0, delta=0.05, hide=hide)


@pytest.fixture(scope="module")
def study() -> MethodComparison:
    return compared(line(), [400, 25, 100, 25])


def idle(problem: Problem, made: NoisePlan, *, rounds: int, runs: int, **settings: Any) -> Any:
    """A solve that takes no step, for what does not depend on any."""
    x, price = (np.zeros((runs, size)) for size in (problem.size, problem.rows))
    return SimpleNamespace(
        x=x, price=price, last_x=x, last_price=price, failed=np.zeros(runs), rounds=rounds,
        runs=runs, interrupted=False,
    )  # fmt: skip


def the(found: MethodComparison, plan: str, algorithm: str, rounds: int) -> CompareRow:
    (row,) = (r for r in found.rows if (r.plan, r.algorithm, r.rounds) == (plan, algorithm, rounds))
    return row


def test_every_plan_meets_the_algorithms_for_what_it_releases(study: MethodComparison) -> None:
    # Prices need sums; gradient steps take values and gradients, or sums that are the constraints.
    pairs = [(PAPER, "Tikhonov"), (JOINT, "DualAveraging"), (JOINT, "Tikhonov")]
    assert [(row.plan, row.rounds, row.algorithm) for row in study.rows] == [
        (name, count, algorithm)
        for plans in (pairs[:1], pairs[1:])
        for count in (25, 100, 400)
        for name, algorithm in plans
    ]
    assert study.refusals == ()
    assert not study.interrupted


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_errors_are_those_of_the_runs_themselves(study: MethodComparison, algorithm: str) -> None:
    problem = line()
    made = planned(400)
    result = simulate(problem, made, rounds=100, runs=12, seed=3, algorithm=ALGORITHMS[algorithm])

    def expected(values: Any, true: Sequence[float], keep: Sequence[int]) -> float:
        squares = [sum((run[i] - true[i]) ** 2 for i in keep) for run in values]
        return math.sqrt(sum(squares) / 12)

    row = the(study, JOINT, algorithm, 100)
    assert study.flat == (2,)
    assert row.x == pytest.approx(expected(result.x, X_HAT, (0, 1)), rel=1e-6)
    assert row.flat_x == pytest.approx(expected(result.x, X_HAT, (2,)), rel=1e-6, abs=1e-9)
    assert row.last_x == pytest.approx(expected(result.last_x, X_HAT, (0, 1)), rel=1e-6)
    assert row.price == pytest.approx(expected(result.price, MU_HAT, (0, 1)), rel=1e-6)
    assert row.last_price == pytest.approx(expected(result.last_price, MU_HAT, (0, 1)), rel=1e-6)
    assert (row.last_price == row.price) == (algorithm == "Tikhonov")
    assessed = result.assessment()
    assert row.cost == pytest.approx(float(np.mean(assessed.objective)) - 0.5, rel=1e-6)
    over = np.maximum(assessed.rows, 0.0) / [1.0, 3.0]  # of their constants
    assert row.violation == pytest.approx(float(np.mean(over.max(axis=1))), rel=1e-6)


def test_limits_and_efficiencies_are_those_worked_out_on_paper(study: MethodComparison) -> None:
    # H = diag(2, 2) and G = (1, 1): noise w on g moves mu by w and x1, x2 by w/2 each.
    sigma = planned(400).sigma[0]
    for row in study.rows:
        if row.plan == JOINT:
            assert row.limit_x == pytest.approx(sigma / math.sqrt(2 * row.rounds))
            assert row.limit_price == pytest.approx(sigma / math.sqrt(row.rounds))
        assert row.efficiency_x == row.x / row.limit_x
        assert row.efficiency_price == row.price / row.limit_price


def test_the_papers_method_takes_more_noise_for_the_same_promise(study: MethodComparison) -> None:
    for count in (25, 100, 400):
        held, joint = (the(study, name, "Tikhonov", count) for name in (PAPER, JOINT))
        assert held.limit_x > 1.2 * joint.limit_x


def test_more_rounds_help_and_the_default_is_near_the_limit(study: MethodComparison) -> None:
    rows = [the(study, JOINT, "DualAveraging", count) for count in (25, 100, 400)]
    assert rows[0].x > rows[1].x > rows[2].x
    assert rows[0].limit_x == pytest.approx(2 * rows[1].limit_x) == 4 * rows[2].limit_x
    # chi with 12 degrees of freedom exceeds 1.8 of its mean once in 100,000 times.
    assert rows[2].efficiency_x < 1.8
    assert rows[2].price < rows[2].last_price


def test_a_run_is_the_same_whatever_else_is_compared(study: MethodComparison) -> None:
    alone = compared(line(), [100, 400], algorithms=TIKHONOV)
    assert the(alone, JOINT, "Tikhonov", 100) == the(study, JOINT, "Tikhonov", 100)
    other = compared(line(), [100, 400], algorithms=TIKHONOV, seed=4)
    assert the(other, JOINT, "Tikhonov", 100).x != the(study, JOINT, "Tikhonov", 100).x


# --- plans -------------------------------------------------------------------------------------


def test_hiding_every_round_takes_a_plan_for_every_number_of_rounds() -> None:
    found = compared(line(), [16, 64], hide="offset", radius=0.01, algorithms=TIKHONOV)
    few, many = (the(found, JOINT, "Tikhonov", count) for count in (16, 64))
    assert many.limit_x == pytest.approx(few.limit_x, rel=1e-6)
    everything = compared(line(), [16], hide="everything", radius=None, algorithms=TIKHONOV)
    assert the(everything, JOINT, "Tikhonov", 16).limit_x > 100 * few.limit_x


def crowd() -> Problem:
    ev = sv.agents(3, lower=0, upper=1, name="ev")
    return Problem(objectives=(ev.x - 1) ** 2, constraints=[total(ev.x) <= 2.0])


def stiff() -> Problem:
    x = sv.agents(2, lower=-1, upper=1)
    return Problem(
        objectives=[(x[0] - 1) ** 2, (x[1] - 1) ** 2], constraints=[(x[0] + 10 * x[1]) ** 2 <= 50]
    )


def local_rows() -> Problem:
    x = sv.agents(2, lower=0, upper=5, dim=2)
    return Problem(
        objectives=[sum((s - 3) ** 2) for s in x],
        constraints=[x[0][0] + x[1][0] <= 4],
        local=[x[0][0] + x[0][1] <= 3],
    )


@pytest.mark.parametrize(
    ("make", "refused", "why"),
    [
        pytest.param(crowd, [PAPER], "the paper's plan knows no fleets", id="fleet"),
        pytest.param(stiff, [PAPER], "forgets that other agents move it", id="coupled"),
        pytest.param(local_rows, ["Tikhonov"], "the local row x1[1] + x1[2] <= 3", id="local rows"),
        pytest.param(gallery.dispatch, [PAPER, "Tikhonov"], "know no equalities", id="equality"),
    ],
)
def test_a_plan_or_an_algorithm_that_is_refused_is_a_line_that_says_why(
    make: Callable[[], Problem], refused: list[str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "simulate", idle)
    found = compared(make(), [5], runs=2)
    assert not any({row.plan, row.algorithm} & {*refused} for row in found.rows)
    assert JOINT in {row.plan for row in found.rows}
    assert [refusal.plan for refusal in found.refusals] == refused
    assert why in found.refusals[-1].why
    assert f"{refused[-1]}, refused: " in str(found)
    assert why in str(found)


def test_the_published_noise_is_compared_for_the_papers_problem_and_promise_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "simulate", idle)
    problem = gallery.paper()
    promise = {"epsilon": math.log(3), "radius": 1.0, "algorithms": TIKHONOV}
    found = compared(problem, [5], runs=2, **promise)
    assert [row.plan for row in found.rows] == [PUBLISHED, PAPER, JOINT]
    assert found.rows[0].limit_x == pytest.approx(1.4329 * math.sqrt(100_000), rel=1e-4)
    assert found.rows[0].limit_price == pytest.approx(2.8188 * math.sqrt(100_000), rel=1e-4)
    assert found.flat == (4,)
    known = gallery.known("paper")
    assert known is not None
    assert found.rows[0].x == pytest.approx(np.linalg.norm(np.delete(known.x, 4)))
    assert found.rows[0].flat_x == pytest.approx(3.0, rel=1e-3)
    long = compared(problem, [2_000_000], **promise)
    assert [refusal.why for refusal in long.refusals] == ["covers 1,000,000 rounds, not 2,000,000"]
    moved = Problem(
        agents=sv.agents(7, lower=-10, upper=11),
        objectives=problem.objectives,
        constraints=[c.formulas[0] <= 0 for c in problem.constraints],
    )
    assert PUBLISHED not in {row.plan for row in compared(moved, [5], **promise).rows}
    for more in ({"epsilon": 1.0}, {"delta": 0.04}, {"radius": 1.1}):
        stricter = compared(problem, [5], **(promise | more))
        assert PUBLISHED not in {row.plan for row in stricter.rows}
        assert "(ln 3, 0.05)" in stricter.refusals[0].why


# --- what goes wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [[], [0], [5, -1], [2.5]])
def test_wrong_rounds_and_wrong_privacy_are_errors_and_not_refusals(rounds: list[Any]) -> None:
    with pytest.raises(InputError, match=r"rounds must be (an )?integers? of at least 1"):
        compared(line(), rounds)
    with pytest.raises(InputError, match="radius must be positive"):
        compared(line(), [5], radius=-1.0)


def test_failed_runs_are_counted_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(*args: Any, **settings: Any) -> Any:
        result = simulate(*args, **settings)
        x, price, failed = np.array(result.x), np.array(result.price), np.array(result.failed)
        x[-1], price[-1], failed[-1] = np.nan, np.inf, 7
        return replace(result, x=x, price=price, failed=failed)

    before = compared(line(), [20], runs=10, algorithms=TIKHONOV)
    nine = compared(line(), [20], runs=9, algorithms=TIKHONOV)
    monkeypatch.setattr(module, "simulate", spoil)
    after = compared(line(), [20], runs=10, algorithms=TIKHONOV)
    assert [row.failed for row in before.rows] == [0, 0]
    assert [row.failed for row in after.rows] == [1, 1]
    assert [row.x for row in after.rows] == [row.x for row in nine.rows]
    assert math.isnan(root_mean_square(np.zeros((0, 3))))


@pytest.mark.parametrize("raised", [False, True], ids=["result", "exception"])
def test_an_interruption_keeps_what_is_done(monkeypatch: pytest.MonkeyPatch, raised: bool) -> None:
    results: list[Any] = []

    def stop(*args: Any, **settings: Any) -> Any:
        results.append(simulate(*args, **settings))
        if raised and len(results) == 3:
            raise KeyboardInterrupt
        return replace(results[-1], interrupted=len(results) == 3)

    monkeypatch.setattr(module, "simulate", stop)
    begun: dict[str, float | None] = {}

    def hear(doing: str, share: float | None = None) -> None:
        if doing.endswith(" rounds"):
            begun.setdefault(doing, share)

    found = compared(line(), [10, 30], algorithms=TIKHONOV, progress=hear)
    assert found.interrupted
    assert len(found.rows) == 2
    assert next(iter(begun)) == f"{PAPER}, Tikhonov, 10 rounds"
    assert list(begun.values()) == pytest.approx([0.0, 1 / 8, 1 / 2])


# --- reports -----------------------------------------------------------------------------------


def test_curves_run_through_what_was_asked_for() -> None:
    assert curve_rounds([25, 250, 2000, 10000]) == [25, 53, 112, 250, 500, 1057, 2000, 4729, 10000]
    assert curve_rounds([7]) == [7]
    assert curve_rounds([500_000])[0] == 25


def test_data_is_complete_and_plain(study: MethodComparison) -> None:
    data = json.loads(json.dumps(study.data([25, 400]), allow_nan=False))
    assert set(data) == {"runs", "seed", "flat", "interrupted", "rows", "grid", "refusals"}
    assert data["flat"] == [3]
    assert {row["rounds"] for row in data["rows"]} == {25, 400}
    assert {row["rounds"] for row in data["grid"]} == {100}
    assert set(data["rows"][0]) == {
        "plan", "algorithm", "rounds", "runs", "failed", "x", "price", "flat_x", "last_x",
        "last_price", "limit_x", "limit_price", "efficiency_x", "efficiency_price", "cost",
        "violation",
    }  # fmt: skip
    first = data["rows"][0]
    assert first["efficiency_price"] == pytest.approx(first["price"] / first["limit_price"])


def test_without_a_limit_there_is_no_efficiency(study: MethodComparison) -> None:
    row = replace(study.rows[0], limit_x=0.0, limit_price=0.0)
    assert math.isnan(row.efficiency_x)
    found = replace(study, rows=(row,))
    data: Any = found.data([25])
    assert data["rows"][0]["efficiency_price"] is None
    assert " - " in str(found)


def test_the_table_shows_errors_limits_and_what_is_left_out(study: MethodComparison) -> None:
    text = str(study.table([400]))
    row = the(study, JOINT, "DualAveraging", 400)
    assert f"{row.efficiency_x:.2f}" in text
    assert f"{row.limit_price:#.3g}" in text
    assert "flat component 3" in text


def test_an_executor_gives_the_same_rows(study: MethodComparison) -> None:
    with ThreadPoolExecutor(2) as executor:
        there = compared(line(), [25, 100, 400], algorithms=TIKHONOV, executor=executor)
    here = [row for row in study.rows if row.algorithm == "Tikhonov"]
    assert list(there.rows) == here


def test_the_figure_is_drawn(study: MethodComparison, tmp_path: Path) -> None:
    study.plot(tmp_path / "compare.png")
    assert (tmp_path / "compare.png").stat().st_size > 20_000
    with pytest.raises(InputError, match="cannot draw to"):
        study.plot(tmp_path / "none" / "compare.png")
