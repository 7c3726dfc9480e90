"""Runs that follow each other on one listener: agents stay connected, each run is a new one.

A run opens when it is due, or when an operator asks: its public data are read, it is certified and
planned, and whoever is connected takes part, if they are enough; the fallbacks of all others count
from round 1. It has a name, a charge and a fence of its own in the ledger. The journal of the
series holds the current or last run, and what the next one begins with.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import logging
import math
import time
import tomllib
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Final, final

import msgspec
from aiohttp import web
from msgspec.structs import replace

from sottovoce.algorithm.algorithm import GradientSteps
from sottovoce.algorithm.price_memory import PriceMemory
from sottovoce.errors import BudgetError, InputError, SottovoceError
from sottovoce.network import LINGER_SECONDS
from sottovoce.network.config import RunConfig, SeriesRun
from sottovoce.network.failures import DivergedError
from sottovoce.network.identity.tls import OPERATOR
from sottovoce.network.journal_place import utc
from sottovoce.network.observe.logs import note
from sottovoce.network.protocol.series_machine import SeriesMachine
from sottovoce.network.run_service import RunService
from sottovoce.network.runner import Outcome, Runner
from sottovoce.network.service import NAMED
from sottovoce.network.setup import check_halves, check_request
from sottovoce.network.store import CloudStore, RunLine, SeriesNote
from sottovoce.network.transport.limits import CONFIG_BYTES
from sottovoce.network.transport.server import Server, require_role
from sottovoce.privacy.charge import Charge
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.statement import series_promise
from sottovoce.problem.files.load import Public, replace_public
from sottovoce.problem.problem import CloudView

Planner = Callable[[Public], Awaitable[NoisePlan]]
"""Certifies and plans a run with these public numbers."""

KEPT_RUNS: Final = 100  # past runs that the journal remembers
SHOWN_RUNS: Final = 20
FARTHEST: Final = 100  # steps of the horizon after which prices are of no use any more
REQUEST_SECONDS: Final = 60.0  # a run that was asked for waits for its quorum this long
_POLL: Final = 0.05


@final
@dataclass(eq=False, repr=False)
class Series(RunService[int]):
    """A fleet and runs that follow each other; fields that are not named here are ``Cloud``'s.

    Args:
        cloud: the public problem, whose agents and sums stay the same.
        planner: certifies and plans each run, by its public numbers.
        name: of the series.
        public: the numbers that a run may replace: the table ``[public]`` of the problem.
        public_file: TOML or JSON with some of them, read when a run is due or asked for.
        every: seconds from one run to the next; without it runs are asked for only.
        first: when the first is due, seconds since 1970; by default when the series begins.
        runs: how many runs there are in all; by default no end.
        quorum: agents that must take part, or a share of all below 1.
        gather: seconds that a run waits for agents that are not connected.
        shift: steps by which the horizon moves on per run, where sums are a list.
    """

    cloud: CloudView
    planner: Planner
    _: KW_ONLY
    name: str
    public: Public = field(default_factory=dict)
    public_file: Path | None = None
    every: float | None = None
    first: float | None = None
    runs: int | None = None
    quorum: float = 1
    gather: float = 10.0
    shift: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(json.dumps(self.public)) > CONFIG_BYTES // 2:
            raise InputError(
                f"public must have at most {CONFIG_BYTES // 2:,} characters as JSON, which every "
                "agent is sent with every run"
            )
        if self.every is not None and not self.every > 0:
            raise InputError(f"every must be a time above 0, got {self.every} seconds")
        self._open_to(self.cloud.agents)
        self._lobby = SeriesMachine(self.cloud.agents)
        self._note: SeriesNote
        self._state, self._why = "starting", ""
        self._asked: Public | None = None  # the public numbers of a run that was asked for
        self._wake = asyncio.Event()
        self._planned: tuple[Public, NoisePlan] | None = None
        self._began = 0.0

    async def finished(self, *, linger: float = 0.0) -> int:
        """Wait for the end of the last run."""
        return await super().finished(linger=linger)

    def _result(self) -> int:
        """How many runs had an answer."""
        return self._note.answered

    async def _start(self) -> None:
        """Open the store, and listen; what it says is gone on with."""
        self._store = store = CloudStore(self.store, keep_states=self.keep_states)
        record = store.series()
        if record is None:
            if store.run.config:
                raise InputError(
                    f"store must be that of a series, got {store.name}, which is of one run: "
                    "choose another file"
                )
            record = SeriesNote(name=self.name, origin=uuid.uuid4().hex, created=time.time())
        self._note = record
        if record.running and store.run.status != "unanswered":
            self._lobby.interrupted = hashlib.sha256(store.run.config.encode()).digest()
        states = isinstance(self._steps, GradientSteps)
        numbers = self.cloud.size if states else self.cloud.sums.count
        runner = Runner(
            "series", {}, self._outcome, journal=store, refused=self._metrics.refused,
        )  # fmt: skip
        await self._listen(self._lobby, runner, numbers)
        self._supervisor.start("series", self._follow())

    def _add_to(self, server: Server) -> None:
        server.app.router.add_post("/runs", self._ask)

    async def _follow(self) -> None:
        """One run after the other, first the one that was interrupted."""
        if self._note.running:
            await self._go_on()
        while self.runs is None or self._note.number < self.runs:
            due, until = await self._next_due()
            numbers, self._asked = self._asked, None
            try:
                public = self._public_data(numbers)
                plan = await self._plan_for(public)
            except SottovoceError as error:
                self._skip(due, str(error))
                continue
            if sat_out := await self._gathered(plan, until):
                await self._open(plan, public, due, sat_out)
            else:
                self._skip(due, self._why)
        self._state = "over"
        self._outcome.end()
        await asyncio.Event().wait()

    async def _next_due(self) -> tuple[float, float]:
        """Wait for a run; return when it was due, and until when it waits for a quorum."""
        while True:
            now = time.time()
            if self._asked is not None:
                return now, now + REQUEST_SECONDS
            due = self._upcoming(now)
            if self.every is not None and due <= now:
                return due, max(due + self.every, now + _POLL)
            self._state = "waiting"
            self._wake.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), max(_POLL, min(1.0, due - now)))

    def _upcoming(self, now: float) -> float:
        """When the next run is due, or was if none has begun since; infinity without a schedule."""
        if self.every is None:
            return math.inf
        first = self._note.created if self.first is None else self.first
        latest = first + max(0, math.floor((now - first) / self.every)) * self.every
        return latest if latest > self._note.due else latest + self.every

    def _public_data(self, numbers: Public | None) -> Public:
        public = replace_public(self.public, read_public(self.public_file))
        return replace_public(public, numbers or {})

    async def _plan_for(self, public: Public) -> NoisePlan:
        """The plan of a run; with the same public numbers that of the run before."""
        self._state = "planning"
        if self._planned is None or self._planned[0] != public:
            plan = await self.planner(public)
            check_request(plan, self.rounds, self.straggler)
            check_halves(plan, helper=False, simulated=self.seed is not None)
            self._planned = public, plan
        return self._planned[1]

    async def _gathered(self, plan: NoisePlan, until: float) -> dict[str, list[int]] | None:
        """Wait for agents; return who sits out and why, None where too few are there in time."""
        self._state, begun = "gathering", time.time()
        quorum = self.quorum if self.quorum >= 1 else math.ceil(self.quorum * self._agents)
        while True:
            here, now = self._lobby.waiting, time.time()
            complete = self._lobby.settled and len(here) == self._agents
            if complete or now >= min(begun + self.gather, until):
                spent = self._spent(plan, here)
                taking_part = len(here) - len(spent)
                if taking_part >= quorum:
                    absent = sorted(set(range(1, self._agents + 1)) - here)
                    self._why = ""
                    return {"absent": absent, "budget": spent}
                self._why = f"{taking_part:,} agents can take part, and the quorum is {quorum:,}"
                if spent:
                    self._why += f"; the budgets of {len(spent):,} are spent"
            if now >= until:
                return None
            await asyncio.sleep(_POLL if now < begun + self.gather else 1.0)

    def _spent(self, plan: NoisePlan, here: set[int]) -> list[int]:
        """The agents among these whose budgets do not cover the run."""
        charges = self._charges(plan, here)
        if self.ledger is None or not charges:
            return []
        refused = self.ledger.unaffordable(charges.values())
        return [agent for agent, charge in charges.items() if charge.agent in refused]

    def _charges(self, plan: NoisePlan, agents: set[int]) -> dict[int, Charge]:
        return {i: charge for i, charge in enumerate(plan.charges(), 1) if i in agents}

    async def _open(
        self, plan: NoisePlan, public: Public, due: float, sat_out: dict[str, list[int]]
    ) -> None:
        """Begin a run durably, charge it, and ask agents for their part."""
        was, run_id = self._note, uuid.uuid4().hex
        number, warm = was.number + 1, self._warm(due)
        self._note = replace(
            was,
            number=number,
            due=due,
            running=True,
            public=dict(public),
            sat_out={reason: agents for reason, agents in sat_out.items() if agents},
            warm=warm,
        )
        config = self._config(plan, run_id, warm, self._series_run())
        self._store.open_run(run_id, config, self._note)
        await self._play(plan, config)

    async def _go_on(self) -> None:
        """Go on with the run that was interrupted, if it still is the same run."""
        record, store = self._note, self._store
        reason = store.run.reason
        if store.run.status != "unanswered":
            reason = "the service was started with another problem or promise"
            try:
                plan = await self._plan_for(record.public)
            except SottovoceError as error:
                reason = str(error)
            else:
                config = self._config(plan, store.run.run_id, record.warm, self._series_run())
                if config.text == store.run.config:
                    await self._play(plan, config)
                    return
        self._conclude("unanswered", reason)
        self._server.runner.on(self._lobby.give_up)

    def _series_run(self) -> SeriesRun:
        record = self._note
        return SeriesRun(
            name=self.name, origin=record.origin, number=record.number, public=record.public
        )

    async def _play(self, plan: NoisePlan, config: RunConfig) -> None:
        """Run the run that the store is bound to, to its end."""
        record = self._note
        again = self.runs is None or record.number < self.runs
        here = set(range(1, self._agents + 1)) - record.absent
        charges = list(self._charges(plan, here).values())
        self._state, self._began = "running", time.perf_counter()
        try:
            self._take_up(plan, config, charges, record.warm, absent=record.absent, again=again)
        except BudgetError as error:  # another run has spent from the same accounts meanwhile
            self._conclude("unanswered", str(error))
            self._server.runner.on(self._lobby.give_up)
            return
        assert self._machine is not None  # noqa: S101  the run was taken up
        self._server.runner, self._runner.server = self._runner, self._server
        self._metrics.start()
        note("run-opened", run=record.number, taking_part=len(here), absent=len(record.absent))
        self._runner.on(self._lobby.open, self._machine)
        self._runner.start()
        try:
            await self._ending.wait(linger=0.0 if again else LINGER_SECONDS)
        except DivergedError as error:
            self._conclude("unanswered", error.reason)
        else:
            self._conclude("done")
        finally:
            self._runner.stop()
            if self._fence is not None:
                self._fence.close()
                self._fence = None

    def _run_outcome(self, agents: int, absent: frozenset[int]) -> Outcome:
        self._ending = Outcome(sorted(set(range(1, agents + 1)) - absent))
        return self._ending

    def _warm(self, due: float) -> PriceMemory | None:
        """What the next run begins with: the prices of the last answer, moved with the horizon."""
        record = self._note
        if record.learnt is None:
            return None
        memory, (number, learnt_at) = record.learnt, record.learnt_at
        if memory.labels != tuple(self.cloud.sums.labels):
            return None  # the problem was changed since
        steps = record.number + 1 - number
        if self.every is not None:
            steps = max(0, round((due - learnt_at) / self.every))
        if not self.shift:
            return memory
        if steps > FARTHEST:
            return None
        for _ in range(steps):
            memory = memory.shifted(self.shift)
        return memory

    def _conclude(self, status: str, reason: str = "") -> None:
        """Remember how a run ended, and what was learnt; a failed one leaves nothing behind."""
        record, machine = self._note, self._machine
        if status == "unanswered":
            self._store.end("unanswered", reason)
        lost = status == "unanswered" and record.warm is not None
        learnt, learnt_at = (None if lost else record.learnt), record.learnt_at
        memory = self._rounds.price_memory(self.rounds) if status == "done" else None
        if memory is not None:
            learnt, learnt_at = memory, (record.number, record.due)
        line = RunLine(
            number=record.number,
            opened=utc(record.due),
            status=status,
            reason=reason,
            rounds=self._store.released,
            seconds=round(time.perf_counter() - self._began, 3) if self._began else 0.0,
            agents=self._agents - len(record.absent),
            sat_out={why: len(agents) for why, agents in record.sat_out.items()},
            confirmed=machine.confirmed if status == "done" and machine is not None else None,
        )
        self._remember(
            replace(
                record,
                running=False,
                learnt=learnt,
                learnt_at=learnt_at,
                answered=record.answered + (status == "done"),
            ),
            line,
        )
        note("run-ended", run=record.number, status=status, reason=reason)
        gc.collect()  # a run's machine, runner and noise refer to each other

    def _skip(self, due: float, reason: str) -> None:
        """A run that was due, or asked for, is not opened."""
        line = RunLine(
            number=self._note.number + 1, opened=utc(due), status="skipped", reason=reason
        )
        self._remember(replace(self._note, due=due), line)
        self._why = reason
        note("run-skipped", level=logging.WARNING, reason=reason)

    def _remember(self, record: SeriesNote, line: RunLine) -> None:
        self._note = replace(record, runs=(*record.runs, line)[-KEPT_RUNS:])
        self._store.keep_series(self._note)

    def _present(self) -> set[int]:
        return self._lobby.present

    def _series_facts(self) -> dict[str, Any]:
        record, now = self._note, time.time()
        out = [(agent, why) for why, agents in record.sat_out.items() for agent in agents]
        upcoming = self._upcoming(now)
        plan = None if self._planned is None else self._planned[1]
        return {
            "name": self.name,
            "state": self._state,
            "run": record.number,
            "answered": record.answered,
            "next": utc(upcoming) if math.isfinite(upcoming) else None,
            "next_seconds": max(0.0, upcoming - now) if math.isfinite(upcoming) else None,
            "why": self._why,
            "sat_out_count": len(out),
            "sat_out": [{"agent": agent, "why": why} for agent, why in sorted(out)[:NAMED]],
            "runs": [msgspec.to_builtins(line) for line in record.runs[-SHOWN_RUNS:]],
            "promise": [] if plan is None else series_promise(plan, self.every),
        }

    async def _ask(self, request: web.Request) -> web.Response:
        """Open a run: ``{"public": {...}}`` by an operator."""
        require_role(request, OPERATOR)
        try:
            body = await request.json() if request.can_read_body else {}
        except ValueError:
            return _refused(400, "malformed", "the body must be JSON")
        try:
            if not isinstance(body, dict) or body.keys() - {"public"}:
                raise InputError('the body must be {"public": {...}} or empty')
            self._public_data(numbers := body.get("public", {}))
        except InputError as error:
            return _refused(400, "bad-data", str(error))
        if self._asked is not None or self._state != "waiting":
            return _refused(409, "busy", f"the series is {self._state}")
        self._asked = numbers
        self._wake.set()
        return web.json_response({"series": self.name, "run": self._note.number + 1}, status=202)


def read_public(file: Path | None) -> Mapping[str, Any]:
    """Read the public numbers of a run from a TOML or JSON file."""
    if file is None:
        return {}
    try:
        text = file.read_text(encoding="utf-8")
        read: Any = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise InputError(f"public data must be readable, got {file}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"public data must be TOML, or JSON, got {file}: {error}") from None
    if not isinstance(read, dict):
        raise InputError(f"public data must map names to numbers, got {file}")
    return read


def _refused(status: int, code: str, reason: str) -> web.Response:
    return web.json_response({"code": code, "reason": reason}, status=status)
