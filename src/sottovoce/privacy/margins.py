"""Margins from public figures alone: how far from the edge of C a plan keeps the answer."""

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
from sottovoce.privacy.feasibility import (
    AveragedNoise,
    Feasibility,
    MarginCost,
    TargetSet,
    boxes_within,
    highest,
    may_fall,
    may_violate,
    weights_norm,
)
from sottovoce.privacy.sampler import grid_of
from sottovoce.privacy.statement import down
from sottovoce.problem.agents import Array, Group, read_only
from sottovoce.problem.constraints import Constraint
from sottovoce.problem.problem import CloudView, Problem
from sottovoce.problem.sums import Origin, Region, Sums, agents_of, ball_of

_STEPS = 10  # halvings in the search for how much noise would leave room
_SAFE = 0.98  # of the result, to be on the safe side of rounding
_UP = 1.0 + 2.0**-30
_SAMPLES = 400  # points from which the edge of a region is approached


def noise_of(certificate: Certificate, released_sigma: Array, rounds: int) -> AveragedNoise:
    """Return what a plan's noise does to the average of T releases."""
    sums, domain = certificate.cloud.sums, certificate.domain
    norm = weights_norm(rounds)
    grid = np.array([grid_of(s) if s > 0 else 0.0 for s in released_sigma])
    # Each agent rounds once per round, by 3/4 of a step at most, and is off by its evaluation.
    per_agent = 0.75 * grid + certificate.contributions.error
    reach = np.zeros(sums.count)
    sizes = np.concatenate(
        [np.linalg.norm(np.maximum(np.abs(g.lower), np.abs(g.upper)), axis=1) for g in domain]
    )
    for block in certificate.sensitivity.blocks:
        block_sizes = sizes[block.first : block.first + block.upper.shape[1]]
        reach[block.rows] += np.asarray(block.upper @ block_sizes).ravel()
    # Averages are updated T times, each time off by a few roundings of what is averaged.
    averaging = 8.0 * rounds * 2.0**-53 * (reach + certificate.contributions.size + released_sigma)
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
    noises are independent: ``z(a)`` standard deviations where a sum has one edge, ``z(a/2)`` where
    it has two. A region shares a among its sums; of a ball the noise has a chi distribution.
    """
    checked = may_violate(sums, noise.ranges)
    edges = np.isfinite(sums.lower).astype(int) + np.isfinite(sums.upper)  # none within a region
    rows = np.flatnonzero(checked & (edges > 0))
    count = 1 if each_row else max(1, len(rows) + len(sums.regions))
    chance = -float(np.expm1(np.log(probability) / count))
    deviations = np.zeros(sums.count)
    deviations[rows] = -scipy.special.ndtri(chance / edges[rows])
    for region in sums.regions:
        deviations[list(region.rows)] = _quantile(region, sums, chance)
    margin = np.where(checked, deviations * noise.sigma * _UP + noise.rounding, 0.0)
    return Feasibility(
        probability=probability,
        each_row=each_row,
        sums=sums,
        noise=noise,
        margin=margin,
        levels=tuple(_level(region, sums, noise, margin) for region in sums.regions),
    )


def expected_set(margins: Feasibility) -> TargetSet:
    """What answers come to: Ybar stays about half the lag inside of its target."""
    sums, half = margins.sums, margins.noise.lag / 2.0
    inward = np.where(margins.checked & (sums.lower < sums.upper), half, 0.0)
    balls = (0.0 if ball_of(r) is None else float(half[list(r.rows)].max()) for r in sums.regions)
    return margins.target.moved_in(inward, tuple(balls))


def _quantile(region: Region, sums: Sums, chance: float) -> Array:
    """By how many standard deviations the sums of a region may be off, all but that chance."""
    if ball_of(region) is not None:
        return np.full(len(region.rows), np.sqrt(scipy.special.chdtri(len(region.rows), chance)))
    per_sum = -np.expm1(np.log1p(-chance) / len(region.rows))
    sides = np.where(may_fall(region, sums), 1.0, 2.0)
    return np.asarray(-scipy.special.ndtri(per_sum / sides))


def _level(region: Region, sums: Sums, noise: AveragedNoise, margin: Array) -> float:
    """How far a region's edge is moved in, so that a margin and the lag fit between.

    It is measured at points of the edge, which need not be the worst: the test at the end does not
    rest on it.
    """
    rows = list(region.rows)
    away = margin[rows] + noise.lag[rows]
    if ball_of(region) is not None:
        rounding = noise.rounding[rows]
        return float((away - rounding).max() + np.linalg.norm(rounding))
    edge = _edge(region, noise.ranges[rows])
    if edge is None:
        return 0.0
    falls = may_fall(region, sums)
    box = boxes_within(edge, away, noise.ranges[rows], falls)
    return max(0.0, float(np.max(highest(region, *box, falls))))


def _edge(region: Region, ranges: Array) -> Array | None:
    """Points with ``phi = 0`` between the lowest point found and others of the range."""
    rng = np.random.default_rng(len(region.rows))
    low, high = ranges.T
    points = low + rng.random((_SAMPLES, low.size)) * (high - low)
    value = highest(region, points, points, [True] * low.size)
    inner = points[int(np.argmin(value))]
    outer = points[np.isfinite(value) & (value > 0.0)]
    if not (np.min(value) < 0.0 and outer.size):
        return None
    near, far = np.zeros(len(outer)), np.ones(len(outer))
    for _ in range(50):
        middle = 0.5 * (near + far)
        point = inner + middle[:, np.newaxis] * (outer - inner)
        inside = highest(region, point, point, [True] * low.size) <= 0.0
        near, far = np.where(inside, middle, near), np.where(inside, far, middle)
    return np.asarray(inner + near[:, np.newaxis] * (outer - inner))


def narrowed(cloud: CloudView, target: TargetSet) -> CloudView:
    """Return the same problem with the target in the place of C."""
    sums = cloud.sums
    bounded = np.isfinite(sums.upper)
    inward = np.subtract(sums.upper, target.upper, out=np.zeros(sums.count), where=bounded)
    level = {r.stated: moved for r, moved in zip(sums.regions, target.moved, strict=True)}
    constraints: list[Constraint] = []
    row = 0
    for stated, origin in zip(cloud.constraints, sums.origins, strict=True):
        if stated.sums or origin.as_stated:
            shift = inward[origin.first : origin.first + stated.rows].tolist()
            more = [level.get(row + r, s) for r, s in enumerate(shift)]
            offset = read_only(stated.offset + np.array(more))
            constraints.append(replace(stated, offset=offset))
        else:
            constraints += [
                Constraint(name=name, sums=(), rest=(g,), offset=read_only([0.0]))
                for name, g in _written(sums, origin, target)
            ]
        row += stated.rows
    return replace(cloud, constraints=tuple(constraints))


def _written(sums: Sums, origin: Origin, target: TargetSet) -> Iterator[tuple[str, Expression]]:
    """The constraint that became these sums of named agents, moved in, as formulas g <= 0."""
    formulas = [  # rows over fleets have none
        g for f in sums.families for g in ((ZERO,) * f.rows if f.sums else f.formulas)
    ]
    for region, moved in zip(sums.regions, target.moved, strict=True):
        if origin.first in region.rows:
            named = dict(zip(region.symbols, (formulas[o] for o in region.rows), strict=True))
            yield region.name, substitute(_inside(region, moved), named)
            return
    for o in range(origin.first, origin.first + origin.count):
        if np.isfinite(target.upper[o]):
            yield f"sum {o + 1}", subtract(formulas[o], number(target.upper[o]))
        if np.isfinite(target.lower[o]):
            yield f"sum {o + 1}", subtract(number(target.lower[o]), formulas[o])


def _inside(region: Region, moved: float) -> Expression:
    ball = ball_of(region)
    if ball is None:
        return add(region.phi, number(moved))
    center, radius = ball
    centred = (subtract(s, number(c)) for s, c in zip(region.symbols, center, strict=True))
    return add(*(power(e, 2) for e in centred), number(-((radius - moved) ** 2)))


def require_room(
    cloud: CloudView,
    domain: tuple[Group, ...],
    margins: Callable[[float], Feasibility],
    remedies: Callable[[float], Iterator[str]],
) -> Feasibility:
    """Return the margins if some point of X keeps them; refuse them with what would help.

    Args:
        cloud: the problem.
        domain: the boxes in which states are kept.
        margins: those of so many times the noise.
        remedies: what would make the noise so many times smaller, each with its number.
    """
    full = margins(1.0)
    if _has_room(cloud, domain, full):
        return full
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _has_room(cloud, domain, margins(middle)) else (low, middle)
    none = "no point of X keeps every constraint with its margin"
    if low == 0.0:
        raise PrivacyError(
            f"feasible must leave room: {none}, and {2**_STEPS:,} times less noise would not do: "
            "relax the constraints"
        )
    raise PrivacyError(
        f"feasible must leave room: {none}; {down(_SAFE * low, 2)} times the noise would. What "
        f"would do, each by itself: {'; '.join(remedies(_SAFE * low))}"
    )


def _has_room(cloud: CloudView, domain: tuple[Group, ...], margins: Feasibility) -> bool:
    target, (least, most) = margins.target, margins.noise.ranges.T
    # An interval that is empty or that no sum reaches, and a ball without a radius, need no search.
    if not np.all(np.maximum(target.lower, least) <= np.minimum(target.upper, most)):
        return False
    for region, moved in zip(cloud.sums.regions, target.moved, strict=True):
        ball = ball_of(region)
        if ball is not None and ball[1] <= moved:
            return False
    return slater_point(narrowed(cloud, target), domain).status != "fails"


def margin_cost(problem: Problem | None, target: TargetSet) -> MarginCost | None:
    """Return the cost of aiming at ``target`` instead of C; None if it is not known."""
    if problem is None or problem.size > SADDLE_LIMIT:
        return None
    try:
        best = reference_optimum(problem).objective
        inner = reference_optimum(problem.under(narrowed(problem.cloud, target))).objective
    except SottovoceError:
        return None
    return MarginCost(optimum=best, more=max(0.0, inner - best))
