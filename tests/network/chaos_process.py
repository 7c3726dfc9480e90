"""A cloud or an agent as a process that can be killed at any instant.

python chaos_process.py cloud PORT KEYS FOLDER ROUNDS SEED
python chaos_process.py agent PORT KEYS FOLDER NUMBER

An agent appends every frame it receives, in hexadecimal, to FOLDER/NUMBER.frames.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from network_harness import member, plan_for

from sottovoce.network import agent as agent_module
from sottovoce.network.cloud import Cloud
from sottovoce.network.protocol.codec import decode_from_cloud
from sottovoce.network.protocol.messages import FromCloud
from sottovoce.privacy.ledger import Ledger
from sottovoce.problem import gallery


async def cloud(port: str, keys: str, folder: str, rounds: str, seed: str) -> None:
    problem = gallery.paper()
    ledger = Ledger(Path(folder) / "ledger.db")
    ledger.grant(problem.cloud.agent_labels(), 1.1, 0.05, hide="trajectory", radius=1.0)
    serving = Cloud(
        plan_for(problem),
        rounds=int(rounds),
        keys=keys,
        store=Path(folder) / "run.db",
        listen=("127.0.0.1", int(port)),
        ledger=ledger,
        seed=int(seed),
        keep_states=True,
    )
    await serving.run(linger=30)


async def agent(port: str, keys: str, folder: str, number: str) -> None:
    with (Path(folder) / f"{number}.frames").open("a", encoding="ascii") as frames:

        def witnessed(frame: bytes) -> FromCloud:
            frames.write(frame.hex() + "\n")
            frames.flush()
            return decode_from_cloud(frame)

        vars(agent_module)["decode_from_cloud"] = witnessed
        problem = gallery.paper()
        one = member(
            problem, [int(number)], int(port), Path(keys), Path(folder), allow_simulated=True
        )
        await one.run()


if __name__ == "__main__":
    asyncio.run(cloud(*sys.argv[2:]) if sys.argv[1] == "cloud" else agent(*sys.argv[2:]))
