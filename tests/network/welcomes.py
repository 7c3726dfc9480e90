"""Welcomes as a cloud would write them, for rounds at home without a cloud."""

from __future__ import annotations

from typing import Any

import numpy as np

from sottovoce.algorithm.algorithm import Algorithm, GradientSteps
from sottovoce.network.config import RunConfig, describe
from sottovoce.network.protocol.codec import pack, pack_whole
from sottovoce.network.protocol.messages import Welcome
from sottovoce.problem.groups import lower_bounds, upper_bounds
from sottovoce.problem.problem import CloudView

FAR = 2**62


def welcome_to(
    cloud: CloudView,
    agents: list[int],
    algorithm: Algorithm,
    *,
    rounds: int = 10,
    grid: Any = None,
    domain: Any = None,
    entries: Any = (),
    hide: str = "trajectory",
) -> Welcome:
    """A welcome as a cloud would write it; entries are pairs of a row and a column of all."""
    groups = cloud.groups if domain is None else domain
    ends = np.cumsum([0, *(g.dim for g in groups for _ in range(g.count))])
    columns = np.concatenate([np.arange(ends[a - 1], ends[a]) for a in agents])
    lower, upper = lower_bounds(groups), upper_bounds(groups)
    states = isinstance(algorithm, GradientSteps)
    p = 0 if states else cloud.sums.count
    config = RunConfig(
        run_id="run", problem=cloud.fingerprint, plan="plan", algorithm=describe(algorithm),
        rounds=rounds, noise="simulated", promise={"hide": hide},
    )  # fmt: skip
    listed = [(row, int(np.searchsorted(columns, c))) for row, c in entries if c in columns]
    return Welcome(
        config=config.text,
        round=1,
        rounds=rounds,
        spoke=0,
        states=states,
        prices=cloud.rows if states else p,
        lower=pack(lower[columns]),
        upper=pack(upper[columns]),
        sums=list(range(p)),
        grid=pack(np.full(p, 1e-6) if grid is None else grid),
        least=pack_whole(np.full(p, -FAR)),
        most=pack_whole(np.full(p, FAR)),
        rows=[row for row, _ in listed],
        columns=[column for _, column in listed],
    )
