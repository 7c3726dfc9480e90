"""A relay or a gateway as a process.

python relay_process.py relay ABOVE PORT KEYS RANGE
python relay_process.py gateway PORT KEYS FOLDER RANGE      prints its agents' answers as JSON
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from network_harness import member

from sottovoce.network.identity.tls import parse_range
from sottovoce.network.relay import Relay
from sottovoce.problem import gallery


async def relay(above: str, port: str, keys: str, agents: str) -> None:
    await Relay(
        gallery.paper().cloud,
        parse_range(agents),
        above=f"wss://127.0.0.1:{above}",
        keys=Path(keys) / "agents" / agents,
        listen=("127.0.0.1", int(port)),
        allow_simulated=True,
        longest_pause=0.2,
    ).run()


async def gateway(port: str, keys: str, folder: str, agents: str) -> None:
    numbers = list(parse_range(agents))
    one = member(
        gallery.paper(), numbers, int(port), Path(keys), Path(folder), allow_simulated=True
    )
    sys.stdout.write(json.dumps((await one.run()).x.tolist()))


if __name__ == "__main__":
    asyncio.run(relay(*sys.argv[2:]) if sys.argv[1] == "relay" else gateway(*sys.argv[2:]))
