"""Plans that many tests ask for: (ln 3, 0.05) for a trajectory, of problems certified once."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import sottovoce as sv
from sottovoce.certificate.certificate import Certificate
from sottovoce.privacy.noise_plan import NoisePlan


@cache
def certified(name: str) -> Certificate:
    """The certificate of a problem of the gallery, from what is public."""
    return sv.certify(sv.gallery.get(name).cloud)


def planned(
    of: Certificate | str = "paper", *, radius: float = 1.0, method: str = "joint", **change: Any
) -> NoisePlan:
    """The joint plan, or the paper's, of a certificate or of a problem of the gallery."""
    hide = sv.Trajectory(radius=radius)
    asked: dict[str, Any] = {"epsilon": math.log(3), "delta": 0.05, "hide": hide}
    how = sv.paper.plan if method == "paper" else sv.plan
    return how(certified(of) if isinstance(of, str) else of, **(asked | change))
