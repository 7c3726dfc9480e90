"""Hale and Egerstedt 2018: the paper's method with pure epsilon, by Laplace noise.

    x, mu  as in ``hale_egerstedt``,   w ~ Laplace(Delta_1 / epsilon)
    Delta_1 = max_l R_l sqrt(T) sum_o sup |d output_o / dx_l|

Source: IEEE TCNS 5(4), arXiv 1507.04371, as we read it: Laplace noise scaled by the l1 sensitivity
of all rounds of a mechanism, each of the n + 1 mechanisms by itself, with the steps of the paper's
Algorithm 1. The promise that all methods get is over an l2 ball of sequences, of radius R_l, in
which l1 distances are sqrt(T) times as large; adjacency in l1 would hide less.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
from scipy.special import log_ndtr

from sottovoce.algorithm.algorithm import from_schedule
from sottovoce.formula.derive import gradient
from sottovoce.formula.expression import ZERO
from sottovoce.formula.tape import tape
from sottovoce.kernels.run_kernel import normals, stream_seed
from sottovoce.paper.paper_plan import bound_sequence_radii, paper_noise
from sottovoce.paper.tikhonov import Tikhonov, multiplier_step, state_step
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.plan import PrivacyTarget
from sottovoce.problem.constraints import named_rows
from sottovoce.problem.groups import Array
from sottovoce.progress import Progress
from sottovoce.simulation.runs import named_objective
from sottovoce.simulation.simulate import require_steppable
from sottovoce.study.rivals.rival import OWN, Answers, Rival, RivalRun, RivalTask, with_sigma

_AHEAD = 256  # rounds of noise that are drawn together


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


def _runs(task: RivalTask) -> Iterator[RivalRun]:
    require_steppable(task.problem)
    plan, cloud = task.planner("paper", allow_undernoised=True), task.problem.cloud
    requested = PrivacyTarget.per_agent(cloud, plan.epsilon, plan.delta)
    reach = bound_sequence_radii(plan.hide, cloud.groups)
    S, entries, _ = paper_noise(cloud, requested, reach, None)
    owner = np.array([-1] * cloud.rows + [entry.agent for entry in entries])
    scales = laplace_scales(S.dense(), reach, owner, task.rounds, task.strictest[0])
    plan = with_sigma(plan, math.sqrt(2.0) * scales)
    yield RivalRun(
        noise=OWN, label=RIVAL.label, rounds=task.rounds, plan=plan, multipliers=True,
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


RIVAL = Rival(name="laplace", label="Laplace 2018", cites="HaleEgerstedt2018", runs=_runs)
