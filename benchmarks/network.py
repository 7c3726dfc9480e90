"""Rounds per second of a real cloud, beside a bare echo of the same messages.

The last column is the processor's time of a cloud per round over that of the echo.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
import ssl
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

SECONDS = 4.0
CONNECTIONS = 100
MEMORY = Path("/dev/shm")  # noqa: S108  a file system in memory, where there is one
SPAWN = multiprocessing.get_context("spawn")


@dataclass
class Pace:
    """Rounds per second, and seconds of this process's processor per round."""

    rate: float
    cpu: float = 0.0


class Stopwatch:
    """Measures the pace of rounds from now on."""

    def __init__(self) -> None:
        self._began, self._cpu = time.perf_counter(), time.process_time()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    def pace(self, rounds: int) -> Pace:
        return Pace(rounds / self.seconds, (time.process_time() - self._cpu) / rounds)


def run() -> list[dict[str, str | float]]:
    from sottovoce.network import identity

    rows: list[dict[str, str | float]] = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        gateways = [range(b, b + 250) for b in range(1, 1001, 250)]
        identity.create_keys(root / "keys", agents=7)
        for part in gateways:
            identity.issue_keys(root / "keys", agents=part)
        identity.issue_keys(root / "keys", agents=range(1, 100_001))
        rows += _seven(root)
        rows += _gateways(root, gateways)
        rows += _crowds(root)
    return rows


def _seven(root: Path) -> list[dict[str, str | float]]:
    """The paper's problem, an agent to a process."""
    from sottovoce.problem import gallery
    from sottovoce.problem.problem import Problem

    paper: Problem = gallery.paper()
    single = [range(i, i + 1) for i in range(1, 8)]
    sizes = _sizes(sums=4, own=2)
    commits = _commits(root / "commits.db")
    bare = _echo(root / "keys", 7, sizes)
    rows = [_row("SQLite commits alone, synchronous=FULL", commits, commits)]
    rows.append(_row("7 processes: bare aiohttp echo, mTLS", bare, bare))
    grpc = _grpc(root / "keys", sizes)
    rows.append(_row("7 processes: gRPC bidirectional echo, mTLS", grpc, bare))
    pace = _sottovoce(paper, root, single, "paper")
    rows.append(_row("7 processes: sottovoce, durable and secure", pace, bare))
    # What would be left of the bare echo if it also made one durable commit per round.
    floor = Pace(1 / (1 / bare.rate + 1 / commits.rate))
    rows.append(_row("7 processes: sottovoce against echo + commit", pace, floor))
    if MEMORY.is_dir():
        # All but the disk: commits that are not durable, for comparison only.
        with tempfile.TemporaryDirectory(dir=MEMORY) as memory:
            pace = _sottovoce(paper, root, single, "paper", store=Path(memory))
        rows.append(_row("7 processes: sottovoce, store in memory", pace, bare))
    return rows


def _gateways(root: Path, gateways: Sequence[range]) -> list[dict[str, str | float]]:
    """A fleet of 1,000, whose agents minimise behind four gateways."""
    bare = _echo(root / "keys", 4, _sizes(sums=1, own=1))
    rows = [_row("1,000 agents, 4 gateways: bare aiohttp echo, mTLS", bare, bare)]
    pace = _sottovoce(_fleet(1000), root, gateways, "fleet")
    rows.append(_row("1,000 agents, 4 gateways: sottovoce", pace, bare))
    if MEMORY.is_dir():
        with tempfile.TemporaryDirectory(dir=MEMORY) as memory:
            pace = _sottovoce(_fleet(1000), root, gateways, "fleet", store=Path(memory))
        rows.append(_row("1,000 agents, 4 gateways: sottovoce, store in memory", pace, bare))
    return rows


def _crowds(root: Path) -> list[dict[str, str | float]]:
    """What a cloud's rounds cost by the agents behind its connections, which answer at once."""
    few = _served(_fleet(1_000), root, _crowd(1_000))
    many = _served(_fleet(100_000), root, _crowd(100_000))
    return [
        _row(f"1,000 agents, {CONNECTIONS} gateways that answer at once", few, few),
        _row(f"100,000 agents, {CONNECTIONS} gateways that answer at once", many, few),
    ]


def _crowd(agents: int) -> Callable[[Path, int], list[SpawnProcess]]:
    """Two processes that hold all gateways' connections."""
    each = agents // CONNECTIONS
    parts = [range(1 + g * each, 1 + (g + 1) * each) for g in range(CONNECTIONS)]

    def start(folder: Path, port: int) -> list[SpawnProcess]:
        keys = folder.parent / "keys"
        return _started(_answering, [(keys, port, parts[half::2]) for half in (0, 1)])

    return start


def _answering(keys: Path, port: int, parts: Sequence[range]) -> None:
    """Gateways that send the same contribution in every round, as soon as they hear of it."""
    import aiohttp
    import uvloop

    from sottovoce.network.identity.tls import client_context
    from sottovoce.network.protocol.codec import decode_from_cloud, encode
    from sottovoce.network.protocol.messages import PROTOCOLS, Contribution, Hello, Round

    async def one(session: aiohttp.ClientSession, part: range) -> None:
        async with session.ws_connect(f"wss://127.0.0.1:{port}", protocols=PROTOCOLS) as socket:
            hello = Hello(agents=list(part), config=b"", round=0, receipt=b"")
            await socket.send_bytes(encode(hello))
            async for frame in socket:
                heard = decode_from_cloud(frame.data)
                k = heard.round + 1 if isinstance(heard, Round) else 1
                await socket.send_bytes(encode(Contribution(round=k, values=bytes(8))))

    async def main() -> None:
        context = client_context(keys / "agents" / "1-100000")
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            await asyncio.gather(*(one(session, part) for part in parts))

    uvloop.run(main())


def _sizes(*, sums: int, own: int) -> tuple[int, int]:
    """The bytes of a contribution to ``own`` of ``sums`` sums, and of a round."""
    from sottovoce.network.protocol.codec import encode
    from sottovoce.network.protocol.messages import RECEIPT, Contribution, Round

    said = Contribution(round=1_000, values=bytes(8 * own))
    released = Round(round=1_000, price=bytes(8 * sums), y=b"", receipt=bytes(RECEIPT))
    return len(encode(said)), len(encode(released))


def _row(what: str, pace: Pace, reference: Pace) -> dict[str, str | float]:
    cpu = pace.cpu / reference.cpu if pace.cpu and reference.cpu else ""
    return {
        "what": what, "rounds/s": pace.rate, "ratio": pace.rate / reference.rate, "CPU a round": cpu
    }  # fmt: skip


def _commits(path: Path) -> Pace:
    database = sqlite3.connect(path, isolation_level=None)
    database.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE r(b);")
    watch, count = Stopwatch(), 0
    while watch.seconds < SECONDS / 2:
        database.execute("INSERT INTO r VALUES (?)", (bytes(300),))
        count += 1
    database.close()
    return Pace(watch.pace(count).rate)


def _fleet(n: int) -> Any:
    import numpy as np

    import sottovoce as sv
    from sottovoce.problem.constraints import total
    from sottovoce.problem.problem import Problem

    ev = sv.agents(n, lower=0, upper=1, name="ev", parameters={"want": np.linspace(0.2, 0.9, n)})
    return Problem(
        agents=ev,
        objectives=(ev.x - ev["want"]) ** 2,
        constraints={"capacity": total(ev.x) <= 0.4 * n},
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


def _echo(keys: Path, peers: int, sizes: tuple[int, int]) -> Pace:
    import uvloop
    from aiohttp import web

    async def main() -> Pace:
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
        crew = _started(_echo_client, [(keys, port, sizes[0], i % 7 + 1) for i in range(peers)])
        try:
            await asyncio.wait_for(ready.wait(), 120)
            frame, count, watch = bytes(sizes[1]), 0, Stopwatch()
            while watch.seconds < SECONDS:
                for socket in sockets:
                    await socket.send_bytes(frame)
                for socket in sockets:
                    await socket.receive()
                count += 1
            pace = watch.pace(count)
        finally:
            over.set()
            _ended(crew)
            server.close()
            await runner.cleanup()
        return pace

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


def _grpc(keys: Path, sizes: tuple[int, int]) -> Pace:
    import grpc

    async def main() -> Pace:
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
        crew = _started(_grpc_client, [(keys, port, sizes[0], i) for i in range(1, 8)])
        try:
            await asyncio.wait_for(ready.wait(), 120)
            frame, count, watch = bytes(sizes[1]), 0, Stopwatch()
            while watch.seconds < SECONDS:
                for stream in streams:
                    await stream.write(frame)
                for stream in streams:
                    await stream.read()
                count += 1
            pace = watch.pace(count)
        finally:
            _ended(crew)
            over.set()
            await server.stop(0)
        return pace

    return asyncio.run(main())


def _grpc_client(keys: Path, port: int, size: int, number: int) -> None:
    import grpc

    async def main() -> None:
        folder = keys / "agents" / str(number)
        parts = [(folder / name).read_bytes() for name in ("ca.pem", "key.pem", "cert.pem")]
        channel = grpc.aio.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(*parts))
        stream = channel.stream_stream("/e/e")()
        await stream.write(bytes(size))
        while await stream.read() is not grpc.aio.EOF:
            await stream.write(bytes(size))

    asyncio.run(main())


def _sottovoce(
    problem: Any, root: Path, parts: Sequence[range], name: str, store: Path | None = None
) -> Pace:
    def start(folder: Path, port: int) -> list[SpawnProcess]:
        return _started(_agents, [(root / "keys", folder, port, part, name) for part in parts])

    return _served(problem, root, start, store=store)


def _served(
    problem: Any,
    root: Path,
    start: Callable[[Path, int], list[SpawnProcess]],
    store: Path | None = None,
) -> Pace:
    """Rounds per second of a cloud whose agents are processes that ``start`` starts."""
    import math

    import uvloop

    from sottovoce.certificate.certificate import certify
    from sottovoce.network.cloud import Cloud
    from sottovoce.privacy.adjacency import Trajectory
    from sottovoce.privacy.plan import plan

    hide = Trajectory(radius=1.0)
    made = plan(certify(problem.cloud), epsilon=math.log(3), delta=0.05, hide=hide)
    folder = Path(tempfile.mkdtemp(dir=root if store is None else store))

    async def main() -> Pace:
        cloud = Cloud(made, rounds=1_000_000, keys=root / "keys", store=folder / "run.db")
        await cloud.start()
        crew = start(folder, cloud.port)
        try:
            deadline = time.perf_counter() + 240
            while cloud.round < 50:
                if time.perf_counter() > deadline:
                    raise TimeoutError("the agents do not come up")
                await asyncio.sleep(0.05)
            first, watch = cloud.round, Stopwatch()
            await asyncio.sleep(SECONDS)
            pace = watch.pace(cloud.round - first)
        finally:
            _ended(crew)
            await cloud.stop()
        return pace

    return uvloop.run(main())


def _agents(keys: Path, folder: Path, port: int, part: range, name: str) -> None:
    import uvloop

    from sottovoce.network.agent import Agent
    from sottovoce.network.agent_group import AgentGroup
    from sottovoce.problem import gallery

    problem = gallery.paper() if name == "paper" else _fleet(1000)
    text = str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}"

    async def main() -> None:
        await Agent(
            AgentGroup.of_problem(problem, [number - 1 for number in part]),
            cloud=f"wss://127.0.0.1:{port}",
            keys=keys / "agents" / text,
            saved=folder / f"{text}.state",
        ).run()

    uvloop.run(main())
