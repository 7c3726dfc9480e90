"""Any party of a split cloud as a process that can be killed at any instant.

python split_chaos_process.py helper PORT KEYS FOLDER
python split_chaos_process.py cloud PORT KEYS FOLDER ROUNDS HELPER_PORT
python split_chaos_process.py agent PORT KEYS FOLDER NUMBER

A helper appends every answer it sends, in hexadecimal, to FOLDER/answers; an agent every frame it
receives to FOLDER/NUMBER.frames and every masked contribution it sends to FOLDER/NUMBER.said.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from network_harness import member, split_plan

from sottovoce.network import agent as agent_module
from sottovoce.network.cloud import Cloud
from sottovoce.network.helper import Helper
from sottovoce.network.protocol.codec import decode_from_cloud, encode
from sottovoce.network.protocol.messages import Answer, FromAgent, FromCloud, Masked
from sottovoce.network.transport import server as server_module
from sottovoce.problem import gallery


def witness(path: Path) -> Any:
    """Append bytes to a file, one line each, before anything is done with them."""

    def write(data: bytes) -> None:
        with path.open("a", encoding="ascii") as file:
            file.write(data.hex() + "\n")

    return write


async def helper(port: str, keys: str, folder: str) -> None:
    write = witness(Path(folder) / "answers")

    def witnessed(message: Any) -> bytes:
        frame = encode(message)
        if isinstance(message, Answer):
            write(frame)
        return frame

    vars(server_module)["encode"] = witnessed
    listen = ("127.0.0.1", int(port))
    plan = split_plan(gallery.paper())
    store = Path(folder) / "helper.db"
    await Helper(plan, keys=Path(keys) / "helper", store=store, listen=listen).run()


async def cloud(port: str, keys: str, folder: str, rounds: str, helper_port: str) -> None:
    serving = Cloud(
        split_plan(gallery.paper()),
        rounds=int(rounds),
        keys=Path(keys) / "cloud",
        store=Path(folder) / "run.db",
        listen=("127.0.0.1", int(port)),
        helper=f"wss://127.0.0.1:{helper_port}",
        keep_states=True,
    )
    await serving.run(linger=30)


def witnessed_agent(folder: Path, name: str) -> None:
    """Have every frame of the agents in this process written down, in and out."""
    heard, said = witness(folder / f"{name}.frames"), witness(folder / f"{name}.said")

    def receive(frame: bytes) -> FromCloud:
        heard(frame)
        return decode_from_cloud(frame)

    def send(message: FromAgent) -> bytes:
        frame = encode(message)
        if isinstance(message, Masked):
            said(frame)
        return frame

    vars(agent_module)["decode_from_cloud"] = receive
    vars(agent_module)["encode"] = send


async def agent(port: str, keys: str, folder: str, number: str) -> None:
    witnessed_agent(Path(folder), number)
    await member(gallery.paper(), [int(number)], int(port), Path(keys), Path(folder)).run()


if __name__ == "__main__":
    roles: dict[str, Any] = {"helper": helper, "cloud": cloud, "agent": agent}
    asyncio.run(roles[sys.argv[1]](*sys.argv[2:]))
