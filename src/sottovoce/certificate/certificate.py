"""The certificate on which every privacy promise rests."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from sottovoce.arguments import instance, real
from sottovoce.certificate.assumptions import (
    Assumption,
    convex_sums,
    private_assumptions,
    public_assumptions,
)
from sottovoce.certificate.contributions import Contributions, contribution_ranges
from sottovoce.certificate.domain import tightened_domain
from sottovoce.certificate.sensitivity import Sensitivity, sensitivity
from sottovoce.errors import CertificateError, ConvexityError, ProblemError
from sottovoce.problem.fleets import fleets_of
from sottovoce.problem.groups import Group
from sottovoce.problem.problem import CloudView, Problem
from sottovoce.progress import Progress, watched
from sottovoce.tables import facts_html

TOLERANCE = 0.01  # relative gap between a bound and the largest value attained


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Certificate:
    """What is proven about a problem before anything is released.

    Attributes:
        cloud: the public problem that it certifies.
        assumptions: the assumptions of the paper's Theorem 1, one by one.
        domain: the agents with the boxes in which their states are kept; S holds there.
        sensitivity: ``S[o, l]`` of every sum o to every agent l.
        contributions: the range of every agent's contribution to every sum.
        problem: the whole problem if objectives are known; None to a cloud.
    """

    cloud: CloudView
    assumptions: tuple[Assumption, ...]
    domain: tuple[Group, ...]
    sensitivity: Sensitivity
    contributions: Contributions
    problem: Problem | None = None

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the public problem it was made for."""
        return self.cloud.fingerprint

    @property
    def holds(self) -> bool:
        """Whether no assumption fails."""
        return not any(a.status == "fails" for a in self.assumptions)

    def for_study(self) -> Certificate:
        """Return it without marks of hard constraints; a study's answers are not applied."""
        plain = tuple(replace(family, hard=False) for family in self.cloud.constraints)
        return replace(self, cloud=replace(self.cloud, constraints=plain))

    def require(self) -> None:
        """Raise the first assumption that fails as an error.

        Raises:
            ConvexityError: if an objective or a constraint is not convex.
            ProblemError: if any other assumption fails.
        """
        for a in self.assumptions:
            if a.status == "fails":
                point = "" if a.witness is None else f" (at {dict(a.witness)})"
                kind = ConvexityError if a.name.startswith("convexity") else ProblemError
                raise kind(f"{a.name}: {a.detail}{point}")

    def __repr__(self) -> str:
        return (
            f"Certificate(holds={self.holds}, agents={self.cloud.agents}, "
            f"constraints={self.cloud.rows}, sums={self.cloud.sums.count}, "
            f"assumptions={len(self.assumptions)}, fingerprint={self.fingerprint[:16]!r})"
        )

    def _repr_html_(self) -> str:
        counts = Counter(a.status for a in self.assumptions)
        failing = [f"{a.name}: {a.detail}" for a in self.assumptions if a.status == "fails"]
        return facts_html(
            "Certificate",
            holds=self.holds,
            agents=f"{self.cloud.agents:,}",
            constraints=f"{self.cloud.rows:,} as {self.cloud.sums.count:,} sums",
            assumptions=", ".join(f"{count} {status}" for status, count in counts.items()),
            **({"fails": failing[0]} if failing else {}),
            fingerprint=self.fingerprint[:16],
        )


def certify(
    problem: Problem | CloudView,
    *,
    tighten: bool = True,
    tolerance: float = TOLERANCE,
    progress: bool | Progress | None = None,
) -> Certificate:
    """Certify a problem: assumptions, domain, sensitivities and ranges of contributions.

    ``S[o, l] = sup over X_l of |d h_ol / d x_l|`` is bounded from above in outward-rounded
    interval arithmetic with subdivision; a sampled maximum could only be too small.

    Args:
        problem: the whole problem, or the cloud's part, which leaves out what takes objectives.
        tighten: shrink the boxes to what the public constraints imply, plus a margin of 1% of the
            width (see ``tightened_domain``); False keeps the original X.
        tolerance: relative gap between bound and largest value found at which subdivision stops.
        progress: a callback, or whether to show what takes longer than two seconds; by default on
            a terminal.

    Raises:
        ProblemError: if the constraints are proven to have no common point.
        CertificateError: if a sensitivity has no finite bound: nothing private can be released.
    """
    cloud = problem.cloud if isinstance(problem, Problem) else problem
    instance("problem", cloud, CloudView, "a Problem or its cloud")
    real("tolerance", tolerance, "positive and finite", lambda value: 0 < value < math.inf)
    with watched(progress) as report:
        report("certifying: shrinking boxes to what the constraints imply")
        domain = tightened_domain(cloud) if tighten else cloud.groups
        report("certifying: convexity of the constraints, Slater's condition")
        assumptions = list(public_assumptions(cloud, domain))
        convex = convex_sums(cloud, domain, assumptions)
        if isinstance(problem, Problem):
            sound = all(a.status != "fails" for a in assumptions)
            report("certifying: objectives and the saddle point")
            assumptions += private_assumptions(problem, domain, sound=sound)
        report(f"certifying: sensitivities of {cloud.sums.count:,} sums to {cloud.agents:,} agents")
        families = cloud.sums.families
        fleets = fleets_of(domain, families)
        try:
            bound = sensitivity(families, domain, convex=convex, tolerance=tolerance, fleets=fleets)
        except CertificateError as error:
            failing = next((a for a in assumptions if a.status == "fails"), None)
            if failing is None:
                raise
            raise CertificateError(f"{error}; {failing.name}: {failing.detail}") from None
        report("certifying: ranges of contributions")
        return Certificate(
            cloud=cloud,
            assumptions=tuple(assumptions),
            domain=tuple(domain),
            sensitivity=bound,
            contributions=contribution_ranges(cloud.sums, domain, fleets),
            problem=problem if isinstance(problem, Problem) else None,
        )
