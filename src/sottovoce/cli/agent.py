"""``sottovoce agent``: take part in a run with an objective that never leaves the device."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.console import errors
from sottovoce.network import logs, loop
from sottovoce.network.agent import Agent, AgentResult
from sottovoce.network.errors import DiskError
from sottovoce.network.household import Household


def agent(
    file: Annotated[Path, typer.Argument(help="the agent's own file, FOLDER/agents/3.toml")],
    keys: Annotated[Path, typer.Option(help="the agent's keys: ca.pem, cert.pem, key.pem")],
    cloud: Annotated[str, typer.Option(help="the cloud's address, wss://host:port")],
    state: Annotated[
        Path | None, typer.Option(help="file for its own state; FILE with .state if not given")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="file for its answer, readable by its owner only")
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error")] = "info",
) -> None:
    """Run an agent until its run is over; it reconnects by itself, whatever happens.

    The folder must also hold problem.toml, the public part. Killed and started again, the agent
    goes on from its own saved state.

    Example: sottovoce agent examples/paper/agents/3.toml --keys k/agents/3 --cloud wss://h:8443
    """
    logs.configure(log_level)
    household = Household.of_file(file)
    saved = file.with_suffix(".state") if state is None else state
    result = loop.run(_take_part(household, cloud, keys, saved))
    if out is not None:
        _write(out, result)
    # Not a number of its state: this goes to the journal, which others read.
    errors.print(f"done after {result.rounds:,} rounds")


def _write(path: Path, result: AgentResult) -> None:
    answer = {"x": result.x.tolist(), "price": result.price.tolist()}
    values = {"rounds": result.rounds, **answer}
    try:
        with os.fdopen(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as file:
            path.chmod(0o600)  # also where the file was there before
            file.write(json.dumps(values) + "\n")
    except OSError as error:
        raise DiskError(f"{path} cannot be written: {error.strerror}") from None
    if result.failed:
        errors.print(
            f"its own formulas gave no number in {result.failed:,} rounds: something else was sent "
            "there (docs/privacy.md), so check the objective"
        )


async def _take_part(household: Household, cloud: str, keys: Path, saved: Path) -> AgentResult:
    await asyncio.sleep(0)
    return await Agent(household, cloud=cloud, keys=keys, saved=saved).run()
