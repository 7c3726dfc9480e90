"""An agent's side as a state machine: the client half, with a memory and steps of its own.

A gateway is one machine for all its agents: their states lie one after the other in x, and their
contributions are added up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, final

import numpy as np
from msgspec.structs import replace

from sottovoce.network.protocol.actions import (
    Action,
    Apply,
    Finish,
    LocalStep,
    Memory,
    Reconnect,
    Save,
    SendUp,
)
from sottovoce.network.protocol.client_machine import AGENT_TRANSITIONS, ClientMachine, ClientPhase
from sottovoce.network.protocol.codec import (
    LARGEST,
    NOTHING,
    SMALLEST,
    Floats,
    Integers,
    MalformedError,
    finite,
    known_floats,
    pack,
    pack_whole,
    unpack,
    unpack_whole,
)
from sottovoce.network.protocol.collected import few_gaps
from sottovoce.network.protocol.messages import (
    SESSION,
    Code,
    Contribution,
    Done,
    Gap,
    Masked,
    Round,
    State,
    Welcome,
)

if TYPE_CHECKING:
    from sottovoce.network.masks import Masker


class LocalSteps(Protocol):
    """The agents' own half of a run: a ``LocalRound``."""

    keeps: bool  # whether the run keeps constraints: then a fallback is applied from the start

    def begin(self, x: Floats) -> Floats:
        """Return where agents begin that would begin at x."""

    def contributions(self, x: Floats) -> Integers | None:
        """Return what states x contribute, None where states are sent."""

    def __call__(
        self,
        k: int,
        x: Floats,
        answer: Floats,
        price: Floats,
        y: Floats,
        /,
        *,
        proximal: Floats,
        since: int,
    ) -> LocalStep:
        """Take the step of round k."""


@final
class AgentMachine(ClientMachine):
    """What an agent, or a gateway, does with the cloud's messages.

    ``memory`` is where it left off, or its start; without a masker the cloud sees contributions.
    """

    def __init__(
        self,
        agents: tuple[int, ...],
        memory: Memory,
        check: Callable[[Welcome], str | None],
        steps: Callable[[Welcome], LocalSteps],
        masker: Masker | None = None,
    ) -> None:
        super().__init__(agents, check, b"" if masker is None else masker.key)
        self.memory = memory
        self._join, self._masker = steps, masker
        self._steps: LocalSteps
        self._welcome: Welcome

    @property
    def seen(self) -> tuple[bytes, int, bytes]:
        """The run that it takes part in, the last round, its receipt."""
        return self.memory.config, self.memory.round, self.memory.receipt

    def _welcomed(self, welcome: Welcome, config: bytes) -> list[Action]:
        memory = self.memory = replace(
            self.memory, config=config, missed=self._missed(welcome.spoke)
        )
        steps = self._steps = self._join(welcome)
        self._welcome = welcome
        # Multipliers of the paper's release are never negative.
        self._prices = finite(welcome.prices, 0.0 if welcome.states else -LARGEST)
        self._entries = finite(len(welcome.columns))
        lower, upper, x = (unpack(part) for part in (welcome.lower, welcome.upper, memory.x))
        # A state inside keeps its bytes, signed zeros too: the cloud compares them.
        clipped = np.where(x < lower, lower, np.where(x > upper, upper, x))
        first = steps.begin(clipped)
        # Before the first contribution the start moves into the agents' private sets.
        state = pack(clipped if memory.round or memory.sent else first)
        # A contribution that was sent is sent again as it was, whatever it would be now.
        sent = memory.sent or self._sent(memory.round + 1, state, steps.contributions(first))
        answer = memory.answer if memory.round else state
        self.memory = replace(memory, x=state, answer=answer, sent=sent)
        fallback: list[Action] = [Apply(k=memory.round, answer=first)] if steps.keeps else []
        actions = self._contribute() if welcome.round == memory.round + 1 else []
        return [*fallback, Save(memory=self.memory), *actions]

    def _objection(self, welcome: Welcome) -> str | None:
        """Refuse a description whose parts do not fit together, and runs that are objected to."""
        wrong = super()._objection(welcome)
        if wrong is not None:
            return wrong
        lower, upper, x = map(unpack, (welcome.lower, welcome.upper, self.memory.x))
        columns, sums, size = welcome.columns, welcome.sums, len(welcome.sums)
        if not lower.size == upper.size == x.size or len(columns) != len(welcome.rows):
            raise MalformedError("bounds must fit the state")
        if any(c >= x.size for c in columns) or any(r >= welcome.prices for r in welcome.rows):
            raise MalformedError("entries must lie within the state and the constraints")
        if sums != sorted(set(sums)) or any(o >= welcome.prices for o in sums):
            raise MalformedError("sums must increase, and each must have a price")
        least, most = unpack_whole(welcome.least), unpack_whole(welcome.most)
        if not (finite(size, SMALLEST).holds(welcome.grid) and least.size == most.size == size):
            raise MalformedError("every sum must have a grid and a range")
        return None

    def begin(self, start: Floats, runs: dict[str, int]) -> None:
        """Begin a run there, unless it goes on with one; ``runs`` as the memory has it."""
        if not self.memory.config:
            x = pack(start)
            self.memory = replace(self.memory, x=x, answer=x, runs=runs)

    def next_run(self) -> list[Action]:
        """Wait for the next run of the series, after a goodbye on the same connection."""
        self.memory = Memory(x=b"", answer=b"", runs=self.memory.runs)
        save: list[Action] = [Save(memory=self.memory)]
        if self.phase is not ClientPhase.DONE:
            return save  # it connects anew
        self.phase = AGENT_TRANSITIONS[self.phase, "again"]
        return [*save, *self._hello()]

    def _over(self) -> list[Action]:
        finish = Finish(price=NOTHING, confirmed=False, wait=0.0, again=True)
        return [*([finish] if self.memory.config else []), Reconnect(code=Code.OVER)]

    def _missed(self, spoke: int) -> tuple[Gap, ...]:
        """The gaps, with what was contributed up to round ``spoke`` beyond this memory.

        A memory holds what goes out for the round after its own, too, once it has joined.
        """
        memory, agents = self.memory, self.agents
        covered = memory.round + 1 if memory.config else 0
        if spoke <= covered:
            return memory.missed
        return few_gaps((*memory.missed, (agents[0], agents[-1], covered + 1, spoke)))

    def _round(self, message: Round) -> list[Action]:
        memory, k = self.memory, message.round
        known = (memory.x, memory.answer, message.price, message.y, memory.proximal)
        *now, proximal = map(known_floats, known)
        step = self._steps(k, *now, proximal=proximal, since=memory.round + 1)
        state = pack(step.x)
        self.memory = replace(
            memory,
            round=k,
            receipt=message.receipt,
            x=state,
            answer=pack(step.answer),
            proximal=pack(step.proximal),
            sent=self._sent(k + 1, state, step.values),
        )
        applied = Apply(k=k, answer=step.answer, failed=tuple(step.failed.tolist()))
        return [applied, Save(memory=self.memory), *self._contribute()]

    def _done(self, done: Done) -> list[Action]:
        price = unpack(done.price)
        confirmed = False if done.confirmed and self.memory.missed else done.confirmed
        return [Finish(price=price, confirmed=confirmed, wait=done.wait, again=done.again)]

    def _sent(self, k: int, state: bytes, values: Integers | None) -> bytes:
        """What goes out for round k; behind a mask it is made once, and repeated if need be."""
        if self._masker is not None:
            if values is None or k > self._welcome.rounds:
                return b""  # a state is never sent by an agent that masks
            return self._masker.mask(self.memory.config, k, values)
        if self._welcome.states or values is None:
            return state
        return pack_whole(values)

    def _contribute(self) -> list[Action]:
        """The agents' contribution to the next round; nothing after the last round."""
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
