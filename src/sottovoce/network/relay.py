"""A relay as a process: adds up contributions from below, and sends the total to the cloud."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal, final

from sottovoce.arguments import instance, websocket_address
from sottovoce.errors import InputError
from sottovoce.network import RELAY_DEADLINE_SECONDS
from sottovoce.network.config import read_config, welcome_objection
from sottovoce.network.observe.logs import note
from sottovoce.network.protocol.actions import Commit, Finish, Listen, SendUp, Setup
from sottovoce.network.protocol.codec import decode_from_cloud, encode
from sottovoce.network.protocol.messages import Contribution, FromCloud, Welcome
from sottovoce.network.protocol.relay_machine import RelayMachine
from sottovoce.network.runner import Handlers, Runner
from sottovoce.network.service import Service
from sottovoce.network.setup import parties_below, round_deadlines
from sottovoce.network.transport.client import LONGEST_PAUSE, Client
from sottovoce.network.transport.limits import CONFIG_BYTES, Limits
from sottovoce.network.transport.server import Server
from sottovoce.problem.problem import CloudView


@final
@dataclass(eq=False, repr=False)
class Relay(Service[int]):
    """A gateway of agents, gateways and relays that connect to it as they would to the cloud.

    It sees what each connection below it contributes, as the cloud would, and the cloud sees their
    total only. It keeps nothing on disk.

    Args:
        cloud: the public problem.
        agents: the agents below, from 1, increasing; its certificate must speak for all of them.
        above: the address of the cloud, or of another relay, ``wss://host:port``.
        keys: folder with ca.pem, cert.pem and key.pem to connect with, server.pem and server.key to
            be connected to, and revoked.txt.
        listen: address and port; port 0 takes a free one.
        allow_simulated: take part in a run whose noise is simulated, hence not private.
        straggler: with "fallback" the public fallback contribution of agents that miss a deadline
            counts, as in the cloud; "wait" waits for all, while the cloud may do without the relay.
        deadline: seconds that a round waits for agents, 5 by default: less than the cloud's, so
            that the others below a relay count when one is missing.
        first_deadline: the same of the first round of this process, 30 by default.
        longest_pause: between attempts to reconnect, seconds.
        health_listen: where /livez, /readyz and /metrics are served over plain HTTP.
    """

    cloud: CloudView
    agents: Sequence[int]
    _: KW_ONLY
    above: str
    allow_simulated: bool = False
    straggler: Literal["fallback", "wait"] = "fallback"
    deadline: float | None = None
    first_deadline: float | None = None
    longest_pause: float = LONGEST_PAUSE

    def __post_init__(self) -> None:
        instance("cloud", self.cloud, CloudView, "problem.cloud")
        numbers = tuple(self.agents)
        if not numbers or list(numbers) != sorted(set(numbers)) or numbers[0] < 1:
            raise InputError("agents must be increasing numbers from 1, such as range(1, 251)")
        if numbers[-1] > self.cloud.agents:
            raise InputError(f"agents must be among 1..{self.cloud.agents}, got {numbers[-1]}")
        websocket_address("above", self.above)
        deadlines = round_deadlines(
            self.straggler,
            (self.first_deadline, self.deadline),
            RELAY_DEADLINE_SECONDS,
            ("fallback", "wait"),
        )
        self._machine = RelayMachine(
            numbers, self._objection, self._describe, straggler=self.straggler
        )
        self._prepare(numbers)
        handlers: Handlers = {
            SendUp: self._send_up,
            Commit: self._machine.contribute,
            Listen: self._open,
            Finish: self._finish,
        }
        self._runner = Runner(
            "relay",
            handlers,
            self._outcome,
            refused=self._metrics.refused,
            agents_of=lambda peer: self._machine.below.agents_of(peer),
        )
        self._runner.deadlines = deadlines
        self._runner.time_is_up = lambda k: self._machine.below.deadline(k)
        self._client: Client[FromCloud]

    async def _start(self) -> None:
        """Connect to the cloud; agents are listened to once it has described the run."""
        self._client = Client(
            self.above,
            self._folder,
            decode_from_cloud,
            limit=CONFIG_BYTES + 64 * self.cloud.sums.count + 32 * self.cloud.size,
            longest_pause=self.longest_pause,
        )
        self._supervisor.start("above", self._follow())

    def _result(self) -> int:
        """How many rounds the run had."""
        return self._machine.below.setup.rounds

    async def _follow(self) -> None:
        await self._runner.follow(self._client, self._machine)
        await asyncio.Event().wait()  # until all below have heard of the end

    async def _open(self, _: Listen) -> None:
        below = self._machine.below
        limits = Limits(agents=below.setup.agents, numbers=below.setup.prices)
        server = Server(self._authorization, below, self._runner, limits, metrics=self._metrics)
        await self._serve(server, below.round)

    def _send_up(self, action: SendUp) -> None:
        self._client.post(encode(action.message))
        if isinstance(action.message, Contribution):
            self._metrics.round(held=0)

    def _finish(self, _: Finish) -> None:
        self._outcome.end()
        note("done", rounds=self._machine.below.setup.rounds)

    def _every_second(self) -> None:
        self._attendance.update(self._machine.below.present)

    def _describe(self, welcome: Welcome) -> Setup:
        party, fallbacks = parties_below(welcome, self.cloud, self._machine.agents)
        return Setup(
            config=welcome.config,
            rounds=welcome.rounds,
            agents=self.cloud.agents,
            states=False,
            prices=welcome.prices,
            party=party,
            fallbacks=fallbacks,
        )

    def _objection(self, welcome: Welcome) -> str | None:
        if welcome.states:
            return "agents of this run send states, and a relay adds up contributions only"
        wrong = welcome_objection(welcome, self.cloud, allow_simulated=self.allow_simulated)
        if wrong is not None:
            return wrong
        config = read_config(welcome.config)
        if config.series is not None:
            return "a relay serves one run, and this is a series: connect agents to its cloud"
        masks = "the cloud is split: masked contributions go to it, and no other way"
        return masks if config.split else None
