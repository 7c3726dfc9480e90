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
from msgspec import Struct

from sottovoce.network.protocol.helper_messages import (
    HELPER_VERSION,
    Answer,
    Ask,
    FromHelper,
    Meet,
    Open,
    Opened,
    Pledged,
    Refused,
    Taken,
    ToHelper,
)
from sottovoce.network.protocol.messages import Code
from sottovoce.network.protocol.receipt import Notary


class Phase(IntEnum):
    """Where the helper is."""

    IDLE = auto()
    ANSWERING = auto()
    COMMITTING = auto()
    DONE = auto()
    HALTED = auto()


TRANSITIONS: Final = {
    (Phase.IDLE, "opened"): Phase.ANSWERING,
    (Phase.ANSWERING, "asked"): Phase.COMMITTING,
    (Phase.COMMITTING, "committed"): Phase.ANSWERING,
    (Phase.COMMITTING, "finished"): Phase.DONE,
} | {(phase, "rolled_back"): Phase.HALTED for phase in Phase}


class Masker(Struct, frozen=True, kw_only=True):
    """Agents on a connection of the cloud's, by the key that their masks follow from."""

    agents: tuple[int, ...]
    mask: bytes


class Said(Struct, frozen=True, kw_only=True):
    """What takes part in a round: whose, in which session, and of which round."""

    masker: Masker
    session: bytes
    round: int


class Answered(Struct, frozen=True, kw_only=True):
    """A round as it was committed.

    Attributes:
        k: the round.
        question: names who took part.
        values: the sum of the masks with noise, as it travels.
        digest: names the history up to here.
        previous: names it up to the round before.
    """

    k: int
    question: bytes
    values: bytes
    digest: bytes
    previous: bytes


class HelperSetup(Struct, frozen=True, kw_only=True, eq=False):
    """What the helper of a run goes by.

    Attributes:
        config_hash: SHA-256 of the configuration.
        rounds: T.
        hold: whether what is said may count again in a later round; never for a trajectory.
        certified: whether a key for masks is certified for agents.
        pledge: signs what the run asks of them.
    """

    config_hash: bytes
    rounds: int
    hold: bool
    certified: Callable[[Masker], bool]
    pledge: Callable[[Masker], bytes]


class Reply(Struct, frozen=True, kw_only=True):
    """Send a message to the cloud."""

    message: FromHelper


class HangUp(Struct, frozen=True, kw_only=True):
    """Close the connection."""


class AnswerOnce(Struct, frozen=True, kw_only=True):
    """Add up masks, add noise, commit, and tell ``committed``."""

    k: int
    question: bytes
    taken: tuple[Said, ...]
    previous: bytes


class Recorded(Struct, frozen=True, kw_only=True):
    """Something was refused; agents from 1, never a value."""

    code: Code
    agents: tuple[int, ...]
    k: int


class Halted(Struct, frozen=True, kw_only=True):
    """Stop for good: the store has been rolled back."""

    k: int


Action: TypeAlias = Reply | HangUp | AnswerOnce | Recorded | Halted


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
        last: Answered | None = None,
    ) -> None:
        self.phase = Phase.IDLE
        self.last = last
        self._runs = runs
        self._notaries = notary
        self._open = False
        self._met: dict[int, Masker] = {}
        self._setup: HelperSetup
        self._notary: Notary

    def connect(self) -> None:
        """A cloud has connected; what an older connection said no longer counts."""
        self._open = False
        self._met.clear()

    def receive(self, message: ToHelper) -> list[Action]:
        """A message arrived on the newest connection."""
        handler = _HANDLERS.get((self._open, type(message)))
        if handler is None or self.phase is Phase.HALTED:
            return self._refuse(Code.HALTED if self.phase is Phase.HALTED else Code.UNEXPECTED)
        actions: list[Action] = handler(self, message)
        return actions

    def committed(self, answered: Answered) -> list[Action]:
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
        if self.phase is Phase.IDLE:
            self._move("opened")
            self._setup, self._notary = found, self._notaries(found.config_hash)
        self._open = True
        done = 0 if self.last is None else self.last.k
        if done >= self._setup.rounds:
            self.phase = Phase.DONE
        return [Reply(message=Opened(version=HELPER_VERSION, round=done))]

    def _meet(self, message: Meet) -> list[Action]:
        agents = tuple(message.agents)
        masker = Masker(agents=agents, mask=message.mask)
        increasing = all(a < b for a, b in pairwise(agents))
        if not increasing or not self._setup.certified(masker):
            refused = Refused(code=Code.NOT_YOURS, number=message.number)
            return [Recorded(code=Code.NOT_YOURS, agents=agents, k=0), Reply(message=refused)]
        self._met[message.number] = masker
        pledge = self._setup.pledge(masker)
        return [Reply(message=Pledged(number=message.number, pledge=pledge))]

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
        return [AnswerOnce(k=k, question=question, taken=taken, previous=self._digest(k - 1))]

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
                return [Halted(k=k - 1), *self._refuse(Code.HALTED, k)]
        if k < done:
            return self._refuse(Code.OLD_ROUND, k)
        return self._refuse(Code.FUTURE_ROUND, k) if k > done + 1 else None

    def _digest(self, k: int) -> bytes:
        """digest(k) of the last answer, or of the one before it."""
        if self.last is None:
            return self._setup.config_hash
        return self.last.digest if k == self.last.k else self.last.previous

    def _taken(self, listed: list[Taken], k: int) -> tuple[Said, ...] | None:
        """Who takes part; None unless each is known, and no agent takes part twice.

        An agent that counted twice would move the sums twice as far as its promise allows. A mask
        knows its agents, so that none counts twice either.
        """
        found, everybody, before = [], 0, 0
        agents: set[int] = set()
        for number, session, j in listed:
            masker = self._met.get(number)
            again = self._setup.hold and j < k
            if masker is None or number <= before or not (j == k or again):
                return None
            found.append(Said(masker=masker, session=session, round=j))
            agents.update(masker.agents)
            everybody += len(masker.agents)
            before = number
        return tuple(found) if len(agents) == everybody else None

    def _answer(self, answered: Answered) -> Action:
        receipt = self._notary.receipt(answered.k, answered.digest)
        message = Answer(round=answered.k, values=answered.values, receipt=receipt)
        return Reply(message=message)

    def _refuse(self, code: Code, k: int = 0) -> list[Action]:
        return [
            Recorded(code=code, agents=(), k=k),
            Reply(message=Refused(code=code, number=0)),
            HangUp(),
        ]

    def _move(self, event: str) -> None:
        self.phase = TRANSITIONS[self.phase, event]


def _question(taken: tuple[Said, ...]) -> bytes:
    """Name who took part, whatever numbers the cloud gave them."""
    listed = sorted((s.masker.agents, s.masker.mask, s.session, s.round) for s in taken)
    return hashlib.sha256(msgspec.msgpack.encode(listed)).digest()


_HANDLERS: Final[dict[tuple[bool, type], Any]] = {
    (False, Open): HelperMachine._opened,
    (True, Meet): HelperMachine._meet,
    (True, Ask): HelperMachine._ask,
}
"""By whether the connection has said which run it is about."""
