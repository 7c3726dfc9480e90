"""What a simulation may be asked for: seeds, threads, traces, starts, checkpoints, executors."""

from __future__ import annotations

import concurrent.futures
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import problems as p
import pytest

import sottovoce as sv
from sottovoce.network.round_arithmetic import SimulatedSampler

pytestmark = pytest.mark.core


@cache
def problem() -> sv.Problem:
    return p.bakeries()


@cache
def noise() -> Any:
    return p.plan(problem())


def run(**how: Any) -> Any:
    right: dict[str, Any] = {"rounds": 60, "runs": 4, "seed": 9, "record": []}
    return sv.simulate(problem(), noise(), **(right | how))


def test_a_run_depends_on_its_seed_and_number_alone(tmp_path: Path) -> None:
    expected = run().x
    checkpoint = {"checkpoint": tmp_path / "run.npz"}
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for how in (
            {"runs": 1}, {"runs": 9}, {"threads": 2}, {"threads": 4, "runs": 9},
            {"executor": pool, "runs": 8}, checkpoint, checkpoint,  # the second reads what it holds
        ):  # fmt: skip
            x = run(**how).x
            np.testing.assert_array_equal(x[:4], expected[: len(x)], err_msg=str(how))
        for x in pool.map(lambda _: run().x, range(3)):  # at the same time, in threads
            np.testing.assert_array_equal(x, expected)
    assert not np.array_equal(run(seed=10).x, expected)


def test_what_is_recorded_are_the_rounds_asked_for() -> None:
    traced = run(record=[0, 1, 7, 60]).trace
    assert traced.k.tolist() == [0, 1, 7, 60]
    assert traced.error_x.shape == (4, 4)
    best = sv.reference_optimum(problem())
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
    traced = sv.simulate(problem(), rounds=2, x0=x0, record=[0]).trace
    best = sv.reference_optimum(problem())
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


@pytest.mark.compiled
def test_noise_averages_out_to_the_limit() -> None:
    """64 runs: the root mean square varies by 9% (and x is one-dimensional): 0.5 to 1.6."""
    result = run(runs=64)
    assert result.error_x is not None
    ratio = math.sqrt((result.error_x**2).mean()) / sv.accuracy_limit(problem(), noise(), 60).x
    assert 0.5 < ratio < 1.6


@pytest.mark.compiled
def test_margins_keep_the_limit_and_no_margin_does_not() -> None:
    """Without a margin half of 64 answers are over: 12 to 52 with probability 1 - 1e-6."""
    free, kept = (
        sv.simulate(problem(), p.plan(problem(), rounds=200, feasible=share), runs=64, record=[])
        for share in (None, 0.95)
    )
    assert 12 <= np.sum(free.x.sum(axis=1) > 30) <= 52
    assert kept.confirmed is not None
    assert kept.confirmed.mean() > 0.9
    assert np.sum((kept.x.sum(axis=1) > 30) & kept.confirmed) <= 11


def test_a_hidden_step_by_a_user_is_an_algorithm_of_the_default_kind() -> None:
    for theta in (0.2, 0.5):
        result = sv.simulate(
            problem(), rounds=200, record=[], algorithm=sv.DualAveraging(theta=theta)
        )
        np.testing.assert_allclose(result.x[0], sv.reference_optimum(problem()).x, atol=1e-4)
        assert result.algorithm.startswith("DualAveraging")


def test_rounds_come_from_the_plan_that_names_them() -> None:
    plan = p.plan(problem(), rounds=40)
    named, stated = sv.simulate(problem(), plan), sv.simulate(problem(), plan, rounds=40)
    assert named.rounds == 40
    np.testing.assert_array_equal(named.x, stated.x)


def test_the_papers_algorithm_runs_the_papers_release() -> None:
    stated, start = sv.gallery.paper(), [1.0, 0, 0, 0]
    plan = p.plan(stated, epsilon=math.log(3), delta=0.05, radius=1.0, method="paper", rounds=200)
    result = sv.simulate(
        stated, plan, runs=2, algorithm=sv.paper.Tikhonov(), mu0=start, record=[], transcript=True
    )
    assert result.x.shape == (2, 7)
    assert result.price.shape == (2, 4)
    assert np.all(np.abs(result.x) <= 10)
    assert result.transcript is not None
    assert np.asarray(result.transcript.gradients).size > 0


def test_a_gradient_that_falls_is_warned_of() -> None:
    x = sv.agents(2, lower=-1, upper=1)
    wrong = sv.Objective(gradient=lambda s: -s)
    stated = sv.Problem(objectives=[wrong, x[1] ** 2], constraints=[x[0] + x[1] <= 1])
    with pytest.warns(UserWarning, match="x1"):
        sv.simulate(stated, rounds=5)


def test_an_audit_finds_no_more_than_was_promised() -> None:
    """100 games: the measured mu is a lower bound that holds with probability 95%."""
    report = sv.audit(problem(), noise(), agent=0, runs=100, rounds=8)
    assert report.passed
    assert report.game_passed
    assert report.played_mu <= report.claimed_mu
    assert report.leaks == ""
    assert report.noise.passed


@pytest.mark.compiled
def test_an_audit_sees_a_sampler_that_adds_less_noise_than_planned() -> None:
    quiet = SimulatedSampler(noise().sigma / 20, seed=3)
    report = sv.audit(problem(), noise(), agent=0, runs=100, rounds=8, sampler=quiet)
    assert not report.passed


@pytest.mark.compiled
@pytest.mark.parametrize(
    "view", ["helper", *(pytest.param(v, marks=pytest.mark.slow) for v in ("cloud", "outside"))]
)
def test_each_half_of_a_split_cloud_is_audited(view: Any) -> None:
    plan = p.plan(problem(), trust=sv.SplitCloud())
    assert sv.audit(problem(), plan, agent=1, runs=100, rounds=5, view=view).passed


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
