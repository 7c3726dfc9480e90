"""Han, Topcu and Pappas 2017: the cloud broadcasts a noisy gradient of a public cost of the sums.

    x_i(k+1) = P_Xi(x_i - a (df_i/dx_i + S_i'(dU/ds(s(x)) + w_k))),     answers are averages
    w_k has the density ~ exp(-epsilon |w| / (T L Delta)) on R^p

L is the Lipschitz constant of dU/ds, Delta how far an agent moves the sums in l2 within one round.
Each of the T gradients is (epsilon/T, 0)-private; noise has l2 norm ~ Gamma(p, T L Delta/epsilon).

Source: IEEE TAC 62(1), arXiv 1411.4105, as we read it: there one agent's iterates drift apart, so
that the noise of the theorem is (T - 1)/2 times as large; for behaviours that are adjacent in every
round this noise suffices, and the smaller runs. Their agents have sets and no objectives; with
objectives each adds its own gradient. The step ``a = 1/(B + (v/D) sqrt(T))`` is that of smooth
stochastic gradients, with B a bound on the curvature at the optimum, v the noise's deviation in x
and D the diameter of the public box. Under the joint plan the cloud takes it at noisy sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import final

import numpy as np
import scipy.sparse.linalg
from scipy.special import gammaincinv, ndtr

from sottovoce.errors import InputError
from sottovoce.formula.derive import gradient, hessian
from sottovoce.formula.expression import ZERO
from sottovoce.formula.tape import tape
from sottovoce.kernels.fleet_kernel import FleetStates, to_lanes
from sottovoce.kernels.run_kernel import normals, stream_seed
from sottovoce.problem.agents import Array
from sottovoce.problem.numeric import Numeric
from sottovoce.problem.problem import Problem
from sottovoce.progress import Progress
from sottovoce.simulation.runs import layout_of
from sottovoce.study.rivals.rival import (
    JOINT,
    OWN,
    Answers,
    Rival,
    RivalRun,
    RivalTask,
    change_per_round,
)


@final
class QuadraticCost:
    """A public cost U, quadratic in the sums, of a problem without constraints."""

    def __init__(self, problem: Problem) -> None:
        sums, rows = problem.cloud.sums, problem.rows
        if rows or not sums.costs:
            known = "constraints too" if sums.costs else "constraints alone"
            raise InputError(f"it minimises a public cost of the sums and no more, got {known}")
        self.hessian = np.zeros((sums.count, sums.count))
        self._tapes = []
        for term in sums.costs:
            second = hessian(term.formula, term.symbols)
            if term.peak or term.center or any(entry.symbols for entry in second.values()):
                raise InputError(f"it needs a quadratic public cost, got {term.formula!s:.60}")
            place = dict(zip(term.symbols, term.rows, strict=True))
            for (s, t), entry in second.items():
                self.hessian[place[s], place[t]] = self.hessian[place[t], place[s]] = entry.value
            slopes = gradient(term.formula, term.symbols)
            formulas = [slopes.get(s, ZERO) for s in term.symbols]
            self._tapes.append((list(term.rows), tape(formulas, term.symbols)))

    def gradient(self, s: Array) -> Array:
        """dU/ds."""
        out = np.zeros(s.size)
        for rows, formulas in self._tapes:
            out[rows] = formulas(*s[rows].tolist())
        return out


def broadcast_scale(epsilon: float, rounds: int, lipschitz: float, change: float) -> float:
    """Return ``T L Delta / epsilon``, the scale of the l2 norm of the noise on a gradient."""
    return rounds * lipschitz * change / epsilon


def broadcast_noise(z: Array, scale: float) -> Array:
    """Return noise with the density ``~ exp(-|w| / scale)`` from p + 1 standard normals a row."""
    direction = z[:, :-1] / np.linalg.norm(z[:, :-1], axis=1, keepdims=True)
    length = gammaincinv(direction.shape[1], ndtr(z[:, -1:]))
    return np.asarray(scale * length * direction)


def _projection(task: RivalTask) -> Callable[[Array], Array]:
    """What takes all states to the nearest points of their agents' own sets."""
    kernels = layout_of(task.problem, task.plan, gradient=False).kernels
    fleets = [FleetStates(kernel, np.array(kernel.lower)) for kernel in kernels]

    def project(point: Array) -> Array:
        out = np.empty(point.size)
        for fleet in fleets:
            kernel = fleet.kernel
            part = point[kernel.fleet.columns].reshape(kernel.lower.shape)
            fleet.x[:] = to_lanes(part, kernel.width)
            kernel.kernels.run_project_start(fleet.core)
            out[kernel.fleet.columns] = fleet.states.ravel()
        return out

    return project


def descend(task: RivalTask, cost: QuadraticCost, scale: float, progress: Progress) -> Answers:
    """Run projected gradients, with noise of a scale on gradients, or of the joint plan (0)."""
    problem, project, sigma = task.problem, _projection(task), task.plan.released_sigma
    numeric, families = Numeric(problem), problem.cloud.sums.families
    S = Numeric(problem.cloud, families).jacobian(task.saddle.x)
    p, width = sigma.size, problem.cloud.upper() - problem.cloud.lower()
    half = cost.hessian * sigma if scale == 0.0 else math.sqrt(p + 1) * scale * np.eye(p)
    spread = math.sqrt(float(np.sum((S @ S.T).toarray() * (half @ half.T))))
    objective_curvature = scipy.sparse.linalg.norm(numeric.objective_hessian(task.saddle.x), np.inf)
    curvature = float(
        objective_curvature + np.linalg.norm(S.toarray(), 2) ** 2 * np.linalg.norm(cost.hessian, 2)
    )
    step = 1.0 / (curvature + spread / float(np.linalg.norm(width)) * math.sqrt(task.rounds))
    ends = []
    for run in range(task.runs):
        z = normals(stream_seed(task.seed, run), task.rounds, p + 1)
        on_sums = sigma * z[:, :p] if scale == 0.0 else np.zeros((task.rounds, p))
        on_gradient = broadcast_noise(z, scale)
        x = project(np.concatenate([part.ravel() for part in problem.start]))
        mean, price = np.zeros(x.size), np.zeros(p)
        for k in range(task.rounds):
            if k % 64 == 0:
                progress("running", (run + k / task.rounds) / task.runs)
            g = cost.gradient(S @ x + on_sums[k]) + on_gradient[k]
            x = project(x - step * (numeric.objective_gradient(x) + S.T @ g))
            mean, price = mean + x / task.rounds, price + g / task.rounds
        ends.append((mean, price, x, g))
    x, price, last_x, last_price = map(np.array, zip(*ends, strict=True))
    failed = np.where(np.isfinite(x).all(axis=1), 0, task.rounds)
    return Answers(x=x, price=price, last_x=last_x, last_price=last_price, failed=failed)


def _runs(task: RivalTask) -> Iterator[RivalRun]:
    cost, change = QuadraticCost(task.problem), change_per_round(task)
    lipschitz = float(np.linalg.norm(cost.hessian, 2))
    moved = change.size * float(change.unit.max())
    scale = broadcast_scale(task.strictest[0], task.rounds, lipschitz, moved)
    for noise, plan, noise_scale in ((OWN, None, scale), (JOINT, task.plan, 0.0)):
        yield RivalRun(
            noise=noise, label=RIVAL.label, rounds=task.rounds, plan=plan,
            answers=partial(descend, task, cost, noise_scale),
        )  # fmt: skip


RIVAL = Rival(name="han", label="Han et al. 2017", cites="HanTopcuPappas2017", runs=_runs)
