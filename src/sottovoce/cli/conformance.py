"""``sottovoce conformance``: test an agent or a cloud that others wrote."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sottovoce.cli.console import console, errors, picked, show_result
from sottovoce.cli.options import REQUIRED, option, with_options
from sottovoce.tables import framed_table

if TYPE_CHECKING:
    from sottovoce.network.conformance.checks import CheckOutcome

PATIENCE_SECONDS = 60.0

conformance_group = typer.Typer(
    help="Test an agent or a cloud that others wrote.", no_args_is_help=True
)


@conformance_group.command("cloud")
@with_options
def check_agent_command(
    keys: Path = option(REQUIRED, "its folder from sottovoce identity init --agents 7"),
    listen: str = "127.0.0.1:8443",
    patience: float = option(PATIENCE_SECONDS, "seconds to wait for the agent"),
    json: bool = False,
) -> None:
    """Play a cloud to an agent of yours, agent 4 of the paper's problem, and say what it did.

    Its objective is x^2 + x + 6, its state lies in [-10, 10] and is its part of sum 2. It must take
    part with simulated noise, and be started three times when this says so: it stops twice, at
    another version and at a cloud that has lost rounds. Exit code 1 if a check fails.

    Example: sottovoce conformance cloud --keys cloud-keys --listen 127.0.0.1:8443
    """
    from sottovoce.cli.services import listen_address
    from sottovoce.network.conformance.scripted_cloud import ScriptedCloud

    address, tell = listen_address(listen), partial(errors.print, soft_wrap=True)
    script = partial(ScriptedCloud, keys, tell=tell, patience=patience)
    _report("The agent", lambda: script().play(address), json=json)


@conformance_group.command("agent")
@with_options
def check_cloud_command(
    cloud: str = option(REQUIRED, "your cloud, wss://host:port"),
    keys: Path = option(REQUIRED, "keys for all agents of its run, such as keys/agents/1-7"),
    agents: str = option(REQUIRED, "all agents of its run, e.g. 1-7"),
    patience: float = option(PATIENCE_SECONDS, "seconds to wait for the cloud"),
    json: bool = False,
) -> None:
    """Play an agent to a cloud of yours, in a new run that nobody uses, and say what it did.

    It speaks for all agents of the run, so that every contribution completes a round, and ends the
    run's use: it contributes the middle of every range. Exit code 1 if a check fails.

    Example: sottovoce conformance agent --cloud wss://h:8443 --keys k/agents/1-7 --agents 1-7
    """
    from sottovoce.arguments import websocket_address
    from sottovoce.network.conformance.scripted_agent import ScriptedAgent
    from sottovoce.network.identity.tls import parse_range

    websocket_address("cloud", cloud)
    script = partial(ScriptedAgent, cloud, keys, tuple(parse_range(agents)), patience=patience)
    _report("The cloud", lambda: script().play(), json=json)


@conformance_group.command("files")
def files_command() -> None:
    """Print the folder of schema.json, every message, and vectors.json, the test vectors.

    Example: sottovoce conformance files
    """
    from sottovoce.network.conformance.checks import FOLDER

    console.print(str(FOLDER), markup=False, soft_wrap=True)


def _report(who: str, play: Callable[[], Awaitable[list[CheckOutcome]]], *, json: bool) -> None:
    """Play a script and print every check; exit code 1 if one failed."""
    from sottovoce.cli.services import run_party

    checks = run_party(play)
    failed = sum(not check.passed for check in checks)
    rows = ((c.name, "passed" if c.passed else "fails", c.seen) for c in checks)
    title = f"{who} passed {len(checks) - failed} of {len(checks)} checks"
    table = framed_table(title, ("check", "outcome", "seen"), rows, words=True)
    listed = [picked(check, "name", "passed", "seen") for check in checks]
    show_result({"checks": listed, "failed": failed}, table, json=json)
    if failed:
        raise typer.Exit(1)
