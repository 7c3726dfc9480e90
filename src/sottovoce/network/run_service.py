"""What a cloud of one run and a series of runs share: a store, rounds, pages and what they show."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeVar

from sottovoce.algorithm.algorithm import Algorithm
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.algorithm.price_memory import PriceMemory
from sottovoce.network import DEADLINE_SECONDS, STALL_SECONDS, Straggler
from sottovoce.network.config import Noise, RunConfig, SeriesRun
from sottovoce.network.observe.live_page import Live
from sottovoce.network.observe.operator_pages import Facts, Pages
from sottovoce.network.protocol.actions import Record
from sottovoce.network.protocol.cloud_machine import CloudMachine, CloudPhase
from sottovoce.network.protocol.receipt import ReceiptSigner
from sottovoce.network.protocol.series_machine import SeriesMachine
from sottovoce.network.round_arithmetic import (
    Rounds,
    SimulatedSampler,
    deployed_sampler,
    noisy_sigma,
)
from sottovoce.network.runner import CloudRunner, Outcome, Runner
from sottovoce.network.service import Service
from sottovoce.network.setup import make_config, require_times, round_deadlines, round_key, setup_of
from sottovoce.network.store import CloudStore, check_store, resumed
from sottovoce.network.transport.limits import Limits
from sottovoce.network.transport.server import Server
from sottovoce.privacy.charge import Charge
from sottovoce.privacy.ledger import Ledger
from sottovoce.privacy.noise_plan import NoisePlan

Result = TypeVar("Result")


@dataclass(eq=False, repr=False)
class RunService(Service[Result]):
    """A service that adds up contributions and releases rounds; ``Cloud`` explains its fields."""

    _: KW_ONLY
    rounds: int
    store: str | os.PathLike[str]
    algorithm: Algorithm | None = None
    straggler: Straggler = "fallback"
    deadline: float | None = None
    first_deadline: float | None = None
    ledger: Ledger | None = None
    seed: int | None = None
    keep_states: bool = False
    apply_after: float = 0.0
    stall: float = STALL_SECONDS

    def __post_init__(self) -> None:
        self._deadlines = round_deadlines(
            self.straggler, (self.first_deadline, self.deadline), DEADLINE_SECONDS
        )
        require_times(apply_after=self.apply_after, stall=self.stall)
        self._plan: NoisePlan | None = None  # of the current or last run
        self._rounds: Rounds
        self._store: CloudStore
        self._machine: CloudMachine | None = None
        self._runner: CloudRunner
        self._live: Live
        self._pages: Pages

    def _open_to(self, agents: int) -> None:
        """Serve these agents, from 1."""
        self._prepare(range(1, agents + 1))
        self._agents = agents
        self._live = Live(self.ledger, self._facts)
        self._pages = Pages(self._folder, self._metrics, self._facts)

    async def stop(self) -> None:
        """Let the live pages learn how it ended, close every connection, give the store back."""
        try:
            if self._machine is not None:
                self._runner.stop()
            await self._live.close()
        finally:
            await super().stop()

    async def _listen(
        self, machine: CloudMachine | SeriesMachine, runner: Runner, numbers: int
    ) -> None:
        """Listen to agents, whose messages have so many numbers at most, and to operators."""
        limits = Limits(agents=self._agents, numbers=numbers)
        server = Server(self._authorization, machine, runner, limits, metrics=self._metrics)
        self._live.add_to(server)
        self._pages.add_to(server.app)
        self._add_to(server)
        await self._serve(server, 1 if self._machine is None else self._machine.round)
        self._metrics.registry.register(self._pages)
        self._supervisor.start("live", self._live.run())

    def _add_to(self, server: Server) -> None:
        """Add further pages to a server."""

    def _config(
        self,
        plan: NoisePlan,
        run_id: str,
        warm: PriceMemory | None,
        series: SeriesRun | None = None,
    ) -> RunConfig:
        noise: Noise = "secure" if self.seed is None else "simulated"
        return make_config(
            plan,
            self._steps,
            rounds=self.rounds,
            noise=noise,
            run_id=run_id,
            warm_start=None if warm is None else warm.fingerprint,
            series=series,
        )

    @property
    def _steps(self) -> Algorithm:
        return DualAveraging() if self.algorithm is None else self.algorithm

    def _take_up(
        self,
        plan: NoisePlan,
        config: RunConfig,
        charges: Sequence[Charge],
        warm: PriceMemory | None,
        *,
        absent: frozenset[int] = frozenset(),
        again: bool = False,
    ) -> None:
        """Begin the run that the store is bound to, or go on with it, charged in the ledger.

        The ``absent`` take no part in it.
        """
        store = self._store
        setup = setup_of(plan, config, absent=absent, again=again)  # refuses before it is paid for
        rounds = self._prepared(plan, store.released, warm)
        check_store(plan, store)
        self._charge(self.ledger, charges, config.run_id, "cloud")
        last, silent = resumed(store, rounds, setup, secure=self.seed is None)
        receipts = ReceiptSigner(round_key(self._folder), config.hash)
        self._machine = machine = CloudMachine(
            setup, receipts, store.digest, last=last, straggler=self.straggler, silent=silent
        )
        self._runner = runner = CloudRunner(
            machine, rounds, store, self._run_outcome(setup.agents, absent),
            refused=self._metrics.refused,
        )  # fmt: skip
        runner.fence, runner.completed = self._fence, self._completed
        runner.deadlines, runner.apply_after = self._deadlines, self.apply_after
        self._plan, self._rounds = plan, rounds
        self._live.begin(plan, config, lambda: machine.last)

    def _run_outcome(self, agents: int, absent: frozenset[int]) -> Outcome:
        return self._outcome

    def _prepared(self, plan: NoisePlan, released: int, warm: PriceMemory | None) -> Rounds:
        """The rounds to come, with noise drawn ahead."""
        sampler = (
            deployed_sampler(plan)
            if self.seed is None
            else SimulatedSampler(noisy_sigma(plan), self.seed, done=released)
        )
        return Rounds(plan, self._steps, sampler, self.rounds, warm)

    def _completed(self, record: Record, last: tuple[int, ...]) -> None:
        self._attendance.completed(last)
        self._metrics.round(held=len(record.held))

    def _troubles(self) -> dict[str, str]:
        listens = self.opened.is_set()
        return self._facts().troubles if listens else super()._troubles()

    def _present(self) -> set[int]:
        """The agents that are connected, from 1."""
        return set() if self._machine is None else self._machine.present

    def _every_second(self) -> None:
        self._attendance.update(self._present())

    def _series_facts(self) -> dict[str, Any] | None:
        """What is shown of the series, where there is one."""
        return None

    def _facts(self) -> Facts:
        machine, plan, present = self._machine, self._plan, self._present()
        self._attendance.update(present)
        phase = CloudPhase.DONE if machine is None else machine.phase
        over = phase is CloudPhase.DONE or machine is None
        return Facts(
            run="" if machine is None else self._store.run.run_id,
            phase=phase.name.lower(),
            round=0 if machine is None else machine.round - 1,
            rounds=self.rounds,
            connected=len(present),
            agents=self._agents,
            price=() if machine is None else tuple(machine.answer.tolist()),
            gdp_mu=0.0 if plan is None else float(plan.gdp_mu.max()),
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
            series=self._series_facts(),
        )
