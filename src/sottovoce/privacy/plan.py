"""The noise plan: one sigma per output, and what it promises every agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse as sparse

from sottovoce.arguments import array, instance
from sottovoce.certify.certificate import Certificate
from sottovoce.certify.evaluation import evaluation_errors
from sottovoce.certify.sensitivity import Sensitivity
from sottovoce.errors import InputError, PrivacyError
from sottovoce.privacy.adjacency import Adjacency, per_agent, radii, rounds_covered
from sottovoce.privacy.allocate import allocate, rounding_share, rounding_spent, spent
from sottovoce.privacy.charge import Charge, Protected
from sottovoce.privacy.figures import up
from sottovoce.privacy.gaussian import delta_of, epsilon_of, mu_of
from sottovoce.privacy.paper_method import Constants, each_mechanism_keeps, paper_noise
from sottovoce.privacy.sampler import DISCRETISATION, reach_of
from sottovoce.privacy.statement import hidden, statement
from sottovoce.problem.agents import Array, Group, read_only
from sottovoce.problem.problem import CloudView

Method = Literal["joint", "paper"]

_MODERATE = 1e60  # products of two squares of numbers up to this, or down to its inverse, are exact


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """What one agent is promised for the whole transcript: all rounds, all outputs, together.

    Attributes:
        agent: the agent's number, from 1.
        name: what people call it.
        adjacency: which two behaviours of the agent look alike.
        radius: b_l of the adjacency.
        rounds: T.
        gdp_mu: ``mu_l = b_l sqrt(sum_o S[o, l]^2 / sigma_o^2)``, rounding allowance included.
        epsilon: at the delta that was asked for.
        delta: at the epsilon that was asked for.
        asked: the epsilon and the delta that were asked for.
    """

    agent: int
    name: str
    adjacency: Adjacency
    radius: float
    rounds: int
    gdp_mu: float
    epsilon: float
    delta: float
    asked: tuple[float, float]

    @property
    def hidden(self) -> str:
        """What is hidden of the agent, in its own terms."""
        return hidden(self.adjacency, self.radius, self.rounds)

    def __str__(self) -> str:
        return (
            f"{self.name}: ({up(self.epsilon)}, {up(self.asked[1])})-differentially private "
            f"(Gaussian-DP mu = {up(self.gdp_mu)}) for all {self.rounds:,} rounds together.\n"
            f"Hidden: {self.hidden}."
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NoisePlan:
    """Standard deviations for every released number, and the promise they keep.

    Attributes:
        cloud: the public problem it was made for.
        method: "joint" or "paper".
        adjacency: which behaviours look alike.
        rounds: the rounds T it covers.
        epsilon: asked for, per agent.
        delta: asked for, per agent.
        radius: b_l per agent.
        sigma_g: one sigma per row of g; 0 where no agent can move it.
        gradient_rows: the constraint of each released gradient entry, from 0.
        gradient_columns: the component of the state vector it is a derivative by, from 0.
        gradient_sigma: its sigma.
        gradient_slope: how fast it can change when all agents move, ``sum_l S[entry, l]``.
        domain: the agents with the boxes their states are kept in.
        gdp_mu: the Gaussian-DP parameter of each agent for the whole transcript.
        gdp_rounding: the part of every ``gdp_mu`` that pays for the rounding of numbers, whatever
            the radius.
        certified: whether every promise asked for is kept; False only if an undernoised plan was
            explicitly allowed.
    """

    cloud: CloudView
    method: Method
    adjacency: Adjacency
    rounds: int
    epsilon: Array
    delta: Array
    radius: Array
    sigma_g: Array
    gradient_rows: Any
    gradient_columns: Any
    gradient_sigma: Array
    gradient_slope: Array
    domain: tuple[Group, ...]
    gdp_mu: Array
    gdp_rounding: float
    certified: bool

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the public problem it was made for."""
        return self.cloud.fingerprint

    @property
    def sigma(self) -> Array:
        """All standard deviations: the rows of g, then the released gradient entries."""
        return np.concatenate([self.sigma_g, self.gradient_sigma])

    def guarantee(self, agent: int) -> Guarantee:
        """Return what agent number ``agent``, counted from 1, is promised."""
        index, place = self.cloud.locate(agent)
        mu = float(self.gdp_mu[agent - 1])
        return Guarantee(
            agent=agent,
            name=self.cloud.groups[index].label(place),
            adjacency=self.adjacency,
            radius=float(self.radius[agent - 1]),
            rounds=self.rounds,
            gdp_mu=mu,
            epsilon=epsilon_of(mu, float(self.delta[agent - 1])),
            delta=delta_of(mu, float(self.epsilon[agent - 1])),
            asked=(float(self.epsilon[agent - 1]), float(self.delta[agent - 1])),
        )

    def charges(self) -> tuple[Charge, ...]:
        """Return what a run of all covered rounds costs each agent, for a ledger."""
        kind, everything = self.adjacency, self.adjacency == "everything"
        return tuple(
            Charge(
                agent=label,
                protected=Protected(kind, None if everything else radius),
                mu=mu,
                allowance=min(self.gdp_rounding, mu),
            )
            for label, radius, mu in zip(
                self.cloud.agent_labels(), self.radius.tolist(), self.gdp_mu.tolist(), strict=True
            )
        )

    def __str__(self) -> str:
        return statement(self)


def plan(
    certificate: Certificate,
    *,
    epsilon: Any,
    delta: Any,
    radius: Any = None,
    adjacency: str = "trajectory",
    rounds: int | None = None,
    method: str = "joint",
    weights: Any = None,
    constants: Constants | None = None,
    allow_undernoised: bool = False,
) -> NoisePlan:
    """Choose the noise of every output so that every agent gets (epsilon, delta) for everything.

    ``mu_l = b_l sqrt(sum_o S[o, l]^2 / sigma_o^2)`` is what agent l's behaviour reveals through
    all outputs of all rounds together; the plan keeps ``delta(epsilon; mu_l) <= delta``.

    Args:
        certificate: from ``certify``; an assumption that fails is refused here.
        epsilon: one number or one per agent.
        delta: likewise, in (0, 1).
        radius: b, one number or one per agent; not for "everything".
        adjacency: "trajectory" (b bounds the whole sequence of states), "per-round" (b bounds each
            round) or "everything" (any two behaviours).
        rounds: T; needed unless the adjacency is "trajectory", which covers a million if not said.
        method: "joint" minimises ``sum_o w_o sigma_o^2``; "paper" follows Theorems 2 and 3, each
            mechanism by itself, over the original X.
        weights: w_o per output (rows of g, then released gradient entries). By default one over
            the squared median of ``S[o, l]`` over the agents that move o: noise on a constraint
            displaces the optimum by about sigma over the constraint's slope, of which this is a
            public estimate that does not depend on the constraint's units. For gradient entries
            the smallest ``S[o, l]`` takes its place: their noise acts on a state directly, and
            agents take longer to average it.
        constants: for "paper", K_g and K_g'^i instead of the certified ones.
        allow_undernoised: for "paper", return a plan even where the formula breaks its promise.

    Raises:
        PrivacyError: where the paper's formula gives less than (epsilon, delta), where rounding
            alone would reveal too much, or where an output exceeds what the secure sampler
            releases: a run would have to stop there, and that would tell something.
    """
    instance("certificate", certificate, Certificate, "sv.certify(problem)").require()
    cloud = certificate.cloud
    how = _method(method, weights, constants, allow_undernoised)
    eps = per_agent("epsilon", epsilon, cloud.agents)
    dlt = per_agent("delta", delta, cloud.agents)
    target = _targets(eps, dlt)
    domain = certificate.domain if how == "joint" else cloud.groups
    kind, b = radii(adjacency, radius, domain, agents=cloud.agents)
    covered = rounds_covered(kind, rounds)
    reach = b if kind == "trajectory" else b * np.sqrt(covered) * (1.0 + 2.0**-50)
    if how == "joint":
        S, entries = certificate.sensitivity, certificate.released
        errors, sizes = certificate.evaluation_error, certificate.magnitude
        _require_moderate_influence(S)
        sigma = _joint(S, target, reach, covered, errors, _weights(weights, S, cloud.rows))
    else:
        S, entries, sigma = paper_noise(certificate, eps, dlt, reach, constants=constants)
        errors, sizes = evaluation_errors(cloud, domain, entries)
        _require_moderate_influence(S)
        _require_moderate("the paper's sigma", sigma)

    def spends(part: Array) -> Array:
        return spent(S, part, reach, errors, covered)

    certified = how == "joint" or each_mechanism_keeps(
        cloud, entries, sigma, spends, target, allow_undernoised=allow_undernoised
    )
    return _checked(
        sizes,
        NoisePlan(
            cloud=cloud,
            method=how,
            adjacency=kind,
            rounds=covered,
            epsilon=eps,
            delta=dlt,
            radius=b,
            sigma_g=read_only(sigma[: cloud.rows]),
            gradient_rows=np.array([e.row for e in entries], dtype=np.int64),
            gradient_columns=np.array([e.column for e in entries], dtype=np.int64),
            gradient_sigma=read_only(sigma[cloud.rows :]),
            gradient_slope=read_only(S.totals()[cloud.rows :]),
            domain=domain,
            gdp_mu=read_only(spends(sigma)),
            gdp_rounding=rounding_spent(sigma, errors, covered),
            certified=certified,
        ),
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


def _targets(epsilon: Array, delta: Array) -> Array:
    """The largest mu_l that keeps (epsilon_l, delta_l), computed once per distinct pair."""
    if epsilon.strides == delta.strides == (0,):
        return np.broadcast_to(mu_of(epsilon[:1], delta[:1]), epsilon.shape)
    pairs, inverse = np.unique(np.stack([epsilon, delta]), axis=1, return_inverse=True)
    return np.asarray(mu_of(pairs[0], pairs[1])[inverse.ravel()])


def _weights(weights: Any, S: Sensitivity, rows: int) -> Array:
    if weights is None:
        slope = np.concatenate([S.typical()[:rows], S.smallest()[rows:]])
        return np.where(slope > 0, 1.0 / np.square(np.where(slope > 0, slope, 1.0)), 1.0)
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
    spare = 0.0
    for _ in range(8):
        room = target / DISCRETISATION * (1.0 - 2.0**-40) - spare
        if np.any(room <= 0):
            break
        _require_moderate("radius sqrt(rounds) / mu", reach / room)
        with np.errstate(divide="ignore"):  # an agent whose box is a point can reveal nothing
            caps = np.square(room / reach) * (1.0 - 2.0**-45)
        sigma = allocate(S, caps, weights)
        # Less noise means more rounding per sigma, so the allowance is taken from what came out.
        needed = rounding_share(sigma, errors, rounds)
        if needed <= spare:
            return sigma
        spare = needed * 1.001
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
    if not np.all(made.gradient_sigma > 0):
        raise PrivacyError(
            "every released gradient entry must be moved by some agent, got one that is not: "
            "simplify the constraints"
        )
    noisy = np.flatnonzero(made.sigma)
    beyond = noisy[sizes[noisy] >= reach_of(made.sigma[noisy])]
    if beyond.size:
        first = beyond[0]
        raise PrivacyError(
            f"output {first + 1} must stay below 2^25 sigma = {reach_of(made.sigma[first]):.3g}, "
            f"all that the secure sampler releases, got up to {sizes[first]:.3g}: tighten the "
            "boxes, or ask for a larger radius or a smaller epsilon"
        )
    if made.method == "joint" and np.any(delta_of(made.gdp_mu, made.epsilon) > made.delta):
        raise PrivacyError("the plan would promise less than was asked for; no plan is made")
    return made
