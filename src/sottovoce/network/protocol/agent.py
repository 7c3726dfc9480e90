"""An agent's side as a state machine: events in, actions out; no sockets, no clock, no objective.

    phase      event     next phase
    OFFLINE    connected GREETING    hello is sent
    GREETING   Welcome   JOINING     the run is the right one: what would the agent contribute?
    JOINING    joined    WAITING     save, then send it if it is wanted
    WAITING    Round     THINKING    the agent takes its step at home
    THINKING   stepped   WAITING     save, then send what comes of it
    WAITING    Done      DONE
    any        lost      OFFLINE     connect again, unless DONE or STOPPED
    any        lasting refusal, or a cloud that contradicts itself    STOPPED

A gateway is one machine for all its agents: their states lie one after the other in x, and their
contributions are added up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from enum import IntEnum, auto
from typing import Any, Final, Protocol, TypeAlias, final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from sottovoce.network.protocol.box import finite, nonnegative, positive
from sottovoce.network.protocol.codec import (
    Floats,
    Integers,
    MalformedError,
    pack,
    pack_whole,
    unpack,
    unpack_whole,
)
from sottovoce.network.protocol.gaps import few
from sottovoce.network.protocol.messages import (
    LASTING,
    RECEIPT,
    SESSION,
    VERSION,
    Code,
    Contribution,
    Done,
    Error,
    FromAgent,
    FromCloud,
    Gap,
    Hello,
    Masked,
    Round,
    State,
    Welcome,
)


class Phase(IntEnum):
    """Where the agent is."""

    OFFLINE = auto()
    GREETING = auto()
    JOINING = auto()
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
        sent: what goes to the cloud for round k+1, contributions or states as they travel, masked
            ones after their session; empty before the first welcome. Said twice, it is the same
            bytes.
        missed: gaps: rounds up to k that the answer lacks, because the state was lost or is an
            older copy.
    """

    config: bytes = b""
    round: int = 0
    receipt: bytes = b""
    x: bytes
    answer: bytes
    sent: bytes = b""
    missed: tuple[Gap, ...] = ()


class Send(Struct, frozen=True, kw_only=True):
    """Send a message."""

    message: FromAgent


class Join(Struct, frozen=True, kw_only=True, eq=False):
    """The cloud described the run: get ready for its steps, and answer with ``joined``.

    Attributes:
        welcome: its description.
        x: x(k+1), within the run's bounds.
    """

    welcome: Welcome
    x: Floats


class Think(Struct, frozen=True, kw_only=True, eq=False):
    """Take the step of round k at home and answer with ``stepped``.

    Attributes:
        k: the round.
        since: the first round in which x may have counted: k unless rounds were missed.
        x: x(k), or what it was last.
        answer: the answer so far.
        price: what the round says.
        y: likewise, of the paper's release.
    """

    k: int
    since: int
    x: Floats
    answer: Floats
    price: Floats
    y: Floats


class Save(Struct, frozen=True, kw_only=True):
    """Keep this before anything else is sent."""

    memory: Memory


class Finish(Struct, frozen=True, kw_only=True, eq=False):
    """The run is over.

    Attributes:
        price: the answer's.
        confirmed: whether the answer may be applied: it passed the test at the end, and the agent's
            own part of it has no gap. None where the run has no test.
        wait: seconds until everybody applies it.
    """

    price: Floats
    confirmed: bool | None
    wait: float


class Stop(Struct, frozen=True, kw_only=True):
    """Give up: trying again cannot help."""

    code: Code
    detail: str


class Hangup(Struct, frozen=True, kw_only=True):
    """End this connection and try again later."""

    code: str


class Cover(Protocol):
    """Hides contributions from the cloud, where a helper must exist.

    Attributes:
        key: by which the helper knows the agent.
    """

    key: bytes

    def cover(self, config: bytes, k: int, values: Integers) -> bytes:
        """Return a session and the masked contributions of round k, as they travel."""


Action: TypeAlias = Send | Join | Think | Save | Finish | Stop | Hangup

Handlers: TypeAlias = dict[tuple[Phase, type], Callable[[Any, Any], list[Any]]]
"""What a machine does, by its phase and the kind of message."""


def handled(table: Handlers, machine: Any, message: FromCloud) -> list[Any]:
    """What a machine does with a message of its phase's; any other ends the connection."""
    handler = table.get((machine.phase, type(message)))
    if handler is None:
        return [Hangup(code=Code.UNEXPECTED)]
    try:
        return handler(machine, message)
    except MalformedError:
        return [Hangup(code=Code.MALFORMED)]


@final
class AgentMachine:
    """What an agent, or a gateway, does with what the cloud says.

    Args:
        agents: the agents' numbers, from 1, increasing.
        memory: where it left off, or its start.
        check: looks at a welcome and returns what is wrong with the run, if anything.
        veil: masks what is contributed; None where the cloud is trusted with it.
    """

    def __init__(
        self,
        agents: tuple[int, ...],
        memory: Memory,
        check: Callable[[Welcome], str | None],
        veil: Cover | None = None,
    ) -> None:
        self.agents = agents
        self.memory = memory
        self.phase = Phase.OFFLINE
        self._check = check
        self._veil = veil
        self._welcome: Welcome | None = None
        self._prices = self._entries = finite(0)
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
            mask=b"" if self._veil is None else self._veil.key,
        )
        return [Send(message=hello)]

    def lost(self) -> None:
        """The connection is gone."""
        if self.phase not in (Phase.DONE, Phase.STOPPED):
            self.phase = Phase.OFFLINE

    def receive(self, message: FromCloud) -> list[Action]:
        """A message arrived."""
        return handled(_HANDLERS, self, message)

    def joined(self, values: Integers | None, x: Floats | None = None) -> list[Action]:
        """The agents would contribute these whole numbers, None where states are sent.

        What was already said of the round at hand is said again, whatever comes of it now.

        Args:
            values: their contributions.
            x: where they begin, if that is not x of the ``Join``.
        """
        welcome = self._welcome
        if self.phase is not Phase.JOINING or welcome is None:
            return []
        self.phase = Phase.WAITING
        memory = self.memory
        if x is not None and not (memory.round or memory.sent):
            memory = replace(memory, x=pack(x), answer=pack(x))
        sent = memory.sent or self._sent(memory.round + 1, memory.x, values)
        self.memory = replace(memory, sent=sent)
        actions: list[Action] = [Save(memory=self.memory)]
        return actions + (self._say() if welcome.round == memory.round + 1 else [])

    def stepped(self, x: Floats, answer: Floats, values: Integers | None) -> list[Action]:
        """The step of the round at hand gave x(k+1), the answer so far, and what to contribute."""
        if self.phase is not Phase.THINKING or self._thinking is None:
            return []
        message, self._thinking = self._thinking, None
        self.phase = Phase.WAITING
        state = pack(x)
        self.memory = replace(
            self.memory,
            round=message.round,
            receipt=message.receipt,
            x=state,
            answer=pack(answer),
            sent=self._sent(message.round + 1, state, values),
        )
        return [Save(memory=self.memory), *self._say()]

    def _welcomed(self, welcome: Welcome) -> list[Action]:
        memory = self.memory
        config = hashlib.sha256(welcome.config.encode()).digest()
        if welcome.version != VERSION:
            return self._stop(Code.VERSION, "the cloud speaks another version of the protocol")
        if memory.config not in (b"", config):
            return self._stop(Code.OTHER_RUN, "the saved state belongs to another run")
        lower, upper, x = (unpack(part) for part in (welcome.lower, welcome.upper, memory.x))
        _check_shape(welcome, lower, upper, x)
        wrong = self._check(welcome)
        if wrong is not None:
            return self._stop(Code.OTHER_RUN, wrong)
        if min(welcome.round, welcome.rounds + 1) <= memory.round:
            return self._stop(Code.HALTED, "the cloud has forgotten a round that it released")
        self.phase, self._welcome = Phase.JOINING, welcome
        self._prices = nonnegative(welcome.prices) if welcome.states else finite(welcome.prices)
        self._entries = finite(len(welcome.columns))
        # Before round 1 nothing has been averaged yet, and the start moves into the bounds.
        # A state inside keeps its bytes, signed zeros too: the cloud compares them.
        kept = np.where(x < lower, lower, np.where(x > upper, upper, x))
        answer = memory.answer if memory.round else pack(kept)
        missed = self._missed(welcome.spoke)
        self.memory = replace(memory, config=config, x=pack(kept), answer=answer, missed=missed)
        return [Join(welcome=welcome, x=kept)]

    def _missed(self, spoke: int) -> tuple[Gap, ...]:
        """The gaps, with what was said up to round ``spoke`` beyond this memory.

        A memory holds what goes out for the round after its own, too, once it has joined.
        """
        memory, agents = self.memory, self.agents
        covered = memory.round + 1 if memory.config else 0
        if spoke <= covered:
            return memory.missed
        return few((*memory.missed, (agents[0], agents[-1], covered + 1, spoke)))

    def _round(self, message: Round) -> list[Action]:
        memory = self.memory
        if message.round == memory.round and message.receipt != memory.receipt:
            return self._stop(Code.HALTED, "the cloud released two different rounds of one number")
        if message.round <= memory.round:
            return []
        whole = len(message.receipt) == RECEIPT
        if not (whole and self._prices.holds(message.price) and self._entries.holds(message.y)):
            raise MalformedError("a round must hold finite numbers, as many as were announced")
        self.phase, self._thinking = Phase.THINKING, message
        x, price, y = unpack(memory.x), unpack(message.price), unpack(message.y)
        answer, since = unpack(memory.answer), memory.round + 1
        return [Think(k=message.round, since=since, x=x, answer=answer, price=price, y=y)]

    def _done(self, done: Done) -> list[Action]:
        price = unpack(done.price)
        self.phase = Phase.DONE
        confirmed = False if done.confirmed and self.memory.missed else done.confirmed
        return [Finish(price=price, confirmed=confirmed, wait=done.wait)]

    def _error(self, error: Error) -> list[Action]:
        if error.code in LASTING:
            return self._stop(Code(error.code), "the cloud refused")
        if error.code in PASSING:
            return []
        return [Hangup(code=error.code)]

    def _sent(self, k: int, state: bytes, values: Integers | None) -> bytes:
        """What goes out for round k; behind a mask it is made once, and repeated if need be."""
        assert self._welcome is not None  # noqa: S101  joined() and stepped() follow a welcome
        if self._veil is not None:
            if values is None or k > self._welcome.rounds:
                return b""  # a state is never sent by an agent that masks
            return self._veil.cover(self.memory.config, k, values)
        if self._welcome.states or values is None:
            return state
        return pack_whole(values)

    def _say(self) -> list[Action]:
        """What the round at hand needs of the agents; nothing after the last round."""
        assert self._welcome is not None  # noqa: S101  likewise
        k, sent = self.memory.round + 1, self.memory.sent
        if k > self._welcome.rounds:
            return []
        if self._welcome.states:
            return [Send(message=State(round=k, x=sent))]
        missed = list(self.memory.missed)
        if self._veil is None:
            return [Send(message=Contribution(round=k, values=sent, missed=missed))]
        session, values = sent[:SESSION], sent[SESSION:]
        return [Send(message=Masked(round=k, session=session, values=values, missed=missed))]

    def _stop(self, code: Code, detail: str) -> list[Action]:
        self.phase = Phase.STOPPED
        return [Stop(code=code, detail=detail)]


def _check_shape(welcome: Welcome, lower: Floats, upper: Floats, x: Floats) -> None:
    """Refuse a description whose parts do not fit together."""
    columns, sums, size = welcome.columns, welcome.sums, len(welcome.sums)
    if not lower.size == upper.size == x.size or len(columns) != len(welcome.rows):
        raise MalformedError("bounds must fit the state")
    if any(c >= x.size for c in columns) or any(r >= welcome.prices for r in welcome.rows):
        raise MalformedError("entries must lie within the state and the constraints")
    if sums != sorted(set(sums)) or any(o >= welcome.prices for o in sums):
        raise MalformedError("sums must increase, and each must have a price")
    least, most = unpack_whole(welcome.least), unpack_whole(welcome.most)
    if not (positive(size).holds(welcome.grid) and least.size == most.size == size):
        raise MalformedError("every sum must have a grid and a range")


PASSING: Final = frozenset(
    {Code.CONFLICT, Code.LATE, Code.OLD_ROUND}
)  # a newer round is on its way

_HANDLERS: Final[Handlers] = {
    (Phase.GREETING, Welcome): AgentMachine._welcomed,
    (Phase.GREETING, Error): AgentMachine._error,
    (Phase.WAITING, Round): AgentMachine._round,
    (Phase.WAITING, Done): AgentMachine._done,
    (Phase.WAITING, Error): AgentMachine._error,
}
