"""The helper as a process: the half of a split cloud that knows the masks and sees no contribution.

It is asked by the cloud alone: once per round, for the sum of the masks of those who took part. Its
answer has noise of the full sigma and is on the disk before it is sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Final, final

from aiohttp import web

from sottovoce.arguments import instance
from sottovoce.errors import InputError, PrivacyError, SottovoceError
from sottovoce.network.config import RunConfig, algorithm_of, read_config
from sottovoce.network.defaults import LINGER_SECONDS
from sottovoce.network.helper_answers import Answers
from sottovoce.network.identity.authorization import Authorization
from sottovoce.network.identity.certificates import CLOUD
from sottovoce.network.identity.pledges import HelperKeys
from sottovoce.network.journal import Journal
from sottovoce.network.observe.logs import note
from sottovoce.network.observe.metrics import Metrics
from sottovoce.network.process import Supervisor
from sottovoce.network.protocol.actions import Action, AnswerRound, Close, Send
from sottovoce.network.protocol.cloud_machine import CloudPhase
from sottovoce.network.protocol.codec import MalformedError, decode_to_helper, encode
from sottovoce.network.protocol.helper_machine import HelperMachine
from sottovoce.network.protocol.messages import Code
from sottovoce.network.round_arithmetic import noisy_sigma
from sottovoce.network.runner import Outcome, Runner, close_files, make_durable
from sottovoce.network.setup import make_config, round_key
from sottovoce.network.transport.limits import Limits
from sottovoce.network.transport.listener import Connection, Listener, connection_of, require_role
from sottovoce.privacy.fence import Fence
from sottovoce.privacy.ledger import Ledger
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.sampler import SecureSampler
from sottovoce.privacy.trust import SplitCloud

TICK_SECONDS: Final = 1.0
_HEAD: Final = 1 << 16
_EACH: Final = 64
"""Bytes of a question for each agent, at most."""


@final
@dataclass(eq=False, repr=False)
class Helper:
    """The helper of one run of one plan.

    Args:
        plan: made with ``trust=SplitCloud()``, the same as the cloud's.
        keys: the helper's folder from ``identity.create_keys(..., helper=...)``.
        store: file of its answers; an interrupted run goes on from it.
        listen: address and port; port 0 takes a free one.
        ledger: accounts of the agents, the helper's own: a cloud that lies cannot begin a run that
            they do not cover. Every answer is fenced off there before it is sent.
    """

    plan: NoisePlan
    _: KW_ONLY
    keys: str | os.PathLike[str]
    store: str | os.PathLike[str]
    listen: tuple[str, int] = ("127.0.0.1", 0)
    ledger: Ledger | None = None

    def __post_init__(self) -> None:
        plan = self.plan
        instance("plan", plan, NoisePlan, "sv.plan(certificate, ...)")
        if not isinstance(plan.trust, SplitCloud):
            raise InputError(
                "plan must be made for a split cloud, got one for a trusted cloud, which has no "
                "helper: plan with trust=sv.SplitCloud()"
            )
        if not plan.certified:
            raise PrivacyError("plan must keep what it promises")
        self._fence: Fence | None = None
        self._metrics = Metrics()
        self._outcome = Outcome()
        self._supervisor = Supervisor(self._outcome.fail)
        self._marked = 0.0
        self._answers: Answers | None = None
        self._channel: Connection | None = None
        self._authorization: Authorization
        self._held: HelperKeys
        self._store: Journal
        self._machine: HelperMachine
        self._runner: Runner
        self._sampler: SecureSampler
        self._listener: Listener

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._listener.port

    @property
    def round(self) -> int:
        """Rounds answered so far."""
        return 0 if self._machine.last is None else self._machine.last.k

    async def run(self) -> None:
        """Serve until all rounds are answered and the cloud has been gone for a while.

        Raises:
            HaltedError: the store was rolled back.
            StoreError: the store is damaged or something else.
            DiskError: the store cannot be written now; start again to continue.
            BusyError: another helper has the store or the port.
            BudgetError: the ledger has no room for the run.
        """
        await self.start()
        try:
            await self._outcome.wait()
        finally:
            await self.stop()

    async def start(self) -> None:
        """Open the store and listen."""
        keys = Path(self.keys)
        self._authorization = Authorization(keys)
        self._held = HelperKeys.of_folder(keys)
        self._sampler = SecureSampler(noisy_sigma(self.plan))
        self._sampler.refill(releases=1)
        key = round_key(keys)
        # It holds sums of masks with noise, and hashes that name who took part: no contribution.
        self._store = store = Journal(self.store, "helper", keep=True)
        try:
            self._runner = Runner(
                "helper",
                {Send: self._send, Close: self._close, AnswerRound: self._answer},
                self._outcome,
                journal=self._store,
                refused=self._metrics.refused,
            )
            self._machine = HelperMachine(self._runs, key, store.digest, store.last)
            agents = self.plan.cloud.agents
            self._listener = Listener(
                self._authorization,
                Limits(agents=1, numbers=_EACH * agents // 8),
                metrics=self._metrics,
                idle=lambda: time.perf_counter() - self._marked > 1.0,
            )
            router = self._listener.app.router
            router.add_get("/", self._talk)
            router.add_get("/healthz", self._healthz)
            await self._listener.open(self.listen, self._supervisor)
        except BaseException:
            close_files(self._store, self._fence)
            raise
        self._supervisor.start("tick", self._tick())
        note("helper listening", port=self.port, round=self.round)

    async def stop(self) -> None:
        """Close every connection and give the store back."""
        try:
            await self._supervisor.stop()
            if self._channel is not None:
                self._channel.leave()
            await self._listener.close()
        finally:
            close_files(self._store, self._fence)

    def _runs(self, text: str) -> Answers | Code:
        """Check a configuration against the helper's own plan, and bind the store to it."""
        if self._answers is not None:
            return self._answers if text == self._store.config else Code.OTHER_RUN
        config = self._expected(text)
        if config is None or self._store.config not in ("", text):
            return Code.OTHER_RUN
        answers = Answers(self.plan, config, self._held, self._sampler)
        if self.ledger is not None:
            self._fence = self.ledger.begin(
                config.run_id,
                self.plan.charges(),
                rounds=self.round,
                digest=self._store.digest,
                note="sottovoce helper",
            )
        if not self._store.config:
            self._store.bind(text)
        self._answers = answers
        return answers

    def _expected(self, text: str) -> RunConfig | None:
        """The configuration, if it is what this helper would have written itself."""
        try:
            asked = read_config(text)
            mine = make_config(
                self.plan,
                algorithm_of(asked.algorithm),
                rounds=asked.rounds,
                noise="secure",
                run_id=asked.run_id,
            )
        except InputError:
            return None
        covered = isinstance(asked.rounds, int) and 1 <= asked.rounds <= self.plan.rounds
        return mine if covered and mine.text == text else None

    async def _talk(self, request: web.Request) -> web.StreamResponse:
        """Serve one connection of the cloud's to its end."""
        require_role(request, CLOUD)
        channel = connection_of(request)
        await channel.upgrade(request, limit=_HEAD + _EACH * self.plan.cloud.agents)
        older, self._channel = self._channel, channel
        if older is not None:
            older.leave()
        self._machine.connect()

        def hear(data: bytes) -> None:
            if self._channel is channel:  # on an older one it no longer counts
                self._runner.perform(self._heard(data))

        try:
            return await channel.serve(hear, lambda code: channel.leave())
        finally:
            if self._channel is channel:
                self._channel = None

    def _heard(self, data: bytes) -> list[Action]:
        try:
            return self._machine.receive(decode_to_helper(data))
        except MalformedError:
            return self._machine.malformed()
        except SottovoceError as error:
            self._outcome.fail(error)  # the ledger has no room, or the store cannot be bound
            return [Close(peer=0, code=Code.UNEXPECTED)]

    def _answer(self, action: AnswerRound) -> list[Action]:
        assert self._answers is not None  # noqa: S101  nothing is asked before a run is opened
        answered = self._answers.answer(action)
        commit = partial(self._store.append, answered)
        make_durable(commit, self._fence, answered.k, answered.digest)
        self._marked = time.perf_counter()
        asyncio.get_running_loop().call_soon(self._prepare)
        note("answered", level=logging.DEBUG, round=answered.k)
        return self._machine.committed(answered)

    def _prepare(self) -> None:
        """Have noise drawn for the answers to come: the next one's now, the others' beside."""
        self._sampler.refill(releases=1)
        self._sampler.refill_beside()

    def _send(self, action: Send) -> None:
        if self._channel is not None:
            self._channel.post(encode(action.message))

    def _close(self, _: Close) -> None:
        if self._channel is not None:
            self._channel.leave()

    async def _healthz(self, request: web.Request) -> web.Response:
        failure = self._outcome.failure
        troubles = [] if failure is None else [type(failure).__name__]
        page = {"healthy": not troubles, "troubles": troubles, "round": self.round}
        return web.json_response(page, status=503 if troubles else 200)

    async def _tick(self) -> None:
        """Every second: drop peers that are revoked, have expired, or take too long."""
        gone = 0.0
        while True:
            await asyncio.sleep(TICK_SECONDS)
            over = self._machine.phase is CloudPhase.DONE and self._channel is None
            gone = gone + TICK_SECONDS if over else 0.0
            if gone > LINGER_SECONDS:
                self._outcome.end()
            self._store.flush()
            self._listener.sweep()
