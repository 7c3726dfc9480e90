"""A study on two Dask workers against one process with one thread, with the same bits."""

from __future__ import annotations

import os
import tempfile
from time import perf_counter
from typing import Any

import numpy as np

RUNS, ROUNDS, PAIRS = 64, 100_000, 2


def run() -> list[dict[str, str]]:
    """The ensemble in turn here and there; the least time counts for either."""
    import distributed

    import sottovoce as sv

    problem = sv.gallery.paper()
    hide = sv.Trajectory(radius=0.1, rounds=ROUNDS)
    plan = sv.plan(sv.certify(problem, progress=False), epsilon=1.0, delta=1e-3, hide=hide)
    saddle = sv.reference_optimum(problem)
    asked: dict[str, Any] = {"rounds": ROUNDS, "runs": RUNS, "seed": 1, "record": [ROUNDS],
                             "threads": 1, "saddle": (saddle.x, saddle.mu)}  # fmt: skip
    here, there = [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, local_directory=folder
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        sv.simulate(problem, plan, **(asked | {"rounds": 10, "record": [10]}), executor=client)
        for _ in range(PAIRS):
            alone, seconds = _timed(lambda: sv.simulate(problem, plan, **asked, progress=False))
            here.append(seconds)
            found, seconds = _timed(lambda: sv.simulate(problem, plan, **asked, executor=client))
            there.append(seconds)
            assert np.array_equal(alone.x, found.x)
    return [
        {
            "work": f"{RUNS} runs of the paper's problem, {ROUNDS:,} rounds, the whole call",
            "bar": "1.7x faster",
            "measured": f"{min(here) / min(there):.2f}x faster",
            "detail": f"{min(here):.2f} s, on the cluster {min(there):.2f} s; "
            f"{os.cpu_count()} processors",
        }
    ]


def _timed(work: Any) -> tuple[Any, float]:
    began = perf_counter()
    found = work()
    return found, perf_counter() - began


if __name__ == "__main__":
    print(run())
