"""Work in other places gives the same bits, in any order, and ends in an orderly way."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import pytest

from sottovoce.certificate.certificate import certify
from sottovoce.errors import InputError, SottovoceError
from sottovoce.paper.reproduction import published_noise
from sottovoce.paper.tikhonov import Tikhonov
from sottovoce.privacy.adjacency import Trajectory
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.plan import plan
from sottovoce.problem import gallery
from sottovoce.problem.problem import Problem
from sottovoce.progress import silent
from sottovoce.simulation.result import Result, Trace
from sottovoce.simulation.scatter import scatter
from sottovoce.simulation.simulate import simulate

ROUNDS, RUNS = 40, 20


class Backwards(Executor):
    """Runs the last task first, and only so many; the others wait for ever."""

    def __init__(self, most: int = 10**9) -> None:
        self.most = most
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.timer = threading.Timer(0.05, self.go)

    def submit(self, fn: Any, /, *args: Any, **settings: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, partial(fn, *args, **settings)))
        if len(self.waiting) == 1:
            self.timer.start()
        return future

    def go(self) -> None:
        for future, call in reversed(self.waiting[: self.most]):
            future.set_result(call())


@pytest.fixture(scope="module")
def problem() -> Problem:
    return gallery.paper()


@pytest.fixture(scope="module")
def noise(problem: Problem) -> NoisePlan:
    hide = Trajectory(radius=0.1, rounds=1000)
    return plan(certify(problem.cloud), epsilon=1.0, delta=1e-3, hide=hide)


@pytest.fixture(scope="module")
def here(problem: Problem, noise: NoisePlan) -> Result:
    return ensemble(problem, noise)


def ensemble(problem: Problem, noise: NoisePlan, **settings: Any) -> Result:
    asked = {"rounds": ROUNDS, "runs": RUNS, "seed": 3, "transcript": True} | settings
    return simulate(problem, noise, **asked)


def assert_same(one: Result, other: Result, runs: int = RUNS) -> None:
    for name in ("x", "price", "last_x", "last_price", "failed"):
        np.testing.assert_array_equal(getattr(one, name)[:runs], getattr(other, name), strict=True)
    for field in fields(Trace):
        mine, theirs = getattr(one.trace, field.name), getattr(other.trace, field.name)
        np.testing.assert_array_equal(mine if field.name == "k" else mine[:runs], theirs)
    assert one.transcript is not None
    assert other.transcript is not None
    np.testing.assert_array_equal(one.transcript.y[:runs], other.transcript.y)


@pytest.mark.parametrize("make", [ThreadPoolExecutor, Backwards, ProcessPoolExecutor])
def test_an_ensemble_elsewhere_has_the_bits_of_one_process(
    make: Callable[..., Executor], problem: Problem, noise: NoisePlan, here: Result
) -> None:
    with make(2) if make is not Backwards else make() as executor:
        assert_same(here, ensemble(problem, noise, executor=executor))


def test_the_papers_algorithm_elsewhere_has_the_bits_of_one_process(problem: Problem) -> None:
    published = published_noise(certify(problem))
    run = partial(simulate, problem, published, rounds=50, runs=40, seed=5, algorithm=Tikhonov())
    with ThreadPoolExecutor(2) as executor:
        there = run(executor=executor)  # one part in lanes, one run by run
    np.testing.assert_array_equal(there.x, run().x)


def test_ctrl_c_keeps_the_runs_that_are_complete(
    problem: Problem, noise: NoisePlan, here: Result
) -> None:
    executor = Backwards(most=3)  # the first three of ten parts, of two runs each
    heard: list[float] = []

    def hear(doing: str, share: float | None = None) -> None:
        heard.append(share or 0.0)
        if share == pytest.approx(0.3):
            os.kill(os.getpid(), signal.SIGINT)

    found = ensemble(problem, noise, executor=executor, progress=hear)
    assert found.interrupted
    assert found.runs == 6
    assert_same(here, found, runs=6)
    assert max(heard) == pytest.approx(0.3)
    assert all(future.cancelled() for future, _ in executor.waiting[3:])


def test_ctrl_c_before_anything_is_done_is_an_interrupt(problem: Problem, noise: NoisePlan) -> None:
    def hear(doing: str, share: float | None = None) -> None:
        if "elsewhere" in doing:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        ensemble(problem, noise, executor=Backwards(most=0), progress=hear)


def die(shared: Any, task: int) -> None:
    os._exit(1)


def fail(shared: Any, task: int) -> int:
    if task == 1:
        raise ValueError(f"task {task}")
    time.sleep(0.05)
    return task


@pytest.mark.parametrize(
    ("make", "work", "shared", "error", "words"),
    [
        pytest.param(
            ProcessPoolExecutor, die, None, SottovoceError, "start it anew", id="workers die"
        ),
        pytest.param(ThreadPoolExecutor, fail, None, ValueError, "task 1", id="a task fails"),
        pytest.param(ThreadPoolExecutor, fail, lambda: None, InputError, "picklable", id="lambda"),
    ],
)
def test_what_goes_wrong_elsewhere_is_one_clear_error_here(
    make: Callable[..., Executor], work: Any, shared: Any, error: type[Exception], words: str
) -> None:
    with make(1) as executor, pytest.raises(error, match=words):
        scatter(executor, work, shared, [0, 1, 2, 3], report=silent, activity="failing")


@pytest.mark.parametrize("name", ["paper", "coupled", "chargers"])
def test_a_problem_is_the_same_after_a_journey(name: str) -> None:
    problem: Problem = getattr(gallery, name)()
    there: Problem = pickle.loads(pickle.dumps(problem))  # noqa: S301
    assert there.fingerprint == problem.fingerprint
    assert there.cloud.fingerprint == problem.cloud.fingerprint
    assert dict(there.privacy) == dict(problem.privacy)
    for group, before in zip(there.groups, problem.groups, strict=True):
        assert not group.lower.flags.writeable
        if group.count > 1:
            assert group.lower.strides[0] == before.lower.strides[0]  # one row travels as one
    with pytest.raises(TypeError):
        there.privacy["epsilon"] = 1  # type: ignore[index]
