"""Planning: calibrate the noise of every sum to the requested (epsilon, delta) of every agent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sparse
from numpy.typing import ArrayLike

from sottovoce.arguments import array, instance, real
from sottovoce.certificate.certificate import Certificate, certify
from sottovoce.certificate.sensitivity import Sensitivity
from sottovoce.errors import InputError, PrivacyError
from sottovoce.privacy.adjacency import (
    Adjacency,
    Everything,
    Offset,
    Trajectory,
    per_agent,
    radii,
)
from sottovoce.privacy.allocation import (
    allocate,
    joint_scaling,
    rounding_mu,
    rounding_shift,
    spent_gdp_mu,
)
from sottovoce.privacy.feasibility import Feasibility
from sottovoce.privacy.gaussian import delta_of, epsilon_of, gdp_mu_of
from sottovoce.privacy.margins import (
    bound_averaged_noise,
    expected_target,
    feasibility,
    margin_cost,
    require_proven_convexity,
    require_room,
)
from sottovoce.privacy.noise_plan import NoisePlan, Output
from sottovoce.privacy.sampler import DISCRETISATION, max_release
from sottovoce.privacy.statement import down, up
from sottovoce.privacy.trust import ONE_CLOUD, Trust
from sottovoce.problem.groups import Array, read_only
from sottovoce.problem.problem import CloudView, Problem
from sottovoce.progress import Progress, watched

_UP, _DOWN, _DOWN_CAP = 1.0 + 2.0**-50, 1.0 - 2.0**-40, 1.0 - 2.0**-45  # round towards more noise
_ALLOCATIONS = 8  # tries until the allowance for rounding covers what rounding takes
_ALLOWANCE_GROWTH = 1.001  # of the allowance over what the last try needed
_REMEDY_AGENTS = slice(1_000)  # agents that a remedy considers: a fleet's mostly ask for the same
_MAX_SQUARABLE = (
    1e60  # products of two squares of numbers up to this, or down to its inverse, are exact
)


def plan(
    problem: Problem | Certificate,
    *,
    epsilon: ArrayLike,
    delta: ArrayLike,
    hide: Adjacency,
    weights: ArrayLike | None = None,
    trust: Trust | None = None,
    feasible: float | None = None,
    each_row: bool = False,
    progress: bool | Progress | None = None,
) -> NoisePlan:
    """Choose the noise of every sum so that every agent gets (epsilon, delta) for all rounds.

    ``mu_l = R_l sup |diag(1/sigma) J_l|_2``, with J_l the Jacobian of agent l's contributions, is
    what its behaviour reveals through all sums of all rounds together; the plan keeps
    ``delta(epsilon; mu_l) <= delta`` and minimises ``sum_o w_o sigma_o^2``. Noise is allocated by
    ``sum_o S[o, l]^2 / sigma_o^2``, which is never less, and scaled down by what the norm itself
    allows. To hide everything, the range of agent l's contribution takes the place of
    ``b_l S[o, l]``.

    Args:
        problem: is certified first; or its certificate, from ``certify``.
        epsilon: one number or one per agent.
        delta: likewise, in (0, 1).
        hide: ``Trajectory``, ``Offset`` or ``Everything``: which behaviours are adjacent.
        weights: w_o per sum. By default one over the squared median of ``S[o, l]`` over the agents
            that move o: noise on a sum displaces the optimum by about sigma over its slope, of
            which this is a public estimate that does not depend on the units of the sum.
        trust: one cloud by default; with ``SplitCloud()`` a cloud and a helper each add this noise.
        feasible: p, such as 0.95: the probability that an answer is confirmed and violates any
            constraint is at most 1 - p. Constraints then get a margin, and a run ends with a test
            (see ``Feasibility``). By default neither.
        each_row: whether the bound holds for each constraint separately, with smaller margins,
            instead of for all of them together.
        progress: as for ``sv.simulate``.

    Raises:
        PrivacyError: if an assumption fails, rounding alone would reveal too much, or a sum exceeds
            the range of the secure sampler, which would have to stop the run and so leak. If
            margins leave no room, a hard constraint has none, or one with a margin is not proven
            convex.
    """
    certificate = require_certificate(problem, hide, progress)
    cloud = certificate.cloud
    if trust is not None and not isinstance(trust, Trust):
        raise InputError(f"trust must be sv.SplitCloud() or left out, got {trust!r:.60}")
    probability = _require_feasible(feasible, cloud, each_row=each_row)
    requested = PrivacyTarget.per_agent(cloud, epsilon, delta)
    w = _check_weights(weights, certificate.sensitivity)
    with watched(progress) as report:
        report(f"planning: noise for {cloud.agents:,} agents")
        noise = _plan_sums(certificate, requested, hide, w, trust or ONE_CLOUD)
        if probability is None:
            return noise
        margins = _plan_margins(certificate, noise, requested, probability, each_row)
        return replace(noise, feasible=margins)


def _plan_sums(
    certificate: Certificate,
    requested: PrivacyTarget,
    hide: Adjacency,
    weights: Array,
    trust: Trust,
) -> NoisePlan:
    """The plan of noisy sums, without margins."""
    cloud, ranges = certificate.cloud, certificate.contributions
    S = ranges.spread if isinstance(hide, Everything) else certificate.sensitivity
    radius = sequence_radii(hide, cloud.agents)
    require_squarable_sensitivity(S)
    sigma = _allocate_jointly(S, requested.gdp_mu, radius, hide.rounds, ranges.error, weights)
    noise = NoisePlan(
        cloud=cloud,
        hide=hide,
        epsilon=requested.epsilon,
        delta=requested.delta,
        outputs=tuple(
            Output(name=name, kind="sum", sigma=s, row=row)
            for row, (name, s) in enumerate(zip(cloud.sums.labels, sigma.tolist(), strict=True))
        ),
        domain=certificate.domain,
        gdp_mu=read_only(spent_gdp_mu(S, sigma, radius, ranges.error, hide.rounds)),
        gdp_rounding=rounding_mu(sigma, ranges.error, hide.rounds),
        certified=True,
        trust=trust,
    )
    require_releasable(noise, ranges.size)
    _require_promise(noise)
    return noise


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrivacyTarget:
    """The requested epsilon and delta of every agent, and the largest Gaussian-DP mu for both."""

    epsilon: Array
    delta: Array
    gdp_mu: Array

    @staticmethod
    def per_agent(cloud: CloudView, epsilon: ArrayLike, delta: ArrayLike) -> PrivacyTarget:
        """Check what is requested, one number or one per agent."""
        eps = per_agent("epsilon", epsilon, cloud.agents)
        dlt = per_agent("delta", delta, cloud.agents)
        return PrivacyTarget(epsilon=eps, delta=dlt, gdp_mu=_find_largest_mu(eps, dlt))


def require_certificate(
    problem: Problem | Certificate, hide: Adjacency, progress: bool | Progress | None = None
) -> Certificate:
    """Return a certificate whose assumptions hold, of a problem or the one passed in."""
    if not isinstance(hide, Adjacency):
        raise InputError(
            f"hide must be sv.Trajectory(...), sv.Offset(...) or sv.Everything(...), got {hide!r}"
        )
    if isinstance(problem, Problem):
        problem = certify(problem, progress=progress)
    certificate = instance("problem", problem, Certificate, "sv.Problem(...) or sv.certify(...)")
    certificate.require()
    return certificate


def _require_feasible(feasible: float | None, cloud: CloudView, *, each_row: bool) -> float | None:
    """The requested probability; required of constraints with a physical limit."""
    if not isinstance(each_row, bool):
        raise InputError(f"each_row must be True or False, got {each_row!r:.60}")
    if feasible is not None:
        return real("feasible", feasible, "in [0.5, 1)", lambda p: 0.5 <= p < 1)
    if each_row:
        raise InputError("each_row must go with feasible, got it alone: say feasible=0.95 too")
    limits = [family.name for family in cloud.constraints if family.hard]
    if limits:
        raise PrivacyError(
            f"constraint {limits[0]} is hard, so that feasible must be given, got none: without a "
            "margin about every second answer is over an active limit; say feasible=0.95"
        )
    return None


def _plan_margins(
    certificate: Certificate,
    base: NoisePlan,
    requested: PrivacyTarget,
    probability: float,
    each_row: bool,
) -> Feasibility:
    """The margins of a plan whose noise ``base`` has."""
    sums = base.cloud.sums
    noise = bound_averaged_noise(certificate, base.released_sigma, base.rounds)
    require_proven_convexity(certificate, noise)
    margins = require_room(
        base.cloud,
        certificate.domain,
        lambda share: feasibility(sums, noise.scaled(share), probability, each_row=each_row),
        lambda share: _list_remedies(certificate, base, requested, share),
    )
    return replace(margins, cost=margin_cost(certificate.problem, expected_target(margins)))


def _list_remedies(
    certificate: Certificate, base: NoisePlan, requested: PrivacyTarget, share: float
) -> Iterator[str]:
    """What makes noise ``share`` times as large, each by itself and with its number."""
    hide = base.hide
    if not isinstance(hide, Everything):
        yield f"a radius of {down(float(np.max(np.asarray(hide.radius, dtype=float))) * share, 3)}"
    epsilon = epsilon_of(requested.gdp_mu[_REMEDY_AGENTS] / share, requested.delta[_REMEDY_AGENTS])
    yield f"epsilon = {up(float(epsilon.max()), 3)}"
    if isinstance(hide, Trajectory):
        yield f"{int(np.ceil(hide.rounds / share**2)):,} rounds"
    elif isinstance(hide, Offset):
        if share * np.sqrt(hide.rounds) >= 1.0:
            yield "to hide a trajectory of that radius instead of an offset"
    else:
        offset = Offset(radius=1.0, rounds=hide.rounds)
        w = _check_weights(None, certificate.sensitivity)
        other, noisy = _plan_sums(certificate, requested, offset, w, base.trust), base.sigma > 0
        radius = share * float(np.min(base.sigma[noisy] / other.sigma[noisy]))
        yield f"to hide an offset of {down(radius, 3)} in every round instead of everything"
    more = int(np.ceil(base.cloud.agents / share))
    yield f"{more:,} agents of the same kind, if bounds grow with their number"


def sequence_radii(hide: Adjacency, agents: int) -> Array:
    """R_l: how far apart two whole sequences can be, in the units that S multiplies."""
    if isinstance(hide, Trajectory):
        return radii(hide, agents)
    b = np.ones(agents) if isinstance(hide, Everything) else radii(hide, agents)
    return np.asarray(b * np.sqrt(hide.rounds) * _UP)


def _find_largest_mu(epsilon: Array, delta: Array) -> Array:
    """The largest mu_l that keeps (epsilon_l, delta_l), computed once per distinct pair."""
    if epsilon.strides == delta.strides == (0,):
        return np.broadcast_to(gdp_mu_of(epsilon[:1], delta[:1]), epsilon.shape)
    pairs, inverse = np.unique(np.stack([epsilon, delta]), axis=1, return_inverse=True)
    return np.asarray(gdp_mu_of(pairs[0], pairs[1])[inverse.ravel()])


def _check_weights(weights: ArrayLike | None, S: Sensitivity) -> Array:
    if weights is None:
        slope = S.typical()
        moderate = np.clip(
            slope, 1.0 / _MAX_SQUARABLE, _MAX_SQUARABLE
        )  # others are refused where they count
        return np.where(slope > 0, 1.0 / np.square(moderate), 1.0)
    values = array("weights", weights, f"{S.outputs} numbers, one per output")
    if values.shape != (S.outputs,):
        raise InputError(
            f"weights must have one entry per output ({S.outputs}), got shape {values.shape}"
        )
    wrong = ~(np.isfinite(values) & (values > 0))
    if np.any(wrong):
        raise InputError(f"weights must be positive and finite, got {values[wrong][0]:g}")
    return values


def _allocate_jointly(
    S: Sensitivity,
    target: Array,
    radius: Array,
    rounds: int,
    errors: Array,
    weights: Array,
) -> Array:
    """Allocate the noise so that mu and what rounding adds to it stay within the target."""
    allowance = 0.0  # of mu, for rounding
    for _ in range(_ALLOCATIONS):
        available = target / DISCRETISATION * _DOWN - allowance
        if np.any(available <= 0):
            break
        require_squarable("radius sqrt(rounds) / mu", radius / available)
        with np.errstate(divide="ignore"):  # an agent whose box is a point can reveal nothing
            caps = np.square(available / radius) * _DOWN_CAP
        sigma = allocate(S, caps, weights)
        sigma = sigma * joint_scaling(S, sigma, caps)
        # Less noise means more rounding per sigma, so the allowance is taken from the result.
        needed = rounding_shift(sigma, errors, rounds)
        if needed <= allowance:
            return sigma
        allowance = needed * _ALLOWANCE_GROWTH
    raise PrivacyError(
        f"epsilon, delta or radius are too small for {rounds:,} rounds: the rounding of numbers "
        "alone would reveal more; enlarge one of them or ask for fewer rounds"
    )


def require_squarable_sensitivity(S: Sensitivity) -> None:
    """Refuse sensitivities whose squares would vanish or overflow."""
    for block in S.blocks:
        values = block.upper.data if sparse.issparse(block.upper) else block.upper
        require_squarable("the influence of an agent on an output", values)


def require_squarable(name: str, values: Array) -> None:
    """Refuse numbers so small that their squares would vanish, and the noise with them."""
    least, most = np.min(values, where=values > 0, initial=np.inf), np.max(values, initial=0.0)
    if not (least >= 1.0 / _MAX_SQUARABLE and most <= _MAX_SQUARABLE):
        raise PrivacyError(
            f"{name} must lie in [{1.0 / _MAX_SQUARABLE:g}, {_MAX_SQUARABLE:g}], got "
            f"{least if most <= _MAX_SQUARABLE else most:g}: state the problem in other units"
        )


def require_releasable(noise: NoisePlan, sizes: Array) -> None:
    """Refuse a plan under which outputs of these sizes exceed what the secure sampler releases."""
    sigma = noise.sigma
    noisy = np.flatnonzero(sigma)
    beyond = noisy[sizes[noisy] >= max_release(sigma[noisy])]
    if beyond.size:
        first = beyond[0]
        name, most = noise.outputs[first].name, max_release(sigma[first])
        raise PrivacyError(
            f"{name} must stay below 2^25 sigma = {most:.3g}, all that the secure sampler "
            f"releases, got up to {sizes[first]:.3g}: tighten the boxes, or ask for a larger "
            "radius or a smaller epsilon"
        )


def _require_promise(noise: NoisePlan) -> None:
    if not np.all(delta_of(noise.gdp_mu, noise.epsilon) <= noise.delta):
        raise PrivacyError("the plan would promise less than was asked for; no plan is made")
