"""The helper's side as a state machine: events in, actions out; no sockets, no keys, no noise.

It has the cloud's table of phases: a round is full when the cloud has asked about it, by agents
that are certified, and a receipt of the cloud's may prove that the store forgot an answer.
A round is answered once. The same question about it gets the same bytes, any other is refused. One
connection counts at a time, the newest; whatever the table does not list closes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Sequence
from itertools import pairwise
from typing import Final, Protocol, final

import msgspec

from sottovoce.network.protocol.actions import (
    Action,
    AnswerRound,
    Close,
    Halt,
    Incident,
    JournalRow,
    Participant,
    Send,
)
from sottovoce.network.protocol.cloud_machine import TRANSITIONS, CloudPhase
from sottovoce.network.protocol.codec import MaskName
from sottovoce.network.protocol.messages import (
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
from sottovoce.network.protocol.receipt import ReceiptSigner

HELPER_TRANSITIONS: Final = {at: after for at, after in TRANSITIONS.items() if at[1] != "failed"}


class HelperRun(Protocol):
    """The helper's side of a run."""

    config_hash: bytes  # SHA-256 of the configuration
    rounds: int  # T
    hold: bool  # whether a contribution may count again in a later round; never for a trajectory

    def certified(self, agents: Sequence[int], mask: bytes) -> bool:
        """Whether a key for masks is certified for agents."""

    def pledge(self, agents: tuple[int, ...], key: bytes) -> bytes:
        """Sign what the run asks of them."""


@final
class HelperMachine:
    """What a helper does with a cloud's messages.

    ``runs`` checks a configuration and binds the helper to it, or returns the refusal; ``key``
    signs receipts; ``history`` gives the digest of a committed round; ``last`` is where it resumes.
    """

    def __init__(
        self,
        runs: Callable[[str], HelperRun | Code],
        key: bytes,
        history: Callable[[int], bytes | None],
        last: JournalRow | None = None,
    ) -> None:
        self.phase = CloudPhase.COLLECTING
        self.last = last
        self.peer = 0
        """The connection that counts; 0 for none."""
        self._runs = runs
        self._key = key
        self._history = history
        self._open = False
        self._met: dict[int, tuple[tuple[int, ...], bytes]] = {}
        self._run: HelperRun
        self._receipts: ReceiptSigner

    @property
    def done(self) -> int:
        """Rounds answered so far."""
        return 0 if self.last is None else self.last.k

    def connect(self, peer: int, _: Container[int] = ()) -> list[Action]:
        """A cloud has connected; messages of an older connection no longer count."""
        older, self.peer = self.peer, peer
        self._open = False
        self._met.clear()
        return [Close(peer=older, code=Code.REPLACED)] if older else []

    def disconnect(self, peer: int) -> None:
        """A connection is gone."""
        if peer == self.peer:
            self.peer = 0

    def refuse(self, peer: int, code: Code) -> list[Action]:
        """What arrived was no message, or the connection must end for another reason."""
        if peer != self.peer or (code is Code.SILENT and self._open):
            return []
        if code is Code.MALFORMED:
            return self._refuse(code)
        # Nothing is wrong with the run: the cloud comes back.
        return [Incident(code=code, agents=(), k=0), Close(peer=peer, code=code)]

    def receive(self, peer: int, message: ToHelper) -> list[Action]:
        """A message arrived."""
        if peer != self.peer:
            return []
        if self.phase is CloudPhase.HALTED:
            return self._refuse(Code.HALTED)
        if self._open is isinstance(message, Open):
            return self._refuse(Code.UNEXPECTED)  # the run is named first, and once
        if isinstance(message, Open):
            return self._opened(message)
        return self._meet(message) if isinstance(message, Introduce) else self._ask(message)

    def committed(self, answered: JournalRow) -> list[Action]:
        """The answer is durable: send it."""
        self._move("finished" if answered.k >= self._run.rounds else "committed")
        self.last = answered
        return [self._answer(answered)]

    def _opened(self, message: Open) -> list[Action]:
        run = self._runs(message.config)
        if isinstance(run, Code):
            return self._refuse(run)
        self._run, self._receipts = run, ReceiptSigner(self._key, run.config_hash)
        self._open = True
        if self.done >= run.rounds:
            self.phase = CloudPhase.DONE
        return [self._reply(Opened(round=self.done))]

    def _meet(self, message: Introduce) -> list[Action]:
        agents = tuple(message.agents)
        increasing = all(a < b for a, b in pairwise(agents))
        if not increasing or not self._run.certified(agents, message.mask):
            refused = Refusal(code=Code.NOT_YOURS, number=message.number)
            return [Incident(code=Code.NOT_YOURS, agents=agents, k=0), self._reply(refused)]
        self._met[message.number] = agents, message.mask
        pledge = self._run.pledge(agents, message.mask)
        return [self._reply(Pledged(number=message.number, pledge=pledge))]

    def _ask(self, message: Ask) -> list[Action]:
        k, receipt = message.round, message.receipt
        participants = self._taken(message.taken, k)
        if participants is None:
            return self._refuse(Code.MALFORMED, k)
        # A receipt may be missing, as after a loss of power; one that is shown must be genuine, and
        # prove nothing but what the store holds.
        shown = self._receipts.digest(k - 1, receipt) if receipt else self._digest(k - 1)
        if receipt and shown is None:
            return self._refuse(Code.FORGED_RECEIPT, k)
        if shown != self._digest(k - 1):
            self._move("rolled_back")
            return [Halt(k=k - 1), *self._refuse(Code.HALTED, k)]
        if not self.done <= k <= self.done + 1:
            return self._refuse(Code.OLD_ROUND if k < self.done else Code.FUTURE_ROUND, k)
        question = _question(participants)
        if self.last is not None and k == self.done:
            same = question == self.last.context
            return [self._answer(self.last)] if same else self._refuse(Code.CONFLICT, k)
        if k > self._run.rounds:
            return self._refuse(Code.UNEXPECTED, k)
        assert shown is not None  # noqa: S101  round k follows the last one
        self._move("full")
        return [AnswerRound(k=k, question=question, taken=participants, previous=shown)]

    def _digest(self, k: int) -> bytes | None:
        return self._history(k) if k else self._run.config_hash

    def _taken(self, entries: list[Taken], k: int) -> tuple[Participant, ...] | None:
        """Who takes part; None unless each is known, and no agent takes part twice.

        An agent that counted twice would move the sums twice as far as its promise allows. A mask
        knows its agents, so that none counts twice either.
        """
        participants, before = [], 0
        for number, session, j in entries:
            met = self._met.get(number)
            again = self._run.hold and j < k
            if met is None or number <= before or not (j == k or again):
                return None
            mask = MaskName(key=met[1], session=session, round=j)
            participants.append(Participant(agents=met[0], mask=mask))
            before = number
        counted = [agent for participant in participants for agent in participant.agents]
        return tuple(participants) if len(set(counted)) == len(counted) else None

    def _answer(self, answered: JournalRow) -> Action:
        receipt = self._receipts.receipt(answered.k, answered.digest)
        return self._reply(Answer(round=answered.k, values=answered.release, receipt=receipt))

    def _refuse(self, code: Code, k: int = 0) -> list[Action]:
        return [
            Incident(code=code, agents=(), k=k),
            self._reply(Refusal(code=code, number=0)),
            Close(peer=self.peer, code=code),
        ]

    def _reply(self, message: FromHelper) -> Send:
        return Send(peers=(self.peer,), message=message)

    def _move(self, event: str) -> None:
        self.phase = HELPER_TRANSITIONS[self.phase, event]


def _question(taken: tuple[Participant, ...]) -> bytes:
    """Name who took part, whatever numbers the cloud gave them."""
    entries = sorted((p.agents, p.mask.key, p.mask.session, p.mask.round) for p in taken)
    return hashlib.sha256(msgspec.msgpack.encode(entries)).digest()
