"""The best fixed step by hindsight: a reference that no user can have.

    lambda(k+1) = d (v - u),   v = y + lambda/d,   u = P_C(v),   d_o = s / (sigma_o^2 sqrt(T))

A proximal dual gradient step under the joint plan, plain averages, no proximal terms of agents;
``s`` is the one of 0.1 to 1,000 with the least error of x over the first 16 runs, measured against
the true optimum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from sottovoce.privacy.limit import accuracy_limit
from sottovoce.problem.groups import Array
from sottovoce.progress import Progress
from sottovoce.study.rivals.rival import (
    JOINT,
    Answers,
    ProximalAscent,
    Rival,
    RivalRun,
    RivalTask,
    root_mean_square,
    simulated,
)

STEPS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0)
_TRIED_RUNS = 16


def fixed_step(task: RivalTask, s: float) -> ProximalAscent:
    """Return the algorithm with one step."""
    unit = task.plan.released_sigma
    unit = np.where(unit > 0.0, unit, 1.0)
    step = s / (np.square(unit) * np.sqrt(task.rounds))
    return ProximalAscent(step=step, most=np.full(unit.size, np.inf))


def _answers(task: RivalTask, progress: Progress) -> Answers:
    limit = accuracy_limit(task.problem, task.plan, task.rounds, saddle=task.saddle)
    curved = ~np.isin(np.arange(task.saddle.x.size), limit.flat)

    def run(s: float, begin: float, end: float, runs: int) -> Answers:
        def part(doing: str, share: float | None = None) -> None:
            progress(doing, begin + (end - begin) * (share or 0.0))

        return simulated(replace(task, runs=runs), task.plan, fixed_step(task, s), part)

    def error(answers: Answers) -> float:
        errors: Array = (answers.x - task.saddle.x)[:, curved]
        return np.inf if answers.failed.any() else root_mean_square(errors)

    tried = min(task.runs, _TRIED_RUNS)
    shares = np.linspace(0.0, 0.6, len(STEPS) + 1).tolist()
    trials = {}
    for s, (begin, end) in zip(STEPS, pairwise(shares), strict=True):
        trials[s] = run(s, begin, end, tried)
        if trials[s].interrupted:
            return trials[s]
    best = min(STEPS, key=lambda s: error(trials[s]))
    return replace(run(best, 0.6, 1.0, task.runs), note=f"s = {best:g}")


def _runs(task: RivalTask) -> Iterator[RivalRun]:
    yield RivalRun(
        noise=JOINT, label=RIVAL.label, rounds=task.rounds, plan=task.plan,
        answers=partial(_answers, task),
    )  # fmt: skip


RIVAL = Rival(
    name="hindsight", label="best step", cites="", side_information="the optimum", runs=_runs
)
