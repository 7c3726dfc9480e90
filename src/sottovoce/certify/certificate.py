"""The certificate on which every privacy promise rests."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sottovoce.arguments import instance, real, without_deep_recursion
from sottovoce.certify.assumptions import Assumption, private_assumptions, public_assumptions
from sottovoce.certify.domain import MARGIN, tightened_domain
from sottovoce.certify.evaluation import evaluation_errors
from sottovoce.certify.gradients import GradientEntry, gradient_entries
from sottovoce.certify.paper_constants import PaperConstants, paper_constants
from sottovoce.certify.sensitivity import Sensitivity, sensitivity
from sottovoce.errors import ConvexityError, ProblemError
from sottovoce.problem.agents import Array, Group, read_only
from sottovoce.problem.problem import CloudView, Problem

TOLERANCE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Certificate:
    """What is known for certain of a problem before anything is released.

    Attributes:
        cloud: the public part of the problem it speaks of.
        assumptions: the assumptions of the paper's Theorem 1, one by one.
        domain: the agents with the boxes in which their states are kept; S holds there.
        gradients: every entry of dg/dx and who can tell it.
        sensitivity: ``S[o, l]`` for the rows of g and then the released gradient entries.
        evaluation_error: how far float64 may be off when it computes each output.
        magnitude: the largest absolute value of each output that it may compute.
        paper: K_g and K_g'^i over the original X; None for fleets, which the paper does not know.
    """

    cloud: CloudView
    assumptions: tuple[Assumption, ...]
    domain: tuple[Group, ...]
    gradients: tuple[GradientEntry, ...]
    sensitivity: Sensitivity
    evaluation_error: Array
    magnitude: Array
    paper: PaperConstants | None

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the public problem it was made for."""
        return self.cloud.fingerprint

    @property
    def released(self) -> tuple[GradientEntry, ...]:
        """The gradient entries that only the cloud can tell, in the order of their outputs."""
        return tuple(entry for entry in self.gradients if entry.kind == "released")

    @property
    def holds(self) -> bool:
        """Whether no assumption fails."""
        return not any(a.status == "fails" for a in self.assumptions)

    def require(self) -> None:
        """Raise the first assumption that fails as an error.

        Raises:
            ConvexityError: if an objective or a constraint is not convex.
            ProblemError: if any other assumption fails.
        """
        for a in self.assumptions:
            if a.status == "fails":
                at = "" if a.witness is None else f" (at {dict(a.witness)})"
                kind = ConvexityError if a.name.startswith("convexity") else ProblemError
                raise kind(f"{a.name}: {a.detail}{at}")


@without_deep_recursion
def certify(
    problem: Problem | CloudView, *, tighten: bool = True, tolerance: float = TOLERANCE
) -> Certificate:
    """Certify a problem: assumptions, domain, gradient kinds and sensitivities.

    ``S[o, l] = sup over the domain of |d output_o / d x_l|`` is bounded from above in
    outward-rounded interval arithmetic with subdivision; a sampled maximum could only be too small.

    Args:
        problem: the whole problem, or the cloud's part of it alone; the latter leaves out what
            takes the objectives.
        tighten: shrink the boxes to what the public constraints imply, plus a margin of 1% of the
            width (see ``tightened_domain``); False keeps the original X.
        tolerance: relative gap between bound and largest value found at which subdivision stops.

    Raises:
        ProblemError: if the constraints are proven to have no common point.
        CertificateError: if a sensitivity has no finite bound: nothing private can be released.
    """
    cloud = problem.cloud if isinstance(problem, Problem) else problem
    instance("problem", cloud, CloudView, "a Problem or its cloud")
    real("tolerance", tolerance, "positive and finite", lambda value: 0 < value < math.inf)
    domain = tightened_domain(cloud, margin=MARGIN) if tighten else cloud.groups
    gradients = gradient_entries(cloud)
    released = [entry for entry in gradients if entry.kind == "released"]
    assumptions = list(public_assumptions(cloud, domain))
    convex: dict[int, bool] = {}
    for a in assumptions:
        if a.row is not None and a.name.startswith("convexity"):
            convex[a.row] = convex.get(a.row, True) and a.status == "proven"
    if isinstance(problem, Problem):
        sound = all(a.status != "fails" for a in assumptions)
        assumptions += private_assumptions(problem, domain, sound=sound)
    error, magnitude = evaluation_errors(cloud, domain, released)
    return Certificate(
        cloud=cloud,
        assumptions=tuple(assumptions),
        domain=tuple(domain),
        gradients=gradients,
        sensitivity=sensitivity(cloud, domain, released, convex=convex, tolerance=tolerance),
        evaluation_error=read_only(error),
        magnitude=read_only(magnitude),
        paper=paper_constants(cloud, tolerance=tolerance),
    )
