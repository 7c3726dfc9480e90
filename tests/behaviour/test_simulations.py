"""What a simulation may be asked for: seeds, threads, traces, starts, checkpoints, executors."""

from __future__ import annotations

import concurrent.futures
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import problems as p
import pytest

import sottovoce as sv

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


def test_another_saddle_point_is_what_errors_are_measured_against() -> None:
    result = run(saddle=([1.0, 2.0, 3.0], [0.5]))
    np.testing.assert_allclose(
        result.error_x, np.linalg.norm(result.x - [1, 2, 3], axis=1), rtol=1e-9
    )


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
