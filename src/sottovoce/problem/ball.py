"""Regions that are balls, of which more is known in closed form."""

from __future__ import annotations

import math

from sottovoce.formula.derive import quadratic_form
from sottovoce.problem.sums import Region


def ball_of(region: Region) -> tuple[list[float], float] | None:
    """Return the centre and radius of the region if it is a ball."""
    form = quadratic_form(region.phi)
    if form is None or len(form.symbols) < len(region.symbols):
        return None
    weight = form.quadratic[0][0]
    same = all(
        entry == (weight if i == j else 0)
        for i, row in enumerate(form.quadratic)
        for j, entry in enumerate(row)
    )
    if weight <= 0 or not same:
        return None
    centre = {s: -q / (2 * weight) for s, q in zip(form.symbols, form.linear, strict=True)}
    square = sum(m * m for m in centre.values()) - form.constant / weight
    if square < 0:
        return None
    return [float(centre[s]) for s in region.symbols], math.sqrt(square)
