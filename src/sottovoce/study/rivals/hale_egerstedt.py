"""Hale and Egerstedt 2015, the paper: Algorithm 1 with noise on values and gradients.

    x_i(k+1)  = P_Xi[x_i - gamma_k (df_i/dx_i + (dg/dx_i + w_i)' mu + alpha_k x_i)]
    mu(k+1)   = [mu + gamma_k (g(x) + w_g - alpha_k mu)]_+
    sigma     = kappa(delta, epsilon) K b                   (Theorems 2 and 3)

Source: arXiv 1708.08422. Its own noise has each of the n + 1 mechanisms keep the promise by itself;
on the paper's problem the published noise is there too. With the joint plan's sums, it computes
gradients itself, where every constraint is one sum as stated.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sottovoce.algorithm.algorithm import GradientSteps, from_schedule
from sottovoce.errors import InputError, SottovoceError
from sottovoce.paper.reproduction import DELTA, EPSILON, RADIUS, published_noise
from sottovoce.paper.tikhonov import Tikhonov
from sottovoce.privacy.adjacency import Trajectory
from sottovoce.problem.gallery import paper as paper_problem
from sottovoce.simulation.simulate import require_steppable
from sottovoce.study.rivals.rival import (
    JOINT,
    PAPER,
    PUBLISHED,
    RefusedMethod,
    Rival,
    RivalRun,
    RivalTask,
    algorithm_run,
)


def paper_runs(
    task: RivalTask, label: str, algorithm: GradientSteps
) -> Iterator[RivalRun | RefusedMethod]:
    """Yield an algorithm of this kind with the paper's noise, published too, and with ours."""
    runs: list[RivalRun] = []
    if task.problem.fingerprint == paper_problem().fingerprint:
        plan = published_noise(task.certificate)
        if task.rounds > plan.rounds:
            why = f"covers {plan.rounds:,} rounds, not {task.rounds:,}"
            yield RefusedMethod(PUBLISHED, why)
        elif not _is_published(task):
            yield RefusedMethod(PUBLISHED, "keeps (ln 3, 0.05) for trajectories of radius 1 alone")
        else:
            runs.append(algorithm_run(task, PUBLISHED, label, plan, algorithm))
    try:
        runs.append(algorithm_run(task, PAPER, label, task.planner("paper"), algorithm))
    except SottovoceError as error:
        yield RefusedMethod(PAPER, str(error))
    if task.problem.cloud.sums.free:
        runs.append(algorithm_run(task, JOINT, label, task.plan, algorithm))
    try:
        require_steppable(task.problem)
    except InputError as error:
        yield RefusedMethod(label, str(error))
    else:
        yield from runs


def _is_published(task: RivalTask) -> bool:
    """Whether the promise asks for no more than the published noise keeps."""
    hide, (epsilon, delta) = task.plan.hide, task.strictest
    within = isinstance(hide, Trajectory) and float(np.max(hide.radius)) <= RADIUS
    return within and epsilon >= EPSILON and delta >= DELTA


def _runs(task: RivalTask) -> Iterator[RivalRun | RefusedMethod]:
    return paper_runs(task, RIVAL.label, from_schedule(Tikhonov, task.problem.schedule))


RIVAL = Rival(name="paper", label="Tikhonov", cites="HaleEgerstedt2015", runs=_runs)
