"""An agent's side as a state machine: the client half, with a memory and steps of its own.

A gateway is one machine for all its agents: their states lie one after the other in x, and their
contributions are added up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, final

import numpy as np
from msgspec.structs import replace

from sottovoce.network.protocol.actions import Action, Finish, Join, Memory, Save, SendUp, Think
from sottovoce.network.protocol.client_machine import ClientMachine, ClientPhase
from sottovoce.network.protocol.codec import (
    NOTHING,
    Floats,
    Integers,
    MalformedError,
    finite,
    nonnegative,
    pack,
    pack_whole,
    positive,
    unpack,
    unpack_whole,
)
from sottovoce.network.protocol.collected import few_gaps
from sottovoce.network.protocol.messages import (
    SESSION,
    Contribution,
    Done,
    Gap,
    Masked,
    Round,
    State,
    Welcome,
)


class ContributionMasker(Protocol):
    """Hides contributions from the cloud, where a helper must exist.

    Attributes:
        key: by which the helper knows the agent.
    """

    key: bytes

    def mask(self, config: bytes, k: int, values: Integers) -> bytes:
        """Return a session and the masked contributions of round k, as they travel."""


@final
class AgentMachine(ClientMachine):
    """What an agent, or a gateway, does with what the cloud says.

    Args:
        agents: the agents' numbers, from 1, increasing.
        memory: where it left off, or its start.
        check: looks at a welcome and returns what is wrong with the run, if anything.
        masker: masks what is contributed; None where the cloud is trusted with it.
    """

    def __init__(
        self,
        agents: tuple[int, ...],
        memory: Memory,
        check: Callable[[Welcome], str | None],
        masker: ContributionMasker | None = None,
    ) -> None:
        super().__init__(agents, check, b"" if masker is None else masker.key)
        self.memory = memory
        self._masker = masker
        self._welcome: Welcome | None = None
        self._thinking: Round | None = None

    @property
    def seen(self) -> tuple[bytes, int, bytes]:
        """The run that it takes part in, the last round, its receipt."""
        return self.memory.config, self.memory.round, self.memory.receipt

    def joined(self, values: Integers | None, x: Floats | None = None) -> list[Action]:
        """The agents would contribute these integers, None where states are sent.

        What was already said of the round at hand is said again, whatever comes of it now.

        Args:
            values: their contributions.
            x: where they begin, if that is not x of the ``Join``.
        """
        welcome = self._welcome
        if self.phase is not ClientPhase.JOINING or welcome is None:
            return []
        self.phase = ClientPhase.WAITING
        memory = self.memory
        if x is not None and not (memory.round or memory.sent):
            memory = replace(memory, x=pack(x), answer=pack(x))
        sent = memory.sent or self._sent(memory.round + 1, memory.x, values)
        self.memory = replace(memory, sent=sent)
        actions: list[Action] = [Save(memory=self.memory)]
        return actions + (self._say() if welcome.round == memory.round + 1 else [])

    def stepped(
        self, x: Floats, answer: Floats, values: Integers | None, proximal: Floats = NOTHING
    ) -> list[Action]:
        """The step of the round at hand gave x(k+1), the answer so far, and what to contribute."""
        if self.phase is not ClientPhase.THINKING or self._thinking is None:
            return []
        message, self._thinking = self._thinking, None
        self.phase = ClientPhase.WAITING
        state = pack(x)
        self.memory = replace(
            self.memory,
            round=message.round,
            receipt=message.receipt,
            x=state,
            answer=pack(answer),
            proximal=pack(proximal),
            sent=self._sent(message.round + 1, state, values),
        )
        return [Save(memory=self.memory), *self._say()]

    def _welcomed(self, welcome: Welcome, config: bytes) -> list[Action]:
        memory = self.memory
        lower, upper, x = (unpack(part) for part in (welcome.lower, welcome.upper, memory.x))
        self.phase, self._welcome = ClientPhase.JOINING, welcome
        self._prices = nonnegative(welcome.prices) if welcome.states else finite(welcome.prices)
        self._entries = finite(len(welcome.columns))
        # Before round 1 nothing has been averaged yet, and the start moves into the bounds.
        # A state inside keeps its bytes, signed zeros too: the cloud compares them.
        kept = np.where(x < lower, lower, np.where(x > upper, upper, x))
        answer = memory.answer if memory.round else pack(kept)
        missed = self._missed(welcome.spoke)
        self.memory = replace(memory, config=config, x=pack(kept), answer=answer, missed=missed)
        return [Join(welcome=welcome, x=kept)]

    def _objection(self, welcome: Welcome) -> str | None:
        """Refuse a description whose parts do not fit together, and runs that are objected to."""
        lower, upper, x = map(unpack, (welcome.lower, welcome.upper, self.memory.x))
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
        return super()._objection(welcome)

    def _missed(self, spoke: int) -> tuple[Gap, ...]:
        """The gaps, with what was said up to round ``spoke`` beyond this memory.

        A memory holds what goes out for the round after its own, too, once it has joined.
        """
        memory, agents = self.memory, self.agents
        covered = memory.round + 1 if memory.config else 0
        if spoke <= covered:
            return memory.missed
        return few_gaps((*memory.missed, (agents[0], agents[-1], covered + 1, spoke)))

    def _round(self, message: Round) -> list[Action]:
        memory = self.memory
        self.phase, self._thinking = ClientPhase.THINKING, message
        x, answer, proximal = map(unpack, (memory.x, memory.answer, memory.proximal))
        price, y, since = unpack(message.price), unpack(message.y), memory.round + 1
        return [
            Think(
                k=message.round,
                since=since,
                x=x,
                answer=answer,
                proximal=proximal,
                price=price,
                y=y,
            )
        ]

    def _done(self, done: Done) -> list[Action]:
        price = unpack(done.price)
        self.phase = ClientPhase.DONE
        confirmed = False if done.confirmed and self.memory.missed else done.confirmed
        return [Finish(price=price, confirmed=confirmed, wait=done.wait)]

    def _sent(self, k: int, state: bytes, values: Integers | None) -> bytes:
        """What goes out for round k; behind a mask it is made once, and repeated if need be."""
        assert self._welcome is not None  # noqa: S101  joined() and stepped() follow a welcome
        if self._masker is not None:
            if values is None or k > self._welcome.rounds:
                return b""  # a state is never sent by an agent that masks
            return self._masker.mask(self.memory.config, k, values)
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
            return [SendUp(message=State(round=k, x=sent))]
        missed = list(self.memory.missed)
        if self._masker is None:
            return [SendUp(message=Contribution(round=k, values=sent, missed=missed))]
        session, values = sent[:SESSION], sent[SESSION:]
        return [SendUp(message=Masked(round=k, session=session, values=values, missed=missed))]
