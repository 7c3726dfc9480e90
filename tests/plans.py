"""Plans that many tests ask for: (ln 3, 0.05) for a trajectory, of problems certified once."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import mpmath

import sottovoce as sv
from sottovoce.certificate.certificate import Certificate
from sottovoce.formula.derive import derivative
from sottovoce.formula.expression import Expression
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.problem import CloudView


@cache
def certified(name: str) -> Certificate:
    return sv.certify(sv.gallery.get(name).cloud)


def planned(
    of: Certificate | str = "paper", *, radius: float = 1.0, method: str = "joint", **change: Any
) -> NoisePlan:
    hide = sv.Trajectory(radius=radius)
    promise: dict[str, Any] = {"epsilon": math.log(3), "delta": 0.05, "hide": hide}
    plan_of = sv.paper.plan if method == "paper" else sv.plan
    return plan_of(certified(of) if isinstance(of, str) else of, **(promise | change))


def coupled_entries(cloud: CloudView) -> list[tuple[int, int, Expression]]:
    """Row, column and formula of every entry of dg/dx that other agents move too, named ones'."""
    owners = [(s, frozenset(g.symbols)) for g in cloud.groups for s in g.symbols]
    rows = [g for family in cloud.constraints for g in family.named]
    entries = [
        (row, column, derivative(g, s), own)
        for row, g in enumerate(rows)
        for column, (s, own) in enumerate(owners)
    ]
    return [(row, column, slope) for row, column, slope, own in entries if slope.symbols - own]


def exact_delta(mu: float | mpmath.mpf, epsilon: float) -> mpmath.mpf:
    """Balle and Wang's delta of mu-GDP; the subtraction costs digits: of 60, 50 are right."""
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        if m == 0:
            return m
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
