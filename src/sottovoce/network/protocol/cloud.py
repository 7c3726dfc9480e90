"""The cloud's side as a state machine: events in, actions out; no sockets, no clock, no noise.

    phase        event        next phase
    COLLECTING   full         COMMITTING    all states of the round are in, or held
    COMMITTING   committed    COLLECTING    the round is durable: send it, collect the next
    COMMITTING   finished     DONE          the states after the last round are durable
    any          rolled_back  HALTED        an agent proves that the store forgot a round

A connection begins GREETING and becomes ACTIVE with its hello; whatever the table does not list
closes it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Any, Final, final

import numpy as np

from sottovoce.network.protocol.actions import (
    Action,
    Close,
    Commit,
    Halt,
    Incident,
    Record,
    Send,
    Setup,
)
from sottovoce.network.protocol.box import Box
from sottovoce.network.protocol.codec import Floats, pack
from sottovoce.network.protocol.collected import Collected
from sottovoce.network.protocol.messages import (
    VERSION,
    Code,
    Done,
    Error,
    FromAgent,
    Hello,
    Round,
    State,
    Welcome,
)
from sottovoce.network.protocol.receipt import Notary

CREDIT: Final = 8
"""Messages an agent may send between two rounds; an honest one needs one or two."""


class Phase(IntEnum):
    """Where the run is."""

    COLLECTING = auto()
    COMMITTING = auto()
    DONE = auto()
    HALTED = auto()


TRANSITIONS: Final = {
    (Phase.COLLECTING, "full"): Phase.COMMITTING,
    (Phase.COMMITTING, "committed"): Phase.COLLECTING,
    (Phase.COMMITTING, "finished"): Phase.DONE,
} | {(phase, "rolled_back"): Phase.HALTED for phase in Phase}


class Talk(IntEnum):
    """Where a connection is."""

    GREETING = auto()
    ACTIVE = auto()


@dataclass(slots=True, kw_only=True, eq=False)
class _Session:
    """One connection: who it may speak for, and who it does speak for."""

    allowed: Container[int]
    talk: Talk = Talk.GREETING
    agents: tuple[int, ...] = ()
    columns: Any = None
    entries: Any = None
    box: Box | None = None
    credit: int = CREDIT


@final
class CloudMachine:
    """The run as the cloud sees it.

    Args:
        setup: what does not change.
        notary: of the run's receipts.
        history: gives the digest of any committed round, None for one that is not.
        last: the last committed round when resuming.
        done: whether the run had finished.
        hold: whether a deadline may hold agents at their last state.
    """

    def __init__(
        self,
        setup: Setup,
        notary: Notary,
        history: Callable[[int], bytes | None],
        *,
        last: Record | None = None,
        done: bool = False,
        hold: bool = False,
    ) -> None:
        self.setup = setup
        self.last = last
        self.phase = Phase.DONE if done else Phase.COLLECTING
        self._notary = notary
        self._history = history
        self._hold = hold
        self._sessions: dict[int, _Session] = {}
        self._states = Collected(setup.lower.size)

    @property
    def round(self) -> int:
        """The round whose states are being collected."""
        return 1 if self.last is None else self.last.k + 1

    @property
    def carried(self) -> Floats:
        """What the cloud carries into the round whose states are being collected."""
        return self.setup.carried if self.last is None else self.last.carried

    @property
    def answer(self) -> Floats:
        """The multipliers to report: averaged if the algorithm averages."""
        return self.carried[-self.setup.rows :]

    @property
    def connected(self) -> int:
        """How many agents are connected."""
        return sum(len(s.agents) for s in self._sessions.values())

    @property
    def present(self) -> set[int]:
        """The agents that are connected, from 1."""
        return {agent for session in self._sessions.values() for agent in session.agents}

    def agents_of(self, peer: int) -> tuple[int, ...]:
        """The agents on a connection, from 1; nobody before hello."""
        session = self._sessions.get(peer)
        return () if session is None else session.agents

    def connect(self, peer: int, allowed: Container[int]) -> None:
        """A peer connected whose certificate speaks for the agents ``allowed``, from 1."""
        self._sessions[peer] = _Session(allowed=allowed)

    def disconnect(self, peer: int) -> None:
        """The connection is gone; what it had sent stays."""
        self._sessions.pop(peer, None)

    def receive(self, peer: int, message: FromAgent) -> list[Action]:
        """A message arrived."""
        session = self._sessions.get(peer)
        if session is None:
            return []
        session.credit -= 1
        if session.credit < 0:
            return self._drop(peer, session, Code.FLOOD)
        handler = _HANDLERS.get((session.talk, type(message)))
        if handler is None:
            return self._drop(peer, session, Code.UNEXPECTED)
        actions: list[Action] = handler(self, peer, session, message)
        return actions

    def refuse(self, peer: int, code: Code) -> list[Action]:
        """What arrived was not a message, or the connection must end for another reason."""
        session = self._sessions.get(peer)
        return [] if session is None else self._drop(peer, session, code)

    def committed(self, record: Record) -> list[Action]:
        """The round is durable: send it."""
        self._move("committed")
        self.last = record
        self._states.clear()
        return list(self._broadcast())

    def finished(self) -> list[Action]:
        """The states after the last round are durable: say goodbye."""
        self._move("finished")
        peers = tuple(p for p, s in self._sessions.items() if s.talk is Talk.ACTIVE)
        return [Send(peers=peers, message=self._done())]

    def deadline(self, k: int) -> list[Action]:
        """Time is up for round k: hold the agents that have not spoken, if some have."""
        collecting = self.phase is Phase.COLLECTING and k == self.round
        known = self._states.known
        if not (self._hold and collecting and self.last is not None and known.any()):
            return []
        held = np.flatnonzero(~known[self.setup.offsets[:-1]])
        return self._full(self._states.values(self.last.x), frozenset(held.tolist()))

    def _move(self, event: str) -> None:
        self.phase = TRANSITIONS[self.phase, event]

    def _hello(self, peer: int, session: _Session, hello: Hello) -> list[Action]:
        code = self._objection(session, hello)
        if code is not None:
            return self._drop(peer, session, code, agents=())
        agents = tuple(hello.agents)
        if hello.round and self._history(hello.round) != self._notary.digest(
            hello.round, hello.receipt
        ):
            self._move("rolled_back")
            halt: list[Action] = [Halt(k=hello.round, agents=agents)]
            return halt + [
                a for p, s in list(self._sessions.items()) for a in self._drop(p, s, Code.HALTED)
            ]
        actions = self._replace(peer, agents)
        self._activate(session, agents)
        actions.append(Send(peers=(peer,), message=self._welcome(session)))
        if self.last is not None and hello.round < self.last.k:
            actions.append(Send(peers=(peer,), message=self._message(session, self.last)))
        if self.phase is Phase.DONE:
            actions.append(Send(peers=(peer,), message=self._done()))
        return actions

    def _objection(self, session: _Session, hello: Hello) -> Code | None:
        increasing = all(a < b for a, b in zip(hello.agents, hello.agents[1:], strict=False))
        if hello.version != VERSION:
            return Code.VERSION
        if not increasing or bool(hello.round) != bool(hello.receipt):
            return Code.MALFORMED
        if not all(1 <= a < len(self.setup.offsets) and a in session.allowed for a in hello.agents):
            return Code.NOT_YOURS
        if self.phase is Phase.HALTED:
            return Code.HALTED
        if hello.config not in (b"", self.setup.config_hash):
            return Code.OTHER_RUN
        if hello.round and self._notary.digest(hello.round, hello.receipt) is None:
            return Code.FORGED_RECEIPT
        return None

    def _replace(self, peer: int, agents: tuple[int, ...]) -> list[Action]:
        """The newest connection counts: an older one of the same agent is dead or doubtful."""
        taken = set(agents)
        older = [p for p, s in self._sessions.items() if p != peer and taken & set(s.agents)]
        return [a for p in older for a in self._drop(p, self._sessions[p], Code.REPLACED)]

    def _activate(self, session: _Session, agents: tuple[int, ...]) -> None:
        offsets = self.setup.offsets
        columns = np.concatenate([np.arange(offsets[a - 1], offsets[a]) for a in agents])
        session.talk, session.agents = Talk.ACTIVE, agents
        contiguous = columns.size == columns[-1] - columns[0] + 1
        first, last = int(columns[0]), int(columns[-1])
        session.columns = slice(first, last + 1) if contiguous else columns
        session.entries = np.flatnonzero(np.isin(self.setup.entry_columns, columns))
        session.box = Box(self.setup.lower[session.columns], self.setup.upper[session.columns])

    def _welcome(self, session: _Session) -> Welcome:
        columns = np.arange(self.setup.lower.size)[session.columns]
        wanted = self.setup.entry_columns[session.entries]
        return Welcome(
            version=VERSION,
            config=self.setup.config,
            round=self.round,
            lower=pack(self.setup.lower[session.columns]),
            upper=pack(self.setup.upper[session.columns]),
            rows=self.setup.entry_rows[session.entries].tolist(),
            columns=np.searchsorted(columns, wanted).tolist(),
            slopes=pack(self.setup.entry_slopes[session.entries]),
        )

    def _state(self, peer: int, session: _Session, state: State) -> list[Action]:
        if state.round == self.round and self.phase is not Phase.DONE:
            return self._accept(peer, session, state)
        if self.phase is Phase.DONE and state.round >= self.round:
            return [Send(peers=(peer,), message=self._done())]
        if self.last is not None and state.round == self.last.k:
            return self._repeat(peer, session, state, self.last)
        late = state.round < self.round
        return self._object(peer, session, Code.OLD_ROUND if late else Code.FUTURE_ROUND)

    def _accept(self, peer: int, session: _Session, state: State) -> list[Action]:
        assert session.box is not None  # noqa: S101  only an active session has a state handled
        x = session.box.nearest(state.x)
        if x is None:
            return self._drop(peer, session, Code.MALFORMED)
        if not self._states.put(session.columns, x):
            return self._object(peer, session, Code.CONFLICT)
        # Whatever the numbers were, the round goes on, and nothing is sent that depends on them.
        found: list[Action] = []
        if x is not state.x:
            found.append(self._clipped(session, state.x, x))
        if self._states.complete and self.phase is Phase.COLLECTING:
            found += self._full(self._states.values(), frozenset())
        return found

    def _clipped(self, session: _Session, sent: bytes, used: bytes) -> Incident:
        """Name the agents whose states were moved, for the operator; without a value."""
        moved = np.frombuffer(sent, dtype="<i8") != np.frombuffer(used, dtype="<i8")
        columns = np.arange(self.setup.lower.size)[session.columns][moved]
        agents = np.unique(np.searchsorted(self.setup.offsets, columns, side="right"))
        return Incident(code=Code.CLIPPED, agents=tuple(agents.tolist()), k=self.round)

    def _repeat(self, peer: int, session: _Session, state: State, record: Record) -> list[Action]:
        """The answer to a round that is committed already: the same bytes again.

        What was used is compared, within the bounds: it is all that the store remembers.
        """
        assert session.box is not None  # noqa: S101  only an active session has a state handled
        x = session.box.nearest(state.x)
        if x is None:
            return self._drop(peer, session, Code.MALFORMED)
        again = Send(peers=(peer,), message=self._message(session, record))
        if record.held & {a - 1 for a in session.agents}:
            return [*self._object(peer, session, Code.LATE), again]
        if pack(record.x[session.columns]) != x:
            return [*self._object(peer, session, Code.CONFLICT), again]
        return [again]

    def _full(self, x: Floats, held: frozenset[int]) -> list[Action]:
        self._move("full")
        return [Commit(k=self.round, x=x, held=held)]

    def _broadcast(self) -> Iterable[Action]:
        assert self.last is not None  # noqa: S101  committed() has just set it
        active = {p: s for p, s in self._sessions.items() if s.talk is Talk.ACTIVE}
        for session in active.values():
            session.credit = CREDIT
        if not active:
            return
        if self.setup.entry_rows.size == 0:
            message = self._message(next(iter(active.values())), self.last)
            yield Send(peers=tuple(active), message=message)
            return
        for peer, session in active.items():
            yield Send(peers=(peer,), message=self._message(session, self.last))

    def _message(self, session: _Session, record: Record) -> Round:
        return Round(
            round=record.k,
            mu=pack(record.mu),
            y=pack(record.y[session.entries]) if session.entries.size else b"",
            receipt=self._notary.receipt(record.k, record.digest),
        )

    def _done(self) -> Done:
        return Done(rounds=self.setup.rounds, mu=pack(self.answer))

    def _object(self, peer: int, session: _Session, code: Code) -> list[Action]:
        """Refuse a message and go on with the connection."""
        return [
            Incident(code=code, agents=session.agents, k=self.round),
            Send(peers=(peer,), message=Error(code=code, round=self.round)),
        ]

    def _drop(
        self, peer: int, session: _Session, code: Code, agents: tuple[int, ...] | None = None
    ) -> list[Action]:
        """Refuse a message and end the connection."""
        del self._sessions[peer]
        named = session.agents if agents is None else agents
        return [
            Incident(code=code, agents=named, k=self.round),
            Send(peers=(peer,), message=Error(code=code, round=self.round)),
            Close(peer=peer, code=code),
        ]


_HANDLERS: Final[dict[tuple[Talk, type], Any]] = {
    (Talk.GREETING, Hello): CloudMachine._hello,
    (Talk.ACTIVE, State): CloudMachine._state,
}
