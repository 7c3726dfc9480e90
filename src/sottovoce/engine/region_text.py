"""``phi`` of the public set's regions as a function: value, gradient and Hessian from formulas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import sympy as sp

from sottovoce.algorithm.prices import LARGEST_REGION
from sottovoce.algorithm.projection import PublicSet, no_phi
from sottovoce.engine.emit import Emitter
from sottovoce.engine.source import OPTIONS, block
from sottovoce.errors import ProblemError
from sottovoce.problem.sums import Region, Sums


def public_set(sums: Sums) -> PublicSet:
    """Return C as the arrays that the cloud's round takes; balls are recognised."""
    starts, radii = [0], list[float]()
    members, centers = list[int](), list[float]()
    for region in sums.regions:
        if len(region.rows) > LARGEST_REGION:
            raise ProblemError(
                f"constraint {region.name} must mix at most {LARGEST_REGION} sums, got "
                f"{len(region.rows)}: state it as several constraints"
            )
        ball = _ball(region)
        members += region.rows
        starts.append(len(members))
        centers += [0.0] * len(region.rows) if ball is None else ball[0]
        radii.append(-1.0 if ball is None else ball[1])
    return PublicSet(
        np.array(sums.lower),
        np.array(sums.upper),
        np.array(starts, dtype=np.int64),
        np.array(members, dtype=np.int64),
        np.array(centers, dtype=np.float64),
        np.array(radii, dtype=np.float64),
    )


def phi_source(regions: Sequence[Region]) -> str:
    """The text of a module with ``phi(region, u, gradient, hessian)``, compiled."""
    kinds = "float64(int64, float64[::1], float64[::1], float64[:, ::1])"
    return "\n".join(
        [
            "import math",
            "from numba import njit",
            f'\n\n@njit("{kinds}", nogil=True, cache=CACHE, {OPTIONS})',
            *_phi(regions),
            "",
        ]
    )


def phi_function(regions: Sequence[Region]) -> Any:
    """The same function, uncompiled."""
    if not regions:
        return no_phi
    scope: dict[str, Any] = {}
    exec("import math\n" + "\n".join(_phi(regions)), scope)  # noqa: S102  text of our own making
    return scope["phi"]


def _phi(regions: Sequence[Region]) -> list[str]:
    lines = ["def phi(region, u, gradient, hessian):"]
    for r, region in enumerate(regions):
        page = Emitter({s: f"u{i}" for i, s in enumerate(region.symbols)})
        page.lines += [f"u{i} = u[{i}]" for i in range(len(region.symbols))]
        for i, s in enumerate(region.symbols):
            slope = sp.diff(region.phi, s)
            page.lines.append(f"gradient[{i}] = {page.value(slope)}")
            for j, other in enumerate(region.symbols):
                page.lines.append(f"hessian[{i}, {j}] = {page.value(sp.diff(slope, other))}")
        page.lines.append(f"return {page.value(region.phi)}")
        lines += [f"    if region == {r}:", block(page.lines, 2)]
    return [*lines, "    return -1.0"]


def _ball(region: Region) -> tuple[list[float], float] | None:
    """The centre and radius if the region is a ball."""
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
