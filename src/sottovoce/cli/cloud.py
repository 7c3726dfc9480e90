"""``sottovoce cloud``: coordinate the agents of a problem, privately."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.console import errors
from sottovoce.cli.options import (
    AlgorithmName,
    Delta,
    EachRow,
    Epsilon,
    Feasible,
    HideOption,
    Radius,
    Strict,
)
from sottovoce.errors import InputError
from sottovoce.network.defaults import LINGER_SECONDS, STALL_SECONDS
from sottovoce.network.observe import logs
from sottovoce.progress import watched

if TYPE_CHECKING:
    from sottovoce.network.cloud import CloudResult, Straggler
    from sottovoce.privacy.noise_plan import NoisePlan
    from sottovoce.problem.problem import Problem

ROUNDS = 2_000


def cloud(
    folder: Annotated[Path, typer.Argument(help="folder with problem.toml; no agents/ needed")],
    keys: Annotated[Path, typer.Option(help="folder from sottovoce identity init")],
    store: Annotated[Path, typer.Option(help="file of the run; go on from it if it exists")],
    listen: Annotated[str, typer.Option(help="address:port")] = "127.0.0.1:8443",
    rounds: Annotated[int | None, typer.Option(help="rounds to run; 2000 if nobody says")] = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    radius: Radius = None,
    hide: HideOption = None,
    feasible: Feasible = None,
    each_row: EachRow = False,
    algorithm: AlgorithmName = None,
    straggler: Annotated[str, typer.Option(help="wait for lost agents, or hold them")] = "wait",
    deadline: Annotated[
        str | None, typer.Option(help="for hold: seconds per round, e.g. 2s or 0.5")
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="accounts; the run is refused if they do not cover it")
    ] = None,
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
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error")] = "info",
) -> None:
    """Run the cloud of a problem: add up contributions, add noise, send prices.

    Killed at any moment, the same command continues the same run. What is not given is taken from
    problem.toml. Counting lost agents' last words again needs --hide offset or everything. With
    --algorithm tikhonov agents send states, and the noise is the paper's. With --helper agents'
    contributions are masked, and each half adds the noise: their operators must not collude.

    Example: sottovoce cloud examples/paper --keys cloud-keys --store run.db
    """
    logs.configure(log_level)
    with watched(None if errors.is_terminal else _noted) as tell:
        tell(f"reading {folder}")
        from sottovoce.certificate.certificate import certify
        from sottovoce.cli.foresight import warn_if_useless
        from sottovoce.cli.request import algorithm_for, make_plan, method_for
        from sottovoce.network import loop
        from sottovoce.privacy.ledger import Ledger
        from sottovoce.problem.files.load import read_public
        from sottovoce.study.prediction import predict_publicly

        problem = read_public(folder)
        count = run_rounds(problem, rounds)
        chosen = algorithm_for(problem, algorithm)
        plan = make_plan(
            problem,
            certify(problem.cloud, progress=tell),
            epsilon=epsilon,
            delta=delta,
            radius=radius,
            hide=hide,
            feasible=feasible,
            each_row=each_row,
            rounds=count,
            method=method_for(chosen),
            split=helper is not None,
            progress=tell,
        )
        # The cloud knows no objective: only public figures can tell it what to expect.
        warn_if_useless(predict_publicly(plan, count), strict=strict, say=_loudly)
    result = loop.run(
        _serve(
            plan,
            rounds=count,
            keys=keys,
            store=store,
            listen=address(listen),
            algorithm=chosen,
            straggler=_straggler(straggler),
            deadline=None if deadline is None else _seconds("deadline", deadline),
            ledger=None if ledger is None else Ledger(ledger),
            keep_states=keep_states,
            apply_after=_seconds("apply-after", apply_after),
            new=new,
            stall=_seconds("stall", stall),
            helper=helper,
            linger=linger,
        )
    )
    errors.print(f"done: {result.rounds:,} rounds in {result.seconds:.1f} s{_verdict(result)}")


def _verdict(result: CloudResult) -> str:
    if result.confirmed is None:
        return ""
    return (
        "; the answer is confirmed"
        if result.confirmed
        else ("; the answer is NOT confirmed: agents apply their fallbacks")
    )


def _noted(doing: str, share: float | None = None) -> None:
    """Where a journal reads along, lines must be JSON as all others are."""
    logs.note("preparing", doing=doing)


def _loudly(text: str) -> None:
    """The journal of a cloud gets it as a warning."""
    logs.note("the answer will be useless", level=logging.WARNING, why=text)


async def _serve(plan: NoisePlan, *, linger: float, **settings: Any) -> CloudResult:
    import asyncio

    from sottovoce.network.cloud import Cloud

    # The cloud makes asyncio objects, so it must be made inside the loop.
    await asyncio.sleep(0)
    return await Cloud(plan, **settings).run(linger=linger)


def run_rounds(problem: Problem, asked: int | None) -> int:
    """Return the rounds to run: as asked, else as the problem file says, else 2,000."""
    from sottovoce.arguments import whole  # NumPy, which --help does without

    said = problem.schedule.get("rounds", problem.privacy.get("rounds", ROUNDS))
    return whole("rounds", said if asked is None else asked, least=1)


def address(text: str) -> tuple[str, int]:
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
