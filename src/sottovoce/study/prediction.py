"""Predicted accuracy of an answer, and the rounds to ask for, before anything is run.

Predictions come from public figures alone, or from the asymptotic limit at the optimum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from sottovoce.certificate.assumptions import SADDLE_LIMIT
from sottovoce.certificate.contributions import row_scales
from sottovoce.certificate.optimum import ReferenceOptimum, known_saddle
from sottovoce.privacy.adjacency import TRAJECTORY_ROUNDS, Kind
from sottovoce.privacy.averaging import weights_norm
from sottovoce.privacy.feasibility import LAG_FACTOR
from sottovoce.privacy.limit import linearise
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.constraints import equalities
from sottovoce.problem.costs import cost_of
from sottovoce.problem.groups import Array, read_only
from sottovoce.problem.numeric import Numeric
from sottovoce.problem.problem import CloudView, Problem

_DRAWS = 8192
_MIDPOINT_ERROR = 1.0 / np.sqrt(12.0)
"""Of always answering the box's middle, in its widths, when every point is equally likely."""

FEASIBLE = 0.95  # the default probability with which constraints are kept

FEWEST_ROUNDS = 200
"""Rounds after which the default algorithm is about as near as the asymptotic limit.

Measured in x on six problems with noise from 0.5 to 5% of the constraints' scales, 200 runs each:
at most 1.12 times what is predicted after 200 rounds, 1.16 after 100, 1.6 after 50. With noise
below 0.1%, chargers were still many times off after 1,000.
"""

# Noise, as a share of a constraint's scale, between which so many rounds suffice.
_LEAST_NOISE, _MOST_NOISE = 0.005, 0.05
_MOST_ROUNDS = 2_000  # of what converges: noisier answers are useless after any number of rounds


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """What to expect of an answer; shares of 1, not percent.

    Attributes:
        rows: the labels of the stated constraints.
        noise: the standard deviation of each at the answer, as a share of its scale; NaN where
            public figures alone do not determine it.
        violation: the probability that the answer violates some inequality; None if there is none,
            or if the optimum is not known, as for the next three.
        feasibility_cost: what margins cost that keep all of them with the probability asked for, as
            a share of the objective; infinite if there is no room for them.
        x: the root-mean-square error of the states, each as a share of the width of its box, over
            those that curvature determines.
        objective: the root-mean-square error of the objective, as a share of it.
    """

    rounds: int
    rows: tuple[str, ...]
    noise: Array
    violation: float | None = None
    feasibility_cost: float | None = None
    x: float | None = None
    objective: float | None = None

    @property
    def worst(self) -> tuple[str, float]:
        """The constraint with the largest noise, and how large it is."""
        noise = np.where(np.isfinite(self.noise), self.noise, -1.0)
        if not noise.size or noise.max() < 0.0:
            return "", 0.0
        return self.rows[int(noise.argmax())], float(noise.max())

    @property
    def cost(self) -> float:
        """What feasibility costs, or where that is not known the largest noise."""
        return self.worst[1] if self.feasibility_cost is None else self.feasibility_cost

    @property
    def useless(self) -> str:
        """Why the answer will be useless, in words; empty if it will be useful."""
        name, noise = self.worst
        if noise > 1.0:
            return f"the noise of the answer is {100 * noise:,.0f}% of the scale of {name}"
        if self.x is not None and self.x > _MIDPOINT_ERROR:
            return (
                f"the states' error is {100 * self.x:,.0f}% of their boxes, that of saying the "
                f"middle of each is {100 * _MIDPOINT_ERROR:.0f}%"
            )
        return ""

    def shares(self, row: int | None) -> tuple[float | None, ...]:
        """Return the figures of a table: the noise of a row, and what holds for all of them."""
        noise = None if row is None else float(self.noise[row])
        return noise, self.violation, self.feasibility_cost, self.x, self.objective

    def data(self) -> dict[str, object]:
        """Return everything as plain values for JSON."""
        figures = ("violation", "feasibility_cost", "x", "objective")
        return {
            "noise": dict(zip(self.rows, self.noise.tolist(), strict=True)),
            **{name: getattr(self, name) for name in figures},
            "useless": self.useless or None,
        }


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Response:
    """How the answer moves with noise in the sums, to first order, at the saddle point."""

    problem: Problem
    saddle: ReferenceOptimum
    x_sq: Array  # per sum the mean over components of ``(dx_c / dw_o / width_c)^2``, shape (p,)
    rows: Array  # ``dg_j / dw_o``, shape (m, p)
    sums: Array  # s at the saddle point, shape (p,)
    sum_rows: Array  # ``ds / dw``, shape (p, p)
    objective: Array  # ``df / dw_o``, shape (p,)
    curvature: Array  # ``d2f / dw^2 = dlambda / dw``, shape (p, p)
    g: Array  # ``g_j`` at the saddle point, 0 where it is active, shape (m,)
    flat: tuple[int, ...]  # components of x, from 0, without curvature: errors leave them out

    @property
    def size(self) -> float:
        """The size of the objective, of which errors are shares."""
        return abs(self.saddle.objective) or 1.0


def linear_response(problem: Problem, saddle: ReferenceOptimum) -> Response:
    """Return how the answer to a problem moves with noise; computed once, it serves all plans."""
    system, stated = linearise(problem, saddle), Numeric(problem)
    coupling = Numeric(problem.cloud, problem.cloud.sums.families)
    width, determined = _determined_states(problem.cloud, system.flat)
    shares = system.states[determined] / width[determined, np.newaxis]
    g = stated.constraints(saddle.x)
    g[list(saddle.active)] = 0.0
    return Response(
        problem=problem,
        saddle=saddle,
        x_sq=np.square(shares).sum(axis=0) / max(len(shares), 1),
        rows=stated.jacobian(saddle.x) @ system.states,
        sums=coupling.constraints(saddle.x),
        sum_rows=coupling.jacobian(saddle.x) @ system.states,
        objective=system.objective_gradient @ system.states,
        curvature=system.prices,
        g=g,
        flat=system.flat,
    )


def predict(
    response: Response | None, plan: NoisePlan, rounds: int, *, feasible: float
) -> Prediction:
    """Return what to expect of an answer after so many rounds; from public figures if not known.

    At the asymptotic limit (``privacy.limit``) the answer is ``x-hat + M w`` with w the averaged
    noise, ``w_o ~ N(0, sigma_o^2 |w|^2)``, and constraints follow to first order. It is about the
    optimum of the problem whose sums are off by w, so that the objective is off by
    ``lambda'w + w' (dlambda/dw) w / 2``, less what U is off by where it is ``U(s + w)`` instead of
    ``U(s)``. Margins of z standard deviations,
    ``(1 - Phi(-z))^m = p`` over m rows with noise, and of the lag (``privacy.margins``) cost mu_j
    each; a plan with ``feasible`` has their exact cost. The plan is one of the joint method.
    """
    if response is None:
        return predict_publicly(plan, rounds)
    sigma = plan.released_sigma * weights_norm(rounds)
    cloud = response.problem.cloud
    scale, equality = row_scales(cloud), equalities(cloud.constraints)
    deviation = np.linalg.norm(response.rows * sigma, axis=1)
    inequalities = int(np.count_nonzero(~equality & (deviation > 0)))
    margin = ndtri(feasible ** (1.0 / max(inequalities, 1))) + 1.5 * LAG_FACTOR * rounds**-0.25
    cost = float(margin * np.abs(response.saddle.mu) @ np.where(equality, 0.0, deviation))
    violation, objective = _sample_violation(response, sigma, equality)
    return Prediction(
        rounds=rounds,
        rows=tuple(cloud.row_labels()),
        noise=read_only(deviation / scale),
        violation=violation,
        feasibility_cost=cost / response.size,
        x=float(np.sqrt(response.x_sq @ np.square(sigma))),
        objective=objective / response.size,
    )


def predict_publicly(plan: NoisePlan, rounds: int) -> Prediction:
    """Return what public figures determine: the noise of rows that are sums as stated."""
    cloud = plan.cloud
    noise = np.full(cloud.rows, np.nan)
    sigma, row = plan.released_sigma * weights_norm(rounds), 0
    for family, origin in zip(cloud.constraints, cloud.sums.origins, strict=True):
        if origin.as_stated:
            first = origin.first if plan.release is None else row
            noise[row : row + family.rows] = sigma[first : first + family.rows]
        row += family.rows
    labels = tuple(cloud.row_labels())
    return Prediction(rounds=rounds, rows=labels, noise=read_only(noise / row_scales(cloud)))


def expect(problem: Problem, plan: NoisePlan, rounds: int) -> Prediction:
    """Return what to expect; from public figures if the problem is too large for a saddle point."""
    saddle = known_saddle(problem, most=SADDLE_LIMIT) if plan.release is None else None
    response = None if saddle is None else linear_response(problem, saddle)
    return predict(response, plan, rounds, feasible=FEASIBLE)


def measured_prediction(response: Response, x: Array, rounds: int) -> Prediction:
    """Return the figures of a prediction from the answers of simulated runs, one per line of x."""
    problem, saddle = response.problem, response.saddle
    numeric, equality = Numeric(problem), equalities(problem.constraints)
    g = np.array([numeric.constraints(answer) for answer in x])
    f = np.array([numeric.objective(answer) for answer in x])
    width, determined = _determined_states(problem.cloud, response.flat)
    error = (x - saddle.x)[:, determined] / width[determined]
    spread = np.sqrt(np.mean(np.square(g - numeric.constraints(saddle.x)), axis=0))
    return Prediction(
        rounds=rounds,
        rows=tuple(problem.cloud.row_labels()),
        noise=spread / row_scales(problem.cloud),
        violation=_violated_share(g, equality),
        x=_root_mean(error) if determined.any() else 0.0,
        objective=_root_mean(f - saddle.objective) / response.size,
    )


def _determined_states(cloud: CloudView, flat: Sequence[int]) -> tuple[Array, NDArray[np.bool_]]:
    """The widths of all boxes, and which states count in errors: not fixed and not flat."""
    width = cloud.upper() - cloud.lower()
    determined = width > 0.0
    determined[list(flat)] = False
    return width, determined


def _sample_violation(
    response: Response, sigma: Array, equality: NDArray[np.bool_]
) -> tuple[float | None, float]:
    """The probability of a violation and the objective's error, by draws of the averaged noise."""
    moving = np.any(response.rows != 0.0, axis=0) | np.any(response.sum_rows != 0.0, axis=0)
    noisy = np.flatnonzero((sigma > 0.0) & moving)
    w = np.random.default_rng(0).normal(size=(_DRAWS, noisy.size)) * sigma[noisy]
    curvature = response.curvature[np.ix_(noisy, noisy)]
    error = w @ response.objective[noisy] + 0.5 * np.sum(w @ curvature * w, axis=1)
    costs = response.problem.cloud.sums.costs
    if costs:
        sums = response.sums + w @ response.sum_rows[:, noisy].T
        released = sums.copy()
        released[:, noisy] += w
        error += cost_of(costs, sums) - cost_of(costs, released) + w @ response.saddle.cost[noisy]
    return _violated_share(response.g + w @ response.rows[:, noisy].T, equality), _root_mean(error)


def _violated_share(g: Array, equality: NDArray[np.bool_]) -> float | None:
    """The share of answers that violate an inequality; None if there is none."""
    return None if equality.all() else float(np.mean(np.any(g[:, ~equality] > 0.0, axis=1)))


def _root_mean(errors: Array) -> float:
    return float(np.sqrt(np.mean(np.square(errors))))


def converging_rounds(noise: float) -> int:
    """Return the fewest rounds that converge, for an answer with so much noise.

    A rule of thumb: large noise hides the prices; beside very small noise the start still counts.
    ``advise(..., simulate=True)`` measures instead.
    """
    start = math.sqrt(_LEAST_NOISE / max(noise, _LEAST_NOISE * 1e-4))
    return _round_up(min(FEWEST_ROUNDS * max(1.0, noise / _MOST_NOISE, start), _MOST_ROUNDS))


def rounds_for(kind: Kind, noise: float, error: float, rounds: int, accuracy: float) -> int:
    """Return the rounds to ask for.

    To hide an offset or everything, noise grows as the root of their number and averages away
    again, so the fewest that converge are best. To hide a trajectory they are free, and the error
    falls as ``1 / sqrt(T)``: so many that it comes down to ``accuracy``. ``noise``, of the noisiest
    constraint over its scale, and ``error`` are expected after ``rounds`` rounds.
    """
    if kind != "trajectory":
        return converging_rounds(noise)
    accurate = rounds * (error / accuracy) ** 2
    converged = converging_rounds(min(noise, accuracy))
    return _round_up(min(max(accurate, converged), TRAJECTORY_ROUNDS))


def _round_up(count: float) -> int:
    """A count rounded up to two digits."""
    step = 10 ** max(math.floor(math.log10(count)) - 1, 0)
    return int(math.ceil(count / step - 1e-9) * step)
