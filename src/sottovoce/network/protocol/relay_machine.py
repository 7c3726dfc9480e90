"""A relay as a state machine: a client of the cloud or relay above, a cloud to those below.

Above it says hello for all its agents, contributes their total, and hears rounds: the client half,
``client_machine``. Below a ``CloudMachine`` collects, clips and answers, with what has come from
above: the configuration, prices and receipts, to the byte. A relay has no noise, no key that signs
receipts, and no memory that outlives it: those below keep the receipts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import numpy as np

from sottovoce.network import Straggler
from sottovoce.network.protocol.actions import (
    Action,
    Commit,
    Finish,
    Listen,
    Record,
    SendUp,
    Setup,
)
from sottovoce.network.protocol.client_machine import ClientMachine, ClientPhase
from sottovoce.network.protocol.cloud_machine import RELAY_TRANSITIONS, CloudMachine
from sottovoce.network.protocol.codec import Floats, MalformedError, finite, pack_whole, unpack
from sottovoce.network.protocol.collected import ContributionTotals, agent_ranges, few_gaps
from sottovoce.network.protocol.messages import DIGEST, Contribution, Done, Round, Welcome
from sottovoce.network.protocol.receipt import PassedReceipts


@final
class RelayMachine(ClientMachine):
    """What a relay does with messages from above and below.

    ``describe`` turns a welcome into what the collecting side needs to know. For agents that miss a
    deadline their fallbacks count, with ``straggler``; to the cloud the round is a gap in their
    averages, so that its test accounts for it.
    """

    def __init__(
        self,
        agents: tuple[int, ...],
        check: Callable[[Welcome], str | None],
        describe: Callable[[Welcome], Setup],
        *,
        straggler: Straggler = "wait",
    ) -> None:
        super().__init__(agents, check)
        self._describe, self._straggler = describe, straggler
        self._below: CloudMachine | None = None
        self._receipts = PassedReceipts()
        self._full: Commit | None = None
        self._last: Round | None = None
        self._totals: ContributionTotals
        self._sums: list[int] = []

    @property
    def below(self) -> CloudMachine:
        """The collecting side; there is one from the first welcome on."""
        assert self._below is not None  # noqa: S101  the relay listens from then on
        return self._below

    @property
    def seen(self) -> tuple[bytes, int, bytes]:
        """The run that it takes part in, the last round that was passed on, its receipt."""
        config = b"" if self._below is None else self._below.setup.config_hash
        return config, self._receipts.round, self._receipts.last

    def contribute(self, full: Commit) -> list[Action]:
        """The round is full: the total of those below goes up, nothing is committed."""
        self._full = full
        return self._contributed()

    def _contributed(self) -> list[Action]:
        """The total of a full round, if it can be sent now."""
        full, fallbacks = self._full, self.below.setup.fallbacks
        if full is None or self.phase is not ClientPhase.WAITING:
            return []
        total, gaps = self._totals(full.parts), [gap for part in full.parts for gap in part.missed]
        if full.held and fallbacks is not None:
            total = total + fallbacks(full.held)
            gaps += [(*ends, full.k, full.k) for ends in agent_ranges(sorted(full.held))]
        values, missed = pack_whole(total[self._sums]), list(few_gaps(gaps))
        return [SendUp(message=Contribution(round=full.k, values=values, missed=missed))]

    def _welcomed(self, welcome: Welcome, config: bytes) -> list[Action]:
        first: list[Action] = []
        if self._below is None:
            self._below = CloudMachine(
                self._describe(welcome),
                self._receipts,
                self._receipts.history,
                awaited=frozenset(self.agents),
                straggler=self._straggler,
            )
            self._below.transitions = RELAY_TRANSITIONS
            self._totals = ContributionTotals(welcome.prices)
            self._sums, self._prices = welcome.sums, finite(welcome.prices)
            first = [Listen()]
        self.below.above_round, self.below.above_contributed = welcome.round, welcome.spoke
        return [*first, *self._contributed()]

    def _round(self, message: Round) -> list[Action]:
        if message.round < self.below.round:
            return []
        if message.round >= self.below.setup.rounds:
            self._last = message  # its answer comes with the goodbye
            return []
        return self._passed_on(message, np.zeros(self.below.setup.prices), None, 0.0)

    def _done(self, done: Done) -> list[Action]:
        actions: list[Action] = []
        if self._last is not None:
            actions = self._passed_on(self._last, unpack(done.price), done.confirmed, done.wait)
        elif self.below.round <= self.below.setup.rounds:
            raise MalformedError("a run ends with its last round")
        price = unpack(done.price)
        return [*actions, Finish(price=price, confirmed=done.confirmed, wait=done.wait)]

    def _passed_on(
        self, message: Round, answer: Floats, confirmed: bool | None, wait: float
    ) -> list[Action]:
        """Send a round on, also one that was completed without those below: held, or again."""
        full, price = self._full, unpack(message.price)
        self._full = None
        if full is None or full.k != message.round:
            missed = self.below.above_contributed < message.round
            full = Commit(k=message.round, parts=(), held=frozenset(self.agents if missed else ()))
        self._receipts.keep(message.round, message.receipt)
        record = Record(
            k=message.round,
            parts=full.parts,
            sent_price=price,
            price=price,
            answer=answer,
            released=np.zeros(0),
            y=np.zeros(0),
            digest=message.receipt[:DIGEST],
            held=full.held,
            confirmed=confirmed,
        )
        return self.below.committed(record, wait)
