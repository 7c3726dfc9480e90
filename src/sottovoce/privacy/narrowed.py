"""The problem whose constraints are moved in, as a problem of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from sottovoce.formula.canonical import add, power, substitute, subtract
from sottovoce.formula.expression import ZERO, Expression, number
from sottovoce.privacy.target import Target
from sottovoce.problem.agents import read_only
from sottovoce.problem.ball import ball_of
from sottovoce.problem.constraints import Constraint
from sottovoce.problem.problem import CloudView
from sottovoce.problem.sums import Region, Sums


def narrowed(cloud: CloudView, target: Target) -> CloudView:
    """Return the same problem with the target in the place of C."""
    sums = cloud.sums
    bounded = np.isfinite(sums.upper)
    inward = np.subtract(sums.upper, target.upper, out=np.zeros(sums.count), where=bounded)
    level = {r.stated: moved for r, moved in zip(sums.regions, target.moved, strict=True)}
    constraints: list[Constraint] = []
    row = 0
    for stated, origin in zip(cloud.constraints, sums.origins, strict=True):
        if stated.sums or origin.as_stated:
            here = inward[origin.first : origin.first + stated.rows]
            more = [level.get(row + r, float(here[r])) for r in range(stated.rows)]
            offset = read_only(stated.offset + np.array(more))
            constraints.append(replace(stated, offset=offset))
        else:
            constraints += _written(sums, origin.first, origin.count, target)
        row += stated.rows
    return replace(cloud, constraints=tuple(constraints))


def _written(sums: Sums, first: int, count: int, target: Target) -> Iterator[Constraint]:
    """The constraint that became these sums of named agents, moved in, as formulas."""
    formulas = [g for family in sums.families for g in _formulas(family)]
    for region, moved in zip(sums.regions, target.moved, strict=True):
        if first in region.rows:
            sums_of_region = [formulas[o] for o in region.rows]
            inside = substitute(
                _inside(region, moved), dict(zip(region.symbols, sums_of_region, strict=True))
            )
            yield _row(region.name, inside)
            return
    for o in range(first, first + count):
        if np.isfinite(target.upper[o]):
            yield _row(f"sum {o + 1}", subtract(formulas[o], number(target.upper[o])))
        if np.isfinite(target.lower[o]):
            yield _row(f"sum {o + 1}", subtract(number(target.lower[o]), formulas[o]))


def _formulas(family: Constraint) -> tuple[Expression, ...]:
    """A formula per row; of rows over fleets there is none to look at."""
    return family.formulas if not family.sums else (ZERO,) * family.rows


def _inside(region: Region, moved: float) -> Expression:
    ball = ball_of(region)
    if ball is None:
        return add(region.phi, number(moved))
    center, radius = ball
    centred = (subtract(s, number(c)) for s, c in zip(region.symbols, center, strict=True))
    return add(*(power(e, 2) for e in centred), number(-((radius - moved) ** 2)))


def _row(name: str, g: Expression) -> Constraint:
    return Constraint(name=name, sums=(), rest=(g,), offset=read_only([0.0]))
