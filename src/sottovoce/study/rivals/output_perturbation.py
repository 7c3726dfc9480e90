"""Output perturbation with a trusted solver: one release of all answers.

    x = P_X(x-hat + w),   w_j ~ N(0, sigma_j^2),   sigma_j = width_j sqrt(N) / mu(epsilon, delta)

One party knows all data, solves the problem exactly and releases the answers, each to its agent.
How far the others' answers move when one agent's data change has no bound that holds for every
convex problem but the diameter of the public box, of N components; mu is exact (Balle and Wang). No
prices are released. Source: the output perturbation of Chaudhuri, Monteleoni and Sarwate (JMLR 12,
2011), with that sensitivity; a bound on how an optimum moves would allow less noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from sottovoce.kernels.run_kernel import normals, stream_seed
from sottovoce.privacy.gaussian import gdp_mu_of
from sottovoce.problem.groups import Array
from sottovoce.progress import Progress
from sottovoce.study.rivals.rival import OWN, Answers, Rival, RivalRun, RivalTask


def diameter_sigma(width: Array, epsilon: float, delta: float) -> Array:
    """Return the noise of every component that hides any move within a box of these widths."""
    moved = width > 0.0
    return np.asarray(width * math.sqrt(int(moved.sum())) / gdp_mu_of(epsilon, delta))


def perturbed(task: RivalTask, sigma: Array, progress: Progress) -> Answers:
    """Release the optimum with noise, clipped to the public box."""
    cloud = task.problem.cloud
    seeds = [stream_seed(task.seed, run) for run in range(task.runs)]
    z = np.stack([normals(seed, 1, sigma.size)[0] for seed in seeds])
    x = np.clip(task.saddle.x + sigma * z, cloud.lower(), cloud.upper())
    unknown = np.full((task.runs, cloud.sums.count), np.nan)
    failed = np.zeros(task.runs)
    return Answers(
        x=x, price=unknown, last_x=x, last_price=unknown, failed=failed, note="one release"
    )


def _runs(task: RivalTask) -> Iterator[RivalRun]:
    cloud = task.problem.cloud
    sigma = diameter_sigma(cloud.upper() - cloud.lower(), *task.strictest)
    answers = partial(perturbed, task, sigma)
    yield RivalRun(noise=OWN, label=OUTPUT.label, plan=None, answers=answers)


OUTPUT = Rival(
    name="output", label="output", cites="ChaudhuriMonteleoniSarwate2011",
    side_information="all data", runs=_runs,
)  # fmt: skip
