"""An agent as a process: connects, takes its steps at home, comes back after whatever happens."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
import os
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, final

import aiohttp
from aiohttp import WSMsgType

from sottovoce.algorithm.algorithm import GradientSteps
from sottovoce.arguments import instance, path_of
from sottovoce.errors import InputError
from sottovoce.network.certified_keys import HelperKnown, knows_helper
from sottovoce.network.config import RunConfig, algorithm_of, read_config
from sottovoce.network.errors import RefusedError
from sottovoce.network.heartbeat import Heartbeat
from sottovoce.network.household import Household
from sottovoce.network.identity import is_cloud, require_current
from sottovoce.network.local_round import LocalRound, Stepped
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
    Integers,
    MalformedError,
    decode_from_cloud,
    encode,
    pack,
    unpack,
)
from sottovoce.network.protocol.messages import Code, Welcome
from sottovoce.network.saved import Saved
from sottovoce.network.tls import client_context
from sottovoce.privacy.trust import WORDS
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
        price: the answer's prices of all sums; of the stated constraints with the paper's release.
        rounds: the last round it saw.
        failed: agent-rounds of this process in which an agent's own code failed, so that something
            else was sent and the answer stayed as it was; see ``network.fallback``.
    """

    x: Array
    last_x: Array
    price: Array
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
        self._helper: HelperKnown | None = None
        self._failures = 0
        self._failed = 0
        self._round: LocalRound | None = None
        self._price: Array | None = None

    async def run(self) -> AgentResult:
        """Take part until the run is done.

        Raises:
            RefusedError: the cloud refuses this agent, or is not the cloud it used to be.
            DiskError: its state cannot be saved.
            BusyError: another process of this agent is running.
            ExpiredError: its certificate has ended.
        """
        context = client_context(self._keys)
        if knows_helper(self._keys):
            self._helper = HelperKnown(self._keys, self._household.agents)
        note("trust", words=WORDS["one" if self._helper is None else "split"])
        start = pack(self._household.start)
        sums = self._household.cloud.sums.count
        saved = Saved(self._path, Memory(x=start, answer=start), sums=sums)
        veil = None if self._helper is None else self._helper.veil
        machine = AgentMachine(self._household.agents, saved.memory, self._objection, veil)
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
        price = unpack(b"") if self._price is None else self._price
        memory = machine.memory
        return AgentResult(
            x=unpack(memory.answer),
            last_x=unpack(memory.x),
            price=price,
            rounds=memory.round,
            failed=self._failed,
        )

    async def _connect(
        self, session: aiohttp.ClientSession, machine: AgentMachine, saved: Saved
    ) -> None:
        require_current(self._keys / "cert.pem")  # the cloud would end the handshake wordlessly
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                socket = await session.ws_connect(
                    self._url,
                    autoping=False,
                    max_msg_size=self._frame_limit(),
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
        if self._helper is not None and not is_cloud(socket.get_extra_info("peercert")):
            await socket.close()
            raise RefusedError(
                Code.NOT_YOURS, "the other side must be a split cloud by its certificate"
            )
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
        queue = deque(actions)
        while queue:
            action = queue.popleft()
            match action:
                case Join():
                    values = self._join(action)
                    note("joined", agents=list(machine.agents[:16]), round=action.welcome.round)
                    queue.extend(machine.joined(values))
                case Think():
                    stepped = self._take_round(action)
                    if self._on_state is not None:
                        await self._drive(self._on_state, action.k, stepped.answer)
                    queue.extend(machine.stepped(stepped.x, stepped.answer, stepped.values))
                case Save():
                    saved.write(action.memory)
                case Send():
                    await socket.send_bytes(encode(action.message))
                case Finish():
                    self._price = action.price
                    return False
                case Stop():
                    raise RefusedError(action.code, f"{action.detail} ({action.code})")
                case Hangup():
                    note("hung up", level=logging.WARNING, code=str(action.code))
                    return False
        return True

    def _take_round(self, action: Think) -> Stepped:
        assert self._round is not None  # noqa: S101  a round only follows a welcome
        stepped = self._round(action.k, action.x, action.answer, action.price, action.y)
        if stepped.failed.size:
            level = logging.DEBUG if self._failed else logging.ERROR
            failed = [self._household.agents[place] for place in stepped.failed[:16]]
            note("no step, going on with a substitute", level=level, agents=failed, round=action.k)
            self._failed += stepped.failed.size
        return stepped

    async def _drive(self, on_state: OnState, k: int, answer: Array) -> None:
        try:
            pending = on_state(k, answer)
            if inspect.isawaitable(pending):
                await pending
        except Exception as error:
            # A device that refuses a setpoint must not stop the run, which would tell of it.
            note("on_state failed", level=logging.ERROR, error=type(error).__name__, round=k)

    def _join(self, action: Join) -> Integers | None:
        self._round = LocalRound(self._household, action.welcome)
        return self._round.contributions(action.x)

    def _objection(self, welcome: Welcome) -> str | None:
        try:
            config = read_config(welcome.config)
            algorithm = algorithm_of(config.algorithm)
        except InputError as error:
            return str(error)
        cloud = self._household.cloud
        if config.problem != cloud.fingerprint:
            return "the cloud runs another problem than this agent's problem.toml"
        if config.noise != "secure" and not self._allow_simulated:
            return "the cloud's noise is simulated, so nothing would be private"
        wrong = self._split_objection(config, welcome)
        if wrong is not None:
            return wrong
        states = isinstance(algorithm, GradientSteps)
        expected = (config.rounds, states, cloud.rows if states else cloud.sums.count)
        if (welcome.rounds, welcome.states, welcome.prices) != expected:
            return "the cloud contradicts the configuration of its run"
        return None

    def _split_objection(self, config: RunConfig, welcome: Welcome) -> str | None:
        """What is wrong with who adds the noise: an agent goes by its own keys in that."""
        split = config.promise.get("trust", "one") == "split"
        if self._helper is None:
            return "the run has a helper, and these keys know none" if split else None
        if not split or welcome.states:
            return "these keys ask for a helper, and the run has none: the cloud would see all"
        if not self._helper.pledged(hashlib.sha256(welcome.config.encode()).digest(), welcome):
            return "the helper has not signed what the cloud asks for"
        return None

    def _frame_limit(self) -> int:
        """What an honest cloud's largest message holds at most."""
        cloud, size = self._household.cloud, self._household.start.size
        return _HEAD + 64 * cloud.sums.count + 32 * (size + 1) * (cloud.rows + 1)
