"""Algorithm 1 of the paper: projected gradient steps with Tikhonov regularisation, its release.

Plans, simulations and the network reach the release by its name; its limit is here as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from sottovoce.algorithm.algorithm import GradientSteps
from sottovoce.arguments import real
from sottovoce.errors import InputError
from sottovoce.privacy.releases import StateRelease
from sottovoce.problem.groups import Array
from sottovoce.problem.problem import CloudView, Problem

if TYPE_CHECKING:
    from sottovoce.certificate.optimum import ReferenceOptimum
    from sottovoce.network.agent_group import LocalGroup
    from sottovoce.network.protocol.messages import Welcome
    from sottovoce.paper.paper_rounds import GradientStep, Multipliers, PaperOutputs
    from sottovoce.privacy.noise_plan import NoisePlan

_FLAT = 1e-9  # an eigenvalue this far below the largest is a direction without curvature


def state_step(x: Any, slope: Any, gamma: Any, alpha: Any, lower: Any, upper: Any) -> Any:
    """Return ``x_i(k+1) = P_Xi[x_i - gamma(k) (df_i/dx_i + Y_i' mu + alpha(k) x_i)]``.

    ``slope`` is ``df_i/dx_i (x_i(k)) + Y_i(k)' mu(k)``, with Y_i as the agent knows it.
    """
    return np.minimum(np.maximum(x - gamma * (slope + alpha * x), lower), upper)


def multiplier_step(mu: Any, y_g: Any, gamma: Any, alpha: Any) -> Any:
    """Return ``mu(k+1) = [mu(k) + gamma(k) (y_g(k) - alpha(k) mu(k))]_+``, with noisy y_g of g."""
    return np.maximum(mu + gamma * (y_g - alpha * mu), 0.0)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tikhonov(GradientSteps):
    """The paper's Algorithm 1, ``gamma(k) = gamma_bar k^-c1`` and ``alpha(k) = alpha_bar k^-c2``.

    ``0 < c2 < c1`` and ``c1 + c2 < 1``. Departs from the paper in that k starts at 1: gamma(0) is
    not defined.
    """

    gamma_bar: float = 5e-4
    alpha_bar: float = 0.2
    c1: float = 1 / 3
    c2: float = 1 / 4
    release: ClassVar[str] = "paper"

    def __post_init__(self) -> None:
        for name in ("gamma_bar", "alpha_bar"):
            real(name, getattr(self, name), "positive and finite", lambda v: 0 < v < inf)
        for name in ("c1", "c2"):
            real(name, getattr(self, name), "a finite number", isfinite)
        if not 0 < self.c2 < self.c1:
            raise InputError(f"0 < c2 < c1 must hold, got c1={self.c1}, c2={self.c2}")
        if not self.c1 + self.c2 < 1:
            raise InputError(f"c1 + c2 < 1 must hold, got c1={self.c1}, c2={self.c2}")

    def schedule(self, k: Any) -> Array:
        """Return gamma(k) and alpha(k) for the rounds ``k >= 1``, one row per round."""
        rounds = np.atleast_1d(np.asarray(k, dtype=np.float64))
        steps = np.empty((rounds.size, 2))
        np.multiply(self.gamma_bar, rounds**-self.c1, out=steps[:, 0])
        np.multiply(self.alpha_bar, rounds**-self.c2, out=steps[:, 1])
        return steps


@final
class _PaperRelease(StateRelease):
    """Agents send states; the cloud releases noisy g(x) and dg/dx, and both take gradient steps.

    Parts are imported when they are needed: an agent loads no simulation, a plan no network.
    """

    name: ClassVar[str] = "paper"
    sent: ClassVar[str] = "state"

    @property
    def algorithm(self) -> type[Tikhonov]:
        return Tikhonov

    @property
    def plan(self) -> Callable[..., NoisePlan]:
        from sottovoce.paper.paper_plan import paper_plan

        return paper_plan

    def limit(
        self, problem: Problem, plan: NoisePlan, rounds: int, optimum: ReferenceOptimum
    ) -> tuple[Array, Array, tuple[int, ...]]:
        return _limit_accuracy(problem, plan, rounds, optimum)

    def contribution(
        self,
        cloud: CloudView,
        group: LocalGroup,
        algorithm: Tikhonov,
        *,
        welcome: Welcome,
        begin: int,
        bounds: tuple[Array, Array],
    ) -> GradientStep:
        from sottovoce.paper.paper_rounds import GradientStep

        entries = zip(welcome.rows, welcome.columns, strict=True)
        sent = {
            (row, column - begin): place
            for place, (row, column) in enumerate(entries)
            if begin <= column < begin + group.size
        }
        return GradientStep(cloud, group, algorithm, bounds=bounds, sent=sent)

    def outputs(self, plan: NoisePlan) -> PaperOutputs:
        from sottovoce.paper.paper_rounds import PaperOutputs

        return PaperOutputs(plan)

    def prices(self, plan: NoisePlan, algorithm: Tikhonov) -> Multipliers:
        from sottovoce.paper.paper_rounds import Multipliers

        return Multipliers(plan, algorithm)


RELEASE = _PaperRelease()


def _limit_accuracy(
    problem: Problem, plan: NoisePlan, rounds: int, optimum: ReferenceOptimum
) -> tuple[Array, Array, tuple[int, ...]]:
    """The standard deviations of x and mu, and the flat components of x.

    ``J^-1 Sigma J^-T / T`` with J the Jacobian of the saddle-point conditions on the active set,
    ``[[H, G'], [G, 0]]``: H is the Hessian of the Lagrangian over the states at no active bound
    and G the gradients of the active constraints. Sigma is the noise there: ``sum_j mu_j^2
    sigma_ij^2`` in the equation of state i, whose gradient entries carry noise, and ``sigma_g^2``
    in an active row.
    """
    from sottovoce.privacy.limit import ACTIVE_FORCE
    from sottovoce.problem.numeric import Numeric

    numeric, x, mu = Numeric(problem), optimum.x, optimum.mu
    jacobian = numeric.jacobian(x).toarray()
    least_force = ACTIVE_FORCE * np.max(np.abs(numeric.objective_gradient(x)))
    at_bound = np.abs(optimum.bound_multipliers) > least_force
    free = np.flatnonzero((numeric.lower < numeric.upper) & ~at_bound)
    rows = np.flatnonzero(mu * np.max(np.abs(jacobian), axis=1) > least_force)
    lagrangian = numeric.lagrangian_hessian(x, mu).toarray()
    hessian, slopes = lagrangian[np.ix_(free, free)], jacobian[np.ix_(rows, free)]
    sigma = np.array([o.sigma for o in plan.outputs if o.kind == "value"])
    gradient_noise = np.zeros(x.size)  # variance in each state's equation
    for output in plan.outputs:
        if output.column is not None:
            gradient_noise[output.column] += (mu[output.row] * output.sigma) ** 2
    noise_sq = np.concatenate([gradient_noise[free], sigma[rows] ** 2])
    inverse, null = _pseudo_inverse(hessian, slopes)
    spread = np.square(inverse) @ noise_sq / rounds
    x_each, mu_each = np.zeros(problem.size), np.zeros(problem.rows)
    x_each[free] = np.sqrt(spread[: free.size])
    mu_each[rows] = np.sqrt(spread[free.size :])
    flat = free[np.linalg.norm(null[: free.size], axis=1) > 1e-6]
    return x_each, mu_each, tuple(int(i) for i in flat)


def _pseudo_inverse(hessian: Array, slopes: Array) -> tuple[Array, Array]:
    """The pseudo-inverse of ``[[H, G'], [G, 0]]``, and an orthonormal basis of its null space.

    Units must not pass for flatness, so J is scaled to ``D J D`` first. ``D pinv(D J D) D`` alone
    would invert J only up to null directions that D has turned; projecting on the orthogonal
    complement of the null space, ``D null(D J D)``, corrects that.
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
