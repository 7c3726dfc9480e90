"""A real cloud, and gateways that host a fleet of chargers between them."""

from __future__ import annotations

import json
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich.table import Table

from sottovoce.certificate.certificate import certify
from sottovoce.certificate.optimum import reference_optimum, saddle_prices
from sottovoce.cli.console import console, errors
from sottovoce.cli.crew import Words, run_crew
from sottovoce.cli.demonstrate import demo_folder
from sottovoce.formula.parse import parse_number
from sottovoce.network import identity
from sottovoce.network.observe.run_summary import answers
from sottovoce.privacy.adjacency import Everything
from sottovoce.privacy.plan import plan
from sottovoce.problem.agents import Array
from sottovoce.problem.files.save import save_problem
from sottovoce.problem.gallery.chargers import FIRST_HOUR, chargers
from sottovoce.problem.numeric import Numeric
from sottovoce.problem.problem import Problem

GATEWAYS = 4
ROUNDS = 100
HOURS = 6
EPSILON, DELTA = 1.0, 1e-5


def demonstrate_fleet(
    agents: int,
    rounds: int | None,
    out: Path | None,
    *,
    feasible: str | None = None,
    page: bool = False,
) -> None:
    """Run a cloud and four gateways as processes, each with the files of its own chargers alone."""
    count = ROUNDS if rounds is None else rounds
    run = Path(tempfile.mkdtemp(prefix="fleet-", dir=demo_folder(out)))
    problem = chargers(agents, hours=HOURS)
    parts = _parts(agents)
    errors.print(f"writing keys and files for {agents:,} chargers behind {len(parts)} gateways")
    save_problem(problem, run / "cloud", agents=[])
    for part in parts:
        save_problem(problem, run / _name(part), agents=part)
    keys = run / "keys"
    identity.create(keys, agents=agents, gateways=parts)
    cloud = ("cloud", run / "cloud", "--keys", keys, "--store", run / "run.db",
             "--rounds", count, "--hide", Everything.kind, "--epsilon", EPSILON,
             "--delta", DELTA, *(() if feasible is None else ("--feasible", feasible)))  # fmt: skip
    says = f"one cloud and {len(parts)} gateways"
    run_crew(cloud, [_gateway(run, part) for part in parts], keys, says, page=page)
    wish = None if feasible is None else parse_number(feasible, where="--feasible")
    _report(problem, count, run, parts, wish)


def _parts(agents: int) -> list[range]:
    ends = np.linspace(1, agents + 1, min(GATEWAYS, agents) + 1).astype(int).tolist()
    return [range(first, last) for first, last in pairwise(ends)]


def _name(part: range) -> str:
    return str(part.start) if len(part) == 1 else f"{part.start}-{part.stop - 1}"


def _gateway(run: Path, part: range) -> Words:
    name = _name(part)
    files = ("--state", run / f"{name}.state", "--out", run / f"{name}.json")
    keys = run / "keys" / "agents" / name
    return ("gateway", run / name, "--agents", name, "--keys", keys, *files)


def _report(
    problem: Problem, rounds: int, run: Path, parts: list[range], feasible: float | None
) -> None:
    x = np.concatenate([_states(run / f"{_name(part)}.json") for part in parts])
    best = reference_optimum(problem)
    prices, reached = saddle_prices(problem, best), answers(run / "run.db")[-1]
    capacity = -problem.constraints[0].offset
    table = Table(title=f"{problem.agents:,} chargers after {rounds:,} private rounds")
    table.add_column("hour")
    for heading in ("capacity kW", "load", "optimal load", "price", "optimal price"):
        table.add_column(heading, justify="right")
    loads = (x.reshape(-1, HOURS).sum(axis=0), best.x.reshape(-1, HOURS).sum(axis=0))
    for t in range(HOURS):
        kilowatts = (f"{column[t]:,.0f}" for column in (capacity, *loads))
        worth = (f"{column[t]:.3f}" for column in (reached, prices))
        table.add_row(f"{(FIRST_HOUR + t) % 24}:00", *kilowatts, *worth)
    console.print(table)
    console.print(_cost(problem, x, best.x))
    hide = Everything(rounds=rounds)
    known = certify(problem.cloud)
    made = plan(known, epsilon=EPSILON, delta=DELTA, hide=hide, feasible=feasible)
    console.print(str(made), markup=False, soft_wrap=True)
    errors.print(f"keys, store, files of cloud and gateways: {run}", soft_wrap=True)


def _states(path: Path) -> Array:
    states = json.loads(path.read_text(encoding="utf-8"))["x"]
    return np.concatenate([np.asarray(own) for own in states.values()])


def _cost(problem: Problem, x: Array, x_hat: Array) -> str:
    reached, best = (Numeric(problem).objective(states) for states in (x, x_hat))
    return f"cost of all chargers: {reached:,.0f}, at the optimum {best:,.0f}"
