"""``sottovoce gateway``: host many agents over one connection."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.console import print_json
from sottovoce.cli.options import Json

if TYPE_CHECKING:
    from sottovoce.network.agent import AgentResult
    from sottovoce.network.agent_group import AgentGroup


def gateway(
    folder: Annotated[
        Path, typer.Argument(help="folder with problem.toml and its agents' files under agents/")
    ],
    agents: Annotated[str, typer.Option(help="its agents, a number or a range, e.g. 1-250")],
    keys: Annotated[Path, typer.Option(help="the gateway's keys: ca.pem, cert.pem, key.pem")],
    cloud: Annotated[str, typer.Option(help="the cloud's address, wss://host:port")],
    state: Annotated[
        Path | None,
        typer.Option(help="file for its agents' states; FOLDER/agents/RANGE.state if not given"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="file for its agents' answers, readable by its owner only")
    ] = None,
    json: Json = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error")] = "info",
) -> None:
    """Run many agents on one connection until their run is over; it reconnects by itself.

    The folder needs nobody else's private files, and of a fleet's tables the lines of its own
    agents. Killed and started again, it goes on from its saved states. --json prints how it ended,
    never a state.

    Example: sottovoce gateway FOLDER --agents 1-250 --keys k/agents/1-250 --cloud wss://h:8443
    """
    from sottovoce.cli.attend import attend, write_answer
    from sottovoce.network.agent_group import AgentGroup
    from sottovoce.network.identity.roles import parse_range
    from sottovoce.network.observe import logs

    logs.configure(log_level)
    numbers = parse_range(agents)
    group = AgentGroup.of_folder(folder, numbers)
    saved = folder / "agents" / f"{agents}.state" if state is None else state
    result = attend(group, cloud=cloud, keys=keys, saved=saved)
    if out is not None:
        write_answer(out, _answers(group, result))
    if json:
        ended: dict[str, Any] = {
            "agents": len(numbers),
            "rounds": result.rounds,
            "failed": result.failed,
        }
        ended["confirmed"] = result.confirmed
        print_json(ended | {"out": None if out is None else str(out)})


def _answers(group: AgentGroup, result: AgentResult) -> dict[str, Any]:
    """The answer of every agent by its number, and the prices that all of them saw."""
    from sottovoce.cli.attend import known

    states, setpoints, sure, at = {}, {}, {}, 0
    for agent, size in zip(group.agents, group.sizes, strict=True):
        states[str(agent)] = result.x[at : at + size].tolist()
        setpoints[str(agent)] = result.setpoint[at : at + size].tolist()
        sure[str(agent)] = known(result.deviation[at : at + size])
        at += size
    return {
        "rounds": result.rounds,
        "price": result.price.tolist(),
        "x": states,
        "confirmed": result.confirmed,
        "setpoint": setpoints,
        "deviation": sure,
    }
