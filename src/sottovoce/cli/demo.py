"""``sottovoce demo``: a cloud and its agents as processes on this machine, from keys to figure."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from sottovoce.cli.console import errors, show_result
from sottovoce.cli.options import (
    RunOptions,
    algorithm_for,
    load,
    make_folder,
    method_for,
    option,
    run_rounds,
    with_options,
)
from sottovoce.cli.services import run_party
from sottovoce.errors import InputError, SottovoceError
from sottovoce.progress import shown
from sottovoce.tables import PlainTable, framed_table

if TYPE_CHECKING:
    from aiohttp import ClientSession

    from sottovoce.privacy.noise_plan import NoisePlan
    from sottovoce.problem.groups import Array
    from sottovoce.problem.problem import Problem

Status: TypeAlias = "Callable[[], Awaitable[dict[str, int] | None]]"
"""Asks the cloud for its status; None if it does not answer."""

GATEWAYS = 4
FLEET_ROUNDS = 100
HOURS = 6
FLEET_PROMISE = RunOptions(hide="everything", epsilon="1.0", delta="1e-5")
POLL_SECONDS = 0.2
LIMIT_SECONDS = 600.0
PAGE_SECONDS = 60.0  # how long agents wait until the page is opened


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What to run."""

    folder: Path | None = option(None, "a problem folder; the paper's problem if not given")
    fleet: int | None = option(None, "so many chargers behind four gateways instead")
    rounds: int | None = option(None, "rounds to run")
    out: Path | None = option(None, "folder for keys, store, states and figure")
    split: bool = option(False, "a cloud in two halves: start a helper too")
    feasible: str | None = None
    page: bool = option(False, "show the run in a browser: a link is printed")


@with_options
def demo_command(options: DemoOptions) -> None:
    """Run a cloud and its agents as processes on this machine, with mutual TLS and real noise.

    With --page the agents start when the page is open, or after a minute. The link works once, and
    on this machine alone.

    Example: sottovoce demo --out out
    """
    from sottovoce.kernels.variant import variant

    if options.fleet is not None and options.folder is not None:
        raise InputError("folder must be left out with --fleet, which brings a problem, got both")
    if options.fleet is not None and options.split:
        raise InputError("--split must be left out with --fleet, got both: run one of them")
    root = Path(tempfile.mkdtemp(prefix="sottovoce-demo-")) if options.out is None else options.out
    variant()  # warns where no kernels are compiled; the processes' warnings are in errors.log
    make_folder(root)
    if options.fleet is None:
        _run_agents(options, root)
    else:
        _run_fleet(options, options.fleet, root)


def _run_agents(options: DemoOptions, root: Path) -> None:
    """Agents of a folder, or of the paper's problem, each in a process of its own."""
    from sottovoce.network import identity
    from sottovoce.privacy.trust import TRUST_STATEMENTS

    folder = root / "problem" if options.folder is None else options.folder
    if options.folder is None:
        load("gallery:paper").save(folder)
    problem, split = load(folder), options.split
    run = Path(tempfile.mkdtemp(prefix="run-", dir=root))
    identity.create_keys(run / "keys", agents=problem.agents, helper=() if split else None)
    count, method = run_rounds(problem, options.rounds), method_for(algorithm_for(problem))
    promise = RunOptions(feasible=options.feasible)
    plan = promise.plan(problem, public=True, rounds=count, method=method, split=split)
    numbers = range(1, problem.agents + 1)
    parts = {str(i): ("agent", folder / "agents" / f"{i}.toml") for i in numbers}
    errors.print(f"trust: {TRUST_STATEMENTS[plan.trust.kind]}", soft_wrap=True)
    errors.print(f"starting a cloud{', a helper' if split else ''} and {problem.agents} agents")
    demo = _Demo(folder=folder, run=run, rounds=count, promise=promise, parts=parts, split=split)
    answer = demo.play(problem, plan, page=options.page)
    labels = [f"price: {label}" for label in problem.cloud.sums.labels]
    if plan.release is not None:
        labels = [f"mu: {label}" for label in problem.cloud.row_labels()]
    states = [s.name for group in problem.groups for s in group.symbols * group.count]
    reached, optimum = (*answer.x, *answer.history[-1]), (*answer.x_hat, *answer.prices)
    rows = zip([*states, *labels], reached, optimum, strict=True)
    cells = ((name, f"{value:.4f}", f"{best:.4f}") for name, value, best in rows)
    title = f"after {count:,} private rounds"
    table = framed_table(title, ("", "reached", "optimum"), cells)
    show_result(None, table, str(plan), json=False)
    _draw(answer, states, labels, root / "demo.png")
    errors.print(f"figure: {root / 'demo.png'}; keys, store and states: {run}", soft_wrap=True)


def _run_fleet(options: DemoOptions, agents: int, root: Path) -> None:
    """Chargers behind four gateways, each with the files of its own chargers alone."""
    import numpy as np

    from sottovoce.network import identity
    from sottovoce.problem.gallery import chargers
    from sottovoce.problem.numeric import Numeric

    problem = chargers(agents, hours=HOURS)
    count = FLEET_ROUNDS if options.rounds is None else options.rounds
    run = Path(tempfile.mkdtemp(prefix="fleet-", dir=root))
    ends = np.linspace(1, agents + 1, min(GATEWAYS, agents) + 1).astype(int).tolist()
    ranges = {f"{a}-{b - 1}" if b - a > 1 else str(a): range(a, b) for a, b in pairwise(ends)}
    errors.print(f"writing keys and files for {agents:,} chargers behind {len(ranges)} gateways")
    for name, part in {"cloud": range(0), **ranges}.items():
        problem.save(run / name, agents=part)
    identity.create_keys(run / "keys", agents=agents, gateways=list(ranges.values()))
    parts = {name: ("gateway", run / name, "--agents", name) for name in ranges}
    promise = replace(FLEET_PROMISE, feasible=options.feasible)
    plan = promise.plan(problem, public=True, rounds=count)
    demo = _Demo(folder=run / "cloud", run=run, rounds=count, promise=promise, parts=parts)
    answer = demo.play(problem, plan, page=options.page)
    reached, best = (Numeric(problem).objective(x) for x in (answer.x, answer.x_hat))
    cost = f"cost of all chargers: {reached:,.0f}, at the optimum {best:,.0f}"
    show_result(None, _loads(problem, answer, count), cost, str(plan), json=False)
    errors.print(f"keys, store, files of cloud and gateways: {run}", soft_wrap=True)


def _loads(problem: Problem, answer: _Answer, rounds: int) -> PlainTable:
    from sottovoce.problem.gallery import FIRST_HOUR

    capacity = -problem.constraints[0].offset
    loads = (x.reshape(-1, HOURS).sum(axis=0) for x in (answer.x, answer.x_hat))
    rows = zip(capacity, *loads, answer.history[-1], answer.prices, strict=True)
    cells = (
        (f"{(FIRST_HOUR + t) % 24}:00", *(f"{power:,.0f}" for power in kilowatts),
         f"{price:.3f}", f"{best:.3f}")
        for t, (*kilowatts, price, best) in enumerate(rows)
    )  # fmt: skip
    columns = ("hour", "capacity kW", "load", "optimal load", "price", "optimal price")
    title = f"{problem.agents:,} chargers after {rounds:,} private rounds"
    return framed_table(title, columns, cells)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Answer:
    """What a run reached beside the optimum."""

    x: Array  # the agents' states
    history: Array  # the answer's prices of every round
    x_hat: Array  # the optimal states
    prices: Array  # the optimal prices; multipliers where another release than sums is used


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Demo:
    """A run of processes on this machine."""

    folder: Path  # the cloud's problem
    run: Path  # the folder of keys, stores, states and answers
    rounds: int  # T
    promise: RunOptions  # the privacy options of the cloud
    parts: Mapping[str, tuple[object, ...]]  # the commands of agents and gateways by name
    split: bool = False  # whether there is a helper
    # the cloud first, a helper, then agents
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def play(self, problem: Problem, plan: NoisePlan, *, page: bool) -> _Answer:
        """Run all processes, show the run, wait for their end, and read what was reached.

        One that fails, or takes more than ten minutes, is an error.
        """
        import numpy as np

        from sottovoce.certificate.optimum import reference_optimum, saddle_prices
        from sottovoce.network.store import answers

        try:
            run_party(partial(self._run, page=page))
        finally:  # whatever happened, all are ended; a helper stays, for the cloud may ask again
            for process in self.running:
                if process.poll() is None:
                    process.kill()
                process.wait()
        states: list[list[float]] = []
        for name in self.parts:
            x = json.loads((self.run / f"{name}.json").read_text(encoding="utf-8"))["x"]
            states += x.values() if isinstance(x, dict) else [x]
        best = reference_optimum(problem)
        return _Answer(
            x=np.concatenate(states),
            history=answers(self.run / "run.db"),
            x_hat=best.x,
            prices=saddle_prices(problem, best) if plan.release is None else best.mu,
        )

    async def _run(self, *, page: bool) -> None:
        import aiohttp

        from sottovoce.network.identity.tls import client_context

        keys, port, second = self.run / "keys", _free_port(), _free_port()
        helper = ("--helper", f"wss://127.0.0.1:{second}") if self.split else ()
        self._serve("cloud", keys / "cloud" if self.split else keys, "run.db", port, *helper)
        if self.split:
            self._serve("helper", keys / "helper", "helper.db", second)
        halves = len(self.running)
        connector = aiohttp.TCPConnector(ssl=client_context(keys / "operator"))
        async with aiohttp.ClientSession(connector=connector) as session, AsyncExitStack() as stack:
            status = partial(_status, session, f"https://127.0.0.1:{port}/status")
            if page:
                await self._show_page(stack, port, status)
            for name, words in self.parts.items():
                files = ("--keys", keys / "agents" / name, "--state", self.run / f"{name}.state")
                address = ("--cloud", f"wss://127.0.0.1:{port}")
                self._start(*words, *files, "--out", self.run / f"{name}.json", *address)
            await self._watch(status)
        for process in (self.running[0], *self.running[halves:]):
            process.wait(60)
        self._require_healthy()

    def _serve(self, name: str, keys: Path, store: str, port: int, *more: object) -> None:
        """Start ``sottovoce cloud`` or ``helper``."""
        files = ("--keys", keys, "--store", self.run / store, "--listen", f"127.0.0.1:{port}")
        values = {"rounds": self.rounds, **asdict(self.promise)}
        options = chain(*((f"--{key}", value) for key, value in values.items() if value))
        self._start(name, self.folder, *files, *options, *more)

    def _start(self, *arguments: object) -> None:
        code = "from sottovoce.cli import main; main()"
        words = [sys.executable, "-c", code, *map(str, arguments), "--log-level", "error"]
        with (self.run / "errors.log").open("ab") as log:
            self.running.append(subprocess.Popen(words, stderr=log))  # noqa: S603  ours

    async def _show_page(self, stack: AsyncExitStack, port: int, status: Status) -> None:
        """Serve the page on this machine, and wait until it is opened."""
        import asyncio

        from sottovoce.network.observe.live_page import PageLink

        link = await stack.enter_async_context(PageLink(self.run / "keys" / "operator", port))
        while await status() is None:
            self._require_healthy()
            await asyncio.sleep(POLL_SECONDS)
        errors.print(f"open {link.url} (it works once)", soft_wrap=True, highlight=False)
        with suppress(TimeoutError):
            await asyncio.wait_for(link.opened.wait(), PAGE_SECONDS)

    async def _watch(self, status: Status) -> None:
        """Show the run from the operator's status until the cloud has ended."""
        import asyncio

        began = last = time.monotonic()
        k = 0
        with shown(patience=0.0) as report:
            while self.running[0].poll() is None:
                if time.monotonic() - began > LIMIT_SECONDS:
                    raise SottovoceError(
                        f"the demo must end within {LIMIT_SECONDS:g} s: run fewer --rounds"
                    )
                self._require_healthy()
                if (run := await status()) is not None:
                    now, done = time.monotonic(), run["round"]
                    report(
                        f"round {done:,} of {self.rounds:,}, {(done - k) / (now - last):,.0f} "
                        f"rounds/s, {run['connected']} of {run['agents']} agents connected",
                        done / self.rounds,
                    )
                    k, last = done, now
                await asyncio.sleep(POLL_SECONDS)

    def _require_healthy(self) -> None:
        for place, process in enumerate(self.running):
            if process.poll() not in (None, 0):
                name = "cloud" if place == 0 else f"process {place}"
                log, code = self.run / "errors.log", process.returncode
                raise SottovoceError(f"the {name} must not fail, got exit code {code}: see {log}")


async def _status(session: ClientSession, url: str) -> dict[str, int] | None:
    import aiohttp

    try:
        async with session.get(url) as answer:
            status: dict[str, int] = await answer.json()
            return status
    except (aiohttp.ClientError, OSError):
        return None  # not up yet, or gone already


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _draw(answer: _Answer, states: list[str], labels: list[str], path: Path) -> None:
    import numpy as np
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
