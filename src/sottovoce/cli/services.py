"""The parties of a run: ``cloud``, ``helper``, ``relay``, ``agent`` and ``gateway``; ``status``."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import typer

from sottovoce.cli.console import errors, json_of, picked, show_result, warn_if_useless
from sottovoce.cli.options import (
    REQUIRED,
    RunOptions,
    algorithm_for,
    argument,
    load,
    method_for,
    option,
    run_rounds,
    with_options,
    with_role_options,
)
from sottovoce.errors import InputError
from sottovoce.network import DEADLINE_SECONDS, LINGER_SECONDS, STALL_SECONDS, Straggler
from sottovoce.network.observe import logs
from sottovoce.progress import watched

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

    from sottovoce.algorithm.algorithm import Algorithm
    from sottovoce.network.agent import AgentResult
    from sottovoce.network.agent_group import AgentGroup
    from sottovoce.network.cloud import CloudResult
    from sottovoce.privacy.noise_plan import NoisePlan
    from sottovoce.problem.files.load import Public
    from sottovoce.problem.groups import Array

_T = TypeVar("_T")
_Address = tuple[str, int]

PUBLIC_FOLDER: Final = "folder with problem.toml; no agents/ needed"
_UNITS: Final = {"s": 1, "min": 60, "h": 3600, "day": 86_400, "days": 86_400}
_DURATION: Final = re.compile(r"([0-9.]+) *(s|min|h|day|days|)")


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperOptions(RunOptions):
    """What either half of a cloud is started with: a promise, and files of its own."""

    problem: Path = argument(PUBLIC_FOLDER)
    keys: Path = option(REQUIRED, "its folder from sottovoce identity init")
    store: str = option(REQUIRED, "the run's file or postgresql://...; go on from it if it exists")
    listen: str = "127.0.0.1:8444"
    rounds: int | None = None
    health_listen: str | None = None
    ledger: str | None = option(
        None, "accounts, a file or postgresql://...; the run is refused if they do not cover it"
    )
    log_level: str = "info"

    def settings(self) -> dict[str, Any]:
        """Return the arguments of the process, but for its plan and ledger; it may refuse them."""
        return picked(self, "keys", "store") | addresses(self.listen, self.health_listen)

    def arguments(self) -> dict[str, Any]:
        """Return the settings and the ledger, which is made if it does not exist."""
        from sottovoce.privacy.ledger import Ledger

        ledger = None if self.ledger is None else Ledger(self.ledger)
        return self.settings() | {"ledger": ledger}


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudOptions(HelperOptions):
    """What a cloud is started with."""

    listen: str = "127.0.0.1:8443"
    algorithm: str | None = None
    straggler: Straggler = option(
        "fallback",
        "what counts for agents that miss a round: their public fallback, their last "
        "contribution (hold), or nothing goes on without them (wait)",
    )
    deadline: str | None = None
    first_deadline: str | None = None
    keep_states: bool = option(False, "keep what agents say in all rounds, for an audit")
    new: bool = option(False, "begin anew where the store has lost rounds")
    helper: str | None = option(None, "the other half of a split cloud, wss://host:port")
    apply_after: str = option(
        "0s", "with --feasible: from the end until all agents apply answers, e.g. 5s"
    )
    linger: float = option(LINGER_SECONDS, "seconds to wait for agents that missed the end")
    stall: str = option(
        f"{STALL_SECONDS:g}s", "seconds without a round after which /healthz says 503, e.g. 60s"
    )
    strict: bool = False

    def settings(self) -> dict[str, Any]:
        """Return the arguments of a cloud, but for its plan and ledger, or refuse them."""
        from sottovoce.network.setup import require_times, round_deadlines

        deadlines = _deadlines(self.deadline, self.first_deadline)
        pair = deadlines["first_deadline"], deadlines["deadline"]
        round_deadlines(self.straggler, pair, DEADLINE_SECONDS)
        times = {name: duration(name, getattr(self, name)) for name in ("apply_after", "stall")}
        require_times(**times)
        chosen = picked(self, "straggler", "keep_states", "new", "helper")
        return HelperOptions.settings(self) | chosen | deadlines | times


def planned(
    options: HelperOptions, public: Public | None = None
) -> tuple[NoisePlan, int, Algorithm]:
    """Certify and plan a run, with public numbers in place of those of the problem."""
    logs.configure(options.log_level)
    options.settings()  # refuses before the work
    cloud = options if isinstance(options, CloudOptions) else None
    with watched(None if errors.is_terminal else _log_progress) as report:
        report(f"reading {options.problem}")
        problem = load(options.problem, agents=(), public=public)
        rounds = run_rounds(problem, options.rounds)
        algorithm = algorithm_for(problem, cloud.algorithm if cloud else "dual-averaging")
        plan = options.plan(
            problem,
            public=True,
            rounds=rounds,
            method=method_for(algorithm),
            split=cloud is None or cloud.helper is not None,
            progress=report,
        )
        if cloud is not None:
            from sottovoce.study.prediction import predict_publicly

            # The cloud knows no objective: only public figures can tell it what to expect.
            warn_if_useless(predict_publicly(plan, rounds), strict=cloud.strict, show=_log_useless)
    return plan, rounds, algorithm


def own_process() -> ProcessPoolExecutor:
    """Return a process for certificates and plans, which take libraries and memory.

    It ends with this one.
    """
    from concurrent.futures import ProcessPoolExecutor  # agents do without
    from multiprocessing import get_context

    from sottovoce.network.process import end_with_parent

    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=end_with_parent)


def _planned_apart(options: HelperOptions) -> tuple[NoisePlan, int, Algorithm]:
    logs.configure(options.log_level)
    with own_process() as pool:
        return pool.submit(planned, options).result()


@with_role_options
def cloud_command(options: CloudOptions) -> None:
    """Run the cloud of a problem: add up contributions, add noise, send prices.

    Killed at any moment, the same command continues the same run. What is not given is taken from
    problem.toml. Nobody can stall the run: after --deadline a round goes on without an agent, with
    its public fallback; --straggler hold needs --hide offset or everything.
    With --algorithm tikhonov agents send states, and the noise is the paper's. With --helper
    agents' contributions are masked, and each half adds the noise: their operators must not
    collude.

    Example: sottovoce cloud examples/paper --keys cloud-keys --store run.db
    """
    plan, rounds, algorithm = _planned_apart(options)

    def serve() -> Awaitable[CloudResult]:
        from sottovoce.network.cloud import Cloud

        cloud = Cloud(plan, rounds=rounds, algorithm=algorithm, **options.arguments())
        return cloud.run(linger=options.linger)

    result = run_party(serve)
    verdict = ""
    if result.confirmed is not None:
        refused = "NOT confirmed: agents apply their fallbacks"
        verdict = f"; the answer is {'confirmed' if result.confirmed else refused}"
    errors.print(f"done: {result.rounds:,} rounds in {result.seconds:.1f} s{verdict}")


@with_role_options
def helper_command(options: HelperOptions) -> None:
    """Run the helper of a split cloud: it adds noise and takes masks off, and sees no contribution.

    Its operator must not collude with the cloud's. It needs the same problem.toml, the same privacy
    options, and a ledger of its own. Killed at any moment, the same command continues.

    Example: sottovoce helper examples/paper --keys helper-keys --store helper.db
    """
    plan = _planned_apart(options)[0]

    def serve() -> Awaitable[None]:
        from sottovoce.network.helper import Helper

        return Helper(plan, **options.arguments()).run()

    run_party(serve)
    errors.print("done: the cloud has all answers")


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions:
    """What a relay is started with."""

    problem: Path = argument(PUBLIC_FOLDER)
    cloud: str = REQUIRED
    agents: str = option(REQUIRED, "the agents below, a range, e.g. 1-500")
    keys: Path = option(REQUIRED, "keys/agents/1-500 from identity issue --relay-host")
    listen: str = "127.0.0.1:8443"
    straggler: Literal["fallback", "wait"] = option(
        "fallback", "what counts for agents that miss a round: their public fallback, or wait"
    )
    deadline: str | None = None
    first_deadline: str | None = None
    health_listen: str | None = None
    log_level: str = "info"


@with_role_options
def relay_command(options: RelayOptions) -> None:
    """Run a relay until the run is over; agents and gateways connect to it as to the cloud.

    It sees what each of them contributes, the cloud their total only. It keeps nothing on disk:
    killed and started again, it goes on with the round at hand.

    Example: sottovoce relay FOLDER --agents 1-500 --keys k/agents/1-500 --cloud wss://h:8443
    """
    from sottovoce.network.identity.tls import parse_range
    from sottovoce.network.relay import Relay

    logs.configure(options.log_level)
    public, below = load(options.problem, agents=()).cloud, parse_range(options.agents)
    settings: dict[str, Any] = picked(options, "keys", "straggler")
    settings |= addresses(options.listen, options.health_listen)
    settings |= _deadlines(options.deadline, options.first_deadline)
    rounds = run_party(lambda: Relay(public, below, above=options.cloud, **settings).run())
    errors.print(f"done after {rounds:,} rounds")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """What an agent or a gateway is started with, besides its agents."""

    keys: Path = option(REQUIRED, "their keys: ca.pem, cert.pem, key.pem")
    cloud: str = REQUIRED
    state: Path | None = option(
        None, "file for their states; NUMBERS.state in agents/ if not given"
    )
    out: Path | None = option(
        None, "file for their answers, readable by its owner only; {run} is a run's number"
    )
    log_level: str = "info"

    def run(
        self, group: AgentGroup, saved: Path, reported: Callable[[AgentResult, Array], object]
    ) -> AgentResult:
        """Run agents until their run is over, or the last of a series, and write their answers."""
        from sottovoce.network.agent import Agent

        result = run_party(
            lambda: Agent(
                group,
                cloud=self.cloud,
                keys=self.keys,
                saved=self.state or saved,
                on_result=lambda result: self.write(result, reported),
            ).run()
        )
        if result.failed:
            errors.print(
                f"own formulas gave no number in {result.failed:,} rounds: something else was sent "
                "there (docs/explanation/privacy.md), so check the objective"
            )
        # Not a number of a state: this goes to the journal, which others read.
        rejected = "; not confirmed: the fallback is applied"
        verdict = rejected if result.confirmed is False else ""
        errors.print(f"done after {result.rounds:,} rounds{verdict}")
        if result.run is None:
            self.write(result, reported)
        return result

    def write(self, result: AgentResult, reported: Callable[[AgentResult, Array], object]) -> None:
        """Write answers, each as ``listed`` has it, to a file that its owner alone can read."""
        from sottovoce.network.failures import DiskError

        if self.out is None:
            return
        number = {} if result.run is None else {"run": result.run.number}
        path = Path(str(self.out).replace("{run}", str(number.get("run", ""))))
        new = path.with_name(f"{path.name}.new")
        answer = picked(result, "rounds", "x", "price", "confirmed", "setpoint", "deviation")
        names = ("x", "setpoint", "deviation")
        answer |= number | {name: reported(result, getattr(result, name)) for name in names}
        try:
            new.unlink(missing_ok=True)
            handle = os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(json_of(answer, indent=0))
            new.replace(path)  # whoever reads it reads a whole one
        except OSError as error:
            raise DiskError(f"{path} cannot be written: {error.strerror}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions(DeviceOptions):
    """What an agent is started with."""

    file: Path = argument("the agent's own file, FOLDER/agents/3.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions(DeviceOptions):
    """What a gateway is started with."""

    problem: Path = argument("folder with problem.toml and its agents' files under agents/")
    agents: str = option(REQUIRED, "its agents, a number or a range, e.g. 1-250")


@with_role_options
def agent_command(options: AgentOptions) -> None:
    """Run an agent until its run is over, or the last of a series; it reconnects by itself.

    In a series its file is read anew for every run, and --out is written after every run.
    The folder must also hold problem.toml, the public part. Killed and started again, the agent
    goes on from its own saved state.

    Example: sottovoce agent examples/paper/agents/3.toml --keys k/agents/3 --cloud wss://h:8443
    """
    from sottovoce.network.agent_group import AgentGroup

    logs.configure(options.log_level)
    group, saved = AgentGroup.of_file(options.file), options.file.with_suffix(".state")
    options.run(group, saved, lambda result, values: values)


@with_role_options
def gateway_command(options: GatewayOptions, json: bool = False) -> None:
    """Run many agents on one connection until their run is over; it reconnects by itself.

    The folder needs no private files of other agents, and of a fleet's tables the lines of its own
    agents. Killed and started again, it goes on from its saved states. --json prints how it ended,
    never a state.

    Example: sottovoce gateway FOLDER --agents 1-250 --keys k/agents/1-250 --cloud wss://h:8443
    """
    from sottovoce.network.agent_group import AgentGroup
    from sottovoce.network.identity.tls import parse_range

    logs.configure(options.log_level)
    group = AgentGroup.of_folder(options.problem, parse_range(options.agents))

    def by_agent(result: AgentResult, values: Array) -> dict[str, Array]:
        part = group.some(result.agents)
        ends = accumulate(part.sizes)
        rows = zip(part.agents, part.sizes, ends, strict=True)
        return {str(agent): values[end - size : end] for agent, size, end in rows}

    saved = options.problem / "agents" / f"{options.agents}.state"
    result = options.run(group, saved, by_agent)
    outcome = picked(result, "rounds", "failed", "confirmed")
    out = None if options.out is None else str(options.out)
    show_result({"agents": len(group.agents), **outcome, "out": out}, json=json)


@with_options
def status_command(
    store: str = argument("the store of a run, e.g. run.db or postgresql://..."), json: bool = False
) -> None:
    """Show a run: rounds, prices, promise and refusals; a cloud may be working on it.

    Exit code 1 if the run was halted or failed for good.

    Example: sottovoce status run.db
    """
    import msgspec

    from sottovoce.cli.reports import status_table
    from sottovoce.network.store import summarise

    summary = summarise(store)
    show_result(msgspec.to_builtins(summary), status_table(summary), json=json)
    if summary.status in ("halted", "failed"):
        raise typer.Exit(1)


def run_party(serve: Callable[[], Awaitable[_T]]) -> _T:
    """Run a party, which makes asyncio objects, so that it must be made inside the loop."""
    from sottovoce.network.process import run

    return run(serve)


def _log_progress(doing: str, share: float | None = None) -> None:
    """Where a journal reads along, lines must be JSON as all others are."""
    logs.note("preparing", doing=doing)


def _log_useless(text: str) -> None:
    """The journal of a cloud gets it as a warning."""
    logs.note("answer-useless", level=logging.WARNING, why=text)


def listen_address(text: str, name: str = "listen") -> _Address:
    """Read ``host:port``."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"{name} must be address:port, got {text!r}")
    return host.strip("[]"), int(port)


def addresses(listen: str, health: str | None) -> dict[str, _Address | None]:
    """Return where a process listens, as its arguments."""
    public = None if health is None else listen_address(health, "health-listen")
    return {"listen": listen_address(listen), "health_listen": public}


def _deadlines(deadline: str | None, first: str | None) -> dict[str, float | None]:
    settings = {"first_deadline": first, "deadline": deadline}
    return {name: None if text is None else duration(name, text) for name, text in settings.items()}


def duration(name: str, text: str) -> float:
    """Return seconds of ``15 min``, ``1 h``, ``1 day``, ``30 s`` or ``30``."""
    match = _DURATION.fullmatch(text.strip())
    try:
        seconds = float(match[1]) * _UNITS[match[2] or "s"] if match else math.inf
    except ValueError:
        seconds = math.inf
    if not seconds < 1e9:
        option = name.replace("_", "-")
        raise InputError(f"{option} must be seconds such as 2s, '15 min' or '1 h', got {text!r}")
    return seconds
