"""A real cloud and real agents on this machine, from keys to figure."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp
import numpy as np
from rich.live import Live
from rich.table import Table

from sottovoce.certify.certificate import certify
from sottovoce.certify.saddle import SaddlePoint, saddle_point
from sottovoce.certify.saddle_prices import saddle_prices
from sottovoce.cli.cloud import run_rounds
from sottovoce.cli.console import console, errors
from sottovoce.cli.options import make_folder
from sottovoce.cli.request import algorithm_for, make_plan, method_for
from sottovoce.errors import SottovoceError
from sottovoce.network import identity, loop
from sottovoce.network.household import Household
from sottovoce.network.protocol.agent import Memory
from sottovoce.network.protocol.codec import pack, unpack
from sottovoce.network.saved import Saved
from sottovoce.network.summary import answers
from sottovoce.network.tls import client_context
from sottovoce.privacy.figures import up
from sottovoce.problem import gallery
from sottovoce.problem.agents import Array
from sottovoce.problem.folder import load_problem
from sottovoce.problem.problem import Problem
from sottovoce.problem.save import save_problem

Process: TypeAlias = "subprocess.Popen[bytes]"

POLL_SECONDS = 0.2
LINE_SECONDS = 2.0
LIMIT_SECONDS = 600.0


def demonstrate(folder: Path | None, rounds: int | None, out: Path | None) -> None:
    """Run a cloud and its agents as processes on this machine, and hold their answer up."""
    root = Path(tempfile.mkdtemp(prefix="sottovoce-demo-")) if out is None else out
    make_folder(root)
    where = root / "problem" if folder is None else folder
    if folder is None:
        save_problem(gallery.paper(), where)
    problem = load_problem(where)
    count = run_rounds(problem, rounds)
    run = Path(tempfile.mkdtemp(prefix="run-", dir=root))
    identity.create(run / "keys", agents=problem.agents)
    with _processes(where, run, problem.agents, count) as (port, crew):
        errors.print(f"one cloud and {problem.agents} agents are starting on port {port}")
        loop.run(_watch(run / "keys" / "operator", port, crew))
        for process in crew:
            process.wait(60)
    _report(problem, count, run)


@contextmanager
def _processes(
    where: Path, run: Path, agents: int, rounds: int
) -> Iterator[tuple[int, list[Process]]]:
    """The cloud first, then the agents; whatever happens, none is left behind."""
    port, keys = _free_port(), run / "keys"
    crew: list[Process] = []
    server = (where, "--keys", keys, "--store", run / "run.db", "--listen", f"127.0.0.1:{port}")
    try:
        crew.append(_start("cloud", *server, "--rounds", rounds))
        for i in range(1, agents + 1):
            own = (where / "agents" / f"{i}.toml", "--keys", keys / "agents" / str(i))
            address = ("--cloud", f"wss://127.0.0.1:{port}", "--state", run / f"{i}.state")
            crew.append(_start("agent", *own, *address))
        yield port, crew
    finally:
        for process in crew:
            if process.poll() is None:
                process.kill()
            process.wait()


def _start(command: str, *arguments: object) -> Process:
    code = "from sottovoce.cli import main; main()"
    words = [sys.executable, "-c", code, command, *map(str, arguments), "--log-level", "error"]
    return subprocess.Popen(words, stderr=subprocess.DEVNULL)  # noqa: S603  our own words


async def _watch(keys: Path, port: int, crew: list[Process]) -> None:
    """Show the run from the operator's page until the cloud has ended."""
    context = client_context(keys)
    began = time.monotonic()
    last: tuple[float, int] | None = None
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        with _shown() as show:
            while crew[0].poll() is None:
                if time.monotonic() - began > LIMIT_SECONDS:
                    raise SottovoceError("the demo takes too long: run fewer --rounds")
                _require_healthy(crew)
                facts = await _facts(session, port)
                now = time.monotonic()
                if facts is not None:
                    speed = _speed(last, now, facts["round"])
                    last = (now, facts["round"])
                    show(facts, speed)
                await asyncio.sleep(POLL_SECONDS)
    _require_healthy(crew)


async def _facts(session: aiohttp.ClientSession, port: int) -> dict[str, Any] | None:
    try:
        async with session.get(f"https://127.0.0.1:{port}/status") as answer:
            facts: dict[str, Any] = await answer.json()
            return facts
    except (aiohttp.ClientError, OSError):
        return None  # not up yet, or gone already


def _require_healthy(crew: list[Process]) -> None:
    for place, process in enumerate(crew):
        if process.poll() not in (None, 0):
            who = "cloud" if place == 0 else f"agent {place}"
            raise SottovoceError(f"the {who} ended with code {process.returncode}")


def _speed(last: tuple[float, int] | None, now: float, k: int) -> float:
    return 0.0 if last is None or now <= last[0] else (k - last[1]) / (now - last[0])


@contextmanager
def _shown() -> Iterator[Callable[[dict[str, Any], float], None]]:
    """Show progress as a table that changes in place, or as lines where there is no terminal."""
    if not errors.is_terminal:
        yield _Lines().show
        return
    with Live(console=errors, refresh_per_second=8, transient=True) as live:
        yield lambda facts, speed: live.update(_progress(facts, speed))


class _Lines:
    """Progress as a line every two seconds."""

    def __init__(self) -> None:
        self.last = 0.0

    def show(self, facts: dict[str, Any], speed: float) -> None:
        """Print where the run is, unless a line was printed just now."""
        if time.monotonic() - self.last < LINE_SECONDS:
            return
        self.last = time.monotonic()
        errors.print(
            f"round {facts['round']:,} of {facts['rounds']:,}, {speed:,.0f} rounds/s, "
            f"{facts['connected']} of {facts['agents']} agents connected"
        )


def _progress(facts: dict[str, Any], speed: float) -> Table:
    table = Table(show_header=False)
    table.add_row("rounds", f"{facts['round']:,} of {facts['rounds']:,}")
    table.add_row("rounds/s", f"{speed:,.0f}")
    table.add_row("agents", f"{facts['connected']} of {facts['agents']} connected")
    table.add_row("prices", ", ".join(f"{price:.3f}" for price in facts["price"][:12]))
    table.add_row("budget", f"Gaussian-DP mu = {up(facts['gdp_mu'], 4)} for the whole run")
    return table


def _report(problem: Problem, rounds: int, run: Path) -> None:
    x = np.concatenate([_own_state(problem, i, run) for i in range(1, problem.agents + 1)])
    history = answers(run / "run.db")
    best = saddle_point(problem)
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
    plan = make_plan(problem, certify(problem.cloud), rounds=rounds, method=method)
    console.print(str(plan), markup=False, soft_wrap=True)
    figure = run.parent / "demo.png"
    _draw(history, prices, x, best.x, names, labels, figure)
    errors.print(f"figure: {figure}; keys, store and states: {run}", soft_wrap=True)


def _prices(problem: Problem, best: SaddlePoint, method: str) -> tuple[list[str], Array]:
    """What the prices that everybody sees are called, and where they should end."""
    if method == "paper":
        return [f"mu: {label}" for label in problem.cloud.row_labels()], best.mu
    labels = [f"price: {label}" for label in problem.cloud.sums.labels()]
    return labels, saddle_prices(problem, best)


def _own_state(problem: Problem, number: int, run: Path) -> Array:
    start = pack(Household.of_problem(problem, [number]).start)
    begun = Memory(x=start, answer=start)
    saved = Saved(run / f"{number}.state", begun, sums=problem.cloud.sums.count)
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
