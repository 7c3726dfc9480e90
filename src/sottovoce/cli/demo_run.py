"""A cloud and its agents, or gateways with a fleet of chargers, from keys to figure."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich.table import Table

from sottovoce.certificate.certificate import certify
from sottovoce.certificate.optimum import reference_optimum, saddle_prices
from sottovoce.cli.console import errors, show_result, table_of
from sottovoce.cli.demo import DemoOptions
from sottovoce.cli.options import RunOptions, algorithm_for, make_folder, method_for, run_rounds
from sottovoce.cli.processes import run_processes
from sottovoce.network import identity
from sottovoce.network.observe.run_summary import answers
from sottovoce.privacy.trust import WORDS
from sottovoce.problem import gallery
from sottovoce.problem.agents import Array
from sottovoce.problem.files.load import load_problem
from sottovoce.problem.files.save import save_problem
from sottovoce.problem.gallery.chargers import FIRST_HOUR, chargers
from sottovoce.problem.numeric import Numeric
from sottovoce.problem.problem import Problem

GATEWAYS = 4
FLEET_ROUNDS = 100
HOURS = 6
FLEET_PROMISE = RunOptions(hide="everything", epsilon="1.0", delta="1e-5")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Answer:
    """What a run reached beside the optimum.

    Attributes:
        x: the agents' states.
        history: the answer's prices of every round.
        x_hat: the optimal states.
        prices: the optimal prices; multipliers for the paper's release.
    """

    x: Array
    history: Array
    x_hat: Array
    prices: Array


def run_demo(options: DemoOptions) -> None:
    """Run a cloud and its parties as processes on this machine, and print answer and promise."""
    root = Path(tempfile.mkdtemp(prefix="sottovoce-demo-")) if options.out is None else options.out
    make_folder(root)
    run = _agents if options.fleet is None else _fleet
    run(options, root)


def _agents(options: DemoOptions, root: Path) -> None:
    """Agents of a folder, or of the paper's problem, each in a process of its own."""
    folder = root / "problem" if options.folder is None else options.folder
    if options.folder is None:
        save_problem(gallery.paper(), folder)
    problem = load_problem(folder)
    count = run_rounds(problem, options.rounds)
    run = Path(tempfile.mkdtemp(prefix="run-", dir=root))
    keys, split = run / "keys", options.split
    identity.create_keys(keys, agents=problem.agents, helper=() if split else None)
    asked = ("--rounds", count, *_feasible(options))
    cloud_keys = keys / "cloud" if split else keys
    cloud = ("cloud", folder, "--keys", cloud_keys, "--store", run / "run.db", *asked)
    helper = ("helper", folder, "--keys", keys / "helper", "--store", run / "helper.db", *asked)
    names = [str(i) for i in range(1, problem.agents + 1)]
    agents = [("agent", folder / "agents" / f"{i}.toml", *_files(run, i)) for i in names]
    errors.print(f"trust: {WORDS['split' if split else 'one']}", soft_wrap=True)
    parties = f"one cloud{', one helper' if split else ''} and {problem.agents} agents"
    chosen = helper if split else None
    run_processes(cloud, agents, keys, parties, helper=chosen, page=options.page)

    method = method_for(algorithm_for(problem))
    answer = _answer(problem, run, names, method)
    if method == "paper":
        labels = [f"mu: {label}" for label in problem.cloud.row_labels()]
    else:
        labels = [f"price: {label}" for label in problem.cloud.sums.labels()]
    states = [s.name for group in problem.groups for s in group.symbols * group.count]
    table = table_of(f"after {count:,} private rounds", "", "reached", "optimum")
    reached = np.concatenate([answer.x, answer.history[-1]])
    optimum = np.concatenate([answer.x_hat, answer.prices])
    for name, value, best in zip([*states, *labels], reached, optimum, strict=True):
        table.add_row(name, f"{value:.4f}", f"{best:.4f}")
    promise = RunOptions(feasible=options.feasible)
    plan = promise.plan(problem, certify(problem.cloud), rounds=count, method=method, split=split)
    show_result(None, table, str(plan), json=False)
    _draw(answer, states, labels, root / "demo.png")
    errors.print(f"figure: {root / 'demo.png'}; keys, store and states: {run}", soft_wrap=True)


def _fleet(options: DemoOptions, root: Path) -> None:
    """Chargers behind four gateways, each with the files of its own chargers alone."""
    problem = chargers(options.fleet or 1, hours=HOURS)
    count = FLEET_ROUNDS if options.rounds is None else options.rounds
    run = Path(tempfile.mkdtemp(prefix="fleet-", dir=root))
    ends = np.linspace(1, problem.agents + 1, min(GATEWAYS, problem.agents) + 1).astype(int)
    parts = {_name(range(*ends)): range(*ends) for ends in pairwise(ends.tolist())}
    errors.print(
        f"writing keys and files for {problem.agents:,} chargers behind {len(parts)} gateways"
    )
    save_problem(problem, run / "cloud", agents=[])
    for name, part in parts.items():
        save_problem(problem, run / name, agents=part)
    keys = run / "keys"
    identity.create_keys(keys, agents=problem.agents, gateways=list(parts.values()))
    promise = ("--hide", FLEET_PROMISE.hide, "--epsilon", FLEET_PROMISE.epsilon,
               "--delta", FLEET_PROMISE.delta)  # fmt: skip
    cloud = ("cloud", run / "cloud", "--keys", keys, "--store", run / "run.db", "--rounds", count,
             *promise, *_feasible(options))  # fmt: skip
    gateways = [("gateway", run / name, "--agents", name, *_files(run, name)) for name in parts]
    parties = f"one cloud and {len(parts)} gateways"
    run_processes(cloud, gateways, keys, parties, page=options.page)

    answer = _answer(problem, run, list(parts), "joint")
    reached, best = (Numeric(problem).objective(x) for x in (answer.x, answer.x_hat))
    cost = f"cost of all chargers: {reached:,.0f}, at the optimum {best:,.0f}"
    plan = replace(FLEET_PROMISE, feasible=options.feasible).plan(
        problem, certify(problem.cloud), rounds=count
    )
    show_result(None, _loads(problem, answer, count), cost, str(plan), json=False)
    errors.print(f"keys, store, files of cloud and gateways: {run}", soft_wrap=True)


def _loads(problem: Problem, answer: _Answer, rounds: int) -> Table:
    capacity = -problem.constraints[0].offset
    loads = (x.reshape(-1, HOURS).sum(axis=0) for x in (answer.x, answer.x_hat))
    table = table_of(
        f"{problem.agents:,} chargers after {rounds:,} private rounds",
        *("hour", "capacity kW", "load", "optimal load", "price", "optimal price"),
    )
    rows = zip(capacity, *loads, answer.history[-1], answer.prices, strict=True)
    for t, (*kilowatts, price, best) in enumerate(rows):
        cells = (*(f"{power:,.0f}" for power in kilowatts), f"{price:.3f}", f"{best:.3f}")
        table.add_row(f"{(FIRST_HOUR + t) % 24}:00", *cells)
    return table


def _name(part: range) -> str:
    return str(part.start) if len(part) == 1 else f"{part.start}-{part.stop - 1}"


def _files(run: Path, name: str) -> tuple[object, ...]:
    """The options of an agent or a gateway that name its files."""
    keys = run / "keys" / "agents" / name
    return ("--keys", keys, "--state", run / f"{name}.state", "--out", run / f"{name}.json")


def _feasible(options: DemoOptions) -> tuple[object, ...]:
    return () if options.feasible is None else ("--feasible", options.feasible)


def _answer(problem: Problem, run: Path, names: list[str], method: str) -> _Answer:
    best = reference_optimum(problem)
    return _Answer(
        x=np.concatenate([_states(run / f"{name}.json") for name in names]),
        history=answers(run / "run.db"),
        x_hat=best.x,
        prices=best.mu if method == "paper" else saddle_prices(problem, best),
    )


def _states(path: Path) -> Array:
    """The states in the answer of an agent, or of all agents of a gateway."""
    x = json.loads(path.read_text(encoding="utf-8"))["x"]
    return np.concatenate(
        [np.asarray(part) for part in (x.values() if isinstance(x, dict) else [x])]
    )


def _draw(answer: _Answer, states: list[str], labels: list[str], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for j, label in enumerate(labels):
        rounds = np.arange(1, len(answer.history) + 1)
        (line,) = left.plot(rounds, answer.history[:, j], label=label)
        left.axhline(answer.prices[j], color=line.get_color(), linestyle="--", linewidth=0.8)
    left.set(xlabel="round", title="prices as everybody sees them; dashed: optimum")
    left.legend(fontsize="small")
    places = np.arange(answer.x.size)
    right.bar(places - 0.2, answer.x, width=0.4, label="reached")
    right.bar(places + 0.2, answer.x_hat, width=0.4, label="optimum")
    right.set_xticks(places, states)
    right.set_title("states, known to their agents alone")
    right.legend(fontsize="small")
    figure.savefig(path, dpi=150)
