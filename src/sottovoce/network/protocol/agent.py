"""An agent's side as a state machine: events in, actions out; no sockets, no clock, no objective.

    phase      event     next phase
    OFFLINE    connected GREETING    hello is sent
    GREETING   Welcome   WAITING     the run is the right one; send the state if it is wanted
    WAITING    Round     THINKING    the agent takes its step at home
    THINKING   stepped   WAITING     save, then send the new state
    WAITING    Done      DONE
    any        lost      OFFLINE     connect again, unless DONE or STOPPED
    any        lasting refusal, or a cloud that contradicts itself    STOPPED

A gateway is one machine for all its agents; their states lie one after the other in x.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from enum import IntEnum, auto
from typing import Any, Final, TypeAlias, final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from sottovoce.network.protocol.box import finite, nonnegative
from sottovoce.network.protocol.codec import Floats, MalformedError, pack, unpack
from sottovoce.network.protocol.messages import (
    LASTING,
    RECEIPT,
    VERSION,
    Code,
    Done,
    Error,
    FromAgent,
    FromCloud,
    Hello,
    Round,
    State,
    Welcome,
)


class Phase(IntEnum):
    """Where the agent is."""

    OFFLINE = auto()
    GREETING = auto()
    WAITING = auto()
    THINKING = auto()
    DONE = auto()
    STOPPED = auto()


class Memory(Struct, frozen=True, kw_only=True):
    """All that an agent must keep to go on after a restart.

    Attributes:
        config: SHA-256 of the configuration of the run it takes part in, empty before it joined.
        round: the last round it has seen, k.
        receipt: that round's receipt.
        x: x(k+1), as little-endian float64 bytes.
        answer: the answer so far, likewise: averaged states, or the last.
    """

    config: bytes = b""
    round: int = 0
    receipt: bytes = b""
    x: bytes
    answer: bytes


class Send(Struct, frozen=True, kw_only=True):
    """Send a message."""

    message: FromAgent


class Join(Struct, frozen=True, kw_only=True):
    """The cloud described the run: get ready for its steps."""

    welcome: Welcome


class Think(Struct, frozen=True, kw_only=True, eq=False):
    """Take the step of round k at home and answer with ``stepped``."""

    k: int
    x: Floats
    answer: Floats
    mu: Floats
    y: Floats


class Save(Struct, frozen=True, kw_only=True):
    """Keep this before anything else is sent."""

    memory: Memory


class Finish(Struct, frozen=True, kw_only=True, eq=False):
    """The run is over; mu is its answer."""

    mu: Floats


class Stop(Struct, frozen=True, kw_only=True):
    """Give up: trying again cannot help."""

    code: Code
    detail: str


class Hangup(Struct, frozen=True, kw_only=True):
    """End this connection and try again later."""

    code: str


Action: TypeAlias = Send | Join | Think | Save | Finish | Stop | Hangup


@final
class AgentMachine:
    """What an agent, or a gateway, does with what the cloud says.

    Args:
        agents: the agents' numbers, from 1, increasing.
        memory: where it left off, or its start.
        rows: the number of constraints m.
        check: looks at the configuration in a welcome and returns what is wrong with it, if
            anything.
    """

    def __init__(
        self,
        agents: tuple[int, ...],
        memory: Memory,
        rows: int,
        check: Callable[[str], str | None],
    ) -> None:
        self.agents = agents
        self.memory = memory
        self.phase = Phase.OFFLINE
        self._rows = rows
        self._check = check
        self._prices = nonnegative(rows)
        self._entries = finite(0)
        self._thinking: Round | None = None

    def connected(self) -> list[Action]:
        """A connection is open."""
        self.phase = Phase.GREETING
        memory = self.memory
        hello = Hello(
            version=VERSION,
            agents=list(self.agents),
            config=memory.config,
            round=memory.round,
            receipt=memory.receipt,
        )
        return [Send(message=hello)]

    def lost(self) -> None:
        """The connection is gone."""
        if self.phase not in (Phase.DONE, Phase.STOPPED):
            self.phase = Phase.OFFLINE

    def receive(self, message: FromCloud) -> list[Action]:
        """A message arrived."""
        handler = _HANDLERS.get((self.phase, type(message)))
        if handler is None:
            return [Hangup(code=Code.UNEXPECTED)]
        try:
            actions: list[Action] = handler(self, message)
        except MalformedError:
            return [Hangup(code=Code.MALFORMED)]
        return actions

    def stepped(self, x: Floats, answer: Floats) -> list[Action]:
        """The step of the round at hand gave x(k+1), and with it the answer so far."""
        if self.phase is not Phase.THINKING or self._thinking is None:
            return []
        message, self._thinking = self._thinking, None
        self.phase = Phase.WAITING
        self.memory = Memory(
            config=self.memory.config,
            round=message.round,
            receipt=message.receipt,
            x=pack(x),
            answer=pack(answer),
        )
        return [Save(memory=self.memory), self._state()]

    def _welcome(self, welcome: Welcome) -> list[Action]:
        memory = self.memory
        config = hashlib.sha256(welcome.config.encode()).digest()
        if welcome.version != VERSION:
            return self._stop(Code.VERSION, "the cloud speaks another version of the protocol")
        if memory.config not in (b"", config):
            return self._stop(Code.OTHER_RUN, "the saved state belongs to another run")
        wrong = self._check(welcome.config)
        if wrong is not None:
            return self._stop(Code.OTHER_RUN, wrong)
        if welcome.round <= memory.round:
            return self._stop(Code.HALTED, "the cloud has forgotten a round that it released")
        lower, upper, x = (unpack(part) for part in (welcome.lower, welcome.upper, memory.x))
        columns = welcome.columns
        if not lower.size == upper.size == x.size or len(columns) != len(welcome.rows):
            raise MalformedError("bounds must fit the state")
        if not nonnegative(len(columns)).holds(welcome.slopes):
            raise MalformedError("every entry must have a slope")
        if any(c >= x.size for c in columns) or any(r >= self._rows for r in welcome.rows):
            raise MalformedError("entries must lie within the state and the constraints")
        self.phase = Phase.WAITING
        self._entries = finite(len(columns))
        # Before round 1 nothing has been averaged yet, and the start moves into the bounds.
        # A state inside keeps its bytes, signed zeros too: the cloud compares them.
        kept = pack(np.where(x < lower, lower, np.where(x > upper, upper, x)))
        answer = memory.answer if memory.round else kept
        self.memory = replace(memory, config=config, x=kept, answer=answer)
        actions: list[Action] = [Join(welcome=welcome), Save(memory=self.memory)]
        if welcome.round == self.memory.round + 1:
            actions.append(self._state())
        return actions

    def _round(self, message: Round) -> list[Action]:
        memory = self.memory
        if message.round == memory.round and message.receipt != memory.receipt:
            return self._stop(Code.HALTED, "the cloud released two different rounds of one number")
        if message.round <= memory.round:
            return []
        whole = len(message.receipt) == RECEIPT
        if not (whole and self._prices.holds(message.mu) and self._entries.holds(message.y)):
            raise MalformedError("a round must hold finite numbers, as many as were announced")
        self.phase, self._thinking = Phase.THINKING, message
        x, mu, y = unpack(memory.x), unpack(message.mu), unpack(message.y)
        return [Think(k=message.round, x=x, answer=unpack(memory.answer), mu=mu, y=y)]

    def _done(self, done: Done) -> list[Action]:
        mu = unpack(done.mu)
        self.phase = Phase.DONE
        return [Finish(mu=mu)]

    def _error(self, error: Error) -> list[Action]:
        if error.code in LASTING:
            return self._stop(Code(error.code), "the cloud refused")
        if error.code in _PASSING:
            return []
        return [Hangup(code=error.code)]

    def _state(self) -> Send:
        return Send(message=State(round=self.memory.round + 1, x=self.memory.x))

    def _stop(self, code: Code, detail: str) -> list[Action]:
        self.phase = Phase.STOPPED
        return [Stop(code=code, detail=detail)]


_PASSING: Final = frozenset(
    {Code.CONFLICT, Code.LATE, Code.OLD_ROUND}
)  # a newer round is on its way

_HANDLERS: Final[dict[tuple[Phase, type], Any]] = {
    (Phase.GREETING, Welcome): AgentMachine._welcome,
    (Phase.GREETING, Error): AgentMachine._error,
    (Phase.WAITING, Round): AgentMachine._round,
    (Phase.WAITING, Done): AgentMachine._done,
    (Phase.WAITING, Error): AgentMachine._error,
}
