"""An agent as a process: connects, takes its steps at home, comes back after whatever happens."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, final

import aiohttp
import numpy as np
from aiohttp import WSMsgType

from sottovoce.arguments import instance, path_of
from sottovoce.errors import InputError
from sottovoce.network.config import algorithm_of, read_config
from sottovoce.network.errors import RefusedError
from sottovoce.network.fallback import Fallback
from sottovoce.network.heartbeat import Heartbeat
from sottovoce.network.home import Household
from sottovoce.network.home_step import HomeStep
from sottovoce.network.identity import require_current
from sottovoce.network.logs import note
from sottovoce.network.protocol.agent import (
    Action,
    AgentMachine,
    Finish,
    Hangup,
    Join,
    Memory,
    Phase,
    Save,
    Send,
    Stop,
    Think,
)
from sottovoce.network.protocol.codec import (
    MalformedError,
    decode_from_cloud,
    encode,
    pack,
    unpack,
)
from sottovoce.network.protocol.messages import Code, Welcome
from sottovoce.network.saved import Saved
from sottovoce.network.tls import client_context
from sottovoce.problem.agents import Array

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 30.0
CONNECT_SECONDS: Final = 10.0
_HEAD: Final = 1 << 16

OnState = Callable[[int, Array], Awaitable[None] | None]
"""Called with k and the setpoint after every step: drive the device here.

The setpoint is the averaged state if the algorithm averages: what an agent sends while it searches
is several times farther from the optimum. The run goes on whatever it raises; the log tells of it.
"""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AgentResult:
    """Where an agent ended.

    Attributes:
        x: its answer, of all agents one after the other for a gateway: averaged states if the
            algorithm averages, else the last.
        last_x: its last state.
        mu: the multipliers: averaged, or the last.
        rounds: the last round it saw.
        failed: agent-rounds of this process in which an agent's own code failed, so that something
            else was sent and the answer stayed as it was; see ``network.fallback``.
    """

    x: Array
    last_x: Array
    mu: Array
    rounds: int
    failed: int


@final
class Agent:
    """An agent, or a gateway that hosts several.

    Args:
        household: who lives here, with their objectives.
        cloud: the cloud's address, ``wss://host:port``.
        keys: folder with ca.pem, cert.pem and key.pem.
        saved: file for its own state, from which it goes on after a restart.
        on_state: called after every step.
        allow_simulated: take part in a run whose noise is simulated, hence not private.
        longest_pause: seconds between attempts to reconnect, at most.
    """

    def __init__(
        self,
        household: Household,
        *,
        cloud: str,
        keys: str | os.PathLike[str],
        saved: str | os.PathLike[str],
        on_state: OnState | None = None,
        allow_simulated: bool = False,
        longest_pause: float = LONGEST_PAUSE,
    ) -> None:
        instance("household", household, Household, "sv.Household.of_file(...)")
        if not isinstance(cloud, str) or not cloud.startswith("wss://"):
            raise InputError(f"cloud must be an address wss://host:port, got {cloud!r:.60}")
        self._household = household
        self._url = cloud
        self._keys = path_of("keys", keys)
        self._path = path_of("saved", saved)
        self._on_state = on_state
        self._allow_simulated = allow_simulated
        self._longest_pause = longest_pause
        self._failures = 0
        self._failed = 0
        self._step: HomeStep | None = None
        self._fallback: Fallback | None = None
        self._mu: Array | None = None

    async def run(self) -> AgentResult:
        """Take part until the run is done.

        Raises:
            RefusedError: the cloud refuses this agent, or is not the cloud it used to be.
            DiskError: its state cannot be saved.
            BusyError: another process of this agent is running.
            ExpiredError: its certificate has ended.
        """
        context = client_context(self._keys)
        start = pack(self._household.start)
        saved = Saved(self._path, Memory(x=start, answer=start))
        machine = AgentMachine(
            self._household.agents, saved.memory, self._household.cloud.rows, self._objection
        )
        pause = FIRST_PAUSE
        try:
            connector = aiohttp.TCPConnector(ssl=context, limit=1)
            async with aiohttp.ClientSession(connector=connector) as session:
                while True:
                    before = machine.memory.round
                    await self._connect(session, machine, saved)
                    if machine.phase is Phase.DONE:
                        break
                    # Jitter: a thousand agents must not all come back in the same instant.
                    moved = machine.memory.round > before
                    pause = FIRST_PAUSE if moved else min(2 * pause, self._longest_pause)
                    await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
        finally:
            saved.close()
        mu = unpack(b"") if self._mu is None else self._mu
        memory = machine.memory
        return AgentResult(
            x=unpack(memory.answer),
            last_x=unpack(memory.x),
            mu=mu,
            rounds=memory.round,
            failed=self._failed,
        )

    async def _connect(
        self, session: aiohttp.ClientSession, machine: AgentMachine, saved: Saved
    ) -> None:
        require_current(self._keys / "cert.pem")  # the cloud would end the handshake wordlessly
        size = self._household.start.size
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                socket = await session.ws_connect(
                    self._url,
                    autoping=False,
                    max_msg_size=_HEAD + 32 * (size + 1) * (self._household.cloud.rows + 1),
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status == 403:
                raise RefusedError(Code.REVOKED, "the cloud refuses this certificate") from None
            self._unreachable(f"status {error.status}")
            return
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._unreachable(type(error).__name__)
            return
        self._failures = 0
        try:
            await self._talk(socket, machine, saved)
        except (aiohttp.ClientError, OSError) as error:
            note("connection lost", level=logging.WARNING, error=type(error).__name__)
        finally:
            machine.lost()
            await socket.close()

    def _unreachable(self, reason: str) -> None:
        self._failures += 1
        level = logging.WARNING if self._failures == 1 else logging.DEBUG
        note("cannot connect", level=level, error=reason, attempt=self._failures)

    async def _talk(
        self, socket: aiohttp.ClientWebSocketResponse, machine: AgentMachine, saved: Saved
    ) -> None:
        heartbeat = Heartbeat(socket, socket.close)
        watch = asyncio.create_task(heartbeat.watch())
        try:
            going = await self._perform(machine.connected(), socket, machine, saved)
            while going:
                message = await socket.receive()
                heartbeat.heard += 1
                if message.type is WSMsgType.BINARY:
                    actions = machine.receive(decode_from_cloud(message.data))
                    going = await self._perform(actions, socket, machine, saved)
                else:
                    going = await heartbeat.answer(message)
        except MalformedError:
            note("the cloud sent nonsense", level=logging.WARNING)
        finally:
            watch.cancel()

    async def _perform(
        self,
        actions: list[Action],
        socket: aiohttp.ClientWebSocketResponse,
        machine: AgentMachine,
        saved: Saved,
    ) -> bool:
        """Do what the machine asks for; False once the connection has served its purpose."""
        for action in actions:
            match action:
                case Think():
                    x, answer = self._think(action)
                    await self._drive(action.k, answer)
                    after = machine.stepped(x, answer)
                    return await self._perform(after, socket, machine, saved)
                case Save():
                    saved.write(action.memory)
                case Send():
                    await socket.send_bytes(encode(action.message))
                case Join():
                    self._join(action.welcome)
                    note("joined", agents=list(machine.agents[:16]), round=action.welcome.round)
                case Finish():
                    self._mu = action.mu
                    return False
                case Stop():
                    raise RefusedError(action.code, f"{action.detail} ({action.code})")
                case Hangup():
                    note("hung up", level=logging.WARNING, code=str(action.code))
                    return False
        return True

    def _think(self, action: Think) -> tuple[Array, Array]:
        assert self._step is not None  # noqa: S101  a round only follows a welcome
        assert self._fallback is not None  # noqa: S101  likewise
        x = self._step(action.k, action.x, action.mu, action.y)
        answer = self._step.averaged(action.k, action.answer, x)
        if np.isfinite(x).all():
            return x, answer
        # Stopping would stop the run, which tells something of the state. The device stays put.
        places = self._fallback.failed(x)
        level = logging.DEBUG if self._failed else logging.ERROR
        failed = [self._household.agents[place] for place in places[:16]]
        note("no step, sending a substitute", level=level, agents=failed, round=action.k)
        self._failed += places.size
        kept = self._fallback.kept(x, answer, action.answer)
        return self._fallback.state(x, action.x), kept

    async def _drive(self, k: int, answer: Array) -> None:
        if self._on_state is None:
            return
        try:
            pending = self._on_state(k, answer)
            if inspect.isawaitable(pending):
                await pending
        except Exception as error:
            # A device that refuses a setpoint must not stop the run, which would tell of it.
            note("on_state failed", level=logging.ERROR, error=type(error).__name__, round=k)

    def _join(self, welcome: Welcome) -> None:
        config = read_config(welcome.config)
        lower, upper = unpack(welcome.lower), unpack(welcome.upper)
        self._fallback = Fallback(self._household.sizes, lower, upper, config.promise)
        self._step = HomeStep.of_welcome(self._household, welcome)

    def _objection(self, text: str) -> str | None:
        try:
            config = read_config(text)
            algorithm_of(config.algorithm)
        except InputError as error:
            return str(error)
        if config.problem != self._household.cloud.fingerprint:
            return "the cloud runs another problem than this agent's problem.toml"
        if config.noise != "secure" and not self._allow_simulated:
            return "the cloud's noise is simulated, so nothing would be private"
        return None
