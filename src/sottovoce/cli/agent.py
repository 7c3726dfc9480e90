"""``sottovoce agent``: take part in a run with an objective that never leaves the device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
    from sottovoce.cli.attend import attend, known, write_answer
    from sottovoce.network.agent_group import AgentGroup
    from sottovoce.network.observe import logs

    logs.configure(log_level)
    saved = file.with_suffix(".state") if state is None else state
    result = attend(AgentGroup.of_file(file), cloud=cloud, keys=keys, saved=saved)
    if out is not None:
        answer = {"x": result.x.tolist(), "price": result.price.tolist()}
        applied = {"confirmed": result.confirmed, "setpoint": result.setpoint.tolist()}
        sure = {"deviation": known(result.deviation)}
        write_answer(out, {"rounds": result.rounds, **answer, **applied, **sure})
