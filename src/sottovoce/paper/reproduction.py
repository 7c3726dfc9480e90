"""The paper, number by number: every published figure beside the one that comes out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sottovoce.certificate.certificate import Certificate, certify
from sottovoce.certificate.optimum import ReferenceOptimum, reference_optimum
from sottovoce.paper.paper_constants import CertifiedConstants, Constants, certified_constants
from sottovoce.paper.paper_plan import paper_plan
from sottovoce.paper.tikhonov import Tikhonov
from sottovoce.privacy.adjacency import Trajectory
from sottovoce.privacy.gaussian import exact_sigma, kappa
from sottovoce.privacy.limit import accuracy_limit
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.sampler import grid_of
from sottovoce.problem.agents import Array
from sottovoce.problem.gallery import paper as paper_problem
from sottovoce.progress import Progress
from sottovoce.simulation.result import Result
from sottovoce.simulation.simulate import simulate

EPSILON, DELTA, RADIUS = math.log(3.0), 0.05, 1.0
STEPS = (200_000, 500_000)
QUANTILES = (0.05, 0.5, 0.95)

PUBLISHED: Mapping[str, Any] = {
    "kappa": 1.7565,
    "k_g": 472.567,
    "k_prime": (0.0, 0.0, 2.0, 0.0, 2.0, 100.08, 100.08),
    "sigma_sq": (0.0, 0.0, 12.3406, 0.0, 12.3406, 30900.7580, 30900.7580),
    "sigma_g_sq": 688971.6017,
    "x_hat": (7.591, -4.769, 0.178, -0.822, -2.863, 1.790, 1.340),
    "mu_hat": (1.8139, 0.0, 0.6409, 2.7314),
    "errors": {200_000: {"x": 0.4839, "mu": 0.5459}, 500_000: {"x": 0.2612, "mu": 0.2123}},
}
"""Everything the paper prints; the only numbers here that are not computed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reproduction:
    """The paper's figures, recomputed.

    Attributes:
        recomputed: the same keys as ``PUBLISHED``; errors are medians over the ensemble, against
            the true saddle point.
        exact_sigma: the least sigma per unit of sensitivity, in place of kappa.
        column_sensitivity_g: what one agent alone can move g by, in place of K_g.
        limit_x: root-mean-square error of x that 500,000 releases with the published noise allow.
        limit_mu: the same for mu.
        ensemble: per step the errors of every run against the ``true`` and the ``published``
            saddle point.
        result: the ensemble's runs.
    """

    recomputed: Mapping[str, Any]
    exact_sigma: float
    column_sensitivity_g: float
    limit_x: float
    limit_mu: float
    ensemble: Mapping[int, Mapping[str, Array]]
    result: Result


def reproduce(
    *, runs: int = 32, seed: int = 0, progress: bool | Progress | None = None
) -> Reproduction:
    """Recompute every published figure and simulate ``runs`` times with the published noise.

    Constants come from the certificate over the original ``X = [-10, 10]^7``, the optimum from
    ``reference_optimum``, errors from Algorithm 1 started at ``x = 0``, ``mu = 0``.
    """
    problem = paper_problem()
    certificate = certify(problem, progress=progress)
    saddle = reference_optimum(problem)
    noise = published_noise(certificate)
    least = accuracy_limit(problem, noise, STEPS[-1], saddle=saddle)
    results = {
        step: simulate(
            problem,
            noise,
            rounds=step,
            runs=runs,
            seed=seed,
            algorithm=Tikhonov(gamma_bar=5e-4, alpha_bar=0.2, c1=1 / 3, c2=1 / 4),
            saddle=(saddle.x, saddle.mu),
            progress=progress,
        )
        for step in STEPS
    }
    ensemble = {step: _errors(result, saddle) for step, result in results.items()}
    constants = certified_constants(problem.cloud)
    assert constants is not None  # noqa: S101 - the paper's agents are stated one by one
    return Reproduction(
        recomputed=_recomputed(constants, saddle, ensemble),
        exact_sigma=exact_sigma(EPSILON, DELTA),
        column_sensitivity_g=constants.column_sensitivity,
        limit_x=least.x,
        limit_mu=least.price,
        ensemble=ensemble,
        result=results[STEPS[-1]],
    )


def published_noise(certificate: Certificate) -> NoisePlan:
    """Return Algorithm 1's noise with the published variances, as Table II and w_g print them."""
    constants = Constants(k_g=PUBLISHED["k_g"], k_prime=PUBLISHED["k_prime"])
    made = paper_plan(
        certificate,
        epsilon=EPSILON,
        delta=DELTA,
        hide=Trajectory(radius=RADIUS),
        constants=constants,
    )
    gradients = np.sqrt(np.asarray(PUBLISHED["sigma_sq"]))
    values = math.sqrt(PUBLISHED["sigma_g_sq"])
    # The published kappa is rounded up, so these sigmas are no smaller than the plan's own and
    # its promise stands.
    sigmas = (values if o.column is None else float(gradients[o.column]) for o in made.outputs)
    outputs = (
        replace(o, sigma=sigma, grid=float(grid_of(sigma)))
        for o, sigma in zip(made.outputs, sigmas, strict=True)
    )
    return replace(made, outputs=tuple(outputs))


def _errors(result: Result, saddle: ReferenceOptimum) -> dict[str, Array]:
    x_hat, mu_hat = np.asarray(PUBLISHED["x_hat"]), np.asarray(PUBLISHED["mu_hat"])
    return {
        "x": np.linalg.norm(result.x - saddle.x, axis=1),
        "mu": np.linalg.norm(result.price - saddle.mu, axis=1),
        "x_published": np.linalg.norm(result.x - x_hat, axis=1),
        "mu_published": np.linalg.norm(result.price - mu_hat, axis=1),
    }


def _recomputed(
    constants: CertifiedConstants,
    saddle: ReferenceOptimum,
    ensemble: Mapping[int, Mapping[str, Array]],
) -> dict[str, Any]:
    factor = kappa(EPSILON, DELTA)
    k_prime = [bound.upper for bound in constants.k_prime]
    return {
        "kappa": factor,
        "k_g": constants.k_g.upper,
        "k_prime": k_prime,
        "sigma_sq": [(factor * k * RADIUS) ** 2 for k in k_prime],
        "sigma_g_sq": (factor * constants.k_g.upper * RADIUS) ** 2,
        "x_hat": saddle.x,
        "mu_hat": saddle.mu,
        "errors": {
            step: {name: float(np.median(errors[name])) for name in ("x", "mu")}
            for step, errors in ensemble.items()
        },
    }
