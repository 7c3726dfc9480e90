"""The cloud as a process: WebSocket over mutual TLS, a durable store, and the state machine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Final, final

from sottovoce.algorithm.price_memory import PriceMemory
from sottovoce.arguments import websocket_address
from sottovoce.network.identity.tls import HELPER
from sottovoce.network.observe.logs import note
from sottovoce.network.protocol.cloud_machine import CloudMachine, CloudPhase
from sottovoce.network.protocol.codec import decode_from_helper, encode
from sottovoce.network.protocol.messages import HELPER_PROTOCOLS, FromHelper
from sottovoce.network.run_service import RunService
from sottovoce.network.runner import call_soon
from sottovoce.network.setup import check_halves, check_request
from sottovoce.network.store import CloudStore
from sottovoce.network.transport.client import Client
from sottovoce.network.transport.helper_link import LONGEST_PAUSE, HelperLink
from sottovoce.network.transport.limits import CONFIG_BYTES
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.trust import TRUST_STATEMENTS
from sottovoce.problem.groups import Array

_OVER: Final = (
    "agents that missed the end still learn it; a new run needs a new store, and its agents start "
    "without the state files of this one"
)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CloudResult:
    """How a run ended, without a single state: those stay with the agents."""

    price: Array  # of the sums, averaged or the last; multipliers with the paper's release
    rounds: int
    seconds: float  # how long this process took
    held: int  # agent-rounds of this process in which a fallback or last contribution counted
    refused: dict[str, int]  # by code, by this process; contributions clipped as well
    confirmed: bool | None = None  # whether the answer passed the test; None: the plan has none
    memory: PriceMemory | None = None  # for the warm start of another run


@final
@dataclass(eq=False, repr=False)
class Cloud(RunService[CloudResult]):
    """A cloud for one run of one plan.

    Args:
        plan: the noise, and with it the public problem.
        rounds: T, at most what the plan covers.
        keys: folder from ``identity.create_keys``.
        store: file of the run; an interrupted run goes on from it.
        listen: address and port; port 0 takes a free one.
        algorithm: ``DualAveraging()`` by default; for a plan with another release than sums, the
            algorithm that works with it.
        warm_start: the ``memory`` of an earlier run's result: prices and what its cloud learnt. It
            is public: never that of a simulation of private data. The same is needed to continue.
        straggler: what counts in a round for agents that miss its deadline: "fallback", their
            public fallback contribution, which is that of the point of their public boxes nearest
            0; "hold", their last contribution again, refused for a plan that hides a trajectory.
            With "wait" the run waits for every agent, without end.
        deadline: seconds that a round waits for agents, 10 by default. Who missed one, and is not
            connected, is not waited for.
        first_deadline: the same of the first round of this process, 60 by default; that of a new
            run counts from the first contribution on, and waits for it.
        ledger: accounts of the agents; the run is charged there before round 1, and every round
            is fenced there before it is sent.
        seed: simulate noise as ``simulate`` does with this seed; nothing is private then, and
            agents refuse unless they were started with ``allow_simulated``.
        keep_states: keep the contributions of every round in the store, for an audit.
        apply_after: seconds, up to 600, from the end until all agents apply a confirmed answer:
            long enough for all of them to learn of the end.
        stall: seconds without a round after which /healthz says that the run is stalled.
        new: begin a new run where the store is damaged or has lost rounds, and only there.
        helper: address of the other half, ``wss://host:port``, for a plan with
            ``trust=SplitCloud()``: then this cloud sees masked contributions only.
        health_listen: where /livez, /readyz and /metrics are served over plain HTTP.
    """

    plan: NoisePlan
    _: KW_ONLY
    warm_start: PriceMemory | None = None
    new: bool = False
    helper: str | None = None

    def __post_init__(self) -> None:
        plan = self.plan
        super().__post_init__()
        check_request(plan, self.rounds, self.straggler)
        check_halves(plan, helper=self.helper is not None, simulated=self.seed is not None)
        if self.helper is not None:
            websocket_address("helper", self.helper)
        self._open_to(plan.cloud.agents)
        self._began = 0.0
        self._machine: CloudMachine

    @property
    def round(self) -> int:
        """Rounds released so far."""
        return self._machine.round - 1

    async def _start(self) -> None:
        """Open the store, take the run's place in the ledger, and listen."""
        self._store = CloudStore(self.store, keep_states=self.keep_states, new=self.new)
        config, plan = self._config(self.plan, self._store.run.run_id, self.warm_start), self.plan
        self._store.pin(config)
        self._take_up(plan, config, plan.charges(), self.warm_start)
        machine = self._machine
        helper = None if self.helper is None else self._join_halves(self.helper)
        note("trust", statement=TRUST_STATEMENTS[plan.trust.kind])
        numbers = plan.cloud.size if machine.setup.states else machine.setup.prices
        await self._listen(machine, self._runner, numbers)
        self._began = time.perf_counter()
        self._runner.start()
        if helper is not None:
            self._supervisor.start("helper", helper())
        if machine.phase is CloudPhase.DONE:
            note("run-over", level=logging.WARNING, reason=_OVER)

    def _result(self) -> CloudResult:
        return CloudResult(
            price=self._machine.answer,
            rounds=self.rounds,
            seconds=time.perf_counter() - self._began,
            held=self._metrics.held,
            refused=dict(self._metrics.refused),
            confirmed=self._machine.confirmed,
            memory=self._rounds.price_memory(self.rounds),
        )

    def _join_halves(self, helper: str) -> Callable[[], Coroutine[Any, Any, None]]:
        """Have the helper asked, and a question that was asked before asked again.

        What is returned holds the connection to it.
        """
        machine, runner, cloud = self._machine, self._runner, self.plan.cloud
        receipt, parts = self._store.question(machine.round, machine.setup.party)
        client: Client[FromHelper] = Client(
            helper,
            self._folder,
            decode_from_helper,
            limit=CONFIG_BYTES + cloud.agents * (704 + 8 * cloud.sums.count),
            longest_pause=LONGEST_PAUSE,
            role=HELPER,
            protocol=HELPER_PROTOCOLS[0],
        )
        runner.link = link = HelperLink(
            machine.setup.config,
            lambda message: client.post(encode(message)),
            self._store.keep_question,
            call_soon,
            receipt,
        )
        link.answered, link.pledged = runner.answered, runner.pledged
        if parts is not None and machine.phase is CloudPhase.COLLECTING:
            runner.on(machine.remembered, parts)
        return partial(link.follow, client)
