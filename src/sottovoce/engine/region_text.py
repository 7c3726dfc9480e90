"""``phi`` of the public set's regions as a function: value, gradient and Hessian from formulas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sottovoce.algorithm.prices import LARGEST_REGION
from sottovoce.algorithm.projection import PublicSet, no_phi
from sottovoce.engine.emit import Emitter
from sottovoce.engine.source import block
from sottovoce.errors import ProblemError
from sottovoce.formula.derive import derivative
from sottovoce.privacy.target import Target
from sottovoce.problem.ball import ball_of
from sottovoce.problem.sums import Region, Sums


def public_set(sums: Sums, target: Target | None = None) -> PublicSet:
    """Return C, or what of it is aimed at, as the arrays that the cloud's round takes.

    Balls are recognised.
    """
    aimed = Target.whole(sums) if target is None else target
    starts, radii = [0], list[float]()
    members, centers = list[int](), list[float]()
    for region, moved in zip(sums.regions, aimed.moved, strict=True):
        if len(region.rows) > LARGEST_REGION:
            raise ProblemError(
                f"constraint {region.name} must mix at most {LARGEST_REGION} sums, got "
                f"{len(region.rows)}: state it as several constraints"
            )
        ball = ball_of(region)
        members += region.rows
        starts.append(len(members))
        centers += [0.0] * len(region.rows) if ball is None else ball[0]
        radii.append(-1.0 if ball is None else ball[1] - moved)
    return PublicSet(
        np.array(aimed.lower),
        np.array(aimed.upper),
        np.array(starts, dtype=np.int64),
        np.array(members, dtype=np.int64),
        np.array(centers, dtype=np.float64),
        np.array(radii, dtype=np.float64),
        np.array(aimed.moved, dtype=np.float64),
    )


def phi_source(regions: Sequence[Region]) -> str:
    """The text of a module with ``phi(region, u, gradient, hessian)``, compiled."""
    kinds = "float64(int64, float64[::1], float64[::1], float64[:, ::1])"
    return "\n".join(
        [
            "import math",
            "from sottovoce.compiler.module import entry",
            f'\n\n@entry("{kinds}")',
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
            slope = derivative(region.phi, s)
            page.lines.append(f"gradient[{i}] = {page.value(slope)}")
            for j, other in enumerate(region.symbols):
                page.lines.append(f"hessian[{i}, {j}] = {page.value(derivative(slope, other))}")
        page.lines.append(f"return {page.value(region.phi)}")
        lines += [f"    if region == {r}:", block(page.lines, 2)]
    return [*lines, "    return -1.0"]
