"""Rounds per second of a real cloud, beside a bare echo of the same messages."""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
import ssl
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

SECONDS = 4.0
STATE_BYTES, ROUND_BYTES = 60, 170
MEMORY = Path("/dev/shm")  # noqa: S108  a file system in memory, where there is one
SPAWN = multiprocessing.get_context("spawn")


def run() -> list[dict[str, str | float]]:
    from sottovoce.network import identity
    from sottovoce.problem import gallery
    from sottovoce.problem.problem import Problem

    rows: list[dict[str, str | float]] = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        gateways = [range(b, b + 250) for b in range(1, 1001, 250)]
        identity.create(root / "keys", agents=7)
        for part in gateways:
            identity.issue(root / "keys", agents=part)
        commits = _commits(root / "commits.db")
        bare = _echo(root / "keys", 7, STATE_BYTES)
        rows.append(_row("SQLite commits alone, synchronous=FULL", commits, commits))
        rows.append(_row("7 processes: bare aiohttp echo, mTLS", bare, bare))
        rows.append(_row("7 processes: gRPC bidirectional echo, mTLS", _grpc(root / "keys"), bare))
        paper: Problem = gallery.paper()
        single = [range(i, i + 1) for i in range(1, 8)]
        rate = _sottovoce(paper, root, single, "paper")
        rows.append(_row("7 processes: sottovoce, durable and secure", rate, bare))
        # What would be left of the bare echo if it also made one durable commit per round.
        floor = 1 / (1 / bare + 1 / commits)
        rows.append(_row("7 processes: sottovoce against echo + commit", rate, floor))
        if MEMORY.is_dir():
            # All but the disk: commits that are not durable, for comparison only.
            with tempfile.TemporaryDirectory(dir=MEMORY) as memory:
                rate = _sottovoce(paper, root, single, "paper", store=Path(memory))
            rows.append(_row("7 processes: sottovoce, store in memory", rate, bare))
        bare = _echo(root / "keys", 4, 250 * 8 + 30)
        rows.append(_row("1,000 agents, 4 gateways: bare aiohttp echo, mTLS", bare, bare))
        rate = _sottovoce(_fleet(1000), root, gateways, "fleet")
        rows.append(_row("1,000 agents, 4 gateways: sottovoce", rate, bare))
        if MEMORY.is_dir():
            with tempfile.TemporaryDirectory(dir=MEMORY) as memory:
                rate = _sottovoce(_fleet(1000), root, gateways, "fleet", store=Path(memory))
            rows.append(_row("1,000 agents, 4 gateways: sottovoce, store in memory", rate, bare))
    return rows


def _row(what: str, rate: float, reference: float) -> dict[str, str | float]:
    return {"what": what, "rounds/s": rate, "ratio": rate / reference}


def _commits(path: Path) -> float:
    database = sqlite3.connect(path, isolation_level=None)
    database.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE r(b);")
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS / 2:
        database.execute("INSERT INTO r VALUES (?)", (bytes(300),))
        count += 1
    database.close()
    return count / (time.perf_counter() - began)


def _fleet(n: int) -> Any:
    import numpy as np

    from sottovoce.problem.agents import fleet
    from sottovoce.problem.constraints import total
    from sottovoce.problem.problem import Problem

    ev = fleet(n, lower=0, upper=1, name="ev", parameters={"want": np.linspace(0.2, 0.9, n)})
    return Problem(
        states=ev,
        objectives=(ev.state - ev.parameter("want")) ** 2,
        constraints={"capacity": total(ev, ev.state) <= 0.4 * n},
    )


def _started(target: Callable[..., None], words: Sequence[tuple[Any, ...]]) -> list[SpawnProcess]:
    crew = [SPAWN.Process(target=target, args=w, daemon=True) for w in words]
    for process in crew:
        process.start()
    return crew


def _ended(crew: list[SpawnProcess]) -> None:
    for process in crew:
        process.kill()
        process.join()


def _server_context(keys: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.pem", keys / "server.key")
    context.load_verify_locations(keys / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _echo(keys: Path, peers: int, size: int) -> float:
    import uvloop
    from aiohttp import web

    async def main() -> float:
        sockets: list[web.WebSocketResponse] = []
        ready, over = asyncio.Event(), asyncio.Event()

        async def handle(request: web.Request) -> web.WebSocketResponse:
            socket = web.WebSocketResponse(compress=False)
            await socket.prepare(request)
            sockets.append(socket)
            if len(sockets) == peers:
                ready.set()
            await over.wait()
            return socket

        app = web.Application()
        app.router.add_get("/", handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        server = await asyncio.get_running_loop().create_server(
            runner.server, "127.0.0.1", 0, ssl=_server_context(keys)
        )
        port = server.sockets[0].getsockname()[1]
        crew = _started(_echo_client, [(keys, port, size, i % 7 + 1) for i in range(peers)])
        try:
            await asyncio.wait_for(ready.wait(), 120)
            frame, count, began = bytes(ROUND_BYTES), 0, time.perf_counter()
            while time.perf_counter() - began < SECONDS:
                for socket in sockets:
                    await socket.send_bytes(frame)
                for socket in sockets:
                    await socket.receive()
                count += 1
            rate = count / (time.perf_counter() - began)
        finally:
            over.set()
            _ended(crew)
            server.close()
            await runner.cleanup()
        return rate

    return uvloop.run(main())


def _echo_client(keys: Path, port: int, size: int, number: int) -> None:
    import aiohttp
    import uvloop

    async def main() -> None:
        folder = keys / "agents" / str(number)
        context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"wss://127.0.0.1:{port}", ssl=context) as socket,
        ):
            async for _ in socket:
                await socket.send_bytes(bytes(size))

    uvloop.run(main())


def _grpc(keys: Path) -> float:
    import grpc

    async def main() -> float:
        streams: list[Any] = []
        ready, over = asyncio.Event(), asyncio.Event()

        async def handle(request: Any, context: Any) -> None:
            await context.read()
            streams.append(context)
            if len(streams) == 7:
                ready.set()
            await over.wait()

        server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(handle)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("e", {"e": handler})])
        credentials = grpc.ssl_server_credentials(
            [((keys / "server.key").read_bytes(), (keys / "server.pem").read_bytes())],
            root_certificates=(keys / "ca.pem").read_bytes(),
            require_client_auth=True,
        )
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        crew = _started(_grpc_client, [(keys, port, i) for i in range(1, 8)])
        try:
            await asyncio.wait_for(ready.wait(), 120)
            frame, count, began = bytes(ROUND_BYTES), 0, time.perf_counter()
            while time.perf_counter() - began < SECONDS:
                for stream in streams:
                    await stream.write(frame)
                for stream in streams:
                    await stream.read()
                count += 1
            rate = count / (time.perf_counter() - began)
        finally:
            _ended(crew)
            over.set()
            await server.stop(0)
        return rate

    return asyncio.run(main())


def _grpc_client(keys: Path, port: int, number: int) -> None:
    import grpc

    async def main() -> None:
        folder = keys / "agents" / str(number)
        parts = [(folder / name).read_bytes() for name in ("ca.pem", "key.pem", "cert.pem")]
        channel = grpc.aio.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(*parts))
        stream = channel.stream_stream("/e/e")()
        await stream.write(bytes(STATE_BYTES))
        while await stream.read() is not grpc.aio.EOF:
            await stream.write(bytes(STATE_BYTES))

    asyncio.run(main())


def _sottovoce(
    problem: Any, root: Path, parts: Sequence[range], name: str, store: Path | None = None
) -> float:
    import math

    import uvloop

    from sottovoce.certify.certificate import certify
    from sottovoce.network.cloud import Cloud
    from sottovoce.privacy.plan import plan

    made = plan(certify(problem.cloud), epsilon=math.log(3), delta=0.05, radius=1.0)

    folder = Path(tempfile.mkdtemp(dir=root if store is None else store))

    async def main() -> float:
        cloud = Cloud(made, rounds=1_000_000, keys=root / "keys", store=folder / "run.db")
        await cloud.start()
        words = [(root / "keys", folder, cloud.port, part, name) for part in parts]
        crew = _started(_agents, words)
        try:
            deadline = time.perf_counter() + 240
            while cloud.round < 50:
                if time.perf_counter() > deadline:
                    raise TimeoutError("the agents do not come up")
                await asyncio.sleep(0.05)
            first, began = cloud.round, time.perf_counter()
            await asyncio.sleep(SECONDS)
            rate = (cloud.round - first) / (time.perf_counter() - began)
        finally:
            _ended(crew)
            await cloud.stop()
        return rate

    return uvloop.run(main())


def _agents(keys: Path, folder: Path, port: int, part: range, name: str) -> None:
    import uvloop

    from sottovoce.network.agent import Agent
    from sottovoce.network.home import Household
    from sottovoce.problem import gallery

    problem = gallery.paper() if name == "paper" else _fleet(1000)
    text = str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}"

    async def main() -> None:
        await Agent(
            Household.of_problem(problem, list(part)),
            cloud=f"wss://127.0.0.1:{port}",
            keys=keys / "agents" / text,
            saved=folder / f"{text}.state",
        ).run()

    uvloop.run(main())
