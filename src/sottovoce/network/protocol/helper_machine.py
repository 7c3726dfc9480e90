"""The helper's side as a state machine: events in, actions out; no sockets, no keys, no noise.

    phase        event        next phase
    IDLE         opened       ANSWERING     a cloud is about the run that the helper is for
    ANSWERING    asked        COMMITTING    about the next round, by agents that are certified
    COMMITTING   committed    ANSWERING     the answer is durable: send it
    COMMITTING   finished     DONE          likewise, for the last round
    any          rolled_back  HALTED        the cloud proves that the store forgot an answer

A round is answered once. The same question about it gets the same bytes, any other is refused. One
connection counts at a time, the newest; whatever the table does not list closes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from enum import IntEnum, auto
from itertools import pairwise
from typing import Any, Final, TypeAlias, final

import msgspec

from sottovoce.network.protocol.actions import (
    Action,
    AnswerRecord,
    AnswerRound,
    Close,
    Halt,
    HelperSetup,
    Incident,
    MaskOwner,
    Participant,
    Send,
)
from sottovoce.network.protocol.messages import (
    HELPER_VERSION,
    Answer,
    Ask,
    Code,
    FromHelper,
    Introduce,
    Open,
    Opened,
    Pledged,
    Refusal,
    Taken,
    ToHelper,
)
from sottovoce.network.protocol.receipt import Notary


class HelperPhase(IntEnum):
    """Where the helper is."""

    IDLE = auto()
    ANSWERING = auto()
    COMMITTING = auto()
    DONE = auto()
    HALTED = auto()


TRANSITIONS: Final = {
    (HelperPhase.IDLE, "opened"): HelperPhase.ANSWERING,
    (HelperPhase.ANSWERING, "asked"): HelperPhase.COMMITTING,
    (HelperPhase.COMMITTING, "committed"): HelperPhase.ANSWERING,
    (HelperPhase.COMMITTING, "finished"): HelperPhase.DONE,
} | {(phase, "rolled_back"): HelperPhase.HALTED for phase in HelperPhase}


Runs: TypeAlias = Callable[[str], HelperSetup | Code]
"""What a run of this configuration needs, or why it is refused."""


@final
class HelperMachine:
    """What a helper does with what a cloud says.

    Args:
        runs: checks a configuration, and binds the helper to it.
        notary: of the answers' receipts, for a configuration's hash.
        last: the last answer when resuming.
    """

    def __init__(
        self,
        runs: Runs,
        notary: Callable[[bytes], Notary],
        last: AnswerRecord | None = None,
    ) -> None:
        self.phase = HelperPhase.IDLE
        self.last = last
        self._runs = runs
        self._notaries = notary
        self._open = False
        self._met: dict[int, MaskOwner] = {}
        self._setup: HelperSetup
        self._notary: Notary

    def connect(self) -> None:
        """A cloud has connected; what an older connection said no longer counts."""
        self._open = False
        self._met.clear()

    def receive(self, message: ToHelper) -> list[Action]:
        """A message arrived on the newest connection."""
        handler = _HANDLERS.get((self._open, type(message)))
        if self.phase is HelperPhase.HALTED:
            return self._refuse(Code.HALTED)
        if handler is None:
            return self._refuse(Code.UNEXPECTED)
        actions: list[Action] = handler(self, message)
        return actions

    def committed(self, answered: AnswerRecord) -> list[Action]:
        """The answer is durable: send it."""
        self._move("finished" if answered.k >= self._setup.rounds else "committed")
        self.last = answered
        return [self._answer(answered)]

    def malformed(self) -> list[Action]:
        """What arrived was no message."""
        return self._refuse(Code.MALFORMED)

    def _opened(self, message: Open) -> list[Action]:
        if message.version != HELPER_VERSION:
            return self._refuse(Code.VERSION)
        found = self._runs(message.config)
        if isinstance(found, Code):
            return self._refuse(found)
        if self.phase is HelperPhase.IDLE:
            self._move("opened")
            self._setup, self._notary = found, self._notaries(found.config_hash)
        self._open = True
        done = 0 if self.last is None else self.last.k
        if done >= self._setup.rounds:
            self.phase = HelperPhase.DONE
        return [_reply(Opened(version=HELPER_VERSION, round=done))]

    def _meet(self, message: Introduce) -> list[Action]:
        agents = tuple(message.agents)
        owner = MaskOwner(agents=agents, mask=message.mask)
        increasing = all(a < b for a, b in pairwise(agents))
        if not increasing or not self._setup.certified(owner):
            refused = Refusal(code=Code.NOT_YOURS, number=message.number)
            return [Incident(code=Code.NOT_YOURS, agents=agents, k=0), _reply(refused)]
        self._met[message.number] = owner
        pledge = self._setup.pledge(owner)
        return [_reply(Pledged(number=message.number, pledge=pledge))]

    def _ask(self, message: Ask) -> list[Action]:
        k, done = message.round, 0 if self.last is None else self.last.k
        taken = self._taken(message.taken, k)
        if taken is None:
            return self._refuse(Code.MALFORMED, k)
        wrong = self._history(k, done, message.receipt)
        if wrong is not None:
            return wrong
        question = _question(taken)
        if self.last is not None and k == done:
            if question != self.last.question:
                return self._refuse(Code.CONFLICT, k)
            return [self._answer(self.last)]
        if k > self._setup.rounds:
            return self._refuse(Code.UNEXPECTED, k)
        self._move("asked")
        return [AnswerRound(k=k, question=question, taken=taken, previous=self._digest(k - 1))]

    def _history(self, k: int, done: int, receipt: bytes) -> list[Action] | None:
        """What is wrong with a question about round k, by what was answered before.

        A receipt may be missing, as after a loss of power; one that is shown must be genuine, and
        prove nothing but what the store holds.
        """
        if receipt:
            shown = self._notary.digest(k - 1, receipt)
            if shown is None:
                return self._refuse(Code.FORGED_RECEIPT, k)
            if k - 1 > done or (k >= done and shown != self._digest(k - 1)):
                self._move("rolled_back")
                return [Halt(k=k - 1), *self._refuse(Code.HALTED, k)]
        if k < done:
            return self._refuse(Code.OLD_ROUND, k)
        return self._refuse(Code.FUTURE_ROUND, k) if k > done + 1 else None

    def _digest(self, k: int) -> bytes:
        """digest(k) of the last answer, or of the one before it."""
        if self.last is None:
            return self._setup.config_hash
        return self.last.digest if k == self.last.k else self.last.previous

    def _taken(self, listed: list[Taken], k: int) -> tuple[Participant, ...] | None:
        """Who takes part; None unless each is known, and no agent takes part twice.

        An agent that counted twice would move the sums twice as far as its promise allows. A mask
        knows its agents, so that none counts twice either.
        """
        found, everybody, before = [], 0, 0
        agents: set[int] = set()
        for number, session, j in listed:
            owner = self._met.get(number)
            again = self._setup.hold and j < k
            if owner is None or number <= before or not (j == k or again):
                return None
            found.append(Participant(owner=owner, session=session, round=j))
            agents.update(owner.agents)
            everybody += len(owner.agents)
            before = number
        return tuple(found) if len(agents) == everybody else None

    def _answer(self, answered: AnswerRecord) -> Action:
        receipt = self._notary.receipt(answered.k, answered.digest)
        message = Answer(round=answered.k, values=answered.values, receipt=receipt)
        return _reply(message)

    def _refuse(self, code: Code, k: int = 0) -> list[Action]:
        return [
            Incident(code=code, agents=(), k=k),
            _reply(Refusal(code=code, number=0)),
            Close(peer=0, code=code),
        ]

    def _move(self, event: str) -> None:
        self.phase = TRANSITIONS[self.phase, event]


def _reply(message: FromHelper) -> Send:
    return Send(peers=(0,), message=message)


def _question(taken: tuple[Participant, ...]) -> bytes:
    """Name who took part, whatever numbers the cloud gave them."""
    listed = sorted((s.owner.agents, s.owner.mask, s.session, s.round) for s in taken)
    return hashlib.sha256(msgspec.msgpack.encode(listed)).digest()


_HANDLERS: Final[dict[tuple[bool, type], Any]] = {
    (False, Open): HelperMachine._opened,
    (True, Introduce): HelperMachine._meet,
    (True, Ask): HelperMachine._ask,
}
"""By whether the connection has said which run it is about."""
