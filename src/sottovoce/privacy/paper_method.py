"""The paper's own noise, Theorems 2 and 3, held to what it promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sottovoce.arguments import entries, real
from sottovoce.certificate.certificate import TOLERANCE, Certificate
from sottovoce.certificate.gradients import GradientEntry
from sottovoce.certificate.paper_constants import paper_constants
from sottovoce.certificate.sensitivity import Sensitivity, sensitivity
from sottovoce.errors import InputError, PrivacyError
from sottovoce.formula.derive import derivative
from sottovoce.privacy.gaussian import kappa
from sottovoce.problem.agents import Array
from sottovoce.problem.problem import CloudView


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """``K_g`` and ``K_g'^i`` to use in place of the certified ones, e.g. the published ones."""

    k_g: float
    k_prime: tuple[float, ...]

    def __post_init__(self) -> None:
        real("k_g", self.k_g, "positive and finite", lambda k: 0 < k < np.inf)
        for k in entries("k_prime", self.k_prime, "a list of numbers, one per agent"):
            real("k_prime", k, "finite and not negative", lambda k: 0 <= k < np.inf)


def paper_noise(
    certificate: Certificate,
    epsilon: Array,
    delta: Array,
    reach: Array,
    constants: Constants | None,
) -> tuple[Sensitivity, tuple[GradientEntry, ...], Array]:
    """Return S over the original X, the entries released and one sigma per output.

    ``sigma_g = kappa K_g B`` on every row of g and ``sigma_i = kappa K_g'^i B`` on all m entries of
    dg/dx_i, zero entries included, with ``B = max_l b_l`` and the largest kappa of all agents.
    """
    cloud = certificate.cloud
    if any(family.sums for family in cloud.constraints):
        raise PrivacyError("method='paper' knows no fleets, got one: use method='joint'")
    if any(family.equality for family in cloud.constraints):
        raise PrivacyError("method='paper' knows no equalities, got one: use method='joint'")
    held = constants or _certified(cloud)
    if len(held.k_prime) != cloud.agents:
        raise InputError(
            f"constants must have one K_g'^i per agent ({cloud.agents}), got {len(held.k_prime)}"
        )
    pairs = [(float(e), float(d)) for e, d in {*zip(epsilon, delta, strict=True)}]
    factor = max(kappa(e, d) for e, d in pairs) * float(reach.max())
    entries = tuple(_entries(cloud, held.k_prime))
    sigma = np.concatenate(
        [
            np.full(cloud.rows, factor * held.k_g),
            [factor * held.k_prime[entry.agent] for entry in entries],
        ]
    ) * (1.0 + 2.0**-50)
    S = sensitivity(cloud.constraints, cloud.groups, entries, convex={}, tolerance=TOLERANCE)
    return S, entries, sigma


def _certified(cloud: CloudView) -> Constants:
    found = paper_constants(cloud, tolerance=TOLERANCE)
    if found is None:
        raise PrivacyError(
            "method='paper' needs K_g and K_g'^i over the original X, got no finite ones: tighten "
            "the boxes or use method='joint'"
        )
    return Constants(
        k_g=found.k_g.upper,
        k_prime=tuple(bound.upper for bound in found.k_prime),
    )


def _entries(cloud: CloudView, k_prime: Sequence[float]) -> Iterator[GradientEntry]:
    g = [row for family in cloud.constraints for row in family.named]
    column = 0
    for agent, group in enumerate(cloud.groups):
        for symbol in group.symbols:
            slopes = [derivative(row, symbol) for row in g]
            if k_prime[agent] > 0:
                for row, formula in enumerate(slopes):
                    yield GradientEntry(
                        row=row, column=column, agent=agent, kind="released", formula=formula
                    )
            elif any(slope.symbols for slope in slopes):
                raise PrivacyError(
                    f"K_g'^{agent + 1} must be positive, because states move dg/d{symbol}, got 0: "
                    "it would be released without noise"
                )
            column += 1


def each_mechanism_keeps(
    cloud: CloudView,
    entries: Sequence[GradientEntry],
    sigma: Array,
    spends: Callable[[Array], Array],
    target: Array,
    *,
    allow_undernoised: bool,
) -> bool:
    """Whether each of the n + 1 mechanisms by itself keeps (epsilon, delta) for every agent.

    The theorem takes ``K_g'^i = sup |d2g/dx_i2|`` for the Lipschitz constant of dg/dx_i, which
    forgets what other agents do to it. Each mechanism is therefore held to its true sensitivity,
    cross terms and rounding included.

    Args:
        cloud: the public problem.
        entries: the released gradient entries.
        sigma: one per output.
        spends: what noise lets through, mu_l per agent; outputs with sigma 0 are left out.
        target: the largest mu_l that keeps what was asked for.
        allow_undernoised: answer False instead of refusing.
    """
    owner = np.array([-1] * cloud.rows + [entry.agent for entry in entries])
    for mechanism in np.unique(owner):
        own = np.where(owner == mechanism, sigma, 0.0)
        excess = spends(own) / target
        worst = int(np.argmax(excess))
        if excess[worst] > 1.0:
            if allow_undernoised:
                return False
            name = "g" if mechanism < 0 else f"dg/d{cloud.groups[mechanism].name}"
            raise PrivacyError(
                f"the paper's sigma for {name} must be at least {own.max() * excess[worst]:.6g} to "
                f"hide {cloud.groups[worst].name}, got {own.max():.6g}: its constant is too small "
                "or forgets that other agents move it; use method='joint', or "
                "allow_undernoised=True for a study"
            )
    return True
