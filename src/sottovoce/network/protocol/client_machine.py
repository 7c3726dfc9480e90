"""The client half of agents and relays as a state machine: what both do with what is above them."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import IntEnum, auto
from typing import Final

from sottovoce.network.protocol.actions import Action, Reconnect, SendUp, Stop
from sottovoce.network.protocol.codec import MalformedError, finite
from sottovoce.network.protocol.messages import (
    LASTING,
    RECEIPT,
    Code,
    Done,
    Error,
    FromCloud,
    Hello,
    Round,
    Welcome,
)


class ClientPhase(IntEnum):
    """Where an agent or a relay is."""

    OFFLINE = auto()
    GREETING = auto()
    WAITING = auto()
    DONE = auto()
    STOPPED = auto()


CONVERSING: Final = (ClientPhase.GREETING, ClientPhase.WAITING)
"""Phases in which more is to be heard on a connection."""

TRANSITIONS: Final = {
    (ClientPhase.OFFLINE, "connected"): ClientPhase.GREETING,  # hello is sent
    (ClientPhase.GREETING, "welcome"): ClientPhase.WAITING,  # save, then send what is contributed
    (ClientPhase.GREETING, "error"): ClientPhase.GREETING,  # for now: connect again later
    (ClientPhase.GREETING, "stop"): ClientPhase.STOPPED,  # a lasting refusal, or a contradiction
    (ClientPhase.WAITING, "round"): ClientPhase.WAITING,  # step, save, send; a relay passes it on
    (ClientPhase.WAITING, "done"): ClientPhase.DONE,
    (ClientPhase.WAITING, "error"): ClientPhase.WAITING,
    (ClientPhase.WAITING, "stop"): ClientPhase.STOPPED,
    (ClientPhase.DONE, "lost"): ClientPhase.DONE,
} | {
    (phase, "lost"): ClientPhase.OFFLINE  # connect again
    for phase in (ClientPhase.OFFLINE, ClientPhase.GREETING, ClientPhase.WAITING)
}
"""What follows which message or event; another message ends the connection."""

AGENT_TRANSITIONS: Final = TRANSITIONS | {(ClientPhase.DONE, "again"): ClientPhase.GREETING}
"""In a series an agent says hello anew after the end of a run; a relay serves one run."""

PASSING: Final = frozenset({Code.CONFLICT, Code.LATE, Code.OLD_ROUND})
"""Refusals after which a newer round is on its way."""


class ClientMachine(ABC):
    """Says hello, checks what a cloud describes and releases, and stops if it contradicts itself.

    ``check`` looks at a welcome and returns what is wrong with the run, if anything; ``mask`` is
    the key for masks, where the run has a helper.
    """

    def __init__(
        self, agents: tuple[int, ...], check: Callable[[Welcome], str | None], mask: bytes = b""
    ) -> None:
        self.agents = agents
        self.phase = ClientPhase.OFFLINE
        self._check = check
        self._mask = mask
        self._prices = self._entries = finite(0)

    @property
    @abstractmethod
    def seen(self) -> tuple[bytes, int, bytes]:
        """The run that it takes part in (its hash, empty for none), the last round, its receipt."""

    @abstractmethod
    def _welcomed(self, welcome: Welcome, config: bytes) -> list[Action]:
        """Take part in the run that was described, whose configuration has this hash."""

    @abstractmethod
    def _round(self, message: Round) -> list[Action]:
        """Go on with a round that is new, and whole."""

    @abstractmethod
    def _done(self, done: Done) -> list[Action]:
        """The run is over."""

    def connected(self) -> list[Action]:
        """A connection is open."""
        self._move("connected")
        return self._hello()

    def _hello(self) -> list[Action]:
        config, k, receipt = self.seen
        agents, mask = list(self.agents), self._mask
        hello = Hello(agents=agents, config=config, round=k, receipt=receipt, mask=mask)
        return [SendUp(message=hello)]

    def lost(self) -> None:
        """The connection is gone."""
        self._move("lost")

    def hear(self, message: FromCloud) -> list[Action]:
        """A message came from above."""
        before = self.phase
        after = TRANSITIONS.get((before, str(message.__struct_config__.tag)))
        if after is None:
            return [Reconnect(code=Code.UNEXPECTED)]
        self.phase = after
        try:
            if isinstance(message, Round):
                return self._check_round(message)
            if isinstance(message, Welcome):
                return self._greeted(message)
            return self._done(message) if isinstance(message, Done) else self._refused(message)
        except MalformedError:
            self.phase = before
            return [Reconnect(code=Code.MALFORMED)]

    def _move(self, event: str) -> None:
        self.phase = TRANSITIONS[self.phase, event]

    def _greeted(self, welcome: Welcome) -> list[Action]:
        previous, k, _ = self.seen
        config = hashlib.sha256(welcome.config.encode()).digest()
        if previous not in (b"", config):
            return self._stop(Code.OTHER_RUN, "the cloud is about another run than before")
        wrong = self._objection(welcome)
        if wrong is not None:
            return self._stop(Code.OTHER_RUN, wrong)
        if min(welcome.round, welcome.rounds + 1) <= k:
            return self._stop(Code.HALTED, "the cloud has forgotten a round that it released")
        return self._welcomed(welcome, config)

    def _objection(self, welcome: Welcome) -> str | None:
        return self._check(welcome)

    def _check_round(self, message: Round) -> list[Action]:
        _, k, receipt = self.seen
        if message.round == k and message.receipt != receipt:
            return self._stop(Code.HALTED, "the cloud released two different rounds of one number")
        if message.round <= k:
            return []
        complete = len(message.receipt) == RECEIPT and len(message.y) == self._entries.size
        entries = not message.y or self._entries.holds(message.y)
        if not (complete and entries and self._prices.holds(message.price)):
            raise MalformedError("a round must hold finite numbers, as many as were announced")
        return self._round(message)

    def _refused(self, error: Error) -> list[Action]:
        if error.code == Code.OVER:
            return self._over()
        if error.code in LASTING:
            return self._stop(Code(error.code), "the cloud refused")
        return [] if error.code in PASSING else [Reconnect(code=error.code)]

    def _over(self) -> list[Action]:
        """The run of a series has ended, and no answer of it is to come."""
        return self._stop(Code.OVER, "the run is over")

    def _stop(self, code: Code, detail: str) -> list[Action]:
        self._move("stop")
        return [Stop(code=code, detail=detail)]
