"""The cloud as a process: WebSocket over mutual TLS, a durable store, and the state machine."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Final, final

from sottovoce.algorithm.algorithm import Algorithm
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.algorithm.price_memory import PriceMemory
from sottovoce.arguments import websocket_address
from sottovoce.errors import InputError
from sottovoce.network import DEADLINE_SECONDS, STALL_SECONDS, Straggler
from sottovoce.network.config import Noise, RunConfig
from sottovoce.network.identity.tls import HELPER
from sottovoce.network.observe.live_page import Live
from sottovoce.network.observe.logs import note
from sottovoce.network.observe.operator_pages import Facts, Pages
from sottovoce.network.protocol.actions import Record
from sottovoce.network.protocol.cloud_machine import CloudMachine, CloudPhase
from sottovoce.network.protocol.codec import decode_from_helper, encode
from sottovoce.network.protocol.messages import HELPER_PROTOCOLS, LONGEST_WAIT, FromHelper
from sottovoce.network.protocol.receipt import ReceiptSigner
from sottovoce.network.round_arithmetic import (
    Rounds,
    SimulatedSampler,
    deployed_sampler,
    noisy_sigma,
)
from sottovoce.network.runner import CloudRunner, call_soon
from sottovoce.network.service import Service
from sottovoce.network.setup import (
    check_halves,
    check_request,
    make_config,
    round_deadlines,
    round_key,
    setup_of,
)
from sottovoce.network.store import CloudStore, check_store, resumed
from sottovoce.network.transport.client import Client
from sottovoce.network.transport.helper_link import LONGEST_PAUSE, HelperLink
from sottovoce.network.transport.limits import CONFIG_BYTES, Limits
from sottovoce.network.transport.server import Server
from sottovoce.privacy.ledger import Ledger
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.trust import TRUST_STATEMENTS
from sottovoce.problem.agents import Array

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
class Cloud(Service[CloudResult]):
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
    rounds: int
    keys: str | os.PathLike[str]
    store: str | os.PathLike[str]
    listen: tuple[str, int] = ("127.0.0.1", 0)
    algorithm: Algorithm | None = None
    warm_start: PriceMemory | None = None
    straggler: Straggler = "fallback"
    deadline: float | None = None
    first_deadline: float | None = None
    ledger: Ledger | None = None
    seed: int | None = None
    keep_states: bool = False
    apply_after: float = 0.0
    stall: float = STALL_SECONDS
    new: bool = False
    helper: str | None = None
    health_listen: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        plan = self.plan
        self._deadlines = round_deadlines(
            self.straggler, (self.first_deadline, self.deadline), DEADLINE_SECONDS
        )
        check_request(plan, self.rounds, self.straggler)
        if not 0.0 <= self.apply_after <= LONGEST_WAIT:  # NaN is refused, too
            raise InputError(
                f"apply_after must be 0 to {LONGEST_WAIT:.0f} seconds, got "
                f"apply_after={self.apply_after}"
            )
        check_halves(plan, helper=self.helper is not None, simulated=self.seed is not None)
        if self.helper is not None:
            websocket_address("helper", self.helper)
        if not self.stall > 0:
            raise InputError(f"stall must be a positive number of seconds, got {self.stall}")
        super().__init__(range(1, plan.cloud.agents + 1))
        self._began = 0.0
        self._rounds: Rounds
        self._store: CloudStore
        self._machine: CloudMachine
        self._runner: CloudRunner
        self._live: Live
        self._pages: Pages

    @property
    def round(self) -> int:
        """Rounds released so far."""
        return self._machine.round - 1

    @property
    def viewers(self) -> int:
        """How many live pages are open."""
        return self._live.viewers

    async def _start(self) -> None:
        """Open the store, take the run's place in the ledger, and listen."""
        self._store = CloudStore(self.store, keep_states=self.keep_states, new=self.new)
        config = self._resume()
        machine, setup = self._machine, self._machine.setup
        numbers = self.plan.cloud.size if setup.states else setup.prices
        server = Server(
            self._authorization,
            machine,
            self._runner,
            Limits(agents=setup.agents, numbers=numbers),
            metrics=self._metrics,
        )
        helper = None if self.helper is None else self._join_halves(self.helper)
        self._live = Live(
            self._metrics, self.plan, config, self.ledger, lambda: machine.last, self._facts
        )
        self._live.add_to(server)
        self._pages = Pages(self._folder, self._metrics, self._facts)
        self._pages.add_to(server.app)
        note("trust", words=TRUST_STATEMENTS[self.plan.trust.kind])
        await self._serve(server, machine.round)
        self._began = time.perf_counter()
        self._runner.start()
        if helper is not None:
            self._supervisor.start("helper", helper())
        self._supervisor.start("live", self._live.run())
        if machine.phase is CloudPhase.DONE:
            note("run-over", level=logging.WARNING, words=_OVER)

    def _result(self) -> CloudResult:
        return CloudResult(
            price=self._machine.answer,
            rounds=self.rounds,
            seconds=time.perf_counter() - self._began,
            held=self._metrics.held,
            refused=dict(self._metrics.refused),
            confirmed=self._machine.confirmed,
            memory=self._rounds.memory(self.rounds),
        )

    async def stop(self) -> None:
        """Tell the live pages how it ended, close every connection and give the store back."""
        try:
            self._runner.stop()
            await self._live.close()
        finally:
            await super().stop()

    def _resume(self) -> RunConfig:
        """Continue the run in the store, or begin one; return its configuration."""
        store, plan, seed = self._store, self.plan, self.seed
        algorithm = DualAveraging() if self.algorithm is None else self.algorithm
        noise: Noise = "secure" if seed is None else "simulated"
        run_id = store.run.run_id
        warm = self.warm_start
        config = make_config(
            plan,
            algorithm,
            rounds=self.rounds,
            noise=noise,
            run_id=run_id,
            warm_start=None if warm is None else warm.fingerprint,
        )
        setup = setup_of(plan, config)  # refuses what cannot be carried out, before it is paid for
        store.pin(config)
        check_store(plan, store)
        self._charge(self.ledger, plan, run_id, "cloud")
        if seed is None:
            sampler = deployed_sampler(plan)
        else:
            sampler = SimulatedSampler(noisy_sigma(plan), seed, done=store.released)
        self._rounds = rounds = Rounds(plan, algorithm, sampler, self.rounds, warm)
        last, silent = resumed(store, rounds, setup, secure=seed is None)
        receipts = ReceiptSigner(round_key(self._folder), config.hash)
        self._machine = machine = CloudMachine(
            setup, receipts, store.digest, last=last, straggler=self.straggler, silent=silent
        )
        self._runner = runner = CloudRunner(
            machine, rounds, store, self._outcome, refused=self._metrics.refused
        )
        runner.fence, runner.completed = self._fence, self._completed
        runner.deadlines, runner.apply_after = self._deadlines, self.apply_after
        return config

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

    def _completed(self, record: Record, last: tuple[int, ...]) -> None:
        self._attendance.completed(last)
        self._metrics.round(held=len(record.held))

    def _troubles(self) -> list[str]:
        if not self.opened.is_set():
            return super()._troubles()
        return [trouble["code"] for trouble in self._facts().troubles]

    def _prometheus(self) -> bytes:
        return self._pages.metrics() if self.opened.is_set() else super()._prometheus()

    def _every_second(self) -> None:
        self._attendance.update(self._machine)

    def _facts(self) -> Facts:
        machine = self._machine
        self._every_second()
        over = machine.phase is CloudPhase.DONE
        return Facts(
            run=self._store.run.run_id,
            phase=machine.phase.name.lower(),
            round=machine.round - 1,
            rounds=self.rounds,
            connected=len(machine.present),
            agents=self.plan.cloud.agents,
            price=tuple(machine.answer.tolist()),
            gdp_mu=float(self.plan.gdp_mu.max()),
            failed=self._outcome.failure is not None,
            unread_seconds=self._authorization.unread_seconds,
            seconds_since_round=0.0 if over else round(self._metrics.waited, 3),
            stall=self.stall,
            missing=self._attendance.missing,
            absent=self._attendance.absent(),
            last_to_answer=self._attendance.last_to_answer(),
            unreadable=self._authorization.unreadable,
            held=self._metrics.held,
            refused=dict(self._metrics.refused),
            turned_away=dict(self._metrics.turned_away),
        )
