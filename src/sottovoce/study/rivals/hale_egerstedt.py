"""Hale and Egerstedt, the paper and its variant: Algorithm 1 with noise on values and gradients.

    x_i(k+1)  = P_Xi[x_i - gamma_k (df_i/dx_i + (dg/dx_i + w_i)' mu + alpha_k x_i)]
    mu(k+1)   = [mu + gamma_k (g(x) + w_g - alpha_k mu)]_+

``paper``, 2015: ``sigma = kappa(delta, epsilon) K b`` (Theorems 2 and 3), arXiv 1708.08422. Its own
noise has each of the n + 1 mechanisms keep the promise by itself; on the paper's problem the
published noise is there too. With the joint plan's sums, it computes gradients itself, where every
constraint is one sum as stated.

``laplace``, 2018: pure epsilon by Laplace noise, IEEE TCNS 5(4), arXiv 1507.04371, as we read it.

    w ~ Laplace(Delta_1 / epsilon),   Delta_1 = max_l R_l sqrt(T) sum_o sup |d output_o / dx_l|

It is scaled by the l1 sensitivity of all rounds of a mechanism, each of the n + 1 mechanisms by
itself. The promise that all methods get is over an l2 ball of sequences, of radius R_l, in which l1
distances are sqrt(T) times as large; adjacency in l1 would hide less.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
from scipy.special import log_ndtr

from sottovoce.algorithm.algorithm import GradientSteps, from_schedule
from sottovoce.errors import InputError, SottovoceError
from sottovoce.formula.derive import gradient
from sottovoce.formula.expression import ZERO
from sottovoce.formula.tape import tape
from sottovoce.kernels.run_kernel import normals, stream_seed
from sottovoce.paper.paper_plan import bound_sequence_radii, paper_noise
from sottovoce.paper.reproduction import DELTA, EPSILON, RADIUS, published_noise
from sottovoce.paper.tikhonov import Tikhonov, multiplier_step, state_step
from sottovoce.privacy.adjacency import Trajectory
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.plan import PrivacyTarget
from sottovoce.problem.constraints import named_rows
from sottovoce.problem.gallery import paper as paper_problem
from sottovoce.problem.groups import Array
from sottovoce.progress import Progress
from sottovoce.simulation.runs import named_objective
from sottovoce.simulation.simulate import require_steppable
from sottovoce.study.rivals.rival import (
    JOINT,
    OWN,
    PAPER,
    PUBLISHED,
    Answers,
    RefusedMethod,
    Rival,
    RivalRun,
    RivalTask,
    algorithm_run,
    with_sigma,
)

_AHEAD = 256  # rounds of noise that are drawn together


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


def _tikhonov_runs(task: RivalTask) -> Iterator[RivalRun | RefusedMethod]:
    return paper_runs(task, TIKHONOV.label, from_schedule(Tikhonov, task.problem.schedule))


def laplace(z: Array) -> Array:
    """Return standard Laplace numbers, of variance 2, by the quantiles of standard normals."""
    return np.asarray(-np.sign(z) * (math.log(2.0) + log_ndtr(-np.abs(z))))


def laplace_scales(S: Array, reach: Array, owner: Array, rounds: int, epsilon: float) -> Array:
    """Return ``Delta_1 / epsilon`` of every output; outputs of one owner are one mechanism."""
    scales = np.zeros(len(S))
    for mechanism in np.unique(owner):
        together = owner == mechanism
        moved = S[together].sum(axis=0) * reach * math.sqrt(rounds)
        scales[together] = float(moved.max()) / epsilon
    return scales


def _laplace_runs(task: RivalTask) -> Iterator[RivalRun]:
    require_steppable(task.problem)
    plan, cloud = task.planner("paper", allow_undernoised=True), task.problem.cloud
    requested = PrivacyTarget.per_agent(cloud, plan.epsilon, plan.delta)
    reach = bound_sequence_radii(plan.hide, cloud.groups)
    S, entries, _ = paper_noise(cloud, requested, reach, None)
    owner = np.array([-1] * cloud.rows + [entry.agent for entry in entries])
    scales = laplace_scales(S.dense(), reach, owner, task.rounds, task.strictest[0])
    plan = with_sigma(plan, math.sqrt(2.0) * scales)
    yield RivalRun(
        noise=OWN, label=LAPLACE.label, plan=plan, multipliers=True,
        answers=partial(laplace_answers, task, plan),
    )  # fmt: skip


def laplace_answers(task: RivalTask, plan: NoisePlan, progress: Progress) -> Answers:
    """Run Algorithm 1 with Laplace noise of the plan's standard deviations, all runs at once."""
    problem, algorithm = task.problem, from_schedule(Tikhonov, task.problem.schedule)
    states = [s for group in problem.groups for s in group.symbols]
    rows = list(named_rows(problem.constraints))
    n, m, runs = len(states), len(rows), task.runs
    slopes = gradient(named_objective(problem), states)
    entries = {(j, i): dg[s] for j, dg in enumerate(gradient(g, states) for g in rows)
               for i, s in enumerate(states) if s in dg}  # fmt: skip
    values_of = tape([*(slopes.get(s, ZERO) for s in states), *rows, *entries.values()], states)
    scale = plan.released_sigma / math.sqrt(2.0)
    released = [(o.row, o.column) for o in plan.outputs if o.column is not None]
    offset = np.concatenate([np.zeros(0), *(c.offset for c in problem.constraints)])[:, None]
    lower, upper = problem.cloud.lower()[:, None], problem.cloud.upper()[:, None]
    start = np.concatenate([part.ravel() for part in problem.start])
    x, mu = np.clip(np.tile(start[:, None], runs), lower, upper), np.zeros((m, runs))
    failed, seeds = np.zeros(runs), [stream_seed(task.seed, run) for run in range(runs)]
    for k in range(1, task.rounds + 1):
        if (k - 1) % _AHEAD == 0:
            progress("running", (k - 1) / task.rounds)
            drawn = [normals(seed, _AHEAD, scale.size, done=k - 1) for seed in seeds]
            noise = scale[:, None] * laplace(np.stack(drawn, axis=-1))
        w, (gamma, alpha) = noise[(k - 1) % _AHEAD], algorithm.schedule(k)[0]
        values = values_of.arrays(list(x), (runs,))
        slope, g = np.stack(values[:n]), np.stack(values[n : n + m])
        with np.errstate(all="ignore"):
            for (j, i), value in zip(entries, values[n + m :], strict=True):
                slope[i] += mu[j] * value
            for (j, i), noise_of_entry in zip(released, w[m:], strict=True):
                slope[i] += mu[j] * noise_of_entry
            x = state_step(x, slope, gamma, alpha, lower, upper)
            mu = multiplier_step(mu, offset + g + w[:m], gamma, alpha)
        broken = ~(np.isfinite(x).all(axis=0) & np.isfinite(mu).all(axis=0))
        failed[broken & (failed == 0)] = k
    return Answers(x=x.T, price=mu.T, last_x=x.T, last_price=mu.T, failed=failed)


TIKHONOV = Rival(name="paper", label="Tikhonov", cites="HaleEgerstedt2015", runs=_tikhonov_runs)
LAPLACE = Rival(name="laplace", label="Laplace 2018", cites="HaleEgerstedt2018", runs=_laplace_runs)
