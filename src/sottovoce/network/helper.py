"""The helper as a process: the half of a split cloud that knows the masks and sees no contribution.

It is asked by the cloud alone: once per round, for the sum of the masks of those who took part. Its
answer has noise of the full sigma and is on the disk before it is sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Final, final

from sottovoce.arguments import instance
from sottovoce.errors import InputError, PrivacyError
from sottovoce.network import LINGER_SECONDS
from sottovoce.network.config import RunConfig, algorithm_of, read_config
from sottovoce.network.helper_rounds import HelperRounds
from sottovoce.network.identity.tls import CLOUD
from sottovoce.network.journal import Journal
from sottovoce.network.masks import HelperKeys
from sottovoce.network.observe.logs import note
from sottovoce.network.protocol.actions import Action, AnswerRound
from sottovoce.network.protocol.cloud_machine import CloudPhase
from sottovoce.network.protocol.codec import decode_to_helper
from sottovoce.network.protocol.helper_machine import HelperMachine
from sottovoce.network.protocol.messages import HELPER_PROTOCOLS, Code
from sottovoce.network.round_arithmetic import noisy_sigma
from sottovoce.network.runner import Handlers, Runner, make_durable
from sottovoce.network.service import TICK_SECONDS, Service
from sottovoce.network.setup import make_config, round_key
from sottovoce.network.transport.limits import CONFIG_BYTES, Limits
from sottovoce.network.transport.server import Server
from sottovoce.privacy.ledger import Ledger
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.sampler import SecureSampler
from sottovoce.privacy.trust import SplitCloud

_EACH: Final = 64  # bytes of a question for each agent, at most


@final
@dataclass(eq=False, repr=False)
class Helper(Service[None]):
    """The helper of one run of one plan.

    Args:
        plan: made with ``trust=SplitCloud()``, the same as the cloud's.
        keys: the helper's folder from ``identity.create_keys(..., helper=...)``.
        store: file of its answers; an interrupted run goes on from it.
        listen: address and port; port 0 takes a free one.
        ledger: accounts of the agents, the helper's own: a cloud that lies cannot begin a run that
            they do not cover. Every answer is fenced there before it is sent.
        health_listen: where /livez, /readyz and /metrics are served over plain HTTP.
    """

    plan: NoisePlan
    _: KW_ONLY
    store: str | os.PathLike[str]
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
            raise PrivacyError(
                "plan must keep what it promises; an undernoised plan is for study only"
            )
        self._prepare()
        self._gone = 0.0
        self._answers: HelperRounds | None = None
        self._keys: HelperKeys
        self._store: Journal
        self._machine: HelperMachine
        self._sampler: SecureSampler

    @property
    def round(self) -> int:
        """Rounds answered so far."""
        return self._machine.done

    async def _start(self) -> None:
        # It holds sums of masks with noise, and hashes that name who took part: no contribution.
        self._store = store = Journal(self.store, "helper", keep=True)
        self._keys = HelperKeys.of_folder(self._folder)
        self._sampler = SecureSampler(noisy_sigma(self.plan))
        self._sampler.refill(releases=1)
        key = round_key(self._folder)
        self._machine = HelperMachine(self._runs, key, store.digest, store.last)
        handlers: Handlers = {AnswerRound: self._answer}
        refused = self._metrics.refused
        server = Server(
            self._authorization,
            self._machine,
            Runner("helper", handlers, self._outcome, journal=store, refused=refused),
            Limits(agents=1, numbers=_EACH * self.plan.cloud.agents // 8, head=CONFIG_BYTES),
            metrics=self._metrics,
            decode=decode_to_helper,
            role=CLOUD,
            protocols=HELPER_PROTOCOLS,
        )
        await self._serve(server, self.round + 1)

    def _result(self) -> None:
        """Nothing: a helper knows no answer."""

    def _runs(self, text: str) -> HelperRounds | Code:
        """Check a configuration against the helper's own plan, and bind the store to it."""
        if self._answers is not None:
            return self._answers if text == self._store.run.config else Code.OTHER_RUN
        config = self._expected(text)
        if config is None or self._store.run.config not in ("", text):
            return Code.OTHER_RUN
        answers = HelperRounds(self.plan, config, self._keys, self._sampler)
        self._charge(self.ledger, self.plan.charges(), config.run_id, "helper")
        if not self._store.run.config:
            self._store.bind(text)
        self._answers = answers
        return answers

    def _expected(self, text: str) -> RunConfig | None:
        """The configuration, if it is what this helper would have written itself."""
        try:
            read = read_config(text)
            rounds, algorithm = read.rounds, algorithm_of(read.algorithm)
            config = make_config(
                self.plan,
                algorithm,
                rounds=rounds,
                noise="secure",
                run_id=read.run_id,
                warm_start=read.warm_start,
            )
        except InputError:
            return None
        return config if 1 <= rounds <= self.plan.rounds and config.text == text else None

    def _answer(self, action: AnswerRound) -> list[Action]:
        assert self._answers is not None  # noqa: S101  nothing is asked before a run is opened
        answered = self._answers.answer(action)
        commit = partial(self._store.append, answered)
        make_durable(commit, self._fence, answered.k, answered.digest)
        self._metrics.round(held=0)
        asyncio.get_running_loop().call_soon(self._sampler.draw_ahead)
        note("answered", level=logging.DEBUG, round=answered.k)
        return self._machine.committed(answered)

    def _every_second(self) -> None:
        over = self._machine.phase is CloudPhase.DONE and not self._machine.peer
        self._gone = self._gone + TICK_SECONDS if over else 0.0
        if self._gone > LINGER_SECONDS:
            self._outcome.end()
