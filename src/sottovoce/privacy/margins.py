"""Constraint tightening from public figures alone: the margins of a plan, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import scipy

from sottovoce.certificate.assumptions import SADDLE_LIMIT
from sottovoce.certificate.certificate import Certificate
from sottovoce.certificate.contributions import sum_ranges
from sottovoce.certificate.optimum import reference_optimum
from sottovoce.certificate.slater import slater_point
from sottovoce.errors import PrivacyError, SottovoceError
from sottovoce.formula.canonical import add, power, substitute, subtract
from sottovoce.formula.expression import ZERO, Expression, number
from sottovoce.privacy.averaging import weights_norm
from sottovoce.privacy.feasibility import (
    AveragedNoise,
    Feasibility,
    MarginCost,
    TargetSet,
    boxes_within,
    maximise_over_boxes,
    may_violate,
    one_sided_sums,
)
from sottovoce.privacy.sampler import grid_of
from sottovoce.privacy.statement import down
from sottovoce.problem.constraints import Constraint
from sottovoce.problem.groups import Array, Group, read_only
from sottovoce.problem.problem import CloudView, Problem
from sottovoce.problem.sums import Origin, Region, Sums, agents_of, ball_of

_UP = 1.0 + 2.0**-30  # rounds a bound up
_GRID_ROUNDING = 0.75  # grid steps by which a contribution is rounded, at most (privacy.sampler)
_AVERAGING_ROUNDING = 8.0 * 2.0**-53  # relative: of one update of an average, at most
_HALVINGS = 10  # in the search for how much noise would leave room
_CAUTION = 0.98  # of what that search returns, as a remedy
_SAMPLES = 400  # points from which the boundary of a region is approached
_BISECTIONS = 50  # of a line towards the boundary


def bound_averaged_noise(
    certificate: Certificate, released_sigma: Array, rounds: int
) -> AveragedNoise:
    """Return the noise of the average of T releases, and bounds on its rounding errors."""
    sums, domain = certificate.cloud.sums, certificate.domain
    norm = weights_norm(rounds)
    grid = np.array([grid_of(s) if s > 0 else 0.0 for s in released_sigma])
    # Each agent rounds once per round, and its evaluation has an error.
    per_agent = _GRID_ROUNDING * grid + certificate.contributions.error
    moved = np.zeros(sums.count)  # by states as far from 0 as the domain allows
    norms = np.concatenate(
        [np.linalg.norm(np.maximum(np.abs(g.lower), np.abs(g.upper)), axis=1) for g in domain]
    )
    for block in certificate.sensitivity.blocks:
        agents = slice(block.first, block.first + block.upper.shape[1])
        moved[block.rows] += np.asarray(block.upper @ norms[agents]).ravel()
    averaged = moved + certificate.contributions.size + released_sigma
    averaging = _AVERAGING_ROUNDING * rounds * averaged  # an update per round
    return AveragedNoise(
        sigma=released_sigma * norm * _UP,
        rounding=(agents_of(sums, domain) * per_agent + averaging) * _UP,
        ranges=np.array(sum_ranges(sums, domain)).reshape(-1, 2),
        rounds=rounds,
    )


def require_proven_convexity(certificate: Certificate, noise: AveragedNoise) -> None:
    """Refuse margins around a constraint whose convexity is not proven.

    The sums at an average of states are at most the average of the sums only where they are convex,
    and a region's function is largest at a corner only where it is.
    """
    sums = certificate.cloud.sums
    checked = may_violate(sums, noise.ranges)
    rows: set[int] = set()
    first = 0
    for family, origin in zip(certificate.cloud.constraints, sums.origins, strict=True):
        if checked[origin.first : origin.first + origin.count].any():
            rows |= set(range(first, first + family.rows))
        first += family.rows
    for a in certificate.assumptions:
        if a.row in rows and a.name.startswith("convexity") and a.status != "proven":
            raise PrivacyError(
                f"feasible needs a proof for the {a.name}, got {a.status!r}: {a.detail}; restate "
                "the constraint as a sum of functions that are convex by themselves, or tighten "
                "the boxes of its states"
            )


def feasibility(
    sums: Sums, noise: AveragedNoise, probability: float, *, each_row: bool = False
) -> Feasibility:
    """Return the margins that keep p, and the target by which the test is passed.

    With m constraints that could be violated, each fails with probability ``a = 1 - p^(1/m)``, as
    noises are independent: ``z(a)`` standard deviations where a sum has one limit, ``z(a/2)`` where
    it has two. A region shares a among its sums; of a ball the noise has a chi distribution.
    """
    checked = may_violate(sums, noise.ranges)
    limits = np.isfinite(sums.lower).astype(int) + np.isfinite(sums.upper)  # none within a region
    rows = np.flatnonzero(checked & (limits > 0))
    count = 1 if each_row else max(1, len(rows) + len(sums.regions))
    failure = -float(np.expm1(np.log(probability) / count))  # a
    z = np.zeros(sums.count)
    z[rows] = -scipy.special.ndtri(failure / limits[rows])
    for region in sums.regions:
        z[list(region.rows)] = _noise_quantile(region, sums, failure)
    margin = np.where(checked, z * noise.sigma * _UP + noise.rounding, 0.0)
    return Feasibility(
        probability=probability,
        each_row=each_row,
        sums=sums,
        noise=noise,
        margin=margin,
        region_tightening=tuple(
            _measure_tightening(region, sums, noise, margin) for region in sums.regions
        ),
    )


def expected_target(margins: Feasibility) -> TargetSet:
    """What answers come to: Ybar stays about half the lag inside its target."""
    sums, half = margins.sums, margins.noise.lag / 2.0
    inward = np.where(margins.checked & (sums.lower < sums.upper), half, 0.0)
    balls = (0.0 if ball_of(r) is None else float(half[list(r.rows)].max()) for r in sums.regions)
    return margins.target.tightened(inward, tuple(balls))


def _noise_quantile(region: Region, sums: Sums, failure: float) -> Array:
    """The standard deviations that the noise of a region's sums exceeds with that probability."""
    if ball_of(region) is not None:
        return np.full(len(region.rows), np.sqrt(scipy.special.chdtri(len(region.rows), failure)))
    per_sum = -np.expm1(np.log1p(-failure) / len(region.rows))
    sides = np.where(one_sided_sums(region, sums), 1.0, 2.0)
    return np.asarray(-scipy.special.ndtri(per_sum / sides))


def _measure_tightening(region: Region, sums: Sums, noise: AveragedNoise, margin: Array) -> float:
    """By how much a region is tightened, so that a margin and the lag fit between.

    It is measured at points of the boundary, which need not be the worst: the test at the end does
    not rest on it.
    """
    rows = list(region.rows)
    reach = margin[rows] + noise.lag[rows]
    if ball_of(region) is not None:
        rounding = noise.rounding[rows]
        return float((reach - rounding).max() + np.linalg.norm(rounding))
    points = _boundary_points(region, noise.ranges[rows])
    if points is None:
        return 0.0
    one_sided = one_sided_sums(region, sums)
    box = boxes_within(points, reach, noise.ranges[rows], one_sided)
    return max(0.0, float(np.max(maximise_over_boxes(region, *box, one_sided))))


def _boundary_points(region: Region, ranges: Array) -> Array | None:
    """Points with ``phi = 0`` on lines from the lowest sample to others; None without any."""
    rng = np.random.default_rng(len(region.rows))
    low, high = ranges.T
    points = low + rng.random((_SAMPLES, low.size)) * (high - low)
    value = maximise_over_boxes(region, points, points, [True] * low.size)
    inner = points[int(np.argmin(value))]
    outer = points[np.isfinite(value) & (value > 0.0)]
    if not (np.min(value) < 0.0 and outer.size):
        return None
    near, far = np.zeros(len(outer)), np.ones(len(outer))
    for _ in range(_BISECTIONS):
        middle = 0.5 * (near + far)
        point = inner + middle[:, np.newaxis] * (outer - inner)
        inside = maximise_over_boxes(region, point, point, [True] * low.size) <= 0.0
        near, far = np.where(inside, middle, near), np.where(inside, far, middle)
    return np.asarray(inner + near[:, np.newaxis] * (outer - inner))


def tighten_constraints(cloud: CloudView, target: TargetSet) -> CloudView:
    """Return the same problem with the target in the place of C."""
    sums = cloud.sums
    bounded = np.isfinite(sums.upper)
    inward = np.subtract(sums.upper, target.upper, out=np.zeros(sums.count), where=bounded)
    of_region = {r.stated: by for r, by in zip(sums.regions, target.tightening, strict=True)}
    constraints: list[Constraint] = []
    row = 0
    for stated, origin in zip(cloud.constraints, sums.origins, strict=True):
        if stated.sums or origin.as_stated:
            of_sums = inward[origin.first : origin.first + stated.rows].tolist()
            tightening = [of_region.get(row + r, by) for r, by in enumerate(of_sums)]
            offset = read_only(stated.offset + np.array(tightening))
            constraints.append(replace(stated, offset=offset))
        else:
            constraints += [
                Constraint(name=name, sums=(), rest=(g,), offset=read_only([0.0]))
                for name, g in _write_tightened(sums, origin, target)
            ]
        row += stated.rows
    return replace(cloud, constraints=tuple(constraints))


def _write_tightened(
    sums: Sums, origin: Origin, target: TargetSet
) -> Iterator[tuple[str, Expression]]:
    """The constraint that became these sums of named agents, tightened, as formulas g <= 0."""
    formulas = [  # rows over fleets have none
        g for f in sums.families for g in ((ZERO,) * f.rows if f.sums else f.formulas)
    ]
    for region, tightening in zip(sums.regions, target.tightening, strict=True):
        if origin.first in region.rows:
            named = dict(zip(region.symbols, (formulas[o] for o in region.rows), strict=True))
            yield region.name, substitute(_tighten_phi(region, tightening), named)
            return
    for o in range(origin.first, origin.first + origin.count):
        if np.isfinite(target.upper[o]):
            yield f"sum {o + 1}", subtract(formulas[o], number(target.upper[o]))
        if np.isfinite(target.lower[o]):
            yield f"sum {o + 1}", subtract(number(target.lower[o]), formulas[o])


def _tighten_phi(region: Region, tightening: float) -> Expression:
    ball = ball_of(region)
    if ball is None:
        return add(region.phi, number(tightening))
    center, radius = ball
    centred = (subtract(s, number(c)) for s, c in zip(region.symbols, center, strict=True))
    return add(*(power(e, 2) for e in centred), number(-((radius - tightening) ** 2)))


def require_room(
    cloud: CloudView,
    domain: tuple[Group, ...],
    margins: Callable[[float], Feasibility],
    remedies: Callable[[float], Iterator[str]],
) -> Feasibility:
    """Return the margins if the tightened problem has a Slater point; refuse them with remedies.

    Both callbacks take a factor of the noise: the margins there, and what would make it so.
    """
    full = margins(1.0)
    if _has_room(cloud, domain, full):
        return full
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _has_room(cloud, domain, margins(middle)) else (low, middle)
    none = "no point of X keeps every constraint with its margin"
    if low == 0.0:
        raise PrivacyError(
            f"feasible must leave room: {none}, and {2**_HALVINGS:,} times less noise would not "
            "do: relax the constraints"
        )
    factor = _CAUTION * low
    raise PrivacyError(
        f"feasible must leave room: {none}; {down(factor, 2)} times the noise would. What "
        f"would do, each by itself: {'; '.join(remedies(factor))}"
    )


def _has_room(cloud: CloudView, domain: tuple[Group, ...], margins: Feasibility) -> bool:
    """Whether it is not shown that no point keeps the tightened constraints."""
    target, (least, most) = margins.target, margins.noise.ranges.T
    # An interval that is empty or that no sum reaches, and a ball without a radius, need no search.
    if not np.all(np.maximum(target.lower, least) <= np.minimum(target.upper, most)):
        return False
    for region, tightening in zip(cloud.sums.regions, target.tightening, strict=True):
        ball = ball_of(region)
        if ball is not None and ball[1] <= tightening:
            return False
    return slater_point(tighten_constraints(cloud, target), domain).status != "fails"


def margin_cost(problem: Problem | None, target: TargetSet) -> MarginCost | None:
    """Return the cost of aiming at ``target`` instead of C; None if it is not known."""
    if problem is None or problem.size > SADDLE_LIMIT:
        return None
    try:
        optimum = reference_optimum(problem).objective
        tightened = problem.under(tighten_constraints(problem.cloud, target))
        more = reference_optimum(tightened).objective - optimum
    except SottovoceError:
        return None
    return MarginCost(optimum=optimum, more=max(0.0, more))
