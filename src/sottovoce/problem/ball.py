"""Regions that are balls, of which more is known in closed form."""

from __future__ import annotations

import sympy as sp

from sottovoce.problem.sums import Region


def ball_of(region: Region) -> tuple[list[float], float] | None:
    """Return the centre and radius of the region if it is a ball."""
    try:
        form = sp.Poly(region.phi, *region.symbols)
    except sp.PolynomialError:
        return None
    if form.total_degree() != 2:
        return None
    units = [form.coeff_monomial(s**2) for s in region.symbols]
    if any(w != units[0] for w in units) or not units[0].is_positive:
        return None
    centers = [
        -form.coeff_monomial(s) / (2 * w) for s, w in zip(region.symbols, units, strict=True)
    ]
    square = sp.Add(*(w * (s - c) ** 2 for s, c, w in
                      zip(region.symbols, centers, units, strict=True)))  # fmt: skip
    left = sp.expand(region.phi - square)
    if left.free_symbols or not (-left).is_nonnegative:
        return None
    return [float(c) for c in centers], float(sp.sqrt(-left / units[0]))
