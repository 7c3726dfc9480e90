"""A cloud and agents in one event loop, and peers that speak the protocol by hand."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgpack  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt

from sottovoce.formula.tape import tape
from sottovoce.network import Straggler
from sottovoce.network.agent import Agent, AgentResult
from sottovoce.network.agent_group import AgentGroup
from sottovoce.network.cloud import Cloud, CloudResult
from sottovoce.network.helper import Helper
from sottovoce.network.identity.tls import client_context
from sottovoce.network.protocol.actions import Action, Commit, Part, Party, Send
from sottovoce.network.protocol.cloud_machine import CloudMachine
from sottovoce.network.protocol.codec import encode, pack, pack_whole
from sottovoce.network.protocol.messages import PROTOCOLS, Contribution, Hello, State
from sottovoce.network.protocol.receipt import ReceiptSigner
from sottovoce.network.round_arithmetic import Rounds
from sottovoce.network.run_service import RunService
from sottovoce.network.setup import make_config, parties_of, setup_of
from sottovoce.paper.tikhonov import RELEASE
from sottovoce.privacy.adjacency import Adjacency, Trajectory
from sottovoce.privacy.noise_plan import NoisePlan, Output, OutputKind
from sottovoce.privacy.sampler import Sampler
from sottovoce.privacy.trust import ONE_CLOUD, SplitCloud, Trust
from sottovoce.problem.problem import Problem
from sottovoce.problem.sums import contributions

PATIENCE = 60.0


def run(main: Coroutine[Any, Any, Any], *, patience: float = PATIENCE) -> Any:
    """Run a test's coroutine, for a minute at most unless it may take longer."""

    async def limited() -> Any:
        async with asyncio.timeout(patience):
            return await main

    return asyncio.run(limited())


def plan_for(
    problem: Problem,
    *,
    sigma: float = 4.0,
    gradient_sigma: float = 2.0,
    hide: Adjacency | None = None,
    method: str = "joint",
    trust: Trust = ONE_CLOUD,
) -> NoisePlan:
    """A plan with sigmas of our choosing: what is tested here does not depend on how they came."""
    cloud = problem.cloud
    per_agent = np.ones(cloud.agents)
    kind: OutputKind = "sum" if method == "joint" else "value"
    names = cloud.sums.labels if method == "joint" else cloud.row_labels()
    outputs = [Output(name=name, kind=kind, sigma=sigma, row=row) for row, name in enumerate(names)]
    if method == "paper":
        from plans import coupled_entries  # not there for processes started in this folder

        outputs += [
            Output(name="entry", kind="gradient", sigma=gradient_sigma, row=row, column=column)
            for row, column, _ in coupled_entries(cloud)
        ]
    return NoisePlan(
        cloud=cloud,
        release=RELEASE if method == "paper" else None,
        hide=Trajectory(radius=1.0) if hide is None else hide,
        epsilon=per_agent * np.log(3),
        delta=per_agent * 0.05,
        outputs=tuple(outputs),
        domain=cloud.groups,
        gdp_mu=per_agent * 0.5,
        gdp_rounding=1e-6,
        certified=True,
        trust=trust,
    )


def contributed(plan: NoisePlan, party: Party, x: npt.ArrayLike) -> bytes:
    """What a party says at states x of all agents, from the stated sums alone."""
    states = np.asarray(x, dtype=np.float64)
    if party.owners is not None:
        return pack(states[party.columns])
    total = np.zeros(plan.cloud.sums.count, dtype=np.int64)
    for group, offset in zip(plan.domain, _offsets(plan), strict=True):
        agent = sum(g.count for g in plan.domain[: plan.domain.index(group)]) + 1
        if agent not in party.agents or group.count > 1:
            continue
        values = dict(zip(group.symbols, states[offset : offset + group.dim], strict=True))
        for o, h in contributions(plan.cloud.sums, group).items():
            total[o] += round(float(tape((h,), values)(*values.values())[0]) / plan.outputs[o].grid)
    return pack_whole(total[party.sums])


def parts_at(plan: NoisePlan, x: npt.ArrayLike, *companies: tuple[int, ...]) -> tuple[Part, ...]:
    """What everybody says at x, one by one unless they speak together."""
    alone = [(i,) for i in range(1, plan.cloud.agents + 1)]
    parties = map(parties_of(plan), companies or alone)
    return tuple(Part(party=p, data=contributed(plan, p, x)) for p in parties)


class MachineRun:
    """A cloud without sockets and disk: takes contributions, keeps every byte that it sends."""

    def __init__(
        self,
        plan: NoisePlan,
        algorithm: Any,
        sampler: Sampler,
        rounds: int,
        *,
        straggler: Straggler = "wait",
    ) -> None:
        self.rounds = Rounds(plan, algorithm, sampler, rounds)
        config = make_config(plan, algorithm, rounds=rounds, noise="secure", run_id="release")
        self.setup = setup_of(plan, config)
        notary = ReceiptSigner(b"k" * 32, config.hash)
        self.machine = CloudMachine(self.setup, notary, lambda k: None, straggler=straggler)
        self.sent: list[bytes] = []
        self.used: list[tuple[Part, ...]] = []
        for agent in range(1, self.setup.agents + 1):
            hello = Hello(agents=[agent], config=b"", round=0, receipt=b"")
            self.machine.connect(agent, {agent})
            self.do(self.machine.receive(agent, hello))

    def say(self, k: int, data: dict[int, bytes]) -> None:
        """Agents say something."""
        for agent, own in data.items():
            message = (
                State(round=k, x=own) if self.setup.states else Contribution(round=k, values=own)
            )
            self.do(self.machine.receive(agent, message))

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.sent.append(encode(action.message))
            elif isinstance(action, Commit):
                machine = self.machine
                previous = self.setup.config_hash if machine.last is None else machine.last.digest
                record, _ = self.rounds.play(action.k, action.parts, previous, action.held)
                self.used.append(record.parts)
                self.do(machine.committed(record))


def _offsets(plan: NoisePlan) -> list[int]:
    sizes = [group.count * group.dim for group in plan.domain]
    return [sum(sizes[:i]) for i in range(len(sizes))]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@asynccontextmanager
async def serving(
    plan: NoisePlan, keys: Path, store: Path | str, **settings: Any
) -> AsyncIterator[Cloud]:
    """A cloud that listens."""
    cloud = Cloud(plan, keys=keys, store=store, **settings)
    await cloud.start()
    try:
        yield cloud
    finally:
        await cloud.stop()


@asynccontextmanager
async def helping(plan: NoisePlan, keys: Path, store: Path, **settings: Any) -> AsyncIterator[Any]:
    """A helper that listens."""
    helper = Helper(plan, keys=keys / "helper", store=store, **settings)
    await helper.start()
    try:
        yield helper
    finally:
        await helper.stop()


@asynccontextmanager
async def halves(
    plan: NoisePlan, keys: Path, folder: Path, **settings: Any
) -> AsyncIterator[tuple[Cloud, Helper]]:
    """Both halves of a split cloud, each with its own store."""
    async with helping(plan, keys, folder / "helper.db") as helper:
        url = f"wss://127.0.0.1:{helper.port}"
        store, own = folder / "run.db", keys / "cloud"
        async with serving(plan, own, store, helper=url, **settings) as cloud:
            yield cloud, helper


def split_plan(problem: Problem, **settings: Any) -> NoisePlan:
    """A plan for two halves, with sigmas of our choosing."""
    return plan_for(problem, trust=SplitCloud(), **settings)


def member(
    problem: Problem,
    numbers: list[int],
    cloud: Cloud | int,
    keys: Path,
    folder: Path,
    **settings: Any,
) -> Agent:
    """An agent or gateway; its certificate is found by its range."""
    port = cloud if isinstance(cloud, int) else cloud.port
    text = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
    return Agent(
        AgentGroup.of_problem(problem, [number - 1 for number in numbers]),
        cloud=f"wss://127.0.0.1:{port}",
        keys=keys / "agents" / text,
        saved=folder / f"{text}.state",
        longest_pause=0.2,
        **settings,
    )


@asynccontextmanager
async def taking_part(*agents: Agent) -> AsyncIterator[list[asyncio.Task[AgentResult]]]:
    """Agents that take part until the block ends."""
    tasks = [asyncio.create_task(agent.run()) for agent in agents]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def completed(cloud: Cloud, *agents: Agent) -> tuple[CloudResult, list[AgentResult]]:
    """A run of these agents to its end, with the results of cloud and agents."""
    async with taking_part(*agents) as tasks:
        return await cloud.finished(linger=10), await asyncio.gather(*tasks)


async def reached(cloud: Cloud, k: int) -> None:
    """Wait for a round."""
    while cloud.round < k:
        await asyncio.sleep(0.002)


def words_of(record: logging.LogRecord) -> bytes:
    """What a record says, without clocks and process numbers: their digits are left to chance."""
    chance = {"created", "msecs", "relativeCreated", "thread", "process"}
    return repr({k: v for k, v in vars(record).items() if k not in chance}).encode()


async def play(
    problem: Problem, plan: NoisePlan, keys: Path, folder: Path, **settings: Any
) -> tuple[CloudResult, npt.NDArray[np.float64]]:
    """A whole run with one agent per connection; the result and the agents' last states."""
    allow = settings.get("seed") is not None
    async with serving(plan, keys, folder / "run.db", **settings) as cloud:
        agents = [
            member(problem, [i], cloud, keys, folder, allow_simulated=allow)
            for i in range(1, problem.agents + 1)
        ]
        result, ended = await completed(cloud, *agents)
    return result, np.concatenate([e.x for e in ended])


async def some_rounds(
    problem: Problem,
    plan: NoisePlan,
    keys: Path,
    folder: Path,
    until: int,
    *,
    parties: list[list[int]] | None = None,
    store: Path | str | None = None,
    **settings: Any,
) -> None:
    """Serve with new agents until a round or the end; nothing survives but files."""
    allow = settings.get("seed") is not None
    async with serving(plan, keys, store or folder / "run.db", **settings) as cloud:
        agents = [
            member(problem, party, cloud, keys, folder, allow_simulated=allow)
            for party in parties or [[i] for i in range(1, problem.agents + 1)]
        ]
        ended = asyncio.create_task(cloud.finished())
        async with taking_part(*agents):
            while cloud.round < until and not ended.done():
                await asyncio.sleep(0.002)
        if ended.done():
            ended.result()
        ended.cancel()


class Peer:
    """A connection that says whatever a test wants it to."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def say(self, message: Any) -> None:
        await self.socket.send_bytes(
            message if isinstance(message, bytes) else msgpack.packb(message)
        )

    async def hear(self) -> Any:
        """The next message, or None once the connection is closed."""
        message = await self.socket.receive(timeout=15)
        return msgpack.unpackb(message.data) if message.type is aiohttp.WSMsgType.BINARY else None

    async def hello(self, numbers: list[int], **changes: Any) -> Any:
        words = {"type": "hello", "agents": numbers, "config": b"", "round": 0}
        await self.say(words | {"receipt": b""} | changes)
        return await self.hear()


@asynccontextmanager
async def peer(
    cloud: RunService[Any], keys: Path, who: str = "agents/8", **settings: Any
) -> AsyncIterator[Peer]:
    connector = aiohttp.TCPConnector(ssl=client_context(keys / who))
    async with aiohttp.ClientSession(connector=connector) as session:
        url = f"wss://127.0.0.1:{cloud.port}"
        async with session.ws_connect(url, protocols=PROTOCOLS, **settings) as socket:
            yield Peer(socket)


@dataclass(frozen=True)
class Site:
    """What a run needs: a problem, the keys of all parties, and a folder of the test."""

    problem: Problem
    keys: Path
    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "run.db"

    def plan(self, **settings: Any) -> NoisePlan:
        return plan_for(self.problem, **settings)

    def serving(
        self, plan: NoisePlan | None = None, /, **settings: Any
    ) -> AbstractAsyncContextManager[Cloud]:
        return serving(plan or self.plan(), self.keys, self.store, **settings)

    def halves(
        self, plan: NoisePlan | None = None, /, **settings: Any
    ) -> AbstractAsyncContextManager[tuple[Cloud, Helper]]:
        return halves(plan or split_plan(self.problem), self.keys, self.folder, **settings)

    def member(self, cloud: Cloud | int, *numbers: int, **settings: Any) -> Agent:
        return member(self.problem, list(numbers), cloud, self.keys, self.folder, **settings)

    def peer(
        self, cloud: RunService[Any], who: str = "agents/8", **settings: Any
    ) -> AbstractAsyncContextManager[Peer]:
        return peer(cloud, self.keys, who, **settings)

    async def page(self, cloud: RunService[Any], who: str, path: str) -> tuple[int, str]:
        return await page(cloud, self.keys, who, path)

    async def play(self, plan: NoisePlan, **settings: Any) -> tuple[CloudResult, Any]:
        return await play(self.problem, plan, self.keys, self.folder, **settings)

    async def some_rounds(self, plan: NoisePlan, until: int, **settings: Any) -> None:
        await some_rounds(self.problem, plan, self.keys, self.folder, until, **settings)


async def page(cloud: RunService[Any], keys: Path, who: str, path: str) -> tuple[int, str]:
    """The status and text of a page as somebody sees it."""
    connector = aiohttp.TCPConnector(ssl=client_context(keys / who))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"https://127.0.0.1:{cloud.port}{path}") as answer,
    ):
        return answer.status, await answer.text()
