"""The connections of a cloud's machine: hello and welcome, where each is, and who speaks on it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Final, final

from sottovoce.network.protocol.actions import Party, Setup
from sottovoce.network.protocol.codec import pack, pack_whole
from sottovoce.network.protocol.messages import KEY, VERSION, Code, Hello, Welcome
from sottovoce.network.protocol.receipt import Receipts

CREDIT: Final = 8
"""Messages an agent may send between two rounds; an honest one needs one or two."""


class SessionPhase(IntEnum):
    """Where a connection is."""

    GREETING = auto()
    MEETING = auto()
    ACTIVE = auto()


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """One connection: who it may speak for, and who it does speak for."""

    allowed: Container[int]
    hello: Hello | None = None
    party: Party | None = None
    credit: int = CREDIT

    @property
    def phase(self) -> SessionPhase:
        """Whether it has said hello, and been let in."""
        if self.party is None:
            return SessionPhase.GREETING if self.hello is None else SessionPhase.MEETING
        return SessionPhase.ACTIVE

    @property
    def agents(self) -> tuple[int, ...]:
        """The agents it speaks for, from 1."""
        return () if self.party is None else self.party.agents


@final
class Sessions:
    """All connections, by the number of the peer; an agent speaks on one of them at most."""

    def __init__(self) -> None:
        self.moves = 0
        """How often agents have come or gone."""
        self._sessions: dict[int, Session] = {}
        self._speakers: dict[int, int] = {}

    def __iter__(self) -> Iterator[int]:
        return iter(tuple(self._sessions))

    def get(self, peer: int) -> Session | None:
        """Return a connection."""
        return self._sessions.get(peer)

    def open(self, peer: int, allowed: Container[int]) -> None:
        """A peer has connected whose certificate speaks for the agents ``allowed``."""
        self._sessions[peer] = Session(allowed=allowed)

    def close(self, peer: int) -> Session | None:
        """Forget a connection, and return it."""
        session = self._sessions.pop(peer, None)
        if session is not None:
            for agent in session.agents:
                del self._speakers[agent]
            self.moves += 1
        return session

    def admit(self, peer: int, party: Party) -> None:
        """A peer speaks for a party from now on; nobody else may at that time."""
        self._sessions[peer].party = party
        self._speakers.update(dict.fromkeys(party.agents, peer))
        self.moves += 1

    def speaking_for(self, agents: Iterable[int]) -> set[int]:
        """Return the connections on which some of the agents speak."""
        return {peer for a in agents if (peer := self._speakers.get(a)) is not None}

    def active(self) -> tuple[int, ...]:
        """Return the peers that have been let in."""
        return tuple(peer for peer, s in self._sessions.items() if s.party is not None)

    def renew_credit(self) -> None:
        """A round was sent: everybody may speak again."""
        for session in self._sessions.values():
            session.credit = CREDIT

    @property
    def present(self) -> set[int]:
        """The agents that are connected, from 1."""
        return set(self._speakers)

    @property
    def connected(self) -> int:
        """How many they are."""
        return len(self._speakers)


def hello_objection(
    hello: Hello, setup: Setup, allowed: Container[int], *, halted: bool, notary: Receipts
) -> Code | None:
    """Return why a hello is refused; None to admit the peer.

    Args:
        hello: the message.
        setup: the run.
        allowed: the agents that the peer's certificate speaks for.
        halted: whether the run has ended for good.
        notary: verifies receipts.
    """
    increasing = all(a < b for a, b in zip(hello.agents, hello.agents[1:], strict=False))
    if hello.version != VERSION:
        return Code.VERSION
    if not increasing or bool(hello.round) != bool(hello.receipt):
        return Code.MALFORMED
    known = len(hello.mask) == KEY or not setup.split
    listed = all(a <= setup.agents and a in allowed for a in hello.agents)
    if not (known and listed):
        return Code.NOT_YOURS
    if halted:
        return Code.HALTED
    if hello.config not in (b"", setup.config_hash):
        return Code.OTHER_RUN
    if hello.round and notary.digest(hello.round, hello.receipt) is None:
        return Code.FORGED_RECEIPT
    return None


def welcome_of(setup: Setup, party: Party, k: int, spoke: int, pledge: bytes) -> Welcome:
    """Describe a run to a party, while round k is being collected.

    Args:
        setup: the run.
        party: the agents on the connection.
        k: the round.
        spoke: the last round in which one of these agents spoke.
        pledge: the helper's signature, of a split cloud.
    """
    return Welcome(
        version=VERSION,
        config=setup.config,
        round=k,
        rounds=setup.rounds,
        spoke=spoke,
        states=setup.states,
        prices=setup.prices,
        lower=pack(party.lower),
        upper=pack(party.upper),
        sums=party.sums.tolist(),
        grid=pack(party.grid),
        least=pack_whole(party.least),
        most=pack_whole(party.most),
        rows=party.rows.tolist(),
        columns=party.entry_columns.tolist(),
        pledge=pledge,
    )
