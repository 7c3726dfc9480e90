"""What is released in every round with which noise, and what that promises every agent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sottovoce.arguments import agent_index
from sottovoce.errors import InputError
from sottovoce.privacy.adjacency import Adjacency, Everything, Trajectory, radii
from sottovoce.privacy.charge import Charge, Protected
from sottovoce.privacy.feasibility import Feasibility
from sottovoce.privacy.gaussian import delta_of, epsilon_of
from sottovoce.privacy.releases import StateRelease
from sottovoce.privacy.sampler import STEPS
from sottovoce.privacy.statement import guarantee_facts, hidden, plan_facts, statement, up
from sottovoce.privacy.trust import ONE_CLOUD, TRUST_STATEMENTS, Trust, ViewName
from sottovoce.problem.groups import Array, Group
from sottovoce.problem.problem import CloudView, Problem
from sottovoce.tables import cut, facts_html

OutputKind = Literal["sum", "value", "gradient"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One number that every round releases.

    Other releases than sums have the "value" of each constraint and entries of its "gradient". The
    cloud adds noise of standard deviation sigma, and the helper of a split cloud as much; 0 where
    no agent can move the output.
    """

    name: str
    kind: OutputKind
    sigma: float
    row: int  # the sum or the constraint, from 0
    column: int | None = None  # for a gradient entry, the component of the state vector, from 0

    @property
    def grid(self) -> float:
        """The public grid that it is released on, ``sigma / 2^26``."""
        return self.sigma / STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """The guarantee of one agent for the whole transcript: all rounds and outputs together.

    ``mu_l = R_l sup |diag(1/sigma) J_l|_2``, rounding allowance included.
    """

    agent: int  # from 0
    name: str
    hide: Adjacency  # with this agent's radius
    gdp_mu: float
    requested: tuple[float, float]  # the requested epsilon and delta
    trust: Trust = ONE_CLOUD

    @property
    def epsilon(self) -> float:
        """Its value at the requested delta."""
        return epsilon_of(self.gdp_mu, self.requested[1])

    @property
    def delta(self) -> float:
        """Its value at the requested epsilon."""
        return delta_of(self.gdp_mu, self.requested[0])

    @property
    def hidden(self) -> str:
        """What is hidden about the agent, in words."""
        return hidden(self.hide)

    def __str__(self) -> str:
        return (
            f"{self.name}: ({up(self.epsilon)}, {up(self.requested[1])})-differentially private "
            f"(Gaussian-DP mu = {up(self.gdp_mu)}) for all {self.hide.rounds:,} rounds together.\n"
            f"Hidden: {self.hidden}.\n"
            f"Trust: {TRUST_STATEMENTS[self.trust.kind]}."
        )

    def __repr__(self) -> str:
        return (
            f"Guarantee(agent={self.agent}, name={cut(self.name)!r}, hide={self.hide.kind!r}, "
            f"rounds={self.hide.rounds}, epsilon={up(self.epsilon)}, "
            f"delta={up(self.requested[1])}, gdp_mu={up(self.gdp_mu)}, trust={self.trust.kind!r})"
        )

    def _repr_html_(self) -> str:
        return facts_html(f"Guarantee of {cut(self.name)}", **guarantee_facts(self))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class NoisePlan:
    """Standard deviations of the noise on every released number, and the guarantee they give.

    Attributes:
        cloud: the public problem.
        hide: which behaviours are adjacent, and for how many rounds.
        epsilon: requested, per agent, like delta.
        outputs: what every round releases, in order.
        domain: the agents with the boxes their states are kept in.
        gdp_mu: the Gaussian-DP parameter of each agent for the whole transcript.
        gdp_rounding: the part of every ``gdp_mu`` that pays for the rounding of numbers, whatever
            the radius.
        certified: whether every requested guarantee holds; False only if an undernoised plan was
            explicitly allowed.
        trust: who adds the noise: one cloud, or each half of a split one.
        feasible: the margins that keep answers within the constraints, if requested.
        release: what is released in place of noisy sums; None for sums.
    """

    cloud: CloudView
    hide: Adjacency
    epsilon: Array
    delta: Array
    outputs: tuple[Output, ...]
    domain: tuple[Group, ...]
    gdp_mu: Array
    gdp_rounding: float
    certified: bool
    trust: Trust = ONE_CLOUD
    feasible: Feasibility | None = None
    release: StateRelease | None = None

    @property
    def method(self) -> str:
        """How noise was chosen: "joint" for all sums together, or the name of another release."""
        return "joint" if self.release is None else self.release.name

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the public problem it was made for."""
        return self.cloud.fingerprint

    def require_problem(self, problem: Problem) -> None:
        """Refuse a problem that the plan was not made for."""
        if self.fingerprint != problem.cloud.fingerprint:
            raise InputError(
                "plan must be made for this problem's constraints and boxes, got one for another "
                f"problem (fingerprints {self.fingerprint} and {problem.cloud.fingerprint}): "
                "certify this problem and plan again"
            )

    @property
    def rounds(self) -> int:
        """The rounds T that the guarantee covers."""
        return int(self.hide.rounds)

    def named_rounds(self) -> int:
        """The rounds that ``hide`` names; refused where it names none."""
        if isinstance(self.hide, Trajectory) and self.hide.open_ended:
            raise InputError(
                "rounds must be given where the plan names none, got none: say rounds=1000, or "
                "plan with hide=sv.Trajectory(radius=..., rounds=1000)"
            )
        return self.rounds

    @property
    def sigma(self) -> Array:
        """The standard deviations of the noise that each half adds, per output."""
        return np.array([output.sigma for output in self.outputs])

    @property
    def released_sigma(self) -> Array:
        """The standard deviations of what is released: ``sqrt(2) sigma`` of a split cloud."""
        return self.sigma * float(np.sqrt(self.trust.noise_sources))

    def mu_seen_by(self, view: ViewName) -> Array:
        """The Gaussian-DP parameter of each agent against one of the parties, rounded up.

        The ``view`` is "outside", and of a split cloud "cloud" or "helper": together with all other
        agents and all listeners, but not with the other half.
        """
        for party in self.trust.views:
            if party.name == view:
                return self.gdp_mu * party.mu_factor
        names = ", ".join(party.name for party in self.trust.views)
        raise InputError(
            f"view must be one of {names} under this plan, got {view!r:.60}: the "
            "halves of a split cloud have one each under a plan with trust=sv.SplitCloud()"
        )

    def radius(self, agent: int | str) -> float | None:
        """The radius b_l of an agent, by its index from 0 or its label; None for everything."""
        index = agent_index(agent, self.cloud.agents, self.cloud.agent_labels)
        if isinstance(self.hide, Everything):
            return None
        return float(radii(self.hide, self.cloud.agents)[index])

    def guarantee(self, agent: int | str | None = None) -> Guarantee:
        """Return the guarantee of an agent, by its index or label; the worst-off by default."""
        worst = int(np.argmax(self.gdp_mu))
        label = worst if agent is None else agent
        index = agent_index(label, self.cloud.agents, self.cloud.agent_labels)
        group, place = self.cloud.locate(index)
        hide = self.hide
        if not isinstance(hide, Everything):
            hide = replace(hide, radius=float(radii(hide, self.cloud.agents)[index]))
        return Guarantee(
            agent=index,
            name=self.cloud.groups[group].label(place),
            hide=hide,
            gdp_mu=float(self.gdp_mu[index]),
            requested=(float(self.epsilon[index]), float(self.delta[index])),
            trust=self.trust,
        )

    def charges(self) -> tuple[Charge, ...]:
        """Return what a run of all covered rounds costs each agent, for a ledger."""
        cloud, hide = self.cloud, self.hide
        n = cloud.agents
        radius = [None] * n if isinstance(hide, Everything) else radii(hide, n).tolist()
        return tuple(
            Charge(
                agent=label,
                protected=Protected(hide.kind, b),
                mu=mu,
                allowance=min(self.gdp_rounding, mu),
            )
            for label, b, mu in zip(cloud.agent_labels(), radius, self.gdp_mu.tolist(), strict=True)
        )

    def __str__(self) -> str:
        return statement(self)

    def __repr__(self) -> str:
        return f"NoisePlan({', '.join(f'{k}={v}' for k, v in plan_facts(self).items())})"

    def _repr_html_(self) -> str:
        return facts_html("NoisePlan", **plan_facts(self))
