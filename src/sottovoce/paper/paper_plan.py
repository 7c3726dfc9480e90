"""The paper's own noise, Theorems 2 and 3: its constants, its plan, and what it promises."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sottovoce.arguments import entries as listed
from sottovoce.arguments import instance, real
from sottovoce.certificate.certificate import TOLERANCE, Certificate
from sottovoce.certificate.sensitivity import Sensitivity, sensitivity
from sottovoce.certificate.supremum import cached_supremum
from sottovoce.errors import CertificateError, InputError, PrivacyError
from sottovoce.formula.derive import derivative, rationalise
from sottovoce.formula.enclosure import ROUNDOFF, UNDERFLOW, UP, evaluate, evaluation_error
from sottovoce.formula.expression import Expression, exact_arithmetic
from sottovoce.formula.intervals import Interval
from sottovoce.paper.tikhonov import RELEASE
from sottovoce.privacy.adjacency import Adjacency, Everything
from sottovoce.privacy.allocation import rounding_mu, spent_gdp_mu
from sottovoce.privacy.gaussian import kappa
from sottovoce.privacy.noise_plan import NoisePlan, Output
from sottovoce.privacy.plan import (
    PrivacyTarget,
    require_certificate,
    require_releasable,
    require_squarable,
    require_squarable_sensitivity,
    sequence_radii,
)
from sottovoce.problem.constraints import Constraint
from sottovoce.problem.groups import Array, Group, read_only
from sottovoce.problem.problem import CloudView, Problem
from sottovoce.progress import Progress, watched


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """``K_g`` and ``K_g'^i`` to use in place of the certified ones, e.g. the published ones."""

    k_g: float
    k_prime: tuple[float, ...]

    def __post_init__(self) -> None:
        real("k_g", self.k_g, "positive and finite", lambda k: 0 < k < math.inf)
        for k in listed("k_prime", self.k_prime, "a list of numbers, one per agent"):
            real("k_prime", k, "finite and not negative", lambda k: 0 <= k < math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientEntry:
    """One released entry ``d g_row / d x_column``, where x_column is a state of ``agent``."""

    row: int
    column: int
    agent: int
    formula: Expression


@exact_arithmetic()
def certified_constants(cloud: CloudView) -> tuple[Constants, float]:
    """Certify what Theorems 2 and 3 multiply by ``kappa(delta, epsilon) B``, over the original X.

    ``K_g = sup |dg/dx|_2`` and ``K_g'^i = sup |d2g/dx_i2|_2`` for each agent i. The theorem takes
    the latter for the Lipschitz constant of dg/dx_i, which it is only if no constraint couples
    agents. Beside them ``max_i sup |dg/dx_i|_2``, what one agent alone can move g by, which is all
    that adjacency lets happen. Refused without finite bounds, and for a fleet.
    """
    refusal = PrivacyError(
        "the paper's plan needs K_g and K_g'^i over the original X, got no finite ones: "
        "tighten the boxes or use sv.plan"
    )
    if any(family.sums for family in cloud.constraints):
        raise refusal
    g = [rationalise(row) for family in cloud.constraints for row in family.named]
    box = {
        s: (float(low), float(high))
        for group in cloud.groups
        for s, low, high in zip(group.symbols, group.lower[0], group.upper[0], strict=True)
    }
    blocks = [[[derivative(row, s) for s in group.symbols] for row in g] for group in cloud.groups]
    curvatures = [
        [[derivative(d, s) for s in group.symbols] for row in block for d in row]
        for group, block in zip(cloud.groups, blocks, strict=True)
    ]
    jacobian = [[derivative(row, s) for s in box] for row in g]
    try:
        k_g, *rest = [
            cached_supremum(matrix, box, tolerance=TOLERANCE).upper
            for matrix in (jacobian, *curvatures, *blocks)
        ]
    except CertificateError:
        raise refusal from None
    k_prime, columns = rest[: cloud.agents], rest[cloud.agents :]
    return Constants(k_g=k_g, k_prime=tuple(k_prime)), max(columns)


def paper_plan(
    problem: Problem | Certificate,
    *,
    epsilon: Any,
    delta: Any,
    hide: Adjacency,
    constants: Constants | None = None,
    allow_undernoised: bool = False,
    progress: bool | Progress | None = None,
) -> NoisePlan:
    """Give values and gradients of the constraints the noise of Theorems 2 and 3 over X.

    ``sigma_g = kappa K_g B`` on every row of g and ``sigma_i = kappa K_g'^i B`` on all m entries of
    dg/dx_i, zero entries included, with ``B = max_l b_l`` and the largest kappa of all agents. Each
    of the n + 1 mechanisms is then held to its true sensitivity, cross terms and rounding included.

    Args:
        problem: as for ``sv.plan``, like epsilon, delta, hide and progress.
        epsilon: one number or one per agent.
        delta: likewise, in (0, 1).
        hide: ``Trajectory``, ``Offset`` or ``Everything``.
        constants: K_g and K_g'^i instead of the certified ones.
        allow_undernoised: return a plan even where the formula breaks its promise, for a study.
        progress: whether to show it, or a callback.

    Raises:
        PrivacyError: where the formula gives less than (epsilon, delta), or the problem has fleets,
            equalities or hard constraints, which the paper does not know.
    """
    certificate = require_certificate(problem, hide, progress)
    cloud = certificate.cloud
    if constants is not None:
        instance("constants", constants, Constants, "sv.paper.Constants(...)")
    _require_known_rows(cloud)
    requested = PrivacyTarget.per_agent(cloud, epsilon, delta)
    radius = bound_sequence_radii(hide, cloud.groups)
    with watched(progress) as report:
        report(f"planning: noise for {cloud.agents:,} agents")
        S, entries, sigma = paper_noise(cloud, requested, radius, constants)
        errors, sizes = _bound_errors(cloud, entries)
        require_squarable_sensitivity(S)
        require_squarable("the paper's sigma", sigma)

    def spends(sigma: Array) -> Array:
        return spent_gdp_mu(S, sigma, radius, errors, hide.rounds)

    certified = each_mechanism_keeps(
        cloud, entries, sigma, spends, requested.gdp_mu, allow_undernoised=allow_undernoised
    )
    noise = NoisePlan(
        cloud=cloud,
        hide=hide,
        epsilon=requested.epsilon,
        delta=requested.delta,
        outputs=tuple(_name_outputs(cloud, entries, sigma)),
        domain=cloud.groups,
        gdp_mu=read_only(spends(sigma)),
        gdp_rounding=rounding_mu(sigma, errors, hide.rounds),
        certified=certified,
        release=RELEASE,
    )
    require_releasable(noise, sizes)
    return noise


def _require_known_rows(cloud: CloudView) -> None:
    if cloud.cost is not None:
        raise PrivacyError(
            "the paper's plan knows no public cost, got one: use the joint plan, sv.plan"
        )
    for family in cloud.constraints:
        unknown = {
            "fleets": bool(family.sums),
            "equalities": family.equality,
            "hard constraints, which need feasible=": family.hard,
        }
        for name, present in unknown.items():
            if present:
                raise PrivacyError(
                    f"the paper's plan knows no {name}, got one: use the joint plan, sv.plan"
                )


def bound_sequence_radii(hide: Adjacency, groups: Sequence[Group]) -> Array:
    """Return R_l for outputs that are not sums: any two states lie within a box's diameter."""
    if not isinstance(hide, Everything):
        return sequence_radii(hide, sum(group.count for group in groups))
    # hypot neither overflows nor underflows on the way, and errs by less than an ulp per step.
    widths = [
        np.hypot.reduce(group.upper - group.lower, axis=1) * (1.0 + group.dim * 2.0**-50)
        for group in groups
    ]
    return np.asarray(np.concatenate(widths) * np.sqrt(hide.rounds) * (1.0 + 2.0**-50))


def paper_noise(
    cloud: CloudView, requested: PrivacyTarget, radius: Array, constants: Constants | None
) -> tuple[Sensitivity, tuple[GradientEntry, ...], Array]:
    """Return S over the original X, the entries released and one sigma per output."""
    K = constants or certified_constants(cloud)[0]
    if len(K.k_prime) != cloud.agents:
        raise InputError(
            f"constants must have one K_g'^i per agent ({cloud.agents}), got {len(K.k_prime)}"
        )
    pairs = {*zip(requested.epsilon.tolist(), requested.delta.tolist(), strict=True)}
    factor = max(kappa(e, d) for e, d in pairs) * float(radius.max())
    entries = tuple(_list_entries(cloud, K.k_prime))
    of_entries = [factor * K.k_prime[entry.agent] for entry in entries]
    sigma = np.append(np.full(cloud.rows, factor * K.k_g), of_entries) * (1.0 + 2.0**-50)
    formulas = tuple(entry.formula for entry in entries)
    gradients = Constraint(name="gradients", sums=(), rest=formulas, offset=np.zeros(len(formulas)))
    rows = [*cloud.constraints, *([gradients] if entries else [])]
    S = sensitivity(rows, cloud.groups, convex={}, tolerance=TOLERANCE)
    return (replace(S, affine=()) if entries else S), entries, sigma


def _list_entries(cloud: CloudView, k_prime: Sequence[float]) -> Iterator[GradientEntry]:
    g = [row for family in cloud.constraints for row in family.named]
    column = 0
    for agent, group in enumerate(cloud.groups):
        for symbol in group.symbols:
            slopes = [derivative(row, symbol) for row in g]
            if k_prime[agent] > 0:
                for row, formula in enumerate(slopes):
                    yield GradientEntry(row=row, column=column, agent=agent, formula=formula)
            elif any(slope.symbols for slope in slopes):
                raise PrivacyError(
                    f"K_g'^{agent + 1} must be positive, because states move dg/d{symbol}, got 0: "
                    "it would be released without noise"
                )
            column += 1


def _bound_errors(cloud: CloudView, entries: Sequence[GradientEntry]) -> tuple[Array, Array]:
    """How far float64 may be off in every output over X, and the largest value it may compute."""
    box = {
        s: Interval(lower=group.lower[:, c], upper=group.upper[:, c])
        for group in cloud.groups
        for c, s in enumerate(group.symbols)
    }
    rows = [row for family in cloud.constraints for row in family.named]
    formulas = [*rows, *(entry.formula for entry in entries)]
    error = np.array([float(evaluation_error(h, box).max()) for h in formulas])
    size = np.array([float(evaluate(h, box)[h].magnitude.max()) for h in formulas])
    offset = np.abs(np.concatenate([[], *(family.offset for family in cloud.constraints)]))
    error[: len(rows)] = (offset * ROUNDOFF * 2 + UNDERFLOW + error[: len(rows)]) * UP
    size[: len(rows)] += offset
    return error, np.asarray((size + error) * (1.0 + 2.0**-20))


def _name_outputs(
    cloud: CloudView, entries: Sequence[GradientEntry], sigma: Array
) -> Iterator[Output]:
    names = cloud.row_labels()
    columns = [s.name for group in cloud.groups for s in group.symbols]
    for row, (name, s) in enumerate(zip(names, sigma.tolist(), strict=False)):
        yield Output(name=name, kind="value", sigma=s, row=row)
    for entry, s in zip(entries, sigma[cloud.rows :].tolist(), strict=True):
        if not s > 0:
            raise PrivacyError(
                "every released gradient entry must be moved by some agent, got one that is not: "
                "simplify the constraints"
            )
        name = f"d {names[entry.row]} / d {columns[entry.column]}"
        yield Output(name=name, kind="gradient", sigma=s, row=entry.row, column=entry.column)


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

    ``spends`` returns mu_l per agent for any sigma, infinite for what is left out; ``target`` is
    the largest mu_l that keeps what is requested.
    """
    owner = np.array([-1] * cloud.rows + [entry.agent for entry in entries])
    for mechanism in np.unique(owner):
        largest = sigma[owner == mechanism].max()
        excess = spends(np.where(owner == mechanism, sigma, np.inf)) / target
        worst = int(np.argmax(excess))
        if excess[worst] > 1.0:
            if allow_undernoised:
                return False
            name = "g" if mechanism < 0 else f"dg/d{cloud.groups[mechanism].name}"
            raise PrivacyError(
                f"the paper's sigma for {name} must be at least {largest * excess[worst]:.6g} to "
                f"hide {cloud.groups[worst].name}, got {largest:.6g}: its constant is too small "
                "or forgets that other agents move it; use sv.plan, or "
                "allow_undernoised=True for a study"
            )
    return True
