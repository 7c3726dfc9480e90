"""Any party of a run of the paper's problem as a process that can be killed at any instant.

python party_process.py cloud PORT KEYS FOLDER ROUNDS --seed SEED        with a ledger
python party_process.py cloud HOST:PORT KEYS FOLDER ROUNDS --seed SEED URL LEASE
python party_process.py cloud PORT KEYS FOLDER ROUNDS --helper PORT      one half
python party_process.py helper PORT KEYS FOLDER
python party_process.py agent PORT KEYS FOLDER NUMBER

A helper appends every answer it sends, in hexadecimal, to FOLDER/answers; an agent every frame it
receives to FOLDER/NUMBER.frames and every masked contribution it sends to FOLDER/NUMBER.said. With
a URL, store and ledger are in PostgreSQL, with a lease of so many seconds.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from network_harness import member, plan_for, split_plan

from sottovoce.errors import SottovoceError
from sottovoce.network import agent as agent_module
from sottovoce.network import journal_place, service
from sottovoce.network.cloud import Cloud
from sottovoce.network.helper import Helper
from sottovoce.network.protocol.codec import decode_from_cloud, encode
from sottovoce.network.protocol.messages import Answer, FromAgent, FromCloud, Masked
from sottovoce.network.transport import server as server_module
from sottovoce.privacy.ledger import Ledger
from sottovoce.problem import gallery

PROBLEM = gallery.paper()


def witness(path: Path) -> Any:
    """Append bytes to a file, one line each, before anything is done with them."""

    def write(data: bytes) -> None:
        with path.open("a", encoding="ascii") as file:
            file.write(data.hex() + "\n")

    return write


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


async def cloud(
    port: str, keys: Path, folder: Path, rounds: str, kind: str, value: str, *server: str
) -> None:
    store: Any = folder / "run.db"
    if kind == "--seed":
        plan, ledger = plan_for(PROBLEM), Ledger(server[0] if server else folder / "ledger.db")
        settings: dict[str, Any] = {"keys": keys, "ledger": ledger, "seed": int(value)}
        if not server:  # a killed agent comes back
            settings["deadline"] = settings["first_deadline"] = 300.0
            ledger.grant(PROBLEM.cloud.agent_labels(), 1.1, 0.05, hide="trajectory", radius=1.0)
        else:
            store = server[0]
            vars(journal_place)["LEASE_SECONDS"] = float(server[1])
            vars(service)["POLL_SECONDS"] = float(server[1]) / 10
    else:
        plan = split_plan(PROBLEM)
        settings = {"keys": keys / "cloud", "helper": f"wss://127.0.0.1:{value}"}
    host, _, number = port.rpartition(":")
    listen = (host or "127.0.0.1", int(number))
    serving = Cloud(
        plan, rounds=int(rounds), store=store, listen=listen, keep_states=True, **settings
    )
    await serving.run(linger=30)


async def helper(port: str, keys: Path, folder: Path) -> None:
    write = witness(folder / "answers")

    def witnessed(message: Any) -> bytes:
        frame = encode(message)
        if isinstance(message, Answer):
            write(frame)
        return frame

    vars(server_module)["encode"] = witnessed
    listen, store = ("127.0.0.1", int(port)), folder / "helper.db"
    await Helper(split_plan(PROBLEM), keys=keys / "helper", store=store, listen=listen).run()


async def agent(port: str, keys: Path, folder: Path, number: str) -> None:
    witnessed_agent(folder, number)
    await member(PROBLEM, [int(number)], int(port), keys, folder, allow_simulated=True).run()


if __name__ == "__main__":
    role, port, keys, folder, *more = sys.argv[1:]
    try:
        asyncio.run(vars()[role](port, Path(keys), Path(folder), *more))
    except SottovoceError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(error.exit_code)
