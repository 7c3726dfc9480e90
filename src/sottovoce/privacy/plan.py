"""Planning: noise for every output, by which every agent gets what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sparse

from sottovoce.arguments import array, instance, real
from sottovoce.certificate.certificate import Certificate
from sottovoce.certificate.evaluation import evaluation_errors
from sottovoce.certificate.gradients import GradientEntry
from sottovoce.certificate.sensitivity import Sensitivity
from sottovoce.errors import InputError, PrivacyError
from sottovoce.privacy.adjacency import Adjacency, Everything, Offset, Trajectory, per_agent, radii
from sottovoce.privacy.allocation import allocate, rounding_share, rounding_spent, spare, spent
from sottovoce.privacy.feasibility import Feasibility
from sottovoce.privacy.gaussian import delta_of, mu_of
from sottovoce.privacy.margins import (
    AveragedNoise,
    advice,
    expected_set,
    feasibility,
    margin_cost,
    noise_of,
    require_proven_convexity,
    require_room,
)
from sottovoce.privacy.noise_plan import Kind, Method, NoisePlan, Output
from sottovoce.privacy.paper_method import Constants, each_mechanism_keeps, paper_noise
from sottovoce.privacy.sampler import DISCRETISATION, grid_of, reach_of
from sottovoce.privacy.statement import down
from sottovoce.privacy.trust import ONE_CLOUD, SplitCloud, Trust
from sottovoce.problem.agents import Array, Group, read_only
from sottovoce.problem.problem import CloudView
from sottovoce.progress import Progress, watched

_MODERATE = 1e60  # products of two squares of numbers up to this, or down to its inverse, are exact


def plan(
    certificate: Certificate,
    *,
    epsilon: Any,
    delta: Any,
    hide: Adjacency,
    method: str = "joint",
    weights: Any = None,
    constants: Constants | None = None,
    allow_undernoised: bool = False,
    trust: Trust | None = None,
    feasible: float | None = None,
    each_row: bool = False,
    progress: bool | Progress | None = None,
) -> NoisePlan:
    """Choose the noise of every output so that every agent gets (epsilon, delta) for everything.

    ``mu_l = R_l sup |diag(1/sigma) J_l|_2``, with J_l the Jacobian of agent l's contributions, is
    what its behaviour reveals through all outputs of all rounds together; the plan keeps
    ``delta(epsilon; mu_l) <= delta``. Noise is allocated by ``sum_o S[o, l]^2 / sigma_o^2``, which
    is never less, and scaled down by what the norm itself allows. To hide
    everything, the range of agent l's contribution takes the place of ``b_l S[o, l]``.

    Args:
        certificate: from ``certify``; an assumption that fails is refused here.
        epsilon: one number or one per agent.
        delta: likewise, in (0, 1).
        hide: ``Trajectory``, ``Offset`` or ``Everything``: what must look alike.
        method: "joint" releases noisy sums and minimises ``sum_o w_o sigma_o^2``; "paper" releases
            values and gradients of the constraints with the noise of Theorems 2 and 3, each
            mechanism by itself, over the original X.
        weights: w_o per sum. By default one over the squared median of ``S[o, l]`` over the agents
            that move o: noise on a sum displaces the optimum by about sigma over its slope, of
            which this is a public estimate that does not depend on the units of the sum.
        constants: for "paper", K_g and K_g'^i instead of the certified ones.
        allow_undernoised: for "paper", return a plan even where the formula breaks its promise.
        trust: ``OneCloud()`` by default; with ``SplitCloud()`` a cloud and a helper each add this
            noise, for "joint" only.
        feasible: the probability with which a confirmed answer keeps all constraints together,
            such as 0.95; for "joint" only. Constraints are then aimed at with a margin, and a run
            ends with a test (see ``Feasibility``). By default neither.
        each_row: whether ``feasible`` holds for every constraint by itself, which needs smaller
            margins, instead of for all of them together.
        progress: whether to show what is being done once it has taken two seconds, by default on a
            terminal; or somebody to tell.

    Raises:
        PrivacyError: where the paper's formula gives less than (epsilon, delta), where rounding
            alone would reveal too much, or where an output exceeds what the secure sampler
            releases: a run would have to stop there, and that would tell something. Where margins
            leave no room, a hard constraint has none, or one with a margin is not proven convex.
    """
    if not isinstance(hide, Adjacency):
        raise InputError(
            f"hide must be sv.Trajectory(...), sv.Offset(...) or sv.Everything(...), got {hide!r}"
        )
    instance("certificate", certificate, Certificate, "sv.certify(problem)").require()
    cloud = certificate.cloud
    how = _method(method, weights, constants, allow_undernoised)
    trusted = _trust(trust, how)
    wish = _probability(feasible, how, cloud, each_row=each_row)
    eps = per_agent("epsilon", epsilon, cloud.agents)
    dlt = per_agent("delta", delta, cloud.agents)
    target = _targets(eps, dlt)
    reach = _reach(hide, cloud.agents)
    entries: tuple[GradientEntry, ...] = ()
    with watched(progress) as tell:
        tell(f"planning: noise for {cloud.agents:,} agents")
        if how == "joint":
            domain = certificate.domain
            S = certificate.sensitivity
            w = _weights(weights, S)
            if isinstance(hide, Everything):
                S = certificate.contributions.spread
            _require_moderate_influence(S)
            errors, sizes = certificate.contributions.error, certificate.contributions.size
            sigma = _joint(S, target, reach, hide.rounds, errors, w)
        else:
            domain = cloud.groups
            S, entries, sigma = paper_noise(
                certificate, eps, dlt, _paper_reach(hide, domain), constants
            )
            errors, sizes = evaluation_errors(cloud, domain, entries)
            _require_moderate_influence(S)
            _require_moderate("the paper's sigma", sigma)
            reach = _paper_reach(hide, domain)

    def spends(part: Array) -> Array:
        return spent(S, part, reach, errors, hide.rounds)

    certified = how == "joint" or each_mechanism_keeps(
        cloud, entries, sigma, spends, target, allow_undernoised=allow_undernoised
    )
    made = _checked(
        sizes,
        NoisePlan(
            cloud=cloud,
            method=how,
            hide=hide,
            epsilon=eps,
            delta=dlt,
            outputs=_outputs(cloud, how, entries, sigma),
            domain=domain,
            gdp_mu=read_only(spends(sigma)),
            gdp_rounding=rounding_spent(sigma, errors, hide.rounds),
            certified=certified,
            trust=trusted,
        ),
    )
    if wish is None:
        return made
    return replace(made, feasible=_feasible(certificate, made, wish, each_row=each_row))


def _probability(
    feasible: Any, method: Method, cloud: CloudView, *, each_row: bool
) -> float | None:
    """The probability that is asked for; required of constraints with a physical limit."""
    if not isinstance(each_row, bool):
        raise InputError(f"each_row must be True or False, got {each_row!r:.60}")
    if feasible is None and each_row:
        raise InputError("each_row must go with feasible, got it alone: say feasible=0.95 too")
    probability = None
    if feasible is not None:
        probability = real("feasible", feasible, "in [0.5, 1)", lambda p: 0.5 <= p < 1)
    if probability is not None and method == "paper":
        raise InputError(
            "feasible needs method='joint', got method='paper', whose answer is the last iterate "
            "and not an average of what was released: plan with method='joint'"
        )
    limits = [family.name for family in cloud.constraints if family.hard]
    if limits and probability is None:
        raise PrivacyError(
            f"constraint {limits[0]} is hard, so that feasible must be given, got none: without a "
            "margin about every second answer is over an active limit; say feasible=0.95"
        )
    return probability


def _feasible(
    certificate: Certificate, made: NoisePlan, probability: float, *, each_row: bool
) -> Feasibility:
    """The margins of a plan.

    Raises:
        PrivacyError: they leave no room, or a constraint is not proven convex.
    """
    cloud, hide = made.cloud, made.hide
    noise = noise_of(certificate, made.released_sigma, made.rounds)
    require_proven_convexity(certificate, noise)

    def margins(averaged: AveragedNoise) -> Feasibility:
        return feasibility(cloud.sums, averaged, probability, each_row=each_row)

    def smaller(share: float) -> str | None:
        if isinstance(hide, Offset) and share * np.sqrt(hide.rounds) >= 1.0:
            return "to hide a trajectory of that radius instead of an offset"
        if isinstance(hide, Everything):
            epsilon, delta = made.epsilon, made.delta
            less = Offset(radius=1.0, rounds=hide.rounds)
            other = plan(certificate, epsilon=epsilon, delta=delta, hide=less, trust=made.trust)
            noisy = made.sigma > 0
            radius = share * float(np.min(made.sigma[noisy] / other.sigma[noisy]))
            return f"to hide an offset of {down(radius, 3)} in every round instead of everything"
        return None

    require_room(
        cloud,
        certificate.domain,
        lambda share: margins(noise.times(share)).target,
        advice(hide, made.epsilon, made.delta, cloud.agents, smaller),
    )
    kept = margins(noise)
    return replace(kept, cost=margin_cost(certificate.problem, expected_set(kept, noise)))


def _reach(hide: Adjacency, agents: int) -> Array:
    """R_l: how far apart two whole sequences can be, in units of what S multiplies."""
    if isinstance(hide, Trajectory):
        return radii(hide, agents)
    b = np.ones(agents) if isinstance(hide, Everything) else radii(hide, agents)
    return np.asarray(b * np.sqrt(hide.rounds) * (1.0 + 2.0**-50))


def _paper_reach(hide: Adjacency, groups: Sequence[Group]) -> Array:
    """The same for outputs that are not sums: any two states lie within a box's diameter."""
    agents = sum(group.count for group in groups)
    if isinstance(hide, Everything):
        widths = np.concatenate([_diameters(group) for group in groups])
        return np.asarray(widths * np.sqrt(hide.rounds) * (1.0 + 2.0**-50))
    return _reach(hide, agents)


def _diameters(group: Group) -> Array:
    """The diameter of each agent's box, rounded up."""
    # hypot neither overflows nor underflows on the way, and errs by less than an ulp per step.
    width = np.asarray(group.upper - group.lower)
    return np.asarray(np.hypot.reduce(width, axis=1) * (1.0 + group.dim * 2.0**-50))


def _outputs(
    cloud: CloudView, method: Method, entries: Sequence[GradientEntry], sigma: Array
) -> tuple[Output, ...]:
    kind: Kind = "sum" if method == "joint" else "value"
    names = cloud.sums.labels() if method == "joint" else cloud.row_labels()
    columns = [s.name for group in cloud.groups for s in group.symbols * group.count]
    named: list[tuple[str, Kind, int, int | None]] = [
        (name, kind, row, None) for row, name in enumerate(names)
    ]
    named += [(f"d {names[e.row]} / d {columns[e.column]}", "gradient", e.row, e.column)
              for e in entries]  # fmt: skip
    return tuple(
        Output(
            name=name,
            kind=what,
            sigma=float(s),
            grid=float(grid_of(s)) if s > 0 else 0.0,
            row=row,
            column=column,
        )
        for (name, what, row, column), s in zip(named, sigma, strict=True)
    )


def _method(given: str, weights: Any, constants: Constants | None, allow: bool) -> Method:
    if given == "joint":
        if constants is not None or allow:
            raise InputError(
                "constants and allow_undernoised belong to method='paper', got them with "
                "method='joint'"
            )
        return "joint"
    if given == "paper":
        if weights is not None:
            raise InputError("weights belong to method='joint', got them with method='paper'")
        if constants is not None:
            instance("constants", constants, Constants, "sv.Constants(...)")
        return "paper"
    raise InputError(f"method must be 'joint' or 'paper', got {given!r}")


def _trust(given: Trust | None, method: Method) -> Trust:
    if given is None:
        return ONE_CLOUD
    if not isinstance(given, Trust):
        raise InputError(f"trust must be sv.OneCloud() or sv.SplitCloud(), got {given!r:.60}")
    if isinstance(given, SplitCloud) and method == "paper":
        raise InputError(
            "trust must be sv.OneCloud() with method='paper', got sv.SplitCloud(): the paper's "
            "cloud works with every state, only sums can be masked; plan with method='joint'"
        )
    return given


def _targets(epsilon: Array, delta: Array) -> Array:
    """The largest mu_l that keeps (epsilon_l, delta_l), computed once per distinct pair."""
    if epsilon.strides == delta.strides == (0,):
        return np.broadcast_to(mu_of(epsilon[:1], delta[:1]), epsilon.shape)
    pairs, inverse = np.unique(np.stack([epsilon, delta]), axis=1, return_inverse=True)
    return np.asarray(mu_of(pairs[0], pairs[1])[inverse.ravel()])


def _weights(weights: Any, S: Sensitivity) -> Array:
    if weights is None:
        slope = S.typical()
        moderate = np.clip(slope, 1.0 / _MODERATE, _MODERATE)  # others are refused where they count
        return np.where(slope > 0, 1.0 / np.square(moderate), 1.0)
    given = array("weights", weights, f"{S.outputs} numbers, one per output")
    if given.shape != (S.outputs,):
        raise InputError(
            f"weights must have one entry per output ({S.outputs}), got shape {given.shape}"
        )
    wrong = ~(np.isfinite(given) & (given > 0))
    if np.any(wrong):
        raise InputError(f"weights must be positive and finite, got {given[wrong][0]:g}")
    return given


def _joint(
    S: Sensitivity, target: Array, reach: Array, rounds: int, errors: Array, weights: Array
) -> Array:
    """Allocate the noise, leaving room for what rounding adds to every agent's movement."""
    kept = 0.0
    for _ in range(8):
        room = target / DISCRETISATION * (1.0 - 2.0**-40) - kept
        if np.any(room <= 0):
            break
        _require_moderate("radius sqrt(rounds) / mu", reach / room)
        with np.errstate(divide="ignore"):  # an agent whose box is a point can reveal nothing
            caps = np.square(room / reach) * (1.0 - 2.0**-45)
        sigma = allocate(S, caps, weights)
        sigma = sigma * spare(S, sigma, caps)
        # Less noise means more rounding per sigma, so the allowance is taken from what came out.
        needed = rounding_share(sigma, errors, rounds)
        if needed <= kept:
            return sigma
        kept = needed * 1.001
    raise PrivacyError(
        f"epsilon, delta or radius are too small for {rounds:,} rounds: the rounding of numbers "
        "alone would reveal more; enlarge one of them or ask for fewer rounds"
    )


def _require_moderate_influence(S: Sensitivity) -> None:
    for block in S.blocks:
        values = block.upper.data if sparse.issparse(block.upper) else block.upper
        _require_moderate("the influence of an agent on an output", values)


def _require_moderate(name: str, values: Array) -> None:
    """Refuse numbers so small that their squares would vanish, and the noise with them."""
    least, most = np.min(values, where=values > 0, initial=np.inf), np.max(values, initial=0.0)
    if not (least >= 1.0 / _MODERATE and most <= _MODERATE):
        got = least if most <= _MODERATE else most
        raise PrivacyError(
            f"{name} must lie in [{1.0 / _MODERATE:g}, {_MODERATE:g}], got {got:g}: state the "
            "problem in other units"
        )


def _checked(sizes: Array, made: NoisePlan) -> NoisePlan:
    """Return the plan only if it can be carried out and keeps every promise that was asked for."""
    if not all(o.sigma > 0 for o in made.outputs if o.kind == "gradient"):
        raise PrivacyError(
            "every released gradient entry must be moved by some agent, got one that is not: "
            "simplify the constraints"
        )
    sigma = made.sigma
    noisy = np.flatnonzero(sigma)
    beyond = noisy[sizes[noisy] >= reach_of(sigma[noisy])]
    if beyond.size:
        first = beyond[0]
        name, most = made.outputs[first].name, reach_of(sigma[first])
        raise PrivacyError(
            f"{name} must stay below 2^25 sigma = {most:.3g}, all that the secure sampler "
            f"releases, got up to {sizes[first]:.3g}: tighten the boxes, or ask for a larger "
            "radius or a smaller epsilon"
        )
    if made.method == "joint" and not np.all(delta_of(made.gdp_mu, made.epsilon) <= made.delta):
        raise PrivacyError("the plan would promise less than was asked for; no plan is made")
    return made
