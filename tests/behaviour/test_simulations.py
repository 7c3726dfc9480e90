"""What a simulation may be asked for: seeds, threads, traces, starts, checkpoints, executors."""

from __future__ import annotations

import concurrent.futures
import math
import threading
from functools import cache
from pathlib import Path
from typing import Any

import doors as d
import numpy as np
import problems as p
import pytest

import sottovoce as sv

pytestmark = pytest.mark.core


@cache
def problem() -> d.Problem:
    return p.bakeries()


@cache
def noise(rounds: int = 60) -> Any:
    hide = sv.Trajectory(radius=2.0, rounds=rounds)
    return d.plan(problem(), epsilon=1.0, delta=0.01, hide=hide)


def run(**how: Any) -> Any:
    return d.simulate(problem(), noise(), **({"rounds": 60, "runs": 4, "seed": 9} | how))


def test_a_seed_repeats_a_run_and_another_does_not() -> None:
    first, again, other = run(), run(), run(seed=10)
    np.testing.assert_array_equal(first.x, again.x)
    assert not np.array_equal(first.x, other.x)


def test_a_run_depends_on_its_seed_and_number_alone() -> None:
    np.testing.assert_array_equal(run(runs=7).x[:4], run(runs=4).x)
    np.testing.assert_array_equal(run(runs=1).x[0], run(runs=4).x[0])


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_change_nothing(threads: int) -> None:
    np.testing.assert_array_equal(run(threads=threads, runs=9).x, run(threads=1, runs=9).x)


def test_simulations_in_threads_of_ones_own_do_not_disturb_each_other() -> None:
    expected, found = run().x, {}

    def work(number: int) -> None:
        found[number] = run().x

    workers = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for x in found.values():
        np.testing.assert_array_equal(x, expected)


def test_an_executor_gives_the_same_result() -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        np.testing.assert_array_equal(run(executor=pool, runs=8).x, run(runs=8).x)


def test_a_checkpoint_holds_what_was_run(tmp_path: Path) -> None:
    first = run(checkpoint=tmp_path / "run.npz")
    again = run(checkpoint=tmp_path / "run.npz")
    np.testing.assert_array_equal(first.x, again.x)
    np.testing.assert_array_equal(first.x, run().x)


def test_what_is_recorded_are_the_rounds_asked_for() -> None:
    traced = run(record=[0, 1, 7, 60]).trace
    assert traced.k.tolist() == [0, 1, 7, 60]
    assert traced.error_x.shape == (4, 4)
    best = d.optimum(problem())
    np.testing.assert_allclose(traced.error_x[:, 0], np.linalg.norm(best.x), rtol=1e-9)
    result = run(record=[60])
    np.testing.assert_allclose(
        result.trace.error_x[:, -1], np.linalg.norm(result.x - best.x, axis=1), rtol=1e-9
    )
    np.testing.assert_allclose(
        result.trace.violation[:, -1], np.maximum(result.x.sum(axis=1) - 30, 0), atol=1e-9
    )


def test_a_start_is_where_a_run_begins() -> None:
    x0 = [3.0, 4.0, 5.0]
    traced = d.simulate(problem(), rounds=2, x0=x0, record=[0]).trace
    best = d.optimum(problem())
    assert traced.error_x[0, 0] == pytest.approx(np.linalg.norm(best.x - x0))
    assert traced.objective[0, 0] == pytest.approx(problem().evaluate(x0).objective)


def test_a_transcript_holds_what_was_released() -> None:
    """240 releases of a sum within [0, 60] with sigma 3.76: none beyond 8 sigma (1e-12)."""
    result = run(transcript=True)
    y = np.asarray(result.transcript.y).reshape(-1)
    assert y.size == 4 * 60
    assert y.min() > -8 * noise().sigma[0]
    assert y.max() < 60 + 8 * noise().sigma[0]
    assert np.unique(y).size == y.size
    multiples = y / noise().outputs[0].grid
    assert np.median(np.abs(multiples - np.round(multiples))) < 0.5


def test_another_saddle_point_is_what_errors_are_measured_against() -> None:
    result = run(saddle=([1.0, 2.0, 3.0], [0.5]))
    np.testing.assert_allclose(
        result.error_x, np.linalg.norm(result.x - [1, 2, 3], axis=1), rtol=1e-9
    )


def test_noise_averages_out_to_the_limit() -> None:
    """64 runs: the root mean square varies by 9% (and x is one-dimensional): 0.5 to 1.6."""
    result = run(runs=64)
    assert result.error_x is not None
    ratio = math.sqrt((result.error_x**2).mean()) / d.accuracy_limit(problem(), noise(), 60).x
    assert 0.5 < ratio < 1.6


@pytest.mark.compiled
def test_margins_keep_the_limit_and_no_margin_does_not() -> None:
    """Without a margin half of 64 answers are over: 12 to 52 with probability 1 - 1e-6."""
    hide = sv.Trajectory(radius=2.0, rounds=200)
    promise = {"epsilon": 1.0, "delta": 0.01, "hide": hide}
    free = d.simulate(problem(), d.plan(problem(), **promise), rounds=200, runs=64)
    assert 12 <= np.sum(free.x.sum(axis=1) > 30) <= 52
    kept = d.simulate(problem(), d.plan(problem(), feasible=0.95, **promise), rounds=200, runs=64)
    assert kept.confirmed.mean() > 0.9
    assert np.sum((kept.x.sum(axis=1) > 30) & kept.confirmed) <= 11


def test_a_hidden_step_by_a_user_is_an_algorithm_of_the_default_kind() -> None:
    for theta in (0.2, 0.5):
        result = d.simulate(problem(), rounds=200, algorithm=sv.DualAveraging(theta=theta))
        np.testing.assert_allclose(result.x[0], d.optimum(problem()).x, atol=1e-4)
        assert result.algorithm.startswith("DualAveraging")


def test_rounds_come_from_the_plan_that_names_them() -> None:
    plan = d.plan(problem(), epsilon=1.0, delta=0.01, hide=sv.Trajectory(radius=2.0, rounds=40))
    named, said = d.simulate(problem(), plan), d.simulate(problem(), plan, rounds=40)
    assert named.rounds == 40
    np.testing.assert_array_equal(named.x, said.x)


def test_the_papers_algorithm_runs_the_papers_release() -> None:
    stated = sv.gallery.paper()
    hide = sv.Trajectory(radius=1.0)
    plan = d.paper_plan(stated, epsilon=math.log(3), delta=0.05, hide=hide)
    result = d.simulate(
        stated, plan, rounds=200, runs=2, algorithm=d.papers_algorithm(), mu0=[1.0, 0, 0, 0],
        transcript=True,
    )  # fmt: skip
    assert result.x.shape == (2, 7)
    assert result.price.shape == (2, 4)
    assert np.all(np.abs(result.x) <= 10)
    assert np.asarray(result.transcript.gradients).size > 0


def test_a_gradient_that_falls_is_warned_of() -> None:
    x = d.agents(2, lower=-1, upper=1)
    wrong = sv.Objective(gradient=lambda s: -s)
    stated = d.state_problem(x, [wrong, x[1] ** 2], [x[0] + x[1] <= 1])
    with pytest.warns(UserWarning, match="x1"):
        d.simulate(stated, rounds=5)


def test_progress_is_reported_to_a_callback() -> None:
    output: list[str] = []
    d.certify(p.readme(), progress=lambda doing, share=None: output.append(doing))
    assert output


def test_an_audit_finds_no_more_than_was_promised() -> None:
    """100 games: the measured mu is a lower bound that holds with probability 95%."""
    found = d.audit(problem(), noise(), agent=0, runs=100, rounds=8)
    assert found.passed
    assert found.game_passed
    assert found.played_mu <= found.claimed_mu
    assert found.leaks == ""
    assert found.noise.passed


def test_an_audit_sees_a_sampler_that_adds_less_noise_than_planned() -> None:
    quiet = d.simulated_sampler(noise().sigma / 20, seed=3)
    found = d.audit(problem(), noise(), agent=0, runs=100, rounds=8, sampler=quiet)
    assert not found.passed


@pytest.mark.parametrize(
    "view", ["helper", *(pytest.param(v, marks=pytest.mark.slow) for v in ("cloud", "outside"))]
)
def test_each_half_of_a_split_cloud_is_audited(view: Any) -> None:
    hide = sv.Trajectory(radius=2.0, rounds=60)
    plan = d.plan(problem(), epsilon=1.0, delta=0.01, hide=hide, trust=sv.SplitCloud())
    assert d.audit(problem(), plan, agent=1, runs=100, rounds=5, view=view).passed


def test_advice_ranks_promises_and_gives_a_line_to_copy() -> None:
    output = sv.advise(
        problem(), hide=["trajectory", "offset"], radius=2.0, epsilons=[1.0], delta=0.01
    )
    text = str(output)
    for word in ("trajectory", "offset", "privacy = {"):
        assert word in text
    measured = sv.advise(
        problem(), hide="trajectory", radius=2.0, epsilons=[1.0], delta=0.01, rounds=200,
        simulate=True, runs=16,
    )  # fmt: skip
    assert "(" in str(measured)
