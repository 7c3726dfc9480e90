"""A gateway of the car park: it alone knows its cars, states what they need, and charges them."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

import numpy as np
from day import FIRST, HORIZON, Array, Cars, Lot, public

import sottovoce as sv
from sottovoce.network.agent import AgentResult
from sottovoce.network.config import SeriesRun


class Gateway:
    """The cars of a range of places behind one connection, through all runs of the day."""

    def __init__(self, places: range, folder: Path) -> None:
        self.places = places
        self.lot = Lot(Cars.drawn(), np.array(places))
        self._file = folder / f"drawn-{places[0] + 1}-{places[-1] + 1}.npy"

    def prepare(self, run: SeriesRun | None = None) -> sv.network.AgentGroup:
        """Return what the cars need as a run opens."""
        problem = self.lot.problem(public(FIRST) if run is None else run.public)
        return sv.network.AgentGroup.of_problem(problem, self.places)

    def on_result(self, result: AgentResult) -> None:
        """Charge for an hour: by the answer, or by the fallback of cars that sat out."""
        plan = self.lot.safe
        taking_part = np.array(result.agents) - 1 - self.places[0]
        plan[taking_part] = result.setpoint.reshape(-1, HORIZON)
        self.lot.apply(plan)
        save_private(self._file, self.lot.drawn)


def save_private(file: Path, values: Array) -> None:
    """Write what its owner alone may read."""
    with os.fdopen(os.open(file, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as stream:
        np.save(stream, values)


def main() -> None:
    """Take part in all runs of the series."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agents", help="a range such as 1-250")
    parser.add_argument("folder", type=Path)
    parser.add_argument("cloud")
    given = parser.parse_args()
    first, last = map(int, given.agents.split("-"))
    gateway = Gateway(range(first - 1, last), given.folder)
    agent = sv.network.Agent(
        gateway.prepare(),
        cloud=given.cloud,
        keys=given.folder / "keys" / "agents" / given.agents,
        saved=given.folder / f"{given.agents}.state",
        prepare=gateway.prepare,
        on_result=gateway.on_result,
    )
    asyncio.run(agent.run())


if __name__ == "__main__":
    main()
