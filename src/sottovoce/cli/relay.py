"""``sottovoce relay``: add up what agents and gateways say, and say it to the cloud."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def relay(
    folder: Annotated[Path, typer.Argument(help="folder with problem.toml; no agents/ needed")],
    agents: Annotated[str, typer.Option(help="the agents below, a range, e.g. 1-500")],
    keys: Annotated[Path, typer.Option(help="keys/agents/1-500 from identity issue --relay-host")],
    cloud: Annotated[str, typer.Option(help="the cloud, or another relay, wss://host:port")],
    listen: Annotated[str, typer.Option(help="address:port")] = "127.0.0.1:8443",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error")] = "info",
) -> None:
    """Run a relay until the run is over; agents and gateways connect to it as to the cloud.

    It sees what each of them contributes, the cloud their total only. It keeps nothing on disk:
    killed and started again, it goes on with the round at hand.

    Example: sottovoce relay FOLDER --agents 1-500 --keys k/agents/1-500 --cloud wss://h:8443
    """
    import asyncio

    from sottovoce.cli.cloud import address
    from sottovoce.cli.console import errors
    from sottovoce.network import loop
    from sottovoce.network.identity.roles import parse_range
    from sottovoce.network.observe import logs
    from sottovoce.network.relay import Relay
    from sottovoce.problem.files.load import read_public

    logs.configure(log_level)
    problem = read_public(folder)

    async def main() -> int:
        # A relay makes asyncio objects, so it must be made inside the loop.
        await asyncio.sleep(0)
        made = Relay(
            problem.cloud, parse_range(agents), above=cloud, keys=keys, listen=address(listen)
        )
        return await made.run()

    errors.print(f"done after {loop.run(main()):,} rounds")
