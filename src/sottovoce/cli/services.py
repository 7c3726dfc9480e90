"""``sottovoce cloud``, ``helper``, ``relay``, ``agent`` and ``gateway``: the parties of a run."""

from __future__ import annotations

import json as json_text
import logging
import math
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from sottovoce.cli.console import errors, print_json, warn_if_useless
from sottovoce.cli.options import (
    AlgorithmName,
    Json,
    LedgerOption,
    Listen,
    LogLevel,
    PublicFolder,
    RunOptions,
    Strict,
    algorithm_for,
    method_for,
    run_rounds,
    with_options,
)
from sottovoce.errors import InputError
from sottovoce.network.defaults import LINGER_SECONDS, STALL_SECONDS
from sottovoce.network.observe import logs
from sottovoce.progress import watched

if TYPE_CHECKING:
    from sottovoce.network.agent import AgentResult
    from sottovoce.network.agent_group import AgentGroup
    from sottovoce.network.cloud import CloudResult, Straggler
    from sottovoce.problem.agents import Array

_T = TypeVar("_T")

AgentKeys = Annotated[Path, typer.Option(help="its keys: ca.pem, cert.pem, key.pem")]
CloudAddress = Annotated[str, typer.Option(help="the cloud, or a relay, wss://host:port")]


@with_options
def cloud_command(
    folder: PublicFolder,
    keys: Annotated[Path, typer.Option(help="folder from sottovoce identity init")],
    store: Annotated[Path, typer.Option(help="file of the run; go on from it if it exists")],
    promise: RunOptions,
    listen: Listen = "127.0.0.1:8443",
    rounds: Annotated[
        int | None, typer.Option(help="rounds to run; by default the file's, or else 2000")
    ] = None,
    algorithm: AlgorithmName = None,
    straggler: Annotated[str, typer.Option(help="wait for lost agents, or hold them")] = "wait",
    deadline: Annotated[
        str | None, typer.Option(help="for hold: seconds per round, e.g. 2s or 0.5")
    ] = None,
    ledger: LedgerOption = None,
    keep_states: Annotated[
        bool,
        typer.Option("--keep-states", help="keep what agents say in all rounds, for an audit"),
    ] = False,
    new: Annotated[
        bool, typer.Option("--new", help="begin anew where the store has lost rounds")
    ] = False,
    helper: Annotated[
        str | None, typer.Option(help="the other half of a split cloud, wss://host:port")
    ] = None,
    apply_after: Annotated[
        str,
        typer.Option(help="with --feasible: from the end until all agents apply answers, e.g. 5s"),
    ] = "0s",
    linger: Annotated[
        float, typer.Option(help="seconds to wait for agents that missed the end")
    ] = LINGER_SECONDS,
    stall: Annotated[
        str, typer.Option(help="seconds without a round after which /healthz says 503, e.g. 60s")
    ] = f"{STALL_SECONDS:g}s",
    strict: Strict = False,
    log_level: LogLevel = "info",
) -> None:
    """Run the cloud of a problem: add up contributions, add noise, send prices.

    Killed at any moment, the same command continues the same run. What is not given is taken from
    problem.toml. Counting lost agents' last contributions again needs --hide offset or everything.
    With --algorithm tikhonov agents send states, and the noise is the paper's. With --helper
    agents' contributions are masked, and each half adds the noise: their operators must not
    collude.

    Example: sottovoce cloud examples/paper --keys cloud-keys --store run.db
    """
    logs.configure(log_level)
    with watched(None if errors.is_terminal else _log_progress) as tell:
        tell(f"reading {folder}")
        from sottovoce.certificate.certificate import certify
        from sottovoce.privacy.ledger import Ledger
        from sottovoce.problem.files.load import read_public
        from sottovoce.study.prediction import predict_publicly

        problem = read_public(folder)
        count = run_rounds(problem, rounds)
        chosen = algorithm_for(problem, algorithm)
        plan = promise.plan(
            problem,
            certify(problem.cloud, progress=tell),
            rounds=count,
            method=method_for(chosen),
            split=helper is not None,
            progress=tell,
        )
        # The cloud knows no objective: only public figures can tell it what to expect.
        warn_if_useless(predict_publicly(plan, count), strict=strict, say=_log_useless)

    def serve() -> Coroutine[Any, Any, CloudResult]:
        from sottovoce.network.cloud import Cloud

        cloud = Cloud(
            plan,
            rounds=count,
            keys=keys,
            store=store,
            listen=listen_address(listen),
            algorithm=chosen,
            straggler=_straggler(straggler),
            deadline=None if deadline is None else _seconds("deadline", deadline),
            ledger=None if ledger is None else Ledger(ledger),
            keep_states=keep_states,
            apply_after=_seconds("apply-after", apply_after),
            new=new,
            stall=_seconds("stall", stall),
            helper=helper,
        )
        return cloud.run(linger=linger)

    result = _run(serve)
    verdicts = {
        None: "",
        True: "; the answer is confirmed",
        False: "; the answer is NOT confirmed: agents apply their fallbacks",
    }
    verdict = verdicts[result.confirmed]
    errors.print(f"done: {result.rounds:,} rounds in {result.seconds:.1f} s{verdict}")


@with_options
def helper_command(
    folder: PublicFolder,
    keys: Annotated[Path, typer.Option(help="helper/ from sottovoce identity init --helper")],
    store: Annotated[Path, typer.Option(help="file of its answers; go on from it if it exists")],
    promise: RunOptions,
    listen: Listen = "127.0.0.1:8444",
    rounds: Annotated[int | None, typer.Option(help="rounds, as the cloud's")] = None,
    ledger: LedgerOption = None,
    log_level: LogLevel = "info",
) -> None:
    """Run the helper of a split cloud: it adds noise and takes masks off, and sees no contribution.

    Its operator must not collude with the cloud's. It needs the same problem.toml, the same privacy
    options, and a ledger of its own. Killed at any moment, the same command continues.

    Example: sottovoce helper examples/paper --keys helper-keys --store helper.db
    """
    logs.configure(log_level)
    with watched(None) as tell:
        tell(f"reading {folder}")
        from sottovoce.certificate.certificate import certify
        from sottovoce.privacy.ledger import Ledger
        from sottovoce.problem.files.load import read_public

        problem = read_public(folder)
        plan = promise.plan(
            problem,
            certify(problem.cloud, progress=tell),
            rounds=run_rounds(problem, rounds),
            split=True,
            progress=tell,
        )

    def serve() -> Coroutine[Any, Any, None]:
        from sottovoce.network.helper import Helper

        accounts = None if ledger is None else Ledger(ledger)
        return Helper(
            plan, keys=keys, store=store, listen=listen_address(listen), ledger=accounts
        ).run()

    _run(serve)
    errors.print("done: the cloud has all answers")


def relay_command(
    folder: PublicFolder,
    agents: Annotated[str, typer.Option(help="the agents below, a range, e.g. 1-500")],
    keys: Annotated[Path, typer.Option(help="keys/agents/1-500 from identity issue --relay-host")],
    cloud: CloudAddress,
    listen: Listen = "127.0.0.1:8443",
    log_level: LogLevel = "info",
) -> None:
    """Run a relay until the run is over; agents and gateways connect to it as to the cloud.

    It sees what each of them contributes, the cloud their total only. It keeps nothing on disk:
    killed and started again, it goes on with the round at hand.

    Example: sottovoce relay FOLDER --agents 1-500 --keys k/agents/1-500 --cloud wss://h:8443
    """
    from sottovoce.network.identity.roles import parse_range
    from sottovoce.network.relay import Relay
    from sottovoce.problem.files.load import read_public

    logs.configure(log_level)
    public, below = read_public(folder).cloud, parse_range(agents)
    listening = listen_address(listen)
    rounds = _run(lambda: Relay(public, below, above=cloud, keys=keys, listen=listening).run())
    errors.print(f"done after {rounds:,} rounds")


def agent_command(
    file: Annotated[Path, typer.Argument(help="the agent's own file, FOLDER/agents/3.toml")],
    keys: AgentKeys,
    cloud: CloudAddress,
    state: Annotated[
        Path | None, typer.Option(help="file for its own state; FILE with .state if not given")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="file for its answer, readable by its owner only")
    ] = None,
    log_level: LogLevel = "info",
) -> None:
    """Run an agent until its run is over; it reconnects by itself, whatever happens.

    The folder must also hold problem.toml, the public part. Killed and started again, the agent
    goes on from its own saved state.

    Example: sottovoce agent examples/paper/agents/3.toml --keys k/agents/3 --cloud wss://h:8443
    """
    from sottovoce.network.agent_group import AgentGroup

    logs.configure(log_level)
    saved = file.with_suffix(".state") if state is None else state
    result = _take_part(AgentGroup.of_file(file), cloud=cloud, keys=keys, saved=saved)
    if out is not None:
        _write_answer(out, result, _nullable)


def gateway_command(
    folder: Annotated[
        Path, typer.Argument(help="folder with problem.toml and its agents' files under agents/")
    ],
    agents: Annotated[str, typer.Option(help="its agents, a number or a range, e.g. 1-250")],
    keys: AgentKeys,
    cloud: CloudAddress,
    state: Annotated[
        Path | None,
        typer.Option(help="file for its agents' states; FOLDER/agents/RANGE.state if not given"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="file for its agents' answers, readable by its owner only")
    ] = None,
    json: Json = False,
    log_level: LogLevel = "info",
) -> None:
    """Run many agents on one connection until their run is over; it reconnects by itself.

    The folder needs no private files of other agents, and of a fleet's tables the lines of its own
    agents. Killed and started again, it goes on from its saved states. --json prints how it ended,
    never a state.

    Example: sottovoce gateway FOLDER --agents 1-250 --keys k/agents/1-250 --cloud wss://h:8443
    """
    from sottovoce.network.agent_group import AgentGroup
    from sottovoce.network.identity.roles import parse_range

    logs.configure(log_level)
    numbers = parse_range(agents)
    group = AgentGroup.of_folder(folder, numbers)
    saved = folder / "agents" / f"{agents}.state" if state is None else state
    result = _take_part(group, cloud=cloud, keys=keys, saved=saved)
    if out is not None:
        _write_answer(out, result, lambda values: _by_agent(group, values))
    if json:
        print_json(
            {
                "agents": len(numbers),
                "rounds": result.rounds,
                "failed": result.failed,
                "confirmed": result.confirmed,
                "out": None if out is None else str(out),
            }
        )


def _run(serve: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run a party, which makes asyncio objects, so that it must be made inside the loop."""
    import asyncio

    from sottovoce.network import process as network_process

    async def main() -> _T:
        await asyncio.sleep(0)
        return await serve()

    return network_process.run(main())


def _take_part(group: AgentGroup, *, cloud: str, keys: Path, saved: Path) -> AgentResult:
    """Run the agents of a group until their run is over, and print how many rounds it had."""
    from sottovoce.network.agent import Agent

    result = _run(lambda: Agent(group, cloud=cloud, keys=keys, saved=saved).run())
    if result.failed:
        errors.print(
            f"own formulas gave no number in {result.failed:,} rounds: something else was sent "
            "there (docs/explanation/privacy.md), so check the objective"
        )
    # Not a number of a state: this goes to the journal, which others read.
    verdict = "" if result.confirmed is not False else "; not confirmed: the fallback is applied"
    errors.print(f"done after {result.rounds:,} rounds{verdict}")
    return result


def _by_agent(group: AgentGroup, values: Array) -> dict[str, list[float | None]]:
    """The components of every agent by its number."""
    parts, first = {}, 0
    for agent, size in zip(group.agents, group.sizes, strict=True):
        parts[str(agent)] = _nullable(values[first : first + size])
        first += size
    return parts


def _nullable(values: Array) -> list[float | None]:
    """Numbers as JSON has them: NaN and infinities are null."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def _write_answer(path: Path, result: AgentResult, listed: Callable[[Array], object]) -> None:
    """Write answers, each as ``listed`` has it, to a file that its owner alone can read."""
    from sottovoce.network.failures import DiskError

    answer = {
        "rounds": result.rounds,
        "x": listed(result.x),
        "price": result.price.tolist(),
        "confirmed": result.confirmed,
        "setpoint": listed(result.setpoint),
        "deviation": listed(result.deviation),
    }
    try:
        with os.fdopen(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as file:
            path.chmod(0o600)  # also where the file was there before
            file.write(json_text.dumps(answer) + "\n")
    except OSError as error:
        raise DiskError(f"{path} cannot be written: {error.strerror}") from None


def _log_progress(doing: str, share: float | None = None) -> None:
    """Where a journal reads along, lines must be JSON as all others are."""
    logs.note("preparing", doing=doing)


def _log_useless(text: str) -> None:
    """The journal of a cloud gets it as a warning."""
    logs.note("the answer will be useless", level=logging.WARNING, why=text)


def listen_address(text: str) -> tuple[str, int]:
    """Read ``host:port``."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"listen must be address:port, got {text!r}")
    return host.strip("[]"), int(port)


def _seconds(name: str, text: str) -> float:
    try:
        return float(text.removesuffix("s"))
    except ValueError:
        raise InputError(f"{name} must be seconds such as 2s, got {text!r}") from None


def _straggler(text: str) -> Straggler:
    if text == "wait":
        return "wait"
    if text == "hold":
        return "hold"
    raise InputError(f"straggler must be wait or hold, got {text!r}")
