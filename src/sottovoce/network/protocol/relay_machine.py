"""A relay as a state machine: a client of the cloud or relay above, a cloud to those below.

Above it says hello for all its agents, contributes their total, and hears rounds: the client half,
``client_machine``. Below it collects, clips and answers as ``cloud_machine`` does, and what it
answers with has come from above: the configuration, prices and receipts, to the byte. A relay has
no noise, no key that signs receipts, and no memory that outlives it: those below keep the receipts.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Final, final

import numpy as np

from sottovoce.network.protocol.actions import (
    Action,
    Commit,
    Finish,
    Record,
    SendUp,
    Setup,
)
from sottovoce.network.protocol.client_machine import ClientMachine, ClientPhase
from sottovoce.network.protocol.cloud_machine import CloudMachine
from sottovoce.network.protocol.codec import (
    Floats,
    MalformedError,
    finite,
    pack_whole,
    unpack,
)
from sottovoce.network.protocol.collected import ContributionTotals, few_gaps
from sottovoce.network.protocol.messages import (
    DIGEST,
    Code,
    Contribution,
    Done,
    FromAgent,
    Hello,
    Round,
    Welcome,
)

_ELSEWHERE: Final = b"a round that the relay no longer knows"


@final
class PassedReceipts:
    """Receipts as they came from above: the last is kept, older ones are believed.

    Whoever is below checks by its own receipt that no round is forgotten; the relay has no key to
    tell a genuine one by.
    """

    def __init__(self) -> None:
        self.round = 0
        self.last = b""

    def keep(self, k: int, receipt: bytes) -> None:
        """Round k has come from above."""
        self.round, self.last = k, receipt

    def receipt(self, k: int, digest: bytes) -> bytes:
        """Return the receipt of the last round."""
        if k != self.round or digest != self.last[:DIGEST]:
            raise ValueError("only the last round is passed on")
        return self.last

    def digest(self, k: int, receipt: bytes) -> bytes | None:
        """Return the digest that a receipt proves, None for another one of the last round."""
        if k != self.round:
            return _ELSEWHERE
        return receipt[:DIGEST] if receipt == self.last else None

    def history(self, k: int) -> bytes:
        """Return the digest of a round, as ``digest`` does."""
        return self.last[:DIGEST] if k == self.round else _ELSEWHERE


@final
class RelayMachine(ClientMachine):
    """What a relay does with what is said above and below; all its agents are waited for.

    ``describe`` turns a welcome into what the collecting side needs to know.
    """

    def __init__(
        self,
        agents: tuple[int, ...],
        check: Callable[[Welcome], str | None],
        describe: Callable[[Welcome], Setup],
    ) -> None:
        super().__init__(agents, check)
        self._describe = describe
        self._below: CloudMachine | None = None
        self._receipts = PassedReceipts()
        self._full: Commit | None = None
        self._last: Round | None = None
        self._totals: ContributionTotals
        self._sums: list[int] = []
        self._collecting = 1

    @property
    def below(self) -> CloudMachine:
        """The collecting side; there is one from the first welcome on."""
        assert self._below is not None  # noqa: S101  the relay listens from then on
        return self._below

    @property
    def joined(self) -> bool:
        """Whether a welcome has come."""
        return self._below is not None

    @property
    def seen(self) -> tuple[bytes, int, bytes]:
        """The run that it takes part in, the last round that was passed on, its receipt."""
        config = b"" if self._below is None else self._below.setup.config_hash
        return config, self._receipts.round, self._receipts.last

    def connect(self, peer: int, allowed: Container[int]) -> list[Action]:
        """Somebody below has connected, whose certificate speaks for ``allowed``."""
        return self.below.connect(peer, frozenset(a for a in self.agents if a in allowed))

    def disconnect(self, peer: int) -> None:
        """Somebody below is gone."""
        self.below.disconnect(peer)

    def agents_of(self, peer: int) -> tuple[int, ...]:
        """The agents on a connection below."""
        return self.below.agents_of(peer)

    def receive(self, peer: int, message: FromAgent) -> list[Action]:
        """A message came from below."""
        late = self.below.round < self._collecting
        if isinstance(message, Hello) and (late or message.round >= self.below.round):
            # The last round has not come down here yet. Who has seen it would take the relay for a
            # cloud that has forgotten rounds, who has not would not learn what it has missed. Later
            # it will be welcome, unless the cloud has forgotten rounds indeed.
            return self._answered(self.below.refuse(peer, Code.FUTURE_ROUND))
        return self._answered(self.below.receive(peer, message))

    def refuse(self, peer: int, code: Code) -> list[Action]:
        """A connection below must end."""
        return self._answered(self.below.refuse(peer, code))

    def _answered(self, actions: Sequence[Action]) -> list[Action]:
        """What the collecting side asks for; a full round goes up in place of being committed."""
        answers: list[Action] = []
        for action in actions:
            if isinstance(action, Commit):
                self._full = action
                answers += self._contributed()
            else:
                answers.append(action)
        return answers

    def _contributed(self) -> list[Action]:
        """The total of the round that everybody below has spoken in, if it can be said now."""
        full = self._full
        if full is None or self.phase is not ClientPhase.WAITING:
            return []
        values = self._totals(full.parts)[self._sums]
        missed = list(few_gaps(gap for part in full.parts for gap in part.missed))
        return [
            SendUp(message=Contribution(round=full.k, values=pack_whole(values), missed=missed))
        ]

    def _welcomed(self, welcome: Welcome, config: bytes) -> list[Action]:
        if self._below is None:
            receipts = self._receipts
            self._below = CloudMachine(
                self._describe(welcome),
                receipts,
                receipts.history,
                awaited=frozenset(self.agents),
            )
            self._totals = ContributionTotals(welcome.prices)
            self._sums, self._prices = welcome.sums, finite(welcome.prices)
        self._collecting, self.below.heard = welcome.round, welcome.spoke
        self.phase = ClientPhase.WAITING
        return self._contributed()

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
        self.phase = ClientPhase.DONE
        price = unpack(done.price)
        return [*actions, Finish(price=price, confirmed=done.confirmed, wait=done.wait)]

    def _passed_on(
        self, message: Round, answer: Floats, confirmed: bool | None, wait: float
    ) -> list[Action]:
        """Send a round on, also one that was completed without those below: held, or again."""
        full, price = self._full, unpack(message.price)
        self._full = None
        spoken = full is not None and full.k == message.round
        held = not spoken and self.below.heard < message.round
        self._receipts.keep(message.round, message.receipt)
        record = Record(
            k=message.round,
            parts=full.parts if full is not None and spoken else (),
            sent_price=price,
            price=price,
            answer=answer,
            released=np.zeros(0),
            y=np.zeros(0),
            digest=message.receipt[:DIGEST],
            held=frozenset(self.agents) if held else frozenset(),
            confirmed=confirmed,
        )
        return self._answered(self.below.committed(record, wait))
