"""Han, Topcu and Pappas 2017: the cloud broadcasts a noisy gradient of a public cost of the sums.

    x_i(k+1) = P_Xi(x_i - a (df_i/dx_i + S_i'(dU/ds(s(x)) + w_k))),     answers are averages
    w_k has the density ~ exp(-epsilon |w| / (T L Delta)) on R^p

L is the Lipschitz constant of dU/ds, Delta how far an agent moves the sums in l2 within one round.
Each of the T gradients is (epsilon/T, 0)-private; noise has l2 norm ~ Gamma(p, T L Delta/epsilon).

Source: IEEE TAC 62(1), arXiv 1411.4105, as we read it: there one agent's iterates drift apart, so
that the theorem's noise is (T - 1)/2 times as large; for behaviours adjacent in every round this
noise suffices, and the smaller runs. Their agents have sets and no objectives; here each adds its
own gradient. ``a = 1/(B + (v/D) sqrt(T))`` is the step of smooth stochastic gradients: B bounds the
curvature at the optimum, v is the noise's deviation in x, D the diameter of the public box. Under
the joint plan the cloud takes the gradient at noisy sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import scipy.sparse.linalg
from scipy.special import gammaincinv, ndtr

from sottovoce.errors import InputError
from sottovoce.formula.derive import gradient, is_affine
from sottovoce.formula.expression import ZERO
from sottovoce.formula.tape import tape
from sottovoce.kernels.fleet_kernel import FleetStates, to_lanes
from sottovoce.kernels.run_kernel import normals, stream_seed
from sottovoce.problem.groups import Array
from sottovoce.problem.numeric import Numeric
from sottovoce.problem.problem import Problem
from sottovoce.progress import Progress
from sottovoce.simulation.runs import layout_of
from sottovoce.study.rivals import rival
from sottovoce.study.rivals.rival import Answers, Rival, RivalRun, RivalTask


def quadratic_cost(problem: Problem) -> tuple[Array, Array]:
    """Return Q and c of a public cost with the gradient ``Q s + c``; refused if it has another."""
    sums = problem.cloud.sums
    if problem.rows or not sums.costs:
        others = "constraints too" if sums.costs else "constraints alone"
        raise InputError(f"it minimises a public cost of the sums and no more, got {others}")
    Q, c = np.zeros((sums.count, sums.count)), np.zeros(sums.count)
    for term in sums.costs:
        rows, slopes = list(term.rows), gradient(term.formula, term.symbols)
        if not all(is_affine(g, term.symbols) for g in slopes.values()):
            raise InputError(f"it needs a quadratic public cost, got {term.formula!s:.60}")
        formulas = tape([slopes.get(s, ZERO) for s in term.symbols], term.symbols)
        at_zero, *at_units = (np.array(formulas(*u)) for u in np.eye(len(rows) + 1, len(rows), -1))
        Q[np.ix_(rows, rows)], c[rows] = np.transpose(at_units) - at_zero[:, np.newaxis], at_zero
    return Q, c


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
        for fleet, kernel in zip(fleets, kernels, strict=True):
            part = point[kernel.fleet.columns].reshape(kernel.lower.shape)
            fleet.x[:] = to_lanes(part, kernel.width)
            kernel.kernels.run_project_start(fleet.core)
            out[kernel.fleet.columns] = fleet.states.ravel()
        return out

    return project


def descend(task: RivalTask, cost: tuple[Array, Array], scale: float, report: Progress) -> Answers:
    """Run projected gradients, with noise of a scale on gradients, or of the joint plan (0)."""
    (Q, c), project, sigma, T = cost, _projection(task), task.plan.released_sigma, task.rounds
    problem, numeric, p = task.problem, Numeric(task.problem), sigma.size
    S = Numeric(problem.cloud, problem.cloud.sums.families).jacobian(task.saddle.x)
    half = Q * sigma if scale == 0.0 else math.sqrt(p + 1) * scale * np.eye(p)
    spread = math.sqrt(float(np.sum((S @ S.T).toarray() * (half @ half.T))))
    curvature = scipy.sparse.linalg.norm(numeric.objective_hessian(task.saddle.x), np.inf)
    curvature += np.linalg.norm(S.toarray(), 2) ** 2 * np.linalg.norm(Q, 2)
    diameter = float(np.linalg.norm(problem.cloud.upper() - problem.cloud.lower()))
    step, ends = 1.0 / (float(curvature) + spread / diameter * math.sqrt(T)), []
    for run in range(task.runs):
        report("running", run / task.runs)
        z = normals(stream_seed(task.seed, run), T, p + 1)
        on_sums = sigma * z[:, :p] if scale == 0.0 else np.zeros((T, p))
        on_gradient = broadcast_noise(z, scale)
        x = project(np.concatenate([part.ravel() for part in problem.start]))
        mean, price = np.zeros(x.size), np.zeros(p)
        for k in range(T):
            g = Q @ (S @ x + on_sums[k]) + c + on_gradient[k]
            x = project(x - step * (numeric.objective_gradient(x) + S.T @ g))
            mean, price = mean + x / T, price + g / T
        ends.append((mean, price, x, g))
    x, price, last_x, last_price = map(np.array, zip(*ends, strict=True))
    failed = np.where(np.isfinite(x).all(axis=1), 0, T)
    return Answers(x=x, price=price, last_x=last_x, last_price=last_price, failed=failed)


def _runs(task: RivalTask) -> Iterator[RivalRun]:
    cost, change, label = quadratic_cost(task.problem), rival.change_per_round(task), HAN.label
    lipschitz, moved = float(np.linalg.norm(cost[0], 2)), change.size * float(change.unit.max())
    scale = task.rounds * lipschitz * moved / task.strictest[0]
    for noise, plan, of in ((rival.OWN, None, scale), (rival.JOINT, task.plan, 0.0)):
        answers = partial(descend, task, cost, of)
        yield RivalRun(noise=noise, label=label, plan=plan, answers=answers)


HAN = Rival(name="han", label="Han et al. 2017", cites="HanTopcuPappas2017", runs=_runs)
