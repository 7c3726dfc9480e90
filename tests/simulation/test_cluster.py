"""A real cluster of two worker processes: the same bits, also when one of them is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.cli.options import on_cluster
from sottovoce.errors import InputError
from sottovoce.simulation.scatter import executor_of, scatter

distributed = pytest.importorskip("distributed")


@contextmanager
def two_workers(folder: Path) -> Iterator[Any]:
    """A scheduler in this process and two workers of one thread each in processes of their own."""
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address=None,
        local_directory=str(folder),
    ) as here:
        yield here


def pids(client: Any) -> set[int]:
    return set(client.run(os.getpid).values())


def slow_square(shared: Path, task: int) -> tuple[int, int]:
    """Take long enough to be killed half-way; leave a trace of who began."""
    (shared / f"{task}-{os.getpid()}").touch()
    time.sleep(0.3)
    return task, task**2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_a_killed_worker_changes_nothing(tmp_path: Path) -> None:
    problem = sv.gallery.paper()
    hide = sv.Trajectory(radius=0.1, rounds=40_000)
    plan = sv.plan(sv.certify(problem), epsilon=1.0, delta=1e-3, hide=hide)
    asked: dict[str, Any] = {"rounds": 40_000, "runs": 32, "seed": 3, "record": [40_000]}
    here = sv.simulate(problem, plan, **asked)
    with two_workers(tmp_path / "dask") as workers, distributed.Client(workers) as client:
        there = sv.simulate(problem, plan, **asked, executor=client)
        np.testing.assert_array_equal(there.x, here.x)
        np.testing.assert_array_equal(there.price, here.price)
        victim, killed = min(pids(client)), list[int]()

        def hear(doing: str, share: float | None = None) -> None:
            if "elsewhere" in doing and (share or 0.0) > 0.1 and not killed:
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)

        again = sv.simulate(problem, plan, **asked, executor=client, progress=hear)
        assert killed
        np.testing.assert_array_equal(again.x, here.x)
        np.testing.assert_array_equal(again.trace.error_x, here.trace.error_x)
        assert not again.interrupted


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_tasks_that_a_killed_worker_had_begun_are_run_again(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    with two_workers(tmp_path / "dask") as workers, distributed.Client(workers) as client:
        victim = min(pids(client))

        def hear(doing: str, share: float | None = None) -> None:
            if list(begun.glob(f"*-{victim}")):
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)

        answers, _ = scatter(
            executor_of(client), slow_square, begun, range(8), report=hear, activity="it"
        )
    assert answers == [(task, task**2) for task in range(8)]
    assert len(list(begun.iterdir())) > 8


def test_a_cluster_that_is_not_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(InputError, match="must be the address of a Dask scheduler"),
        on_cluster("x"),
    ):
        pass
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"install sottovoce\[cluster\]"), on_cluster("tcp://h:1"):
        pass


@pytest.mark.slow
def test_a_command_runs_on_a_cluster(tmp_path: Path) -> None:
    paper = Path(__file__).parents[2] / "examples" / "paper"
    with two_workers(tmp_path / "dask") as workers:
        done = subprocess.run(
            [sys.executable, "-c", "from sottovoce.cli import main; main()", "simulate", paper,
             "--rounds", "50", "--runs", "4", "--json", "--cluster", workers.scheduler_address],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"runs": 4' in done.stdout
    assert "certifying and planning" in done.stderr
