"""A real cloud and real agents on this machine, from keys to figure."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from rich.table import Table

from sottovoce.certificate.certificate import certify
from sottovoce.certificate.optimum import ReferenceOptimum, reference_optimum, saddle_prices
from sottovoce.cli.cloud import run_rounds
from sottovoce.cli.console import console, errors
from sottovoce.cli.crew import run_crew
from sottovoce.cli.options import make_folder
from sottovoce.cli.request import algorithm_for, make_plan, method_for
from sottovoce.network import identity
from sottovoce.network.agent import AgentStore
from sottovoce.network.agent_group import AgentGroup
from sottovoce.network.observe.run_summary import answers
from sottovoce.network.protocol.agent import Memory
from sottovoce.network.protocol.codec import pack, unpack
from sottovoce.privacy.trust import WORDS
from sottovoce.problem import gallery
from sottovoce.problem.agents import Array
from sottovoce.problem.files.load import load_problem
from sottovoce.problem.files.save import save_problem
from sottovoce.problem.problem import Problem


def demonstrate(
    folder: Path | None,
    rounds: int | None,
    out: Path | None,
    *,
    split: bool = False,
    feasible: str | None = None,
    page: bool = False,
) -> None:
    """Run a cloud and its agents as processes on this machine, and hold their answer up."""
    root = demo_folder(out)
    where = root / "problem" if folder is None else folder
    if folder is None:
        save_problem(gallery.paper(), where)
    problem = load_problem(where)
    count = run_rounds(problem, rounds)
    run = Path(tempfile.mkdtemp(prefix="run-", dir=root))
    keys = run / "keys"
    identity.create(keys, agents=problem.agents, helper=() if split else None)
    own = keys / "cloud" if split else keys
    asked = ("--rounds", count, *(() if feasible is None else ("--feasible", feasible)))
    cloud = ("cloud", where, "--keys", own, "--store", run / "run.db", *asked)
    files = ("--keys", keys / "helper", "--store", run / "helper.db", *asked)
    helper = ("helper", where, *files) if split else None
    agents = [
        ("agent", where / "agents" / f"{i}.toml", "--keys", keys / "agents" / str(i),
         "--state", run / f"{i}.state")
        for i in range(1, problem.agents + 1)
    ]  # fmt: skip
    errors.print(f"trust: {WORDS['split' if split else 'one']}", soft_wrap=True)
    halves = "one cloud, one helper" if split else "one cloud"
    says = f"{halves} and {problem.agents} agents"
    run_crew(cloud, agents, keys, says, helper=helper, page=page)
    _report(problem, count, run, split=split, feasible=feasible)


def demo_folder(out: Path | None) -> Path:
    """Return the folder for keys, stores and figures: the one asked for, or a new one."""
    root = Path(tempfile.mkdtemp(prefix="sottovoce-demo-")) if out is None else out
    make_folder(root)
    return root


def _report(problem: Problem, rounds: int, run: Path, *, split: bool, feasible: str | None) -> None:
    x = np.concatenate([_own_state(problem, i, run) for i in range(1, problem.agents + 1)])
    history = answers(run / "run.db")
    best = reference_optimum(problem)
    method = method_for(algorithm_for(problem))
    labels, prices = _prices(problem, best, method)
    table = Table(title=f"after {rounds:,} private rounds")
    for column in ("", "reached", "optimum"):
        table.add_column(column, justify="left" if not column else "right")
    names = [s.name for group in problem.groups for s in group.symbols * group.count]
    reached, optimum = np.concatenate([x, history[-1]]), np.concatenate([best.x, prices])
    for name, got, true in zip([*names, *labels], reached, optimum, strict=True):
        table.add_row(name, f"{got:.4f}", f"{true:.4f}")
    console.print(table)
    certificate = certify(problem.cloud)
    plan = make_plan(
        problem, certificate, rounds=rounds, method=method, split=split, feasible=feasible
    )
    console.print(str(plan), markup=False, soft_wrap=True)
    figure = run.parent / "demo.png"
    _draw(history, prices, x, best.x, names, labels, figure)
    errors.print(f"figure: {figure}; keys, store and states: {run}", soft_wrap=True)


def _prices(problem: Problem, best: ReferenceOptimum, method: str) -> tuple[list[str], Array]:
    """What the prices that everybody sees are called, and where they should end."""
    if method == "paper":
        return [f"mu: {label}" for label in problem.cloud.row_labels()], best.mu
    labels = [f"price: {label}" for label in problem.cloud.sums.labels()]
    return labels, saddle_prices(problem, best)


def _own_state(problem: Problem, number: int, run: Path) -> Array:
    start = pack(AgentGroup.of_problem(problem, [number]).start)
    begun = Memory(x=start, answer=start)
    saved = AgentStore(run / f"{number}.state", begun)
    saved.close()
    return unpack(saved.memory.answer)


def _draw(
    history: Array,
    prices: Array,
    x: Array,
    x_hat: Array,
    names: list[str],
    labels: list[str],
    path: Path,
) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for j, label in enumerate(labels):
        (line,) = left.plot(np.arange(1, len(history) + 1), history[:, j], label=label)
        left.axhline(prices[j], color=line.get_color(), linestyle="--", linewidth=0.8)
    left.set(xlabel="round", title="prices as everybody sees them; dashed: optimum")
    left.legend(fontsize="small")
    places = np.arange(x.size)
    right.bar(places - 0.2, x, width=0.4, label="reached")
    right.bar(places + 0.2, x_hat, width=0.4, label="optimum")
    right.set_xticks(places, names)
    right.set_title("states, known to their agents alone")
    right.legend(fontsize="small")
    figure.savefig(path, dpi=150)
