"""What T noisy releases can tell of the saddle point at best, before anything is run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sottovoce.arguments import instance, whole
from sottovoce.certify.saddle import SaddlePoint, saddle_point
from sottovoce.errors import InputError
from sottovoce.privacy.plan import NoisePlan
from sottovoce.problem.agents import Array, read_only
from sottovoce.problem.numeric import Numeric
from sottovoce.problem.problem import Problem

_DENSE = 6_000
_FLAT = 1e-9  # an eigenvalue this far below the largest is a direction without curvature
_HELD = 1e-6  # a force above this share of the objective's steepest slope holds its row or bound


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Limit:
    """The local minimax accuracy of (x-hat, mu-hat) from T releases.

    Attributes:
        rounds: T.
        x: root-mean-square of |x - x-hat|, flat directions apart.
        mu: root-mean-square of |mu - mu-hat|.
        x_each: the standard deviation of every component of x.
        mu_each: the standard deviation of every multiplier; 0 for inactive constraints.
        flat: components of x, from 0, that a direction without curvature moves. There the error
            falls more slowly than 1/sqrt(T) and no limit of this kind exists: such directions, and
            those that leave mu-hat undetermined, are projected out of all the above.
    """

    rounds: int
    x: float
    mu: float
    x_each: Array
    mu_each: Array
    flat: tuple[int, ...]


def limit(
    problem: Problem, plan: NoisePlan, rounds: int, *, saddle: SaddlePoint | None = None
) -> Limit:
    """Return the statistical limit ``J^-1 Sigma J^-T / T`` of T releases at the saddle point.

    J is the Jacobian of the saddle-point conditions on the active set, ``[[H, G'], [G, 0]]`` with H
    the Hessian of the Lagrangian over the states that no bound holds and G the gradients of the
    active constraints. Sigma is the noise there: ``sum_j mu_j^2 sigma_ij^2`` in the equation of
    state i, whose gradient entries carry noise, and ``sigma_g^2`` in an active row (Polyak and
    Juditsky's asymptotic covariance of averaged stochastic approximation).

    Args:
        problem: the whole problem.
        plan: its noise.
        rounds: T.
        saddle: the saddle point if it is known already.
    """
    instance("problem", problem, Problem, "sv.Problem(...)")
    instance("plan", plan, NoisePlan, "sv.plan(certificate, ...)")
    rounds = whole("rounds", rounds, least=1)
    if saddle is not None:
        instance("saddle", saddle, SaddlePoint, "sv.saddle_point(problem)")
    if plan.fingerprint != problem.cloud.fingerprint:
        raise InputError("the plan must be made for this problem, got one for another: plan again")
    if problem.size > _DENSE:
        raise InputError(
            f"the limit is computed for at most {_DENSE} states, got {problem.size}: take a "
            "smaller fleet of the same make"
        )
    at = saddle if saddle is not None else saddle_point(problem)
    numeric = Numeric(problem)
    jacobian = numeric.jacobian(at.x).dense()
    least = _HELD * np.max(np.abs(numeric.objective_gradient(at.x)))
    pressed = np.abs(at.bound_multipliers) > least
    free = np.flatnonzero((numeric.lower < numeric.upper) & ~pressed)
    rows = np.flatnonzero(at.mu * np.max(np.abs(jacobian), axis=1) > least)
    hessian, slopes = _hessian(numeric, at)[np.ix_(free, free)], jacobian[np.ix_(rows, free)]
    noise_sq = np.concatenate([_gradient_noise(plan, at)[free], plan.sigma_g[rows] ** 2])
    inverse, null = _pseudo_inverse(hessian, slopes)
    spread = np.square(inverse) @ noise_sq / rounds
    x_each, mu_each = np.zeros(problem.size), np.zeros(problem.rows)
    x_each[free] = np.sqrt(spread[: free.size])
    mu_each[rows] = np.sqrt(spread[free.size :])
    flat = free[np.linalg.norm(null[: free.size], axis=1) > 1e-6]
    return Limit(
        rounds=rounds,
        x=float(np.linalg.norm(x_each)),
        mu=float(np.linalg.norm(mu_each)),
        x_each=read_only(x_each),
        mu_each=read_only(mu_each),
        flat=tuple(int(i) for i in flat),
    )


def _hessian(numeric: Numeric, at: SaddlePoint) -> Array:
    size = at.x.size
    matrix = np.zeros((size, size))
    blocks = numeric.lagrangian_hessian(at.x, at.mu)
    for block, values in zip(numeric.blocks, blocks, strict=True):
        index = np.arange(size)[block.index].reshape(block.count, block.dim)
        for place, own in zip(index, np.broadcast_to(values, (block.count, block.dim, block.dim)),
                              strict=True):  # fmt: skip
            matrix[np.ix_(place, place)] = own
    return matrix


def _gradient_noise(plan: NoisePlan, at: SaddlePoint) -> Array:
    """The variance that noise on gradient entries puts into each state's equation."""
    variance = np.zeros(at.x.size)
    share = np.square(at.mu[plan.gradient_rows] * plan.gradient_sigma)
    np.add.at(variance, plan.gradient_columns, share)
    return variance


def _pseudo_inverse(hessian: Array, slopes: Array) -> tuple[Array, Array]:
    """The pseudo-inverse of ``[[H, G'], [G, 0]]``, and an orthonormal basis of its null space.

    Units must not pass for flatness, so rows are brought to a common size D first. That alone would
    bend the result: ``D pinv(D J D) D`` inverts J only up to null directions that D has turned, and
    projecting on what is orthogonal to the null space, ``D null(D J D)``, turns it back.
    """
    states = len(hessian)
    system = np.block([[hessian, slopes.T], [slopes, np.zeros((len(slopes),) * 2)]])
    unit = np.ones(len(system))
    if hessian.any() and slopes.any():
        unit[states:] = np.abs(hessian).max() / np.abs(slopes).max()
    peak = np.abs(system * unit[:, np.newaxis] * unit).max(axis=1, initial=0.0)
    scale = unit / np.sqrt(np.where(peak > _FLAT * peak.max(initial=0.0), peak, 1.0))
    sizes, vectors = np.linalg.eigh(system * scale[:, np.newaxis] * scale)
    keep = np.abs(sizes) > _FLAT * np.abs(sizes).max(initial=0.0)
    inverse = (vectors[:, keep] / sizes[keep]) @ vectors[:, keep].T * scale[:, np.newaxis] * scale
    null, _ = np.linalg.qr(vectors[:, ~keep] * scale[:, np.newaxis])
    inverse -= null @ (null.T @ inverse)
    inverse -= (inverse @ null) @ null.T
    return inverse, null
