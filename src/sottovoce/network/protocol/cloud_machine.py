"""The cloud's side as a state machine: events in, actions out; no sockets, no noise.

The helper of a split cloud has the same transitions: its round is full when the cloud has
asked.

A connection speaks for agents once its hello is accepted; of a split cloud once the helper has
signed what is asked of them. Anything out of turn closes it. A split cloud stays COMMITTING until
the helper has answered, and goes on hearing agents meanwhile. The clock serves to tell how long
answers wait, and nothing else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum, auto
from itertools import pairwise
from typing import Final, final

import numpy as np

from sottovoce.network import Straggler
from sottovoce.network.protocol.actions import (
    Abandon,
    Action,
    Close,
    Commit,
    Halt,
    Incident,
    Meet,
    Part,
    Party,
    Record,
    Send,
    Setup,
    Wait,
)
from sottovoce.network.protocol.codec import Floats, MaskName, join_mask, mask_of, pack
from sottovoce.network.protocol.collected import Collected
from sottovoce.network.protocol.messages import (
    KEY,
    Code,
    Contribution,
    Done,
    Error,
    FromAgent,
    FromCloud,
    Hello,
    Masked,
    Round,
    State,
)
from sottovoce.network.protocol.receipt import Receipts

EMPTY_DEADLINES: Final = 6
"""Deadlines in a row without any contribution after which a run of a series ends."""

CREDIT: Final = 8  # messages an agent may send between two rounds; an honest one needs one or two


class CloudPhase(IntEnum):
    """Where the run is."""

    COLLECTING = auto()
    COMMITTING = auto()
    DONE = auto()
    HALTED = auto()


TRANSITIONS: Final = {
    (CloudPhase.COLLECTING, "full"): CloudPhase.COMMITTING,  # each agent contributed, or is late
    (CloudPhase.COMMITTING, "committed"): CloudPhase.COLLECTING,  # durable: send it
    (CloudPhase.COMMITTING, "finished"): CloudPhase.DONE,  # likewise the last: say goodbye
    (CloudPhase.COMMITTING, "failed"): CloudPhase.HALTED,  # prices diverged
    (CloudPhase.COLLECTING, "failed"): CloudPhase.HALTED,  # nobody contributes, in a series
    (CloudPhase.COLLECTING, "rolled_back"): CloudPhase.HALTED,  # an agent proves a lost round
    (CloudPhase.COMMITTING, "rolled_back"): CloudPhase.HALTED,
    (CloudPhase.DONE, "rolled_back"): CloudPhase.HALTED,
}

RELAY_TRANSITIONS: Final = {
    (before, event): after
    for (phase, event), after in TRANSITIONS.items()
    if event not in ("failed", "rolled_back")  # those are the cloud's
    for before in {phase, CloudPhase.COLLECTING}  # a round may go on without the relay
}


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """One connection."""

    peer: int
    allowed: Container[int]  # the agents that its certificate speaks for, from 1
    hello: Hello | None = None  # how it introduced itself; None before, or where that was refused
    party: Party | None = None  # the agents that it speaks for; None until it is admitted
    credit: int = CREDIT  # messages that it may send before the next round

    @property
    def agents(self) -> tuple[int, ...]:
        """The agents it speaks for, from 1."""
        return () if self.party is None else self.party.agents


@final
class CloudMachine:
    """The run as the cloud sees it."""

    def __init__(
        self,
        setup: Setup,
        receipts: Receipts,
        history: Callable[[int], bytes | None],  # the digest of a committed round, None for others
        *,
        last: Record | None = None,  # the last committed round when resuming
        straggler: Straggler = "wait",  # what counts for agents that miss a deadline
        awaited: Container[int] | None = None,  # the agents that are waited for; None for all
        silent: Mapping[int, int]
        | None = None,  # who was held in it, and the round that each contributed to last
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.setup = setup
        self.last: Record | None = None
        self.phase, self.transitions = CloudPhase.COLLECTING, TRANSITIONS
        self.round = 1  # the one that is being collected
        # By the welcome from above, of a relay: the round that is collected there, and the last in
        # which agents of this relay contributed.
        self.above_round = self.above_contributed = 0
        self._receipts, self._history, self._straggler = receipts, history, straggler
        # Else from the first contribution on; a run that has begun ends even if no agent returns.
        self._timed = straggler == "wait" or last is not None
        self._sends = State if setup.states else Masked if setup.split else Contribution
        self._sessions: dict[int, Session] = {}
        self._speakers: dict[int, int] = {}  # the connection of every agent that is there
        everyone = range(1, setup.agents + 1)
        here = set(everyone) - setup.absent if setup.absent else everyone
        self._awaited = here if awaited is None else awaited
        self._empty = 0  # deadlines without a contribution
        self._collected = Collected(setup.agents, self._awaited)
        self._used: dict[int, Part] | None = None  # by a party's first agent, once it is needed
        self._silent = dict(silent or {})
        self._clock, self._applied_at = clock, -math.inf
        if last is not None:
            self._keep(last)
            self.phase = CloudPhase.DONE if last.k >= setup.rounds else CloudPhase.COLLECTING

    @property
    def answer(self) -> Floats:
        """The prices to report: averaged if the algorithm averages."""
        return np.zeros(self.setup.prices) if self.last is None else self.last.answer

    @property
    def confirmed(self) -> bool | None:
        """Whether the answer passed the test at the end; None before, and where there is none."""
        return None if self.last is None else self.last.confirmed

    @property
    def present(self) -> set[int]:
        """The agents that are connected, from 1."""
        return set(self._speakers)

    def agents_of(self, peer: int) -> tuple[int, ...]:
        """The agents on a connection, from 1; none before hello."""
        session = self._sessions.get(peer)
        return () if session is None else session.agents

    def connect(self, peer: int, allowed: Container[int]) -> list[Action]:
        """A peer connected whose certificate speaks for the agents ``allowed``, from 1."""
        self._sessions[peer] = Session(peer=peer, allowed=allowed)
        return []

    def disconnect(self, peer: int) -> None:
        """The connection is gone; what it had sent stays."""
        session = self._sessions.pop(peer, None)
        for agent in () if session is None else session.agents:
            del self._speakers[agent]

    def receive(self, peer: int, message: FromAgent) -> list[Action]:
        """A message arrived."""
        session = self._sessions.get(peer)
        if session is None:
            return []
        session.credit -= 1
        if session.credit < 0:
            return self._drop(session, Code.FLOOD)
        if isinstance(message, Hello):
            if session.hello is None:
                return self._hello(session, message)
        elif session.party is not None and isinstance(message, self._sends):
            return self._contribution(session, session.party, message)
        return self._drop(session, Code.UNEXPECTED)

    def refuse(self, peer: int, code: Code) -> list[Action]:
        """What arrived was not a message, or the connection must end for another reason."""
        session = self._sessions.get(peer)
        if session is None or (code is Code.SILENT and session.hello is not None):
            return []  # it is the helper that has not answered yet
        return self._drop(session, code)

    def pledged(self, peer: int, pledge: bytes | None) -> list[Action]:
        """The helper has signed what is asked of a connection; None if it does not know its key."""
        session = self._sessions.get(peer)
        if session is None or session.hello is None or session.party is not None:
            return []
        if pledge is None:
            return self._drop(session, Code.NOT_YOURS, agents=tuple(session.hello.agents))
        return self._admit(session, session.hello, pledge)

    def remembered(self, parts: Iterable[Part]) -> list[Action]:
        """What the helper was asked about this round before a restart, to be asked again."""
        held: set[int] = set()
        for part in parts:
            self._collected.put(part)
            if mask_of(part.data).round < self.round:
                held.update(part.party.agents)
        return self._full(self._collected.parts, self._collected.missing | held)

    def committed(self, record: Record, wait: float = 0.0) -> list[Action]:
        """The round is durable: send it, and with the last when its answer is applied."""
        last = record.k >= self.setup.rounds
        self._move("finished" if last else "committed")
        self._keep(record)
        self._collected.clear()
        actions = self._broadcast(record)
        if last:
            self._applied_at = self._clock() + wait
            actions.append(Send(peers=self._active(), message=self._done()))
        elif self._straggler != "wait":
            self._timed = True
            actions.append(Wait(k=self.round))
        return actions

    def failed(self) -> list[Action]:
        """This round has no outcome: end all connections, of a series until its next run."""
        self._move("failed")
        return self._drop_all(Code.OVER if self.setup.series else Code.FAILED)

    def opened(self) -> list[Action]:
        """Peers may connect: a run that goes on, or is of a series, waits for nobody first."""
        self._timed = self._timed or self.setup.series
        timed = self._timed and self._straggler != "wait"
        return [Wait(k=self.round)] if timed and self.phase is CloudPhase.COLLECTING else []

    def deadline(self, k: int) -> list[Action]:
        """Timeout of round k: it goes on without those who have not answered.

        Either their fallback counts, or their last contribution again. For the latter at least one
        agent must have answered; a gateway sends one sum of its agents, so a sum is reused only if
        none of its agents has answered.
        """
        if self.phase is not CloudPhase.COLLECTING or k != self.round:
            return []
        missing = self._collected.missing
        self._empty = 0 if self._collected.parts else self._empty + 1
        if self._empty and self.setup.series:
            return [Abandon(k=k)] if self._empty >= EMPTY_DEADLINES else [Wait(k=k)]
        if self._straggler == "fallback":
            return self._full(self._collected.parts, missing)
        if self.last is not None and len(missing) < self.setup.agents:
            held = [part for part in self.last.parts if missing.issuperset(part.party.agents)]
            if sum(len(part.party.agents) for part in held) == len(missing):
                return self._full((*self._collected.parts, *held), missing)
        return [Wait(k=k)]

    def _keep(self, record: Record) -> None:
        self.last = record
        if record.held or self._silent:
            self._silent = {a: self._silent.get(a, self.round - 1) for a in record.held}
        self.round, self._used = record.k + 1, None

    def _move(self, event: str) -> None:
        self.phase = self.transitions[self.phase, event]

    def _active(self) -> tuple[int, ...]:
        """The peers that speak for agents."""
        return tuple([peer for peer, s in self._sessions.items() if s.party is not None])

    def _hello(self, session: Session, hello: Hello) -> list[Action]:
        code = self._refusal_code(hello, session.allowed)
        if code is not None:
            return self._drop(session, code)
        agents, k = self._taking_part(hello), hello.round
        if k and self._history(k) != self._receipts.digest(k, hello.receipt):
            self._move("rolled_back")
            return [Halt(k=k, agents=agents), *self._drop_all(Code.HALTED)]
        if not self.setup.split:
            return self._admit(session, hello, b"")
        session.hello = hello
        return [Meet(peer=session.peer, agents=agents, mask=hello.mask)]

    def _refusal_code(self, hello: Hello, allowed: Container[int]) -> Code | None:
        """Why a hello is refused; None to admit the peer."""
        setup = self.setup
        increasing = all(a < b for a, b in pairwise(hello.agents))
        if not increasing or bool(hello.round) != bool(hello.receipt):
            return Code.MALFORMED
        masked = len(hello.mask) == KEY or not setup.split
        here = [a for a in hello.agents if a in self._awaited]
        covered = len(here) == len(hello.agents) or setup.absent.issuperset(
            {*hello.agents} - {*here}
        )
        if not (here and covered and masked and all(a in allowed for a in hello.agents)):
            return Code.NOT_YOURS
        if self.phase is CloudPhase.HALTED:
            return Code.HALTED
        if hello.config not in (b"", setup.config_hash):
            return Code.OTHER_RUN
        if self.above_round and not hello.round < self.round >= self.above_round:
            # The last round has not come down to this relay yet. Who has seen it would take the
            # relay for a cloud that has forgotten rounds, who has not would not learn what it has
            # missed. Later it is welcome, unless the cloud has forgotten rounds indeed.
            return Code.FUTURE_ROUND
        if hello.round and self._receipts.digest(hello.round, hello.receipt) is None:
            return Code.FORGED_RECEIPT
        return None

    def _admit(self, session: Session, hello: Hello, pledge: bytes) -> list[Action]:
        agents, peer = self._taking_part(hello), session.peer
        out = [agent for agent in hello.agents if agent in self.setup.absent]
        # The newest connection counts: an older one of the same agent is dead or doubtful.
        older = {self._speakers[agent] for agent in agents if agent in self._speakers}
        actions = [a for p in sorted(older) for a in self.refuse(p, Code.REPLACED)]
        session.hello, session.party = hello, (party := self.setup.party(agents))
        self._speakers.update(dict.fromkeys(agents, peer))
        messages: list[FromCloud] = [
            self.setup.welcome(party, self.round, self._last_contributed(party), pledge, out)
        ]
        if self.last is not None and hello.round < self.last.k:
            messages.append(self._message(party, self.last))
        if self.phase is CloudPhase.DONE:
            messages.append(self._done())
        return actions + [Send(peers=(peer,), message=message) for message in messages]

    def _taking_part(self, hello: Hello) -> tuple[int, ...]:
        return tuple([agent for agent in hello.agents if agent not in self.setup.absent])

    def _last_contributed(self, party: Party) -> int:
        """The last round that one of these agents contributed to; it may be the current one."""
        if self._collected.contributed(party.places):
            return self.round
        last = self.round - 1
        contributed = max(self._silent.get(a, last) for a in party.agents) if self._silent else last
        return max(self.above_contributed, contributed)

    def _contribution(
        self, session: Session, party: Party, message: Contribution | Masked | State
    ) -> list[Action]:
        """A party's contribution to a round, moved into its range unless it is masked."""
        used: bytes | None
        if isinstance(message, Masked):
            assert session.hello is not None  # noqa: S101  a party has said hello
            name = MaskName(key=session.hello.mask, session=message.session, round=message.round)
            sent = join_mask(name, message.values)
            used = sent if len(message.values) == 8 * party.sums.size else None
        else:
            sent = message.x if isinstance(message, State) else message.values
            used = sent if party.range.holds(sent) else party.range.nearest(sent)
        gaps = () if isinstance(message, State) else tuple(message.missed)
        # All gaps must be the party's own, and not of rounds to come.
        plausible = not gaps or all(
            party.agents[0] <= first <= last <= party.agents[-1] and begin <= end <= self.round
            for first, last, begin, end in gaps
        )
        if used is None or not plausible:
            return self._drop(session, Code.MALFORMED)
        k, part = message.round, Part(party=party, data=used, missed=gaps)
        if self.phase is CloudPhase.DONE and k >= self.round:
            return [Send(peers=(session.peer,), message=self._done())]
        if k == self.round:
            return self._accept(session, part, sent)
        if self.last is not None and k == self.last.k:
            return self._repeat(session, part, self.last)
        return self._refuse_message(
            session, Code.OLD_ROUND if k < self.round else Code.FUTURE_ROUND
        )

    def _accept(self, session: Session, part: Part, sent: bytes) -> list[Action]:
        if not self._collected.put(part):
            return self._refuse_message(session, Code.CONFLICT)
        # Whatever the numbers were, the round goes on, and nothing is sent that depends on them.
        actions: list[Action] = []
        if part.data is not sent:
            moved = _moved(part.party, sent, part.data)
            actions.append(Incident(code=Code.CLIPPED, agents=moved, k=self.round))
        if not self._timed:  # the first contribution that this process hears of
            self._timed = True
            actions.append(Wait(k=self.round))
        # Who missed the last deadline, and has not come back, is not waited for.
        gone = self.last.held if self._straggler == "fallback" and self.last else frozenset()
        if self._collected.lacking <= len(gone) and self.phase is CloudPhase.COLLECTING:
            missing = self._collected.missing
            if missing <= gone - self._speakers.keys():
                actions += self._full(self._collected.parts, missing, part.party.agents)
        return actions

    def _repeat(self, session: Session, part: Part, record: Record) -> list[Action]:
        """The answer to a round that is committed already: the same bytes again.

        What was used is compared, within its range: it is all that the store remembers. Agents
        that come back in another party have nothing to compare with.
        """
        again = Send(peers=(session.peer,), message=self._message(part.party, record))
        if not record.held.isdisjoint(session.agents):
            return [*self._refuse_message(session, Code.LATE), again]
        if self._used is None:
            self._used = {part.party.agents[0]: part for part in record.parts}
        used = self._used.get(session.agents[0])
        if used is None or used.party.agents != session.agents or used.data == part.data:
            return [again]
        return [*self._refuse_message(session, Code.CONFLICT), again]

    def _full(
        self, parts: tuple[Part, ...], held: frozenset[int], last: tuple[int, ...] = ()
    ) -> list[Action]:
        self._move("full")
        last = last or tuple(sorted(held))
        return [Commit(k=self.round, parts=parts, held=held | self.setup.absent, last=last)]

    def _broadcast(self, record: Record) -> list[Action]:
        for session in self._sessions.values():
            session.credit = CREDIT
        active = self._active()
        if not self.setup.states:
            return [Send(peers=active, message=self._message(None, record))] if active else []
        parties = [(peer, self._sessions[peer].party) for peer in active]  # with entries of its own
        return [Send(peers=(p,), message=self._message(party, record)) for p, party in parties]

    def _message(self, party: Party | None, record: Record) -> Round:
        entries = b"" if party is None or not party.entries.size else pack(record.y[party.entries])
        return Round(
            round=record.k,
            price=pack(record.sent_price),
            y=entries,
            receipt=self._receipts.receipt(record.k, record.digest),
        )

    def _done(self) -> Done:
        return Done(
            rounds=self.setup.rounds,
            price=pack(self.answer),
            confirmed=self.confirmed,
            wait=max(0.0, self._applied_at - self._clock()),
            again=self.setup.again,
        )

    def _refuse_message(
        self, session: Session, code: Code, agents: tuple[int, ...] = ()
    ) -> list[Action]:
        """Refuse a message and go on with the connection."""
        return [
            Incident(code=code, agents=session.agents or agents, k=self.round),
            Send(peers=(session.peer,), message=Error(code=code, round=self.round)),
        ]

    def _drop_all(self, code: Code) -> list[Action]:
        return [a for p in tuple(self._sessions) for a in self.refuse(p, code)]

    def _drop(self, session: Session, code: Code, agents: tuple[int, ...] = ()) -> list[Action]:
        """Refuse a message and end the connection."""
        self.disconnect(session.peer)
        return [*self._refuse_message(session, code, agents), Close(peer=session.peer, code=code)]


def _moved(party: Party, sent: bytes, used: bytes) -> tuple[int, ...]:
    """Name the agents whose numbers were moved, for the operator; without a value."""
    if party.owners is None:
        return party.agents
    moved = np.frombuffer(sent, dtype="<i8") != np.frombuffer(used, dtype="<i8")
    return tuple(np.unique(party.owners[moved]).tolist())
