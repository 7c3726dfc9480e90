"""The cloud's half of a round, compiled once for all problems.

Kernels call it by its address. Two forms: one for sets C that are intervals, and one that takes the
functions of C's regions as an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from sottovoce.algorithm.algorithm import PriceRounds
from sottovoce.algorithm.dual_averaging import Rows
from sottovoce.algorithm.projection import PublicSet, project_work
from sottovoce.certify.contributions import sum_ranges
from sottovoce.engine.compile import load_kernel
from sottovoce.engine.region_text import phi_source, public_set
from sottovoce.privacy.target import Target
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.sums import Region, Sums

PUBLIC = {
    "lower": "float64[::1]",
    "upper": "float64[::1]",
    "starts": "int64[::1]",
    "members": "int64[::1]",
    "centers": "float64[::1]",
    "radii": "float64[::1]",
    "levels": "float64[::1]",
}
"""C as a kernel takes it, array by array, with their kinds."""

PHI = {
    "phi": "float64(int64, float64[::1], float64[::1], float64[:, ::1])",
}
"""The functions of its regions, where it has any."""

_TURN = {
    "k": "int64",
    "y": "float64[::1]",
    "price": "float64[::1]",
    "memory": "float64[::1]",
    "constants": "float64[::1]",
    "unit": "float64[::1]",
    "noisy": "float64[::1]",
}


@final
@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """The cloud's round, compiled.

    Attributes:
        turn: ``turn(k, y, price, memory, constants, unit, noisy, *C, *phi)``; whether prices
            stayed bounded.
        nearest: ``nearest(v, u, work, *C, *phi)`` fills u with the point of C nearest to v;
            scratch as ``nearest_work`` says.
        phi: the functions of C's regions, if it has any.
    """

    turn: Any
    nearest: Any
    phi: tuple[Any, ...]

    @property
    def addresses(self) -> tuple[int, int]:
        """Where kernels find ``turn`` and ``nearest``."""
        return self.turn.address, self.nearest.address

    def point(self, v: Array, public: PublicSet) -> Array:
        """Return the point of C nearest to v."""
        u, work = np.empty(v.size), np.empty(nearest_work(v.size, regions=bool(self.phi)))
        self.nearest(np.array(v), u, work, *public, *self.phi)
        return u


def public_arguments(regions: Sequence[Region]) -> dict[str, str]:
    """C as a kernel takes it, with their kinds."""
    return PUBLIC | PHI if regions else dict(PUBLIC)


def nearest_work(sums: int, *, regions: bool) -> int:
    """Return how many floats of scratch ``nearest`` needs."""
    return sums + (project_work(sums) if regions else 0)


def load_turn(algorithm: PriceRounds, regions: Sequence[Region]) -> Turn:
    """Compile the cloud's round, or find it compiled."""
    constants = type(algorithm.constants)
    module = load_kernel(_source(algorithm, regions), algorithm.cloud_round, constants)
    phi = (load_kernel(phi_source(regions)).phi,) if regions else ()
    return Turn(module.turn, module.nearest, phi)


def public_rows(
    sums: Sums, domain: Sequence[Group], sigma: Array | None, target: Target | None = None
) -> Rows:
    """Return what is public of the sums; a sum without noise counts in units of its range.

    Args:
        sums: the sums and C.
        domain: the boxes of the agents that make them.
        sigma: the noise of every sum, if there is any.
        target: how much of C is aimed at; all of it by default.
    """
    known = np.zeros(sums.count) if sigma is None or sigma.size != sums.count else sigma
    unit = np.array(known)
    if not np.all(known > 0.0):
        widths = np.array([high - low for low, high in sum_ranges(sums, domain)])
        fine = np.isfinite(widths) & (widths > 0.0)
        unit = np.where(known > 0.0, known, np.where(fine, widths, 1.0))
    return Rows(unit, np.where(known > 0.0, 1.0, 0.0), public_set(sums, target))


def _source(algorithm: PriceRounds, regions: Sequence[Region]) -> str:
    constants, turn = type(algorithm.constants), algorithm.cloud_round
    given = ", ".join(f"constants[{i}]" for i in range(len(algorithm.constants)))
    every = public_arguments(regions)
    public, arguments = ", ".join(PUBLIC), ", ".join(every)
    kinds = ", ".join([*_TURN.values(), *every.values()])
    simple = ", ".join([*["float64[::1]"] * 3, *every.values()])
    phi = "phi" if regions else "None"
    return "\n".join(
        [
            "from sottovoce.compiler.module import entry",
            "from sottovoce.algorithm.dual_averaging import Rows",
            "from sottovoce.algorithm.projection import PublicSet, project",
            f"from {constants.__module__} import {constants.__name__} as Constants",
            f"from {turn.__module__} import {turn.__name__} as cloud_round",
            f'\n\n@entry("boolean({kinds})")',
            f"def turn({', '.join(_TURN)}, {arguments}):",
            f"    rows = Rows(unit, noisy, PublicSet({public}))",
            f"    return cloud_round(k, y, price, memory, rows, Constants({given}), {phi})",
            f'\n\n@entry("boolean({simple})")',
            f"def nearest(v, u, work, {arguments}):",
            "    for o in range(v.size):",
            "        work[o] = 1.0",
            f"    project(v, work[:v.size], PublicSet({public}), {phi}, u, work[v.size:])",
            "    return True",
            "",
        ]
    )
